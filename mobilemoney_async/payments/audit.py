"""Audit of some days: the store against the service's transaction list (contract, section 4.4)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import contradiction
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.schema import payments
from mobilemoney_async.errors import InvalidTransactionId, TransactionNotFound
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.evidence import Walk
from mobilemoney_async.payments.journal import Journal, to_record
from mobilemoney_async.payments.listing import Lister
from mobilemoney_async.payments.matching import Match, Spellings, learn, match, query_for
from mobilemoney_async.payments.queries import merchant_of, owners
from mobilemoney_async.payments.records import PaymentRecord, PaymentState

_DAY = timedelta(days=1)
# Payments outside the times that the list shows which are looked up one by one.
_MOST_LOOKUPS = 50


class DifferenceKind(str, enum.Enum):
    """Kind of a difference between the store and the service."""

    MISSING = "missing"
    """The service does not show a transaction that the store has."""
    UNCLAIMED = "unclaimed"
    """No payment of the store claims a transaction of the service."""
    PAID_TWICE = "paid_twice"
    """The same, and it is of the type, number and amount of a payment that is another transaction."""
    CONTENT = "content"
    """Amount, number or type differ."""
    STATE = "state"
    """One is final, and the other is open or has another final state."""
    UNRESOLVED = "unresolved"
    """A payment with an unknown result."""
    INCOMPLETE = "incomplete"
    """The list could not be compared as a whole."""

    def __str__(self) -> str:
        return self.value


_ADVICE: Mapping[DifferenceKind, str] = {
    DifferenceKind.MISSING: "compare it with the service's statement; if it is not there either, ask the service",
    DifferenceKind.UNCLAIMED: "find out what it is: another system, a till, the dashboard; then explain it",
    DifferenceKind.PAID_TWICE: "find out whether money moved twice; then refund it, and explain the transaction",
    DifferenceKind.CONTENT: "ask the service which one is right, and correct your books",
    DifferenceKind.STATE: "follow it again, and compare it with the service's statement",
    DifferenceKind.UNRESOLVED: "run reconcile; then identify it or confirm its absence",
    DifferenceKind.INCOMPLETE: "run the audit again later; if it stays so, ask the service",
}


@attrs.frozen(kw_only=True)
class Difference:
    """Difference between the store and the service.

    Attributes:
        kind: Its kind.
        reason: What differs, in words.
        advice: The next step.
        key: The payment's idempotency key, or None.
        transaction_id: The transaction, or None.
        amount: Whole TZS, or None.
    """

    kind: DifferenceKind
    reason: str
    advice: str
    key: str | None = None
    transaction_id: str | None = None
    amount: Decimal | None = None


@attrs.frozen(kw_only=True)
class AuditTotal:
    """Total of the service's transactions of one type, status and settlement batch.

    Attributes:
        type: Collection or disbursement, as the list shows it.
        status: Their state.
        settlement_batch: The batch in which they were settled, or None.
        count: Their number.
        gross: The sum of their amounts, TZS.
        fees: The sum of the fees that the merchant bears, TZS.
        net: The sum that was settled, or that is due: gross without fees, TZS.
    """

    type: str
    status: str
    settlement_batch: str | None
    count: int
    gross: Decimal
    fees: Decimal
    net: Decimal


@attrs.frozen(kw_only=True)
class AuditReport:
    """Result of an audit.

    Attributes:
        from_date: The first day.
        to_date: The last day.
        transactions: The number of transactions that the service shows.
        payments: The number of payments of the store that were compared.
        differences: What differs, each with a reason.
        totals: By type, status and settlement batch, to tick off against the statement.
    """

    from_date: date
    to_date: date
    transactions: int
    payments: int
    differences: Sequence[Difference]
    totals: Sequence[AuditTotal]

    @property
    def is_clean(self) -> bool:
        """True if nothing differs."""
        return not self.differences


async def audit(store: AccountStore, pipeline: Pipeline, from_date: date, to_date: date) -> AuditReport:
    """Compare the store with the service; see `Payments.audit`."""
    walk = await Lister(pipeline).complete(from_date, to_date, lane=Priority.BULK)
    start, end = (datetime.combine(each, time(), UTC) for each in (from_date, to_date + _DAY))

    def read(journal: Journal) -> tuple[Mapping[str, PaymentRecord], list[PaymentRecord], str | None]:
        owned = owners(journal, [row.id for row in walk.rows])
        return owned, _sent_between(journal, start, end), merchant_of(journal, walk.rows, owned)

    owned, sent, merchant_id = await store.read(read)
    shown = {row.id for row in walk.rows}
    missing = [each for each in sent if each.transaction_id is not None and each.transaction_id not in shown]
    found = [*_incomplete(walk), *_compare(walk.rows, owned, merchant_id), *map(_unresolved, filter(_is_open, sent))]
    found += await _look_up(pipeline, missing, walk)
    return AuditReport(
        from_date=from_date,
        to_date=to_date,
        transactions=len(walk.rows),
        payments=len({each.key for each in (*owned.values(), *sent)}),
        differences=found,
        totals=_totals(walk.rows),
    )


def _sent_between(journal: Journal, start: datetime, end: datetime) -> list[PaymentRecord]:
    """Return the payments that were sent in a time, and may exist."""
    columns = payments.c
    states = [str(each) for each in (PaymentState.REFUSED, PaymentState.NOT_SENT, PaymentState.RELEASED)]
    here = (columns.account == journal.account, columns.sent_at >= start, columns.sent_at < end)
    rows = journal.connection.execute(sa.select(payments).where(*here, columns.state.not_in(states)))
    return [to_record(row) for row in rows.all()]


def _is_open(record: PaymentRecord) -> bool:
    return record.is_unresolved


def _unresolved(record: PaymentRecord) -> Difference:
    reason = f"payment {record.key!r} is {record.state}" + (f": {record.reason}" if record.reason else "")
    return _difference(DifferenceKind.UNRESOLVED, reason, record)


def _incomplete(walk: Walk) -> Iterable[Difference]:
    if not walk.is_complete:
        yield _difference(DifferenceKind.INCOMPLETE, "the list could not be read as a whole")
    if walk.unreadable:
        said = f"rows of the list that cannot be read: {len(walk.unreadable)}"
        yield _difference(DifferenceKind.INCOMPLETE, said)


def _compare(
    rows: Sequence[Transaction], owned: Mapping[str, PaymentRecord], merchant_id: str | None
) -> Iterable[Difference]:
    spellings, by_amount = learn(rows, owned, merchant_id), dict[Decimal, list[PaymentRecord]]()
    for record in owned.values():
        by_amount.setdefault(record.amount, []).append(record)
    for row in rows:
        owner = owned.get(row.id)
        if owner is not None:
            yield from _compare_one(row, owner, spellings)
        elif not (row.merchant_id and merchant_id and row.merchant_id != merchant_id):
            yield _unclaimed(row, by_amount.get(row.amount, ()), spellings)


def _compare_one(row: Transaction, record: PaymentRecord, spellings: Spellings) -> Iterable[Difference]:
    amount = f"{record.amount:f}"
    problem = contradiction(row, phone_number=record.phone_number, amount=amount)
    if problem is None and record.sent_at is not None and match(query_for(record), row, spellings) is Match.NONE:
        problem = f"the transaction names another type: {row.type}"
    if problem is not None:
        yield _difference(DifferenceKind.CONTENT, f"payment {record.key!r}: {problem}", record, row)
    row = attrs.evolve(row, type=record.type)  # in the contract's word, by which its final states are known
    if record.is_final != row.is_final:
        here, there = ("final", "open") if record.is_final else ("open", "final")
        said = f"payment {record.key!r} is {here} here ({record.status}), and {there} at the service ({row.status})"
        yield _difference(DifferenceKind.STATE, said, record, row)
    elif record.is_final and record.status != row.status:
        said = f"payment {record.key!r} was {record.status} here, and is {row.status} at the service"
        yield _difference(DifferenceKind.STATE, said, record, row)


def _unclaimed(row: Transaction, alike: Iterable[PaymentRecord], spellings: Spellings) -> Difference:
    fits = (each for each in alike if each.sent_at and match(query_for(each), row, spellings) is not Match.NONE)
    other = next(fits, None)
    said = f"no payment claims transaction {row.id} ({row.status})"
    if other is None:
        return _difference(DifferenceKind.UNCLAIMED, said, row=row)
    said += f", which fits payment {other.key!r} as well as its own transaction {other.transaction_id}"
    return _difference(DifferenceKind.PAID_TWICE, said, other, row)


async def _look_up(pipeline: Pipeline, missing: Sequence[PaymentRecord], walk: Walk) -> list[Difference]:
    """Return the differences of payments whose transactions the list does not show.

    The list's days may begin at another hour than ours: at its edges, the transactions themselves are asked for.
    """
    times = [row.created_at for row in walk.rows]
    first, last = min(times, default=None), max(times, default=None)
    found: list[Difference] = []
    asked = 0
    for record in missing:
        said = f"the list does not show transaction {record.transaction_id} of payment {record.key!r}"
        is_inside = first is not None and last is not None and first <= query_for(record).sent_at <= last
        if is_inside and walk.is_complete:
            found.append(_difference(DifferenceKind.MISSING, said, record))
        elif asked < _MOST_LOOKUPS:
            asked += 1
            identifiers = {"transaction_id": record.transaction_id or ""}
            try:
                row = (await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.BULK)).transaction
                found += _compare_one(row, record, Spellings())
            except (TransactionNotFound, InvalidTransactionId):
                found.append(_difference(DifferenceKind.MISSING, f"{said}, and the service does not know it", record))
        else:
            reason = f"{said}, at the edge of these days: it was not compared"
            found.append(_difference(DifferenceKind.INCOMPLETE, reason, record))
    return found


def _totals(rows: Iterable[Transaction]) -> list[AuditTotal]:
    kinds: dict[tuple[str, str, str | None], list[Transaction]] = {}
    for row in rows:
        batch = None if row.settlement is None else row.settlement.settlement_batch
        kinds.setdefault((str(row.type), str(row.status), batch), []).append(row)
    return [
        AuditTotal(
            type=kind,
            status=status,
            settlement_batch=batch,
            count=len(some),
            gross=sum((each.amount for each in some), Decimal(0)),
            fees=sum((_fee(each) for each in some), Decimal(0)),
            net=sum((_net(each) for each in some), Decimal(0)),
        )
        for (kind, status, batch), some in sorted(kinds.items(), key=lambda item: (*item[0][:2], item[0][2] or ""))
    ]


def _fee(row: Transaction) -> Decimal:
    return Decimal(0) if row.fees is None else row.fees.merchant_fee


def _net(row: Transaction) -> Decimal:
    return row.amount - _fee(row) if row.settlement is None else row.settlement.net_amount


def _difference(
    kind: DifferenceKind, reason: str, record: PaymentRecord | None = None, row: Transaction | None = None
) -> Difference:
    return Difference(
        kind=kind,
        reason=reason,
        advice=_ADVICE[kind],
        key=None if record is None else record.key,
        transaction_id=row.id if row is not None else None if record is None else record.transaction_id,
        amount=row.amount if row is not None else None if record is None else record.amount,
    )
