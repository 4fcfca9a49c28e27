"""Who follows which payment, as the poller knows it that asks for all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.polling.sharing import Followed, News


class Followers:
    """For each payment, until when each poller wants to know of it."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, datetime]] = {}
        self._curious: dict[str, TransactionStatus | None] = {}

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, transaction_id: str) -> bool:
        return transaction_id in self._until

    def __iter__(self) -> Iterator[str]:
        return iter(self._until)

    def take(self, change: Followed, now: datetime) -> bool:
        """Take note of a change; return whether anybody follows the payment after it."""
        pollers = self._until.setdefault(change.transaction_id, {})
        if change.until > now:
            pollers[change.follower] = change.until
            if change.has_deadline:
                self._curious.setdefault(change.transaction_id, None)
        else:
            pollers.pop(change.follower, None)
        if not pollers:
            self.end(change.transaction_id)
        return bool(pollers)

    def has_others_than(self, follower: str) -> bool:
        """Return whether another poller follows anything."""
        return any(each != follower for pollers in self._until.values() for each in pollers)

    def end(self, transaction_id: str) -> None:
        """Forget a payment."""
        self._until.pop(transaction_id, None)
        self._curious.pop(transaction_id, None)

    def expired(self, now: datetime) -> list[str]:
        """Forget the payments that nobody wants to know of any more, and return them."""
        gone = [number for number, pollers in self._until.items() if all(until <= now for until in pollers.values())]
        for number in gone:
            self.end(number)
        return gone

    def is_worth_telling(self, news: News) -> bool:
        """Return whether a payment that is not final was seen for the first time like this, and somebody asks."""
        if news.transaction is None or news.transaction_id not in self._curious:
            return False
        if self._curious[news.transaction_id] == news.transaction.status:
            return False
        self._curious[news.transaction_id] = news.transaction.status
        return True
