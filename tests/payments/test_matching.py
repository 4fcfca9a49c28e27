"""Matching of payments and transactions, by the laws that keep money from going astray."""

import hmac
import itertools
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mobilemoney_async import PaymentRecord, Transaction, UnclaimedTransaction
from mobilemoney_async.contract.comparison import (
    NumberForm,
    international,
    may_be_number,
    read_date,
    same_number,
    shift,
)
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.ownership.matching import (
    ClockSample,
    KindIndex,
    Match,
    Skew,
    Spellings,
    date_ranges,
    estimate_skew,
    learn,
    match,
    query_for,
    read_sample,
    row_kind,
)
from mobilemoney_async.payments.ownership.surplus import surplus
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.payments.records.unmatched import Line, shown_values
from tests.payments.listed import SECOND, misspelt, offsets, own, row, search, sightings
from tests.support.fakes import NOON, PHONE_NUMBER


@pytest.mark.slow
@given(st.data(), offsets)
def test_the_estimate_contains_the_truth(data: st.DataObject, ahead: timedelta) -> None:
    """However many honest looks at the service's clock there are, the bounds contain how far it really is ahead."""
    seen = data.draw(st.lists(sightings(ahead), min_size=1, max_size=6))
    skew = estimate_skew(seen)
    assert skew is not None
    assert skew.low <= ahead <= skew.high


@pytest.mark.slow
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
    tolerance = max(seen.ended_at - seen.began_at for seen in (*earlier, *later)) + SECOND
    assert skew.low <= min(before, after) + tolerance
    assert max(before, after) - tolerance <= skew.high


def test_looks_that_leave_one_moment_name_it() -> None:
    """Two looks may agree on a single difference of the clocks: that is it, to the microsecond."""
    first = ClockSample(shown=NOON, began_at=NOON - SECOND, ended_at=NOON)
    second = ClockSample(shown=NOON, began_at=NOON - SECOND, ended_at=NOON - 2 * SECOND)
    skew = estimate_skew([first, second])
    assert skew == Skew(low=2 * SECOND, high=2 * SECOND)


def test_a_time_beyond_the_calendar_is_its_end() -> None:
    """On either side: a service may show any date."""
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert (shift(first, -SECOND), shift(first, SECOND)) == (first, first + SECOND)
    assert (shift(last, SECOND), shift(last, -SECOND)) == (last, last - SECOND)


def test_a_date_header_is_a_look_at_the_clock() -> None:
    """To the second; one that is missing or unreadable is none."""
    ended_at = NOON + SECOND
    sample = read_sample("Fri, 02 Jan 2026 12:00:00 GMT", began_at=NOON, ended_at=ended_at)
    assert sample == ClockSample(shown=datetime(2026, 1, 2, 12, tzinfo=UTC), began_at=NOON, ended_at=ended_at)
    assert sample.skew == Skew(low=-SECOND, high=SECOND)
    for missing in (None, "", "soon"):
        assert read_sample(missing, began_at=NOON, ended_at=ended_at) is None


def test_days_that_touch_are_listed_once() -> None:
    """Two payments whose days end and begin on the same one are one listing; with a day between they are two."""
    day = timedelta(days=1)
    spans = {"a": (NOON, NOON), "b": (NOON + 3 * day, NOON + 3 * day), "c": (NOON + 7 * day, NOON + 7 * day)}
    (both, alone) = date_ranges(spans)
    assert (both.keys, alone.keys) == (("a", "b"), ("c",))
    assert (both.first, both.last) == ((NOON - day).date(), (NOON + 5 * day).date())
    assert (alone.first, alone.last) == ((NOON + 6 * day).date(), (NOON + 9 * day).date())


def test_nothing_is_said_of_a_clock_that_was_never_seen() -> None:
    assert estimate_skew([]) is None


