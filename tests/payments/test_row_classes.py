"""Each row of the list has one class: laws of `payments.ownership.comparison`."""

from datetime import timedelta

import attrs
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.payments.ownership.comparison import Lives, RowClass, RowFacts, Span
from mobilemoney_async.payments.ownership.matching import Skew
from tests.payments.listed import row as listed
from tests.support.fakes import NOON

SETTLED = timedelta(seconds=155)
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
