"""Seat of one poller among those that share a database, and their table: followed payments, messages to followers.

Critical section: a poller that writes locks the row of the lease first, until its commit. So the two numbers that the
row counts grow in the order of the commits, and a reader that has read up to a number has missed nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.calls.collaborators import AccountClaim
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.clock import Lease
from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.leases import new_holder, read_lease
from mobilemoney_async.database.schema import leases, lock_row, payments, subscriptions
from mobilemoney_async.database.serialization import dump, load
from mobilemoney_async.errors import InvalidCursor, MobileMoneyError, StoreError
from mobilemoney_async.events import Handler
from mobilemoney_async.payments.feed.feed import ChangePages
from mobilemoney_async.payments.ownership.binding import Binding
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks, pending_ids, select_among
from mobilemoney_async.payments.records.record import PaymentState, Source
from mobilemoney_async.payments.records.transaction_states import (
    ChangedState,
    find_changed,
    record_seen,
    report_changes,
)
from mobilemoney_async.polling.sharing import Incoming, Outgoing, StatusUpdate, Subscription, UpdateCheck
from mobilemoney_async.text import shown_id

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_NAME = "poller"
# A payment that is no longer followed ended at this distance, by any host's clock.
_LONG_AGO = timedelta(days=1)
_is_poller = leases.c.name == _NAME
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
    return StoreChannel(
        store, utcnow=pipeline.utcnow, require_own=own, claim=pipeline.claim, on_event=pipeline.on_event
    )


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
        claim: AccountClaim | None = None,
        on_event: Handler | None = None,
    ) -> None:
        self.store: AccountStore = store
        self._on_event = on_event
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

        def work(connection: sa.Connection, clock: Clock) -> tuple[LeaseRow, Incoming, list[ChangedState]]:
            journal = Journal(connection, self.store.account)
            row = lock_lease(journal)
            # From here to the commit no other poller of the account writes.
            before, shared = attrs.evolve(row), clock()
            # PostgreSQL's clock counts for all hosts, since theirs may differ. SQLite's is of one host only.
            is_shared = connection.dialect.name == "postgresql"
            clock_offset = datetime.fromtimestamp(shared, UTC) - at if is_shared else timedelta()
            if wants_lease:
                row.lease = row.lease.taken(self._holder, shared, ttl)
            is_holder = row.lease.holder == self.follower
            # Answers first: payments that they end are then not among the changes, or known.
            changed = write_updates(journal, row, outgoing.updates, at=at, is_holder=is_holder)
            updates = self._receive(journal, outgoing, wanted)
            ended = {each.transaction_id for each in updates if each.is_ending}
            updates += write_subscriptions(
                journal, row, outgoing, follower=self.follower, clock_offset=clock_offset, ended=ended
            )
            changes = self._lead(journal, row, clock_offset, wants_lease=wants_lease) if is_holder else []
            if is_holder and tidies:
                # Those that are followed no longer: this holder has read the changes.
                journal.delete_rows(subscriptions, subscriptions.c.until < at + clock_offset)
            if row != before:
                save_lease(journal, row)
            incoming = Incoming(
                holds=row.lease.holder == self.follower,
                epoch=row.lease.epoch,
                lease_ends_at=None if row.lease.holder == self.follower else row.lease.ends_at(shared),
                updates=updates,
                subscriptions=changes,
            )
            return row, incoming, changed

        # A final state that the poller hands out afterwards must not be lost with the machine's power.
        is_final = any(each.is_ending for each in outgoing.updates)
        # A new holder reads all that is followed.
        is_short = self._epoch is not None and not tidies and outgoing.size <= _SHORT
        share_key = (self.store.account, "poller") if is_short else ()
        # The fields change only after the commit. If this task is cancelled here, the sync may be committed all the
        # same: the caller then sends the same messages again, as `PollerChannel` allows.
        (row, incoming, changed), self._clock_offset = await self.store.database.timed(
            work, durable=is_final, share_key=share_key
        )
        report_changes(self.store, changed, self._on_event)
        self._epoch = incoming.epoch if incoming.holds else None
        if self._claim is not None:
            numbers = row.subscription_number, row.message_number
            self._claim.poller = (self.follower, *numbers) if incoming.holds else None
        self._message_number, self._subscription_number = row.message_number, row.subscription_number
        if tidies and incoming.holds:
            self._tidied_at = now
        return attrs.evolve(incoming, lease_ends_at=self._in_loop(incoming.lease_ends_at))

    async def check_updates(self) -> UpdateCheck:
        """Look whether a sync is worth taking; see `PollerChannel.check_updates`."""
        if self._claim is not None and self._epoch is not None:
            await checkpoint()
            is_as_known = self._claim.poller == (self.follower, self._subscription_number, self._message_number)
            return UpdateCheck(has_updates=not is_as_known, lease_ends_at=None)
        row = await self.store.read(lambda journal: next(map(_lease_row, journal.rows(leases, _is_poller)), None))
        if row is None:
            return UpdateCheck(has_updates=False, lease_ends_at=None)
        has_updates = row.message_number != self._message_number or (
            self._epoch is not None and row.subscription_number != self._subscription_number
        )
        ends_at = row.lease.ends_at(anyio.current_time() - self._clock_offset)
        return UpdateCheck(has_updates=has_updates, lease_ends_at=self._in_loop(ends_at))

    def _in_loop(self, at: float | None) -> float | None:
        """Return a time of the store by the event loop's clock."""
        return None if at is None else at + self._clock_offset

    async def leave(self, updates: Sequence[StatusUpdate]) -> None:
        """Send the last news, stop following, and give the lease back; see `PollerChannel.leave`."""
        at = self._utcnow()
        if self._claim is not None:
            self._claim.poller = None

        def work(journal: Journal) -> list[ChangedState]:
            row = lock_lease(journal)
            changed = write_updates(journal, row, updates, at=at, is_holder=row.lease.holder == self.follower)
            row.subscription_number += 1
            own, until = (subscriptions.c.follower == self.follower, ~subscriptions.c.has_ended), at - _LONG_AGO
            journal.change_rows(subscriptions, *own, number=row.subscription_number, until=until)
            row.lease = row.lease.released(self._holder)
            save_lease(journal, row)
            return changed

        report_changes(self.store, await self.store.write(work), self._on_event)

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
            except InvalidCursor:  # the store was restored, or found to be behind its service: its feed begins again
                self._is_lost = True
                continue
            if change.state is PaymentState.ACKNOWLEDGED and change.record is not None:
                transaction_id = change.record.transaction_id
                if transaction_id is not None and not change.record.is_final:
                    return [transaction_id]

    def _receive(self, journal: Journal, outgoing: Outgoing, wanted: Container[str]) -> list[StatusUpdate]:
        """Return the new messages to this poller, of wanted payments. Earlier ones have arrived, and go."""
        columns, after = subscriptions.c, self._message_number or 0
        mine, arrived = columns.follower == self.follower, columns.message_number <= after
        journal.delete_rows(subscriptions, mine, columns.has_ended, arrived)
        read = map(_update, journal.rows(subscriptions, mine, ~arrived, order_by=[columns.message_number]))
        # An earlier refusal of a payment no longer counts once the payment is tracked again.
        return [
            each
            for each in read
            if each.transaction_id in wanted
            and (each.error is None or each.transaction_id not in outgoing.subscriptions)
        ]

    def _lead(
        self, journal: Journal, row: LeaseRow, clock_offset: timedelta, *, wants_lease: bool
    ) -> list[Subscription]:
        """Return the changes of the followed payments, as the holder of the lease, which may give it back here.

        They are in the order in which the payments were tracked, with times of this host's clock.
        """
        columns, names = subscriptions.c, attrs.fields_dict(Subscription)
        # A new holder reads all of them.
        after = self._subscription_number if row.lease.epoch == self._epoch else 0
        order = (columns.tracked_at, columns.transaction_id)
        found = journal.rows(subscriptions, columns.number > after, ~columns.has_ended, order_by=order)
        changes = [
            _moved(Subscription(**{name: getattr(each, name) for name in names}), -clock_offset) for each in found
        ]
        if not wants_lease and not changes:
            row.lease = row.lease.released(self._holder)
        return changes


