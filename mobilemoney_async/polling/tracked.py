"""Tracked payments, found by id, by place in the list, by due time and by deadline; subscriptions. Pure."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from datetime import datetime

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import WaitTimeout
from mobilemoney_async.polling.sharing import Followed, News

# Rows of the list in one slot of the index by place.
_SLOT = 100
_NEVER = -math.inf
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
    open_at: float = _NEVER  # the latest page that showed it open was sent for then; it may have been out of date
    misses: int = 0  # pages in a row that should have shown it and did not
    failures: int = 0  # lookups in a row that failed
    is_seen: bool = False  # the service has shown it, on a page or by id
    hinted_at: float | None = None  # the time of a hint that waits for a request
    was_hinted: bool = False  # a hint came since it was last seen open
    transaction: Transaction | None = None  # see `keep`

    @property
    def is_listed(self) -> bool:
        """True if a page has ever shown it open."""
        return self.open_at > _NEVER

    def keep(self, row: Transaction) -> None:
        """Keep the latest state if there is a deadline, whose error carries it: it is the largest part."""
        if self.deadline < math.inf:
            self.transaction = row


@attrs.define
class Timers:
    """Heap of payments by one of their times. An entry that is out of date is dropped when it comes up."""

    _attribute: str
    _heap: list[tuple[float, int, TrackedPayment]] = attrs.field(factory=list)
    _ticket: Iterator[int] = attrs.field(factory=itertools.count)

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, payment: TrackedPayment, at: float) -> None:
        """Set a payment's time, infinite for never."""
        setattr(payment, self._attribute, at)
        if at < math.inf:
            heapq.heappush(self._heap, (at, next(self._ticket), payment))

    def first(self) -> float:
        """Return the earliest time, infinite if there is none."""
        while self._heap and not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float, limit: int) -> list[TrackedPayment]:
        """Remove and return payments that have reached their time, at most `limit`."""
        taken: list[TrackedPayment] = []
        while len(taken) < limit and self.first() <= now:
            taken.append(heapq.heappop(self._heap)[2])
        return taken

    def tidy(self, valid: int) -> None:
        """Drop outdated entries once they outnumber the valid ones: the heap is bounded by the number of payments."""
        if len(self._heap) > 2 * valid + 1000:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def _is_valid(self, entry: tuple[float, int, TrackedPayment]) -> bool:
        return bool(getattr(entry[2], self._attribute) == entry[0])


class TrackedPayments:
    """All tracked payments. Every change costs the logarithm of their number at most."""

    def __init__(self) -> None:
        self._by_id: dict[str, TrackedPayment] = {}
        self._slots: dict[int, dict[str, TrackedPayment]] = {}
        self._top = 0
        self.due: Timers = Timers("due")
        self.deadlines: Timers = Timers("deadline")

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
        self.due.set(payment, payment.due)
        self.deadlines.set(payment, payment.deadline)

    def remove(self, payment: TrackedPayment) -> None:
        """Remove a payment."""
        del self._by_id[payment.id]
        self.put(payment, None)
        payment.due = payment.deadline = math.nan  # equal to nothing: its timers are out of date
        self.due.tidy(len(self))
        self.deadlines.tidy(len(self))

    def set_due(self, payment: TrackedPayment, at: float) -> None:
        """Set the time of a payment's next look."""
        if payment.due != at:
            self.due.set(payment, at)

    def longest_due(self, now: float, limit: int) -> list[TrackedPayment]:
        """Return the payments that have been due for longest, at most `limit`."""
        due = list(dict.fromkeys(self.due.take(now, limit)))
        for payment in due:
            self.due.set(payment, payment.due)
        return due

    def give_up(self, now: float) -> list[News]:
        """Remove the payments that are past their deadline."""
        news = []
        for payment in self.deadlines.take(now, len(self)):
            state = "not seen" if payment.transaction is None else str(payment.transaction.status)
            error = WaitTimeout(
                f"not final after {round(now - payment.tracked_at, 1):g} s: {state}",
                transaction_id=payment.id,
                transaction=payment.transaction,
            )
            news.append(News(transaction_id=payment.id, error=error))
            self.remove(payment)
        return news

    def put(self, payment: TrackedPayment, place: float | None) -> None:
        """Set a payment's place in the list; None for unknown."""
        before, payment.place = payment.place, place
        if before is not None:
            slot = self._slots[int(before // _SLOT)]
            del slot[payment.id]
            if not slot:
                del self._slots[int(before // _SLOT)]
        if place is not None:
            number = int(place // _SLOT)
            self._top = max(self._top, number)
            self._slots.setdefault(number, {})[payment.id] = payment

    def between(self, low: float, high: float) -> list[TrackedPayment]:
        """Return the payments with places above `low` and up to `high`, which are a page apart."""
        first = max(0, int(low // _SLOT))
        last = self._top if high == math.inf else min(self._top, int(high // _SLOT))
        return [
            payment
            for number in range(first, last + 1)
            for payment in self._slots.get(number, {}).values()
            if payment.place is not None and low < payment.place <= high
        ]


@attrs.define(eq=False)
class Subscriptions:
    """The pollers that track each payment, and until when, as the holder of the lease knows them."""

    _until: dict[str, dict[str, datetime]] = attrs.field(factory=dict)
    # Payments for which a poller needs open states too, with the latest that was sent.
    _sent_status: dict[str, TransactionStatus | None] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._until)

    def __iter__(self) -> Iterator[str]:
        return iter(self._until)

    def take(self, change: Followed, now: datetime) -> bool:
        """Note a change; return whether any poller tracks the payment after it."""
        pollers = self._until.setdefault(change.transaction_id, {})
        if change.until > now:
            pollers[change.follower] = change.until
            if change.has_deadline:
                self._sent_status.setdefault(change.transaction_id, None)
        else:
            pollers.pop(change.follower, None)
        if not pollers:
            self.end(change.transaction_id)
        return bool(pollers)

    def has_others_than(self, follower: str) -> bool:
        """Return whether another poller tracks anything."""
        return any(each != follower for pollers in self._until.values() for each in pollers)

    def end(self, transaction_id: str) -> None:
        """Remove a payment."""
        self._until.pop(transaction_id, None)
        self._sent_status.pop(transaction_id, None)

    def expired(self, now: datetime) -> list[str]:
        """Remove the payments that no poller tracks any more, and return them."""
        gone = [number for number, pollers in self._until.items() if all(until <= now for until in pollers.values())]
        for number in gone:
            self.end(number)
        return gone

    def is_wanted(self, news: News) -> bool:
        """Return whether to send an open state: it is new, and a poller with a deadline needs it."""
        if news.transaction is None or news.transaction_id not in self._sent_status:
            return False
        if self._sent_status[news.transaction_id] == news.transaction.status:
            return False
        self._sent_status[news.transaction_id] = news.transaction.status
        return True