@pytest.mark.slow
@given(st.data(), offsets)
def test_more_looks_never_say_less(data: st.DataObject, ahead: timedelta) -> None:
    """Another honest look at a steady clock never widens the bounds."""
    seen = data.draw(st.lists(sightings(ahead), min_size=2, max_size=5))
    few, all_of_them = estimate_skew(seen[:-1]), estimate_skew(seen)
    assert few is not None
    assert all_of_them is not None
    assert few.low <= all_of_them.low
    assert all_of_them.high <= few.high


@pytest.mark.slow
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
    found = date_ranges({key: wanted.window(None) for key, wanted in searches.items()})
    assert sorted(key for span in found for key in span.keys) == sorted(searches)
    for span in found:
        for wanted in (searches[key] for key in span.keys):
            assert span.first < wanted.sent_at.date()
            assert span.last > wanted.ended_at.date()
    assert [span.first for span in found] == sorted(span.first for span in found)
    assert all(before.last < after.first for before, after in itertools.pairwise(found))


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


def test_a_date_header_without_a_zone_is_utc_wherever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone of the machine does not shift the service's clock."""
    monkeypatch.setenv("TZ", "Africa/Dar_es_Salaam")
    time.tzset()
    try:
        assert read_date("Fri, 02 Jan 2026 12:00:00") == NOON
    finally:
        monkeypatch.undo()
        time.tzset()


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


_OWN = "+255681234567"


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        ("+255681234567", NumberForm.EXACT),
        ("255681234567", NumberForm.EXACT),
        ("+255 681 234-567", NumberForm.EXACT),
        ("255.681.234.567", NumberForm.EXACT),
        ("00255681234567", NumberForm.ZEROS),
        ("0681234567", NumberForm.NATIONAL),
        ("(0681) 234 567", NumberForm.NATIONAL),
        ("681234567", NumberForm.LOCAL),
        ("25568***4567", NumberForm.MASKED),
        ("+255 68* *** 567", NumberForm.MASKED),
        ("0681XXX567", NumberForm.MASKED),
        ("••••••4567", NumberForm.MASKED),
        ("25568…567", NumberForm.MASKED),
        ("2556.....567", NumberForm.MASKED),
        ("25568***4568", None),
        ("25568***3567", None),
        ("*******567", None),
        ("255681234567*", None),
        ("25568123456", None),
        ("+2556812345670", None),
        ("+254681234567", None),
        ("", None),
        ("hidden", None),
        ("٠٦٨١٢٣٤٥٦٧", None),
    ],
)
def test_a_number_is_proven_by_the_digits_that_are_shown(shown: str, form: NumberForm | None) -> None:
    """A number of ours is recognised in every usual form; one that lacks digits or has others proves nothing."""
    assert same_number(shown, _OWN) is form


@pytest.mark.parametrize(
    ("shown", "whole"),
    [
        ("0681 234 567", "+255681234567"),
        ("681234567", "+255681234567"),
        ("00255681234567", "+255681234567"),
        ("+255.681.234.567", "+255681234567"),
        ("01234567890", "+01234567890"),
        ("25568***4567", None),
        ("4567", None),
        ("", None),
    ],
)
def test_a_whole_number_is_imported_in_our_spelling(shown: str, whole: str | None) -> None:
    """However the list spells it; a masked one has to be given by an operator."""
    assert international(shown) == whole


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        ("+255681234567", "+25568…567"),
        ("XXXXXX4567", "XXXXXX4567"),
        ("2556812****", "2556812****"),
        ("4567", "4567"),
        ("***681234567", "***681…567"),
        ("Asha 4567", "…"),
        ("4567\u202e", "…"),
        ("***", "…"),
    ],
)
def test_a_number_that_the_list_masks_is_kept_with_its_digits(shown: str, kept: str) -> None:
    """Unless they are too many: a second mask would leave too few to tell one customer from another."""
    assert shown_values(row(phone_number=shown))["shown_number"] == kept


