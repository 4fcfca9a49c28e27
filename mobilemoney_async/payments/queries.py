"""Queries for many payments of one account, inside one transaction. Each uses an index."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeVar

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.encryption import CLEAR, ENCRYPTED
from mobilemoney_async.database.schema import (
    accounts,
    find_version,
    history,
    logins,
    payments,
    require_known,
    unclaimed,
)
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.evidence import Walk
from mobilemoney_async.payments.journal import IS_UNIDENTIFIED, UNKNOWN_EXTRA, WAS_REFUSED_SOFTLY, Journal, to_record
from mobilemoney_async.payments.matching import shift
from mobilemoney_async.payments.reasons import PaymentCause
from mobilemoney_async.payments.records import EXPLAINED, UNIDENTIFIED, HistoryEntry, PaymentRecord, PaymentState
from mobilemoney_async.values import is_id

T = TypeVar("T")

# Transaction ids in one statement.
_IDS_AT_ONCE = 500
# For how long a payment is looked for that was refused without a code of the contract, or confirmed absent; and one of
# the former for which a create has asked.
_SEARCHED, _REMEMBERED = timedelta(days=1), timedelta(days=30)
# Queued payments that are due so soon are work already: a dispatcher is not worth stopping for a minute.
_SOON = timedelta(minutes=1)
# Payments on each side that a listing is compared with, and how far away they may be.
_NEAREST, _COMPARED = 5, timedelta(days=7)
# Payments that a listing does not show: any of them forbids absence. At the edges of its days the service's time zone
# decides.
_MOST_HIDDEN, _ZONES = 100, timedelta(hours=14)

_columns = payments.c
# Payments without a known transaction that the list may show, each with an index.
_SEARCHABLE: Sequence[sa.ColumnElement[bool] | sa.TextClause] = (
    *(_columns.state == state for state in (PaymentState.UNKNOWN, PaymentState.ABSENT, PaymentState.RELEASED)),
    WAS_REFUSED_SOFTLY,
)
# Payments whose transaction is that of a request whose time is known. An imported one shows only the service's clock.
_COMPARABLE = (_columns.transaction_id.is_not(None), _columns.attempt == 1, _columns.extra_digest != UNKNOWN_EXTRA)
# Payments whose transaction is final, and contradicts them; see `Journal.record_seen`.
IS_CONTRADICTED: sa.ColumnElement[bool] = sa.and_(
    _columns.state == PaymentState.ACKNOWLEDGED, _columns.cause.is_not(None)
)
# The columns with a payment's names. Each has an index, two of them one with a condition.
_NAMES: Mapping[str, Sequence[Any]] = {
    "transaction_id": (),
    "key": (),
    **{name: (sa.text(f"length({name}) <= 200"),) for name in ("reference", "external_id")},
}


def chunks(things: Iterable[T], size: int = _IDS_AT_ONCE) -> Iterator[list[T]]:
    """Return things, such as transaction ids, in lists that are short enough for one statement or transaction."""
    everything = list(things)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


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
    """Return the payments that own these transactions, by transaction id. What is no id has no owner."""
    found: dict[str, PaymentRecord] = {}
    for some in chunks(filter(is_id, transaction_ids)):
        statement = sa.select(payments).where(_columns.account == journal.account, _columns.transaction_id.in_(some))
        found |= {row.transaction_id: to_record(row) for row in journal.connection.execute(statement)}
    return found


def find_all(journal: Journal, keys: Iterable[str]) -> list[PaymentRecord]:
    """Return the payments of some keys, oldest first."""
    found: list[PaymentRecord] = []
    for some in chunks(keys):
        statement = sa.select(payments).where(_columns.account == journal.account, _columns.key.in_(some))
        found += map(to_record, journal.connection.execute(statement))
    return sorted(found, key=lambda record: (record.created_at, record.key))


def due(journal: Journal, now: datetime, *, key: str | None, grace: float) -> list[PaymentRecord]:
    """Return the payments to look for in the service's list: those whose time has come, and that of `key`.

    Unknown ones; absent ones of the last week; those refused without a code of the contract in the last day, once after
    the grace period; those confirmed absent in the last day, once; and either of these two that a create has asked for
    within a day, without a result.
    """
    here, wanted = _columns.account == journal.account, _is_due(now, grace)
    if key is not None:
        wanted.append(sa.and_(_columns.key == key, sa.or_(*_SEARCHABLE)))
    rows = (row for each in wanted for row in journal.connection.execute(sa.select(payments).where(here, each)))
    found = {row.key: to_record(row) for row in rows}
    found |= {record.key: record for record in _comparable_now(journal, now, grace)}
    return sorted(found.values(), key=lambda record: (record.created_at, record.key))


def _is_due(now: datetime, grace: float) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of `due`, of which each has an index."""
    a_day_ago, settled_at = now - _SEARCHED, now - timedelta(seconds=grace)
    is_due = sa.or_(_columns.next_look_at.is_(None), _columns.next_look_at <= now)
    is_asked_for = _columns.next_look_at.between(a_day_ago, now)
    is_new_refusal = sa.and_(_columns.ended_at.between(a_day_ago, settled_at), _columns.walks == 0, is_due)
    is_new_release = sa.and_(_columns.changed_at >= a_day_ago, _columns.looked_at.is_(None), is_due)
    return [
        sa.and_(_columns.state == PaymentState.UNKNOWN, is_due),
        sa.and_(_columns.state == PaymentState.ABSENT, _columns.ended_at >= now - _COMPARED, is_due),
        sa.and_(WAS_REFUSED_SOFTLY, _columns.ended_at >= now - _REMEMBERED, sa.or_(is_new_refusal, is_asked_for)),
        sa.and_(_columns.state == PaymentState.RELEASED, sa.or_(is_new_release, is_asked_for)),
    ]


