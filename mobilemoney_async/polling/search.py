"""The search for payments of which only the id is known, after a restart for example. Pure.

They may be anywhere in the list. A sweep through its pages finds them, as long as that is worth it; what it does not
find is asked for by its id.
"""

from __future__ import annotations

from mobilemoney_async.polling.asking import Page
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.pending import Pending
from mobilemoney_async.resources.page_choice import PageSweep


class Search:
    """Who is looked for, and how far the sweep has come."""

    def __init__(self) -> None:
        self._wanted: dict[str, Pending] = {}
        self._sweep = PageSweep()
        self._on_the_way: Page | None = None

    def __contains__(self, payment: Pending) -> bool:
        return payment.id in self._wanted

    def add(self, payment: Pending) -> None:
        """Look for a payment."""
        self._wanted[payment.id] = payment

    def remove(self, payment: Pending) -> bool:
        """Look for a payment no longer, and return whether it was looked for."""
        return self._wanted.pop(payment.id, None) is not None

    def next(self, listing: Listing, now: float) -> tuple[Page, float] | None:
        """Return the next page of the sweep, and how many payments it is expected to show; None if there is none."""
        if self._on_the_way is not None or not self._wanted:
            return None
        worth = self._sweep.worth(len(self._wanted), listing.pages(now) if listing.is_known else None)
        return (Page(listing.head(self._sweep.depth, now)), worth) if worth else None

    def asked(self, page: Page, listing: Listing, now: float) -> None:
        """Note that a page is asked for: it may be the one that is next."""
        following = self.next(listing, now)
        if following is not None and following[0] == page:
            self._on_the_way = page

    def took(self, page: Page, listing: Listing, now: float, *, found: int, rows: int, turned: bool = False) -> None:
        """Note what a page showed.

        Args:
            page: Which.
            listing: What is known of the list now.
            now: Now.
            found: How many of the wanted it showed; they have been removed.
            rows: How many rows in all.
            turned: Whether it showed the list to be in another order than had been thought.
        """
        if page != self._on_the_way:
            return
        self._on_the_way = None
        if turned and not self._sweep.depth:
            return  # it was the other end: the sweep has yet to begin
        self._sweep.took(len(self._wanted) + found, found, rows)
        if self.next(listing, now) is None:
            self._wanted.clear()
            self._sweep = PageSweep()

    def failed(self, page: Page) -> None:
        """Note that a page was not shown."""
        if page == self._on_the_way:
            self._on_the_way = None
