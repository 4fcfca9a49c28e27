"""Evidence for the states of payments: an acknowledgement, or a listing of the transaction list. Pure.

The contract leaves open which errors a create has, and the list's order, freshness, default range and spelling. So
nothing is concluded from silence:

- *Acknowledged* is a payment whose acknowledgement names the amount and the number that were asked for: `echoes`. If
  it does not, its transaction is looked up, and is ours only if it names the payment: `names`.
- *Adopted* is a row of the list that fits by type, number and amount, in the contract's spelling or in one that own
  payments prove; in the window of the send; with no other row that may be the payment within a day; and if no other
  payment of ours may be that row: `judge`.
- *Absent* may be said after a listing that was read as a whole, covers the days of the payment, has no row that cannot
  be read near it, shows no row that may be the payment, and passes its positive control: the nearest own payments
  before and after it are shown, and recognised by the rule that looks for the lost one: `control`.
- A bisection, which reads a part of the list, may find a payment. It never shows that one is absent.

What cannot be seen is assumed (docs/payments.md has the merchant's side):

- A list that shows the own payments before and after a time hides no single transaction between them, whatever its
  state.
- The service never writes the lost payment with another amount, with whole digits of another number, or with the
  contract's word for the other type, while it writes its neighbours rightly.
- A request that was given up takes effect within `grace` or never, and the list shows it by then, as it shows later
  payments.
- Other systems that pay for this merchant do not make the same payment in the same minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

import attrs

from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.payments.matching import (
    CURRENCY,
    ClockSample,
    Match,
    PaymentQuery,
    Skew,
    Spellings,
    estimate_skew,
    match,
    query_for,
    same_number,
    shift,
)
from mobilemoney_async.payments.records import PaymentRecord, PaymentRequest

NOT_WHOLE = "the list could not be read as a whole"
NOT_ITS_DAYS = "the list was not read for all days of the payment"
UNREADABLE = "a row of the list cannot be read"
TOO_EARLY = "the listing began within the grace period"
NO_EARLIER = "no earlier payment to compare with"
NO_OLDER_ROW = "the list shows nothing as old as the payment"
NO_LATER = "no later payment to compare with"

_DAY = timedelta(days=1)
# Own payments nearest to a search: their timestamps show the service's clock.
_WITNESSES = 5
# Own payments on each side of a search that the list must show, and how far away they may be.
_COMPARED, _FARTHEST = 3, timedelta(days=7)
# Transactions named in a reason.
_MOST_NAMED = 3
_PROVEN = frozenset({Match.CERTAIN, Match.LEARNED})


@attrs.frozen(kw_only=True)
class UnreadableRow:
    """Row of the list that cannot be read, with its id and its time if these can be."""

    id: str | None = None
    created_at: datetime | None = None


@attrs.frozen(kw_only=True)
class Walk:
    """Listing of some days of the transaction list.

    Attributes:
        rows: The transactions that were shown.
        unreadable: The rows that cannot be read.
        dates: The service's clock, by the Date headers of the answers.
        began_at: When it began, on our clock.
        ended_at: When it ended, on our clock.
        first_day: The first day that was asked for.
        last_day: The last one; None for all days up to the present.
        is_complete: Whether all pages of those days were read, without a gap, to an empty or the last page.
        covered: Of a bisection, the service times between which all rows are known; None if there are none.
    """

    rows: tuple[Transaction, ...]
    unreadable: tuple[UnreadableRow, ...] = ()
    dates: tuple[ClockSample, ...] = ()
    began_at: datetime
    ended_at: datetime
    first_day: date
    last_day: date | None = None
    is_complete: bool = False
    covered: tuple[datetime, datetime] | None = None

    def asked(self, start: datetime, end: datetime) -> bool:
        """Return whether the days asked for hold a time on the service's clock, and a day to spare on either side.

        The service's time zone is undocumented, and so is whether the last day is included.
        """
        if self.first_day > shift(start, -_DAY).date():
            return False
        return self.last_day is None or self.last_day >= shift(end, _DAY).date()

    def knows(self, start: datetime, end: datetime) -> bool:
        """Return whether all rows between two times on the service's clock were read."""
        if self.is_complete and self.asked(start, end):
            return True
        return self.covered is not None and self.covered[0] <= start and end <= self.covered[1]


@attrs.frozen(kw_only=True)
class Control:
    """Positive control of a listing: own payments that are known to exist, before and after a search.

    Attributes:
        passed: Whether they are shown and recognised, on both sides of the search.
        is_failed: Whether the list contradicts them: one is not shown, or not recognised. If neither, there are too few
            to compare with.
        reason: The reason if it has not passed.
    """

    passed: bool = False
    is_failed: bool = False
    reason: str | None = None


