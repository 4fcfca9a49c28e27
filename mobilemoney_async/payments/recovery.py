"""Comparison of a store with its service before it sends payments.

A store that is behind its service would pay again what it has forgotten: `gap` has the signs. The forgotten
transactions are kept as unclaimed ones of a gap, which stop keys of their kind until someone imports them.

Critical section: one process of an account at a time compares, under the lease `recovery`. Others wait for its result
in the store, and during the listing of a gap their new payments are refused. No transaction is open during a request.
Where the process dies, or the call is cancelled, `accounts.stopped` says what is left to do, and the next payment does
it.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import partial

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import same_number
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.leases import change_lease, while_renewed
from mobilemoney_async.database.schema import payments, unclaimed
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.events import StoreBehind, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.binding import NEWEST, Binding, wait
from mobilemoney_async.payments.duplicates import forgotten
from mobilemoney_async.payments.evidence import Walk
from mobilemoney_async.payments.gap import BEHIND, LOST, UNREADABLE, AccountFacts, Comparison, Suspicion, suspicion
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.listing import Lister
from mobilemoney_async.payments.matching import query_for
from mobilemoney_async.payments.queries import chunks, doubtful, merchant_of, owners
from mobilemoney_async.payments.records import CLAIMED, PaymentRequest
from mobilemoney_async.payments.unclaimed import record_gap

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_LEASE = 30.0
# Seconds between two looks whether another process has ended its comparison.
_FIRST_PAUSE, _PAUSE_FACTOR, _LAST_PAUSE = 0.1, 1.5, 1.0
# Seconds for which a list that could not be read is not asked for again.
_BACKOFF, _ROUTINE_BACKOFF = 10.0, 300.0
# Seconds that a payment waits for a routine comparison.
_PATIENCE = 10.0
_DAY, _SLACK = timedelta(days=1), timedelta(minutes=2)
# The newest payments, which show what types an account makes.
_SAMPLE = 1_000
_FAILED = ("FAILED", "TIMEOUT", "INSUFFICIENT_FUNDS")
# Digits of a masked number that rule out others.
_TELLING = 4


class _UnreadableError(Exception):
    """Comparison that the list did not allow."""


class Recovery:
    """Comparison of one client's store with its service.

    Attributes:
        binding: That of the client's account.
    """

    def __init__(self, store: AccountStore, pipeline: Pipeline) -> None:
        self.binding: Binding = Binding(store, pipeline)
        self._store = store
        self._pipeline = pipeline
        self._lister = Lister(pipeline)
        # The time before which the list is not asked for again, on the loop's clock, and the reason.
        self._unreadable: tuple[float, Exception | None] = (-math.inf, None)

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
        if facts.gap_at is not None:
            await self._store.read(partial(_require_remembered, request=request))
        try:
            return await self._compare_if_due(facts)
        except _UnreadableError as exc:
            if not is_collection:
                raise wait(f"has to be compared with the service before a disbursement, but {exc}") from exc.__cause__
        return False

    async def leave_to_reconcile(self) -> None:
        """Leave a comparison to `resume`, since it takes longer than the deadline of a create."""
        self._put_off(Suspicion.OPEN, TimeoutError())
        facts = await self._store.read(self.binding.look)
        if facts.stopped is None:
            await self.binding.save(stopped=UNREADABLE, doubted_at=facts.doubted_at or self._pipeline.utcnow())

    async def resume(self) -> None:
        """Make a comparison that did not end, if there is one; the next payment finds out whether it has ended now."""
        facts = await self._store.read(self.binding.look)
        if facts.stopped is not None:
            self._unreadable = (-math.inf, None)
            with suppress(_UnreadableError, StoreError):
                await self._compare_if_due(facts)

    async def _compare_if_due(self, facts: AccountFacts) -> bool:
        """Compare the store with its service if that is due, and return whether that took time.

        Raises:
            _UnreadableError: The list did not allow it, and it is not a routine comparison.
            StoreError: Another process compares a store that is behind.
        """
        name, pause = uuid.uuid4().hex, _FIRST_PAUSE
        why = self._suspicion(facts)
        if why is None:
            return False
        while not await self._hold(name, _LEASE):
            if facts.stopped == BEHIND:
                raise wait("has forgotten payments, and is being compared with the service: try again in a minute")
            if why is Suspicion.ROUTINE:
                return False
            await anyio.sleep(pause)
            pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)
            facts = await self._store.read(self.binding.look)
            why = self._suspicion(facts)
            if why is None:
                return True
        try:
            # A busy merchant does not wait for a routine comparison.
            with anyio.move_on_after(_PATIENCE if why is Suspicion.ROUTINE else None):
                await while_renewed(
                    lambda: self._compare(facts, why), lambda: self._hold(name, _LEASE), every=_LEASE / 3
                )
                return True
            self._put_off(why, TimeoutError())
        except _UnreadableError:
            if why is not Suspicion.ROUTINE:
                raise
        finally:
            # Cancelled or not, the lease is free again; where the store is away, it ends by itself.
            with anyio.move_on_after(_LEASE, shield=True), suppress(StoreError):
                await self._hold(name, None)
        return False

    def _suspicion(self, facts: AccountFacts) -> Suspicion | None:
        if self._store.sole_writer is False:
            return None  # the newest rows may always be those of other systems
        why = suspicion(facts, self._pipeline.utcnow(), grace=self._store.grace)
        is_put_off = why is Suspicion.ROUTINE and anyio.current_time() < self._unreadable[0]
        return None if is_put_off else why

    def _put_off(self, why: Suspicion, cause: Exception) -> None:
        """Ask for the list no more for a while, since it could not be read."""
        pause = _ROUTINE_BACKOFF if why is Suspicion.ROUTINE else _BACKOFF
        self._unreadable = (anyio.current_time() + pause, cause)

    def _require_backed_off(self, why: Suspicion) -> None:
        until, cause = self._unreadable
        if why is not Suspicion.ROUTINE and anyio.current_time() < until:
            raise _UnreadableError("its list could not be read") from cause

    async def _hold(self, name: str, ttl: float | None) -> bool:
        held, _ = await self._store.database.timed(
            lambda connection, clock: change_lease(
                connection, self._store.account, "recovery", by=name, ttl=ttl, clock=clock
            )
        )
        return held

    async def _compare(self, facts: AccountFacts, why: Suspicion) -> None:
        """Compare the store with its service, and record the result.

        Raises:
            _UnreadableError: The list could not be read, or cannot show yet what the store has lost.
        """
        now, at = self._pipeline.utcnow(), facts.doubted_at or self._pipeline.utcnow()
        is_lost = why is Suspicion.BACKWARDS or facts.stopped == LOST
        self._require_backed_off(why)
        # Of a store that has lost everything, the last week is compared.
        newest = await self._store.read(lambda journal: _newest_until(journal, at)) or at - timedelta(days=7)
        first_day = (newest - _DAY).date()
        try:
            comparison = None
            if facts.stopped != BEHIND and facts.known_until is None:
                comparison = await self._read(await self._lister.near(at, at, first_day), facts, at)
            if comparison is None or comparison.shows_gap:
                await self._list_gap(facts, at, newest, first_day)
            elif is_lost and now < at + timedelta(seconds=self._store.grace):
                await self.binding.save(stopped=LOST, doubted_at=at)
                raise _UnreadableError("its list does not show yet what the store has lost")
            else:
                await self.binding.save(stopped=None, doubted_at=None, checked_at=now, timeline=facts.timeline_now)
        except MobileMoneyError as exc:
            if isinstance(exc, StoreError):
                raise
            self._put_off(why, exc)
            if why is not Suspicion.ROUTINE:
                await self.binding.save(stopped=LOST if is_lost else UNREADABLE, doubted_at=at)
            raise _UnreadableError("its list cannot be read") from exc
        self._store.newest = facts.newest

    async def _list_gap(self, facts: AccountFacts, at: datetime, newest: datetime, first_day: date) -> None:
        """List the time that the store has forgotten, and keep the transactions of that time."""
        if facts.stopped != BEHIND and facts.known_until is None:
            await self.binding.save(stopped=BEHIND, doubted_at=at)
        start = min(newest, facts.known_until or newest) - _SLACK
        walk = await self._lister.near(start, at + _SLACK, first_day)
        if walk.covered is None and not walk.is_complete:
            walk = await self._lister.complete(first_day)
        comparison = await self._read(walk, facts, at)
        since = facts.known_until or comparison.known_until or start
        rows, now, count = comparison.forgotten(since), self._pipeline.utcnow(), 0
        await self.binding.save(known_until=since)  # a process that goes on from here begins there, too
        for some in chunks(rows):
            count += await self._store.write(partial(record_gap, rows=some, now=now))
        is_over = now >= at + timedelta(seconds=self._store.grace)
        left = {"doubted_at": None, "known_until": None} if is_over else {}
        found = {"gap_at": now} if count else {}
        await self.binding.save(stopped=None, checked_at=now, timeline=facts.timeline_now, **left, **found)
        if count:
            emit(self._pipeline.on_event, StoreBehind(transactions=count, since=since))
            logger.warning(
                "the store is behind the service, as after a restored backup: %d transactions of account %r since %s "
                "belong to no payment in it; others of their kinds are stopped until you import them: see mobilemoney "
                "payments recover; if other systems of yours pay too, say so with SQLStore(..., sole_writer=False)",
                count,
                self._store.account,
                f"{since:%Y-%m-%d %H:%M:%S} UTC",
            )

    async def _read(self, walk: Walk, facts: AccountFacts, at: datetime) -> Comparison:
        """Return the comparison of some pages with the store, as it is after they were read."""
        comparison = await self._store.read(lambda journal: _comparison(journal, walk.rows, facts, at))
        if comparison.merchant_id is None and any(row.merchant_id for row in walk.rows):
            # The list may show every merchant's transactions.
            merchant_id = await self.binding.look_up_own(facts)
            comparison = attrs.evolve(comparison, merchant_id=merchant_id)
        if comparison.merchant_id != facts.merchant_id:
            await self.binding.save(merchant_id=comparison.merchant_id)
        return comparison


def _require_remembered(journal: Journal, request: PaymentRequest) -> None:
    """Raise `DuplicateSuspected` for a forgotten transaction that shows a part of its number only, or no known type.

    Those that show both are compared in the statement that begins the payment.
    """
    columns = unclaimed.c
    is_partial = sa.or_(columns.number_digest.is_(None), columns.type.not_in([*map(str, TransactionType)]))
    rows = journal.connection.execute(
        sa.select(unclaimed).where(
            columns.account == journal.account,
            columns.is_gap,
            columns.state != CLAIMED,
            columns.amount == request.amount,
            columns.status.not_in(_FAILED),
            is_partial,
        )
    )
    for row in rows:
        is_other = row.type != request.type and row.type in set(TransactionType)
        shows_little = sum(map(str.isdigit, row.shown_number)) < _TELLING
        if not is_other and (shows_little or same_number(row.shown_number, request.phone_number) is not None):
            raise forgotten(row.transaction_id)


def _newest_until(journal: Journal, at: datetime) -> datetime | None:
    """Return when the newest payment until a time was first recorded, or None."""
    statement = NEWEST.where(payments.c.created_at <= at).limit(1)
    return journal.connection.execute(statement, {"of_account": journal.account}).scalar_one_or_none()


def _comparison(journal: Journal, rows: Sequence[Transaction], facts: AccountFacts, at: datetime) -> Comparison:
    ids, columns = [row.id for row in rows], unclaimed.c
    owned = owners(journal, ids)
    recorded = [
        transaction_id
        for some in chunks(ids)
        for transaction_id in journal.connection.execute(
            sa.select(columns.transaction_id).where(
                columns.account == journal.account, columns.transaction_id.in_(some)
            )
        ).scalars()
    ]
    newest = NEWEST.with_only_columns(payments.c.type).limit(_SAMPLE).subquery()
    types = journal.connection.execute(sa.select(newest.c.type).distinct(), {"of_account": journal.account}).scalars()
    return Comparison(
        rows=rows,
        owned=owned,
        recorded=frozenset(recorded),
        open_payments=[query_for(each) for each in doubtful(journal, at.date())],
        types=frozenset(map(TransactionType, types)),
        merchant_id=facts.merchant_id or merchant_of(journal, rows, owned),
        doubted_at=at,
    )
