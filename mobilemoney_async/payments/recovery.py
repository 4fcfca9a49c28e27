"""Comparison of a store with its service before it sends payments.

A store that is behind its service would pay again what it has forgotten: `gap` has the signs. The forgotten
transactions are kept as unclaimed ones of a gap, which stop keys of their kind until someone imports them.

Critical section: one process of an account at a time compares, under the lease `recovery`. Others wait for its result
in the store, and during the listing of a gap their new payments are refused. No transaction is open during a request.
Where the process dies, or the call is cancelled, `accounts.stopped` says what is left to do, and the next payment does
it, or `Payments.reconcile`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.cancellation import shielded
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.leases import change_lease, while_renewed
from mobilemoney_async.database.schema import accounts, payments, unclaimed
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.events import StoreBehind, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.binding import NEWEST, Binding, ForeignError, Memory, wait
from mobilemoney_async.payments.changes import new_epoch
from mobilemoney_async.payments.duplicates import require_remembered
from mobilemoney_async.payments.evidence import STEADY, Walk
from mobilemoney_async.payments.gap import BEHIND, LOST, UNREADABLE, AccountFacts, Comparison, Suspicion, suspicion
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.listing import Lister
from mobilemoney_async.payments.matching import query_for, shift
from mobilemoney_async.payments.queries import chunks, doubtful, merchant_of, owners
from mobilemoney_async.payments.records import CLAIMED, OPEN, PaymentRequest
from mobilemoney_async.payments.unclaimed import record_gap

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_LEASE = 30.0
# Seconds between two looks whether another process has ended its comparison.
_FIRST_PAUSE, _PAUSE_FACTOR, _LAST_PAUSE = 0.1, 1.5, 1.0
# Seconds for which a list that could not be read is not asked for again.
_BACKOFF, _ROUTINE_BACKOFF = 10.0, 300.0
# Seconds that a payment waits for a comparison which is routine, or which it does not depend on.
_PATIENCE = 10.0
# No payment of ours is older; an edited row may be, and the calendar has a first day.
_NO_PAYMENT_YET = datetime(2000, 1, 1, tzinfo=UTC)
_DAY, _SLACK = timedelta(days=1), timedelta(minutes=2)
# The service's clock may be behind ours by as much, and shows seconds only.
_CLOCKS, _GRAIN = timedelta(minutes=15), timedelta(seconds=2)
_UNREADABLE = "its list cannot be read"
_NOT_YET = "its list does not show yet what the store has lost"


class _UnreadableError(Exception):
    """Comparison that the list did not allow."""


@attrs.frozen(kw_only=True)
class _Doubt:
    """Doubt that a comparison has to remove.

    Attributes:
        facts: About the account.
        why: The reason.
        at: When it came up first.
        newest: The newest payment of that time; of a store that has lost everything, a week before.
        asked: The type of the payment that waits, if any.
        patience: Seconds for the first look; None for as long as it takes.
    """

    facts: AccountFacts
    why: Suspicion
    at: datetime
    newest: datetime
    asked: TransactionType | None
    patience: float | None

    @property
    def is_lost(self) -> bool:
        """True if it is certain that the store has lost payments, which the list may not show yet."""
        return self.why is Suspicion.BACKWARDS or self.facts.stopped == LOST

    @property
    def went_back(self) -> bool:
        """True if the store itself shows that it has lost payments, or may have."""
        return self.is_lost or self.why is Suspicion.MOVED

    def is_shown(self, rows: Iterable[Transaction]) -> bool:
        """Return whether rows show the time of the newest payment that is known to be lost."""
        lost_until = self.facts.lost_until
        return lost_until is not None and any(
            row.created_at is not None and row.created_at >= lost_until - _GRAIN for row in rows
        )

    @property
    def first_day(self) -> date:
        """The first day to list: one to spare, since the service's time zone is undocumented."""
        return (self.newest - _DAY).date()


# Whether the account has forgotten transactions that no payment claims.
_HAS_GAP = sa.exists().where(
    unclaimed.c.account == accounts.c.account, unclaimed.c.is_gap, unclaimed.c.state != CLAIMED
)


