"""The payments that this process follows, where another one may ask about them. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import WaitTimeout
from mobilemoney_async.polling.sharing import News


@attrs.define(eq=False)
class OwnPayment:
    """One of them. Times are monotonic seconds.

    Attributes:
        id: Its transaction id.
        tracked_at: Since when it is followed.
        deadline: When it is given up, infinite for never.
        is_new: Whether it was created when it was tracked.
        transaction: As last seen. Kept only where a deadline may tell it to somebody.
    """

    id: str
    tracked_at: float
    deadline: float
    is_new: bool
    transaction: Transaction | None = None


class Own:
    """All of them."""

    def __init__(self) -> None:
        self._by_id: dict[str, OwnPayment] = {}
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._by_id

    def __iter__(self) -> Iterator[OwnPayment]:
        return iter(self._by_id.values())

    def add(self, transaction_id: str, now: float, *, is_new: bool, deadline: float) -> OwnPayment:
        """Follow a payment."""
        own = self._by_id[transaction_id] = OwnPayment(transaction_id, now, deadline, is_new)
        if deadline < math.inf:
            heapq.heappush(self._deadlines, (deadline, transaction_id))
        return own

    def remove(self, transaction_id: str) -> bool:
        """Follow a payment no longer; return whether it was followed."""
        return self._by_id.pop(transaction_id, None) is not None

    def saw(self, transaction_id: str, transaction: Transaction | None) -> None:
        """Note what the service showed of a payment, if it is one of them."""
        own = self._by_id.get(transaction_id)
        if own is not None and own.deadline < math.inf and transaction is not None:
            own.transaction = transaction

    def first_deadline(self) -> float:
        """Return when the next payment is to be given up, infinite for never."""
        while self._deadlines:
            deadline, transaction_id = self._deadlines[0]
            own = self._by_id.get(transaction_id)
            if own is not None and own.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return math.inf

    def give_up(self, now: float) -> list[News]:
        """End the following of what is past its deadline."""
        endings = []
        while self.first_deadline() <= now:
            _, transaction_id = heapq.heappop(self._deadlines)
            own = self._by_id.pop(transaction_id)
            state = "not seen" if own.transaction is None else str(own.transaction.status)
            error = WaitTimeout(
                f"not final after {round(now - own.tracked_at, 1):g} s: {state}",
                transaction_id=transaction_id,
                transaction=own.transaction,
            )
            endings.append(News(transaction_id=transaction_id, error=error))
        return endings
