"""Evidence in listings and acknowledgements, by the laws that keep payments from being called absent or ours."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mobilemoney_async import Acknowledgement, PaymentRecord, Transaction
from mobilemoney_async.contract.comparison import contradiction
from mobilemoney_async.contract.models import UnreadableRow
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.ownership.evidence import Evidence, Listing, Verdict, may_be, names
from mobilemoney_async.payments.ownership.matching import PaymentQuery, Skew, estimate_skew, query_for
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentRequest
from tests.payments.listed import (
    HOUR,
    SECOND,
    clock,
    durations,
    judged,
    listing,
    misspelt,
    offsets,
    own,
    row,
    search,
    sightings,
    skews,
    time_of,
)
from tests.support.fakes import NOON, PHONE_NUMBER

_CLEAR = Verdict(is_clear=True, has_none_near=True)
_TICK = timedelta(microseconds=1)

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


@pytest.mark.slow
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
    near = {each.id for each in made if each.amount == 1000 and first <= time_of(each) <= last}
    if verdict.adopt is not None:
        assert near == {verdict.adopt.id}
        assert start <= time_of(verdict.adopt) <= end
        assert not verdict.candidates
    else:
        assert set(verdict.candidates) == near
    assert (verdict == _CLEAR) is (not near)


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_candidate_of_earlier_stays_while_the_list_shows_it() -> None:
    """Our own acknowledgement may have named it: another amount or number is no proof, and forbids an absence."""
    strange = row(id="tx-9", amount=Decimal(77), phone_number=PHONE_NUMBER[:-1] + "0")
    seen = Evidence(listing=listing([strange]), owned={}, searches={"order-1": search()}, grace=120.0)
    verdict = seen.judge("order-1", None)
    assert verdict == _CLEAR
    assert seen.keep_candidates(verdict, ["tx-9", "tx-10"]) == Verdict(candidates=("tx-9",))
    assert seen.keep_candidates(verdict, ["tx-10"]) == verdict
    for known in ({"owned": {"tx-9": own(id="tx-9")}}, {"explained_ids": {"tx-9"}}):
        assert attrs.evolve(seen, **known).keep_candidates(verdict, ["tx-9"]) == verdict


@pytest.mark.parametrize(("minute", "hours"), [(0, 0), (1, 0), (4, 0), (25, 1), (29, 1)])
def test_the_nearest_own_payments_show_the_clock_of_a_search(minute: int, hours: int) -> None:
    """Whether it is among the first or the last of many, and although the clock was set by an hour in between."""
    times = [NOON + timedelta(minutes=number) for number in range(30)]
    rows = [row(at + (HOUR if number > 14 else timedelta(0)), id=f"{number}") for number, at in enumerate(times)]
    owned = {f"{number}": own(at, id=f"{number}") for number, at in enumerate(times)}
    skew = Evidence(listing=listing(rows), owned=owned, searches={}, grace=120.0).skew(search(times[minute]))
    assert skew is not None and skew.is_own
    assert skew.low <= hours * HOUR <= skew.high < hours * HOUR + 5 * SECOND


def test_a_match_far_from_its_window_is_a_candidate_at_most() -> None:
    """A match some minutes off is not believed, and still forbids to call the payment absent."""
    skew = Skew(low=timedelta(0), high=SECOND)
    wanted = search()
    start, end = wanted.window(skew)
    assert judged(wanted, [row(start - SECOND)], skew).candidates == ("tx-1",)
    assert judged(wanted, [row(end + SECOND)], skew).candidates == ("tx-1",)
    for limit, outside in zip(wanted.reach(skew), (-timedelta.resolution, timedelta.resolution), strict=True):
        assert judged(wanted, [row(limit)], skew).candidates == ("tx-1",)
        assert judged(wanted, [row(limit + outside)], skew) == _CLEAR


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


_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_STEADY = Skew(low=timedelta(0), high=SECOND)
_COLLECTION, _DISBURSEMENT = TransactionType.COLLECTION, TransactionType.DISBURSEMENT


_PARTS = ("searches", "explained_ids", "merchant_id", "hidden")


def evidence(rows: Sequence[Transaction], *records: PaymentRecord, **changes: Any) -> Evidence:
    """Return the evidence in a listing, an hour after noon, with the own payments whose transactions are known."""
    arguments: dict[str, Any] = {"searches": {"order-1": search()}}
    arguments |= {name: changes.pop(name) for name in _PARTS if name in changes}
    owned = {str(record.transaction_id): record for record in records}
    shown = listing(rows, **{"dates": clock(_STEADY), **changes})
    return Evidence(listing=shown, owned=owned, grace=120.0, **arguments)


def _brief(value: object) -> str:
    return ", ".join(value) if isinstance(value, dict) else str(value)


# The positive control

_BEFORE, _AFTER = own(NOON - _MINUTE, id="before"), own(NOON + _MINUTE, id="after")
_SHOWN = [row(NOON - _MINUTE, id="before"), row(NOON + _MINUTE, id="after")]


_NO_EARLIER, _NO_LATER = Reason(PaymentCause.NO_EARLIER), Reason(PaymentCause.NO_LATER)
_NOT_WHOLE, _UNREADABLE = Reason(PaymentCause.NOT_WHOLE), Reason(PaymentCause.UNREADABLE)
_TOO_OLD, _OTHER_DAYS = Reason(PaymentCause.TOO_OLD), Reason(PaymentCause.OTHER_DAYS)
_IN_GRACE = Reason(PaymentCause.IN_GRACE)
_PAID = attrs.evolve(_SHOWN[1], type=_DISBURSEMENT)
_ERASED, _MASKED = attrs.evolve(_BEFORE, phone_number="erased:0"), attrs.evolve(_SHOWN[0], phone_number="25578***0789")
_NEXT_DAY = {"began_at": NOON + _DAY}


def controlled(
    rows: Sequence[Transaction] = tuple(_SHOWN),
    before: Sequence[PaymentRecord] = (_BEFORE,),
    after: Sequence[PaymentRecord] = (_AFTER,),
    **changes: Any,
) -> Reason | None:
    """Return the control of a listing for the search at noon."""
    return evidence(rows, *before, *after, **changes).control(search(), [*before, *after])


def test_the_control_is_passed_if_the_payments_on_both_sides_are_shown() -> None:
    assert controlled() is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": _SHOWN[:1]}, Reason(PaymentCause.HIDDEN, "key-after")),
        ({"rows": _SHOWN[1:]}, Reason(PaymentCause.HIDDEN, "key-before")),
        ({"rows": []}, Reason(PaymentCause.HIDDEN, "key-before")),
        ({"rows": _SHOWN[:1], "unreadable": (UnreadableRow(id="after"),)}, _UNREADABLE),
        (
            {"rows": [attrs.evolve(each, phone_number="") for each in _SHOWN]},
            Reason(PaymentCause.ALTERED, "key-before"),
        ),
        (
            {"rows": [_SHOWN[0], attrs.evolve(_SHOWN[1], amount=Decimal(1001))]},
            Reason(PaymentCause.ALTERED, "key-after"),
        ),
        (
            {"rows": [_SHOWN[0], row(NOON + HOUR, id="after")], "after": [attrs.evolve(_AFTER, is_adopted=True)]},
            Reason(PaymentCause.ALTERED, "key-after"),
        ),
        # Another whole number than the erased one.
        ({"before": [_ERASED]}, Reason(PaymentCause.ALTERED, "key-before")),
        ({"rows": _SHOWN, "merchant_id": "merchant-1"}, None),
        (
            {"rows": [attrs.evolve(each, merchant_id="merchant-2") for each in _SHOWN], "merchant_id": "merchant-1"},
            Reason(PaymentCause.ALTERED, "key-before"),
        ),
    ],
    ids=_brief,
)
def test_the_control_fails_if_the_list_contradicts_an_own_payment(
    changes: dict[str, Any], reason: Reason | None
) -> None:
    """One payment that exists and is not shown, or that the search would not recognise, is enough."""
    assert controlled(**changes) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_complete": False}, _NOT_WHOLE),
        ({"after": []}, _NO_LATER),
        ({"before": []}, _NO_EARLIER),
        ({"before": [], "rows": _SHOWN[1:]}, _TOO_OLD),
        # Sent while the search was on its way: it may have been made before or after.
        ({"after": [own(NOON + SECOND, id="after")]}, _NO_LATER),
        ({"before": [own(NOON - SECOND, id="a")], "rows": [*_SHOWN, row(NOON, id="a")]}, _NO_EARLIER),
        ({"after": [attrs.evolve(_AFTER, type=_DISBURSEMENT)], "rows": [_SHOWN[0], _PAID]}, _NO_LATER),
        ({"after": [attrs.evolve(_AFTER, transaction_id=None)]}, _NO_LATER),
        # Its own row may be too young for the list.
        ({"after": [own(NOON + HOUR - _MINUTE, id="after")]}, _NO_LATER),
        ({"before": [own(NOON - 8 * _DAY, id="before")]}, _NO_EARLIER),
        # Outside the days that were asked for it is not missing.
        ({"before": [own(NOON - 3 * _DAY, id="b")], "first_day": date(2026, 1, 1)}, _OTHER_DAYS),
        ({"after": [own(NOON + 23 * HOUR, id="a")], "last_day": date(2026, 1, 4), **_NEXT_DAY}, _OTHER_DAYS),
        ({"rows": [_SHOWN[0], attrs.evolve(_SHOWN[1], created_at=None)]}, Reason(PaymentCause.UNTIMED)),
        ({"before": [_ERASED], "rows": [_MASKED, _SHOWN[1]]}, Reason(PaymentCause.UNTIMED)),
        # A part of the list: what a whole one would lack is said first.
        ({"is_complete": False, "after": []}, _NO_LATER),
        ({"is_complete": False, "before": [], "rows": _SHOWN[1:]}, _NO_EARLIER),
        ({"is_complete": False, "rows": []}, _NOT_WHOLE),
        # Nobody is to confirm that it is absent while the list may still show it.
        ({"began_at": NOON + 2 * _MINUTE, "after": []}, _IN_GRACE),
    ],
    ids=_brief,
)
def test_nothing_is_concluded_without_payments_to_compare_with(changes: dict[str, Any], reason: Reason) -> None:
    """Without own payments on both sides the control is not passed, and not failed either."""
    assert controlled(**changes) == reason


@pytest.mark.parametrize(("edge", "outwards"), [(0, -_TICK), (1, _TICK)], ids=["first", "last"])
def test_a_payment_of_the_control_may_be_ten_minutes_out_of_its_own_window(edge: int, outwards: timedelta) -> None:
    """A service whose clock is set now and then stops nothing; the search itself sees a payment up to a day off."""
    after = attrs.evolve(_AFTER, is_adopted=True)
    at = query_for(after).window(_STEADY)[edge] + (10 * _MINUTE if edge else -10 * _MINUTE)
    before = attrs.evolve(_BEFORE, is_adopted=True)
    assert controlled([_SHOWN[0], row(at, id="after")], [before], [after]) is None
    assert controlled([_SHOWN[0], row(at + outwards, id="after")], [before], [after]) is not None


def test_the_control_compares_payments_that_touch_the_search_or_are_a_week_away() -> None:
    """One that ended at its send, one that was sent at its end; a microsecond nearer they may be in any order."""
    ended, begun = own(NOON - 2 * SECOND, id="before"), own(NOON + 2 * SECOND, id="after")
    rows = [row(NOON - 2 * SECOND, id="before"), row(NOON + 2 * SECOND, id="after")]
    assert controlled(rows, [ended], [begun]) is None
    late = attrs.evolve(ended, ended_at=NOON + _TICK)
    older = row(NOON - HOUR, id="older", amount=Decimal(5))
    assert controlled([*rows, older], [late], [begun]) == _NO_EARLIER
    early = attrs.evolve(begun, sent_at=NOON + 2 * SECOND - _TICK)
    assert controlled(rows, [ended], [early]) == _NO_LATER
    for distance, reason in ((7 * _DAY, None), (7 * _DAY + _TICK, _NO_EARLIER)):
        old = own(NOON - distance, id="before")
        assert controlled([row(NOON - distance, id="before"), _SHOWN[1]], [old]) == reason


def test_the_list_is_as_old_as_the_payment_with_a_row_at_its_window() -> None:
    """Then an earlier payment is missing, rather than the older part of the list."""
    start = search().window(_STEADY)[0]
    for at, reason in ((start, _NO_EARLIER), (start + _TICK, _TOO_OLD)):
        stranger = row(at, id="stranger", amount=Decimal(5))
        after = attrs.evolve(_AFTER, is_adopted=True)
        assert controlled([stranger, _SHOWN[1]], [], [after]) == reason


def test_the_control_waits_for_the_grace_period() -> None:
    """A list that already shows the payments on both sides may still lack the one between them."""
    assert controlled(began_at=NOON + _MINUTE + 122 * SECOND) is None
    assert controlled(began_at=NOON + _MINUTE + 121 * SECOND) is not None


def test_the_control_takes_the_nearest_three_of_each_side() -> None:
    """A payment that is farther off may be missing from the list; one of the nearest three may not."""
    before = [own(NOON - number * _MINUTE, id=f"tx-{number}") for number in (4, 2, 1, 3)]
    rows = [row(NOON - number * _MINUTE, id=f"tx-{number}") for number in (1, 2, 3)]
    assert controlled([*rows, _SHOWN[1]], before) is None
    assert controlled([*rows[:2], _SHOWN[1]], before) == Reason(PaymentCause.HIDDEN, "key-tx-3")


@pytest.mark.parametrize(
    ("hidden", "is_failed"),
    [
        (own(NOON - 5 * HOUR, id="far"), True),
        (own(NOON, id="far"), True),
        (own(NOON - 5 * HOUR, id="far", type=_DISBURSEMENT), False),
        (own(NOON + HOUR - _MINUTE, id="far"), False),
        (own(NOON - 8 * _DAY, id="far"), False),
    ],
    ids=str,
)
def test_a_list_that_hides_any_payment_of_those_days_may_hide_the_lost_one(
    hidden: PaymentRecord, is_failed: bool
) -> None:
    """The nearest payments are shown, but not one that is farther off: no order or cut of a list explains that."""
    reason = Reason(PaymentCause.HIDDEN, "key-far") if is_failed else None
    assert controlled(hidden=[hidden]) == reason


def test_the_control_learns_the_form_of_numbers_that_it_needs() -> None:
    """A list that shows numbers in its own way passes, if own payments prove that way."""
    changes: dict[str, Any] = {"phone_number": "25578***0789"}
    rows = [attrs.evolve(each, **changes) for each in _SHOWN]
    assert controlled(rows) is None
    true = row(NOON, id="tx-1", **changes)
    verdict = evidence([*rows, true], _BEFORE, _AFTER).judge("order-1", _NO_LATER)
    assert verdict == Verdict(adopt=true)


# Verdicts


@pytest.mark.parametrize("passed", [True, False])
def test_a_listing_without_the_payment_counts_if_its_control_has_passed(passed: bool) -> None:
    control = None if passed else _NO_LATER
    verdict = evidence(_SHOWN, _BEFORE, _AFTER).judge("order-1", control)
    assert verdict == Verdict(is_clear=True, has_none_near=True, reason=control)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_complete": False}, _NOT_WHOLE),
        ({"is_complete": False, "covered": (NOON - HOUR, NOON + HOUR)}, _NOT_WHOLE),
        ({"first_day": date(2026, 1, 2)}, _OTHER_DAYS),
        ({"first_day": date(2026, 1, 3)}, _OTHER_DAYS),
        ({"unreadable": (UnreadableRow(),)}, _UNREADABLE),
        ({"unreadable": (UnreadableRow(id="tx-9"),)}, _UNREADABLE),
        ({"unreadable": (UnreadableRow(created_at=NOON + HOUR),)}, _UNREADABLE),
        ({"unreadable": (UnreadableRow(created_at=NOON + 2 * _DAY),)}, None),
        ({"unreadable": (UnreadableRow(id="before"),)}, None),
        ({"unreadable": (UnreadableRow(id="tx-9", created_at=NOON),), "explained_ids": {"tx-9"}}, None),
        ({"last_day": date(2026, 1, 3)}, _OTHER_DAYS),
        ({"first_day": date(2026, 1, 1), "last_day": date(2026, 1, 4)}, None),
    ],
    ids=_brief,
)
def test_a_listing_that_may_have_missed_the_payment_does_not_count(
    changes: dict[str, Any], reason: Reason | None
) -> None:
    """A listing with a gap, of other days, or with an unreadable row near the payment shows no absence."""
    verdict = evidence(_SHOWN, _BEFORE, _AFTER, **changes).judge("order-1", None)
    assert verdict == (_CLEAR if reason is None else Verdict(reason=reason))


@pytest.mark.parametrize(("edge", "outwards"), [(0, -_TICK), (1, _TICK)], ids=["first", "last"])
def test_an_unreadable_row_a_day_around_the_window_may_be_the_payment(edge: int, outwards: timedelta) -> None:
    """Up to the last microsecond in which a readable one would forbid an absence."""
    at = search().reach(evidence(_SHOWN, _BEFORE, _AFTER).skew(search()))[edge]
    for created_at, is_clear in ((at, False), (at + outwards, True)):
        unreadable = (UnreadableRow(created_at=created_at),)
        verdict = evidence(_SHOWN, _BEFORE, _AFTER, unreadable=unreadable).judge("order-1", None)
        assert verdict.is_clear is is_clear


def test_a_row_that_was_explained_is_no_payment() -> None:
    """An operator has said what the transaction is; one that cannot be read is above."""
    for explained, is_clear in (({"tx-9"}, True), (set(), False)):
        seen = evidence([*_SHOWN, row(id="tx-9")], _BEFORE, _AFTER, explained_ids=explained)
        assert seen.judge("order-1", None).is_clear is is_clear


def test_an_unreadable_row_does_not_keep_a_payment_from_being_found() -> None:
    verdict = evidence([row()], unreadable=(UnreadableRow(created_at=NOON),)).judge("order-1", _NO_LATER)
    assert verdict.adopt is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"phone_number": ""},
        {"phone_number": "25578***0789"},
        {"type": TransactionType("refund")},
        {"type": TransactionType("COLLECTION")},
        {"currency": "TSh"},
        {"status": TransactionStatus.FAILED, "phone_number": "0780000789"},
        {"id": ""},
    ],
    ids=str,
)
def test_a_row_that_may_be_the_payment_is_a_candidate(changes: dict[str, Any]) -> None:
    """A spelling that nothing proves is neither believed nor ignored."""
    made = row(**changes)
    verdict = evidence([made]).judge("order-1", None)
    assert verdict == Verdict(candidates=(made.id,), reason=may_be([made.id]))


@pytest.mark.parametrize(
    ("own_merchant", "others", "merchant_id", "known", "is_adopted"),
    [
        ("merchant-1", [], "merchant-1", "merchant-1", True),
        (None, [], "merchant-1", None, True),
        (None, [], None, None, True),
        ("merchant-1", [], None, "merchant-1", False),
        (None, ["merchant-1", "merchant-2"], "merchant-2", None, False),
        (None, ["merchant-1", "merchant-2"], "merchant-1", "merchant-1", True),
    ],
)
def test_a_row_is_adopted_only_if_it_shows_the_merchant_that_others_show(
    own_merchant: str | None, others: list[str], merchant_id: str | None, known: str | None, is_adopted: bool
) -> None:
    """Where our own rows name us, or some name others, a row that does not name us may be another merchant's."""
    rows = [row(NOON + HOUR, id=each, amount=Decimal(1001), merchant_id=each) for each in others]
    rows += [attrs.evolve(each, merchant_id=own_merchant) for each in _SHOWN if own_merchant]
    seen = evidence([*rows, row(merchant_id=merchant_id)], _BEFORE, _AFTER, merchant_id=known)
    verdict = seen.judge("order-1", _NO_LATER)
    assert (verdict.adopt is not None, verdict.candidates) == (is_adopted, () if is_adopted else ("tx-1",))


