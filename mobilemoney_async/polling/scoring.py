"""Scoring of the requests that could be made now, by the learned chance of payments to end. Pure.

A request's score is the waiting that it is expected to end: for each payment that it shows, the chance that it has
ended since it was last seen open, times the time since then. The heaviest candidate wins: a page on which a payment
that has long been due has its place, the newest page, one lookup, or the next page of a sweep for bare ids.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import attrs

from mobilemoney_async.polling.list_model import ListFreshness, ListModel
from mobilemoney_async.polling.pacing import LookupSchedule
from mobilemoney_async.polling.tracked import TrackedPayment, TrackedPayments
from mobilemoney_async.resources.page_choice import PageSweep

# Payments, and pages of theirs, that take part in a decision: they bound its cost.
_CANDIDATES = 24
_CANDIDATE_PAGES = 6
# Whatever is learned about old payments, one in so many seconds may end: none of them weighs nothing.
_LONGEST_LIFE = 14_400.0
# A hinted payment weighs as if it had ended so long before the hint, seconds.
_HINT = 10.0
# Endings over which the share is averaged that hints announce.
_HINTS = 20
# Share of its weight at which a payment on a page is looked up: a page may show another as well.
_LOOKUP = 0.8
# A look is saved up until a request is expected to end so much waiting, seconds.
_WORTH = 0.3
# Of more payments than these, some are always worth a look.
_FEW = 20
# While looks are saved, a request costs a look only of payments that weigh this share of the heaviest.
_SHARE = 0.95
# Precision of the time until which looks are saved, seconds.
_STEP = 0.05

# Ages in the estimator are sorted into bins that grow by a constant factor, since a second matters early and a minute
# matters late. The last bin has no end.
_BINS = 140
_EDGES = [1.1**number - 1 for number in range(_BINS + 1)]
_MIDDLES = [(low + high) / 2 for low, high in itertools.pairwise(_EDGES)]
# The prior counts like so many payments per bin.
_PRIOR_WEIGHT = 0.5
_PRIOR_SHIFT = 5.0
# Old endings fade: half of the weight is in the latest seven hundred.
_FADE = 0.999
# So many endings show roughly when endings are unlikely.
_ENOUGH = 10


@attrs.frozen
class Page:
    """Request for a page of the list, by its number from 1."""

    number: int


@attrs.frozen
class SingleLookup:
    """Request for one payment by its id."""

    transaction_id: str


Request: TypeAlias = Page | SingleLookup


@attrs.define(eq=False)
class InFlight:
    """A request in flight, sent at `at`, monotonic seconds."""

    request: Request
    at: float
    expected: list[TrackedPayment]  # the answer should show them
    before: dict[TrackedPayment, tuple[int, float]]  # looks and due time, before it cost them a look


@attrs.define(eq=False)
class Estimator:
    """Learned chance of payments to end, by age in seconds."""

    _ended: list[float] = attrs.field(factory=lambda: [0.0] * _BINS)
    _open: list[float] = attrs.field(factory=lambda: [0.0] * _BINS)
    _cumulative: list[float] = attrs.field(factory=lambda: [0.0] * (_BINS + 1))
    _is_stale: bool = True
    _endings: int = 0

    @property
    def is_learned(self) -> bool:
        """True if enough endings have been seen to know when they are unlikely."""
        return self._endings >= _ENOUGH

    def saw_open(self, start: float, end: float) -> None:
        """Learn that a payment was open from one age to another."""
        if end > start:
            for number, low, high in _pieces(start, end):
                self._open[number] += high - low
            self._is_stale = True

    def saw_end(self, start: float, end: float) -> None:
        """Learn that a payment that was open at one age had ended at another.

        The moment in between is unknown, so the ending counts for each bin by the chance learned so far. That sharpens
        by itself: where endings agree on a moment, the others follow.
        """
        self._endings += 1
        self._ended = [count * _FADE for count in self._ended]
        self._open = [seconds * _FADE for seconds in self._open]
        total = self.chance(start, end)
        before = 0.0
        for number, low, high in _pieces(start, end):
            after = self.chance(start, high) / total if total and high < end else 1.0
            self._ended[number] += after - before
            self._open[number] += (1 - (before + after) / 2) * (high - low)
            before = after
        self._is_stale = True

    def chance(self, start: float, end: float) -> float:
        """Return the chance that a payment that was open at one age has ended at another, 0 to 1."""
        if end <= start:
            return 0.0
        if self._is_stale:
            self._sum_up()
        return -math.expm1(self._up_to(start) - self._up_to(end))

    def _up_to(self, age: float) -> float:
        number = _bin(age)
        low, high = _EDGES[number], _EDGES[number + 1]
        share = min(1.0, max(0.0, (age - low) / (high - low)))
        return self._cumulative[number] * (1 - share) + self._cumulative[number + 1] * share

    def _sum_up(self) -> None:
        rates = (
            (ended + _PRIOR_WEIGHT) / (seconds + _PRIOR_WEIGHT * (middle + _PRIOR_SHIFT))
            for ended, seconds, middle in zip(self._ended, self._open, _MIDDLES, strict=True)
        )
        hazards = (rate * (high - low) for rate, (low, high) in zip(rates, itertools.pairwise(_EDGES), strict=True))
        self._cumulative = [0.0, *itertools.accumulate(hazards)]
        self._is_stale = False


def _bin(age: float) -> int:
    return min(_BINS - 1, bisect_right(_EDGES, max(0.0, age)) - 1)


def _pieces(start: float, end: float) -> Iterator[tuple[int, float, float]]:
    """Return the bins between two ages, with the part of the time that is in each; at least one."""
    first, last = _bin(start), _bin(end)
    for number in range(first, last + 1):
        yield number, max(start, _EDGES[number]), end if number == last else _EDGES[number + 1]


@attrs.define(eq=False)
class IdSweep:
    """Sweep through the list for bare ids: they can be on any page, as after a restart.

    It goes on as long as pages show more of them than lookups would. The others are looked up.
    """

    _list: ListModel
    wanted: set[str] = attrs.field(factory=set)
    _sweep: PageSweep = attrs.field(factory=PageSweep)
    _in_flight: Page | None = None
    _has_turned: bool = False

    def next(self, now: float) -> tuple[Page, float] | None:
        """Return the next page, and the wanted payments that it is expected to show; None if there is none."""
        if self._in_flight is not None or not self.wanted:
            return None
        worth = self._sweep.worth(len(self.wanted), self._list.pages(now) if self._list.is_known else None)
        return (Page(self._list.head(self._sweep.depth, now)), worth) if worth else None

    def sent(self, page: Page, now: float) -> None:
        """Note that a page is requested, which may be the next."""
        following = self.next(now)
        if following is not None and following[0] == page:
            self._in_flight = page

    def took(self, page: Page, now: float, *, shown: Iterable[str], rows: int) -> None:
        """Note a page with so many rows, among them tracked payments."""
        before = len(self.wanted)
        self.wanted.difference_update(shown)
        if page != self._in_flight:
            return
        self._in_flight = None
        # If the page has shown the list to be in the other order, the sweep has yet to begin. A list without an order
        # would do so each time: only the first time counts.
        if self._has_turned or page.number == self._list.head(self._sweep.depth, now):
            self._sweep.took(before, before - len(self.wanted), rows)
        else:
            self._has_turned = True
        if self.next(now) is None:
            self.wanted.clear()
            self._sweep, self._has_turned = PageSweep(), False

    def failed(self, page: Page) -> None:
        """Note that a page was not shown."""
        if page == self._in_flight:
            self._in_flight = None


@attrs.define
class Scorer:
    """Weights of payments, and the candidate that ends the most waiting."""

    payments: TrackedPayments
    schedule: LookupSchedule
    model: ListModel
    freshness: ListFreshness
    estimator: Estimator
    sweep: IdSweep
    _hinted_share: float = attrs.field(init=False, default=0.0)

    def saw_ending(self, *, is_hinted: bool) -> None:
        """Learn the share of endings that hints announce."""
        self._hinted_share += (is_hinted - self._hinted_share) / _HINTS

    @property
    def saves_looks(self) -> bool:
        """True if looks that are allowed may be put off: only once it is known when they are worth it.

        Of many payments some always are: then the limit is scarce, not the schedule.
        """
        return len(self.payments) <= _FEW and self.estimator.is_learned

    def best(self, now: float, *, uses_list: bool) -> Request:
        """Return the heaviest candidate; some payment must be due."""
        due = self.payments.due.between(-math.inf, now, _CANDIDATES)
        checked = self._to_check()
        if checked is not None and checked.due <= now:
            return SingleLookup(checked.id)
        # Halved with each failure: a payment that always fails must not keep the others from their lookups.
        weights = {payment: self._weight(payment, now) * 0.5**payment.failures for payment in due}
        heaviest = max(due, key=weights.__getitem__)
        is_shown = heaviest.place is not None and not self.freshness.delay(now)
        scores: dict[Request, float] = {SingleLookup(heaviest.id): weights[heaviest] * (_LOOKUP if is_shown else 1.0)}
        if uses_list:
            scores |= {page: self._score(page, now) for page in self._pages(due, now)}
            following = self.sweep.next(now)
            if following is not None:
                page, found = following  # it may be a candidate already
                wanted = [weight for payment, weight in weights.items() if payment.id in self.sweep.wanted]
                scores[page] = scores.get(page, 0.0) + found * max(wanted, default=0.0)
        return max(scores, key=scores.__getitem__)

    def looks(self, shown: list[TrackedPayment], now: float) -> list[TrackedPayment]:
        """Return those of the payments that a page shows which it costs a look."""
        checked = self._to_check()  # it keeps its look for the check
        soon = [payment for payment in shown if self.schedule.is_soon(payment, now) and payment is not checked]
        if not soon or not self.saves_looks:
            return soon
        weights = {payment: self._weight(payment, now) for payment in soon}
        least = _SHARE * max(weights.values())
        return [payment for payment in soon if weights[payment] >= least]

    def worth_from(self, first: float) -> float:
        """Return the time from which a page is worth its request, at the earliest `first`, when a payment falls due."""
        if not self.saves_looks or not self.model.is_known:
            return first
        last = max(first, min(map(self._last_moment, self.payments)))
        steps = range(math.ceil((last - first) / _STEP))
        return min(last, first + _STEP * bisect_left(steps, _WORTH, key=lambda step: self._most(first + _STEP * step)))

    def _to_check(self) -> TrackedPayment | None:
        """Return a payment that pages show open, to be looked up: the oldest first, then the next, and so on."""
        if not self.freshness.is_doubtful:
            return None
        listed = [payment for payment in itertools.islice(self.payments, _CANDIDATES) if payment.is_listed]
        return listed[self.freshness.checks % len(listed)] if listed else None

    def _last_moment(self, payment: TrackedPayment) -> float:
        can_wait = payment.place is not None and payment.hinted_at is None
        return self.schedule.last_moment(payment) if can_wait else payment.due

    def _most(self, at: float) -> float:
        due = self.payments.due.between(-math.inf, at, _CANDIDATES)
        return max((self._score(page, at) for page in self._pages(due, at)), default=0.0)

    def _pages(self, due: list[TrackedPayment], now: float) -> list[Page]:
        """Return the pages of the payments that have been due for longest, and the newest page."""
        shown = dict.fromkeys(self.model.page_of(each.place, now) for each in due if each.place is not None)
        numbers = [*shown][:_CANDIDATE_PAGES]
        return [Page(number) for number in {*numbers, self.model.head(0, now)}] if numbers else []

    def _score(self, page: Page, now: float) -> float:
        payments = self.payments.places.between(*self.model.places(page.number, now))
        if not any(payment.due <= now for payment in payments):
            return 0.0
        shown, youngest = now - self.freshness.delay(now), now - self.freshness.missing
        return sum(self._weight(each, shown) for each in payments if each.is_listed or each.created_at <= youngest)

    def _weight(self, payment: TrackedPayment, at: float) -> float:
        """Return the time that a payment's ending is expected to have been waiting, as the service showed it then."""
        unseen = at - payment.seen_at
        if unseen <= 0:
            return 0.0
        if payment.hinted_at is not None:
            return max(0.0, at - payment.hinted_at) + _HINT
        age = payment.seen_at - payment.created_at
        chance = self.estimator.chance
        # The mean chance over the time since it was seen, by Simpson's rule; none at the beginning.
        mean = (4 * chance(age, age + unseen / 2) + chance(age, age + unseen)) / 6
        # Where callbacks arrive, a payment without a hint has hardly ended.
        return max(mean * (1 - self._hinted_share), min(1.0, unseen / _LONGEST_LIFE)) * unseen
