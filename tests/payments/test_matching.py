"""Matching of payments and transactions, by the laws that keep money from going astray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mobilemoney_async import Network, Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.matching import (
    ClockSample,
    PaymentQuery,
    Skew,
    Verdict,
    date_ranges,
    estimate_skew,
    judge,
    read_date,
)
from tests.support.fakes import NOON, PHONE_NUMBER

_SECOND = timedelta(seconds=1)
_HOUR = timedelta(hours=1)

durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(seconds=40))
offsets = st.timedeltas(min_value=-2 * _HOUR, max_value=2 * _HOUR)
types = st.sampled_from([TransactionType.COLLECTION, TransactionType.DISBURSEMENT])


def search(sent_at: datetime = NOON, *, took: timedelta = 2 * _SECOND, amount: str = "1000") -> PaymentQuery:
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
    made = Transaction(
        id=id,
        reference=f"ref-{id}",
        type=TransactionType.COLLECTION,
        amount=Decimal(1000),
        currency="TZS",
        phone_number=PHONE_NUMBER,
        network=Network.AIRTEL_MONEY,
        status=TransactionStatus.PENDING,
        created_at=created_at,
    )
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


@given(st.data(), offsets)
def test_the_estimate_contains_the_truth(data: st.DataObject, ahead: timedelta) -> None:
    """However many honest looks at the service's clock there are, the bounds contain how far it really is ahead."""
    seen = data.draw(st.lists(sightings(ahead), min_size=1, max_size=6))
    skew = estimate_skew(seen)
    assert skew is not None
    assert skew.low <= ahead <= skew.high


@given(st.data(), offsets, offsets)
def test_a_clock_that_was_set_meanwhile_widens_the_estimate(
    data: st.DataObject, before: timedelta, after: timedelta
) -> None:
    """If samples disagree, since a clock was set in between, the bounds contain the truth before and after."""
    earlier = data.draw(st.lists(sightings(before), min_size=1, max_size=3))
    later = data.draw(st.lists(sightings(after), min_size=1, max_size=3))
    skew = estimate_skew([*earlier, *later])
    assert skew is not None
    # If the two are too near to be distinguished, the bounds may be those of either.
    tolerance = max(seen.ended_at - seen.began_at for seen in (*earlier, *later)) + _SECOND
    assert skew.low <= min(before, after) + tolerance
    assert max(before, after) - tolerance <= skew.high


def test_nothing_is_said_of_a_clock_that_was_never_seen() -> None:
    assert estimate_skew([]) is None


@given(st.data(), offsets)
def test_more_looks_never_say_less(data: st.DataObject, ahead: timedelta) -> None:
    """Another honest look at a steady clock never widens the bounds."""
    seen = data.draw(st.lists(sightings(ahead), min_size=2, max_size=5))
    few, all_of_them = estimate_skew(seen[:-1]), estimate_skew(seen)
    assert few is not None
    assert all_of_them is not None
    assert few.low <= all_of_them.low
    assert all_of_them.high <= few.high


_OTHERS: list[dict[str, Any]] = [
    {"type": TransactionType.DISBURSEMENT},
    {"type": TransactionType("refund")},
    {"phone_number": PHONE_NUMBER[:-1] + "0"},
    {"phone_number": PHONE_NUMBER + "0"},
    {"phone_number": ""},
    {"amount": Decimal(1001)},
    {"amount": Decimal("1000.50")},
    {"amount": Decimal(-1000)},
    {"amount": Decimal(100)},
    {"amount": Decimal(10000)},
]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("skew", [None, Skew(low=timedelta(0), high=_SECOND)], ids=str)
def test_another_kind_is_no_match(other: dict[str, Any], skew: Skew | None) -> None:
    """A transaction of another type, phone number or amount is neither adopted nor a candidate."""
    assert judge(search(), [attrs.evolve(row(), **other)], skew) == Verdict()


@pytest.mark.parametrize("amount", ["1000", "1000.00", "1E+3", "1000.0"])
def test_an_amount_is_compared_as_a_number(amount: str) -> None:
    """The service may write the amount in any way."""
    verdict = judge(search(), [row(amount=Decimal(amount))], Skew(low=timedelta(0), high=_SECOND))
    assert verdict.adopt is not None


@pytest.mark.parametrize("written", ["255780000789", "+255 780 000 789", "+255-780-000-789", "00255780000789"[2:]])
def test_a_phone_number_is_compared_by_its_digits(written: str) -> None:
    """The service may leave out the plus, or put spaces."""
    assert judge(search(), [row(phone_number=written)], Skew(low=timedelta(0), high=_SECOND)).adopt is not None


@given(skews(), st.lists(st.tuples(offsets, st.booleans()), max_size=6), durations)
def test_only_a_lone_near_match_of_the_kind_is_adopted(
    skew: Skew | None, rows: Sequence[tuple[timedelta, bool]], took: timedelta
) -> None:
    """An adopted transaction is of the kind, inside the window, and the only one of its kind anywhere near."""
    made = [
        row(NOON + offset, id=f"tx-{number}", amount=Decimal(1000 if fits else 999))
        for number, (offset, fits) in enumerate(rows)
    ]
    wanted = search(took=took)
    verdict = judge(wanted, made, skew)
    start, end = wanted.window(skew)
    first, last = wanted.reach(skew)
    near = {each.id for each in made if wanted.fits(each) and first <= each.created_at <= last}
    if verdict.adopt is not None:
        assert near == {verdict.adopt.id}
        assert start <= verdict.adopt.created_at <= end
        assert not verdict.candidates
    else:
        assert set(verdict.candidates) == near
    assert (verdict == Verdict()) is (not near)