@pytest.mark.parametrize(("minutes", "is_adopted"), [(5, True), (20, False)])
def test_no_row_is_adopted_while_the_clock_jumps(minutes: int, is_adopted: bool) -> None:
    """Where own rows show different clocks, a row in the window of one of them may be another payment."""
    before, after = _SHOWN[0], attrs.evolve(_SHOWN[1], created_at=NOON + (minutes + 1) * _MINUTE)
    verdict = evidence([before, after, row()], _BEFORE, _AFTER).judge("order-1", _NO_LATER)
    assert (verdict.adopt is not None, verdict.candidates) == (is_adopted, () if is_adopted else ("tx-1",))


@pytest.mark.parametrize(
    ("owner", "candidates"),
    [
        (own(id="tx-1"), ()),
        (own(id="tx-1", amount=Decimal(1001)), ("tx-1",)),
        (own(id="tx-1", phone_number="+255780000780"), ("tx-1",)),
    ],
    ids=str,
)
def test_a_row_that_contradicts_its_owner_may_be_another_payment(
    owner: PaymentRecord, candidates: tuple[str, ...]
) -> None:
    """An acknowledgement had the id of another payment: the row proves nothing, and is not left out either."""
    verdict = evidence([*_SHOWN, row()], _BEFORE, _AFTER, owner).judge("order-1", None)
    assert (verdict.adopt, verdict.candidates, verdict.absent_ok) == (None, candidates, not candidates)


