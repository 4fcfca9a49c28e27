"""Transactions of the service's list that no payment of the store claims: paid twice, or by another system.

Every page of the list that any part of a client reads is compared with the store, without a request of its own. A row
that no payment claims is judged `grace` and a time-out after it was first seen, by the store as it is after that page:
a payment on its way is recorded by then. What an open payment may be is left to that payment, as its candidate.

`AccountStore.seen` remembers the rows, so a page of known rows asks nothing of the database:

- True: a payment has acknowledged it, so it also shows which merchant is ours.
- False: it is history, of another merchant, or was found in the list by its payment.
- a `_Sighting`: nothing claims it yet.
- its status: it is recorded as unclaimed.

A process that reads the list only once, like a command, judges the rows that an earlier one has seen: first sightings
of rows that are too old to be on their way are in the database, too.

Critical section: of several processes that record a row at once, the one that has inserted it reports it. A task that
is cancelled meanwhile ends that first, inside a shield. Other tasks may change `seen` at each await, to the same end.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.cancellation import shielded
from mobilemoney_async.contract.comparison import international, is_same_payment, local_digits
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import accounts, insert_missing, payments, sightings, unclaimed
from mobilemoney_async.database.serialization import load_amount
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import TransactionUnclaimed, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.binding import Binding
from mobilemoney_async.payments.duplicates import DuplicateGuard, digest
from mobilemoney_async.payments.final_states import compare_final_states
from mobilemoney_async.payments.journal import Journal, shorten
from mobilemoney_async.payments.matching import (
    KindIndex,
    Match,
    PaymentQuery,
    Skew,
    Spellings,
    is_within,
    match,
    query_for,
    shift,
    time_of,
)
from mobilemoney_async.payments.queries import doubtful, owners
from mobilemoney_async.payments.records import CLAIMED, EXPLAINED, OPEN, PaymentRecord, UnclaimedTransaction
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.values import mask_phone_number, shown_id, valid_name

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds for which a request may live beyond its time-out: as in `creates`.
_MARGIN = timedelta(seconds=5)
_OLDEST, _KEPT = timedelta(days=7), timedelta(days=30)
# Open transactions of an account. Some places are kept for those that may be paid twice.
_MOST, _MOST_STRANGERS = 1_000, 900
# The time between two warnings, and after a failure of the store.
_QUIET = timedelta(minutes=5)
_MOST_NAMED = 3
# A row may be older than the account's first record by as much, if it fits a payment: clocks differ.
_SLACK = timedelta(minutes=1)
# Resolution of the service's timestamps.
_GRAIN = timedelta(seconds=1)
# What the service's clock may be behind, if no payment of ours shows it.
_UNKNOWN_CLOCK = timedelta(days=1)
# Payments around a row whose number proves nothing, and how many of them are compared.
_AROUND, _MOST_COMPARED = timedelta(hours=1), 200
# An open payment may be any row within a day of its send.
_CLOCKS_AGREE = Skew(low=timedelta(0), high=timedelta(0))

_columns = unclaimed.c


@attrs.frozen
class _Sighting:
    """First sighting of a row, and the time from which it is judged, both on our clock."""

    first_at: datetime
    due_at: datetime


class UnclaimedObserver:
    """Observer of the transaction list for one client with a store.

    Args:
        store: Of the account.
        binding: Of the account; another merchant's list is not compared.
        pipeline: Of the client.
    """

    def __init__(self, store: AccountStore, binding: Binding, pipeline: Pipeline) -> None:
        self._store = store
        self._binding = binding
        self._seen = store.seen
        self._utcnow = pipeline.utcnow
        self._wait = timedelta(seconds=store.grace + pipeline.options.timeout) + _MARGIN
        self._on_event = pipeline.on_event
        self._merchant_id: str | None = None
        # How far the service's clock is ahead, as the first state of our own payments shows; None if nothing does yet.
        self._ahead: timedelta | None = None
        self._is_full = False
        self._unreported: list[UnclaimedTransaction] = []
        self._quiet_until: datetime | None = None
        self._paused_until: datetime | None = None

    async def observe(self, rows: Sequence[Transaction]) -> None:
        """Compare the rows of a page with the store, and report those that no payment claims.

        Errors are logged: the page itself is fine. A cancelled call may leave rows to the next page that shows them.
        """
        now = self._utcnow()
        if self._unreported:
            self._warn(now)
        await compare_final_states(self._store, rows, now=now, on_event=self._on_event)
        seen = self._seen.get
        new = [row for row in rows if not isinstance(seen(row.id), bool) and self._is_new(row, now)]
        teaches = self._merchant_id is None and any(row.merchant_id and seen(row.id) is True for row in rows)
        if not (new or teaches) or (self._paused_until is not None and now < self._paused_until):
            return
        try:
            await self._compare(rows, new, now)
        except StoreError as exc:
            self._paused_until = now + _QUIET
            warn_of_store("the list is not compared with the store now", exc)
        except Exception as exc:
            self._paused_until = now + _QUIET
            logger.warning("the list is not compared with the store now: %s", exc, exc_info=True)

    def _is_new(self, row: Transaction, now: datetime) -> bool:
        """Return whether the store has to be asked about a row that is not known to be claimed or settled."""
        known = self._seen.get(row.id)
        if row.created_at is None:
            return False  # the table has no place for it; `audit` reports it
        if isinstance(known, _Sighting):
            return now >= known.due_at
        return known != row.status and row.created_at >= now - _OLDEST and valid_name(row.id) is not None

    async def _compare(self, rows: Sequence[Transaction], new: Sequence[Transaction], now: datetime) -> None:
        own = [row.id for row in rows if self._seen.get(row.id) is True][:_MOST_NAMED]
        ids = [*own, *(row.id for row in new)]
        account, owned, recorded, sighted = await self._store.read(lambda journal: _look(journal, ids))
        if account is None or account.number_key is None:
            return  # before the first payment
        if not self._binding.is_known(account.host, account.credentials):
            await self._binding.require_bound()
        self._learn(rows, owned)
        self._merchant_id = account.merchant_id or await self._learn_merchant(rows)
        changed, due, fresh = self._sort(new, account, now, owned=owned, recorded=recorded, sighted=sighted)
        if fresh:
            await self._store.write(lambda journal: _save_sightings(journal, fresh, now))
        if due or changed:
            await self._judge(account, due, changed, now)

    def _learn(self, rows: Sequence[Transaction], owned: Mapping[str, datetime | None]) -> None:
        """Remember the rows of our payments, which show the service's clock."""
        shown = {row.id: row.created_at for row in rows}
        for transaction_id, sent_at in owned.items():
            self._store.remember(transaction_id, sent_at is not None)
        ahead = (made_at - at for each, at in owned.items() if at is not None and (made_at := shown[each]) is not None)
        self._ahead = min(ahead, default=self._ahead)

    async def _learn_merchant(self, rows: Sequence[Transaction]) -> str | None:
        """Return and record our merchant, if all rows of payments that were acknowledged to us show the same one."""
        own = [row for row in rows if row.merchant_id and self._seen.get(row.id) is True]
        if not own:
            return None
        owned = await self._store.read(lambda journal: owners(journal, [row.id for row in own]), joins="")
        shown = {row.merchant_id for row in own if row.id in owned and _is_row_of(row, owned[row.id])}
        if len(shown) != 1:
            return None
        await self._store.write(lambda journal: journal.learn_merchant(*shown), joins="")
        return shown.pop()

    def _sort(
        self,
        new: Sequence[Transaction],
        account: sa.Row[Any],
        now: datetime,
        *,
        owned: Container[str],
        recorded: Mapping[str, str | None],
        sighted: Mapping[str, datetime],
    ) -> tuple[list[Transaction], dict[str, tuple[Transaction, datetime]], list[str]]:
        """Sort rows by what `_look` has found.

        Returns:
            The recorded rows with a new status; those to judge now, with their first sightings; and those whose first
            sightings are to be recorded.
        """
        changed, due = list[Transaction](), dict[str, tuple[Transaction, datetime]]()
        for row in new:
            if recorded.get(row.id, row.status) not in {None, row.status}:
                changed.append(row)
            elif row.id in recorded:
                self._store.remember(row.id, str(row.status))
            elif row.id not in owned and self._is_due(row, account, now, sighted.get(row.id)):
                due[row.id] = (row, self._seen[row.id].first_at)
        fresh = [row.id for row in new if row.id not in {*due, *sighted} and self._is_lasting(row, now)]
        return changed, due, fresh

    async def _judge(
        self,
        account: sa.Row[Any],
        due: Mapping[str, tuple[Transaction, datetime]],
        changed: Sequence[Transaction],
        now: datetime,
    ) -> None:
        """Record rows with their first sightings, and those with a new status, and report them."""
        began_at = self._began_at(account)

        async def record() -> None:
            made, left, is_full = await self._store.write(
                lambda journal: _record(journal, account, list(due.values()), changed, now, began_at=began_at)
            )
            self._seen.update((row.id, str(row.status)) for row in (*changed, *(row for row, _ in due.values())))
            self._seen.update((row.id, _Sighting(due[row.id][1], now + self._wait)) for row in left)
            self._report(made, now, is_full=is_full)

        await shielded(record)  # once it is recorded, a row is reported by this task or never

    def _is_lasting(self, row: Transaction, now: datetime) -> bool:
        """Return whether a row that nothing claims is too old to be a payment on its way."""
        is_old = time_of(row) < shift(now, (self._ahead or timedelta(0)) - self._wait)
        return is_old and isinstance(self._seen.get(row.id), _Sighting)

    def _is_due(self, row: Transaction, account: sa.Row[Any], now: datetime, sighted_at: datetime | None) -> bool:
        """Remember a row that nothing claims, and return whether it is judged now.

        `sighted_at` is its first sighting in the store, if any.
        """
        is_foreign = row.merchant_id and self._merchant_id and row.merchant_id != self._merchant_id
        made_at = time_of(row)
        began_at = shift(self._began_at(account), -_SLACK)
        if not is_foreign and self._ahead is None and shift(began_at, -_UNKNOWN_CLOCK) <= made_at < began_at:
            return False  # once a payment of ours shows the clock
        if is_foreign or made_at < began_at:
            self._store.remember(row.id, False)
            return False
        known, opened_at = self._seen.get(row.id), self._store.note_opened(now)
        opened_there = shift(opened_at, self._ahead or timedelta(0))
        if not isinstance(known, _Sighting):
            first_at = sighted_at or now
            self._store.remember(row.id, _Sighting(first_at, first_at + self._wait))
            known, opened_at = self._seen[row.id], first_at
            if sighted_at is None:
                return False
        elif made_at >= shift(opened_there, -_GRAIN):
            return now >= known.due_at
        if account.checked_at is None or account.checked_at < opened_at:
            # The store may have forgotten it before it was opened here, which the next new payment finds out.
            self._seen[row.id] = _Sighting(known.first_at, now + self._wait)
            return False
        return now >= known.due_at

    def _began_at(self, account: sa.Row[Any]) -> datetime:
        """Return when the account made its first payment, on the service's clock."""
        first: datetime = account.first_record_at
        return shift(first, self._ahead or timedelta(0))

    def _report(self, made: Sequence[UnclaimedTransaction], now: datetime, *, is_full: bool) -> None:
        for each in made:
            kind, status = shown_id(str(each.type)), shown_id(str(each.status))
            event = TransactionUnclaimed(
                transaction_id=each.transaction_id, type=kind, status=status, fits_key=each.fits_key
            )
            emit(self._on_event, event)
        self._unreported += made
        self._warn(now)
        if is_full and not self._is_full:
            self._is_full = True
            logger.warning(
                "no payment of account %r claims more transactions than are recorded: if other systems of yours pay "
                "too, say so with SQLStore(..., sole_writer=False)",
                self._store.account,
            )

    def _warn(self, now: datetime) -> None:
        """Log the transactions of the last minutes in one line, unless there was one a short time ago."""
        if not self._unreported or (self._quiet_until is not None and now < self._quiet_until):
            return
        some, self._unreported, self._quiet_until = self._unreported, [], now + _QUIET
        logger.warning(
            "no payment of account %r claims %d of the transactions at the service, of which %d may be paid twice: "
            "%s%s; see payments.unclaimed(), or mobilemoney payments unclaimed",
            self._store.account,
            len(some),
            sum(each.fits_key is not None for each in some),
            ", ".join(shown_id(each.transaction_id) for each in some[:_MOST_NAMED]),
            ", …" if len(some) > _MOST_NAMED else "",
        )


