"""Tracked payments, found by id, and in the order of due time, deadline, and place in the list. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import WaitTimeout
from mobilemoney_async.polling.sharing import StatusUpdate
from mobilemoney_async.text import redact

_TRACKED_AT = attrs.Factory(lambda payment: payment.tracked_at, takes_self=True)


@attrs.define(eq=False, weakref_slot=False)
class TrackedPayment:
    """One tracked payment, with its transaction id. Times are monotonic seconds."""

    id: str
    tracked_at: float = attrs.field(kw_only=True)
    due: float = attrs.field(kw_only=True)  # the advised schedule allows the next look from then
    deadline: float = attrs.field(kw_only=True)  # infinite for never
    is_new: bool = attrs.field(kw_only=True)  # tracked by its acknowledgement, so that its creation is known
    created_at: float = attrs.field(init=False, default=_TRACKED_AT)  # as far as it is known
    seen_at: float = attrs.field(init=False, default=_TRACKED_AT)  # the latest time at which it was surely open
    looks: int = 0  # looks of the schedule that it has had
    place: float | None = None  # its row in the list, counted from the oldest, if it is known
    open_at: float = -math.inf  # the latest page that showed it open was sent for then; it may have been out of date
    failures: int = 0  # lookups in a row that failed
    is_seen: bool = False  # the service has shown it, on a page or by id
    hinted_at: float | None = None  # the time of a hint that waits for a request
    was_hinted: bool = False  # a hint came since it was last seen open
    next_hint_at: float = -math.inf  # hints before that are ignored
    transaction: Transaction | None = None  # see `keep`

    @property
    def is_listed(self) -> bool:
        """True if a page has ever shown it open."""
        return self.open_at > -math.inf

    def keep(self, row: Transaction) -> None:
        """Keep the latest state if there is a deadline: its error carries it. It is the largest part."""
        if self.deadline < math.inf:
            self.transaction = row


@attrs.define
class Index:
    """Payments sorted by one number of each, such as the time of its next look. None and infinity are left out.

    A list in order: to insert into a hundred thousand entries takes microseconds, to search them less.
    """

    _attribute: str
    _entries: list[tuple[float, str, TrackedPayment]] = attrs.field(factory=list)

    def add(self, payment: TrackedPayment) -> None:
        """Add a payment."""
        value = getattr(payment, self._attribute)
        if value is not None and value < math.inf:
            insort(self._entries, (value, payment.id, payment))

    def remove(self, payment: TrackedPayment) -> None:
        """Remove a payment that was added, by its number of then."""
        value = getattr(payment, self._attribute)
        if value is not None and value < math.inf:
            del self._entries[bisect_left(self._entries, (value, payment.id, payment))]

    def move(self, payment: TrackedPayment, value: float | None) -> None:
        """Set the number of a payment that was added."""
        if value != getattr(payment, self._attribute):
            self.remove(payment)
            setattr(payment, self._attribute, value)
            self.add(payment)

    def first(self) -> float:
        """Return the least number, infinite if there is none."""
        return self._entries[0][0] if self._entries else math.inf

    def between(self, low: float, high: float, limit: int | None = None) -> list[TrackedPayment]:
        """Return the payments with numbers above `low` and up to `high`, in order, at most `limit`."""
        first, last = (bisect_right(self._entries, bound, key=itemgetter(0)) for bound in (low, high))
        last = last if limit is None else min(last, first + limit)
        return [payment for _, _, payment in self._entries[first:last]]


class TrackedPayments:
    """All tracked payments."""

    def __init__(self) -> None:
        self._by_id: dict[str, TrackedPayment] = {}
        self.due: Index = Index("due")
        self.deadlines: Index = Index("deadline")
        self.places: Index = Index("place")

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TrackedPayment]:
        return iter(self._by_id.values())

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._by_id

    def get(self, transaction_id: str) -> TrackedPayment | None:
        """Return a payment, or None if it is not tracked."""
        return self._by_id.get(transaction_id)

    def has(self, payment: TrackedPayment) -> bool:
        """Return whether a payment is tracked; it may have been removed, and its id tracked again."""
        return self._by_id.get(payment.id) is payment

    def add(self, payment: TrackedPayment) -> None:
        """Add a payment."""
        self._by_id[payment.id] = payment
        for index in (self.due, self.deadlines, self.places):
            index.add(payment)

    def remove(self, payment: TrackedPayment) -> None:
        """Remove a payment."""
        for index in (self.due, self.deadlines, self.places):
            index.remove(payment)
        del self._by_id[payment.id]

    def give_up(self, now: float) -> list[StatusUpdate]:
        """Remove the payments that are past their deadline."""
        updates = []
        for payment in self.deadlines.between(-math.inf, now):
            state = "not seen" if payment.transaction is None else redact(payment.transaction.status)
            error = WaitTimeout(
                f"not final after {round(now - payment.tracked_at, 1):g} s: {state}",
                transaction_id=payment.id,
                transaction=payment.transaction,
            )
            updates.append(StatusUpdate(transaction_id=payment.id, error=error))
            self.remove(payment)
        return updates
