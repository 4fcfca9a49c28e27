"""Unmatched transactions: rows of the service's list that no payment of the store owns, each once, whoever read it.

One ends in two ways: a payment comes to own it, or someone explains that very transaction. A word about a payment
changes none. Everything else is a question that is asked of the table:

- the *surplus* of a kind: what is left when each open attempt of that kind has taken one (`surplus`);
- the *unclaimed* ones: the surplus, once nothing of ours can be on its way that it may be (`find_unclaimed`);
- what stops a payment that begins (`duplicates`).

A kind is type, phone number and amount. Of the number the table has a keyed digest and the digits that may be shown.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED, international, local_digits, same_number
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import (
    IS_UNIDENTIFIED,
    WAS_REFUSED_SOFTLY,
    accounts,
    insert_missing,
    payments,
    unmatched,
)
from mobilemoney_async.database.serialization import load_amount, shorten
from mobilemoney_async.payments.matching import Match, PaymentQuery, Spellings, match, shift
from mobilemoney_async.payments.records import CLAIMED, EXPLAINED, OPEN, PaymentState, UnclaimedTransaction
from mobilemoney_async.values import mask_phone_number

FAILED: frozenset[str] = frozenset({"FAILED", "TIMEOUT", "INSUFFICIENT_FUNDS"})
"""Final states in which no money has moved: such a transaction stops nothing."""

# Transaction ids in one statement.
_IDS_AT_ONCE = 500
# For how long an explained or owned transaction is kept with what was shown of it.
_KEPT = timedelta(days=30)
# How far from the send of an open payment a row may be that it has made.
_REACH = timedelta(days=1, minutes=2)
# Payments around a row whose number proves nothing, and how many of them are compared.
_AROUND, _MOST_COMPARED = timedelta(hours=1), 200
# Digits of a masked number that rule out others.
_TELLING = 4
_FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)

_columns = unmatched.c
# As text: SQLAlchemy leaves out the names of tables in what SQLite's INSERT returns.
IS_OWNED: sa.ColumnElement[bool] = sa.literal_column(
    "(EXISTS (SELECT 1 FROM mobilemoney_payment_records AS owner WHERE owner.account = mobilemoney_unmatched.account "
    "AND owner.transaction_id = mobilemoney_unmatched.transaction_id))",
    sa.Boolean,
)
"""A payment owns the transaction."""

IS_OPEN: sa.ColumnElement[bool] = sa.and_(_columns.explained_at.is_(None), ~IS_OWNED)
"""No payment owns the transaction, and nobody has explained it."""


MAY_HAVE_PAID: sa.ColumnElement[bool] = sa.and_(*(_columns.status != each for each in sorted(FAILED)))
"""The transaction has not ended without money moving."""


@attrs.frozen
class Line:
    """Row of the table.

    Attributes:
        shown: What users see of it.
        number_digest: The keyed digest of its number, or None if the list does not show the whole number.
        due_at: The time from which it is unclaimed, if it is surplus.
        told_at: When it was reported, or None.
    """

    shown: UnclaimedTransaction
    number_digest: str | None = attrs.field(repr=False)
    due_at: datetime
    told_at: datetime | None

    @property
    def id(self) -> str:
        """Id of the transaction."""
        return self.shown.transaction_id

    def is_unclaimed(self, now: datetime) -> bool:
        """Return whether it is unclaimed, if it is surplus."""
        return self.shown.is_gap or self.told_at is not None or self.due_at <= now

    def is_of(self, kind: TransactionType, number: str, amount: Decimal, key: str) -> bool:
        """Return whether it is of a kind, as far as it was shown; `key` is the account's key of the digests."""
        shown = self.shown
        if shown.amount != amount or (shown.type != kind and shown.type in set(TransactionType)):
            return False
        if self.number_digest is not None:
            return self.number_digest == digest(key, number)
        shows_little = sum(map(str.isdigit, shown.phone_number)) < _TELLING
        return shows_little or same_number(shown.phone_number, number) is not None