def _look(
    journal: Journal, ids: Sequence[str]
) -> tuple[sa.Row[Any] | None, Mapping[str, datetime | None], Mapping[str, str | None], Mapping[str, datetime]]:
    """Look transactions up.

    Returns:
        The account's row; when the payments that claim them were sent, None for one that has not acknowledged its
        transaction; the statuses of those that are recorded as unclaimed, None for one that is no longer open; and the
        first sightings of others.
    """
    run, table = journal.connection.execute, payments.c
    of_payments = sa.select(table.transaction_id, table.is_adopted, table.sent_at)
    of_payments = of_payments.where(table.account == journal.account, table.transaction_id.in_(ids))
    others = sa.select(_columns.transaction_id, _columns.status, _columns.state)
    others = others.where(_columns.account == journal.account, _columns.transaction_id.in_(ids))
    seen = sa.select(sightings.c.transaction_id, sightings.c.first_seen_at)
    seen = seen.where(sightings.c.account == journal.account, sightings.c.transaction_id.in_(ids))
    return (
        run(sa.select(accounts).where(accounts.c.account == journal.account)).one_or_none(),
        {row.transaction_id: None if row.is_adopted else row.sent_at for row in run(of_payments)},
        {row.transaction_id: row.status if row.state == OPEN else None for row in run(others)},
        {row.transaction_id: row.first_seen_at for row in run(seen)},
    )