def test_some_candidates_are_named_and_all_are_kept() -> None:
    verdict = evidence([row(id=f"tx-{number}") for number in range(5)]).judge("order-1", _NO_LATER)
    assert verdict.candidates == ("tx-0", "tx-1", "tx-2", "tx-3", "tx-4")
    assert str(verdict.reason) == "it may be transaction tx-0 or tx-1 or tx-2 or another"


def test_a_row_that_another_payment_may_be_is_not_adopted() -> None:
    """A masked number that fits two unknown payments is a candidate of both."""
    changes: dict[str, Any] = {"phone_number": "255******0789"}
    rows = [attrs.evolve(each, **changes) for each in (*_SHOWN, row())]
    other = attrs.evolve(search(NOON + 2 * SECOND), phone_number="+255681000789")
    seen = evidence(rows, _BEFORE, _AFTER, searches={"order-1": search(), "order-2": other})
    expected = Verdict(candidates=("tx-1",), reason=Reason(PaymentCause.RIVAL, "order-2"))
    assert seen.judge("order-1", _NO_LATER) == expected
    assert seen.judge("order-2", _NO_LATER).candidates == ("tx-1",)
    dearer = attrs.evolve(other, amount="1001")
    alone = evidence(rows, _BEFORE, _AFTER, searches={"order-1": search(), "order-2": dearer})
    assert alone.judge("order-1", _NO_LATER).adopt is not None


