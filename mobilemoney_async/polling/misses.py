"""Payments that a page should have shown and did not: how long new ones are missing, and who is asked by id. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

import attrs

from mobilemoney_async.polling.asking import Asked, Page
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.pending import Book, Pending
from mobilemoney_async.polling.trust import Trust

# How many rows a payment may be off its expected place before a page that lacks it says anything: where others add
# rows, and where nobody else does, but creates that are on their way are counted twice or not at all.
_BLUR = 8.0
_OVERLAP = 2.0


@attrs.define(kw_only=True)
class Misses:
    """Learns from what a page does not show."""

    book: Book
    listing: Listing
    trust: Trust

    def learn_missing(self, asked: Asked, shown: Container[Pending], now: float) -> None:
        """Learn for how long new payments are missing, from the page that should show the newest.

        Args:
            asked: The request, for a page without a filter.
            shown: Who was on it.
            now: Now.
        """
        assert isinstance(asked.request, Page)
        if asked.request.number != self.listing.head(0, now):
            return
        new = [payment for payment in asked.expected if payment.is_dated]
        youngest = min((asked.at - each.created_at for each in new if each in shown), default=math.inf)
        if youngest == math.inf and self.listing.has_strangers:
            return  # they may have gone by already
        ages = [asked.at - each.created_at for each in new if each not in shown and not each.listed]
        self.trust.saw_newest(shown=youngest, missing=max((age for age in ages if age < youngest), default=0.0))

    def take(self, asked: Asked, shown: Container[Pending]) -> Iterator[Pending]:
        """Return the payments whose look it was in vain; who is surely not where they should be loses the place.

        Args:
            asked: The request, for a page without a filter.
            shown: Who was on it.
        """
        assert isinstance(asked.request, Page)
        low, high = self.listing.window(asked.request.number, asked.at)
        blur = _BLUR if self.listing.has_strangers else _OVERLAP
        for payment in asked.expected:
            if payment in shown or self.book.get(payment.id) is not payment or payment.ordinal is None:
                continue
            yield payment
            if not payment.listed and asked.at - payment.created_at <= self.trust.missing:
                continue
            payment.misses += 1
            # Near the edge it may be on the next page, but not time and again.
            if low + blur < payment.ordinal <= high - blur or payment.misses > 1:
                if not payment.listed and payment.is_dated:
                    self.trust.saw_new(is_shown=False)
                self.book.place(payment, None)