@attrs.frozen(kw_only=True)
class Verdict:
    """Conclusion from one listing about a payment.

    Attributes:
        adopt: The transaction that it is, or None.
        by: How well that one fits.
        candidates: Ids of the transactions that it may be, if none is certain.
        is_clear: Whether the listing was complete and readable, covers the payment, and shows nothing that it may be.
        absent_ok: Whether the listing counts for the payment's absence: it is clear, and its control has passed.
        reason: The reason if it does not count.
    """

    adopt: Transaction | None = None
    by: Match | None = None
    candidates: tuple[str, ...] = ()
    is_clear: bool = False
    absent_ok: bool = False
    reason: str | None = None


def clock_skew(query: PaymentQuery, walk: Walk, owned: Mapping[str, PaymentRecord]) -> Skew | None:
    """Return how far the service's clock was ahead when a payment was sent, or None if nothing shows it.

    The timestamps of our own payments show it best, since they are compared; the nearest ones show it for that time.
    Without any, the Date headers show it for now. `owned` are the payments by their transaction ids.
    """
    witnesses: list[tuple[timedelta, ClockSample]] = []
    for row in walk.rows:
        record = owned.get(row.id)
        # An adopted payment was found by this very clock; it is no evidence for it.
        if record is None or record.is_adopted or record.sent_at is None or record.ended_at is None:
            continue
        sample = ClockSample(shown=row.created_at, began_at=record.sent_at, ended_at=record.ended_at)
        witnesses.append((abs(record.sent_at - query.sent_at), sample))
    witnesses.sort(key=lambda pair: pair[0])
    own = estimate_skew([sample for _, sample in witnesses[:_WITNESSES]])
    return estimate_skew(walk.dates) if own is None else attrs.evolve(own, is_own=True)


def control(
    query: PaymentQuery,
    walk: Walk,
    *,
    before: Iterable[PaymentRecord],
    after: Iterable[PaymentRecord],
    spellings: Spellings,
    skew: Skew | None,
    grace: float,
) -> Control:
    """Compare a listing with own payments that are known to exist: the nearest ones before and after a search.

    Args:
        query: The search.
        walk: The listing.
        before: Own payments with a known transaction that were sent before the search was. More may be given than
            count: those of the same type, at most seven days away, in the days that were asked for, whose request
            ended at least `grace` before the listing began; the nearest three.
        after: The same, sent after the search was given up.
        spellings: Those that own payments prove.
        skew: As for the search.
        grace: Seconds for which the list may miss a payment after the end of its request.
    """
    settled_by = shift(walk.began_at, timedelta(seconds=-grace))
    earlier = _nearest(query, walk, skew, settled_by, (each for each in before if _sent(each) <= query.sent_at))
    later = _nearest(query, walk, skew, settled_by, (each for each in after if _sent(each) >= query.ended_at))
    if not walk.is_complete:
        return Control(reason=NOT_WHOLE)
    shown = {row.id: row for row in walk.rows}
    for record in (*earlier, *later):
        row = shown.get(record.transaction_id or "")
        if row is None:
            if record.transaction_id in {each.id for each in walk.unreadable}:
                return Control(is_failed=True, reason=UNREADABLE)
            return Control(is_failed=True, reason=f"the list does not show payment {record.key!r}")
        own = query_for(record)
        start, end = own.window(skew)
        if match(own, row, spellings) not in _PROVEN or not start <= row.created_at <= end:
            return Control(is_failed=True, reason=f"the list shows payment {record.key!r} in a form that is unknown")
    if not earlier:
        is_old_enough = any(row.created_at <= query.window(skew)[0] for row in walk.rows)
        return Control(reason=NO_EARLIER if is_old_enough else NO_OLDER_ROW)
    if not later:
        return Control(reason=NO_LATER)
    if settled_by < query.ended_at:
        return Control(reason=TOO_EARLY)
    return Control(passed=True)


def _nearest(
    query: PaymentQuery, walk: Walk, skew: Skew | None, settled_by: datetime, records: Iterable[PaymentRecord]
) -> Sequence[PaymentRecord]:
    """Return the payments nearest to a search that a listing can be compared with."""
    usable = [
        record
        for record in records
        if record.type == query.type
        and record.transaction_id is not None
        and record.ended_at is not None
        and record.ended_at <= settled_by
        and abs(_sent(record) - query.sent_at) <= _FARTHEST
        and walk.asked(*query_for(record).window(skew))
    ]
    return sorted(usable, key=lambda record: abs(_sent(record) - query.sent_at))[:_COMPARED]