class Recovery:
    """Comparison of one client's store with its service.

    Attributes:
        binding: That of the client's account.
        memory: Shared with the clients of other options.
    """

    def __init__(self, store: AccountStore, pipeline: Pipeline, memory: Memory | None = None) -> None:
        self.memory: Memory = Memory() if memory is None else memory
        self.binding: Binding = Binding(store, pipeline, self.memory)
        self._store = store
        self._pipeline = pipeline
        self._grace = timedelta(seconds=store.grace)

    @property
    def _lister(self) -> Lister:
        """Reader of the list, without the deadline of a call: there may be a queue for hundreds of pages."""
        return Lister(attrs.evolve(self._pipeline, options=attrs.evolve(self._pipeline.options, deadline=None)))

    async def admit(self, request: PaymentRequest, facts: AccountFacts) -> bool:
        """Compare the store with its service if that is due before a payment is sent.

        Returns:
            Whether that took time, in which the payment may have changed.

        Raises:
            StoreError: The payment has to wait, or the account is another merchant's; nothing was sent.
            DuplicateSuspected: The payment may be one that the store has forgotten.
        """
        is_collection = request.type == TransactionType.COLLECTION
        await self.binding.require_bound(facts, is_lenient=is_collection)
        if self._store.sole_writer is False:
            return False  # the newest rows may always be those of other systems
        if facts.gap_at is not None:
            await self._store.read(lambda journal: require_remembered(journal.connection, journal.account, request))
        why = self._suspicion(facts)
        if why is None:
            return False
        try:
            return await self._compare_alone(facts, why, request)
        except _UnreadableError as exc:
            if not is_collection and why is not Suspicion.ROUTINE:
                raise wait(f"has to be compared with the service before a disbursement, but {exc}") from exc.__cause__
        return False

    async def leave_to_reconcile(self) -> None:
        """Leave a comparison to `resume`, since it takes longer than the deadline of a create."""
        self._put_off(_BACKOFF, f"{_UNREADABLE}: no answer came in time")
        facts = await self.binding.read()
        if facts.stopped is None:
            await self.binding.save(stopped=UNREADABLE, doubted_at=facts.doubted_at or self._pipeline.utcnow())

    async def resume(self) -> None:
        """Make a comparison that did not end, if there is one; the next payment finds out whether it has ended now."""
        facts = await self.binding.read()
        if self._store.sole_writer is not False and self._suspicion(facts) is Suspicion.OPEN:
            self._put_off(-math.inf, "")
            with suppress(_UnreadableError, StoreError):
                await self._compare_alone(facts, Suspicion.OPEN)

    def _put_off(self, seconds: float, obstacle: str) -> None:
        """Ask for the list no more for a while, since it could not be read, or shows too little."""
        self.memory.unreadable_until, self.memory.obstacle = anyio.current_time() + seconds, obstacle

    async def _compare_alone(self, facts: AccountFacts, why: Suspicion, request: PaymentRequest | None = None) -> bool:
        """Compare the store as the only process of the account, or wait for the one that does.

        Returns:
            Whether that took time.

        Raises:
            StoreError: Another process lists what the store has forgotten.
            _UnreadableError: The list did not allow it.
        """
        name, pause = self._pipeline.new_holder(), _FIRST_PAUSE
        while not await self._hold(name, _LEASE):
            if facts.stopped == BEHIND:
                raise wait("has forgotten payments, and is being compared with the service: try again in a minute")
            if why is Suspicion.ROUTINE:
                return False
            await anyio.sleep(pause)
            pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)
            facts = await self.binding.read()
            found = self._suspicion(facts)
            if found is None:
                return True
            why = found
        try:
            await while_renewed(
                lambda: self._compare(facts, why, request), lambda: self._hold(name, _LEASE), every=_LEASE / 3
            )
        finally:
            # Cancelled or not, the lease is free again; where the store is away, it ends by itself.
            await shielded(lambda: self._hold(name, None), timeout=_LEASE, ignored=StoreError)
        return True

    def _suspicion(self, facts: AccountFacts) -> Suspicion | None:
        why = suspicion(facts, self._pipeline.utcnow(), grace=self._store.grace)
        is_put_off = why is Suspicion.ROUTINE and anyio.current_time() < self.memory.unreadable_until
        return None if is_put_off else why

    async def _hold(self, name: str, ttl: float | None) -> bool:
        held, _ = await self._store.database.timed(
            lambda connection, clock: change_lease(
                connection, self._store.account, "recovery", by=name, ttl=ttl, clock=clock
            )
        )
        return held

    async def _compare(self, facts: AccountFacts, why: Suspicion, request: PaymentRequest | None) -> None:
        """Compare the store with its service, and record the result.

        Raises:
            _UnreadableError: The list could not be read, or cannot show yet what the store has lost.
        """
        at, is_routine = facts.doubted_at or self._pipeline.utcnow(), why is Suspicion.ROUTINE
        found = await self._store.read(lambda journal: _newest_until(journal, at)) or at - timedelta(days=7)
        newest = max(found, _NO_PAYMENT_YET)
        asked, patience = None if request is None else request.type, self._patience(request, why)
        doubt = _Doubt(facts=facts, why=why, at=at, newest=newest, asked=asked, patience=patience)
        cause = None
        if is_routine or anyio.current_time() >= self.memory.unreadable_until:
            try:
                obstacle = await self._look(doubt)
                if obstacle is None:
                    if facts.lost_until is not None:
                        self._store.newest = facts.newest
                    return
            except StoreError:
                raise
            except (MobileMoneyError, TimeoutError) as exc:
                cause, obstacle = exc, f"{_UNREADABLE}: {str(exc) or 'no answer came in time'}"
            self._put_off(_ROUTINE_BACKOFF if is_routine else _BACKOFF, obstacle)
        if not is_routine:
            # A collection is sent all the same, and then the store does not look quiet any more.
            await self.binding.save(stopped=LOST if doubt.is_lost else UNREADABLE, doubted_at=at)
        raise _UnreadableError(self.memory.obstacle) from cause

    def _patience(self, request: PaymentRequest | None, why: Suspicion) -> float | None:
        """Return the seconds that a payment waits for a first look, or None if it must have its result."""
        if request is None or (why is not Suspicion.ROUTINE and request.type != TransactionType.COLLECTION):
            return None
        deadline = self._pipeline.options.deadline
        return _PATIENCE if deadline is None else min(_PATIENCE, deadline / 2)

    async def _look(self, doubt: _Doubt) -> str | None:
        """Look in the list for what the store has forgotten, and record it.

        Returns:
            None, or why the list cannot show it yet.
        """
        now, facts, at = self._pipeline.utcnow(), doubt.facts, doubt.at
        if facts.stopped != BEHIND and facts.known_until is None:
            with anyio.fail_after(doubt.patience):
                comparison = await self._look_at_newest(doubt)
            if not comparison.shows_gap:
                is_early = now < at + self._grace
                if is_early and doubt.is_lost and not doubt.is_shown(comparison.rows):
                    return _NOT_YET
                # A list without any payment of ours proves nothing: it is compared once more after the grace period.
                # The payment that waits comes after this moment.
                is_empty = is_early and comparison.known_until is None and await self._is_expected(doubt)
                again = at - timedelta.resolution if is_empty else None
                done = {"stopped": None, "checked_at": now, "timeline": facts.timeline_now, "gap_at": _gap_at(now)}
                await self.binding.save(doubted_at=again, **done)
                return None
            await self.binding.save(stopped=BEHIND, doubted_at=at)
        return await self._list_gap(doubt)

    async def _is_expected(self, doubt: _Doubt) -> bool:
        """Return whether the list must show a payment of ours."""
        table, days = payments.c, (doubt.newest - _DAY, doubt.at - self._grace)
        ours = (
            table.account == self._store.account,
            table.transaction_id.is_not(None),
            table.sent_at.between(*days),
        )
        shown = sa.select(table.key).where(*ours).limit(1)
        return await self._store.read(lambda journal: journal.connection.execute(shown).first() is not None)

    async def _look_at_newest(self, doubt: _Doubt) -> Comparison:
        """Compare the newest rows with the store, in one or two requests; in more if they show none that it knows."""
        end = doubt.at + _DAY  # the end of the list, whatever the service's clock shows
        walk = await self._lister.near(end, end, doubt.first_day)
        if walk.covered is None and not walk.is_complete:
            walk = await self._lister.complete(doubt.first_day)
        comparison = await self._read(walk, doubt)
        if comparison.known_until is None and not (walk.is_complete or comparison.shows_gap):
            walk = await self._lister.near(doubt.newest - _CLOCKS, end, doubt.first_day)
            comparison = await self._read(walk, doubt)
        return comparison

    async def _list_gap(self, doubt: _Doubt) -> str | None:
        """List the time that the store has forgotten, and keep the transactions of that time; see `_look`."""
        facts, at, newest = doubt.facts, doubt.at, doubt.newest
        start = shift(min(newest, facts.known_until or newest), -_CLOCKS)
        walk = await self._lister.near(start, at + _DAY, doubt.first_day)
        if walk.covered is None and not walk.is_complete:
            walk = await self._lister.complete(doubt.first_day)
        # It may have forgotten its only payments of a type, too.
        comparison = attrs.evolve(await self._read(walk, doubt), types=frozenset())
        since = facts.known_until or comparison.known_until or newest - _SLACK
        # The service's clock may have been set back in the forgotten time.
        rows, now, count = comparison.forgotten(shift(since, -STEADY)), self._pipeline.utcnow(), 0
        await self.binding.save(known_until=since)  # a process that goes on from here begins there, too
        for some in chunks(rows):
            count += await self._store.write(partial(record_gap, rows=some, now=now))
        is_over = now >= at + self._grace
        waits = doubt.is_lost and not doubt.is_shown(walk.rows) and not is_over
        left: dict[str, Any] = {"doubted_at": None, "known_until": None} if is_over else {"doubted_at": at}
        # Cursors of the time that the store has forgotten name other changes now.
        left |= {"timeline": facts.timeline_now, "gap_at": _gap_at(now)} | (
            {"feed_epoch": new_epoch()} if count else {}
        )
        await self.binding.save(stopped=LOST if waits else None, checked_at=now, **left)
        if count:
            self._report(count, since)
        return _NOT_YET if waits else None

    def _report(self, count: int, since: datetime) -> None:
        emit(self._pipeline.on_event, StoreBehind(transactions=count, since=since))
        logger.warning(
            "the store is behind the service, as after a restored backup: %d transactions of account %r since %s "
            "belong to no payment in it; others of their kinds are stopped until you import them: see mobilemoney "
            "payments recover; if other systems of yours pay too, say so with SQLStore(..., sole_writer=False)",
            count,
            self._store.account,
            f"{since:%Y-%m-%d %H:%M:%S} UTC",
        )

    async def _read(self, walk: Walk, doubt: _Doubt) -> Comparison:
        """Return the comparison of some pages with the store, as it is after they were read."""
        facts = doubt.facts
        comparison = await self._store.read(lambda journal: _comparison(journal, walk.rows, doubt))
        if comparison.merchant_id is None and any(row.merchant_id for row in walk.rows):
            # The list may show every merchant's transactions. A service to which someone has bound the account need
            # not know an older one.
            with suppress(ForeignError):
                comparison = attrs.evolve(comparison, merchant_id=await self.binding.look_up_own(facts))
        if comparison.merchant_id != facts.merchant_id:
            await self.binding.save(merchant_id=comparison.merchant_id)
        return comparison