class Work(enum.IntFlag):
    """Work that is due in an account: payments to follow, to look for in the list, and to send from the queue."""

    FOLLOW = 1
    RECONCILE = 2
    DISPATCH = 4


def accounts_with_work(connection: sa.Connection, now: datetime, grace: float) -> dict[str, Work]:
    """Return the accounts of a database in which work is due, and which.

    Queued, unidentified and softly refused payments have small indexes of their own. Of the others, each account costs
    a look at its place in an index, however many payments it has.
    """
    is_queued, soon = sa.text("state = 'QUEUED'"), now + _SOON
    is_lost = sa.and_(_columns.state == PaymentState.SENDING, _columns.stale_at <= now)
    *due_ones, is_released = _is_due(now, grace)
    unidentified, refused = (sa.and_(IS_UNIDENTIFIED, sa.or_(is_lost, *due_ones[:2])), due_ones[2])
    at_once = sa.or_(_columns.not_before.is_(None), _columns.not_before <= soon, _columns.not_after <= soon)
    is_pending = sa.and_(_columns.state == PaymentState.ACKNOWLEDGED, _columns.cause.is_(None))
    wanted = [(Work.RECONCILE, unidentified), (Work.RECONCILE, refused), (Work.DISPATCH, sa.and_(is_queued, at_once))]
    selects = [(work, sa.select(_columns.account).where(each).distinct()) for work, each in wanted]
    for work, each in ((Work.FOLLOW, is_pending), (Work.RECONCILE, is_released)):
        # A scalar, which no database turns into a join with a million payments.
        first = sa.select(_columns.state).where(_columns.account == accounts.c.account, each).limit(1)
        selects.append((work, sa.select(accounts.c.account).where(first.scalar_subquery().is_not(None))))
    found: dict[str, Work] = {}
    for work, statement in selects:
        for account in connection.execute(statement).scalars():
            found[account] = found.get(account, Work(0)) | work
    return found


def _comparable_now(journal: Journal, now: datetime, grace: float) -> list[PaymentRecord]:
    """Return the unknown payments of the last week that only lacked a later payment to compare with, and have one."""
    here = _columns.account == journal.account
    lacks = _columns.cause.in_((PaymentCause.NO_LATER, PaymentCause.IN_GRACE))
    waiting = (_columns.state == PaymentState.UNKNOWN, lacks, _columns.candidates.is_(None))
    rows = journal.connection.execute(
        sa.select(payments).where(here, *waiting, _columns.looked_at >= now - _COMPARED)
    ).all()
    if not rows:
        return []
    # Of payments after the list's grace period: those that the latest look could not be compared with.
    settles = timedelta(seconds=grace)
    since = min(row.sent_at for row in rows)
    known = (*_COMPARABLE, _columns.ended_at <= now - settles)
    found: list[PaymentRecord] = []
    for kind in {row.type for row in rows}:
        latest = journal.connection.execute(
            sa.select(_columns.sent_at, _columns.ended_at)
            .where(here, *known, _columns.type == kind, _columns.sent_at > since)
            .order_by(_columns.sent_at.desc())
            .limit(1)
        ).one_or_none()
        found += [
            to_record(row)
            for row in rows
            if latest is not None
            and row.type == kind
            and row.ended_at <= latest.sent_at <= row.ended_at + _COMPARED
            and latest.ended_at + settles > row.looked_at
        ]
    return found


def searchable(journal: Journal, first: date, last: date) -> list[PaymentRecord]:
    """Return the payments of some days that a full listing of them may show, though no payment owns a transaction."""
    start, end = datetime.combine(first, time(), UTC), shift(datetime.combine(last, time(), UTC), _SEARCHED)
    here, is_of_them = _columns.account == journal.account, _columns.ended_at.between(start, end)
    statements = (sa.select(payments).where(here, each, is_of_them) for each in _SEARCHABLE)
    return [to_record(row) for statement in statements for row in journal.connection.execute(statement)]


