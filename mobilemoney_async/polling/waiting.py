"""Those who wait for one payment each, and what has ended of late."""

from __future__ import annotations

from collections import OrderedDict

import anyio

from mobilemoney_async.polling.outcomes import UNREAD, Outcome
from mobilemoney_async.values import refuse


class _Waiter:
    """Those who wait for one payment."""

    __slots__ = ("ended", "number", "outcome")

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.outcome: Outcome | None = None
        self.number = 0


class Waiting:
    """Any number of waiters for each payment, and the latest 10,000 endings for those who come later."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, Outcome] = OrderedDict()
        self._waiters: dict[str, _Waiter] = {}

    def ended(self, transaction_id: str) -> Outcome | None:
        """Return how a payment ended of late, or None."""
        return self._ended.get(transaction_id)

    def forget(self, transaction_id: str) -> None:
        """Forget how a payment ended: it is followed again."""
        self._ended.pop(transaction_id, None)

    def end(self, outcome: Outcome) -> None:
        """Tell those who wait for a payment."""
        self._ended[outcome.transaction_id] = outcome
        if len(self._ended) > UNREAD:
            self._ended.popitem(last=False)
        waiter = self._waiters.pop(outcome.transaction_id, None)
        if waiter is not None:
            waiter.outcome = outcome
            waiter.ended.set()

    async def wait(self, transaction_id: str) -> Outcome:
        """Wait until a payment ends.

        Raises:
            InvalidRequest: The poller was closed before.
        """
        waiter = self._waiters.setdefault(transaction_id, _Waiter())
        waiter.number += 1
        try:
            await waiter.ended.wait()
        finally:
            waiter.number -= 1
            if not waiter.number and self._waiters.get(transaction_id) is waiter:
                del self._waiters[transaction_id]
        if waiter.outcome is None:
            raise refuse("poller", "open until the payment has ended")
        return waiter.outcome

    def close(self) -> None:
        """Let everybody go who waits."""
        for waiter in self._waiters.values():
            waiter.ended.set()
