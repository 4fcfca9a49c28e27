"""Unmatched transactions: rows of the service's list that no payment of the store owns, each once, by whichever reader.

One ends in two ways: a payment comes to own it, or someone explains that very transaction. A word about a payment
changes none. Everything else is a question that is asked of the table:

- the *surplus* of a kind: the rest when each open attempt of that kind has taken one (`surplus`);
- the *unclaimed* ones: the surplus, once nothing of ours can be on its way that it may be (`surplus.find_unclaimed`);
- the stops for a payment that begins (`duplicates`).

A kind is type, phone number and amount. Of the number the table has a keyed digest and the digits that may be shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.contract.comparison import ERASED, international, may_be_number, same_number
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import erasures, unmatched
from mobilemoney_async.database.serialization import load_amount, shorten
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import select_among
from mobilemoney_async.payments.records.record import (
    CLAIMED,
    EXPLAINED,
    OPEN,
    PaymentRecord,
    PaymentRequest,
    UnclaimedTransaction,
)
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.text import mask_phone_number

FAILED: frozenset[str] = frozenset({"FAILED", "TIMEOUT", "INSUFFICIENT_FUNDS"})
"""Final states in which no money has moved: such a transaction stops nothing."""

# For how long an explained or owned transaction is kept with its masked number.
_KEPT = timedelta(days=30)
# Digits of a number that a list may show in part to be kept as it is: no more than our own mask leaves, of one with its
# country code and of a shorter one.
_MOST_SHOWN, _MOST_SHOWN_LOCALLY = 8, 5

_columns = unmatched.c
# As text: SQLAlchemy leaves out the names of tables in what SQLite's INSERT returns. For the || see `queries.same`.
IS_OWNED: sa.ColumnElement[bool] = sa.literal_column(
    "(EXISTS (SELECT 1 FROM mobilemoney_payment_records AS owner WHERE owner.account = "
    "mobilemoney_unmatched.account || '' AND owner.transaction_id = mobilemoney_unmatched.transaction_id))",
    sa.Boolean,
)
"""A payment owns the transaction."""

IS_OPEN: sa.ColumnElement[bool] = sa.and_(_columns.explained_at.is_(None), ~IS_OWNED)
"""No payment owns the transaction, and nobody has explained it."""

LINES: sa.Select[Any] = sa.select(unmatched, IS_OWNED.label("is_owned"))
"""Lines with their state, for `to_line`."""


MAY_HAVE_PAID: sa.ColumnElement[bool] = sa.and_(*(_columns.status != each for each in sorted(FAILED)))
"""The transaction has not ended without money moving."""


@attrs.frozen
class Line:
    """Row of the table.

    Attributes:
        shown: The user's view of it.
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

    def is_of(self, payment: PaymentRecord | PaymentRequest, of_number: str) -> bool:
        """Return whether it is of a payment's kind, as far as it was shown; `of_number` is the digest of its number."""
        shown = self.shown
        is_other = shown.type != payment.type and shown.type in set(TransactionType)
        if is_other or shown.amount != Decimal(payment.amount):
            return False
        if self.number_digest is not None:
            return self.number_digest == of_number
        return may_be_number(shown.phone_number, payment.phone_number)

    def shows_number_of(self, payment: PaymentRequest, of_number: str) -> bool:
        """Return whether it is of a payment's kind, and shows enough of its number to stop nobody else."""
        is_shown = same_number(self.shown.phone_number, payment.phone_number) is not None
        return self.is_of(payment, of_number) and (self.number_digest is not None or is_shown)


def kept_forms(journal: Journal, numbers: Iterable[str]) -> dict[str, str]:
    """Return the number for each form in which records may keep it: as it is, and erased if some of the account are."""
    found = {number: number for number in numbers}
    if journal.rows(erasures, limit=1):
        key = journal.number_key()
        found |= {f"{ERASED}{digest(key, number)}": number for number in list(found)}
    return found


def add_line(
    journal: Journal,
    row: Transaction,
    key: str,
    *,
    first_at: datetime,
    due_at: datetime,
    now: datetime,
    like: PaymentRecord | None = None,
    flags: Mapping[str, bool],
) -> bool:
    """Add a row of the list that no payment owns, unless it is there; return whether it was added.

    A row in an odd spelling gets the type and number of the payment that it is `like`. `flags` are columns.
    """
    of_type, number = (like.type, like.phone_number) if like else (row.type, international(row.phone_number))
    return journal.insert(
        unmatched,
        transaction_id=row.id,
        **shown_values(row) | {"type": shorten(str(of_type))},
        number_digest=None if number is None else digest(key, number),
        fits_key=like and like.key,
        first_seen_at=first_at,
        due_at=due_at,
        changed_at=now,
        **flags,
    )


