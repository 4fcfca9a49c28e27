"""Limits of disbursements over all processes of a store.

Critical section: the sums are read, and the payment begun or the batch queued, in one transaction that keeps off all
others of the account which are limited: SQLite by its write lock, PostgreSQL by an advisory lock. That lock is the
first one that such a transaction takes. Where there are no limits, nothing here runs.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.configuration.disbursement_limits import A_DAY, DisbursementLimits, require_within
from mobilemoney_async.contract.comparison import may_be_number
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import Row, payments, unmatched
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks
from mobilemoney_async.payments.records.record import UNIDENTIFIED, PaymentRequest, PaymentState
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.payments.records.unmatched import IS_OPEN, MAY_HAVE_PAID, kept_forms

_LOCK = 0x6C696D73  # "lims"

_columns = payments.c

_ALL: sa.ColumnElement[bool] = sa.true()
_MAY_HAVE_MOVED = sa.or_(
    _columns.state.in_(UNIDENTIFIED | {PaymentState.ACKNOWLEDGED}),
    _columns.state.in_([PaymentState.REFUSED, PaymentState.QUEUED]) & _columns.is_certain.is_(False),
    (_columns.state == PaymentState.FINAL)
    & ((_columns.status == str(TransactionStatus.SUCCESS)) | _columns.cause.is_not(None)),
)
# As text: exact on PostgreSQL, and on SQLite up to 63 bits.
_SUM = sa.cast(sa.func.sum(sa.cast(_columns.amount, sa.Numeric)), sa.Text)


def lock_limits(journal: Journal) -> None:
    """Keep all other limited transactions of the account off until the commit."""
    if journal.dialect == "postgresql":
        account = zlib.crc32(journal.account.encode()) - 2**31
        journal.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK, account)))


@exactly
def require_payment_within(
    journal: Journal, limits: DisbursementLimits, request: PaymentRequest, *, at: datetime, is_of_queue: bool
) -> None:
    """Raise `LimitExceeded` if a payment that is about to begin exceeds a limit.

    Queued payments do not count for one that a dispatcher sends: a full queue would stop itself. For any other one
    those count that were there before it: else two that are queued, and then made at once, would stop each other.
    """
    lock_limits(journal)
    # Not those that were made after it; it may not exist.
    row = journal.row(request.key)
    queue = sa.false() if is_of_queue else _ALL if row is None else _columns.created_at <= row.created_at
    others = _select(journal, at, queue=queue).where(_columns.key != request.key)
    forms = kept_forms(journal, [request.phone_number])
    own = others.where(_columns.phone_number.in_(forms))
    spent = [
        Decimal(journal.execute(each.with_only_columns(_SUM)).scalar_one() or 0) if is_asked else Decimal(0)
        for each, is_asked in ((own, limits.per_recipient_a_day is not None), (others, limits.per_day is not None))
    ]
    for numbers, amount in _find_lost(journal, [request.phone_number], at):
        spent = [spent[0] + (amount if numbers else 0), spent[1] + amount]
    require_within(limits, Decimal(request.amount), to_recipient=spent[0], in_all=spent[1])


@exactly
def require_batch_within(
    journal: Journal, limits: DisbursementLimits, id: str, lines: Iterable[Row], *, at: datetime
) -> None:
    """Raise `LimitExceeded` if the lines of a batch that are about to be queued exceed a limit; see `lock_limits`."""
    by_number = _select(journal, at).with_only_columns(_columns.phone_number, _SUM.label("amount"))
    new, spent = list(lines), defaultdict[str | None, Decimal](Decimal)  # None: other numbers
    forms = kept_forms(journal, {line.phone_number for line in new})
    for row in journal.execute(by_number.group_by(_columns.phone_number)):
        spent[forms.get(row.phone_number)] += Decimal(row.amount)
    for some in chunks(line.key for line in new):
        # An earlier attempt of theirs, such as one that was refused without a code, is not paid beside the next one.
        own = _select(journal, at).where(_columns.key.in_(some))
        for row in journal.execute(own.with_only_columns(_columns.phone_number, _columns.amount)):
            spent[forms.get(row.phone_number)] -= Decimal(row.amount)
    in_all = sum(spent.values(), Decimal(0))
    for numbers, amount in _find_lost(journal, set(forms.values()), at):
        in_all += amount
        for number in numbers:
            spent[number] += amount
    for line in new:
        # Line by line, so that the error names the first one that is too much.
        amount, said = Decimal(line.amount), f"line {line.line} of batch {id!r}"
        require_within(limits, amount, to_recipient=spent[line.phone_number], in_all=in_all, what=said)
        spent[line.phone_number] += amount
        in_all += amount


def _find_lost(journal: Journal, numbers: Collection[str], at: datetime) -> Iterator[tuple[Sequence[str], Decimal]]:
    """Yield the amount of each disbursement that the store has forgotten, and which of some numbers it may be to."""
    table, of_number = unmatched.c, dict[str, str]()
    is_young = table.created_at.is_(None) | (table.created_at > at - A_DAY)
    which = (table.type == str(TransactionType.DISBURSEMENT), table.is_lost, IS_OPEN, MAY_HAVE_PAID, is_young)
    for row in journal.rows(unmatched, *which):
        of_number = of_number or {digest(journal.number_key(), each): each for each in numbers}
        if row.number_digest is None:  # masked
            fitting = [each for each in numbers if may_be_number(row.shown_number, each)]
        else:
            fitting = [of_number[each] for each in (row.number_digest,) if each in of_number]
        yield fitting, Decimal(row.amount)


def _select(journal: Journal, at: datetime, *, queue: sa.ColumnElement[bool] = _ALL) -> sa.Select[Any]:
    """Return the disbursements that count now, and of those in the queue some."""
    is_soon = _columns.not_before.is_(None) | (_columns.not_before <= at + A_DAY)
    is_queued = (_columns.state == PaymentState.QUEUED) & is_soon & queue
    counts = ((_columns.sent_at > at - A_DAY) & _MAY_HAVE_MOVED) | is_queued
    is_disbursement = _columns.type == str(TransactionType.DISBURSEMENT)
    return journal.select(payments).where(is_disbursement, counts)
