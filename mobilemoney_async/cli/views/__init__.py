"""Views of operators, on a terminal and as a page, over one query: `mobilemoney_async.sharing.overview`."""
