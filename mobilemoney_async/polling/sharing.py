"""Messages between the pollers of one merchant's processes, and the interface of the store that carries them.

The poller knows no store and the store no poller: both know these values.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from datetime import datetime
from typing import Protocol

import anyio
import attrs
from anyio.lowlevel import RunVar

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import MobileMoneyError

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_WARN_AGAIN = 60.0

_warned: RunVar[dict[str, float]] = RunVar("mobilemoney_async_warned")


@attrs.frozen(kw_only=True)
class Subscription:
    """Statement of one poller, the follower, that it tracks one payment.

    It ends at `until` unless the poller repeats it. If that is in the past, the poller tracks the payment no longer.
    """

    transaction_id: str
    follower: str
    is_new: bool  # the payment was created when it was tracked
    tracked_at: datetime
    until: datetime
    has_deadline: bool = False  # the poller needs the payment's latest state, for a `WaitTimeout`
    is_hinted: bool = False


@attrs.frozen(kw_only=True)
class StatusUpdate:
    """Status of a payment as the service gave it, or the end of its tracking."""

    transaction_id: str
    transaction: Transaction | None = None  # final or not; None if the service does not know it
    error: MobileMoneyError | None = None  # ends the tracking
    lag: float | None = None  # from the final state to its being seen, an estimate in seconds

    @property
    def is_ending(self) -> bool:
        """True if the tracking ends."""
        return self.error is not None or (self.transaction is not None and self.transaction.is_final)


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

    def take(self, change: Subscription, now: datetime) -> bool:
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

    def is_wanted(self, update: StatusUpdate) -> bool:
        """Return whether to send an open state: it is new, and a poller with a deadline needs it."""
        if update.transaction is None or update.transaction_id not in self._sent_status:
            return False
        if self._sent_status[update.transaction_id] == update.transaction.status:
            return False
        self._sent_status[update.transaction_id] = update.transaction.status
        return True


@attrs.define(kw_only=True, eq=False)
class Outgoing:
    """Messages of one poller to the others, for one sync."""

    # By transaction id: stated for the first time or again, as with a hint, or withdrawn.
    subscriptions: dict[str, Subscription] = attrs.field(factory=dict)
    updates: list[StatusUpdate] = attrs.field(factory=list)  # answers of the service

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def size(self) -> int:
        """Number of messages."""
        return len(self.subscriptions) + len(self.updates)

    def and_then(self, later: Outgoing) -> Outgoing:
        """Return the messages to send after a failed sync, together with those added since."""
        return Outgoing(
            subscriptions={**self.subscriptions, **later.subscriptions}, updates=self.updates + later.updates
        )


@attrs.frozen(kw_only=True)
class Incoming:
    """Messages of the others to one poller, from one sync.

    Attributes:
        holds: Whether it holds the lease, for `PollerChannel.ttl` seconds from the beginning of the sync: only the
            holder sends requests to the service.
        epoch: How often the lease has changed hands.
        lease_ends_at: The end of another poller's lease, on this event loop's clock; None if no other holds it.
        updates: Of the payments that it tracks.
        subscriptions: Changes in the payments that all pollers track; all of them for a new holder.
    """

    holds: bool
    epoch: int
    lease_ends_at: float | None
    updates: Sequence[StatusUpdate] = ()
    subscriptions: Sequence[Subscription] = ()


@attrs.frozen(kw_only=True)
class UpdateCheck:
    """State of the store without a sync."""

    has_updates: bool  # something that this poller has not read
    lease_ends_at: float | None  # as in `Incoming`


class PollerChannel(Protocol):
    """Connection of one poller to the others that share a store. At most one holds the lease, and sends requests.

    Every method raises `StoreError` if the store fails. Then either nothing was changed or everything, and the same
    messages may be sent again.

    Attributes:
        follower: Name of this poller.
        whose: Its account, for the log: " of account 'shop-1'", or nothing.
        ttl: Length of a lease, seconds.
        poll: Interval between two checks, seconds.
        linger: Time for which the lease is kept while no payment is tracked, seconds.
    """

    follower: str
    whose: str
    ttl: float
    poll: float
    linger: float

    async def sync(self, outgoing: Outgoing, *, wants_lease: bool, wanted: Container[str]) -> Incoming:
        """Exchange all messages, in one transaction.

        Args:
            outgoing: The messages to send.
            wants_lease: Whether to take the lease if it is free, and to keep it. A lease that is not wanted any more is
                kept nevertheless while there is something in `Incoming.subscriptions`.
            wanted: The payments to return the news of. Read from another thread.
        """

    async def check_updates(self) -> UpdateCheck:
        """Check whether a sync is worth taking."""

    async def leave(self, updates: Sequence[StatusUpdate]) -> None:
        """Send the last news, stop tracking every payment, and give the lease back."""

    async def join(self, *, resume: bool) -> list[str]:
        """Join the other pollers, before anything else.

        Returns:
            With `resume` the transaction ids of the store's payments that are not final, oldest first.

        Raises:
            StoreError: The account is another merchant's, or, with `resume`, the store failed.
        """

    async def unfinished(self) -> list[str]:
        """Return the transaction ids of the store's payments that are not final, oldest first."""

    async def next_arrivals(self) -> list[str]:
        """Wait for payments that were acknowledged since `join` with `resume`, and return their transaction ids."""


def warn_of_store(said: str, exc: Exception) -> None:
    """Log that something waits for the store: the same words once a minute, for all accounts of an event loop."""
    text = f"{said}: {exc if isinstance(exc, MobileMoneyError) else type(exc).__name__}"
    now = anyio.current_time()
    latest = {each: at for each, at in _warned.get({}).items() if at > now - _WARN_AGAIN}
    if text not in latest:
        logger.warning("%s", text)
        latest[text] = now
    _warned.set(latest)