def test_a_window_is_from_two_seconds_before_the_request_to_two_minutes_after_it() -> None:
    """As far as the clocks are known: a request may wait in the service after we gave it up, and clocks drift."""
    known = search(took=5 * SECOND).window(Skew(low=-SECOND, high=3 * SECOND))
    assert known == (NOON - 3 * SECOND, NOON + (5 + 3 + 120 + 2) * SECOND)
    assert search(took=5 * SECOND).window(None) == (NOON - 60 * SECOND, NOON + (5 + 120 + 60) * SECOND)


def test_a_short_foreign_number_has_no_national_form() -> None:
    """A zero in front of it makes another number."""
    assert same_number("12345678", "+12345678") is NumberForm.EXACT
    assert same_number("012345678", "+12345678") is None


@pytest.mark.parametrize(
    ("shown", "may_be"),
    [
        ("", True),
        ("hidden", True),
        ("٠٦٨١٢٣٤٥٦٧", True),
        ("*******67", True),
        ("25568123456", True),
        ("234567", True),
        ("2550681234567", True),
        ("+254681234567", True),
        ("000000000", True),
        ("+255681234568", False),
        ("+2556812345670", False),
        ("0681234568", False),
        ("681234568", False),
        ("25568***4568", False),
        ("2556***812", False),
        ("0681XXX568", False),
        ("2556812345", True),
        ("2556812346", False),
    ],
)
def test_a_number_that_is_cut_or_hidden_is_no_contradiction(shown: str, may_be: bool) -> None:
    """Only the digits of another number say that a row is not ours."""
    assert may_be_number(shown, _OWN) is may_be


@given(misspelt(_OWN))
def test_no_spelling_hides_our_number(shown: str) -> None:
    """However the service writes, cuts or masks our number, it may be ours."""
    assert may_be_number(shown, _OWN)


@pytest.mark.parametrize(("length", "is_read"), [(63, True), (64, True), (65, False)])
def test_a_text_is_read_as_a_number_up_to_sixty_four_characters(length: int, is_read: bool) -> None:
    """A longer one proves no number, and may be any."""
    masked = "25568" + "*" * (length - 8) + _OWN[-3:]
    assert (same_number(masked, _OWN) is not None) is is_read
    assert may_be_number("9" * length, _OWN) is not is_read


@given(st.text("0123456789+*x. -()", max_size=16))
def test_a_proven_number_may_be_ours(shown: str) -> None:
    """A text that proves our number is also one that may be it."""
    assert same_number(shown, _OWN) is None or may_be_number(shown, _OWN)


@pytest.mark.slow
@given(st.data(), st.from_regex(r"\+[1-9][0-9]{6,14}", fullmatch=True) | st.just(_OWN))
def test_an_index_finds_every_row_and_query_that_fits(data: st.DataObject, number: str) -> None:
    """Whatever the spelling of a row, and however long the number."""
    shown = data.draw(misspelt(number) | st.text("0123456789+*x. -()", max_size=18))
    query, listed = attrs.evolve(search(), phone_number=number), row(phone_number=shown)
    rows, queries = KindIndex[Transaction](), KindIndex[str]()
    rows.add(row_kind(listed), listed)
    queries.add(query.kind, "order-1")
    if match(query, listed, Spellings()) is not Match.NONE:
        assert [*rows.find(query.kind)] == [listed]
        assert [*queries.find(row_kind(listed))] == ["order-1"]


def test_an_index_leaves_out_other_numbers_and_amounts() -> None:
    """Five thousand salaries of one amount are not compared with each other."""
    rows = KindIndex[Transaction]()
    others = [PHONE_NUMBER[:-1] + "0", PHONE_NUMBER[1:-1] + "0", "0" + PHONE_NUMBER[4:-1] + "0"]
    for number in (PHONE_NUMBER, *others, "25578****789"):
        rows.add(row_kind(row(phone_number=number)), row(phone_number=number))
    rows.add(row_kind(row(amount=Decimal(999))), row(amount=Decimal(999)))
    assert [each.phone_number for each in rows.find(search().kind)] == [PHONE_NUMBER, "25578****789"]