@pytest.mark.parametrize(("edge", "outwards"), [(0, -_TICK), (1, _TICK)], ids=["first", "last"])
def test_the_edge_of_a_window_belongs_to_it(edge: int, outwards: timedelta) -> None:
    """A row at the first or the last moment may be the payment, and one a microsecond further out is not believed."""
    clock = Skew(low=timedelta(0), high=timedelta(0))
    at = search().window(clock)[edge]
    assert judged(search(), [row(at)], clock).adopt is not None
    assert judged(search(), [row(at + outwards)], clock).adopt is None
    window = search().window(evidence(_SHOWN, _BEFORE, _AFTER).skew(search()))
    part: dict[str, Any] = {"is_complete": False, "covered": window}
    assert evidence([_SHOWN[0], row()], _BEFORE, **part).judge("order-1", _NO_LATER).adopt is not None
    part["covered"] = tuple(each - outwards if place == edge else each for place, each in enumerate(window))
    assert evidence([_SHOWN[0], row()], _BEFORE, **part).judge("order-1", _NO_LATER).adopt is None


@pytest.mark.parametrize(("edge", "outwards"), [(0, -_TICK), (1, _TICK)], ids=["first", "last"])
def test_a_row_at_the_edge_of_another_search_may_be_that_payment(edge: int, outwards: timedelta) -> None:
    """Then it is nobody's, to ten minutes further, as a clock may be set; a microsecond beyond it is ours."""
    rows = [attrs.evolve(each, phone_number="255******0789") for each in (*_SHOWN, row())]
    other = attrs.evolve(search(), phone_number="+255681000789")
    skew = evidence(rows, _BEFORE, _AFTER).skew(search())
    for distance, is_contested in ((timedelta(0), True), (outwards, False)):
        shift = time_of(rows[-1]) - other.window(skew)[edge] - distance - (10 * _MINUTE if edge else -10 * _MINUTE)
        moved = attrs.evolve(other, sent_at=other.sent_at + shift, ended_at=other.ended_at + shift)
        verdict = evidence(rows, _BEFORE, _AFTER, searches={"order-1": search(), "order-2": moved}).judge(
            "order-1", _NO_LATER
        )
        assert (verdict.adopt is None) is is_contested