# The table: statements inside one transaction


@attrs.define(kw_only=True)
class LeaseRow:
    """Row of the poller's lease, and the numbers of the latest change of the followed payments and the latest news."""

    lease: Lease
    subscription_number: int
    message_number: int


def lock_lease(journal: Journal) -> LeaseRow:
    """Lock the row until the commit, and return it. Other pollers wait for it."""
    return _lease_row(lock_row(journal.connection, leases, {"account": journal.account, "name": _NAME}))


def save_lease(journal: Journal, row: LeaseRow) -> None:
    """Write the row that was locked."""
    values = attrs.asdict(row.lease) | {
        "subscription_number": row.subscription_number,
        "message_number": row.message_number,
    }
    journal.change_rows(leases, _is_poller, **values)


def write_updates(
    journal: Journal, row: LeaseRow, said: Sequence[StatusUpdate], *, at: datetime, is_holder: bool
) -> list[ChangedState]:
    """Record the service's answers, and write them to the pollers that track their payments, the sender's included.

    A final state is true from any poller. Other answers are taken from the holder only: another poller's may be older
    than the known state. One that contradicts the payment's record ends the tracking as an error.

    Returns:
        The final states that have changed, to be reported once that is committed.
    """
    columns, changed = subscriptions.c, list[ChangedState]()
    for each in said:
        final = each.transaction if each.transaction is not None and each.transaction.is_final else None
        if final is None and not is_holder:
            continue
        if final is not None:
            contradiction = record_seen(journal, final, source=Source.POLL, at=at)
            if contradiction is not None:
                found = find_changed(journal, final)
                changed += found
                if not found:
                    logger.error("the service contradicts itself: %s", contradiction)
                each = StatusUpdate(transaction_id=each.transaction_id, error=contradiction)  # noqa: PLW2901
        message = {
            "has_ended": each.is_ending,
            "transaction": None if each.transaction is None else dump(each.transaction),
            "error": None if each.error is None else dump(each.error),
            "lag": each.lag,
            "message_number": row.message_number + 1,
        }
        here = (columns.transaction_id == each.transaction_id, ~columns.has_ended)
        row.message_number += min(1, journal.change_rows(subscriptions, *here, **message))
    return changed