@given(skews(), st.integers(2, 5), st.data())
def test_two_matches_are_never_adopted(skew: Skew | None, count: int, data: st.DataObject) -> None:
    """Where two transactions may be the payment, none is adopted, and both are candidates, in whichever order."""
    wanted = search()
    start, end = wanted.window(skew)
    inside = st.datetimes(start.replace(tzinfo=None), end.replace(tzinfo=None), timezones=st.just(UTC))
    rows = [row(data.draw(inside), id=f"tx-{number}") for number in range(count)]
    verdict = judge(wanted, data.draw(st.permutations(rows)), skew)
    assert verdict.adopt is None
    assert verdict.candidates == tuple(sorted(each.id for each in rows))


@given(st.data(), offsets, durations, st.timedeltas(min_value=timedelta(0), max_value=timedelta(seconds=100)))
def test_the_true_transaction_is_always_within_the_window(
    data: st.DataObject, ahead: timedelta, took: timedelta, late: timedelta
) -> None:
    """A payment that the service took while it was asked, or up to 100 s later, is found by honest looks."""
    wanted = search(took=took)
    made_at = NOON + took + late if data.draw(st.booleans()) else NOON + data.draw(st.floats(0, 1)) * took
    true = row((made_at + ahead).replace(microsecond=0))
    skew = estimate_skew(data.draw(st.lists(sightings(ahead), min_size=1, max_size=4)))
    assert judge(wanted, [true], skew).adopt is true


@given(offsets)
@example(timedelta(days=3))
@example(timedelta(days=-3))
def test_without_a_look_at_the_clock_nothing_wrong_is_said(ahead: timedelta) -> None:
    """Where nothing is known of the service's clock, a true transaction is adopted or a candidate, never missed."""
    verdict = judge(search(), [row(NOON + ahead)], None)
    assert verdict != Verdict()


def test_a_match_far_from_its_window_is_a_candidate_at_most() -> None:
    """A match some minutes off is not believed, and still forbids to call the payment absent."""
    skew = Skew(low=timedelta(0), high=_SECOND)
    wanted = search()
    start, end = wanted.window(skew)
    assert judge(wanted, [row(start - _SECOND)], skew).candidates == ("tx-1",)
    assert judge(wanted, [row(end + _SECOND)], skew).candidates == ("tx-1",)


def test_a_match_before_and_one_in_the_window_are_ambiguous() -> None:
    """A match inside the window is not adopted while another lies near, though outside."""
    skew = Skew(low=timedelta(0), high=_SECOND)
    verdict = judge(search(), [row(NOON + _SECOND), row(NOON - timedelta(minutes=5), id="tx-2")], skew)
    assert verdict.adopt is None
    assert verdict.candidates == ("tx-1", "tx-2")


@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(2020, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 (naive)
            st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=5)),
        ),
        max_size=12,
    )
)
def test_the_spans_cover_every_payment_once(sends: Sequence[tuple[datetime, timedelta]]) -> None:
    """Each payment is looked for in one span, which holds its days and one to spare; date_ranges do not overlap."""
    searches = {f"key-{number}": search(at, took=took) for number, (at, took) in enumerate(sends)}
    found = date_ranges(searches)
    assert sorted(key for span in found for key in span.queries) == sorted(searches)
    for span in found:
        for wanted in span.queries.values():
            assert span.first < wanted.sent_at.date()
            assert span.last > wanted.ended_at.date()
    assert [span.first for span in found] == sorted(span.first for span in found)
    assert all(before.last < after.first for before, after in itertools.pairwise(found))


def test_an_old_payment_does_not_cost_the_listing_of_all_days_since() -> None:
    """Two payments a year apart are two listings of some days each."""
    old, new = date_ranges({"new": search(NOON), "old": search(NOON - timedelta(days=365))})
    assert [*old.queries] == ["old"]
    assert old.last - old.first < timedelta(days=7)
    assert new.first > date(2025, 12, 1)


@pytest.mark.parametrize(
    ("header", "moment"),
    [
        ("Fri, 02 Jan 2026 12:00:00 GMT", NOON),
        ("Fri, 02 Jan 2026 15:00:00 +0300", NOON),
        ("Fri, 02 Jan 2026 12:00:00", NOON),
        ("Friday, 02-Jan-26 12:00:00 GMT", NOON),
        ("yesterday", None),
        ("", None),
        ("Fri, 99 Jan 2026 12:00:00 GMT", None),
    ],
)
def test_a_date_header(header: str, moment: datetime | None) -> None:
    """A Date header is read as UTC, in any zone; other text gives None."""
    assert read_date(header) == moment


@given(st.text())
@example("Mon, 01 Jan 0001 00:00:00 +2300")
@example("Fri, 31 Dec 9999 23:59:59 -2300")
@example("Fri, 02 Jan 2026 12:00:00 +99999999")
def test_no_header_breaks_a_listing(header: str) -> None:
    """Whatever a header says, it is a time or none."""
    moment = read_date(header)
    assert moment is None or moment.tzinfo is UTC


def test_a_search_shows_no_phone_number() -> None:
    assert PHONE_NUMBER not in repr(search())


@given(skews(), offsets)
def test_no_time_is_beyond_the_calendar(skew: Skew | None, offset: timedelta) -> None:
    """A row stamped at the ends of the calendar is judged like any other."""
    assume(skew is not None)
    verdict = judge(search(NOON + offset), [row(datetime.min.replace(tzinfo=UTC))], skew)
    assert verdict == Verdict()