def _save_sightings(journal: Journal, ids: Sequence[str], now: datetime) -> None:
    """Record the first sightings of transactions that nothing claims, and forget those that no list shows any more."""
    connection = journal.connection
    is_old = sightings.c.first_seen_at < now - _OLDEST - _UNKNOWN_CLOCK
    connection.execute(sightings.delete().where(sightings.c.account == journal.account, is_old))
    for each in ids:
        values = {"account": journal.account, "transaction_id": each, "first_seen_at": now}
        connection.execute(insert_missing(sightings, connection.dialect.name), values)


def _record(
    journal: Journal,
    account: sa.Row[Any],
    suspects: Sequence[tuple[Transaction, datetime]],
    changed: Sequence[Transaction],
    now: datetime,
    *,
    began_at: datetime,
) -> tuple[list[UnclaimedTransaction], list[Transaction], bool]:
    """Record rows with their first sightings as unclaimed, and the new status of others.

    `began_at` is the time of the account's first payment, on the service's clock.

    Returns:
        Those that this call has recorded; those that are left to an open payment; and whether there was no room for
        others.
    """
    connection, here = journal.connection, _columns.account == journal.account
    for row in changed:
        connection.execute(unclaimed.update().where(here, _columns.transaction_id == row.id).values(_status(row)))
    # Those that `dismiss_candidates` has made, without a status, go on stopping nothing.
    is_old = sa.and_(_columns.state == EXPLAINED, _columns.changed_at < now - _KEPT, _columns.status != "")
    connection.execute(unclaimed.delete().where(here, is_old, ~_columns.is_gap))
    is_open = sa.select(sa.func.count()).select_from(unclaimed).where(here, _columns.state == OPEN, ~_columns.is_gap)
    count, is_full = connection.execute(is_open).scalar_one(), False
    searches, candidates = _open_payments(journal, now)
    # A payment may have been identified since the page was compared.
    owned = owners(journal, [row.id for row, _ in suspects])
    made, left = list[UnclaimedTransaction](), list[Transaction]()
    for row, first_at in suspects:
        if row.id in candidates or any(_may_be(row, query) for query in searches.like_row(row)):
            left.append(row)
            continue
        like = _find_attempt(journal, row)
        if row.id in owned or (like is None and time_of(row) < began_at):
            continue
        if count + len(made) >= (_MOST_STRANGERS if like is None else _MOST):
            is_full = True
            continue
        values = {"account": journal.account, "first_seen_at": first_at, "changed_at": now, "state": OPEN}
        values |= _values(row, like, account.number_key) | _status(row)
        if connection.execute(insert_missing(unclaimed, connection.dialect.name), values).one_or_none() is not None:
            made += find_unclaimed(journal, None, row.id)
            journal.publish_unclaimed(row.id, str(row.status), at=now)
    return made, left, is_full


