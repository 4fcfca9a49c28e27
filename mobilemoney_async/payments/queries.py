"""Queries for many payments of one account, inside one transaction. Each uses an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.migrations import OLD_PAYMENTS
from mobilemoney_async.database.schema import VERSION, history, logins, payments
from mobilemoney_async.payments.journal import IS_UNIDENTIFIED, Journal, to_record
from mobilemoney_async.payments.records import HistoryEntry, PaymentRecord, PaymentState

# Transaction ids in one statement.
_IDS_AT_ONCE = 500

_columns = payments.c
# The columns with a payment's names. Each has an index, two of them one with a condition.
_NAMES: Mapping[str, Sequence[Any]] = {
    "transaction_id": (),
    "key": (),
    **{name: (sa.text(f"length({name}) <= 200"),) for name in ("reference", "external_id")},
}


def chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    """Return transaction ids in lists that are short enough for one statement."""
    everything = list(ids)
    for start in range(0, len(everything), _IDS_AT_ONCE):
        yield everything[start : start + _IDS_AT_ONCE]


def find_with_history(journal: Journal, key: str) -> PaymentRecord | None:
    """Return the record of a key with its whole history."""
    row = journal.row(key)
    if row is None:
        return None
    entries = journal.connection.execute(
        sa.select(history.c.at, history.c.what, history.c.source, history.c.detail)
        .where(history.c.account == row.account, history.c.key == row.key)
        .order_by(history.c.number)
    )
    return attrs.evolve(to_record(row), history=tuple(HistoryEntry(**entry) for entry in entries.mappings()))


def pending_ids(journal: Journal) -> list[str]:
    """Return the transactions of payments that exist and are not final, oldest first."""
    statement = (
        sa.select(_columns.transaction_id)
        .where(_columns.account == journal.account, _columns.state == PaymentState.ACKNOWLEDGED)
        .order_by(_columns.created_at, _columns.key)
    )
    return list(journal.connection.execute(statement).scalars())


def owners(journal: Journal, transaction_ids: Sequence[str]) -> Mapping[str, PaymentRecord]:
    """Return the payments that own these transactions, by transaction id."""
    found: dict[str, PaymentRecord] = {}
    for some in chunks(transaction_ids):
        statement = sa.select(payments).where(_columns.account == journal.account, _columns.transaction_id.in_(some))
        found |= {row.transaction_id: to_record(row) for row in journal.connection.execute(statement)}
    return found


def select(
    journal: Journal,
    *,
    states: Iterable[PaymentState] | None = None,
    type: TransactionType | None = None,
    since: datetime | None = None,
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
    columns: Any = _columns
    if states is not None:
        wanted = sorted({str(state) for state in states})
        if not wanted:
            return []
        # One part for each state, all in the order of one index: with IN, SQLite may scan a million to find fifty.
        statement = sa.union_all(*(statement.where(_columns.state == state) for state in wanted))
        columns = statement.selected_columns
    order = (columns.created_at, columns.key)
    statement = statement.order_by(*(each.desc() if newest_first else each for each in order)).limit(limit)
    return [to_record(row) for row in journal.connection.execute(statement)]


def find_named(
    journal: Journal, names: Sequence[str], *, states: Iterable[PaymentState] | None, most: int
) -> list[PaymentRecord]:
    """Return payments with one of some names, oldest first: `most` at most for each kind of name."""
    where = [_columns.account == journal.account]
    if states is not None:
        # No bare column: for a hundred names, SQLite would rather scan the index on states, however long that is.
        where.append((_columns.state + "").in_(sorted({str(state) for state in states})))
    parts = [
        sa.select(payments).where(*where, _columns[kind].in_(names), *short).limit(most).subquery().select()
        for kind, short in _NAMES.items()
    ]
    found = {row.key: row for row in journal.connection.execute(sa.union_all(*parts))}
    return [to_record(row) for row in sorted(found.values(), key=lambda row: (row.created_at, row.key))]


@attrs.frozen(kw_only=True)
class StoreHealth:
    """Health of a store.

    Attributes:
        version: Of its tables; None if there are none yet.
        known_version: That of the tables that this release makes and reads.
        cannot_write: Why nothing can be written, or None if it can.
        unresolved: Payments of the account with an unknown result, except for requests still on their way.
        clear_tokens: Login tokens of the account that are stored in clear text.
    """

    version: int | None
    known_version: int = VERSION
    cannot_write: str | None = None
    unresolved: int = 0
    clear_tokens: int = 0


def check_health(connection: sa.Connection, account: str, now: datetime) -> StoreHealth:
    """Return the health of a store, also of one without tables, or with those of another release."""
    if not sa.inspect(connection).has_table("mobilemoney_schema"):
        return StoreHealth(version=None)
    version = int(connection.execute(sa.text("SELECT version FROM mobilemoney_schema")).scalar_one())

    def count(table: Any, condition: sa.ColumnElement[bool]) -> int:
        # Every version up to this release's has the columns of the conditions.
        where = (table.c.account == account) & condition
        statement = sa.select(sa.func.count()).select_from(table).where(where)
        return 0 if version > VERSION else int(connection.execute(statement).scalar_one())

    table = payments if version > 2 else OLD_PAYMENTS
    on_their_way = (table.c.state == PaymentState.SENDING) & (table.c.stale_at > now)
    unresolved = count(table, IS_UNIDENTIFIED & ~on_their_way)
    clear_tokens = count(logins, logins.c.token.like("clear:%"))
    cannot_write = None
    try:
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = version"))
    except sa.exc.SQLAlchemyError as exc:
        cannot_write = type(getattr(exc, "orig", None) or exc).__name__
    return StoreHealth(version=version, cannot_write=cannot_write, unresolved=unresolved, clear_tokens=clear_tokens)