def _gap_at(now: datetime) -> sa.ColumnElement[datetime | None]:
    """Return the time for the account's row if there is a gap, else None: `Recovery.admit` has less to look up then."""
    return sa.case((_HAS_GAP, sa.literal(now, accounts.c.gap_at.type)))


def _newest_until(journal: Journal, at: datetime) -> datetime | None:
    """Return when the newest payment until a time was sent, or None."""
    statement = NEWEST.where(payments.c.sent_at <= at).limit(1)
    return journal.connection.execute(statement, {"of_account": journal.account}).scalar_one_or_none()


def _comparison(journal: Journal, rows: Sequence[Transaction], doubt: _Doubt) -> Comparison:
    ids, columns, table = [row.id for row in rows], unclaimed.c, payments.c
    owned, open_payments = owners(journal, ids), doubtful(journal, doubt.first_day)
    # Once the store went backwards, those that are open may be forgotten payments: the list was read before this.
    is_settled = sa.or_(columns.is_gap, columns.state != OPEN, sa.literal(not doubt.went_back))
    recorded = [
        transaction_id
        for some in chunks(ids)
        for transaction_id in journal.connection.execute(
            sa.select(columns.transaction_id).where(
                columns.account == journal.account, columns.transaction_id.in_(some), is_settled
            )
        ).scalars()
    ]
    own = sa.select(table.key).where(table.account == journal.account).limit(1)
    free = {
        row.type for row in rows if row.id not in owned
    }  # for another type, a million payments need not be searched
    return Comparison(
        rows=rows,
        owned=owned,
        recorded=frozenset(recorded).union(*(record.candidates for record in open_payments)),
        open_payments=[query_for(each) for each in open_payments],
        types=frozenset(
            each
            for each in TransactionType
            if each is doubt.asked
            or each not in free
            or journal.connection.execute(own.where(table.type == str(each))).first()
        ),
        merchant_id=doubt.facts.merchant_id or merchant_of(journal, rows, owned),
        doubted_at=doubt.at,
    )
