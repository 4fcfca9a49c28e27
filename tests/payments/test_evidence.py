"""Evidence in listings and acknowledgements, by the laws that keep payments from being called absent or ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.payments.evidence import Verdict
from mobilemoney_async.payments.matching import Skew, estimate_skew
from tests.payments.listed import SECOND, durations, judged, offsets, row, search, sightings, skews
from tests.support.fakes import NOON, PHONE_NUMBER

_CLEAR = Verdict(is_clear=True, absent_ok=True)

_OTHERS: list[dict[str, Any]] = [
    {"type": TransactionType.DISBURSEMENT},
    {"phone_number": PHONE_NUMBER[:-1] + "0"},
    {"phone_number": PHONE_NUMBER + "0"},
    {"amount": Decimal(1001)},
    {"amount": Decimal("1000.50")},
    {"amount": Decimal(-1000)},
    {"amount": Decimal(100)},
    {"amount": Decimal(10000)},
]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("skew", [None, Skew(low=timedelta(0), high=SECOND)], ids=str)
def test_another_kind_is_no_match(other: dict[str, Any], skew: Skew | None) -> None:
    """A transaction of another type, phone number or amount is neither adopted nor a candidate."""
    assert judged(search(), [attrs.evolve(row(), **other)], skew) == _CLEAR


@pytest.mark.parametrize("amount", ["1000", "1000.00", "1E+3", "1000.0"])
def test_an_amount_is_compared_as_a_number(amount: str) -> None:
    """The service may write the amount in any way."""
    verdict = judged(search(), [row(amount=Decimal(amount))], Skew(low=timedelta(0), high=SECOND))
    assert verdict.adopt is not None


@pytest.mark.parametrize("written", ["255780000789", "+255 780 000 789", "+255-780-000-789", "00255780000789"[2:]])
def test_a_phone_number_is_compared_by_its_digits(written: str) -> None:
    """The service may leave out the plus, or put spaces."""
    assert judged(search(), [row(phone_number=written)], Skew(low=timedelta(0), high=SECOND)).adopt is not None


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
    verdict = judged(wanted, made, skew)
    start, end = wanted.window(skew)
    first, last = wanted.reach(skew)
    near = {each.id for each in made if each.amount == 1000 and first <= each.created_at <= last}
    if verdict.adopt is not None:
        assert near == {verdict.adopt.id}
        assert start <= verdict.adopt.created_at <= end
        assert not verdict.candidates
    else:
        assert set(verdict.candidates) == near
    assert (verdict == _CLEAR) is (not near)


@given(skews(), st.integers(2, 5), st.data())
def test_two_matches_are_never_adopted(skew: Skew | None, count: int, data: st.DataObject) -> None:
    """Where two transactions may be the payment, none is adopted, and both are candidates, in whichever order."""
    wanted = search()
    start, end = wanted.window(skew)
    inside = st.datetimes(start.replace(tzinfo=None), end.replace(tzinfo=None), timezones=st.just(UTC))
    rows = [row(data.draw(inside), id=f"tx-{number}") for number in range(count)]
    verdict = judged(wanted, data.draw(st.permutations(rows)), skew)
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
    assert judged(wanted, [true], skew).adopt is true


@given(offsets)
@example(timedelta(days=3))
@example(timedelta(days=-3))
def test_without_a_look_at_the_clock_nothing_wrong_is_said(ahead: timedelta) -> None:
    """Where nothing is known of the service's clock, a true transaction is adopted or a candidate, never missed."""
    verdict = judged(search(), [row(NOON + ahead)], None)
    assert verdict != _CLEAR


def test_a_match_far_from_its_window_is_a_candidate_at_most() -> None:
    """A match some minutes off is not believed, and still forbids to call the payment absent."""
    skew = Skew(low=timedelta(0), high=SECOND)
    wanted = search()
    start, end = wanted.window(skew)
    assert judged(wanted, [row(start - SECOND)], skew).candidates == ("tx-1",)
    assert judged(wanted, [row(end + SECOND)], skew).candidates == ("tx-1",)


def test_a_match_before_and_one_in_the_window_are_ambiguous() -> None:
    """A match inside the window is not adopted while another lies near, though outside."""
    skew = Skew(low=timedelta(0), high=SECOND)
    verdict = judged(search(), [row(NOON + SECOND), row(NOON - timedelta(minutes=5), id="tx-2")], skew)
    assert verdict.adopt is None
    assert verdict.candidates == ("tx-1", "tx-2")


@given(skews(), offsets)
def test_no_time_is_beyond_the_calendar(skew: Skew | None, offset: timedelta) -> None:
    """A row stamped at the ends of the calendar is judged like any other."""
    assume(skew is not None)
    verdict = judged(search(NOON + offset), [row(datetime.min.replace(tzinfo=UTC))], skew)
    assert verdict == _CLEAR
