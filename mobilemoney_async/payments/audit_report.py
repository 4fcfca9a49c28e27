"""Report of an audit: the differences between the store and the service's list, and the totals. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal

import attrs

from mobilemoney_async.contract.comparison import contradiction
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.payments.evidence import Walk
from mobilemoney_async.payments.matching import Match, Spellings, learn, match, query_for
from mobilemoney_async.payments.records import PaymentRecord


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


def unresolved(record: PaymentRecord) -> Difference:
    """Return the difference that a payment with an unknown result is."""
    reason = f"payment {record.key!r} is {record.state}" + (f": {record.reason}" if record.reason else "")
    return difference(DifferenceKind.UNRESOLVED, reason, record)


def incomplete(walk: Walk) -> Iterable[Difference]:
    """Return the reasons why a listing cannot be compared as a whole."""
    if not walk.is_complete:
        yield difference(DifferenceKind.INCOMPLETE, "the list could not be read as a whole")
    if walk.unreadable:
        said = f"rows of the list that cannot be read: {len(walk.unreadable)}"
        yield difference(DifferenceKind.INCOMPLETE, said)


def compare(
    rows: Sequence[Transaction], owned: Mapping[str, PaymentRecord], merchant_id: str | None
) -> Iterable[Difference]:
    """Return the differences of the rows of a listing from the payments that own them."""
    spellings, by_amount = learn(rows, owned, merchant_id), dict[Decimal, list[PaymentRecord]]()
    for record in owned.values():
        by_amount.setdefault(record.amount, []).append(record)
    for row in rows:
        owner = owned.get(row.id)
        if owner is not None:
            yield from compare_one(row, owner, spellings)
        elif not (row.merchant_id and merchant_id and row.merchant_id != merchant_id):
            yield _unclaimed(row, by_amount.get(row.amount, ()), spellings)


def compare_one(row: Transaction, record: PaymentRecord, spellings: Spellings) -> Iterable[Difference]:
    """Return the differences of a transaction from the payment that owns it."""
    amount = f"{record.amount:f}"
    problem = contradiction(row, phone_number=record.phone_number, amount=amount)
    if problem is None and record.sent_at is not None and match(query_for(record), row, spellings) is Match.NONE:
        problem = f"the transaction names another type: {row.type}"
    if problem is not None:
        yield difference(DifferenceKind.CONTENT, f"payment {record.key!r}: {problem}", record, row)
    row = attrs.evolve(row, type=record.type)  # in the contract's word, by which its final states are known
    if record.is_final != row.is_final:
        here, there = ("final", "open") if record.is_final else ("open", "final")
        said = f"payment {record.key!r} is {here} here ({record.status}), and {there} at the service ({row.status})"
        yield difference(DifferenceKind.STATE, said, record, row)
    elif record.is_final and record.status != row.status:
        said = f"payment {record.key!r} was {record.status} here, and is {row.status} at the service"
        yield difference(DifferenceKind.STATE, said, record, row)


def _unclaimed(row: Transaction, alike: Iterable[PaymentRecord], spellings: Spellings) -> Difference:
    fits = (each for each in alike if each.sent_at and match(query_for(each), row, spellings) is not Match.NONE)
    other = next(fits, None)
    said = f"no payment claims transaction {row.id} ({row.status})"
    if other is None:
        return difference(DifferenceKind.UNCLAIMED, said, row=row)
    said += f", which fits payment {other.key!r} as well as its own transaction {other.transaction_id}"
    return difference(DifferenceKind.PAID_TWICE, said, other, row)


def totals_of(rows: Iterable[Transaction]) -> list[AuditTotal]:
    """Return the totals of transactions, by type, status and settlement batch."""
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


def difference(
    kind: DifferenceKind, reason: str, record: PaymentRecord | None = None, row: Transaction | None = None
) -> Difference:
    """Return a difference with the next step."""
    return Difference(
        kind=kind,
        reason=reason,
        advice=_ADVICE[kind],
        key=None if record is None else record.key,
        transaction_id=row.id if row is not None else None if record is None else record.transaction_id,
        amount=row.amount if row is not None else None if record is None else record.amount,
    )