def doubtful(journal: Journal, first: date) -> list[PaymentRecord]:
    """Return the payments that a transaction without an owner may be, in a listing from a day on.

    Those with an unknown result, on their way now included, and those refused softly in the days of the listing.
    """
    here = _columns.account == journal.account
    is_recent = _columns.ended_at >= shift(datetime.combine(first, time(), UTC), -_SEARCHED)
    wanted = (IS_UNIDENTIFIED, sa.and_(WAS_REFUSED_SOFTLY, is_recent))
    rows = (row for each in wanted for row in journal.connection.execute(sa.select(payments).where(here, each)))
    return [to_record(row) for row in rows]


def neighbours(journal: Journal, record: PaymentRecord) -> list[PaymentRecord]:
    """Return the nearest payments of a payment's type with a known transaction, a few before it and a few after it."""
    assert record.sent_at is not None
    at, ended_at = record.sent_at, record.ended_at or record.sent_at
    sent_at = _columns.sent_at
    sides = (
        (sent_at.between(at - _COMPARED, at), sent_at.desc()),
        (sent_at.between(ended_at, ended_at + _COMPARED), sent_at),
    )
    known = (_columns.account == journal.account, _columns.type == str(record.type), *_COMPARABLE)
    nearest = (sa.select(payments).where(*known, where).order_by(order).limit(_NEAREST) for where, order in sides)
    return [to_record(row) for statement in nearest for row in journal.connection.execute(statement)]


def hidden(journal: Journal, walk: Walk, grace: float) -> list[PaymentRecord]:
    """Return payments with a known transaction that a full listing should show and does not, a hundred at most."""
    if not walk.is_complete:
        return []
    first, last = (datetime.combine(day, time(), UTC) for day in (walk.first_day, walk.last_day or date.max))
    known = (
        _columns.account == journal.account,
        _columns.sent_at.between(shift(first, _ZONES), shift(last, -_ZONES)),
        *_COMPARABLE,
        _columns.ended_at <= walk.began_at - timedelta(seconds=grace),
    )
    statement = sa.select(_columns.key, _columns.transaction_id).where(*known)
    shown = {row.id for row in walk.rows} | {row.id for row in walk.unreadable}
    keys = [row.key for row in journal.connection.execute(statement) if row.transaction_id not in shown]
    return find_all(journal, keys[:_MOST_HIDDEN])


def merchant_of(journal: Journal, rows: Iterable[Transaction], owned: Mapping[str, PaymentRecord]) -> str | None:
    """Return the account's merchant at the service, if it is known or shown by a row of an acknowledged payment."""
    statement = sa.select(accounts.c.merchant_id).where(accounts.c.account == journal.account)
    bound = journal.connection.execute(statement).scalar_one_or_none()
    own = (row.merchant_id for row in rows if row.id in owned and not owned[row.id].is_adopted)
    return bound or next(filter(None, own), None)


def explained_ids(journal: Journal, transaction_ids: Sequence[str]) -> Mapping[str, str | None]:
    """Return those of some transactions that someone has explained, with the key of the payment that each is not.

    The key is None if it is no payment of this account at all.
    """
    columns, found = unclaimed.c, dict[str, str | None]()
    for some in chunks(transaction_ids):
        statement = sa.select(columns.transaction_id, columns.status, columns.fits_key).where(
            columns.account == journal.account, columns.transaction_id.in_(some), columns.state == EXPLAINED
        )
        rows = journal.connection.execute(statement)
        found |= {row.transaction_id: None if row.status else row.fits_key for row in rows}
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


def unresolved(journal: Journal) -> list[PaymentRecord]:
    """Return the payments with an unknown result, and those whose final state contradicts their record."""
    contradicted = sa.select(payments).where(_columns.account == journal.account, IS_CONTRADICTED)
    found = [*select(journal, states=UNIDENTIFIED), *map(to_record, journal.connection.execute(contradicted))]
    return sorted(found, key=lambda record: (record.created_at, record.key))


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
class StoreHealth(Data):
    """Health of a store.

    Attributes:
        version: Of its tables; None if there are none yet.
        refusal: Why this release does not use it, and what to do; None if it does.
        cannot_write: Why nothing can be written, or None if it can.
        unresolved: Payments of the account with an unknown result, except for requests still on their way, and those
            whose final state contradicts their record.
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

    def count(table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
        where = (table.c.account == account) & condition
        return connection.execute(sa.select(sa.func.count()).select_from(table).where(where)).scalar_one()

    on_their_way = (_columns.state == PaymentState.SENDING) & (_columns.stale_at > now)
    unresolved = count(payments, IS_UNIDENTIFIED & ~on_their_way) + count(payments, IS_CONTRADICTED)
    clear_tokens, encrypted_tokens = (count(logins, logins.c.token.startswith(kind)) for kind in (CLEAR, ENCRYPTED))
    cannot_write = None
    try:
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = version"))
    except sa.exc.SQLAlchemyError as exc:
        cannot_write = type(getattr(exc, "orig", None) or exc).__name__
    return StoreHealth(
        version=version,
        cannot_write=cannot_write,
        unresolved=unresolved,
        clear_tokens=clear_tokens,
        encrypted_tokens=encrypted_tokens,
    )
