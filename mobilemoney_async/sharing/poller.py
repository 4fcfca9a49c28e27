"""Seat of one poller among those that share a database."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Container, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database.clock import LONGEST
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.queries import pending_ids
from mobilemoney_async.polling.sharing import Followed, Incoming, News, Outgoing, Peek
from mobilemoney_async.sharing import followed as tables
from mobilemoney_async.sharing.followed import LeaseRow
from mobilemoney_async.values import refuse

# Between two deletions of old rows, seconds.
_TIDY = 300.0
# Kinds of notices: there is news, or the followed payments have changed, which concerns the holder only.
_NEWS, _FOLLOWED = "n", "f"


def join_fleet(store: AccountStore, utcnow: Callable[[], datetime]) -> StoreFleet:
    """Return the seat of one poller among those of all processes of a store."""
    return StoreFleet(store.database, store.account, utcnow=utcnow)


@attrs.frozen(kw_only=True)
class _Turn:
    """One turn of a poller, inside its transaction.

    Attributes:
        outgoing: The poller's message.
        wants_lease: Whether it wants the lease.
        wanted: The payments that it wants news of, or None for no news.
        at: Now, by the host's clock.
        is_tidy: Whether old rows need not be deleted yet.
    """

    outgoing: Outgoing
    wants_lease: bool
    wanted: Container[str] | None
    at: datetime
    is_tidy: bool


@attrs.frozen(kw_only=True)
class _Read:
    """Result of one turn: the row of the lease, the end of the lease by the store's clock, and the messages."""

    row: LeaseRow
    ends_at: float | None
    news: list[News]
    changes: list[Followed]