def test_a_payment_to_a_number_of_another_form_is_searched_for_by_its_amount() -> None:
    """A number too short for the index may be in any row of that amount, and where there is none, nothing is found."""
    rows, short = KindIndex[Transaction](), attrs.evolve(search(), phone_number="+1234567")
    assert [*rows.find(short.kind)] == []
    rows.add(row_kind(row()), row())
    assert [*rows.find(short.kind)] == [row()]


def test_a_payment_on_its_way_is_searched_for_from_its_send() -> None:
    """The end of its request is not known yet."""
    query = query_for(own(ended_at=None))
    assert (query.sent_at, query.ended_at) == (NOON, NOON)


@given(st.integers(0, 11), st.integers(1, 9))
def test_another_digit_is_another_number(place: int, by: int) -> None:
    """A whole number that differs in one digit is no number of ours, unless only its country code differs."""
    digits = _OWN[1:]
    other = digits[:place] + str((int(digits[place]) + by) % 10) + digits[place + 1 :]
    assert same_number(other, _OWN) is None
    assert may_be_number(other, _OWN) is (place < 3)


_LEARNED = Spellings(
    forms=frozenset({NumberForm.NATIONAL, NumberForm.MASKED}),
    merchant_id="merchant-1",
)


@pytest.mark.parametrize(
    ("changes", "unlearned", "learned"),
    [
        ({}, Match.CERTAIN, Match.CERTAIN),
        ({"merchant_id": "merchant-1"}, Match.CERTAIN, Match.CERTAIN),
        ({"merchant_id": "merchant-2"}, Match.CERTAIN, Match.NONE),
        ({"currency": "tzs "}, Match.CERTAIN, Match.CERTAIN),
        ({"currency": "USD"}, Match.POSSIBLE, Match.POSSIBLE),
        ({"phone_number": "0780000789"}, Match.POSSIBLE, Match.CERTAIN),
        ({"phone_number": "780000789"}, Match.POSSIBLE, Match.POSSIBLE),
        ({"phone_number": "25578***0789"}, Match.POSSIBLE, Match.CERTAIN),
        ({"phone_number": ""}, Match.POSSIBLE, Match.POSSIBLE),
        # Another word than the contract's for a type proves nothing, and contradicts nothing.
        ({"type": TransactionType("c2b"), "phone_number": "0780000789"}, Match.POSSIBLE, Match.POSSIBLE),
        ({"type": TransactionType("COLLECTION")}, Match.POSSIBLE, Match.POSSIBLE),
        ({"type": TransactionType("b2c")}, Match.POSSIBLE, Match.POSSIBLE),
        ({"type": TransactionType("Disbursement")}, Match.NONE, Match.NONE),
        ({"id": " "}, Match.POSSIBLE, Match.POSSIBLE),
    ],
    ids=str,
)
def test_a_number_is_believed_in_a_form_that_own_payments_prove(
    changes: dict[str, Any], unlearned: Match, learned: Match
) -> None:
    """A row with another form of the number may be ours, and is ours where own payments are shown so."""
    shown = row(**changes)
    assert match(search(), shown, Spellings()) is unlearned
    assert match(search(), shown, _LEARNED) is learned


def test_forms_of_numbers_are_learned_from_own_payments() -> None:
    """They are those of rows whose id is of an own, acknowledged payment, and no others."""
    rows = [
        row(id="tx-1", phone_number="0780000789"),
        row(id="tx-2", phone_number="25578***0789"),
        row(id="adopted", phone_number="780000789"),
        row(id="stranger"),
        row(id="dearer", amount=own().amount + 1),
        row(id="blank", phone_number=""),
    ]
    records = [
        own(id="tx-1"),
        own(id="tx-2", type=TransactionType.DISBURSEMENT),
        own(id="adopted", is_adopted=True),
        own(id="dearer"),
        own(id="blank"),
    ]
    assert learn(rows, {str(each.transaction_id): each for each in records}, None) == Spellings(
        forms=frozenset({NumberForm.NATIONAL, NumberForm.MASKED}),
    )