@attrs.frozen
class OpenAttempt:
    """Latest attempt of a payment that may have made a transaction whose id the store does not know."""

    key: str
    type: TransactionType
    phone_number: str = attrs.field(repr=False)
    amount: Decimal
    sent_at: datetime
    candidates: tuple[str, ...] = ()


def surplus(lines: Sequence[Line], attempts: Iterable[OpenAttempt], key: str) -> list[Line]:
    """Return the open lines that are left when each open attempt has taken one of its kind: the nearest in time. Pure.

    Args:
        lines: The open lines.
        attempts: The open attempts.
        key: The account's key of the digests.
    """
    pairs: list[tuple[timedelta, str, str]] = []
    for attempt in attempts:
        for line in lines:
            at = line.shown.created_at
            distance = timedelta(0) if at is None else abs(at - attempt.sent_at)
            is_alike = line.is_of(attempt.type, attempt.phone_number, attempt.amount, key)
            # Its own acknowledgement may have named one of another kind.
            if distance <= _REACH and (is_alike or line.id in attempt.candidates):
                pairs.append((distance, line.id, attempt.key))
    taken: set[str] = set()
    served: set[str] = set()
    for _, name, key_of in sorted(pairs):
        if name not in taken and key_of not in served:
            taken.add(name)
            served.add(key_of)
    return [line for line in lines if line.id not in taken]


def digest(key: str, phone_number: str) -> str:
    """Return the digest of a number, ``+`` and digits, under the key of its account."""
    return hmac.digest(key.encode(), phone_number.encode(), "sha256").hex()


def number_key(connection: sa.Connection, account: str) -> str:
    """Return the account's key of the digests, empty before its first payment."""
    statement = sa.select(accounts.c.number_key).where(accounts.c.account == account)
    return connection.execute(statement).scalar_one_or_none() or ""


def add_line(
    connection: sa.Connection,
    account: str,
    row: Transaction,
    key: str,
    *,
    first_at: datetime,
    due_at: datetime,
    now: datetime,
    like: tuple[str, PaymentQuery] | None,
    is_lost: bool = False,
    went_backwards: bool = False,
    is_foreign: bool = False,
) -> bool:
    """Add a row of the list that no payment owns, unless it is there; return whether it was added.

    `like` is a payment of the same kind, by its key: a row in an odd spelling gets the kind of that one.
    """
    fits_key, query = (None, None) if like is None else like
    number = international(row.phone_number) if query is None else query.phone_number
    values = {
        "account": account,
        "transaction_id": row.id,
        "type": shorten(str(row.type if query is None else query.type)),
        "amount": plain(row.amount),
        "created_at": row.created_at,
        "shown_number": shorten(mask_phone_number(row.phone_number)),
        "number_digest": None if number is None else digest(key, number),
        "status": shorten(str(row.status)),
        "fits_key": fits_key,
        "first_seen_at": first_at,
        "due_at": due_at,
        "changed_at": now,
        "is_lost": is_lost,
        "went_backwards": went_backwards,
        "is_foreign": is_foreign,
    }
    return connection.execute(insert_missing(unmatched, connection.dialect.name), values).one_or_none() is not None


