"""Review of a batch before its approval: lines that may be paid twice, are large, new, or odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import attrs
import sqlalchemy as sa

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import IS_QUEUED, Row, batches, payments
from mobilemoney_async.database.serialization import load_amount
from mobilemoney_async.errors import LimitExceeded
from mobilemoney_async.payments.creates.disbursement_limits import require_batch_within
from mobilemoney_async.payments.payouts.batch import PayoutBatch
from mobilemoney_async.payments.payouts.queries import (
    PROPOSED,
    can_queue,
    find_chains,
    find_lines,
    find_obstacles,
    find_payments,
    find_row,
    line_state,
    obstacle,
    released_step,
    to_batch,
    to_line,
)
from mobilemoney_async.payments.payouts.rows import warnings_of
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import select_among
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentState
from mobilemoney_async.payments.records.rows import ERASED_EXTRA, UNKNOWN_EXTRA
from mobilemoney_async.payments.records.unmatched import kept_forms

_RECENT = timedelta(days=30)
# Largest lines that are shown, and earlier batches among which the last one of a name is looked for.
_LARGEST, _MOST_EARLIER = 5, 1_000


@attrs.frozen
class Queue:
    """What a dispatcher of the account sends: payouts of one batch, and other payments, with their totals in TZS."""

    payouts: int
    total: Decimal
    others: int
    others_total: Decimal


def find_queue(journal: Journal, id: str | None) -> Queue:
    """Return what is queued in an account, of a batch if any and beside it; a proposed one as if it were approved."""
    lines, used = ([], {}) if id is None else (find_lines(journal, id), find_payments(journal, id))
    own = {row.key for chain in find_chains(journal, used).values() for row in chain}
    queued = journal.execute(journal.select(payments, payments.c.key, payments.c.amount).where(IS_QUEUED)).all()
    payouts = [each for each in queued if each.key in own]
    others = [each for each in queued if each.key not in own]
    if id is not None and find_row(journal, id).state == PROPOSED:
        payouts += lines_to_queue(lines, used)
    return Queue(len(payouts), _total(payouts), len(others), _total(others))


@exactly
def _total(rows: Iterable[Row]) -> Decimal:
    return sum((load_amount(each.amount) for each in rows), Decimal(0))


def find_batch(journal: Journal, id: str, now: datetime, limits: DisbursementLimits | None = None) -> PayoutBatch:
    """Return a batch; a proposed one with its review, and with the limit that its approval would exceed now."""
    row = find_row(journal, id)
    if row.state != PROPOSED:
        return to_batch(journal, row)
    lines, used = find_lines(journal, id), find_payments(journal, id)
    largest = sorted(lines, key=lambda each: (-int(each.amount), each.line))[:_LARGEST]
    return attrs.evolve(
        to_batch(journal, row),
        duplicates=duplicates_of(journal, lines, used, now),
        warnings=warnings_of(lines),
        repeats=_repeats(journal, row, used),
        left_out=_left_out(journal, row, lines),
        largest=tuple(to_line(each, (), row, None) for each in largest),
        new_recipients=_new_recipients(journal, lines),
        last_total=_last_total(journal, row),
        exceeds=None if limits is None else _exceeds(journal, limits, id, lines_to_queue(lines, used), now),
    )


def _exceeds(journal: Journal, limits: DisbursementLimits, id: str, lines: Iterable[Row], now: datetime) -> str | None:
    try:
        require_batch_within(journal, limits, id, lines, at=now)
    except LimitExceeded as exc:
        return str(exc)
    return None


def lines_to_queue(lines: Iterable[Row], used: Mapping[str, Row]) -> list[Row]:
    """Return the lines that an approval queues: those without a payment, or with one that may be queued again."""
    return [line for line in lines if line.key not in used or can_queue(used[line.key])]


def _new_recipients(journal: Journal, lines: Sequence[Row]) -> tuple[int, ...]:
    """Return the lines with numbers that no disbursement of the store was paid to."""
    columns = payments.c
    forms = kept_forms(journal, {each.phone_number for each in lines})
    was_paid = (columns.type == str(TransactionType.DISBURSEMENT), columns.status == str(TransactionStatus.SUCCESS))
    statement = sa.select(columns.phone_number).where(*was_paid).distinct()
    paid = {forms[row.phone_number] for row in select_among(journal, statement, columns.phone_number, forms)}
    return tuple(each.line for each in lines if each.phone_number not in paid)


def _last_total(journal: Journal, batch: Row) -> Decimal | None:
    """Return the total of the batch of the same name, but for its digits, that was approved last; None for a retry."""
    columns, name = batches.c, _without_digits(batch.name)
    approved = (columns.approved_at.is_not(None), columns.id != batch.id, columns.parent.is_(None))
    rows = journal.rows(batches, *approved, order_by=[columns.approved_at.desc()], limit=_MOST_EARLIER)
    alike = (row.total for row in rows if batch.parent is None and _without_digits(row.name) == name)
    return next((load_amount(total) for total in alike), None)


def _without_digits(name: str) -> str:
    return "".join(each for each in name.casefold() if not each.isdigit())


def _left_out(journal: Journal, batch: Row, own: Sequence[Row]) -> Mapping[int, str]:
    """Return why other lines of a retry's parent that are not paid are not in it, by line."""
    if batch.parent is None:
        return {}
    numbers, lines = {each.line for each in own}, find_lines(journal, batch.parent)
    chains = find_chains(journal, find_payments(journal, batch.parent))
    found: dict[int, str] = {}
    prefix = own[0].key.rpartition("-")[0]
    obstacles = find_obstacles(journal, chains, {each.key: f"{prefix}-{each.line}" for each in lines})
    for line in lines:
        payments_of = chains.get(line.key, ())
        is_paid = any(row.status == TransactionStatus.SUCCESS and row.cause is None for row in payments_of)
        if line.line not in numbers and not is_paid:
            unshown = "its transaction was not shown as failed when it was looked up"
            found[line.line] = obstacles.get(line.key, unshown)
    return found