def write_subscriptions(
    journal: Journal,
    row: LeaseRow,
    outgoing: Outgoing,
    *,
    follower: str,
    clock_offset: timedelta,
    ended: Container[str],
) -> list[StatusUpdate]:
    """Write the payments that a poller follows, and those that it no longer follows.

    The store's clock is ahead of its host's by `clock_offset`. The poller has the messages of those that are `ended`.

    Returns:
        The final states that are known already: of payments that need not be followed.
    """
    columns, stated = subscriptions.c, outgoing.subscriptions
    known = _known_finals(journal, [each for each in stated if each not in ended])
    new = [each for number, each in stated.items() if number not in known and number not in ended]
    if new:
        row.subscription_number += 1
        for ids in chunks(each.transaction_id for each in new):
            journal.delete_rows(subscriptions, columns.follower == follower, columns.transaction_id.in_(ids))
        shared = {"account": journal.account, "number": row.subscription_number}
        journal.execute(subscriptions.insert(), [attrs.asdict(_moved(each, clock_offset)) | shared for each in new])
    return list(known.values())


def _moved(subscription: Subscription, by: timedelta) -> Subscription:
    """Return it by another clock, which is ahead by so much."""
    return attrs.evolve(subscription, tracked_at=subscription.tracked_at + by, until=subscription.until + by)


def _known_finals(journal: Journal, transaction_ids: Collection[str]) -> dict[str, StatusUpdate]:
    """Return the final states of some payments that the store has."""
    found: dict[str, StatusUpdate] = {}
    table = payments.c
    seen = sa.select(table.transaction).where(table.transaction.is_not(None))
    for row in select_among(journal, seen, table.transaction_id, transaction_ids):
        # An unreadable record of payments is passed over: the service can show its state again.
        with suppress(StoreError):
            transaction = load(Transaction, row.transaction)
            if transaction.is_final:
                found[transaction.id] = StatusUpdate(transaction_id=transaction.id, transaction=transaction)
    return found


def _update(row: sa.Row[Any]) -> StatusUpdate:
    try:
        transaction = None if row.transaction is None else load(Transaction, row.transaction)
        error = None if row.error is None else load(MobileMoneyError, row.error)
    except StoreError as exc:  # it must not keep the others from being read
        logger.error("the poller's message about transaction %s: %s", shown_id(row.transaction_id), exc)  # noqa: TRY400
        return StatusUpdate(transaction_id=row.transaction_id, error=exc if row.has_ended else None)
    return StatusUpdate(transaction_id=row.transaction_id, transaction=transaction, error=error, lag=row.lag)


def _lease_row(row: sa.Row[Any]) -> LeaseRow:
    return LeaseRow(
        lease=read_lease(row), subscription_number=row.subscription_number, message_number=row.message_number
    )
