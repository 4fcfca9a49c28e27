"""Seat of one poller among those that share a database."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Container, Sequence
from datetime import UTC, datetime, timedelta

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.calls.pipeline import Claim, Pipeline
from mobilemoney_async.database.clock import Holder
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.leases import new_holder
from mobilemoney_async.database.listener import POLLERS, Listener
from mobilemoney_async.errors import InvalidCursor
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.binding import Binding
from mobilemoney_async.payments.feed import ChangePages
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.queries import pending_ids
from mobilemoney_async.payments.records import PaymentState
from mobilemoney_async.polling.sharing import Followed, Incoming, News, Outgoing, Peek
from mobilemoney_async.sharing import followed as tables
from mobilemoney_async.sharing.followed import LeaseRow

# Between two deletions of old rows, seconds.
_TIDY = 300.0
# Messages of a turn that may share a transaction with the work of others.
_SHORT = 10
# For so long a poller counts on its lease without a turn, if a claim renews it.
_CLAIMED = 3600.0
# Kinds of notices: there is news, or the followed payments have changed, which concerns the holder only.
_NEWS, _FOLLOWED = "n", "f"


def join_fleet(store: AccountStore, binding: Binding, pipeline: Pipeline) -> StoreFleet:
    """Return the seat of one poller among those of all processes of a store."""
    feed = ChangePages(store, after=None, is_from_now=True, limit=None, is_endless=True, utcnow=pipeline.utcnow)
    # A worker has looked before.
    own = binding.require_not_foreign if pipeline.claim is None else checkpoint
    holder = new_holder(pipeline.host)
    fleet = StoreFleet(store.database, store.account, utcnow=pipeline.utcnow, require_own=own, feed=feed, holder=holder)
    if pipeline.claim is not None:
        fleet.claim, fleet.ttl, fleet.poll = pipeline.claim, _CLAIMED, fleet.listening_poll
    return fleet


class StoreFleet:
    """One poller's part in following payments together; see `polling.sharing.Fleet` for the times, in seconds.

    It is used by one task at a time, except for `listen`. If there is a `claim`, the lease is renewed along with that,
    and costs no transaction of its own.
    """

    claim: Claim | None = None
    ttl: float = 4.0
    poll: float = 0.5
    listening_poll: float = 2.0
    linger: float = 10.0

    def __init__(
        self,
        database: Database,
        account: str,
        *,
        utcnow: Callable[[], datetime],
        require_own: Callable[[], Awaitable[object]] = checkpoint,
        feed: ChangePages | None = None,
        holder: Holder | None = None,
    ) -> None:
        self._holder = holder or new_holder(None)
        self.follower: str = self._holder.name
        self.database: Database = database
        self._account = account
        self._utcnow = utcnow
        self._require_own = require_own
        self._feed = feed
        self._is_lost, self._missed = False, list[str]()
        self._topic = hashlib.sha256(account.encode()).hexdigest()[:16]
        self._listener = Listener(database, POLLERS, self._topic)
        self._epoch: int | None = None  # of the lease that is ours
        self._told: int | None = None
        self._followed = 0
        self._clock_offset = 0.0
        self._tidied_at = -_TIDY

    async def turn(self, outgoing: Outgoing, *, wants_lease: bool, wanted: Container[str], reads_on: bool) -> Incoming:
        """Send and receive all messages, in one transaction; see `Fleet.turn`."""
        # Read here: the clock that a caller gave may be the event loop's, which no other thread can read.
        now, at = anyio.current_time(), self._utcnow()
        tidies = now >= self._tidied_at + _TIDY

        def work(connection: sa.Connection, clock: Clock) -> tuple[LeaseRow, Incoming]:
            journal = Journal(connection, self._account)
            row = tables.lock(journal)
            # From here to the commit no other poller of the account writes.
            asked = wanted if reads_on or outgoing.news else None
            incoming = self._exchange(
                journal, row, clock(), outgoing, at=at, wants_lease=wants_lease, wanted=asked, tidies=tidies
            )
            return row, incoming

        # A final state that the poller hands out afterwards must not be lost with the machine's power.
        is_final = any(each.is_ending for each in outgoing.news)
        # The fields change only after the commit. If this task is cancelled here, the turn may be committed all the
        # same: the caller then sends the same messages again, as `Fleet` allows.
        # A new holder reads all that is followed.
        is_short = self._epoch is not None and not tidies and outgoing.size <= _SHORT
        share_key = (self._account, "poller") if is_short else ()
        (row, incoming), self._clock_offset = await self.database.timed(work, durable=is_final, share_key=share_key)
        self._epoch = incoming.epoch if incoming.holds else None
        if self.claim is not None:
            self.claim.note_poller(self.follower if incoming.holds else None, row.followed, row.told)
        self._told, self._followed = row.told, row.followed
        if tidies and incoming.holds:
            self._tidied_at = now
        ends_at = incoming.lease_ends_at
        return attrs.evolve(
            incoming, lease_ends_at=None if incoming.holds or ends_at is None else ends_at + self._clock_offset
        )

    async def peek(self) -> Peek:
        """Look whether a turn is worth taking; see `Fleet.peek`."""
        if self.claim is not None and self._epoch is not None:
            await checkpoint()
            is_as_known = self.claim.poller == (self.follower, self._followed, self._told)
            return Peek(has_news=not is_as_known, lease_ends_at=None)
        row = await self.database.read(lambda connection: tables.look(Journal(connection, self._account)))
        if row is None:
            return Peek(has_news=False, lease_ends_at=None)
        has_news = row.told != self._told or (self._epoch is not None and row.followed != self._followed)
        ends_at = row.lease.ends_at(anyio.current_time() - self._clock_offset)
        return Peek(has_news=has_news, lease_ends_at=None if ends_at is None else ends_at + self._clock_offset)

    async def listen(self) -> bool:
        """Wait for a message of another poller; see `Fleet.listen`."""
        await self.database.open()
        if not self.database.can_listen:
            return False
        concerns_us = False
        try:
            while not concerns_us:
                heard = await self._listener.wait()
                # Without a text it has just begun to listen: there may be earlier messages.
                concerns_us = not heard or any(map(self._concerns_us, heard))
        except BaseException:
            self._listener.close()
            raise
        return True

    async def leave(self, news: Sequence[News]) -> None:
        """Send the last news, stop following, and give the lease back; see `Fleet.leave`."""
        at = self._utcnow()
        if self.claim is not None:
            self.claim.note_poller(None, 0, 0)

        def work(connection: sa.Connection) -> None:
            journal = Journal(connection, self._account)
            row = tables.lock(journal)
            tables.write_news(journal, row, news, at=at, is_holder=row.lease.holder == self.follower)
            tables.withdraw_all(journal, row, follower=self.follower, at=at)
            row.lease = row.lease.released(self._holder)
            tables.save(journal, row)
            tables.notify(journal, POLLERS, f"{self._topic}:{_NEWS}{self.follower}")

        await self.database.write(work, durable=bool(news))

    async def join(self, *, resume: bool) -> list[str]:
        """Join the others, unless the account is another merchant's; see `Fleet.join`."""
        await self._require_own()
        if not resume:
            return []
        if self._feed is not None:
            await self._feed.begin()  # first: a payment that is acknowledged in between is found twice, not missed
        return await self.database.read(lambda connection: pending_ids(Journal(connection, self._account)))

    async def next_arrival(self) -> str:
        """Wait for a payment that was acknowledged since the poller joined; see `Fleet.next_arrival`."""
        while self._feed is not None:
            if self._is_lost:
                self._feed.restart()
                self._missed, self._is_lost = await self.join(resume=True), False
            if self._missed:
                return self._missed.pop()
            try:
                change = await anext(self._feed)
            except InvalidCursor:  # the store was restored, or found to be behind its service: its feed begins anew
                self._is_lost = True
                continue
            if change.state is PaymentState.ACKNOWLEDGED and change.record is not None:
                transaction_id = change.record.transaction_id
                if transaction_id is not None and not change.record.is_final:
                    return transaction_id
        await anyio.sleep_forever()
        raise AssertionError

    def _exchange(
        self,
        journal: Journal,
        row: LeaseRow,
        now: float,
        outgoing: Outgoing,
        *,
        at: datetime,
        wants_lease: bool,
        wanted: Container[str] | None,
        tidies: bool,
    ) -> Incoming:
        """Write and read all messages at a time of the store's clock, which counts the end of the lease too."""
        # PostgreSQL's clock counts for all hosts, since theirs may differ. SQLite's is of one host only.
        is_shared = journal.connection.dialect.name == "postgresql"
        ahead = datetime.fromtimestamp(now, UTC) - at if is_shared else timedelta()
        before = attrs.evolve(row)
        if wants_lease:
            row.lease = row.lease.taken(self._holder, now, self.ttl if self.claim is None else self.claim.ttl)
        is_holder = row.lease.holder == self.follower
        # News first: payments that it ends are then not among the changes, or known.
        tables.write_news(journal, row, outgoing.news, at=at, is_holder=is_holder)
        news = [] if wanted is None else self._receive(journal, outgoing, wanted)
        ended = {each.transaction_id for each in news if each.is_ending}
        news += tables.write_followed(journal, row, outgoing, follower=self.follower, at=at, ahead=ahead, ended=ended)
        changes = self._lead(journal, row, ahead, wants_lease=wants_lease) if is_holder else []
        if is_holder and tidies:
            tables.tidy(journal, at=at + ahead)
        self._save(journal, row, before)
        return Incoming(
            holds=row.lease.holder == self.follower,
            epoch=row.lease.epoch,
            lease_ends_at=row.lease.ends_at(now),
            news=news,
            followed=changes,
        )

    def _receive(self, journal: Journal, outgoing: Outgoing, wanted: Container[str]) -> list[News]:
        """Return the messages to this poller, of the payments that are wanted."""
        read = tables.read_news(journal, follower=self.follower, after=self._told or 0)
        # An earlier refusal of a payment no longer counts once the payment is tracked again.
        return [
            each
            for each in read
            if each.transaction_id in wanted and (each.error is None or each.transaction_id not in outgoing.tracked)
        ]

    def _save(self, journal: Journal, row: LeaseRow, before: LeaseRow) -> None:
        """Write the row and notify the other pollers, where it has changed."""
        if row != before:
            tables.save(journal, row)
        if (row.told, row.followed) != (before.told, before.followed):
            kind = _NEWS if row.told != before.told else _FOLLOWED
            tables.notify(journal, POLLERS, f"{self._topic}:{kind}{self.follower}")

    def _lead(self, journal: Journal, row: LeaseRow, ahead: timedelta, *, wants_lease: bool) -> list[Followed]:
        """Return the changes of the followed payments, as the holder of the lease, which may give it back here."""
        # A new holder reads all of them.
        after = self._followed if row.lease.epoch == self._epoch else 0
        changes = tables.read_followed(journal, after=after, ahead=ahead)
        if not wants_lease and not changes:
            row.lease = row.lease.released(self._holder)
        return changes

    def _concerns_us(self, notice: str) -> bool:
        return (notice[:1] == _NEWS or self._epoch is not None) and notice[1:] != self.follower
