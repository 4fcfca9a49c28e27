"""The looks that the advised schedule allows at each payment (contract, section 6). Pure.

A look that the schedule allows need not be taken at once: what is not spent while an ending is unlikely may be spent
when it is likely. So at any age a payment has had no more looks than the schedule would have made by then. That holds
for pages, which show others as well. Two lookups of one payment by its id are a pause of the schedule apart.
"""

from __future__ import annotations

from mobilemoney_async.contract.limits import Schedule
from mobilemoney_async.polling.asking import Asked
from mobilemoney_async.polling.pending import Book, Pending

# A payment that is shown anyway has had its look if it falls due within this share of its pause.
_SOON = 0.25
# So many looks may be saved up. What is more is lost: no payment is forgotten for long, or asked for in bunches.
_SAVED = 5
# For so long at most a payment is left alone whose lookups cannot be read while others can, seconds.
_LEFT_ALONE = 600.0
# Looks that fell due within so many seconds before the following goes on here were not made, seconds.
_UNTOLD = 5.0


class Looks:
    """Who may be asked about, and when.

    Args:
        schedule: The pauses between two looks at one payment.
        book: The payments.
    """

    __slots__ = ("_book", "_schedule")

    def __init__(self, schedule: Schedule, book: Book) -> None:
        self._schedule = schedule
        self._book = book

    def first(self, began: float, now: float, *, is_new: bool) -> tuple[int, float]:
        """Return how many looks of its schedule a payment has had that is followed since a time, and its next."""
        looks, due = 0, began + self._schedule.delay(0) if is_new else began
        while due < now - _UNTOLD:
            looks += 1
            pause = self._schedule.delay(looks)
            # Where the pauses grow no longer, it is one of them from now.
            due = due + pause if self._schedule.delay(looks + 1) > pause else now + pause
        return looks, due

    def is_soon(self, payment: Pending, now: float) -> bool:
        """Return whether a payment that is shown anyway has had a look by it."""
        return payment.due - now <= _SOON * self._schedule.delay(payment.looks)

    def count(self, payment: Pending, now: float, *, saves: bool, is_extra: bool) -> None:
        """Count a look, unless it is one on top of the schedule."""
        payment.looks += not is_extra
        pause = self._schedule.delay(payment.looks)
        saved = _SAVED * pause if saves and not is_extra else 0.0
        self._book.set_due(payment, max(now - saved, payment.due) + pause)

    def last_moment(self, payment: Pending) -> float:
        """Return until when a look may be saved up: else one would be lost, or the last be too long ago."""
        looks = payment.looks
        saved = sum(self._schedule.delay(look) for look in range(looks + 1, looks + _SAVED))
        return max(payment.due, min(payment.due + saved, payment.seen_at + self._schedule.cap))

    def slow_down(self, payment: Pending, now: float, age: float) -> None:
        """Let a payment that turns out to be old have the pauses of its age."""
        passed = 0.0
        for look in range(payment.looks):
            passed += self._schedule.delay(look)
        looks = payment.looks
        while passed < age and self._schedule.delay(looks) < self._schedule.cap:
            passed += self._schedule.delay(looks)
            looks += 1
        if looks != payment.looks:
            payment.looks = looks
            self._book.set_due(payment, now + self._schedule.delay(looks))

    def put_off(self, payment: Pending, now: float) -> None:
        """Let a payment whose lookups cannot be read have pauses that double."""
        pause = min(_LEFT_ALONE, self._schedule.cap * 2 ** min(10, payment.failures - 1))
        self._book.set_due(payment, max(payment.due, now + pause))

    def take_back(self, payment: Pending, asked: Asked) -> None:
        """Take back a look that showed nothing, where it was one."""
        if payment in asked.before and self._book.get(payment.id) is payment:
            due, payment.looks = asked.before[payment]
            self._book.set_due(payment, due)