@pytest.mark.parametrize(("further", "is_adopted"), [(timedelta(0), True), (_TICK, False)])
def test_a_clock_is_steady_that_is_known_to_ten_minutes(further: timedelta, is_adopted: bool) -> None:
    """Where it may be further off, a row that fits is a candidate."""
    known = Skew(low=timedelta(0), high=timedelta(minutes=10) + further)
    assert (judged(search(), [row()], known).adopt is not None) is is_adopted


@pytest.mark.parametrize(
    ("covered", "has_own", "is_adopted"),
    [
        ((NOON - HOUR, NOON + HOUR), True, True),
        ((NOON - HOUR, NOON + HOUR), False, False),
        ((NOON, NOON + HOUR), True, False),
        ((NOON - HOUR, NOON), True, False),
        (None, True, False),
    ],
)
def test_a_bisection_finds_a_payment_and_shows_no_absence(
    covered: tuple[datetime, datetime] | None, has_own: bool, is_adopted: bool
) -> None:
    """Rows of a part of the list are adopted where all of the window was read, on a clock that own rows show."""
    part: dict[str, Any] = {"is_complete": False, "covered": covered}
    records = [_BEFORE] if has_own else []
    shown = _SHOWN[: len(records)]
    verdict = evidence([*shown, row()], *records, **part).judge("order-1", None)
    assert verdict.candidates == (() if is_adopted else ("tx-1",))
    assert (verdict.adopt is not None) is is_adopted
    assert evidence(shown, *records, **part).judge("order-1", None).is_clear is False


