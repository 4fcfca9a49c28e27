"""Pages of one final state: what `status=SUCCESS` is worth in a list that is full of others' payments. Pure.

The newest page of one state leaves out what is open, so it reaches further back than the newest page of all. It is a
source of endings and of nothing else: a row that it shows is believed as any row is, and what it does not show may be
open, may have ended otherwise, or the filter is not what we think (contract, section 4.4: "filter by transaction
status", no more). So neither the order nor the length of the list is learned from it, and no ending from absence. That
a payment was not shown only lowers the weight of asking for it again, by as much as such pages have shown so far of
the endings that were expected on them. A state whose pages show little is left alone for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import attrs

from mobilemoney_async.contract.models import PageAnswer, Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.pending import Book, Pending

# A state is asked for once so many of our own payments have ended in it.
_ENDINGS = 3
# It is asked for further if so many of those that end at the ages that its page shows end in it: a request is a look
# at all of that age, and the others must not lose theirs by it.
_COMMON = 0.5
# Before anything is known, pages are taken to show what is expected of them; that counts like so many endings.
_PRIOR = 2.0
# What was learned long ago fades: some twenty requests count.
_FADE = 0.95
# However unlikely an ending was, a page without one counts so much.
_LEAST = 0.4
# A state is left alone once pages have shown less than this share of so many endings that were expected.
_POOR = 0.25
_ENOUGH = 4.0
# For so long, seconds; and after so long without a request what is known of a state is out of date.
_REST = 600.0
# After a failed request it is left alone for twice as long, then for twice that.
_FIRST_PAUSE = 30.0
# The youngest row is a while older than the youngest that may be shown next.
_YOUNGER = 0.9
# At most so much of a payment's weight is lost because a page did not show it: the rest grows until it is asked for.
_MOST_PASSED = 0.8
# How far the growth of the list may be off where ages are turned into places.
_BLUR = 1.3
# Over how many rows the difference of the clocks is averaged.
_CLOCKS = 20
# How many rows at most are gone through for one state: what bounds the cost of a decision.
_ROWS = 1500.0


@attrs.define(eq=False)
class View:
    """The newest page of one final state.

    Attributes:
        status: Which.
        youngest: The age at which payments begin to be shown, seconds.
        oldest: The age up to which they are, infinite where all fit on the page.
        yields: The share of the expected endings that pages have shown, 0 to 1.
        was_known: Whether it was known whom its page shows when it was last asked for.
        endings: How many of our payments are known to have ended in it.
        ended: How many ended of late, in whatever state, at the ages that pages show.
        matching: How many of these in this one.
        asked_at: When it was last asked for.
        is_on_the_way: Whether an answer is awaited.
        pause: How long it was left alone after the latest failed request, seconds.
        rests_until: Until when it is left alone.
    """

    status: TransactionStatus
    youngest: float = 0.0
    oldest: float = 0.0
    yields: float = 1.0
    was_known: bool = False
    endings: int = 0
    ended: float = 0.0
    matching: float = 0.0
    asked_at: float = -math.inf
    is_on_the_way: bool = False
    pause: float = _FIRST_PAUSE
    rests_until: float = -math.inf
    _is_known: bool = False
    _shown: float = 0.0
    _expected: float = 0.0

    def took(self, answer: PageAnswer, now: float, *, clock: float, ended: int, expected: float) -> None:
        """Learn from a page.

        Args:
            answer: The service's answer.
            now: Now.
            clock: What to add to the service's timestamps to get monotonic seconds.
            ended: How many of our payments it showed to have ended.
            expected: How many of them it should have shown.
        """
        rows = answer.transactions
        # A filter that is ignored, or in another order than the list, or that misses what we know to be there.
        if not rows or any(row.status != self.status for row in rows) or rows[0].created_at < rows[-1].created_at:
            self.rest(now)
            return
        if self.was_known:
            self._shown = self._shown * _FADE + ended
            self._expected = self._expected * _FADE + max(_LEAST, expected)
            self.yields = min(1.0, (self._shown + _PRIOR) / (self._expected + _PRIOR))
            if self._expected >= _ENOUGH and self._shown < _POOR * self._expected:
                self.rest(now)
                return
        self._is_known = True
        self.youngest = _YOUNGER * max(0.0, now - clock - rows[0].created_at.timestamp())
        is_full = len(rows) >= answer.pagination.per_page or answer.pagination.total_pages > 1
        self.oldest = now - clock - rows[-1].created_at.timestamp() if is_full else math.inf

    def saw_ending(self, status: TransactionStatus, age: float) -> None:
        """Note that one of our payments ended: whether in this state, if at an age at which pages would show it."""
        if self._is_known and self.youngest <= age <= self.oldest:
            self.ended = self.ended * _FADE + 1
            self.matching = self.matching * _FADE + (status == self.status)

    def is_open(self, now: float) -> bool:
        """Whether it may be asked for now."""
        return self.endings >= _ENDINGS and not self.is_on_the_way and now >= self.rests_until

    def is_known(self, now: float) -> bool:
        """Whether a page has been seen of late, so that it can be told whom the next would show."""
        return self._is_known and now - self.asked_at <= _REST

    def rest(self, now: float) -> None:
        """Leave this state alone for a while, and begin anew then."""
        self.rests_until = now + _REST
        self._is_known, self.yields, self._shown, self._expected = False, 1.0, 0.0, 0.0


class Views:
    """The final states in which our payments have ended, and what their pages are worth."""

    def __init__(self, *, book: Book, listing: Listing, hazard: Hazard) -> None:
        self._book = book
        self._listing = listing
        self._hazard = hazard
        self._views: dict[str, View] = {}
        self._endings = 0
        self._clock: float | None = None

    def saw_row(self, payment: Pending, row: Transaction) -> None:
        """Learn by how much the service's clock and ours differ, from a row of a payment of which both are known."""
        if not payment.is_new:
            return
        clock = payment.created_at - row.created_at.timestamp()
        # What is tracked late seems to be younger than it is.
        if self._clock is None or clock < self._clock:
            self._clock = clock
        else:
            self._clock += (clock - self._clock) / _CLOCKS

    def saw_ending(self, status: TransactionStatus, age: float) -> None:
        """Note in which state one of our payments ended, and at which age, seconds."""
        self._views.setdefault(status, View(status)).endings += 1
        self._endings += 1
        for view in self._views.values():
            view.saw_ending(status, age)

    def share(self, view: View) -> float:
        """Return the share of what has ended that a page is expected to show, 0 to 1."""
        return min(view.yields, self._commonness(view))

    def open(self, now: float) -> Iterator[View]:
        """Return the states that may be asked for now."""
        if not self._listing.is_crowded or not self._listing.newest_first or self._clock is None:
            return
        for view in self._views.values():
            if view.is_open(now) and (not view.is_known(now) or self._commonness(view) >= _COMMON):
                yield view

    def payments(self, view: View, now: float) -> list[Pending]:
        """Return the payments that a page would show if they had ended in its state."""
        length, growth = self._listing.length(now), self._listing.growth
        high = length - view.youngest * growth / _BLUR
        low = max(length - view.oldest * growth * _BLUR, high - _ROWS)
        return [
            payment
            for payment in self._book.between(low, math.inf if view.youngest == 0 else high)
            # What a hint names is asked for where it is sure to be shown.
            if view.youngest <= now - payment.created_at <= view.oldest and not payment.hinted
        ]

    def wanted(self, status: str, now: float) -> list[Pending]:
        """Return the payments for whose sake a page is asked for."""
        view = self._views[status]
        # Until a page has been seen nobody knows whom it would show: then it is the look of who waits for one longest.
        return self.payments(view, now) if view.is_known(now) else self._book.longest_due(now, 1)

    def _commonness(self, view: View) -> float:
        """Return the share of our endings, at the ages that pages show, that are in this state."""
        usual = view.endings / self._endings
        return (view.matching + _PRIOR * usual) / (view.ended + _PRIOR)

    def asked(self, status: str, now: float) -> None:
        """Note that a page is asked for."""
        view = self._views[status]
        view.is_on_the_way, view.was_known, view.asked_at = True, view.is_known(now), now

    def failed(self, status: str, now: float) -> None:
        """Note that a page was not shown."""
        view = self._views[status]
        view.is_on_the_way = False
        view.pause = min(_REST, 2 * view.pause)
        view.rests_until = now + view.pause

    def endings_among(self, payments: Iterable[Pending], at: float) -> float:
        """Return how many of the payments are expected to have ended since they were last looked for."""
        return sum(
            self._hazard.chance(each.last_looked_for - each.created_at, at - each.created_at) for each in payments
        )

    def took(
        self,
        status: str,
        answer: PageAnswer,
        now: float,
        *,
        at: float,
        ended: int,
        expected: float,
        passed: list[Pending],
    ) -> None:
        """Learn from a page.

        Args:
            status: The state that was asked for.
            answer: The service's answer.
            now: Now.
            at: When what it shows was true.
            ended: How many of our payments it showed to have ended.
            expected: How many of them it should have shown.
            passed: Those that it would have shown if they had ended in this state.
        """
        view = self._views[status]
        view.is_on_the_way = False
        view.pause = _FIRST_PAUSE
        assert self._clock is not None
        view.took(answer, now, clock=self._clock, ended=ended, expected=expected)
        if view.was_known and view.is_known(now):
            share = min(_MOST_PASSED, self.share(view))
            for payment in passed:
                payment.passed_at, payment.passed_share = at, share