class StoreFleet:
    """One poller's part in following payments together; see `polling.sharing.Fleet`.

    It is used by one task at a time, except for `listen`.

    Args:
        database: The database that all pollers share.
        account: The account of the payments.
        utcnow: The wall clock, as aware UTC.
        ttl: How long the poller with the lease may be silent before another takes over, seconds, at most 60.
        poll: The time between two looks for news, seconds.
        linger: How long the lease is kept while no payment is followed, seconds.
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

    async def turn(self, outgoing: Outgoing, *, wants_lease: bool, wanted: Container[str], reads_on: bool) -> Incoming:
        """Send and receive all messages, in one transaction; see `Fleet.turn`."""
        now = anyio.current_time()
        turn = _Turn(
            outgoing=outgoing,
            wants_lease=wants_lease,
            wanted=wanted if reads_on else None,
            at=self._utcnow(),
            is_tidy=now < self._tidied_at + _TIDY,
        )

        def work(connection: sa.Connection, clock: Clock) -> _Read:
            return self._take_turn(Journal(connection, self._account), clock, turn)

        # A final state that the poller hands out afterwards must not be lost with the machine's power.
        is_final = any(each.is_ending for each in outgoing.news)
        # The fields change only after the commit. If this task is cancelled here, the turn may be committed all the
        # same: the caller then sends the same messages again, as `Fleet` allows.
        read, self._clock_offset = await self.database.timed(work, durable=is_final)
        lease = read.row.lease
        holds = lease.holder == self.follower
        self._epoch = lease.epoch if holds else None
        self._told, self._followed = read.row.told, read.row.followed
        if not turn.is_tidy and holds:
            self._tidied_at = now
        return Incoming(
            holds=holds,
            epoch=lease.epoch,
            lease_ends_at=None if holds or read.ends_at is None else read.ends_at + self._clock_offset,
            news=read.news,
            followed=read.changes,
        )

    async def peek(self) -> Peek:
        """Look whether a turn is worth taking; see `Fleet.peek`."""
        row = await self.database.read(lambda connection: tables.look(Journal(connection, self._account)))
        if row is None:
            return Peek(has_news=False, lease_ends_at=None)
        has_news = row.told != self._told or (self._epoch is not None and row.followed != self._followed)
        ends_at = row.lease.ends_at(anyio.current_time() - self._clock_offset)
        return Peek(has_news=has_news, lease_ends_at=None if ends_at is None else ends_at + self._clock_offset)

    async def listen(self) -> bool:
        """Wait for a message of another poller; see `Fleet.listen`."""
        if self.database.dialect != "postgresql":
            return False
        try:
            if self._listener is None:
                self._listener = await self.database.open_driver(f"LISTEN {self._channel}")
                return True  # there may be earlier messages
            while not self._has_notice():
                await anyio.wait_readable(self._listener.pgconn.socket)
        except BaseException as exc:
            self._close_listener()
            if isinstance(exc, Exception) and not isinstance(exc, StoreError):
                # A driver may quote anything in its errors.
                raise StoreError(f"the store cannot be heard: {type(exc).__name__}", outcome="not_sent") from None
            raise
        return True

    async def leave(self, news: Sequence[News]) -> None:
        """Send the last news, stop following, and give the lease back; see `Fleet.leave`."""
        at = self._utcnow()

        def work(connection: sa.Connection) -> None:
            journal = Journal(connection, self._account)
            row = tables.lock(journal)
            tables.write_news(journal, row, news, at=at, is_holder=row.lease.holder == self.follower)
            tables.withdraw_all(journal, row, follower=self.follower, at=at)
            row.lease = row.lease.released(self.follower)
            tables.save(journal, row)
            tables.notify(journal, self._channel, f"{_NEWS}{self.follower}")

        await self.database.write(work, durable=bool(news))

    async def unfinished(self) -> list[str]:
        """Return the transaction ids of the store's payments that are not final, oldest first."""
        return await self.database.read(lambda connection: pending_ids(Journal(connection, self._account)))

    def _take_turn(self, journal: Journal, clock: Clock, turn: _Turn) -> _Read:
        row = tables.lock(journal)
        # From here to the commit no other poller of the account writes.
        now = clock()
        # PostgreSQL's clock counts for all hosts, since theirs may differ. SQLite's is of one host only.
        is_shared = journal.connection.dialect.name == "postgresql"
        ahead = datetime.fromtimestamp(now, UTC) - self._utcnow() if is_shared else timedelta()
        before, told_before, followed_before = row.lease, row.told, row.followed
        if turn.wants_lease:
            row.lease = before.taken(self.follower, now, self.ttl)
        is_holder = row.lease.holder == self.follower
        # News first: payments that it ends are then not among the changes, or known.
        tables.write_news(journal, row, turn.outgoing.news, at=turn.at, is_holder=is_holder)
        news = tables.write_followed(journal, row, turn.outgoing, follower=self.follower, at=turn.at, ahead=ahead)
        if turn.wanted is not None:
            after = told_before if self._told is None else self._told
            news += tables.read_news(journal, after=after, wanted=turn.wanted, but_no_refusals_of=turn.outgoing.tracked)
        changes = self._lead(journal, row, turn, ahead) if is_holder else []
        has_messages = (row.told, row.followed) != (told_before, followed_before)
        if has_messages or row.lease != before:
            tables.save(journal, row)
        if has_messages:
            kind = _NEWS if row.told != told_before else _FOLLOWED
            tables.notify(journal, self._channel, kind + self.follower)
        return _Read(row=row, ends_at=row.lease.ends_at(now), news=news, changes=changes)

    def _lead(self, journal: Journal, row: LeaseRow, turn: _Turn, ahead: timedelta) -> list[Followed]:
        """Return the changes of the followed payments, as the holder of the lease, which may give it back here."""
        is_new_holder = row.lease.epoch != self._epoch
        changes = tables.read_followed(journal, after=0 if is_new_holder else self._followed, ahead=ahead)
        if not turn.wants_lease and not changes:
            row.lease = row.lease.released(self.follower)
        if not turn.is_tidy:
            tables.tidy(journal, at=turn.at + ahead)
        return changes

    def _has_notice(self) -> bool:
        """Return whether another poller has sent a message since the last time."""
        self._listener.pgconn.consume_input()
        heard = False
        while (notice := self._listener.pgconn.notifies()) is not None:
            payload = bytes(notice.extra).decode()
            concerns_us = payload[:1] == _NEWS or self._epoch is not None
            heard = heard or (concerns_us and payload[1:] != self.follower)
        return heard

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