def test_the_clock_is_read_from_the_nearest_own_payments() -> None:
    """Own rows near the search show the service's clock at its time, though it was set before and since."""
    near = [own(NOON + number * _MINUTE, id=f"near-{number}") for number in range(-2, 3)]
    far = [own(NOON + number * HOUR, id=f"far-{number}") for number in (-3, -2, 2, 3)]
    rows = [row(each.sent_at + 2 * HOUR, id=str(each.transaction_id)) for each in near if each.sent_at]
    rows += [row(each.sent_at, id=str(each.transaction_id)) for each in far if each.sent_at]
    skew = evidence(rows, *near, *far).skew(search())
    assert skew == Skew(low=2 * HOUR - 2 * SECOND, high=2 * HOUR + SECOND, is_own=True)
    adopted = [attrs.evolve(each, is_adopted=True) for each in (*near, *far)]
    assert evidence(rows, *adopted).skew(search()) == _STEADY
    assert evidence(rows, dates=()).skew(search()) is None


# Acknowledgements

_REQUEST = PaymentRequest(key="order-1", type=_COLLECTION, phone_number=PHONE_NUMBER, amount="5000")


@pytest.mark.parametrize(
    ("changes", "different"),
    [
        ({}, None),
        ({"amount": Decimal("5000.00")}, None),
        ({"amount": Decimal("5E+3")}, None),
        ({"phone_number": "0780000789"}, None),
        ({"phone_number": "255 780 000 789"}, None),
        ({"phone_number": "+25578***0789"}, None),
        ({"currency": "tzs"}, None),
        ({"amount": Decimal("5000.50")}, "amount"),
        ({"amount": Decimal(50)}, "amount"),
        ({"currency": "USD"}, "currency"),
        ({"phone_number": "+255780000780"}, "phone number"),
        ({"phone_number": "+25578***0780"}, "phone number"),
        ({"phone_number": ""}, "phone number"),
        ({"phone_number": "+255780000780", "amount": Decimal(1)}, "amount and phone number"),
        ({"status": "Success"}, None),
        ({"status": "failed"}, "status"),
    ],
    ids=str,
)
def test_an_acknowledgement_must_echo_the_request(changes: dict[str, Any], different: str | None) -> None:
    """Values are compared, not texts; another amount, currency or number is a contradiction."""
    plain = Acknowledgement(
        transaction_id="tx-1",
        reference="ref-1",
        amount=Decimal(5000),
        currency="TZS",
        phone_number=PHONE_NUMBER,
        status_code=TransactionStatus.PENDING,
        status="success",
    )
    answer = attrs.evolve(plain, **changes)
    reason = contradiction(answer, type="collection", phone_number=_REQUEST.phone_number, amount=_REQUEST.amount)
    assert reason == (None if different is None else f"the acknowledgement names another {different}")


