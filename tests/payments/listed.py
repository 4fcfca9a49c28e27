"""Searches, rows and listings of the transaction list, for tests of the evidence in them."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
from hypothesis import strategies as st

from mobilemoney_async import PaymentRecord, PaymentState, Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.payments.ownership.evidence import Evidence, Listing, Verdict
from mobilemoney_async.payments.ownership.matching import ClockSample, PaymentQuery, Skew
from tests.contract.test_models import PENDING
from tests.support.fakes import NOON, PHONE_NUMBER

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(seconds=40))
offsets = st.timedeltas(min_value=-2 * HOUR, max_value=2 * HOUR)


def search(sent_at: datetime = NOON, *, took: timedelta = 2 * SECOND, amount: str = "1000") -> PaymentQuery:
    """Return a collection that is to be found."""
    return PaymentQuery(
        type=TransactionType.COLLECTION,
        phone_number=PHONE_NUMBER,
        amount=amount,
        sent_at=sent_at,
        ended_at=sent_at + took,
    )


def row(created_at: datetime = NOON, *, id: str = "tx-1", **changes: Any) -> Transaction:
    """Return a transaction that such a payment may be."""
    made = attrs.evolve(PENDING, id=id, reference=f"ref-{id}", phone_number=PHONE_NUMBER, created_at=created_at)
    return attrs.evolve(made, **changes)


@st.composite
def skews(draw: st.DrawFn) -> Skew | None:
    """Draw the possible samples of a clock."""
    if draw(st.booleans()):
        return None
    low = draw(offsets)
    return Skew(low=low, high=low + draw(durations))


@st.composite
def sightings(draw: st.DrawFn, ahead: timedelta) -> ClockSample:
    """Draw an honest look at a clock that is ahead of ours by so much, cut to a second or not."""
    began_at = NOON + draw(offsets)
    took = draw(durations)
    shown = began_at + draw(st.sampled_from([0.0, 0.3, 1.0])) * took + ahead
    if draw(st.booleans()):
        shown = shown.replace(microsecond=0)
    return ClockSample(shown=shown, began_at=began_at, ended_at=began_at + took)


@st.composite
def misspelt(draw: st.DrawFn, number: str) -> str:
    """Draw a spelling of a number in which no digit is wrong."""
    digits = number[1:]
    whole = [number, digits, f"00{digits}", f"0{digits[-9:]}", digits[-9:], f"+{digits[:3]} {digits[3:6]} {digits[6:]}"]
    spelling = draw(st.sampled_from([*whole, "masked", "cut", "", "N/A", "—"]))
    shown, hidden = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    if spelling == "masked":
        text = draw(st.sampled_from(whole[:5]))
        return text[:shown] + draw(st.sampled_from(["*", "***", "xxxx", "…", "••"])) + text[len(text) - hidden :]
    if spelling == "cut":
        return number[: len(number) - hidden] if draw(st.booleans()) else digits[hidden:]
    return spelling


def listing(rows: Iterable[Transaction], **changes: Any) -> Listing:
    """Return a listing of everything, an hour after noon, which was read as a whole."""
    began_at = NOON + HOUR
    whole = Listing(rows=tuple(rows), began_at=began_at, ended_at=began_at, first_day=date.min, is_complete=True)
    return attrs.evolve(whole, **changes)


def clock(skew: Skew | None) -> tuple[ClockSample, ...]:
    """Return Date headers that show a difference of the clocks."""
    if skew is None:
        return ()
    return (ClockSample(shown=NOON, began_at=NOON + SECOND - skew.high, ended_at=NOON - skew.low),)


def judged(query: PaymentQuery, rows: Iterable[Transaction], skew: Skew | None, **changes: Any) -> Verdict:
    """Return the verdict from a listing of everything that nothing owns, and that passed its control."""
    shown = listing(rows, dates=clock(skew), **changes)
    return Evidence(listing=shown, owned={}, searches={"order-1": query}, grace=120.0).judge("order-1", None)


def time_of(row: Transaction) -> datetime:
    """Return the time of a row that shows one."""
    assert row.created_at is not None
    return row.created_at


def own(sent_at: datetime = NOON, *, id: str = "tx-1", took: timedelta = 2 * SECOND, **changes: Any) -> PaymentRecord:
    """Return the record of an own payment whose transaction is known, of the same kind as the search."""
    record = PaymentRecord(
        key=f"key-{id}",
        type=TransactionType.COLLECTION,
        phone_number=PHONE_NUMBER,
        amount=Decimal(1000),
        state=PaymentState.ACKNOWLEDGED,
        attempt=1,
        created_at=sent_at,
        changed_at=sent_at + took,
        sent_at=sent_at,
        ended_at=sent_at + took,
        transaction_id=id,
    )
    return attrs.evolve(record, **changes)