def _open_payments(journal: Journal, now: datetime) -> tuple[KindIndex[PaymentQuery], set[str]]:
    """Return the searches of payments that a row may be, and the transactions that are their candidates."""
    queries, candidates = KindIndex[PaymentQuery](), set[str]()
    for record in doubtful(journal, now):
        candidates.update(record.candidates)
        if record.sent_at is not None:
            query = query_for(record)
            queries.add_query(query, query)
    return queries, candidates


def _may_be(row: Transaction, query: PaymentQuery) -> bool:
    """Return whether a row may be an open payment."""
    start, end = query.reach(_CLOCKS_AGREE)
    return is_within(row, start, end) and match(query, row, Spellings()) is not Match.NONE


def _find_attempt(journal: Journal, row: Transaction) -> tuple[str, PaymentQuery] | None:
    """Return a payment of the same kind in whatever state, by its key: the best fit and then the nearest, or None.

    Where the row's number proves nothing, only payments of the same time are compared.
    """
    table, number, digits = payments.c, international(row.phone_number), local_digits(row.phone_number)
    of_query = (table.key, table.type, table.phone_number, table.sent_at, table.ended_at)
    alike = sa.select(*of_query).where(
        table.account == journal.account, table.amount == _plain(row.amount), table.sent_at.is_not(None)
    )
    made_at = time_of(row)
    days = shift(made_at, -_AROUND), shift(made_at, _AROUND)
    # One that was queued is created long before it is sent; one that was sent again shows its last time only.
    around = alike.where(sa.or_(table.created_at.between(*days), table.sent_at.between(*days)))
    if digits is not None:
        is_odd = sa.func.length(table.phone_number).not_in(range(10, 14))  # `own_local_digits`
        around = around.where(sa.or_(table.phone_number.like(f"%{digits}"), is_odd))
    found: list[tuple[bool, timedelta, str, PaymentQuery]] = []
    for part in (around, alike.where(table.phone_number == number)):
        for each in journal.connection.execute(part.limit(_MOST_COMPARED)):
            query = PaymentQuery(
                type=TransactionType(each.type),
                phone_number=each.phone_number,
                amount=_plain(row.amount),
                sent_at=each.sent_at,
                ended_at=each.ended_at or each.sent_at,
            )
            fit = match(query, row, Spellings())
            if fit is not Match.NONE:
                found.append((fit is Match.POSSIBLE, abs(query.sent_at - made_at), each.key, query))
    best = min(found, default=None, key=lambda each: each[:3])
    return None if best is None else best[2:]


