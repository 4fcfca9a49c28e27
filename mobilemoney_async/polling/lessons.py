"""What a row teaches about the others: when payments end, how far the list is behind, what the clock says. Pure."""

from __future__ import annotations

import math

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.looks import Looks
from mobilemoney_async.polling.pending import Pending
from mobilemoney_async.polling.service_time import Habit, ServiceTime
from mobilemoney_async.polling.trust import Trust
from mobilemoney_async.polling.views import Views


@attrs.define(kw_only=True)
class Lessons:
    """Hands what a row of a payment says to those who learn from it. Times are monotonic seconds."""

    looks: Looks
    hazard: Hazard
    trust: Trust
    views: Views
    service_time: ServiceTime = attrs.field(factory=ServiceTime)
    habit: Habit = attrs.field(factory=Habit)

    def saw_open(self, payment: Pending, row: Transaction, at: float, now: float) -> None:
        """Learn from a row that is not final.

        Args:
            payment: Whose.
            row: The row.
            at: When its state was true at the earliest.
            now: Now.
        """
        self._saw(payment, row, now)
        self.hazard.lived(payment.seen_at - payment.created_at, at - payment.created_at)
        payment.seen = True
        payment.seen_at = max(payment.seen_at, at)
        if payment.deadline < math.inf:
            payment.transaction = row

    def saw_end(self, payment: Pending, row: Transaction, paged_at: float, now: float) -> float | None:
        """Learn from a final row, and return how long ago the payment ended, as far as the row or the looks tell.

        Args:
            payment: Whose.
            row: The row.
            paged_at: When the page was asked for that showed it, infinite for a lookup.
            now: Now.
        """
        self._saw(payment, row, now)
        ended_at = row.completed_at or row.failed_at
        age = now - payment.created_at if ended_at is None else (ended_at - row.created_at).total_seconds()
        self.views.saw_ending(row.status, age)
        if not payment.is_new and not payment.seen:
            return None
        earliest, latest = payment.seen_at - payment.created_at, now - payment.created_at
        if ended_at is None:
            self.hazard.ended(earliest, latest)
            return (latest - earliest) / 2
        if payment.listed:
            ended = payment.created_at + age
            self.trust.saw_end(payment.open_at - ended, paged_at - ended)
        age = min(latest, max(earliest, age))
        self.hazard.lived(earliest, age)
        self.hazard.ended(age, age)
        return latest - age

    def check(self, payment: Pending, row: Transaction, at: float) -> None:
        """Compare what a lookup at a time showed of a payment with what pages have shown of it."""
        ended_at = row.completed_at or row.failed_at
        ended = None if ended_at is None else payment.created_at + (ended_at - row.created_at).total_seconds()
        was_late = row.is_final and self.trust.is_late(payment.open_at, ended, at)
        self.trust.checked(has_ended=row.is_final, was_late=was_late)

    def _saw(self, payment: Pending, row: Transaction, now: float) -> None:
        self.views.saw_row(payment, row)
        if payment.is_dated:
            return
        age = self.service_time.age(row, now)
        payment.created_at = now - age
        payment.seen_at = max(payment.seen_at, payment.created_at)
        if not payment.seen:
            self.habit.saw(age - (now - payment.tracked_at))
            self.looks.slow_down(payment, now, age)
