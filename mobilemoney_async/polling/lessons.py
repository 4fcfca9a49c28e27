"""What a row teaches about the others: when payments end, how far the list is behind, what the clock says. Pure."""

from __future__ import annotations

import math
from datetime import datetime

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.looks import Looks
from mobilemoney_async.polling.pending import Pending
from mobilemoney_async.polling.trust import Trust
from mobilemoney_async.polling.views import Views


@attrs.define(kw_only=True)
class Lessons:
    """Hands what a row of a payment says to those who learn from it. Times are monotonic seconds."""

    looks: Looks
    hazard: Hazard
    trust: Trust
    views: Views

    def saw_open(self, payment: Pending, row: Transaction, at: float, now: float, utcnow: datetime) -> None:
        """Learn from a row that is not final.

        Args:
            payment: Whose.
            row: The row.
            at: When its state was true at the earliest.
            now: Now.
            utcnow: The same by the wall clock.
        """
        self._saw(payment, row, now, utcnow)
        self.hazard.lived(payment.seen_at - payment.created_at, at - payment.created_at)
        payment.seen = True
        payment.seen_at = max(payment.seen_at, at)
        if payment.deadline < math.inf:
            payment.transaction = row

    def saw_end(self, payment: Pending, row: Transaction, now: float, utcnow: datetime) -> float | None:
        """Learn from a final row, and return how long ago the payment ended, as far as the row or the looks tell."""
        self._saw(payment, row, now, utcnow)
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
            self.trust.saw_end(earliest - age)
        age = min(latest, max(earliest, age))
        self.hazard.lived(earliest, age)
        self.hazard.ended(age, age)
        return latest - age

    def _saw(self, payment: Pending, row: Transaction, now: float, utcnow: datetime) -> None:
        self.views.saw_row(payment, row)
        age = (utcnow - row.created_at).total_seconds()
        if not payment.is_new and age > now - payment.created_at:
            payment.created_at = now - age
            payment.seen_at = max(payment.seen_at, payment.created_at)
            self.looks.slow_down(payment, now, age)
