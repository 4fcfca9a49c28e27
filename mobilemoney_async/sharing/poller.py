"""One poller's seat among those that share a database."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Container, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.lease import LONGEST, Lease
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments import journal
from mobilemoney_async.polling.sharing import Followed, Glance, Learned, News, Told
from mobilemoney_async.sharing import followed as kept
from mobilemoney_async.values import refuse

# Between two clearings of what nobody needs any more, seconds.
_TIDY = 300.0
# What a notice says: that there is news, or that what is followed has changed, which only the holder need know.
_NEWS, _FOLLOWED = "n", "f"


@attrs.frozen(kw_only=True)
class _Read:
    """What one turn has read: the lease, and how far everything was said."""

    lease: Lease
    ends_at: float | None
    told: int
    followed: int
    news: list[News]
    changes: list[Followed]


class StoreFleet:
    """The part of one poller in following payments together; see `polling.sharing.Fleet`.

    It is used by one task at a time, but for `listen`.

    Args:
        database: Which all of them share.
        account: Whose payments.
        utcnow: The wall clock, as aware UTC.
        ttl: How long the poller that asks may be silent before another takes over, seconds, at most 60.
        poll: How often to look for news, seconds.
        linger: For how long the lease is kept when nobody follows anything, seconds.
    """

    def __init__(
        self,
        database: Database,
        account: str,
        *,
        utcnow: Callable[[], datetime],
        ttl: float = 4.0,
        poll: float = 0.5,
        linger: float = 10.0,
    ) -> None:
        if not 0 < ttl <= LONGEST:
            raise refuse("ttl", f"a number of seconds, more than 0 and at most {LONGEST:g}")
        self.follower: str = uuid.uuid4().hex
        self.ttl: float = ttl
        self.poll: float = poll
        self.listening_poll: float = max(poll, ttl / 2)
        self.linger: float = linger
        self.database: Database = database
        self._account = account
        self._utcnow = utcnow
        self._channel = "mobilemoney_" + hashlib.sha256(account.encode()).hexdigest()[:16]
        self._listener: Any = None
        self._epoch: int | None = None  # of the lease that is ours
        self._told: int | None = None
        self._followed = 0
        self._clock_offset = 0.0
        self._tidied_at = -_TIDY

    async def turn(self, told: Told, *, wants_lease: bool, wanted: Container[str], reads_on: bool) -> Learned:
        """Say and learn everything there is, in one transaction; see `Fleet.turn`."""
        now, at = anyio.current_time(), self._utcnow()
        is_tidy = now < self._tidied_at + _TIDY

        def work(connection: sa.Connection, clock: Clock) -> _Read:
            return self._turn(
                connection,
                clock,
                told,
                wants_lease=wants_lease,
                wanted=wanted if reads_on else None,
                at=at,
                is_tidy=is_tidy,
            )

        # What the poller hands out afterwards must not be lost with the machine's power.
        is_final = any(each.is_ending for each in told.news)
        read, self._clock_offset = await self.database.timed(work, durable=is_final)
        holds = read.lease.holder == self.follower
        self._epoch = read.lease.epoch if holds else None
        self._told = read.told
        self._followed = read.followed
        if not is_tidy and holds:
            self._tidied_at = now
        return Learned(
            holds=holds,
            epoch=read.lease.epoch,
            lease_ends_at=None if holds or read.ends_at is None else read.ends_at + self._clock_offset,
            news=read.news,
            followed=read.changes,
        )

    async def glance(self) -> Glance:
        """Look whether a turn is worth taking; see `Fleet.glance`."""
        standing = await self.database.read(lambda connection: kept.look(connection, self._account))
        if standing is None:
            return Glance(has_news=False, lease_ends_at=None)
        has_news = standing.told != self._told
        if self._epoch is not None:
            has_news = has_news or standing.followed != self._followed
        ends_at = standing.lease.ends_at(anyio.current_time() - self._clock_offset)
        return Glance(has_news=has_news, lease_ends_at=None if ends_at is None else ends_at + self._clock_offset)

    async def listen(self) -> bool:
        """Wait until another poller has said something; see `Fleet.listen`."""
        if self.database.dialect != "postgresql":
            return False
        try:
            if self._listener is None:
                self._listener = await self.database.open_driver(f"LISTEN {self._channel}")
                return True  # what was said before
            while not self._hear():
                await anyio.wait_readable(self._listener.pgconn.socket)
        except BaseException as exc:
            self._close_listener()
            if isinstance(exc, Exception) and not isinstance(exc, StoreError):
                # A driver quotes what it likes in its errors.
                raise StoreError(f"the store cannot be heard: {type(exc).__name__}", outcome="not_sent") from None
            raise
        return True

    async def leave(self, news: Sequence[News]) -> None:
        """Say the last news, follow nothing any more, and give the lease back; see `Fleet.leave`."""
        at = self._utcnow()

        def work(connection: sa.Connection) -> None:
            standing = kept.lock(connection, self._account)
            is_holder = standing.lease.holder == self.follower
            kept.write_news(connection, self._account, standing, news, at=at, is_holder=is_holder)
            kept.withdraw_all(connection, self._account, standing, follower=self.follower, at=at)
            standing.lease = standing.lease.released(self.follower)
            kept.save(connection, self._account, standing)
            kept.notify(connection, self._channel, f"{_NEWS}{self.follower}")

        await self.database.write(work, durable=bool(news))

    async def unfinished(self) -> list[str]:
        """Return the transaction ids of the store's payments that are not final, oldest first."""
        pending = await self.database.read(lambda connection: journal.pending_ids(connection, self._account))
        return [transaction_id for transaction_id, _ in pending]

    # Inside

    def _turn(
        self,
        connection: sa.Connection,
        clock: Clock,
        told: Told,
        *,
        wants_lease: bool,
        wanted: Container[str] | None,
        at: datetime,
        is_tidy: bool,
    ) -> _Read:
        account = self._account
        standing = kept.lock(connection, account)
        now = clock()
        # PostgreSQL's clock stands above those of the hosts, which may differ. SQLite's is of one host only.
        is_shared = connection.dialect.name == "postgresql"
        ahead = datetime.fromtimestamp(now, UTC) - self._utcnow() if is_shared else timedelta()
        before, said_before = standing.lease, (standing.told, standing.followed)
        if wants_lease:
            standing.lease = before.taken(self.follower, now, self.ttl)
        is_holder = standing.lease.holder == self.follower
        # Ended first: what somebody has begun to follow meanwhile is then not among the changes, or known.
        read_up_to = standing.told if self._told is None else self._told
        kept.write_news(connection, account, standing, told.news, at=at, is_holder=is_holder)
        known = kept.write_followed(connection, account, standing, told, follower=self.follower, at=at, ahead=ahead)
        heard: list[News] = []
        if wanted is not None:
            heard = kept.read_news(
                connection, account, after=read_up_to, wanted=wanted, but_no_refusals_of=told.tracked
            )
        changes: list[Followed] = []
        if is_holder:
            is_new_holder = standing.lease.epoch != self._epoch
            changes = kept.read_followed(connection, account, after=0 if is_new_holder else self._followed, ahead=ahead)
            if not wants_lease and not changes:
                standing.lease = standing.lease.released(self.follower)
            if not is_tidy:
                kept.tidy(connection, account, at=at + ahead)
        has_spoken = (standing.told, standing.followed) != said_before
        if has_spoken or standing.lease != before:
            kept.save(connection, account, standing)
        if has_spoken:
            kind = _NEWS if standing.told != said_before[0] else _FOLLOWED
            kept.notify(connection, self._channel, kind + self.follower)
        return _Read(
            lease=standing.lease,
            ends_at=standing.lease.ends_at(now),
            told=standing.told,
            followed=standing.followed,
            news=known + heard,
            changes=changes,
        )

    def _hear(self) -> bool:
        """Return whether somebody else has said something since the last time."""
        self._listener.pgconn.consume_input()
        heard = False
        while (notice := self._listener.pgconn.notifies()) is not None:
            said = bytes(notice.extra).decode()
            is_for_us = said[:1] == _NEWS or self._epoch is not None
            heard = heard or (is_for_us and said[1:] != self.follower)
        return heard

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