def _repeats(journal: Journal, batch: Row, used: Mapping[str, Row]) -> str | None:
    """Return a sentence if lines of a proposed batch have payments already, as of a file that was proposed twice."""
    kept = [row for row in used.values() if not can_queue(row)]
    if not kept:
        alike = (batches.c.digest == batch.digest, batches.c.id != batch.id, batches.c.state == PROPOSED)
        for other in journal.rows(batches, *alike, limit=1):
            return f"batch {other.id} has the same content: each line is paid once, whichever of them is approved"
        return None
    states = Counter(map(line_state, kept))
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    said = f"{len(kept):,} of {batch.lines:,} lines keep their payments ({counts}), and are not paid again"
    failed = Counter(row.batch for row in kept if row.batch and obstacle([row]) is None)
    for source, _ in failed.most_common():
        return f"{said}; retry batch {source} to pay its failed lines again"
    return said


def duplicates_of(journal: Journal, lines: Sequence[Row], used: Mapping[str, Row], now: datetime) -> Mapping[int, str]:
    """Return why lines of a batch look as if they were paid twice, by line.

    An earlier line pays the number, or a payment or another proposed batch of the last thirty days pays it as much.
    """
    found: dict[int, str] = {}
    first: dict[tuple[str, ...], int] = {}
    forms = kept_forms(journal, {each.phone_number for each in lines})
    # In this order: a batch that is approved at this very moment is still proposed, or its payments are there.
    proposed = _proposed(journal, lines, now)
    recent = _recent(journal, forms, now)
    for each in lines:
        kind, own = (each.phone_number, each.amount), used.get(each.key)
        number = own and forms.get(own.phone_number)
        earlier, other = first.setdefault(kind, each.line), recent.get(kind)
        namesake = first.setdefault((each.phone_number,), each.line)
        is_plain = own is not None and own.extra_digest in {"", UNKNOWN_EXTRA, ERASED_EXTRA}
        if own is not None and (own.type, number, own.amount, is_plain) != (TransactionType.DISBURSEMENT, *kind, True):
            found[each.line] = f"key {each.key!r} is that of another payment: the batch cannot be approved"
        elif own is not None:
            found[each.line] = f"this very payment is {line_state(own)} since {own.changed_at:%Y-%m-%d}: {_fate(own)}"
        elif earlier != each.line:
            found[each.line] = f"line {earlier} pays the same amount to the same number"
        elif other is not None:
            said = f"payment {other.key!r} of the same amount to the same number"
            found[each.line] = f"{said} is {line_state(other)} since {other.changed_at:%Y-%m-%d}{_doubt(other)}"
        elif kind in proposed:
            found[each.line] = f"{proposed[kind]} pays the same amount to the same number"
        elif namesake != each.line:
            found[each.line] = f"line {namesake} pays another amount to the same number"
    return found


