"""The payments that this process tracks, and the subscriptions of all processes. Pure.

While processes share a store, one of them makes the requests for all: it knows every subscription. Each process keeps
its own payments and their deadlines.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from datetime import datetime

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.polling.sharing import Followed, News
from mobilemoney_async.polling.tracked import timed_out


@attrs.define(eq=False)
class LocalPayment:
    """One payment that this process tracks. Times are monotonic seconds.

    Attributes:
        id: Its transaction id.
        tracked_at: Start of the tracking.
        deadline: When it is given up, infinite for never.
        is_new: Whether it was created when it was tracked.
        transaction: Its latest state. Kept only for a payment with a deadline.
    """

    id: str
    tracked_at: float
    deadline: float
    is_new: bool
    transaction: Transaction | None = None


class LocalPayments:
    """All payments that this process tracks."""

    def __init__(self) -> None:
        self._by_id: dict[str, LocalPayment] = {}
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._by_id

    def __iter__(self) -> Iterator[LocalPayment]:
        return iter(self._by_id.values())

    def add(self, transaction_id: str, now: float, *, is_new: bool, deadline: float) -> LocalPayment:
        """Add a payment."""
        payment = self._by_id[transaction_id] = LocalPayment(transaction_id, now, deadline, is_new)
        if deadline < math.inf:
            heapq.heappush(self._deadlines, (deadline, transaction_id))
        return payment

    def remove(self, transaction_id: str) -> bool:
        """Remove a payment; return whether it was there."""
        return self._by_id.pop(transaction_id, None) is not None

    def saw(self, transaction_id: str, transaction: Transaction | None) -> None:
        """Note the state of a payment, if it is one of them."""
        payment = self._by_id.get(transaction_id)
        if payment is not None and payment.deadline < math.inf and transaction is not None:
            payment.transaction = transaction

    def first_deadline(self) -> float:
        """Return the time at which the next payment is given up, infinite for never."""
        while self._deadlines:
            deadline, transaction_id = self._deadlines[0]
            payment = self._by_id.get(transaction_id)
            if payment is not None and payment.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return math.inf

    def give_up(self, now: float) -> list[News]:
        """Remove the payments that are past their deadline."""
        news = []
        while self.first_deadline() <= now:
            _, transaction_id = heapq.heappop(self._deadlines)
            payment = self._by_id.pop(transaction_id)
            error = timed_out(transaction_id, payment.tracked_at, payment.transaction, now)
            news.append(News(transaction_id=transaction_id, error=error))
        return news


class Subscriptions:
    """The pollers that track each payment, and until when, as the holder of the lease knows them."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, datetime]] = {}
        # Payments for which a poller needs open states too, with the latest that was sent.
        self._sent_status: dict[str, TransactionStatus | None] = {}

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, transaction_id: str) -> bool:
        return transaction_id in self._until

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