@pytest.mark.parametrize(
    ("changes", "is_ours"),
    [
        ({}, True),
        ({"phone_number": "0780000789"}, True),
        ({"phone_number": "+25578***0789"}, True),
        ({"status": TransactionStatus.FAILED}, True),
        ({"created_at": NOON - 30 * _MINUTE}, False),
        ({"created_at": NOON + 30 * _MINUTE}, False),
        ({"type": _DISBURSEMENT}, False),
        ({"type": TransactionType("c2b")}, False),
        ({"amount": Decimal(1001)}, False),
        ({"currency": "USD"}, False),
        ({"phone_number": "+255780000780"}, False),
        ({"phone_number": ""}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("skew", [None, _STEADY], ids=str)
def test_a_looked_up_transaction_is_ours_if_all_of_it_fits(
    changes: dict[str, Any], is_ours: bool, skew: Skew | None
) -> None:
    """Type, amount, number and time decide, whatever the acknowledgement has said."""
    assert names(search(), row(**changes), skew) is is_ours


@pytest.mark.parametrize(("edge", "outwards"), [(0, -_TICK), (1, _TICK)], ids=["first", "last"])
def test_a_looked_up_transaction_may_be_at_the_edge_of_the_window(edge: int, outwards: timedelta) -> None:
    """A microsecond further out it is another payment."""
    at = search().window(_STEADY)[edge]
    assert names(search(), row(at), _STEADY)
    assert not names(search(), row(at + outwards), _STEADY)


# The laws, against a list that misbehaves


@attrs.frozen(kw_only=True)
class World:
    """Payments at the service, and the search for one of them.

    Attributes:
        key: The payment that is looked for.
        true: The transaction that is looked for, or None if it does not exist.
        known: Own payments with known transactions.
        searches: All searches, of unknown payments.
        rows: All transactions, oldest first, as the contract spells them.
        numbers: The number of each transaction, by id.
    """

    key: str
    true: Transaction | None
    known: Sequence[PaymentRecord]
    searches: Mapping[str, PaymentQuery]
    rows: Sequence[Transaction]
    numbers: Mapping[str, str]

    @property
    def query(self) -> PaymentQuery:
        """The search for that payment."""
        return self.searches[self.key]

    @property
    def owned(self) -> Mapping[str, PaymentRecord]:
        """The own payments by transaction id."""
        return {str(record.transaction_id): record for record in self.known}

    def verdict(self, listing: Listing) -> Verdict:
        """Return the verdict from a listing, with its control."""
        seen = Evidence(listing=listing, owned=self.owned, searches=self.searches, grace=120.0)
        return seen.judge(self.key, seen.control(self.query, self.known))


_NUMBERS = ("+255780000789", "+255681000789", "+255780000780")


@st.composite
def worlds(draw: st.DrawFn, is_made: bool = True) -> World:
    """Draw some payments, one after the other, of which a few are unknown; one of these is looked for."""
    at, ahead = NOON, draw(offsets)
    lost = draw(st.integers(0, 5))
    known, searches, rows, numbers = [], {}, [], {}
    for place in range(6):
        at += draw(st.timedeltas(min_value=SECOND, max_value=20 * _MINUTE))
        took = draw(durations)
        made_at = at + ahead + draw(st.sampled_from([0.0, 0.5, 1.0])) * took
        number = _NUMBERS[0] if place == lost else draw(st.sampled_from(_NUMBERS))
        kind = _COLLECTION if place == lost else draw(st.sampled_from([_COLLECTION, _COLLECTION, _DISBURSEMENT]))
        is_known = place != lost and (number == _NUMBERS[0] or draw(st.integers(0, 3)) > 0)
        record = own(at, id=f"tx-{place}", took=took, type=kind, phone_number=number)
        at += took
        if is_known:
            known.append(record)
        else:
            searches[record.key] = query_for(record)
        if place != lost or is_made:
            rows.append(row(made_at, id=f"tx-{place}", type=kind, phone_number=number))
            numbers[f"tx-{place}"] = number
    true = next((each for each in rows if each.id == f"tx-{lost}"), None)
    return World(key=f"key-tx-{lost}", true=true, known=known, searches=searches, rows=rows, numbers=numbers)


@st.composite
def misbehaving(draw: st.DrawFn, world: World) -> Listing:
    """Draw a listing of a list that is late, capped, filtered by time, misspelt, unordered, or empty."""
    first, last = sorted([draw(st.integers(0, len(world.rows))), draw(st.integers(0, len(world.rows)))])
    if draw(st.booleans()):
        first, last = 0, len(world.rows)
    shown, unreadable = [], []
    is_misspelt, is_readable = draw(st.booleans()), draw(st.booleans())
    for each in world.rows[first:last]:
        if not is_readable and draw(st.integers(0, 3)) == 0:
            moment = each.created_at if draw(st.booleans()) else None
            unreadable.append(UnreadableRow(id=draw(st.sampled_from([each.id, None])), created_at=moment))
            continue
        changes: dict[str, Any] = {}
        if is_misspelt:
            words = [str(each.type), str(each.type).upper(), "payment", "c2b", "b2c"]
            changes["type"] = TransactionType(draw(st.sampled_from(words)))
            changes["phone_number"] = draw(misspelt(world.numbers[each.id]))
            changes["currency"] = draw(st.sampled_from(["TZS", "TZS", "tzs", "TSh"]))
        shown.append(attrs.evolve(each, **changes))
    return listing(
        draw(st.permutations(shown)),
        unreadable=tuple(unreadable),
        began_at=NOON + 6 * HOUR,
        is_complete=draw(st.integers(0, 4)) > 0,
        covered=draw(st.sampled_from([None, (NOON - _DAY, NOON + _DAY)])),
    )


@pytest.mark.slow
@given(st.data(), worlds())
def test_no_payment_that_exists_is_called_absent(data: st.DataObject, world: World) -> None:
    """However the list misbehaves, the listing does not count for the absence of a payment that exists."""
    assert not world.verdict(data.draw(misbehaving(world))).absent_ok


@pytest.mark.slow
@given(st.data(), st.booleans().flatmap(worlds))
def test_no_payment_takes_the_transaction_of_another(data: st.DataObject, world: World) -> None:
    """However the list misbehaves, a payment adopts its own transaction or none."""
    verdict = world.verdict(data.draw(misbehaving(world)))
    assert verdict.adopt is None or (world.true is not None and verdict.adopt.id == world.true.id)
    assert not (verdict.adopt and verdict.candidates)
    assert verdict.adopt is not None or verdict.absent_ok or verdict.reason


@pytest.mark.slow
@given(worlds())
def test_a_good_list_shows_a_payment_that_exists(world: World) -> None:
    """A payment that a list shows in the contract's spelling is found, if own payments show the service's clock."""
    assume(world.known)
    assert world.verdict(listing(world.rows, began_at=NOON + 6 * HOUR)).adopt == world.true


@pytest.mark.slow
@given(worlds(is_made=False))
def test_a_good_list_shows_an_absence_between_own_payments(world: World) -> None:
    """A payment that was never made is absent, if there are payments of its type before and after it."""
    same = [record.sent_at for record in world.known if record.type == world.query.type and record.sent_at]
    assume(same and min(same) < world.query.sent_at < max(same))
    assert world.verdict(listing(world.rows, began_at=NOON + 6 * HOUR)) == _CLEAR
