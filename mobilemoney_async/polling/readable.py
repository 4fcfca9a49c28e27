"""What can be read of a page of which not all can.

To a person who asks for a page, one that breaks the contract is an error. To the poller it is a page that shows less:
one row that it cannot read, or a count that is missing, must not hide a hundred others for as long as they are listed.
Each row is read as strictly as ever. What is not shown is asked for by its id, as always.
"""

from __future__ import annotations

import logging
from typing import Any

from mobilemoney_async.contract.codec import DecodeError, parse_json
from mobilemoney_async.contract.endpoints import LIST_TRANSACTIONS
from mobilemoney_async.contract.models import PageAnswer, Pagination, Transaction

logger: logging.Logger = logging.getLogger("mobilemoney_async")


class PageReader:
    """Reads pages; says once that they can be read in part only, until one is whole again."""

    def __init__(self) -> None:
        self._is_whole = True

    def __call__(self, body: bytes) -> PageAnswer:
        """Return what a page shows.

        Raises:
            DecodeError: It has rows and none can be read, or it is no page.
        """
        try:
            answer = LIST_TRANSACTIONS.read(body)
        except DecodeError as exc:
            answer = _readable(body, exc)
            if self._is_whole:
                logger.warning("following payments goes on with what can be read of a page: %s", exc)
            self._is_whole = False
        else:
            self._is_whole = True
        return answer


def _readable(body: bytes, broken: DecodeError) -> PageAnswer:
    # Here, since answers that need it are rare and cattrs takes a third of the import.
    from mobilemoney_async.contract import fallback_decoder

    page = parse_json(body)
    if not isinstance(page, dict) or not isinstance(page.get("transactions"), list):
        raise broken
    rows: list[Transaction] = []
    for row in page["transactions"]:
        try:
            rows.append(fallback_decoder.structure(row, Transaction))
        except fallback_decoder.Mismatch:
            continue  # what broke first has been told
    if page["transactions"] and not rows:
        raise broken
    status = page.get("status")
    return PageAnswer(
        transactions=tuple(rows),
        pagination=_pagination(page.get("pagination")),
        status=status if isinstance(status, str) else "",
    )


def _pagination(counts: Any) -> Pagination:
    """Return the counts that are there; 0, which no page that shows a row can mean, for the others."""
    known = counts if isinstance(counts, dict) else {}
    values = {
        name: value if type(value := known.get(name)) is int and value >= 0 else 0
        for name in ("current_page", "total_pages", "total_count", "per_page")
    }
    return Pagination(**values)
