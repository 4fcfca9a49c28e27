"""The parts of the planner: estimator, list model, tracked payments, pacing."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async.calls.bucket import Usage
from mobilemoney_async.polling.list_model import ListFreshness, ListModel, ServerClock
from mobilemoney_async.polling.pacing import Backoff, Pacer
from mobilemoney_async.polling.scoring import Estimator
from mobilemoney_async.polling.tracked import TrackedPayment, TrackedPayments
from mobilemoney_async.resources.page_choice import PageSweep
from tests.support.paper import Paper, PaperService
from tests.support.scale import examples

# When payments end


def test_before_anything_is_learned_older_payments_are_likelier_to_stay() -> None:
    """The same ten seconds tell less about an old payment than about a young one."""
    estimator = Estimator()
    assert 1 > estimator.chance(1, 11) > estimator.chance(100, 110) > estimator.chance(10_000, 10_010) > 0
    assert estimator.chance(5, 5) == estimator.chance(5, 4) == 0


def test_the_moment_at_which_prompts_expire_is_learned() -> None:
    """From looks half a minute apart, all around the same age, that age is found out."""
    estimator = Estimator()
    for number in range(300):
        earliest = 91 + number % 28
        estimator.saw_open(0, earliest)
        estimator.saw_end(earliest, earliest + 30)
    assert estimator.chance(60, 85) < 0.05
    assert estimator.chance(100, 112) < 0.5
    assert estimator.chance(105, 130) > 0.8


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e5)), max_size=20), st.floats(0, 1e7), st.floats(0, 1e6))
def test_a_chance_is_a_chance(endings: list[tuple[float, float]], start: float, length: float) -> None:
    """Whatever is learned, at any age, chances lie between 0 and 1 and grow with the time."""
    estimator = Estimator()
    for age, more in endings:
        estimator.saw_open(0, age)
        estimator.saw_end(age, age + more)
    half, whole = estimator.chance(start, start + length / 2), estimator.chance(start, start + length)
    assert 0 <= half <= whole + 1e-9 <= 1 + 1e-9


# Where payments are in the list


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    st.integers(0, 200),
    st.integers(1, 100),
    st.booleans(),
    st.integers(0, 20),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_every_row_is_found_on_its_page(
    rows: int, page_size: int, newest_first: bool, more: int, asked: list[int]
) -> None:
    """A row that was shown is expected where it is, in either order, also after the list has grown."""
    service = PaperService(order="newest-first" if newest_first else "oldest-first", page_size=page_size)
    for number in range(rows):
        service.add(Paper(id=str(number), created_at=float(number - rows)))
    model = ListModel()
    for number in [1, *asked]:
        answer = service.page(number + 1 if number else 1, 0.0)
        places = model.observe(number + 1 if number else 1, answer, 0.0)
        for row, place in zip(answer.transactions, places, strict=True):
            if model.newest_first == newest_first:
                assert place == int(row.id) + 1
    if model.newest_first != newest_first:
        return
    for number in range(more):
        service.add(Paper(id=f"new-{number}", created_at=number / 100))
        assert model.add_own(0.5) == rows + number + 1
    for name, place in [(str(number), float(number + 1)) for number in range(rows)]:
        page = model.page_of(place, 0.5)
        low, high = model.places(page, 0.5)
        assert low < place <= high
        assert name in {row.id for row in service.page(page, 0.5).transactions}


def test_growth_by_others_is_learned() -> None:
    """Rows that others add at a steady rate are expected to go on coming."""
    service, model = PaperService(), ListModel()
    for second in range(120):
        service.add(Paper(id=str(second), created_at=float(second)))
        if second % 5 == 0:
            model.observe(1, service.page(1, float(second)), float(second))
    assert model.has_strangers
    assert model.length(130.0) == pytest.approx(131, abs=3)


def test_an_empty_list_has_one_page() -> None:
    """Before the first payment there is nothing to divide by."""
    model = ListModel()
    assert model.observe(1, PaperService().page(1, 0.0), 0.0) == []
    assert (model.pages(0.0), model.head(0, 0.0)) == (1, 1)


# The tracked payments


def pending(name: str, due: float = 0.0, deadline: float = math.inf) -> TrackedPayment:
    return TrackedPayment(name, tracked_at=0.0, due=due, deadline=deadline, is_new=True)


def test_removed_payments_are_forgotten() -> None:
    """They are not due, are not given up, and have no place."""
    payments = TrackedPayments()
    for number in range(5000):
        payment = pending(str(number), due=number, deadline=1e6)
        payments.add(payment)
        payments.places.move(payment, float(number))
        if number % 10:
            payments.remove(payment)
    assert len(payments) == 500
    for index in (payments.due, payments.deadlines, payments.places):
        assert len(index.between(-math.inf, math.inf)) == 500
    assert [payment.id for payment in payments.due.between(-math.inf, 25.0, 10)] == ["0", "10", "20"]
    assert [payment.id for payment in payments.places.between(10.0, 40.0)] == ["20", "30", "40"]
    assert len(payments.give_up(1e6)) == 500
    assert len(payments) == 0


# When to ask


def usage(granted: int, history: float = 60.0) -> Usage:
    return Usage(granted=granted, limit=60, window=60.0, history=history)


def test_the_pace_is_what_others_leave() -> None:
    """Thirty requests a minute by others leave one in two seconds; fifty, one in seven."""
    for others, interval in ((0, 1.0), (30, 2.07), (50, 6.7), (54, 10.0), (60, 10.0)):
        pacer = Pacer(1.0)
        pacer.sent(100.0, 0.0)
        assert pacer.queue_at(100.0, usage(others + 1)) == pytest.approx(100 + interval, abs=0.05)


def test_who_waits_long_gets_in_line_early() -> None:
    """The wait in line is part of the interval; after a long one, the line is joined at once."""
    pacer = Pacer(1.0)
    pacer.sent(100.0, 2.0)
    assert pacer.queue_at(100.0, usage(51)) == pytest.approx(104.7, abs=0.05)
    pacer.sent(110.0, 9.0)
    assert pacer.queue_at(110.0, usage(55)) == 110.0
    assert not pacer.may_send(110.9)
    pacer.came_early()
    assert pacer.queue_at(110.9, usage(10)) >= 111.0


@pytest.mark.parametrize(
    ("now", "waited", "used", "history", "queues_at"),
    [
        pytest.param(100.0, 9.0, 10, 60.0, 101.0, id="a slow store is no full line"),
        pytest.param(10.0, 0.0, 11, 10.0, 20.0, id="ten creates in ten seconds are sixty a minute to come"),
    ],
)
def test_the_distance_to_the_next_place(now: float, waited: float, used: int, history: float, queues_at: float) -> None:
    """Where others leave room the poller keeps its distance: a place in line that came too early would be lost."""
    pacer = Pacer(1.0)
    pacer.sent(now, waited)
    assert pacer.queue_at(now, usage(used, history=history)) == queues_at


def test_a_gap_in_the_traffic_is_not_a_lack_of_history() -> None:
    """Once a minute has been seen, ten creates at once every 13 s are no more than they are."""
    pacer = Pacer(1.0)
    pacer.queue_at(0.0, usage(0, history=0.0))
    pacer.sent(100.0, 0.0)
    assert pacer.queue_at(100.0, usage(51, history=48.0)) == pytest.approx(106.7, abs=0.05)


def test_rests_double_up_to_their_longest() -> None:
    """They begin at the first pause again after an answer."""
    backoff = Backoff(longest=5.0)
    pauses = []
    for _ in range(5):
        now = max(0.0, backoff.until)
        backoff.extend(now, now)
        pauses.append(backoff.until - now)
    assert pauses == [1, 2, 4, 5, 5]
    backoff.clear()
    backoff.extend(100.0, 100.0)
    assert backoff.until == 101.0


def pages_until_a_check(freshness: ListFreshness) -> int:
    pages = 0
    while not freshness.is_doubtful:
        freshness.saw_page(0.0, has_endings=False)
        pages += 1
    return pages


def test_a_list_that_shows_no_endings_is_checked() -> None:
    """Every eight pages without an ending a lookup is worth it."""
    freshness = ListFreshness()
    for _ in range(3):
        assert pages_until_a_check(freshness) == 8
        freshness.checks += 1


def test_a_list_that_tells_the_truth_is_seldom_checked() -> None:
    """A page that shows an ending puts the check off."""
    freshness = ListFreshness()
    for number in range(100):
        freshness.saw_page(0.0, has_endings=number % 8 == 7)
        assert not freshness.is_doubtful


def test_how_far_a_list_is_behind_is_learned_from_the_endings() -> None:
    """Between how long after its end a page showed a payment as open, and how long after it a page showed the end."""
    freshness = ListFreshness()
    freshness.saw_end(50.0, math.inf)
    assert freshness.delay(0.0) == 50
    for _ in range(20):
        freshness.saw_end(30.0, math.inf)
    assert freshness.delay(0.0) == 50, "a lookup tells no more than that it is at least so far behind"
    for _ in range(20):
        freshness.saw_end(-5.0, 40.0)
    assert freshness.delay(0.0) == pytest.approx(40, abs=0.2)
    freshness.saw_end(1.0, 45.0)
    assert freshness.delay(0.0) == pytest.approx(40, abs=0.2), "two seconds are the clocks'"


def test_a_list_that_showed_no_endings_is_tried_again() -> None:
    """Each check that finds one makes it four times as far behind; while no page is asked for, that fades."""
    freshness = ListFreshness()
    delays = []
    for _ in range(5):
        pages_until_a_check(freshness)
        freshness.saw_end(5.0, math.inf)
        freshness.checks += 1
        delays.append(freshness.delay(0.0))
    assert delays == [10, 40, 160, 600, 600]
    assert freshness.delay(600.0) == 300


def test_for_how_long_new_payments_are_missing_is_learned() -> None:
    """More than the age of the oldest that is missing, no more than that of the youngest that is shown."""
    freshness = ListFreshness()
    assert freshness.missed_new(9.0)
    assert freshness.missing == 15
    freshness.saw_new(11.0)
    assert freshness.missing == 11
    freshness.saw_new(2.0)
    assert freshness.missing == 2
    assert freshness.missed_new(119.0)
    assert freshness.missing == 120
    assert not freshness.missed_new(120.0), "it is somewhere else"


def test_a_sweep_ends_where_it_is_not_worth_it() -> None:
    """It goes on while pages show more than lookups would, and for as far as there are pages."""
    sweep = PageSweep()
    assert sweep.worth(1, None) == 0
    assert sweep.worth(1000, None) == 100
    sweep.took(1000, 0, 100)
    assert sweep.worth(1000, 1000) == 50
    for _ in range(7):
        sweep.took(1000, 0, 100)
    assert sweep.worth(1000, 10_000) == 0
    assert sweep.worth(1000, 20) > 50, "all of them must be somewhere"
    assert sweep.worth(1000, 8) == 0
    sweep.took(1000, 0, 0)
    assert sweep.worth(1000, 20) == 0


def test_a_sweep_of_a_list_that_grows_by_each_page_ends() -> None:
    """A service that ignores the number of the page shows one again and again, full, and never what is looked for."""
    sweep, asked = PageSweep(), 0
    while sweep.worth(30, asked + 2) > 1:
        sweep.took(30, 0, 100)
        asked += 1
    assert asked < 10


# How old payments are


@given(
    st.floats(-1e9, 1e9),
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 60)), min_size=1, max_size=20),
)
def test_a_payment_is_at_least_as_old_as_is_said(ahead: float, seen: list[tuple[float, float]]) -> None:
    """Whatever the service's clock shows, by which alone ages are told: rows, with when they were made and seen."""
    time = ServerClock()
    rows = [(Paper(id="x", created_at=made + ahead).row(0.0), made, made + after) for made, after in seen]
    for row, _, at in rows:
        time.saw([row], at)
    now = max(at for _, _, at in rows)
    latest = min(at - made for _, made, at in rows)
    for row, made, _ in rows:
        assert row.created_at is not None
        assert time.age(row.created_at, now) <= now - made + 0.01
        assert time.age(row.created_at, now) == pytest.approx(max(0.0, now - made - latest), abs=0.01)
