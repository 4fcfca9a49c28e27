"""Queries for many payments of one account, inside one transaction. Each uses an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED, international
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.encryption import CLEAR, ENCRYPTED
from mobilemoney_async.database.group import is_locked
from mobilemoney_async.database.schema import (
    IS_CONTRADICTED,
    IS_QUEUED,
    find_version,
    history,
    logins,
    payments,
    require_known,
)
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.reasons import KEEPS
from mobilemoney_async.payments.records.record import UNIDENTIFIED, HistoryEntry, PaymentRecord, PaymentState
from mobilemoney_async.payments.records.rows import digest, to_record
from mobilemoney_async.values import is_id

T = TypeVar("T")

# Transaction ids in one statement.
_IDS_AT_ONCE = 500

_columns = payments.c
IS_PENDING: sa.ColumnElement[bool] = sa.and_(_columns.state == PaymentState.ACKNOWLEDGED, _columns.cause.is_(None))
"""The payment exists and is not final, and no final state contradicts it."""

IS_KEPT: sa.ColumnElement[bool] = sa.and_(IS_QUEUED, _columns.cause.in_(sorted(KEEPS)))
"""The payment needs someone to leave the queue: `record.PaymentRecord.is_kept`."""

# The columns with a payment's names. Each has an index, two of them one with a condition.
_NAMES: Mapping[str, Sequence[Any]] = {
    "transaction_id": (),
    "key": (),
    **{name: (sa.text(f"length({name}) <= 200"),) for name in ("reference", "external_id")},
}


def same(account: Any) -> Any:
    """Return the account of a row, for the join with another table by that and a name.

    As a bare column, PostgreSQL knows that both are the same one, and joins by the name alone. Of an account that its
    statistics do not know, it expects one row, and reads all of them again for each of the other table.
    """
    return account + ""


def chunks(things: Iterable[T], size: int = _IDS_AT_ONCE) -> Iterator[list[T]]:
    """Return things, such as transaction ids, in lists that are short enough for one statement or transaction."""
    everything = list(things)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


def select_among(journal: Journal, statement: sa.Select[Any], column: Any, names: Iterable[Any]) -> Iterator[Any]:
    """Yield the account's rows of a statement in which a column has one of some values, however many those are."""
    for some in chunks(names):
        yield from journal.execute(statement.where(column.table.c.account == journal.account, column.in_(some)))


def find_with_history(journal: Journal, key: str) -> PaymentRecord | None:
    """Return the record of a key with its whole history."""
    row = journal.row(key)
    if row is None:
        return None
    entries = journal.rows(history, history.c.key == key, order_by=[history.c.number])
    told = (HistoryEntry(at=each.at, what=each.what, source=each.source, detail=each.detail) for each in entries)
    return attrs.evolve(to_record(row), history=tuple(told))


def pending_ids(journal: Journal) -> list[str]:
    """Return the transactions of payments that exist and are not final, oldest first."""
    statement = (
        sa.select(_columns.transaction_id)
        .where(_columns.account == journal.account, _columns.state == PaymentState.ACKNOWLEDGED)
        .order_by(_columns.created_at, _columns.key)
    )
    return list(journal.execute(statement).scalars())


def owners(journal: Journal, transaction_ids: Sequence[str]) -> Mapping[str, PaymentRecord]:
    """Return the payments that own these transactions, by transaction id. A text that is no id has no owner."""
    rows = select_among(journal, sa.select(payments), _columns.transaction_id, filter(is_id, transaction_ids))
    return {row.transaction_id: to_record(row) for row in rows}


def owners_of_rows(journal: Journal, rows: Sequence[Transaction]) -> Mapping[str, PaymentRecord]:
    """Return the payments that own these rows as `owners` does; an erased number is as its row shows it, if it agrees.

    So such a payment is compared as any other. These records are for that alone: never written or shown.
    """
    owned = dict(owners(journal, [row.id for row in rows]))
    if any(each.phone_number.startswith(ERASED) for each in owned.values()):
        key = journal.number_key()
        for row in rows:
            record, number = owned.get(row.id), international(row.phone_number)
            if record is not None and number and record.phone_number == f"{ERASED}{digest(key, number)}":
                owned[row.id] = attrs.evolve(record, phone_number=number)
    return owned


def find_all(journal: Journal, keys: Iterable[str]) -> list[PaymentRecord]:
    """Return the payments of some keys, oldest first."""
    found = map(to_record, select_among(journal, sa.select(payments), _columns.key, keys))
    return sorted(found, key=lambda record: (record.created_at, record.key))


def merchant_of(journal: Journal, rows: Iterable[Transaction], owned: Mapping[str, PaymentRecord]) -> str | None:
    """Return the account's merchant at the service, if it is known or shown by a row of an acknowledged payment."""
    account = journal.find_account()
    own = (row.merchant_id for row in rows if row.id in owned and not owned[row.id].is_adopted)
    return (account and account.merchant_id) or next(filter(None, own), None)


