"""Seat of one poller among those that share a database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from datetime import UTC, datetime, timedelta

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.calls.collaborators import Claim
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.leases import new_holder
from mobilemoney_async.errors import InvalidCursor
from mobilemoney_async.payments.feed.feed import ChangePages
from mobilemoney_async.payments.ownership.binding import Binding
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import pending_ids
from mobilemoney_async.payments.records.record import PaymentState
from mobilemoney_async.polling.sharing import Incoming, Outgoing, StatusUpdate, Subscription, UpdateCheck
from mobilemoney_async.sharing import subscriptions as tables
from mobilemoney_async.sharing.subscriptions import LeaseRow

# Between two deletions of old rows, seconds.
_TIDY = 300.0
# Messages of a sync that may share a transaction with the work of others.
_SHORT = 10
# For so long a poller counts on its lease without a sync, if a claim renews it.
_CLAIMED = 3600.0
# Between two renewals of a claim, which show whether there are messages, seconds.
_CLAIM_RENEWED = 1.0


def open_channel(store: AccountStore, binding: Binding, pipeline: Pipeline) -> StoreChannel:
    """Return the seat of one poller among those of all processes of a store."""
    # A worker has looked before.
    own = binding.require_not_foreign if pipeline.claim is None else checkpoint
    return StoreChannel(store, utcnow=pipeline.utcnow, require_own=own, claim=pipeline.claim)


class StoreChannel:
    """One poller's part in following payments together; see `polling.sharing.PollerChannel` for the times, in seconds.

    It is used by one task at a time. If there is a `claim`, the lease is renewed along with that,
    and costs no transaction of its own.
    """

    ttl: float = 4.0
    poll: float = 0.5
    linger: float = 10.0

    def __init__(
        self,
        store: AccountStore,
        *,
        utcnow: Callable[[], datetime],
        require_own: Callable[[], Awaitable[object]] = checkpoint,
        claim: Claim | None = None,
    ) -> None:
        self.store: AccountStore = store
        self._claim = claim
        self._holder = new_holder(None if claim is None else claim.host)
        self.follower: str = self._holder.name
        self.whose: str = "" if store.account == "default" else f" of account {store.account!r}"
        if claim is not None:
            self.ttl, self.poll = _CLAIMED, _CLAIM_RENEWED
        self._utcnow = utcnow
        self._require_own = require_own
        self._feed = ChangePages(store, after=None, is_from_now=True, limit=None, is_endless=True, utcnow=utcnow)
        self._is_lost = False
        self._epoch: int | None = None  # of the lease that is ours
        self._message_number: int | None = None
        self._subscription_number = 0
        self._clock_offset = 0.0
        self._tidied_at = -_TIDY

    async def sync(self, outgoing: Outgoing, *, wants_lease: bool, wanted: Container[str]) -> Incoming:
        """Send and receive all messages, in one transaction; see `PollerChannel.sync`."""
        # Read here: the clock that a caller gave may be the event loop's, which no other thread can read.
        now, at = anyio.current_time(), self._utcnow()
        tidies = now >= self._tidied_at + _TIDY
        ttl = self.ttl if self._claim is None else self._claim.ttl

        def work(connection: sa.Connection, clock: Clock) -> tuple[LeaseRow, Incoming]:
            journal = Journal(connection, self.store.account)
            row = tables.lock(journal)
            # From here to the commit no other poller of the account writes.
            before, shared = attrs.evolve(row), clock()
            # PostgreSQL's clock counts for all hosts, since theirs may differ. SQLite's is of one host only.
            is_shared = connection.dialect.name == "postgresql"
            ahead = datetime.fromtimestamp(shared, UTC) - at if is_shared else timedelta()
            if wants_lease:
                row.lease = row.lease.taken(self._holder, shared, ttl)
            is_holder = row.lease.holder == self.follower
            # Answers first: payments that they end are then not among the changes, or known.
            tables.write_updates(journal, row, outgoing.updates, at=at, is_holder=is_holder)
            updates = self._receive(journal, outgoing, wanted)
            ended = {each.transaction_id for each in updates if each.is_ending}
            updates += tables.write_subscriptions(
                journal, row, outgoing, follower=self.follower, ahead=ahead, ended=ended
            )
            changes = self._lead(journal, row, ahead, wants_lease=wants_lease) if is_holder else []
            if is_holder and tidies:
                tables.tidy(journal, at=at + ahead)
            if row != before:
                tables.save(journal, row)
            return row, Incoming(
                holds=row.lease.holder == self.follower,
                epoch=row.lease.epoch,
                lease_ends_at=row.lease.ends_at(shared),
                updates=updates,
                subscriptions=changes,
            )

        # A final state that the poller hands out afterwards must not be lost with the machine's power.
        is_final = any(each.is_ending for each in outgoing.updates)
        # A new holder reads all that is followed.
        is_short = self._epoch is not None and not tidies and outgoing.size <= _SHORT
        share_key = (self.store.account, "poller") if is_short else ()
        # The fields change only after the commit. If this task is cancelled here, the sync may be committed all the
        # same: the caller then sends the same messages again, as `PollerChannel` allows.
        (row, incoming), self._clock_offset = await self.store.database.timed(
            work, durable=is_final, share_key=share_key
        )
        self._epoch = incoming.epoch if incoming.holds else None
        if self._claim is not None:
            numbers = row.subscription_number, row.message_number
            self._claim.poller = (self.follower, *numbers) if incoming.holds else None
        self._message_number, self._subscription_number = row.message_number, row.subscription_number
        if tidies and incoming.holds:
            self._tidied_at = now
        ends_at = None if incoming.holds else incoming.lease_ends_at
        return attrs.evolve(incoming, lease_ends_at=None if ends_at is None else ends_at + self._clock_offset)

    async def check_updates(self) -> UpdateCheck:
        """Look whether a sync is worth taking; see `PollerChannel.check_updates`."""
        if self._claim is not None and self._epoch is not None:
            await checkpoint()
            is_as_known = self._claim.poller == (self.follower, self._subscription_number, self._message_number)
            return UpdateCheck(has_updates=not is_as_known, lease_ends_at=None)
        row = await self.store.read(tables.look)
        if row is None:
            return UpdateCheck(has_updates=False, lease_ends_at=None)
        has_updates = row.message_number != self._message_number or (
            self._epoch is not None and row.subscription_number != self._subscription_number
        )
        ends_at = row.lease.ends_at(anyio.current_time() - self._clock_offset)
        return UpdateCheck(
            has_updates=has_updates, lease_ends_at=None if ends_at is None else ends_at + self._clock_offset
        )

    async def leave(self, updates: Sequence[StatusUpdate]) -> None:
        """Send the last news, stop following, and give the lease back; see `PollerChannel.leave`."""
        at = self._utcnow()
        if self._claim is not None:
            self._claim.poller = None

        def work(journal: Journal) -> None:
            row = tables.lock(journal)
            tables.write_updates(journal, row, updates, at=at, is_holder=row.lease.holder == self.follower)
            tables.withdraw_all(journal, row, follower=self.follower, at=at)
            row.lease = row.lease.released(self._holder)
            tables.save(journal, row)

        await self.store.write(work)

    async def join(self, *, resume: bool) -> list[str]:
        """Join the others, unless the account is another merchant's; see `PollerChannel.join`."""
        await self._require_own()
        if not resume:
            return []
        await self._feed.begin()  # first: a payment that is acknowledged in between is found twice, not missed
        return await self.unfinished()

    async def unfinished(self) -> list[str]:
        """Return the payments of the store that are not final; see `PollerChannel.unfinished`."""
        return await self.store.read(pending_ids)

    async def next_arrivals(self) -> list[str]:
        """Wait for payments that were acknowledged since the poller joined; see `PollerChannel.next_arrivals`."""
        while True:
            if self._is_lost:
                self._feed.restart()
                missed, self._is_lost = await self.join(resume=True), False
                if missed:
                    return missed
            try:
                change = await anext(self._feed)
            except InvalidCursor:  # the store was restored, or found to be behind its service: its feed begins anew
                self._is_lost = True
                continue
            if change.state is PaymentState.ACKNOWLEDGED and change.record is not None:
                transaction_id = change.record.transaction_id
                if transaction_id is not None and not change.record.is_final:
                    return [transaction_id]

    def _receive(self, journal: Journal, outgoing: Outgoing, wanted: Container[str]) -> list[StatusUpdate]:
        """Return the messages to this poller, of the payments that are wanted."""
        read = tables.read_updates(journal, follower=self.follower, after=self._message_number or 0)
        # An earlier refusal of a payment no longer counts once the payment is tracked again.
        return [
            each
            for each in read
            if each.transaction_id in wanted
            and (each.error is None or each.transaction_id not in outgoing.subscriptions)
        ]

    def _lead(self, journal: Journal, row: LeaseRow, ahead: timedelta, *, wants_lease: bool) -> list[Subscription]:
        """Return the changes of the followed payments, as the holder of the lease, which may give it back here."""
        # A new holder reads all of them.
        after = self._subscription_number if row.lease.epoch == self._epoch else 0
        changes = tables.read_subscriptions(journal, after=after, ahead=ahead)
        if not wants_lease and not changes:
            row.lease = row.lease.released(self._holder)
        return changes
