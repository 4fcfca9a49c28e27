"""Comparison of a store with its service before it sends payments, and the binding of an account to its merchant.

A store that is behind its service would pay again what it has forgotten: `gap` has the signs. The forgotten
transactions are kept as unclaimed ones of a gap, which stop keys of their kind until someone imports them.

An account is bound to the merchant of its own transactions, to the host of the base URL, and to the credentials that
could look up one of them. Others may be another merchant's, or a sandbox's: nothing is sent and nothing concluded.

Critical section: one process of an account at a time compares, under the lease `recovery`. Others wait for its result
in the store, and during the listing of a gap their new payments are refused. No transaction is open during a request.
Where the process dies, or the call is cancelled, `accounts.stopped` says what is left to do, and the next payment does
it.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.calls.tokens import NamedSource
from mobilemoney_async.contract.comparison import NumberForm, international, same_number
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.engine import timeline
from mobilemoney_async.database.leases import change_lease, while_renewed
from mobilemoney_async.database.schema import accounts, insert_missing, lock_row, payments, unclaimed
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import (
    InvalidCredentials,
    InvalidToken,
    InvalidTransactionId,
    MobileMoneyError,
    StoreError,
    TokenExpired,
    TransactionNotFound,
)
from mobilemoney_async.events import AccountMismatch, StoreBehind, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.duplicates import forgotten
from mobilemoney_async.payments.evidence import Walk
from mobilemoney_async.payments.gap import BEHIND, LOST, UNREADABLE, AccountFacts, Comparison, Suspicion, suspicion
from mobilemoney_async.payments.journal import UNKNOWN_EXTRA, Journal, to_record
from mobilemoney_async.payments.listing import Lister
from mobilemoney_async.payments.matching import Match, Spellings, match, query_for
from mobilemoney_async.payments.queries import chunks, doubtful, merchant_of, owners
from mobilemoney_async.payments.reconciliation import adopt, doubt
from mobilemoney_async.payments.records import (
    CLAIMED,
    REUSABLE,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
)
from mobilemoney_async.payments.unclaimed import find_unclaimed, record_gap
from mobilemoney_async.values import normalise_amount, normalise_phone_number, valid_name

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
# Transactions that are fetched one by one, rather than listed, to be imported.
_FEW = 10
_FAILED = ("FAILED", "TIMEOUT", "INSUFFICIENT_FUNDS")
# Digits of a masked number that rule out others.
_TELLING = 4
# Credentials that an account remembers.
_MOST_CREDENTIALS = 20

_here = payments.c.account == sa.bindparam("of_account")
_NEWEST = sa.select(payments.c.created_at).where(_here).order_by(payments.c.created_at.desc(), payments.c.key.desc())
_FIELDS = [each for each in accounts.c if each.name in {field.name for field in attrs.fields(AccountFacts)}]
_one = sa.select(sa.literal(1).label("one")).subquery()
_FACTS = sa.select(_NEWEST.limit(1).scalar_subquery().label("newest"), *_FIELDS).select_from(
    _one.outerjoin(accounts, accounts.c.account == sa.bindparam("of_account"))
)


class _UnreadableError(Exception):
    """Comparison that the list did not allow."""


class Recovery:
    """Comparison of one client's store with its service, and the binding of its account."""

    def __init__(self, store: AccountStore, pipeline: Pipeline) -> None:
        self._store = store
        self._pipeline = pipeline
        self._lister = Lister(pipeline)
        self._host = _host(pipeline.wire.base_url)
        self._credentials: str | None = None
        self._said: set[str] = set()
        # The time before which the list is not asked for again, on the loop's clock, and the reason.
        self._unreadable: tuple[float, Exception | None] = (-math.inf, None)

    def look(self, journal: Journal) -> AccountFacts:
        """Return the facts about the account, by one statement: each new payment pays for it."""
        remembered = self._store.newest
        row = journal.connection.execute(_FACTS, {"of_account": journal.account}).mappings().one()
        if row["newest"] is not None:
            self._store.note_newest(row["newest"])
        return AccountFacts(remembered=remembered, timeline_now=timeline(journal.connection), **row)

    async def admit(self, request: PaymentRequest, facts: AccountFacts) -> bool:
        """Compare the store with its service if that is due before a payment is sent.

        Returns:
            Whether that took time, in which the payment may have changed.

        Raises:
            StoreError: The payment has to wait, or the account is another merchant's; nothing was sent.
            DuplicateSuspected: The payment may be one that the store has forgotten.
        """
        is_collection = request.type == TransactionType.COLLECTION
        await self.require_bound(facts, is_lenient=is_collection)
        if facts.gap_at is not None:
            await self._store.read(partial(_require_remembered, request=request))
        name, pause = uuid.uuid4().hex, _FIRST_PAUSE
        why = self._suspicion(facts)
        if why is None:
            return False
        while not await self._hold(name, _LEASE):
            if facts.stopped == BEHIND:
                raise _wait("has forgotten payments, and is being compared with the service: try again in a minute")
            if why is Suspicion.ROUTINE:
                return False
            await anyio.sleep(pause)
            pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)
            facts = await self._store.read(self.look)
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
        except _UnreadableError as exc:
            if not is_collection and why is not Suspicion.ROUTINE:
                raise _wait(f"has to be compared with the service before a disbursement, but {exc}") from exc.__cause__
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
                await self._save(stopped=LOST, doubted_at=at)
                raise _UnreadableError("its list does not show yet what the store has lost")
            else:
                await self._save(stopped=None, doubted_at=None, checked_at=now, timeline=facts.timeline_now)
        except MobileMoneyError as exc:
            if isinstance(exc, StoreError):
                raise
            self._put_off(why, exc)
            if why is not Suspicion.ROUTINE:
                await self._save(stopped=LOST if is_lost else UNREADABLE, doubted_at=at)
            raise _UnreadableError("its list cannot be read") from exc
        self._store.newest = facts.newest

    async def _list_gap(self, facts: AccountFacts, at: datetime, newest: datetime, first_day: date) -> None:
        """List the time that the store has forgotten, and keep the transactions of that time."""
        if facts.stopped != BEHIND and facts.known_until is None:
            await self._save(stopped=BEHIND, doubted_at=at)
        start = min(newest, facts.known_until or newest) - _SLACK
        walk = await self._lister.near(start, at + _SLACK, first_day)
        if walk.covered is None and not walk.is_complete:
            walk = await self._lister.complete(first_day)
        comparison = await self._read(walk, facts, at)
        since = facts.known_until or comparison.known_until or start
        rows, now, count = comparison.forgotten(since), self._pipeline.utcnow(), 0
        await self._save(known_until=since)  # a process that goes on from here begins there, too
        for some in chunks(rows):
            count += await self._store.write(partial(record_gap, rows=some, now=now))
        is_over = now >= at + timedelta(seconds=self._store.grace)
        left = {"doubted_at": None, "known_until": None} if is_over else {}
        found = {"gap_at": now} if count else {}
        await self._save(stopped=None, checked_at=now, timeline=facts.timeline_now, **left, **found)
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
            merchant_id = await self._look_up_own(facts)
            comparison = attrs.evolve(comparison, merchant_id=merchant_id)
        if comparison.merchant_id != facts.merchant_id:
            await self._save(merchant_id=comparison.merchant_id)
        return comparison

    async def _save(self, **values: Any) -> None:
        def save(journal: Journal) -> None:
            lock_row(journal.connection, accounts, {"account": journal.account})
            journal.connection.execute(accounts.update().where(accounts.c.account == journal.account).values(values))

        await self._store.write(save)

    async def recover(
        self, keys: Mapping[str, str], *, note: str, phone_numbers: Mapping[str, str]
    ) -> list[PaymentRecord]:
        """Import unclaimed transactions as payments; see `Payments.recover`."""
        await self.require_bound()
        known = await self._store.read(lambda journal: find_unclaimed(journal, None, *keys.values()))
        rows: dict[str, Transaction] = {}
        if len(keys) > _FEW and known:
            times = [each.created_at for each in known]
            first_day = (min(times) - _DAY).date()
            walk = await self._lister.near(min(times), max(times), first_day, lane=Priority.BULK)
            rows = {row.id: row for row in walk.rows}
        done: list[PaymentRecord] = []
        for key, name in keys.items():
            row = rows.get(name)
            if row is None:
                row = (await self._pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": name})).transaction
            number, now = phone_numbers.get(name) or international(row.phone_number), self._pipeline.utcnow()
            # Under the key's lock no create of this event loop is under way, and the row's lock keeps off others.
            async with self._store.locks.hold(key):
                await self._store.flush(key=key)
                work = partial(_import, key=key, transaction=row, number=number, note=note, now=now)
                record = await self._store.write(work)
            if isinstance(record, StoreError):
                raise record
            done.append(record)
        return done

    # The account and its merchant

    async def require_bound(self, facts: AccountFacts | None = None, *, is_lenient: bool = False) -> None:
        """Raise `StoreError` if the account is not that of this client's host and credentials.

        Credentials that are new to the account have to look up one of its transactions first. If that fails, not
        because there is none, they are not used either, unless `is_lenient`.
        """
        if facts is None:
            facts = await self._store.read(self.look)
        name = self._credentials or await self._name_credentials()
        known = (facts.credentials or "").split()
        if facts.newest is None:
            if (facts.host, known) != (self._host, [name]):
                await self._save(host=self._host, credentials=name, merchant_id=None)
            return
        if facts.host not in {None, self._host}:
            raise self._foreign(f"is of {facts.host}, not of {self._host}")
        if facts.host is not None and name in known:
            return
        try:
            merchant_id = await self._look_up_own(facts)
        except (InvalidCredentials, InvalidToken, TokenExpired):
            return  # the payment is refused, too
        except MobileMoneyError as exc:
            if is_lenient and not isinstance(exc, StoreError):
                return
            raise _wait(f"was never used with these credentials, which could not be checked: {exc}") from exc
        if merchant_id is not None:
            credentials = " ".join([*known, name][-_MOST_CREDENTIALS:])
            await self._save(host=self._host, credentials=credentials, merchant_id=merchant_id or facts.merchant_id)

    async def rebind(self, note: str) -> None:
        """Bind the account to this client's host and credentials."""
        await self._store.database.open()
        name = self._credentials or await self._name_credentials()
        await self._save(host=self._host, credentials=name, merchant_id=None, note=note)

    async def _name_credentials(self) -> str:
        tokens, cipher = self._pipeline.tokens, self._store.cipher
        if isinstance(tokens, NamedSource):
            self._credentials = await tokens.name_credentials()
        else:
            # Issued tokens; those of one source of your own count as the same credentials.
            token = await self._pipeline.token()
            self._credentials = await run_in_thread(lambda: cipher.name_token(token))
        return self._credentials

    async def _look_up_own(self, facts: AccountFacts) -> str | None:
        """Look up the newest transaction that was acknowledged to us.

        Returns:
            Its merchant, empty if it shows none; None if the store knows no such transaction.

        Raises:
            StoreError: The service does not know it, or it is another payment: this is another merchant.
            MobileMoneyError: It could not be looked up.
        """
        record = await self._store.read(_find_own)
        if record is None or record.transaction_id is None:
            return None
        try:
            answer = await self._pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": record.transaction_id})
        except (TransactionNotFound, InvalidTransactionId) as exc:
            raise self._foreign(f"has transaction {record.transaction_id}, which the service does not know") from exc
        found = answer.transaction
        fit = match(query_for(record), found, Spellings(forms=frozenset(NumberForm)))
        is_other = facts.merchant_id and found.merchant_id and found.merchant_id != facts.merchant_id
        if fit is Match.NONE or is_other:
            raise self._foreign(f"has transaction {record.transaction_id}, which is another one at the service")
        return found.merchant_id or ""

    def _foreign(self, reason: str) -> StoreError:
        """Return the error for a host or credentials of another merchant, and report them once."""
        said = f"account {self._store.account!r} of the store {reason}"
        if said not in self._said:
            self._said.add(said)
            emit(self._pipeline.on_event, AccountMismatch(account=self._store.account, reason=reason))
            logger.warning("%s: nothing is sent and nothing is concluded with these credentials", said)
        advice = "use a store or an account of its own, or, if it is the same merchant, mobilemoney payments rebind"
        return StoreError(f"{said}: these may be the credentials of another merchant; {advice}", outcome="not_sent")


def _host(base_url: str) -> str:
    """Return the host of a base URL; one name for all of loopback and the reserved domain of tests."""
    host = urlsplit(base_url).hostname or ""
    is_local = host in {"localhost", "::1"} or host.startswith("127.") or host.endswith((".localhost", ".test"))
    return "localhost" if is_local else host


def _wait(reason: str) -> StoreError:
    return StoreError(f"the store {reason}; nothing was sent", outcome="not_sent")


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
    statement = _NEWEST.where(payments.c.created_at <= at).limit(1)
    return journal.connection.execute(statement, {"of_account": journal.account}).scalar_one_or_none()


def _find_own(journal: Journal) -> PaymentRecord | None:
    """Return the newest payment with a transaction that was acknowledged to us."""
    columns = payments.c
    statement = sa.select(payments).where(
        columns.account == journal.account, columns.transaction_id.is_not(None), columns.is_adopted.is_(False)
    )
    row = journal.connection.execute(statement.order_by(columns.created_at.desc()).limit(1)).one_or_none()
    return None if row is None else to_record(row)


def _import(
    journal: Journal, *, key: str, transaction: Transaction, number: str | None, note: str, now: datetime
) -> PaymentRecord | StoreError:
    """Record an unclaimed transaction as the payment of a key, new or not, and return the payment."""
    record, name = journal.find(key, lock=True), transaction.id
    if record is not None and record.transaction_id == name:
        return record  # imported before
    known = next(iter(find_unclaimed(journal, None, name)), None)
    if known is None or known.state == CLAIMED:
        raise _refused(f"{name!r} is not among the unclaimed transactions")
    if record is not None and record.transaction_id is not None:
        raise _refused(f"payment {key!r} is transaction {record.transaction_id} already")
    if record is None:
        record = _insert(journal, key, attrs.evolve(transaction, type=known.type), number, now)
    elif match(query_for(record), transaction, Spellings()) is Match.NONE:
        raise _refused(f"transaction {name} has another type, phone number or amount than payment {key!r}")
    if record.state in REUSABLE:
        doubted = doubt(journal, record, f"the store has forgotten transaction {name}", at=now)
        if isinstance(doubted, StoreError):
            return doubted
    return adopt(journal, record, transaction, source=Source.PERSON, at=now, note=note)


def _insert(journal: Journal, key: str, transaction: Transaction, number: str | None, now: datetime) -> PaymentRecord:
    """Record a payment with an unknown result, as it was before the store forgot it."""
    if number is None:
        raise _refused(f"transaction {transaction.id} does not show its whole phone number, so give that as well")
    if transaction.type not in set(TransactionType):
        raise _refused(f"transaction {transaction.id} is neither a collection nor a disbursement")
    values = {
        "account": journal.account,
        "key": key,
        "type": str(transaction.type),
        "phone_number": normalise_phone_number(number),
        "amount": normalise_amount(transaction.amount),
        "extra_digest": UNKNOWN_EXTRA,
        "external_id": valid_name(transaction.external_id),
        "state": PaymentState.UNKNOWN,
        "attempt": 1,
        **dict.fromkeys(("created_at", "changed_at", "sent_at", "ended_at"), min(transaction.created_at, now)),
    }
    journal.connection.execute(insert_missing(payments, journal.connection.dialect.name), values)
    record = journal.find(key)
    if record is None:
        raise _refused(f"another payment of the kind of {transaction.id} has an unknown result: find that one first")
    return record


def _refused(reason: str) -> StoreError:
    return StoreError(f"{reason}: nothing was changed", outcome="not_sent")


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
    newest = sa.select(payments.c.type).where(_here).order_by(payments.c.created_at.desc()).limit(_SAMPLE).subquery()
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