def _values(row: Transaction, like: tuple[str, PaymentQuery] | None, key: str) -> dict[str, Any]:
    """Return the columns of a row: of the kind of the payment that it may be a second time, whatever its spelling."""
    fits_key, query = (None, None) if like is None else like
    number = international(row.phone_number) if query is None else query.phone_number
    return {
        "transaction_id": row.id,
        "type": shorten(str(row.type if query is None else query.type)),
        "amount": _plain(row.amount),
        "created_at": row.created_at,
        "shown_number": shorten(mask_phone_number(row.phone_number)),
        "number_digest": None if number is None else digest(key, number),
        "fits_key": fits_key,
    }


def _status(row: Transaction) -> dict[str, Any]:
    # One that ended without success stops nothing.
    stops = {"number_digest": None} if row.is_final and not row.succeeded else {}
    return {"status": shorten(str(row.status)), **stops}


def _is_row_of(row: Transaction, record: PaymentRecord) -> bool:
    """Return whether nothing that a row shows contradicts the payment that owns it."""
    return is_same_payment(row, type=record.type, phone_number=record.phone_number, amount=_plain(record.amount))


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def record_gap(journal: Journal, rows: Iterable[Transaction], now: datetime) -> int:
    """Record transactions of a time that the store has forgotten, and return how many are new."""
    connection, guard, count = journal.connection, journal.guard or DuplicateGuard(journal.account), 0
    key = guard.number_key(connection, now)
    for row in rows:
        values = {"account": journal.account, "transaction_id": row.id, "first_seen_at": now, "changed_at": now}
        values |= _values(row, None, key) | _status(row) | {"is_gap": True, "state": OPEN}
        if connection.execute(insert_missing(unclaimed, connection.dialect.name), values).one_or_none() is not None:
            count += 1
            continue
        # It was taken for another system's, since the list was read before the store was compared.
        here = (_columns.account == journal.account, _columns.transaction_id == row.id)
        is_new = (_columns.state == OPEN, ~_columns.is_gap)
        count += connection.execute(unclaimed.update().where(*here, *is_new).values(is_gap=True)).rowcount
    return count


