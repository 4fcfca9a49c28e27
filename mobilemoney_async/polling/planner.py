"""Planner of the poller's requests. Pure: time is an argument, and requests are returned, not made.

One page of the list shows a hundred payments for the price of one lookup. So of all requests that show a payment which
is due, the planner chooses the heaviest (`scoring.py`).

Politeness: each payment has the advised schedule of its own (contract, section 6; `LookupSchedule`). A request is made
only if it is expected to show a payment that is due; it answers all others that it shows as well.

Invariants:
- Nothing pending, no request.
- A state is believed only from a row with the payment's own id, and ends the tracking only where the contract calls it
  final. Absence from a page proves nothing: it only makes the payment one that is looked up by its id.
- Every payment is requested in the end: the longer it has not been seen, the more it weighs, without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import TypeAlias

from mobilemoney_async.contract.limits import UNSEEN_GRACE, Schedule
from mobilemoney_async.contract.models import PageAnswer, Transaction
from mobilemoney_async.errors import InvalidTransactionId, MobileMoneyError, TransactionNotFound
from mobilemoney_async.polling.list_model import ListFreshness, ListModel, ServerClock
from mobilemoney_async.polling.pacing import Backoff, HintThrottle, LookupSchedule
from mobilemoney_async.polling.scoring import Estimator, IdSweep, InFlight, Page, Request, Scorer, SingleLookup
from mobilemoney_async.polling.sharing import StatusUpdate
from mobilemoney_async.polling.tracked import TrackedPayment, TrackedPayments

# A payment is expected at the end of the list for so long after its tracking began, seconds.
_AT_THE_END = 30.0
# A bare id is that of a new payment if the payment was at most so old when it was tracked, seconds.
_NEW = 2.0

# The payments that a page shows, each with its row and the row's place in the list.
_Shown: TypeAlias = dict[TrackedPayment, tuple[Transaction, float]]


class Planner:
    """Choice of the next request, and the results of its answer. All times are monotonic seconds."""

    def __init__(self, schedule: Schedule) -> None:
        self._payments = TrackedPayments()
        self._schedule = LookupSchedule(schedule, self._payments)
        self._list = ListModel()
        self._freshness = ListFreshness()
        self._estimator = Estimator()
        self._sweep = IdSweep(self._list)
        self._scorer = Scorer(self._payments, self._schedule, self._list, self._freshness, self._estimator, self._sweep)
        self._clock = ServerClock()
        self._hints = HintThrottle()
        self._backoff = Backoff(longest=30.0)
        self._list_backoff = Backoff(longest=300.0)
        self._lookups_fail = False
        # After a page's fault one lookup tells whether the trouble is the list's alone.
        self._is_lookups_turn = False
        self._pages_in_flight = 0

    def __len__(self) -> int:
        return len(self._payments)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._payments

    # Tracking

    def track(
        self, transaction_id: str, now: float, *, is_new: bool, deadline: float, tracked_at: float | None = None
    ) -> bool:
        """Track a payment until its deadline, infinite for none; return False if it is tracked already.

        The first look at one that was certainly created just now is due after the schedule's first pause, at others at
        once. One that another process has tracked since `tracked_at` has the pauses of its age.
        """
        if transaction_id in self:
            return False
        began = now if tracked_at is None else min(tracked_at, now)
        looks, due = self._schedule.of_age(began, now, is_new=is_new)
        payment = TrackedPayment(transaction_id, tracked_at=began, due=due, deadline=deadline, is_new=is_new)
        payment.looks = looks
        self._payments.add(payment)
        # A bare id may be anywhere: it is expected where a new payment is, and searched for.
        is_recent = now - began <= _AT_THE_END
        if is_recent and self._list.is_known:
            self._payments.places.move(payment, self._list.add_own(now))
        if not (is_new and is_recent):
            self._sweep.wanted.add(payment.id)
        return True

    def forget(self, transaction_id: str) -> None:
        """Stop tracking a payment, if it is tracked."""
        payment = self._payments.get(transaction_id)
        if payment is not None:
            self._sweep.wanted.discard(transaction_id)
            self._payments.remove(payment)

    def hint(self, transaction_id: str, now: float) -> bool:
        """Note that a payment may have changed; return whether that brings the next request forward.

        Hints may be forged: unknown ids are ignored, and so is what `HintThrottle` does not let through.
        """
        payment = self._payments.get(transaction_id)
        if payment is None or payment.hinted_at is not None or not self._hints.take(payment, now):
            return False
        payment.hinted_at, payment.was_hinted = now, True
        self._payments.due.move(payment, min(payment.due, now))
        return True

    def give_up(self, now: float) -> list[StatusUpdate]:
        """Stop tracking the payments that are past their deadline."""
        endings = self._payments.give_up(now)
        for each in endings:
            self._sweep.wanted.discard(each.transaction_id)
        return endings

    def give_up_at(self) -> float:
        """Return the time at which the next payment is given up, infinite for never."""
        return self._payments.deadlines.first()

    # Requests

    def ready_at(self) -> float:
        """Return the time from which there is a request to make, infinite for none until an answer comes."""
        if self._pages_in_flight and not self._list.is_known:
            return math.inf
        first = max(self._payments.due.first(), self._backoff.until)
        return self._scorer.worth_from(first) if first < math.inf and self._uses_list(first) else first

    def choose(self, now: float) -> Request | None:
        """Return the request to make now, or None if there is none."""
        if self.ready_at() > now:
            return None
        uses_list = self._uses_list(now)
        if uses_list and not self._list.is_known:
            return Page(1)
        return self._scorer.best(now, uses_list=uses_list)

    def send(self, request: Request, now: float) -> InFlight:
        """Note that a request goes out now."""
        if isinstance(request, Page):
            expected = self._payments.places.between(*self._list.places(request.number, now))
            looks = self._scorer.looks(expected, now)
            self._pages_in_flight += 1
            self._sweep.sent(request, now)
        else:
            payment = self._payments.get(request.transaction_id)
            looks = expected = [] if payment is None else [payment]
            self._freshness.checks += payment is not None and payment.is_listed
        before = {}
        for payment in looks:
            before[payment] = payment.looks, payment.due
            self._count_look(payment, now, by_id=isinstance(request, SingleLookup))
        return InFlight(request, now, expected, before)

    # Answers

    def take_page(
        self, sent: InFlight, answer: PageAnswer, now: float, *, our_time: float = math.inf
    ) -> list[StatusUpdate]:
        """Learn from a page, and return the final states that it shows; `our_time` is as in `ServerClock.saw`."""
        assert isinstance(sent.request, Page)
        self._backoff.clear()
        self._list_backoff.clear()
        self._is_lookups_turn = False
        self._clock.saw(answer.transactions, now, our_time=our_time)
        places = self._list.observe(sent.request.number, answer, now)
        shown = self._shown(answer.transactions, places)
        self._take_misses(sent, shown)
        self._sweep.took(sent.request, now, shown=(payment.id for payment in shown), rows=len(places))
        endings = []
        expected = set(sent.expected)
        at = sent.at - self._freshness.delay(sent.at)
        for payment, (row, place) in shown.items():
            if payment not in expected and self._schedule.is_soon(payment, sent.at):
                self._count_look(payment, sent.at, by_id=False)
            ending = self._saw(payment, row, at, now, paged_at=sent.at)
            if ending is not None:
                endings.append(ending)
            else:
                payment.open_at = sent.at
                self._payments.places.move(payment, place)
        self._freshness.saw_page(sent.at, has_endings=bool(endings))
        self._pages_in_flight -= 1  # last: `fail` counts a page that could not be taken
        return endings

    def take_transaction(
        self, sent: InFlight, row: Transaction, now: float, *, our_time: float = math.inf
    ) -> list[StatusUpdate]:
        """Learn from a lookup, as from a page."""
        self._lookup_answered()
        self._clock.saw([row], now, our_time=our_time)
        payment = self._payments.get(row.id)
        if payment is None:
            return []
        ending = self._saw(payment, row, sent.at, now)
        return [] if ending is None else [ending]

    def fail(self, sent: InFlight, now: float, *, is_unreadable: bool) -> None:
        """Note that a request failed for a reason that says nothing about its payments.

        An unreadable answer is one outside the contract: the next may be the same.
        """
        self._is_lookups_turn = isinstance(sent.request, Page)
        if isinstance(sent.request, SingleLookup):
            # The look is used up: a lookup that always fails must not be repeated at once.
            payment = self._payments.get(sent.request.transaction_id)
            if payment is not None:
                payment.failures += 1
                if payment.place is None and self._list.is_known:  # it may be in the list by now
                    self._payments.places.move(payment, self._list.length(now))
                if is_unreadable and payment.failures > 1 and not self._backoff.is_on:
                    self._schedule.put_off(payment, now)  # this payment cannot be read: others can
                    return
            self._lookups_fail = True
        else:
            self._list_backoff.extend(now, sent.at)
            self._pages_in_flight -= 1
            self._sweep.failed(sent.request)
            for payment in [each for each in sent.expected if self._payments.has(each)]:
                self._take_back(sent, payment)
                if is_unreadable:
                    self._payments.places.move(payment, None)
        self._backoff.extend(now, sent.at)

    def refuse(self, sent: InFlight, error: MobileMoneyError, now: float) -> list[StatusUpdate]:
        """Note that the service does not know a payment, or calls its id malformed; as `take_page`."""
        assert isinstance(sent.request, SingleLookup)
        self._lookup_answered()
        payment = self._payments.get(sent.request.transaction_id)
        # A payment that the service has shown exists, whatever it says now.
        if payment is None or payment.is_seen:
            return []
        self._sweep.wanted.discard(payment.id)
        is_early = now - payment.tracked_at < UNSEEN_GRACE
        if isinstance(error, InvalidTransactionId) or (isinstance(error, TransactionNotFound) and not is_early):
            self.forget(payment.id)
            return [StatusUpdate(transaction_id=payment.id, error=error)]
        return []

    # Inside

    def _shown(self, rows: Sequence[Transaction], places: Sequence[float]) -> _Shown:
        """Return the payments that a page shows, but for those in two states: a lookup tells which is true."""
        shown: _Shown = {}
        torn = set[TrackedPayment]()
        for row, place in zip(rows, places, strict=True):
            payment = self._payments.get(row.id)
            if payment is not None:
                if shown.setdefault(payment, (row, place))[0].status != row.status:
                    torn.add(payment)
                shown[payment] = row, place
        return {payment: each for payment, each in shown.items() if payment not in torn} if torn else shown

    def _uses_list(self, at: float) -> bool:
        return self._list_backoff.until <= at and not self._is_lookups_turn

    def _lookup_answered(self) -> None:
        self._backoff.clear()
        self._is_lookups_turn = False
        if self._lookups_fail:  # the outage was not the list's alone
            self._lookups_fail = False
            self._list_backoff.clear()

    def _take_misses(self, sent: InFlight, shown: Container[TrackedPayment]) -> None:
        """Take back the looks of the payments that a page should have shown, and did not.

        They lose their places, so that they are looked up. A new one may be missing from the list for a while.
        """
        for payment in [each for each in sent.expected if self._payments.has(each)]:
            age = sent.at - payment.created_at
            is_unlisted = payment.is_new and not payment.is_listed
            if payment in shown:
                if is_unlisted:
                    self._freshness.saw_new(age)
                continue
            self._take_back(sent, payment)
            # Among strangers it may have moved to another page.
            if not is_unlisted or self._list.has_strangers or not self._freshness.missed_new(age):
                self._payments.places.move(payment, None)

    def _take_back(self, sent: InFlight, payment: TrackedPayment) -> None:
        """Restore the schedule of a payment after a request that did not show it."""
        if payment in sent.before:
            payment.looks, due = sent.before[payment]
            self._payments.due.move(payment, due)

    def _count_look(self, payment: TrackedPayment, now: float, *, by_id: bool) -> None:
        self._schedule.count(payment, now, saves=self._scorer.saves_looks and not by_id)
        payment.hinted_at = None

    def _saw(
        self, payment: TrackedPayment, row: Transaction, at: float, now: float, *, paged_at: float = math.inf
    ) -> StatusUpdate | None:
        """Learn from a row with a state that was true at `at` or later; `paged_at` is infinite for a lookup."""
        payment.failures = 0
        if not payment.is_new and row.created_at is not None:
            payment.created_at = now - self._clock.age(row.created_at, now)
            if not payment.is_seen:
                payment.seen_at = payment.created_at
                before = payment.looks, payment.due
                payment.looks, due = max(before, self._schedule.of_age(payment.created_at, now, is_new=True))
                self._payments.due.move(payment, due)
        if row.is_final:
            self._scorer.saw_ending(is_hinted=payment.was_hinted)
            self.forget(payment.id)
            return StatusUpdate(
                transaction_id=payment.id, transaction=row, lag=self._learn_end(payment, row, paged_at, now)
            )
        self._estimator.saw_open(payment.seen_at - payment.created_at, at - payment.created_at)
        payment.is_seen = True
        payment.was_hinted = payment.hinted_at is not None
        payment.seen_at = max(payment.seen_at, at)
        payment.keep(row)
        return None

    def _learn_end(self, payment: TrackedPayment, row: Transaction, paged_at: float, now: float) -> float | None:
        """Learn from a final row; return the time since the end, an estimate, or None."""
        if not payment.is_seen and payment.tracked_at - payment.created_at > _NEW:
            return None  # it may have ended long before it was tracked
        earliest, latest = payment.seen_at - payment.created_at, now - payment.created_at
        ended_at = row.completed_at or row.failed_at
        if ended_at is None or row.created_at is None:
            self._estimator.saw_end(earliest, latest)
            return (latest - earliest) / 2
        age = (ended_at - row.created_at).total_seconds()
        ended = payment.created_at + age
        self._freshness.saw_end(payment.open_at - ended, paged_at - ended)
        age = min(latest, max(earliest, age))
        self._estimator.saw_open(earliest, age)
        self._estimator.saw_end(age, age)
        return latest - age