@pytest.mark.parametrize("sign", [-1, 1])
def test_no_clock_leads_out_of_the_calendar(sign: int) -> None:
    """A service that shows any date at all breaks no search."""
    ahead = sign * timedelta(days=365 * 8000)
    start, end = search().window(Skew(low=ahead, high=ahead))
    assert start <= end


KEY = "key of the digests"
# The last two look alike where they are masked.
NUMBERS = [PHONE_NUMBER, "+255681234567", "+255681994567"]
distances = st.integers(-2, 2).map(lambda days: days * timedelta(days=1)) | st.sampled_from([SECOND, -SECOND])


def line(name: str, number: str = PHONE_NUMBER, amount: str = "1000", at: datetime | None = NOON, **shown: Any) -> Line:
    """Return an open line; its digest is of its number, unless that is masked or missing."""
    of_number = digest(KEY, number) if number in NUMBERS else None
    made = UnclaimedTransaction(
        transaction_id=name,
        type=shown.get("type", TransactionType.COLLECTION),
        amount=Decimal(amount),
        phone_number=number,
        status=TransactionStatus.SUCCESS,
        created_at=at,
        first_seen_at=NOON,
    )
    return Line(made, of_number, NOON, None)


def plain_surplus(lines: Sequence[Line], attempts: Sequence[PaymentRecord]) -> list[Line]:
    """Return what is left by the words of the rules: each attempt takes the nearest, then by id and key."""
    pairs = []
    for attempt, each in itertools.product(attempts, lines):
        assert attempt.sent_at is not None
        at = each.shown.created_at or attempt.sent_at
        of_number = digest(KEY, attempt.phone_number)
        is_alike = each.is_of(attempt, of_number)
        is_near = abs(at - attempt.sent_at) <= timedelta(days=1, minutes=2)
        if is_near and (is_alike or each.id in attempt.candidates):
            pairs.append((abs(at - attempt.sent_at), each.id, attempt.key))
    taken: dict[str, str] = {}
    for _, name, key in sorted(pairs):
        if name not in taken and key not in taken.values():
            taken[name] = key
    return [each for each in lines if each.id not in taken]


@pytest.mark.slow
@given(st.data())
def test_each_open_attempt_takes_one_line_of_its_kind(data: st.DataObject) -> None:
    """The nearest in time, then by id and key, as far as a line shows its number and type; a named one of any kind."""
    kinds = st.sampled_from([*TransactionType, TransactionType("payment")])
    amounts = st.sampled_from(["1000", "1000.00", "7"])
    texts = st.sampled_from([*NUMBERS, "+25568…567", "…"])
    lines = [
        line(
            f"tx-{each}",
            data.draw(texts),
            data.draw(amounts),
            data.draw(st.none() | distances.map(NOON.__add__)),
            type=data.draw(kinds),
        )
        for each in range(data.draw(st.integers(0, 6)))
    ]
    names = st.lists(st.sampled_from([f"tx-{each}" for each in range(7)]), max_size=2)
    attempts = [
        own(
            NOON + data.draw(distances),
            id=str(each),
            phone_number=data.draw(st.sampled_from(NUMBERS)),
            amount=Decimal(data.draw(amounts)),
            type=data.draw(st.sampled_from(list(TransactionType))),
            transaction_id=None,
            candidates=tuple(data.draw(names)),
        )
        for each in range(data.draw(st.integers(0, 5)))
    ]
    assert surplus(lines, attempts, KEY) == plain_surplus(lines, attempts)


def test_lost_answers_beside_a_till_cost_a_digest_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each of their pairs: the surplus is asked for inside the write of a page."""
    lines = [line(f"tx-{each}") for each in range(30)]
    attempts = [own(id=str(each), transaction_id=None) for each in range(10)]
    made, true = list[bytes](), hmac.digest

    def count(key: bytes, text: bytes, name: str) -> bytes:
        made.append(text)
        return true(key, text, name)

    monkeypatch.setattr(hmac, "digest", count)
    assert len(surplus(lines, attempts, KEY)) == 20
    assert len(made) == 10
