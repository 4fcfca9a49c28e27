"""Which request has the most to tell. Pure.

For each payment that a request would show: the chance that it has ended since it was last seen open, times how long ago
that was. The sum is the waiting that the request is expected to end.
"""

from __future__ import annotations

import itertools

import attrs

from mobilemoney_async.polling.asking import ById, Page, Request
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.looks import Looks
from mobilemoney_async.polling.pending import Book, Pending
from mobilemoney_async.polling.search import Search
from mobilemoney_async.polling.trust import Trust
from mobilemoney_async.polling.views import View, Views

# How many of the payments that have been due for longest, and on how many pages, take part in a decision: what bounds
# its cost.
_CANDIDATES = 24
_CANDIDATE_PAGES = 6
# Whatever is learned about old payments, one in so many seconds may end: so that none weighs nothing.
_LONGEST_LIFE = 14_400.0
# A callback's hint weighs as much as if the payment had certainly ended so long ago, seconds.
_HINT = 60.0
# What a lookup is worth of a payment that a page should show: a page may show another as well.
_BY_ID = 0.8
# A look is saved up until a request is expected to end so much waiting, seconds.
_WORTH = 0.3
# Of more payments than these, some are always worth a look.
_FEW = 20
# A request costs those a look whose news it is mostly made for: whose weight is so much of the greatest. The others
# that it shows are shown in passing.
_SHARE = 0.95
# When that is, is found out to so many seconds.
_PRECISION = 0.05
# The list is checked with a payment that is so old at least, seconds: that a younger one is open tells nothing.
_TELLING = 12.0
# What the list has shown so far is no measure of whether it tells the truth.
_UNTAUGHT = Hazard()


