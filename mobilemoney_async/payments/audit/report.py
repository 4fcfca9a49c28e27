"""Report of an audit: the differences between the store and the service's list, and the totals. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property

import attrs

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.contract.comparison import ERASED, differences, may_be_shillings, shift
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType, is_final
from mobilemoney_async.payments.ownership.comparison import CLOCKS, RowClass, RowFacts
from mobilemoney_async.payments.ownership.evidence import Listing
from mobilemoney_async.payments.ownership.matching import (
    KindIndex,
    Match,
    estimate_skew,
    match,
    own_samples,
    query_for,
    row_kind,
)
from mobilemoney_async.payments.records.next_steps import (
    NOTE,
    RECONCILE,
    NextStep,
    explain,
    forgotten_step,
    identify,
    next_step,
    recover,
)
from mobilemoney_async.payments.records.record import REUSABLE, PaymentRecord, PaymentState, is_stale
from mobilemoney_async.text import arguments, shown_text, text_repr

# How far from a payment a transaction may be that is the same one, made twice.
_NEAR = timedelta(days=1)


class DifferenceKind(enum.StrEnum):
    """Kind of a difference between the store and the service."""

    MISSING = "missing"
    """The service does not show a transaction that the store has."""
    UNCLAIMED = "unclaimed"
    """No payment of the store claims a transaction of the service."""
    PAID_TWICE = "paid_twice"
    """The same, and within a day it is of the type, number and amount of a payment that is another transaction."""
    CONTENT = "content"
    """Amount, number or type differ."""
    STATE = "state"
    """One is final, and the other is open or has another final state."""
    UNRESOLVED = "unresolved"
    """A payment with an unknown result, or a transaction that may be that payment, or one that was called absent."""
    INCOMPLETE = "incomplete"
    """The list could not be compared as a whole."""


_ADVICE: Mapping[DifferenceKind, str] = {
    DifferenceKind.MISSING: "compare it with the service's statement; if it is not there either, ask the service",
    DifferenceKind.UNCLAIMED: "find out what it is: another system, a till, the dashboard; then explain it",
    DifferenceKind.PAID_TWICE: "find out whether money moved twice; then refund it, and explain the transaction",
    DifferenceKind.CONTENT: "ask the service which one is right, and correct your books",
    DifferenceKind.STATE: "follow it with a poller, or with mobilemoney watch",
    DifferenceKind.INCOMPLETE: "run the audit again later; if it stays so, ask the service",
}
_COMPARE_YOURSELF = NextStep(
    f"{_ADVICE[DifferenceKind.INCOMPLETE]}, compare the list yourself, and say so: disbursements wait for it",
    (arguments("payments", "restored", options=("--compared", *NOTE)),),
)


@attrs.frozen(kw_only=True)
class Difference(Data):
    """Difference between the store and the service.

    Attributes:
        kind: Its kind.
        reason: The difference, in words. Masked data shows the ids and keys in it, which may read like secrets.
        advice: The next step.
        commands: The command lines for it, each as the arguments of ``mobilemoney``.
        key: The payment's idempotency key, or None.
        transaction_id: The transaction, or None.
        amount: Whole TZS, or None; None also for a transaction in another currency.
    """

    kind: DifferenceKind
    reason: str = attrs.field(metadata={"is_ours": True})
    advice: str
    key: str | None = None
    transaction_id: str | None = None
    amount: Decimal | None = None
    commands: Sequence[Sequence[str]] = ()


@attrs.frozen(kw_only=True)
class AuditTotal(Data):
    """Total of the service's transactions of one type, status and settlement batch.

    Attributes:
        type: Collection or disbursement, as the list shows it.
        status: Their state.
        settlement_batch: The batch in which they were settled, or None.
        count: Their number.
        gross: The sum of their amounts, TZS.
        fees: The sum of the fees that the merchant bears, TZS; None if the list does not show it for each of them.
        net: The sum that was settled, TZS; None if the list does not show it for each of them.
    """

    type: str = attrs.field(repr=text_repr)
    status: str = attrs.field(repr=text_repr)
    settlement_batch: str | None
    count: int
    gross: Decimal
    fees: Decimal | None
    net: Decimal | None


@attrs.frozen(kw_only=True)
class AuditReport(Data):
    """Result of an audit.

    Attributes:
        from_date: The first day.
        to_date: The last day.
        transactions: The number of transactions that the service shows.
        payments: The number of payments of the store that were compared.
        differences: The differences, each with a reason.
        totals: By type, status and settlement batch, to tick off against the statement.
        unsettled: The ids of successful collections for which the list shows no settlement, or not its batch.
        on_its_way: The ids of transactions that no payment claims yet, and that are no difference: they are younger
            than the store's `grace`, or than the request of a payment of their kind that is being sent.
    """

    from_date: date
    to_date: date
    transactions: int
    payments: int
    differences: Sequence[Difference] = attrs.field(eq=tuple)
    totals: Sequence[AuditTotal] = attrs.field(eq=tuple)
    unsettled: Sequence[str] = attrs.field(default=(), eq=tuple)
    on_its_way: Sequence[str] = attrs.field(default=(), eq=tuple)

    @property
    def is_clean(self) -> bool:
        """True if nothing differs."""
        return not self.differences


def incomplete(listing: Listing, *, is_waited_for: bool) -> Iterable[Difference]:
    """Return the reasons why a listing cannot be compared as a whole; disbursements may wait for that."""
    # A row with an id can be looked up and explained.
    is_hopeless = not listing.is_complete or any(row.id is None for row in listing.unreadable)
    step = _COMPARE_YOURSELF if is_waited_for and is_hopeless else None
    if not listing.is_complete:
        yield difference(DifferenceKind.INCOMPLETE, listing.shortfall, step=step)
    if listing.unreadable:
        said = f"rows of the list that cannot be read: {len(listing.unreadable)}"
        yield difference(DifferenceKind.INCOMPLETE, said, step=step)


@attrs.frozen(kw_only=True, repr=False)
class AuditComparison:
    """Comparison of a listing with the store as it was afterwards.

    Attributes:
        rows: The rows that the listing shows of its days.
        owned: The payments that own them and those around, by transaction id, as of `owners_of_rows`.
        open_ones: The payments that were sent in its days, and the days around them, and whose transaction was not
            known just before `owned` was read. Those that someone has called absent are among them.
        sent: The payments that were sent in its days before it began, and may exist.
        facts: The store's facts about the rows.
        is_sole_writer: Whether a transaction that fits no payment is a difference, or may be of another system.
        kept: Final states that do not count, by their transactions: someone has kept the first ones.
        began_at: When the listing began.
        now: When it ended.
        grace: For how long a transaction that no payment claims may be on its way.
    """

    rows: Sequence[Transaction]
    owned: Mapping[str, PaymentRecord]
    open_ones: Sequence[PaymentRecord]
    sent: Sequence[PaymentRecord]
    facts: RowFacts
    is_sole_writer: bool
    kept: Collection[tuple[str, str]] = ()
    began_at: datetime
    now: datetime
    grace: timedelta

    @cached_property
    def own_rows(self) -> Sequence[Transaction]:
        """Rows of this merchant."""
        own = self.facts.merchant_id
        return [row for row in self.rows if not row.merchant_id or not own or row.merchant_id == own]

    @cached_property
    def _index(self) -> KindIndex[PaymentRecord]:
        index, keys = KindIndex[PaymentRecord](), {each.key for each in self.owned.values()}
        for record in (*self.owned.values(), *(each for each in self.open_ones if each.key not in keys)):
            # Of an erased one only its row shows the number, to those of `owners_of_rows`: others would fit every row.
            if record.sent_at is not None and not record.phone_number.startswith(ERASED):
                index.add(query_for(record).kind, record)
        return index

    @cached_property
    def on_its_way(self) -> Sequence[Transaction]:
        """Rows that no payment claims yet."""
        skew = estimate_skew(own_samples((self.owned.get(row.id), row) for row in self.rows))
        offset = timedelta(0) if skew is None else skew.high
        found: list[Transaction] = []
        for row in self._unowned():
            if not may_be_shillings(row) or self.facts.classify(row, None) is RowClass.LOST:
                continue  # a difference, however young
            near = self._near(row)
            unidentified = _first_open(near)
            age = None if row.created_at is None else shift(self.now, offset) - row.created_at
            # One that is dated far ahead would be young for ever.
            is_young = age is not None and -_NEAR < age < self.grace and (bool(near) or self.is_sole_writer)
            if unidentified is None:
                is_awaited = is_young
            else:
                start = shift(query_for(unidentified).sent_at, (timedelta(0) if skew is None else skew.low) - CLOCKS)
                is_older = row.created_at is not None and row.created_at < start  # than the request
                is_awaited = self._is_on_its_way(unidentified) and not is_older
            if is_awaited:
                found.append(row)
        return found

    def _unowned(self) -> Iterable[Transaction]:
        """Return the rows that no payment claims, and that are not explained."""
        settled = {RowClass.OWNED, RowClass.EXPLAINED}
        return (row for row in self.own_rows if self.facts.classify(row, None) not in settled)

    def differences(self) -> Iterable[Difference]:
        """Return the differences of the rows that are shown, and the payments with an unknown result."""
        for row in self.rows:
            if row.id in self.owned:
                yield from self.compare(row, self.owned[row.id])
        on_its_way = {row.id for row in self.on_its_way}
        for row in self._unowned():
            if row.id not in on_its_way:
                yield from self._unclaimed(row)
        for record in self.sent:
            if record.is_unresolved and not self._is_on_its_way(record):
                said = f"payment {record.key!r} is {record.state}" + (f": {record.reason}" if record.reason else "")
                yield difference(DifferenceKind.UNRESOLVED, said, record, step=self._step(record))

    def compare(self, row: Transaction, record: PaymentRecord) -> Iterable[Difference]:
        """Return the differences of a transaction from the payment that owns it."""
        problem = ", ".join(self._contradictions(row, record))
        if problem:
            yield difference(DifferenceKind.CONTENT, f"payment {record.key!r}: {problem}", record, row)
        is_final_there = is_final(record.type, row.status)  # its own word for the type proves nothing
        status = "not final" if record.status is None else shown_text(record.status)
        said = f"payment {record.key!r} is {status} here, and {shown_text(row.status)} at the service"
        if record.is_final and not is_final_there and record.changed_at >= self.began_at:
            return  # it became final while the list was read
        if not record.is_final and is_final_there:
            yield difference(DifferenceKind.STATE, said, record, row)
        elif record.is_final and record.status != row.status and (row.id, row.status) not in self.kept:
            # A final state stays: someone has to ask which one is true.
            step = NextStep(_ADVICE[DifferenceKind.CONTENT], tuple(_commands(DifferenceKind.CONTENT, record, row)))
            yield difference(DifferenceKind.STATE, said, record, row, step)

    def _contradictions(self, row: Transaction, record: PaymentRecord) -> Iterable[str]:
        for name, ours, shown in differences(row, record):
            yield f"the {name} is {ours} here, and {shown} at the service"
        if row.merchant_id and self.facts.merchant_id and row.merchant_id != self.facts.merchant_id:
            yield "it belongs to another merchant at the service"

    def _unclaimed(self, row: Transaction) -> Iterable[Difference]:
        said = f"no payment claims transaction {row.id} ({shown_text(row.status)})"
        if not may_be_shillings(row):
            said += f", in {shown_text(row.currency)}, which no total counts"
        step = None
        if self.facts.classify(row, None) is RowClass.LOST:
            said, step = f"{said}, of a time that the store has lost", forgotten_step(row.id)
        near = self._near(row)
        known = (each for each in near if each.transaction_id is not None and _has_moved(each.type, row.status))
        paid = next((each for each in known if _has_moved(each.type, each.status)), None)
        named = (each for each in self.open_ones if row.id in each.candidates)  # perhaps another amount
        unidentified = next(named, None) or _first_open(near)
        if unidentified is None and paid is None:
            unidentified = next((each for each in near if each.transaction_id is None), None)
        if unidentified is not None:
            said += f", which may be payment {unidentified.key!r}: that is {unidentified.state}"
            yield difference(DifferenceKind.UNRESOLVED, said, unidentified, row, self._step(unidentified, row))
        elif paid is not None:
            said += f", which fits payment {paid.key!r} as well as its own transaction {paid.transaction_id}"
            yield difference(DifferenceKind.PAID_TWICE, said, paid, row, step)
        elif self.is_sole_writer or not may_be_shillings(row):
            yield difference(DifferenceKind.UNCLAIMED, said, row=row, step=step)

    def _near(self, row: Transaction) -> Sequence[PaymentRecord]:
        """Return the payments of the kind of one of `own_rows` that were sent within a day of it, nearest first."""
        alike = self._index.find(row_kind(row))
        fits = (each for each in alike if match(query_for(each), row) is not Match.NONE)
        # A row without a readable time may be of any time.
        at = row.created_at
        far = [(timedelta(0) if at is None else abs(query_for(each).sent_at - at), each) for each in fits]
        return [each for distance, each in sorted(far, key=lambda pair: (pair[0], pair[1].key)) if distance <= _NEAR]

    def _step(self, record: PaymentRecord, row: Transaction | None = None) -> NextStep:
        """Return the next step for a payment with an unknown result, which may be a row."""
        if row is None or row.id in record.candidates or record.is_ambiguous:
            return next_step(record, self.now, grace=self.grace)
        if record.state in REUSABLE:
            said = "recover it if it is this payment; else find out what it is, then explain it"
            return NextStep(said, (recover(record.key, row.id), explain(row.id)))
        return NextStep(
            "reconcile: it finds the payment by itself where nothing else fits; else compare both, and identify it",
            (RECONCILE, identify(record.key, row.id)),
        )

    def _is_on_its_way(self, record: PaymentRecord) -> bool:
        return record.state is PaymentState.SENDING and not is_stale(record, self.now)


def _first_open(near: Sequence[PaymentRecord]) -> PaymentRecord | None:
    """Return the first of some payments whose transaction is not known, and that nobody has called absent."""
    is_open = (each for each in near if each.transaction_id is None and each.state is not PaymentState.RELEASED)
    return next(is_open, None)


def _has_moved(type: str, status: str | None) -> bool:
    """Return whether money was moved, or may still be."""
    return status == TransactionStatus.SUCCESS or status is None or not is_final(type, status)


def totals_of(rows: Iterable[Transaction]) -> list[AuditTotal]:
    """Return the totals of transactions in TZS, by type, status and settlement batch."""
    kinds: dict[tuple[str, str, str | None], list[Transaction]] = {}
    for row in filter(may_be_shillings, rows):
        batch = None if row.settlement is None else row.settlement.settlement_batch
        kinds.setdefault((str(row.type), str(row.status), batch), []).append(row)
    return [
        AuditTotal(
            type=kind,
            status=status,
            settlement_batch=batch,
            count=len(some),
            gross=_sum(each.amount for each in some) or Decimal(0),
            fees=_sum(None if each.fees is None else each.fees.merchant_fee for each in some),
            net=_sum(None if each.settlement is None else each.settlement.net_amount for each in some),
        )
        for (kind, status, batch), some in sorted(kinds.items(), key=lambda item: (*item[0][:2], item[0][2] or ""))
    ]


def unsettled_of(rows: Iterable[Transaction]) -> list[str]:
    """Return the ids of successful collections that show no settlement batch."""
    paid = (row for row in rows if row.succeeded and row.type == TransactionType.COLLECTION)
    return [row.id for row in paid if row.settlement is None or row.settlement.settlement_batch is None]


@exactly
def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the exact sum, or None if an amount is not shown."""
    total = Decimal(0)
    for each in amounts:
        if each is None:
            return None
        total += each
    return total


def difference(
    kind: DifferenceKind,
    reason: str,
    record: PaymentRecord | None = None,
    row: Transaction | None = None,
    step: NextStep | None = None,
) -> Difference:
    """Return a difference with the next step: one of its own, or that of its kind."""
    if step is None:
        step = NextStep(_ADVICE[kind], tuple(_commands(kind, record, row)))
    shown = record if row is None else row if may_be_shillings(row) else None
    return Difference(
        kind=kind,
        reason=reason,
        advice=step.text,
        commands=step.commands,
        key=None if record is None else record.key,
        transaction_id=row.id if row is not None else None if record is None else record.transaction_id,
        amount=None if shown is None else shown.amount,
    )


def _commands(kind: DifferenceKind, record: PaymentRecord | None, row: Transaction | None) -> Iterable[tuple[str, ...]]:
    if kind in {DifferenceKind.UNCLAIMED, DifferenceKind.PAID_TWICE} and row is not None:
        yield explain(row.id)
    elif record is not None:
        follows = kind is DifferenceKind.STATE and record.transaction_id is not None
        yield arguments("watch", str(record.transaction_id)) if follows else arguments("payments", "show", record.key)