def find_attempt(connection: sa.Connection, account: str, row: Transaction) -> tuple[str, PaymentQuery] | None:
    """Return a payment of a row's kind in whatever state, by its key: the best fit and then the nearest, or None.

    Where the row's number proves nothing, only payments of the same time are compared.
    """
    table, number, digits = payments.c, international(row.phone_number), local_digits(row.phone_number)
    of_query = (table.key, table.type, table.phone_number, table.sent_at, table.ended_at)
    alike = sa.select(*of_query).where(
        table.account == account, table.amount == plain(row.amount), table.sent_at.is_not(None)
    )
    made_at = row.created_at or _FIRST_MOMENT
    days = shift(made_at, -_AROUND), shift(made_at, _AROUND)
    # One that was queued is created long before it is sent; one that was sent again shows its last time only.
    around = alike.where(sa.or_(table.created_at.between(*days), table.sent_at.between(*days)))
    if digits is not None:
        is_odd = sa.func.length(table.phone_number).not_in(range(10, 14))  # `own_local_digits`
        around = around.where(sa.or_(table.phone_number.like(f"%{digits}"), is_odd))
    found: list[tuple[bool, timedelta, str, PaymentQuery]] = []
    around = around.where(table.phone_number.not_like(f"{ERASED}%"))  # which would fit every number
    erased = None if number is None else f"{ERASED}{digest(number_key(connection, account), number)}"
    for part in (around, alike.where(table.phone_number.in_([number, erased]))):
        for each in connection.execute(part.limit(_MOST_COMPARED)):
            query = PaymentQuery(
                type=TransactionType(each.type),
                phone_number=number if number is not None and each.phone_number == erased else each.phone_number,
                amount=plain(row.amount),
                sent_at=each.sent_at,
                ended_at=each.ended_at or each.sent_at,
            )
            fit = match(query, row, Spellings())
            if fit is not Match.NONE:
                found.append((fit is Match.POSSIBLE, abs(query.sent_at - made_at), each.key, query))
    best = min(found, default=None, key=lambda each: each[:3])
    return None if best is None else best[2:]


def find_lines(connection: sa.Connection, account: str, *where: sa.ColumnElement[bool]) -> list[Line]:
    """Return lines of an account, first seen first."""
    statement = sa.select(unmatched, IS_OWNED.label("is_owned")).where(_columns.account == account, *where)
    rows = connection.execute(statement.order_by(_columns.first_seen_at, _columns.transaction_id))
    return [_read(row) for row in rows]


def open_attempts(connection: sa.Connection, account: str) -> list[OpenAttempt]:
    """Return the open attempts of an account: on their way, unknown, or refused softly until a list has not shown them.

    Of an absent payment someone, or two listings, have said that it made nothing.
    """
    return _open_attempts(connection, payments.c.account == account).get(account, [])


def count_unclaimed(connection: sa.Connection, now: datetime) -> Mapping[str, int]:
    """Return the number of open transactions of `find_unclaimed` by account, for all accounts in a few statements."""
    lines, attempts = dict[str, list[Line]](), _open_attempts(connection, sa.true())
    statement = sa.select(unmatched, IS_OWNED.label("is_owned")).where(IS_OPEN)
    for row in connection.execute(statement):
        lines.setdefault(row.account, []).append(_read(row))
    of_keys = sa.select(accounts.c.account, accounts.c.number_key)
    keys = {row.account: row.number_key for row in connection.execute(of_keys)}
    left = {each: surplus(lines[each], attempts.get(each, []), keys.get(each) or "") for each in lines}
    return {each: sum(line.is_unclaimed(now) for line in left[each]) for each in left}


def _open_attempts(connection: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, list[OpenAttempt]]:
    table, attempts = payments.c, dict[str, list[OpenAttempt]]()
    may_exist = sa.and_(IS_UNIDENTIFIED, table.state != PaymentState.ABSENT)
    was_refused = sa.and_(WAS_REFUSED_SOFTLY, table.walks == 0)
    named = (table.account, table.key, table.type, table.phone_number, table.amount, table.sent_at, table.candidates)
    statements = [sa.select(*named).where(which, each) for each in (may_exist, was_refused)]
    for row in [row for statement in statements for row in connection.execute(statement)]:
        if row.sent_at is not None:
            attempt = OpenAttempt(
                row.key,
                TransactionType(row.type),
                row.phone_number,
                load_amount(row.amount),
                row.sent_at,
                tuple(json.loads(row.candidates or "[]")),
            )
            attempts.setdefault(row.account, []).append(attempt)
    return attempts


