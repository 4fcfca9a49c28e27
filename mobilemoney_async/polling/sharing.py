"""What the pollers of one merchant's processes tell each other, and the interface of the place where they do.

The poller knows no store and the store no poller: both know these values.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime
from typing import Protocol

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError


@attrs.frozen(kw_only=True)
class Followed:
    """That one poller follows one payment.

    Attributes:
        transaction_id: Which payment.
        follower: Which poller.
        is_new: Whether the payment was created when it was tracked.
        tracked_at: Since when.
        until: When it is followed no longer, unless the poller says so again. In the past: it is not any more.
        has_deadline: Whether the poller will want to know the payment as last seen.
        is_hinted: Whether somebody said that it may have changed.
    """

    transaction_id: str
    follower: str
    is_new: bool
    tracked_at: datetime
    until: datetime
    has_deadline: bool = False
    is_hinted: bool = False


@attrs.frozen(kw_only=True)
class News:
    """What the service said of a payment.

    Attributes:
        transaction_id: Which payment.
        transaction: As the service showed it, final or not; None where it does not know it.
        error: What the service said instead, which ends the following.
        lag: How late a final state is, an estimate in seconds, or None.
    """

    transaction_id: str
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None
    lag: float | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the payment is followed no longer."""
        return self.error is not None or (self.transaction is not None and self.transaction.is_final)


@attrs.define(kw_only=True, eq=False)
class Told:
    """What one poller has to say in one turn.

    Attributes:
        tracked: What it follows, as said for the first time or again, by transaction id.
        withdrawn: What it follows no longer.
        hinted: What may have changed, of what it follows.
        news: What the service said to it.
    """

    tracked: dict[str, Followed] = attrs.field(factory=dict)
    withdrawn: set[str] = attrs.field(factory=set)
    hinted: set[str] = attrs.field(factory=set)
    news: list[News] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.tracked or self.withdrawn or self.hinted or self.news)

    def and_then(self, later: Told) -> Told:
        """Return what there is to say where this was said in vain, and more has come to be said since."""
        told = Told(
            tracked={**self.tracked, **later.tracked},
            withdrawn=(self.withdrawn - later.tracked.keys()) | later.withdrawn,
            hinted=self.hinted | later.hinted,
            news=self.news + later.news,
        )
        for transaction_id in later.withdrawn:
            told.tracked.pop(transaction_id, None)
        return told


@attrs.frozen(kw_only=True)
class Learned:
    """What one poller learns in one turn.

    Attributes:
        holds: Whether it is the one that asks the service, for `Fleet.ttl` seconds from the beginning of the turn.
        epoch: How often the lease has changed hands.
        lease_ends_at: When another poller's lease runs out, on this event loop's clock; None where nobody has it.
        news: Of the payments that it wants to know of.
        followed: What has changed in what all of them follow; everything, where it has just begun to ask.
    """

    holds: bool
    epoch: int
    lease_ends_at: float | None
    news: Sequence[News] = ()
    followed: Sequence[Followed] = ()


@attrs.frozen(kw_only=True)
class Glance:
    """What can be seen without taking a turn.

    Attributes:
        has_news: Whether there is anything that this poller has not read.
        lease_ends_at: As in `Learned`.
    """

    has_news: bool
    lease_ends_at: float | None


class Fleet(Protocol):
    """One poller's seat among those that share a store. At most one of them holds the lease, and asks the service.

    Every method raises `StoreError` where the store fails; nothing was changed then, or everything, and the same may be
    said again.

    Attributes:
        follower: Names this poller.
        ttl: For how long a lease is given, seconds.
        poll: How often to look whether there is news, seconds.
        listening_poll: The same while `listen` works.
        linger: For how long the lease is kept when nobody follows anything, seconds.
    """

    follower: str
    ttl: float
    poll: float
    listening_poll: float
    linger: float

    async def turn(self, told: Told, *, wants_lease: bool, wanted: Container[str], reads_on: bool) -> Learned:
        """Say and learn everything there is, in one transaction.

        Args:
            told: What to say.
            wants_lease: Whether to take the lease if it is free, and to keep it. A lease that is not wanted any more is
                kept nevertheless while there is something in `Learned.followed`.
            wanted: The payments whose news to return. Looked at from another thread.
            reads_on: Whether to return the news since the last turn, beside what is known already of `Told.tracked`.
                It is of use if any payment was said to be followed before.
        """

    async def glance(self) -> Glance:
        """Look whether a turn is worth taking."""

    async def listen(self) -> bool:
        """Wait until another poller may have said something; return False where that cannot be heard.

        It returns at once when it has just begun to listen.
        """

    async def leave(self, news: Sequence[News]) -> None:
        """Say the last news, follow nothing any more, and give the lease back."""

    async def unfinished(self) -> list[str]:
        """Return the transaction ids of the store's payments that are not final, oldest first."""
