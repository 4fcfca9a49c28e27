"""Matching of payments and transactions, by the laws that keep money from going astray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mobilemoney_async.payments.matching import date_ranges, estimate_skew, read_date
from tests.payments.listed import SECOND, offsets, search, sightings
from tests.support.fakes import NOON, PHONE_NUMBER


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
    tolerance = max(seen.ended_at - seen.began_at for seen in (*earlier, *later)) + SECOND
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