def shown_values(row: Transaction) -> dict[str, Any]:
    """Return the columns for what a row of the list shows, but for the digest of its number."""
    return {
        "type": shorten(str(row.type)),
        "amount": plain(row.amount),
        "created_at": row.created_at,
        "shown_number": shorten(_shown_number(row.phone_number)),
        "status": shorten(str(row.status)),
    }


def _shown_number(text: str) -> str:
    """Return a number masked, unless a list shows few of its digits: a second mask would leave too few to tell."""
    is_part = international(text) is None and text.isprintable() and re.fullmatch(r"[0-9xX\W_]+", text) is not None
    most = _MOST_SHOWN if text.startswith(("+", "00", "255")) else _MOST_SHOWN_LOCALLY
    return text if is_part and 0 < sum(map(str.isdigit, text)) <= most else mask_phone_number(text)


def find_lines(journal: Journal, *where: sa.ColumnElement[bool]) -> list[Line]:
    """Return lines of an account, first seen first."""
    statement = LINES.where(_columns.account == journal.account, *where)
    rows = journal.execute(statement.order_by(_columns.first_seen_at, _columns.transaction_id))
    return [to_line(row) for row in rows]


def lines_of(journal: Journal, transaction_ids: Iterable[str]) -> dict[str, Line]:
    """Return the lines of some transactions, by their ids."""
    rows = select_among(journal, LINES, _columns.transaction_id, transaction_ids)
    return {row.transaction_id: to_line(row) for row in rows}


def explained(journal: Journal, transaction_ids: Sequence[str], *where: sa.ColumnElement[bool]) -> frozenset[str]:
    """Return those of some transactions that someone has explained, and that meet some conditions."""
    has_word = sa.select(_columns.transaction_id).where(_columns.explained_at.is_not(None), *where)
    rows = select_among(journal, has_word, _columns.transaction_id, transaction_ids)
    return frozenset(row.transaction_id for row in rows)


def explain(
    journal: Journal, transaction_id: str, *, note: str, by: str | None, at: datetime, status: str | None = None
) -> UnclaimedTransaction | None:
    """Record an operator's word about a transaction, also one that no list has shown; None if a payment owns it.

    With a `status`, also of one that a payment owns, in that state.
    """
    said = {"explained_at": at, "note": shorten(note), "explained_by": by and shorten(by), "changed_at": at}
    nothing = dict.fromkeys(("type", "shown_number", "status"), "") | {"amount": "0"}
    journal.insert(unmatched, transaction_id=transaction_id, **nothing, **said, first_seen_at=at, due_at=at)
    said |= {} if status is None else {"status": status}
    may_explain = ~IS_OWNED if status is None else sa.true()
    if not journal.change_rows(unmatched, _columns.transaction_id == transaction_id, may_explain, **said):
        return None
    return lines_of(journal, [transaction_id])[transaction_id].shown


def end_word(journal: Journal, transaction_id: str) -> None:
    """Let an operator's word about a transaction count no longer, since a later one says which payment it is."""
    journal.change_rows(unmatched, _columns.transaction_id == transaction_id, explained_at=None)


def thin(journal: Journal, now: datetime) -> None:
    """Delete owned lines after a month; of explained ones keep the id and the word, so that none comes back.

    And the digest: by that an erasure of the number finds the word.
    """
    is_old = _columns.changed_at < now - _KEPT
    journal.delete_rows(unmatched, is_old, _columns.explained_at.is_(None), IS_OWNED)
    of_explained = (_columns.explained_at.is_not(None), _columns.shown_number != "")
    journal.change_rows(unmatched, is_old, *of_explained, shown_number="")


def to_line(row: sa.Row[Any]) -> Line:
    """Return the line that a row of `LINES` holds."""
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
        explained_by=row.explained_by,
        is_gap=row.is_lost,
    )
    return Line(shown, row.number_digest, row.due_at, row.told_at)


@exactly
def plain(amount: Decimal) -> str:
    """Return an amount as the tables have it."""
    return f"{amount.normalize():f}"