@attrs.define(kw_only=True)
class Choice:
    """Weighs requests by what is known."""

    book: Book
    looks: Looks
    listing: Listing
    hazard: Hazard
    search: Search
    trust: Trust
    views: Views

    @property
    def saves_looks(self) -> bool:
        """Whether looks that are allowed may be put off: only once it is known when they tell something.

        Of many payments some are always worth a look: then the limit, not the schedule, is what there is little of.
        """
        return len(self.book) <= _FEW and self.hazard.is_learned

    def most_telling(self, now: float, *, use_list: bool) -> Request:
        """Return the request that ends the most waiting; it shows a payment that is due, and one must be."""
        due = self.book.longest_due(now, _CANDIDATES)
        if self.trust.wants_check:
            telling = self._telling_age(now)
            old = [each for each in due if each.listed and now - each.created_at >= telling]
            if old:
                return ById(min(old, key=lambda payment: payment.created_at).id)
        # Halved with each failure, or one whose lookups always fail would keep the others from theirs.
        weights = {payment: self._weight(payment, now) * 0.5**payment.failures for payment in due}
        weightiest = max(due, key=weights.__getitem__)
        best: Request = ById(weightiest.id)
        by_page = weightiest.ordinal is not None and self.trust.is_fresh
        most = weights[weightiest] * (_BY_ID if by_page else 1.0)
        if not use_list:
            return best
        for number in self._candidate_pages(due, now):
            weight = self._page_weight(number, now)
            if weight > most:
                best, most = Page(number), weight
        for view in self.views.open(now):
            if not view.is_known(now):
                return Page(1, view.status)
            weight = self._view_weight(view, now)
            if weight > most:
                best, most = Page(1, view.status), weight
        sweep = self.search.next(self.listing, now)
        wanted = max((weights[payment] for payment in due if payment in self.search), default=0.0)
        if sweep is not None and sweep[1] * wanted > most:
            best = sweep[0]
        return best

    def for_whose_sake(self, shown: list[Pending], now: float) -> list[Pending]:
        """Return those of the payments that a request shows which it costs a look."""
        soon = [payment for payment in shown if self.looks.is_soon(payment, now)]
        if self.trust.wants_check:
            # Those that would tell whether the list is right keep their looks for that.
            telling = self._telling_age(now)
            soon = [each for each in soon if not each.listed or now - each.created_at < telling] or soon
        if not soon or not self.saves_looks:
            return soon
        weights = [self._weight(payment, now) for payment in soon]
        least = _SHARE * max(weights)
        return [payment for payment, weight in zip(soon, weights, strict=True) if weight >= least]

    def worth_from(self, first: float) -> float:
        """Return from when on a page is worth its request, at the earliest when the first payment falls due.

        Until enough endings have been seen to know when they are likely, that is at once.
        """
        if not self.saves_looks or not self.listing.is_known:
            return first
        low, high = first, max(first, min(map(self._last_moment, self.book)))
        if high <= low or self._most(low) >= _WORTH:
            return low
        while high - low > _PRECISION:
            middle = (low + high) / 2
            if self._most(middle) >= _WORTH:
                high = middle
            else:
                low = middle
        return high

    def _last_moment(self, payment: Pending) -> float:
        if payment.ordinal is None or payment.hinted:
            return payment.due
        return self.looks.last_moment(payment)

    def _most(self, at: float) -> float:
        due = self.book.longest_due(at, _CANDIDATES)
        pages = (self._page_weight(number, at) for number in self._candidate_pages(due, at))
        views = (self._view_weight(view, at) for view in self.views.open(at))
        return max(0.0, *pages, *views)

    def _candidate_pages(self, due: list[Pending], now: float) -> list[int]:
        """Return the numbers of the pages that should show what has been due for longest, and of the newest."""
        pages: dict[int, None] = {}
        for payment in due:
            if payment.ordinal is not None and len(pages) < _CANDIDATE_PAGES:
                pages[self.listing.page_of(payment.ordinal, now)] = None
        if pages:
            pages[self.listing.head(0, now)] = None
        return list(pages)

    def is_telling(self, payment: Pending, at: float) -> bool:
        """Return whether a payment is so old that its being open would speak for the list."""
        return at - payment.created_at >= self._telling_age(at)

    def _telling_age(self, at: float) -> float:
        # Half as old as the oldest: where the list is wrong the ended pile up, and the open ones are the youngest.
        first = (payment for payment in itertools.islice(self.book, _CANDIDATES) if payment.listed)
        return max(_TELLING, max((at - payment.created_at for payment in first), default=0.0) / 2)

    def untaught_chance(self, payment: Pending, at: float) -> float:
        """Return how likely a payment has ended since it was last seen open, before anything is learned, 0 to 1."""
        return _UNTAUGHT.chance(payment.seen_at - payment.created_at, at - payment.created_at)

    def _weight(self, payment: Pending, at: float) -> float:
        """Return how long news of a payment, as things were at a time, is expected to have been waiting."""
        share = payment.passed_share if payment.passed_at > payment.seen_at else 0.0
        weight = self._weight_since(payment, payment.seen_at, at)
        return (
            weight if not share else (1 - share) * weight + share * self._weight_since(payment, payment.passed_at, at)
        )

    def _weight_since(self, payment: Pending, since: float, at: float) -> float:
        """Return the same for a payment that was open at a time."""
        unseen = at - since
        if unseen <= 0:
            return 0.0
        if payment.hinted:
            return unseen + _HINT
        age = since - payment.created_at
        # The mean chance to have ended over the time since it was seen, by Simpson's rule; none at the beginning.
        chance = (4 * self.hazard.chance(age, age + unseen / 2) + self.hazard.chance(age, age + unseen)) / 6
        return max(chance, min(1.0, unseen / _LONGEST_LIFE)) * unseen

    def _view_weight(self, view: View, now: float) -> float:
        payments = self.views.payments(view, now)
        if not any(payment.due <= now for payment in payments):
            return 0.0
        shown = now - self.trust.delay(now)
        return self.views.share(view) * sum(self._weight_since(each, each.last_looked_for, shown) for each in payments)

    def _page_weight(self, number: int, now: float) -> float:
        payments = self.book.between(*self.listing.window(number, now))
        if not any(payment.due <= now for payment in payments):
            return 0.0
        shown = now - self.trust.delay(now)
        youngest = now - self.trust.missing
        return sum(
            self._weight(each, shown) * (1.0 if each.listed else self.trust.hits)
            for each in payments
            if each.listed or each.created_at < youngest
        )