def find_unclaimed(
    connection: sa.Connection, account: str, state: str | None, now: datetime
) -> list[UnclaimedTransaction]:
    """Return the transactions that no payment claims, first seen first: open ones, or those of another state, or all.

    Open is the surplus, once nothing of ours can be on its way that it may be, and at once what the store has
    forgotten. Of those that a payment has claimed, only what was unclaimed before.
    """
    lines = find_lines(connection, account, sa.or_(_columns.explained_at.is_(None), _columns.shown_number != ""))
    open_ones = [line for line in lines if line.shown.state == OPEN]
    left = surplus(open_ones, open_attempts(connection, account), number_key(connection, account)) if open_ones else []
    unclaimed = {line.id for line in left if line.is_unclaimed(now)}
    return [
        line.shown
        for line in lines
        if state in {None, line.shown.state}
        and (line.id in unclaimed or line.shown.state == EXPLAINED or (line.shown.state == CLAIMED and line.told_at))
    ]


def explained(connection: sa.Connection, account: str, transaction_ids: Sequence[str]) -> frozenset[str]:
    """Return those of some transactions that someone has explained."""
    return _named(connection, account, transaction_ids, _columns.explained_at.is_not(None))


def lost_ids(connection: sa.Connection, account: str, transaction_ids: Sequence[str]) -> frozenset[str]:
    """Return those of some transactions that are known to be of a time which the store has lost."""
    return _named(connection, account, transaction_ids, _columns.is_lost)


def _named(
    connection: sa.Connection, account: str, transaction_ids: Sequence[str], which: sa.ColumnElement[bool]
) -> frozenset[str]:
    statement = sa.select(_columns.transaction_id).where(_columns.account == account, which)
    found: set[str] = set()
    for start in range(0, len(transaction_ids), _IDS_AT_ONCE):
        some = _columns.transaction_id.in_(transaction_ids[start : start + _IDS_AT_ONCE])
        found.update(connection.execute(statement.where(some)).scalars())
    return frozenset(found)


def explain(
    connection: sa.Connection,
    account: str,
    transaction_id: str,
    *,
    note: str,
    by: str | None,
    at: datetime,
    owned: bool = False,
) -> UnclaimedTransaction | None:
    """Record what someone says about a transaction, also one that no list has shown; None if a payment owns it.

    With `owned`, also of one that a payment owns.
    """
    said = {"explained_at": at, "note": shorten(note), "explained_by": by and shorten(by), "changed_at": at}
    nothing = dict.fromkeys(("type", "shown_number", "status"), "") | {"amount": "0"}
    new = {"account": account, "transaction_id": transaction_id, **nothing, **said, "first_seen_at": at, "due_at": at}
    connection.execute(insert_missing(unmatched, connection.dialect.name), new)
    here = (_columns.account == account, _columns.transaction_id == transaction_id)
    may_explain = sa.or_(~IS_OWNED, sa.literal(owned))
    if not connection.execute(unmatched.update().where(*here, may_explain).values(said)).rowcount:
        return None
    return find_lines(connection, account, *here)[0].shown


def thin(connection: sa.Connection, account: str, now: datetime) -> None:
    """Delete owned lines after a month; of explained ones keep the id and the word, so that none comes back."""
    is_old = (_columns.account == account, _columns.changed_at < now - _KEPT)
    connection.execute(unmatched.delete().where(*is_old, _columns.explained_at.is_(None), IS_OWNED))
    of_explained = (_columns.explained_at.is_not(None), _columns.shown_number != "")
    connection.execute(unmatched.update().where(*is_old, *of_explained).values(shown_number="", number_digest=None))


def status_of(row: Transaction) -> Mapping[str, Any]:
    """Return the columns that hold a row's state."""
    return {"status": shorten(str(row.status))}


def _read(row: sa.Row[Any]) -> Line:
    state = CLAIMED if row.is_owned else OPEN if row.explained_at is None else EXPLAINED
    shown = UnclaimedTransaction(
        transaction_id=row.transaction_id,
        type=TransactionType(row.type),
        amount=load_amount(row.amount),
        phone_number=row.shown_number,
        status=TransactionStatus(row.status),
        created_at=row.created_at,
        first_seen_at=row.first_seen_at,
        fits_key=row.fits_key,
        state=state,
        note=row.note,
        is_gap=row.is_lost,
    )
    return Line(shown, row.number_digest, row.due_at, row.told_at)


def plain(amount: Decimal) -> str:
    """Return an amount as the tables have it."""
    return f"{amount.normalize():f}"