def select(
    journal: Journal,
    *,
    states: Iterable[PaymentState] | None = None,
    type: TransactionType | None = None,
    since: datetime | None = None,
    phone_number: str | None = None,
    limit: int | None = None,
    newest_first: bool = False,
) -> list[PaymentRecord]:
    """Return payments, oldest first or newest first."""
    where = [_columns.account == journal.account]
    if type is not None:
        where.append(_columns.type == str(type))
    if since is not None:
        where.append(_columns.created_at >= since)
    statement: Any = sa.select(payments).where(*where)
    order: Any = (_columns.created_at, _columns.key)
    wanted = None if states is None else sorted(set(map(PaymentState, states)))
    if wanted == []:
        return []
    if phone_number is not None:
        # No bare columns: SQLite would scan an index on states or times, though a number has few payments.
        statement = statement.where(_columns.phone_number == phone_number)
        statement = statement if wanted is None else statement.where((_columns.state + "").in_(wanted))
        order = (sa.func.coalesce(_columns.created_at, _columns.changed_at), _columns.key)
    elif wanted is not None:
        # One part for each state, all in the order of one index: with IN, SQLite may scan a million to find fifty.
        statement = sa.union_all(*(statement.where(_columns.state == state) for state in wanted))
        order = (statement.selected_columns.created_at, statement.selected_columns.key)
    statement = statement.order_by(*(each.desc() if newest_first else each for each in order)).limit(limit)
    return [to_record(row) for row in journal.execute(statement)]


def needing_someone(now: datetime) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions of a payment that needs someone, one for each state, since those have an index.

    It is unidentified, not on its way (see `record.is_stale`); or, as the last two, kept in the queue or contradicted.
    """
    was_lost = sa.and_(_columns.state == PaymentState.SENDING, _columns.stale_at <= now)
    unidentified = (_columns.state == PaymentState.UNKNOWN, _columns.state == PaymentState.ABSENT, was_lost)
    return *unidentified, IS_KEPT, sa.and_(IS_CONTRADICTED)


def unresolved(journal: Journal) -> list[PaymentRecord]:
    """Return the payments with an unknown result, contradicted ones, and those of the queue that need someone."""
    found = [*select(journal, states=UNIDENTIFIED), *journal.records(IS_CONTRADICTED), *journal.records(IS_KEPT)]
    return sorted(found, key=lambda record: (record.created_at, record.key))


def find_named(
    journal: Journal, names: Sequence[str], *, states: Iterable[PaymentState] | None, most: int
) -> list[PaymentRecord]:
    """Return payments with one of some names, oldest first: the newest, `most` at most for each kind of name."""
    where = [_columns.account == journal.account]
    if states is not None:
        # No bare column: for a hundred names, SQLite would rather scan the index on states, however long that is.
        where.append((_columns.state + "").in_(sorted({str(state) for state in states})))
    # No bare column here either: a planner would rather read the index on times, from its end, for a name of nobody.
    newest = sa.func.coalesce(_columns.created_at, _columns.created_at).desc(), _columns.key.desc()
    here = sa.select(payments).where(*where).order_by(*newest).limit(most)
    parts = [here.where(_columns[kind].in_(names), *short).subquery().select() for kind, short in _NAMES.items()]
    found = {row.key: row for row in journal.execute(sa.union_all(*parts))}
    return [to_record(row) for row in sorted(found.values(), key=lambda row: (row.created_at, row.key))]


@attrs.frozen(kw_only=True)
class StoreHealth(Data):
    """Health of a store.

    Attributes:
        version: Of its tables; None if there are none yet.
        refusal: Why this release does not use it, and the next step; None if it does.
        cannot_write: Why nothing can be written, or None if it can.
        unresolved: Payments of the account with an unknown result, except for requests still on their way, and those
            whose final state contradicts their record, or that the queue keeps until someone decides.
        clear_tokens: Login tokens of the account that are stored in clear text.
        encrypted_tokens: Those that are encrypted.
    """

    version: int | None
    refusal: str | None = None
    cannot_write: str | None = None
    unresolved: int = 0
    clear_tokens: int = 0
    encrypted_tokens: int = 0


def check_health(connection: sa.Connection, account: str, now: datetime) -> StoreHealth:
    """Return the health of a store, also of one without tables, or with those of another release."""
    version = find_version(connection)
    if version is None:
        return StoreHealth(version=None)
    try:
        require_known(version)
    except StoreError as exc:
        return StoreHealth(version=version, refusal=str(exc))

    count = Journal(connection, account).count
    unresolved = sum(count(payments, each) for each in needing_someone(now))
    clear_tokens, encrypted_tokens = (count(logins, logins.c.token.startswith(kind)) for kind in (CLEAR, ENCRYPTED))
    cannot_write = None
    try:
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = version"))
    except sa.exc.SQLAlchemyError as exc:
        # Where another process writes right now, it can be written.
        cannot_write = None if is_locked(exc) else type(getattr(exc, "orig", None) or exc).__name__
    return StoreHealth(
        version=version,
        cannot_write=cannot_write,
        unresolved=unresolved,
        clear_tokens=clear_tokens,
        encrypted_tokens=encrypted_tokens,
    )