def _fate(own: Row) -> str:
    """Return what an approval makes of a line that has its payment already."""
    if own.state == PaymentState.RELEASED:
        return released_step(own)
    if doubt := _doubt(own):
        return f"it is not made again{doubt}"
    if own.state == PaymentState.FINAL and own.status != TransactionStatus.SUCCESS:
        return "it is not made again, but by a retry of its batch"
    if own.state == PaymentState.CANCELLED:
        return "it is not made again; other content, or another key, is"
    return "it is made once"


def _doubt(row: Row) -> str:
    """Return that the service shows another end of a final payment now, after a comma, or nothing."""
    is_doubtful = row.state == PaymentState.FINAL and row.cause is not None
    return f", and {Reason(PaymentCause(row.cause), row.about)}" if is_doubtful else ""


def _recent(journal: Journal, forms: Mapping[str, str], now: datetime) -> Mapping[tuple[str, str], Row]:
    """Return the latest disbursement of each kind to some numbers that was made in thirty days, or may be."""
    columns = payments.c
    at = sa.func.coalesce(columns.sent_at, columns.created_at)  # it may have waited in the queue for a month
    names = ("key", "phone_number", "amount", "state", "status", "changed_at", "cause", "about")
    has_failed = (columns.state == PaymentState.FINAL) & (columns.status != str(TransactionStatus.SUCCESS))
    was_refused = (columns.state == PaymentState.REFUSED) & columns.is_certain
    made = (
        columns.type == str(TransactionType.DISBURSEMENT),
        sa.or_(IS_QUEUED, at >= now - _RECENT),
        columns.state.not_in((PaymentState.NOT_SENT, PaymentState.CANCELLED, PaymentState.RELEASED)),
        ~(has_failed & columns.cause.is_(None)),
        ~was_refused,
    )
    statement = sa.select(*(columns[name] for name in names)).where(*made).order_by(at)
    rows = select_among(journal, statement, columns.phone_number, sorted(forms))
    return {(forms[row.phone_number], row.amount): row for row in rows}


def _proposed(journal: Journal, lines: Sequence[Row], now: datetime) -> Mapping[tuple[str, str], str]:
    """Return lines of other batches of the last thirty days that are to be approved, by the kind that they share.

    A line that shares a key with these lines does not count: both are one payment. Each batch is read as a whole: no
    index helps to find some numbers in it.
    """
    keys, kinds = {each.key for each in lines}, {(each.phone_number, each.amount) for each in lines}
    recent = (batches.c.state == PROPOSED, batches.c.id != lines[0].batch, batches.c.proposed_at >= now - _RECENT)
    found: dict[tuple[str, str], str] = {}
    for other in journal.rows(batches, *recent, order_by=[batches.c.proposed_at]):
        for row in find_lines(journal, other.id):
            kind = (row.phone_number, row.amount)
            if kind in kinds and row.key not in keys:
                found[kind] = f"line {row.line} of batch {other.id}, which is to be approved,"
    return found