def find_unclaimed(
    journal: Journal, state: str | None, *ids: str, limit: int | None = None
) -> list[UnclaimedTransaction]:
    """Return transactions that no payment claimed when they were judged, first seen first; or those of some ids."""
    statement = sa.select(unclaimed).where(_columns.account == journal.account).limit(limit)
    if state is not None:
        statement = statement.where(_columns.state == state)
    if ids:
        statement = statement.where(_columns.transaction_id.in_(ids))
    rows = journal.connection.execute(statement.order_by(_columns.first_seen_at, _columns.transaction_id))
    return [
        UnclaimedTransaction(
            transaction_id=row.transaction_id,
            type=TransactionType(row.type),
            amount=load_amount(row.amount),
            phone_number=row.shown_number,
            status=TransactionStatus(row.status),
            created_at=row.created_at,
            first_seen_at=row.first_seen_at,
            fits_key=row.fits_key,
            state=row.state,
            note=row.note,
            is_gap=row.is_gap,
        )
        for row in rows
    ]


def explain_unclaimed(journal: Journal, transaction_id: str, note: str, at: datetime) -> UnclaimedTransaction:
    """Record the explanation of a transaction, which then stops no payment, and return it as it is now.

    Raises:
        StoreError: It is not among the unclaimed ones, or a payment claims it.
    """
    here = (_columns.account == journal.account, _columns.transaction_id == transaction_id, _columns.state != CLAIMED)
    # One that was no more than a candidate of one payment is now explained for all of them.
    fits_key = sa.case((_columns.status != "", _columns.fits_key))
    values = {"state": EXPLAINED, "note": shorten(note), "changed_at": at, "fits_key": fits_key}
    statement = unclaimed.update().where(*here).values(values)
    if not journal.connection.execute(statement).rowcount:
        raise StoreError(f"{transaction_id!r} is not among the unclaimed transactions", outcome="not_sent")
    return find_unclaimed(journal, None, transaction_id)[0]
