"""Each row of the list has one class: laws of `payments.ownership.comparison`."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import TransactionStatus, TransactionType, UnclaimedTransaction
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.payments.ownership.comparison import (
    CLOCKS,
    CONTACT,
    AccountFacts,
    DueComparison,
    Lives,
    RowClass,
    RowFacts,
    Span,
    is_comparison_due,
)
from mobilemoney_async.payments.ownership.matching import Skew
from mobilemoney_async.payments.records.record import PaymentRequest
from mobilemoney_async.payments.records.unmatched import Line
from tests.payments.listed import row as listed
from tests.support.fakes import NOON

SETTLED = timedelta(seconds=155)
TICK, SECOND, HOUR = timedelta(microseconds=1), timedelta(seconds=1), timedelta(hours=1)
NO_SKEW = Skew(low=timedelta(0), high=timedelta(0))
ids = st.sampled_from(["TX1", "TX2", "TX3"])
moments = st.integers(-60, 60).map(lambda minutes: NOON + timedelta(minutes=minutes))
spans = st.tuples(moments, moments).map(lambda pair: Span(min(pair), max(pair)))
facts = st.builds(
    RowFacts,
    owned=st.sets(ids),
    explained=st.sets(ids),
    lost=st.sets(ids),
    lost_times=st.lists(spans, min_size=1, max_size=2),
    lives=st.builds(Lives, spans=st.lists(spans, min_size=1, max_size=2), settled=st.just(SETTLED)),
    merchant_id=st.sampled_from([None, "shop", "till"]),
    began_at=st.none() | moments,
)
skews = st.none() | st.just(NO_SKEW)
rows = st.builds(
    lambda name, at, merchant: listed(at, id=name, merchant_id=merchant),
    ids,
    st.none() | moments,
    st.sampled_from([None, "shop"]),
)


@given(rows, facts, skews)
def test_what_is_owned_or_explained_is_that_whatever_else_is_known(
    row: Transaction, known: RowFacts, skew: Skew | None
) -> None:
    """A payment that has its id, or a word about that very row, decides; so it stops nothing."""
    found = known.classify(row, skew)
    assert (found is RowClass.OWNED) == (row.id in known.owned)
    if row.id not in known.owned:
        assert (found is RowClass.EXPLAINED) == (row.id in known.explained)


@given(rows, facts, skews, ids)
def test_a_word_about_another_row_changes_nothing(
    row: Transaction, known: RowFacts, skew: Skew | None, other: str
) -> None:
    """Nor does another row that a payment comes to own."""
    before = known.classify(row, skew)
    if other != row.id:
        assert attrs.evolve(known, explained={*known.explained, other}).classify(row, skew) is before
        assert attrs.evolve(known, owned={*known.owned, other}).classify(row, skew) is before


@given(rows, facts, skews)
def test_what_an_earlier_life_remembers_is_of_no_lost_time(
    row: Transaction, known: RowFacts, skew: Skew | None
) -> None:
    """And without a clock nothing is remembered: then a lost time has what it holds."""
    lost = known.lost_time(row, skew)
    held = [each for each in known.lost_times if each.holds(row.created_at)]
    if skew is None:
        assert lost == next(iter(held), None)
    elif lost is not None:
        at = row.created_at
        assert at is not None
        earlier = [each for each in known.lives.spans if each.start < lost.start]
        assert not any(each.start + SETTLED < at < each.end for each in earlier)
    else:
        assert all(known.lives.remember(row.created_at, skew, before=each.start) for each in held)


def test_a_life_remembers_what_lies_inside_it_whatever_the_clocks_show() -> None:
    """Once it has lasted as long as a payment of before may be on its way; to the microsecond."""
    life, skew = Span(NOON, NOON + HOUR), Skew(low=SECOND, high=3 * SECOND)
    assert [life.holds(at) for at in (None, NOON - TICK, NOON, life.end, life.end + TICK)] == [0, 0, 1, 1, 0]
    lives = Lives(spans=[Span(NOON - 2 * HOUR, NOON - HOUR), life], settled=SETTLED)
    assert (lives.began_at, lives.hold(NOON), lives.hold(NOON - TICK)) == (NOON, True, False)
    first, last, middle = NOON + SETTLED + skew.high, life.end + skew.low, NOON + HOUR / 2
    assert [lives.remember(at, skew) for at in (first, first + TICK, last - TICK, last)] == [False, True, True, False]
    started = NOON + skew.high
    assert not lives.remember(middle, skew, before=started)
    assert lives.remember(middle, skew, before=started + TICK)
    assert lives.remember(middle, Skew(low=-CLOCKS / 2, high=CLOCKS / 2))
    assert not lives.remember(middle, Skew(low=-CLOCKS / 2, high=CLOCKS / 2 + TICK))
    assert not lives.remember(None, skew)
    assert not lives.remember(middle, None)


def test_facts_of_an_account_change_at_their_moments() -> None:
    """A life lasts for less than five minutes after its latest sign; and so on, to the microsecond."""
    around = [NOON - TICK, NOON, NOON + TICK]
    assert [AccountFacts(queued_since=NOON - CONTACT).is_in_use(now) for now in around] == [False, False, True]
    assert [AccountFacts(life_until=NOON - CONTACT).is_in_contact(now) for now in around] == [True, False, False]
    assert [AccountFacts(life_until=NOON + CONTACT).is_in_contact(now) for now in around] == [False, False, True]
    assert [AccountFacts(others_until=NOON).has_others(now) for now in around] == [True, False, False]
    again = AccountFacts(again_at=NOON)
    assert not any(is_comparison_due(again, now) for now in around)
    used = attrs.evolve(again, first_record_at=NOON - HOUR)
    assert [is_comparison_due(used, now) for now in around] == [False, True, True]
    assert [again.settles_at(now, HOUR) for now in around] == [NOON, *(now + HOUR for now in around[1:])]
    assert {attrs.evolve(again, due_since=NOON).settles_at(now, HOUR) for now in around} == {NOON}


@pytest.mark.parametrize("went_backwards", [True, False])
def test_a_lost_time_is_wider_by_what_the_clocks_may_differ(went_backwards: bool) -> None:
    """It keeps whether the store itself has shown that it went backwards."""
    due = DueComparison(facts=AccountFacts(), since=NOON, newest=NOON - HOUR, went_backwards=went_backwards)
    lost = due.lost_time(Skew(low=-SECOND, high=2 * SECOND))
    assert lost == Span(NOON - HOUR - SECOND - CLOCKS, NOON + 2 * SECOND + CLOCKS, went_backwards)


@pytest.mark.parametrize(
    ("changed", "digest", "is_of"),
    [
        ({}, "own", True),
        ({}, "other", False),
        ({"type": "payout"}, "own", True),
        ({"type": "disbursement"}, "own", False),
        ({"amount": Decimal(999)}, "own", False),
        ({"phone_number": "+25578***0788"}, None, False),
        ({}, None, True),
        ({"phone_number": "***789"}, None, True),
        ({"phone_number": "***788"}, None, False),
        ({"phone_number": "***0788"}, None, False),
    ],
)
def test_a_line_is_of_a_kind_as_far_as_it_was_shown(changed: dict[str, Any], digest: str | None, is_of: bool) -> None:
    """By the digest of the number, or by the digits that the list shows, if they are enough to tell."""
    changed = {**changed, "type": TransactionType(changed.get("type", "collection"))}
    shown = UnclaimedTransaction(
        transaction_id="tx-1",
        status=TransactionStatus.SUCCESS,
        created_at=NOON,
        first_seen_at=NOON,
        **{"amount": Decimal(1000), "phone_number": "+25578***0789", **changed},
    )
    kind = TransactionType.COLLECTION
    payment = PaymentRequest(key="k", type=kind, phone_number="+255780000789", amount="1000", extra_digest="")
    assert Line(shown, digest, NOON, None).is_of(payment, "own") is is_of