def _sent(record: PaymentRecord) -> datetime:
    assert record.sent_at is not None  # it has a transaction
    return record.sent_at


def judge(
    query: PaymentQuery,
    walk: Walk,
    *,
    owned_ids: Container[str],
    explained_ids: Container[str],
    others: Mapping[str, PaymentQuery],
    spellings: Spellings,
    skew: Skew | None,
    control: Control,
) -> Verdict:
    """Return the conclusion about a payment from a listing.

    Args:
        query: The search for it.
        walk: The listing.
        owned_ids: Transactions that payments own.
        explained_ids: Transactions of which an operator has said that they are not this payment.
        others: Searches for all other payments of the account that may be an unowned transaction, by key: on their
            way, unknown, absent, softly refused or released.
        spellings: Those that own payments prove.
        skew: How far the service's clock was ahead when it was sent, if known.
        control: The positive control of the listing.
    """
    first, last = query.reach(skew)
    near: dict[str, tuple[Match, Transaction]] = {}
    for row in walk.rows:
        if first <= row.created_at <= last and row.id not in owned_ids and row.id not in explained_ids:
            fit = match(query, row, spellings)
            if fit is not Match.NONE:
                near[row.id] = (fit, row)
    if not near:
        reason = _flaw(query, walk, skew, lambda name: name in owned_ids or name in explained_ids)
        if reason is not None:
            return Verdict(reason=reason)
        return Verdict(is_clear=True, absent_ok=control.passed, reason=control.reason)
    ids = sorted(near)
    by, row = near[ids[0]]
    if len(near) == 1 and _is_believed(query, walk, by, row, skew):
        rival = _rival(row, others, spellings, skew)
        if rival is None:
            return Verdict(adopt=row, by=by)
        return Verdict(candidates=(row.id,), reason=f"transaction {row.id} may be payment {rival!r} as well")
    named = [*ids[:_MOST_NAMED], *(["another"] if ids[_MOST_NAMED:] else [])]
    return Verdict(candidates=tuple(ids), reason=f"it may be transaction {' or '.join(named)}")


def _is_believed(query: PaymentQuery, walk: Walk, by: Match, row: Transaction, skew: Skew | None) -> bool:
    """Return whether a row that is alone may be adopted: it is proven, in the window, and the window is known."""
    start, end = query.window(skew)
    if by not in _PROVEN or not start <= row.created_at <= end or not walk.knows(start, end):
        return False
    # A part of the list has to show its own clock.
    return walk.is_complete or (skew is not None and skew.is_own)


def _flaw(query: PaymentQuery, walk: Walk, skew: Skew | None, is_claimed: Callable[[str], bool]) -> str | None:
    """Return the reason why a listing may have missed a payment, apart from its control, or None."""
    if not walk.is_complete:
        return NOT_WHOLE
    if not walk.asked(*query.window(skew)):
        return NOT_ITS_DAYS
    first, last = query.reach(skew)
    for bad in walk.unreadable:
        is_near = bad.created_at is None or first <= bad.created_at <= last
        if is_near and not (bad.id is not None and is_claimed(bad.id)):
            return UNREADABLE
    return None


def _rival(row: Transaction, others: Mapping[str, PaymentQuery], spellings: Spellings, skew: Skew | None) -> str | None:
    """Return the key of another payment that may be a row as well, or None."""
    for key, other in others.items():
        start, end = other.window(skew)
        if start <= row.created_at <= end and match(other, row, spellings) is not Match.NONE:
            return key
    return None


def echoes(request: PaymentRequest, acknowledgement: Acknowledgement) -> str | None:
    """Return the reason why an acknowledgement does not name the payment that was asked for, or None if it does."""
    differs = [
        name
        for name, agrees in (
            ("amount", acknowledgement.amount == Decimal(request.amount)),
            ("currency", acknowledgement.currency.strip().upper() == CURRENCY),
            ("phone number", same_number(acknowledgement.phone_number, request.phone_number) is not None),
        )
        if not agrees
    ]
    return f"the acknowledgement names another {' and '.join(differs)}" if differs else None


def names(query: PaymentQuery, transaction: Transaction, skew: Skew | None) -> bool:
    """Return whether a transaction that was looked up, after an acknowledgement that did not echo, is the payment.

    Its type must be the contract's word. Its number may be masked or national: the id came with our own answer.
    """
    start, end = query.window(skew)
    return (
        transaction.type == query.type
        and transaction.amount == Decimal(query.amount)
        and transaction.currency.strip().upper() == CURRENCY
        and same_number(transaction.phone_number, query.phone_number) is not None
        and start <= transaction.created_at <= end
    )
