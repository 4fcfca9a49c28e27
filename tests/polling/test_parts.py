"""The small rules that the plan is made of."""

import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import TransactionStatus
from mobilemoney_async.calls.bucket import Usage
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.hints import HintAllowance
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.pace import Pace
from mobilemoney_async.polling.pending import Book, Pending
from mobilemoney_async.polling.rest import Rest
from mobilemoney_async.polling.service_time import Habit, ServiceTime
from mobilemoney_async.polling.trust import Trust
from mobilemoney_async.polling.views import Views
from mobilemoney_async.resources.page_choice import PageSweep
from tests.support.paper import Paper, PaperService
from tests.support.scale import examples

# When payments end


def test_before_anything_is_learned_older_payments_are_likelier_to_stay() -> None:
    """The same ten seconds tell less about an old payment than about a young one."""
    hazard = Hazard()
    assert 1 > hazard.chance(1, 11) > hazard.chance(100, 110) > hazard.chance(10_000, 10_010) > 0
    assert hazard.chance(5, 5) == hazard.chance(5, 4) == 0


def test_the_moment_at_which_prompts_expire_is_learned() -> None:
    """From looks half a minute apart, all around the same age, that age is found out."""
    hazard = Hazard()
    for number in range(300):
        earliest = 91 + number % 28
        hazard.lived(0, earliest)
        hazard.ended(earliest, earliest + 30)
    assert hazard.chance(60, 85) < 0.05
    assert hazard.chance(100, 112) < 0.5
    assert hazard.chance(105, 130) > 0.8


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e5)), max_size=20), st.floats(0, 1e7), st.floats(0, 1e6))
def test_a_chance_is_a_chance(endings: list[tuple[float, float]], start: float, length: float) -> None:
    """Whatever is learned, at any age, chances lie between 0 and 1 and grow with the time."""
    hazard = Hazard()
    for age, more in endings:
        hazard.lived(0, age)
        hazard.ended(age, age + more)
    half, whole = hazard.chance(start, start + length / 2), hazard.chance(start, start + length)
    assert 0 <= half <= whole + 1e-9 <= 1 + 1e-9


# Where payments are in the list


@settings(deadline=None, max_examples=examples(40))
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
    listing = Listing()
    for number in [1, *asked]:
        answer = service.page(number + 1 if number else 1, 0.0)
        ordinals = listing.observe(number + 1 if number else 1, answer, 0.0)
        for row, ordinal in zip(answer.transactions, ordinals, strict=True):
            if listing.newest_first == newest_first:
                assert ordinal == int(row.id) + 1
    if listing.newest_first != newest_first:
        return
    for number in range(more):
        service.add(Paper(id=f"new-{number}", created_at=number / 100))
        assert listing.add_own(0.5) == rows + number + 1
    for name, ordinal in [(str(number), float(number + 1)) for number in range(rows)]:
        page = listing.page_of(ordinal, 0.5)
        low, high = listing.window(page, 0.5)
        assert low < ordinal <= high
        assert name in {row.id for row in service.page(page, 0.5).transactions}


def test_growth_by_others_is_learned() -> None:
    """Rows that somebody else adds at a steady rate are expected to go on coming."""
    service, listing = PaperService(), Listing()
    for second in range(120):
        service.add(Paper(id=str(second), created_at=float(second)))
        if second % 5 == 0:
            listing.observe(1, service.page(1, float(second)), float(second))
    assert listing.has_strangers
    assert listing.length(130.0) == pytest.approx(131, abs=3)


def test_an_empty_list_has_one_page() -> None:
    """Before the first payment there is nothing to divide by."""
    listing = Listing()
    assert listing.observe(1, PaperService().page(1, 0.0), 0.0) == []
    assert (listing.pages(0.0), listing.head(0, 0.0)) == (1, 1)


# Pages of one state


@pytest.mark.parametrize("ahead", [-300.0, 0.0, 300.0])
def test_whom_a_page_of_one_state_shows_is_told_from_its_rows(ahead: float) -> None:
    """Payments as old as the rows of the page before, by the service's own clock, however wrong ours is."""
    book, views = crowded(ahead)
    (view,) = views.open(100.0)
    assert not view.is_known(100.0)
    ask(views, book, 100.0, [10.0, 40.0], ahead)
    (view,) = views.open(101.0)
    assert (view.youngest, view.oldest) == pytest.approx((9, 40), abs=0.1)
    assert {payment.id for payment in views.wanted("SUCCESS", 100.0)} == {"61", "70", "80", "90"}


def test_a_state_whose_pages_show_nothing_is_left_alone() -> None:
    """Once four endings were expected and none was shown; ten minutes later it is tried again."""
    book, views = crowded()
    requests, now = 0, 100.0
    while list(views.open(now)):
        ask(views, book, now, [10.0, 40.0], expected=1.0)
        requests, now = requests + 1, now + 1
    assert requests == 6
    assert not list(views.open(now + 590))
    assert list(views.open(now + 601))


def test_what_was_passed_over_keeps_some_of_its_weight() -> None:
    """However good such pages are, a payment that they do not show is doubted only so far."""
    book, views = crowded()
    for second in range(10):
        ask(views, book, 100.0 + second, [10.0, 40.0], ended=1, expected=1.0)
    passed = [payment for payment in book if payment.passed_at > 0]
    assert passed
    assert all(payment.passed_share == 0.8 for payment in passed)


def test_a_state_that_can_not_be_asked_for_is_asked_for_less_and_less() -> None:
    """After a minute, two, four, up to ten."""
    _, views = crowded()
    now, pauses = 100.0, []
    for _ in range(6):
        views.asked("SUCCESS", now)
        assert not list(views.open(now)), "it is on its way"
        views.failed("SUCCESS", now)
        pauses.append(next(pause for pause in range(1000) if list(views.open(now + pause))))
        now += pauses[-1]
    assert pauses == [60, 120, 240, 480, 600, 600]


def crowded(ahead: float = 0.0) -> tuple[Book, Views]:
    """Ten rows a second for a hundred seconds, every tenth or so of them ours, on a clock that is so far ahead."""
    service, listing, book = PaperService(), Listing(), Book()
    views = Views(book=book, listing=listing, hazard=Hazard())
    for row in range(1000):
        service.add(Paper(id=str(row), created_at=row / 10))
    for second in range(0, 101, 5):
        listing.observe(1, service.page(1, float(second)), float(second))
    for created_at in [61.0, 70.0, 80.0, 90.0, 95.0]:
        payment = Pending(
            f"{created_at:.0f}",
            now=created_at,
            created_at=created_at,
            due=0.0,
            deadline=math.inf,
            is_dated=True,
            is_new=True,
        )
        book.add(payment)
        book.place(payment, 10 * created_at)
        views.saw_row(payment, Paper(id=payment.id, created_at=created_at + ahead).row(100.0))
    for _ in range(3):
        views.saw_ending(TransactionStatus.SUCCESS, 15.0)
    return book, views


def ask(
    views: Views,
    book: Book,
    now: float,
    ages: list[float],
    ahead: float = 0.0,
    *,
    ended: int = 0,
    expected: float = 0.0,
) -> None:
    """Take a page of SUCCESS with rows of such ages."""
    service = PaperService()
    for age in ages:
        service.add(Paper(id=str(age), created_at=now - age + ahead, ends_at=-1e6))
    answer = service.page(1, now + ahead, TransactionStatus.SUCCESS)
    answer = attrs.evolve(answer, pagination=attrs.evolve(answer.pagination, total_pages=2))
    wanted = views.wanted("SUCCESS", now)
    views.asked("SUCCESS", now)
    views.took("SUCCESS", answer, now, at=now, ended=ended, expected=expected, passed=wanted)


# The payments that are followed


def pending(name: str, due: float = 0.0, deadline: float = math.inf) -> Pending:
    return Pending(name, now=0.0, created_at=0.0, due=due, deadline=deadline, is_dated=True, is_new=True)


def test_the_book_forgets_what_it_removes() -> None:
    """Timers of removed payments do not fire, and do not pile up."""
    book = Book()
    for number in range(5000):
        payment = pending(str(number), due=number, deadline=1e6)
        book.add(payment)
        book.place(payment, float(number))
        if number % 10:
            book.remove(payment)
    assert len(book) == 500
    assert len(book._deadlines._heap) <= 2 * len(book) + 1000
    assert [payment.id for payment in book.longest_due(25.0, 10)] == ["0", "10", "20"]
    assert [payment.id for payment in book.between(10.0, 40.0)] == ["20", "30", "40"]
    assert len(book.past_deadline(1e6)) == 500


# When to ask


def usage(granted: int, history: float = 60.0) -> Usage:
    return Usage(granted=granted, limit=60, window=60.0, history=history)


def test_the_pace_is_what_others_leave() -> None:
    """Thirty requests a minute by others leave one in two seconds; fifty, one in seven."""
    for others, interval in ((0, 1.0), (30, 2.07), (50, 6.7), (54, 10.0), (60, 10.0)):
        pace = Pace(1.0)
        pace.sent(100.0, 0.0)
        assert pace.queue_at(100.0, usage(others + 1), is_urgent=False) == pytest.approx(100 + interval, abs=0.05)
        assert pace.queue_at(100.0, usage(others + 1), is_urgent=True) == 101.0


def test_who_waits_long_gets_in_line_early() -> None:
    """The wait in line is part of the interval; after a long one, the line is joined at once."""
    pace = Pace(1.0)
    pace.sent(100.0, 2.0)
    assert pace.queue_at(100.0, usage(51), is_urgent=False) == pytest.approx(104.7, abs=0.05)
    pace.sent(110.0, 9.0)
    assert pace.queue_at(110.0, usage(55), is_urgent=False) == 110.0
    assert not pace.may_send(110.9)
    pace.came_early()
    assert pace.queue_at(110.9, usage(10), is_urgent=False) >= 111.0


def test_a_little_history_is_not_a_minute() -> None:
    """Ten creates in the first ten seconds are sixty a minute to come."""
    pace = Pace(1.0)
    pace.sent(10.0, 0.0)
    assert pace.queue_at(10.0, usage(11, history=10.0), is_urgent=False) == 20.0


def test_a_gap_in_the_traffic_is_not_a_lack_of_history() -> None:
    """Once a minute has been seen, ten creates at once every 13 s are no more than they are."""
    pace = Pace(1.0)
    pace.queue_at(0.0, usage(0, history=0.0), is_urgent=False)
    pace.sent(100.0, 0.0)
    assert pace.queue_at(100.0, usage(51, history=48.0), is_urgent=False) == pytest.approx(106.7, abs=0.05)


def test_hints_are_five_at_once_and_one_a_second() -> None:
    """The allowance refills, up to its size."""
    hints = HintAllowance()
    assert [hints.take(100.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert hints.take(101.0)
    assert not hints.take(101.5)
    assert sum(hints.take(1000.0) for _ in range(7)) == 5


def test_rests_double_up_to_their_longest() -> None:
    """And begin anew after an answer."""
    rest = Rest(longest=5.0)
    pauses = []
    for _ in range(5):
        now = max(0.0, rest.until)
        rest.extend(now, now)
        pauses.append(rest.until - now)
    assert pauses == [1, 2, 4, 5, 5]
    rest.clear()
    rest.extend(100.0, 100.0)
    assert rest.until == 101.0


def pages_until_a_check(trust: Trust, expected: float) -> int:
    pages = 0
    while not trust.wants_check:
        trust.saw_page(0.0, ended=0, expected=expected)
        pages += 1
    return pages


def test_a_list_that_shows_no_endings_is_checked() -> None:
    """After three pages on which an ending was to be expected a lookup is worth it, sooner if the list was wrong."""
    trust = Trust()
    assert pages_until_a_check(trust, expected=20.0) == 3
    trust.checked(has_ended=True)
    assert pages_until_a_check(trust, expected=20.0) == 3, "it may have ended since"
    trust.checked(has_ended=True, was_late=True)
    assert pages_until_a_check(trust, expected=20.0) == 2
    trust.checked(has_ended=False)
    assert pages_until_a_check(trust, expected=0.5) == 6


def test_a_list_that_tells_the_truth_is_seldom_checked() -> None:
    """Once a page has shown an ending, it takes many without one to doubt the list."""
    trust = Trust()
    assert pages_until_a_check(trust, expected=0.0) == pytest.approx(20, abs=1)
    trust.saw_page(0.0, ended=1, expected=0.0)
    assert pages_until_a_check(trust, expected=0.0) == pytest.approx(80, abs=1)


def test_how_far_a_list_is_behind_is_learned_from_the_endings() -> None:
    """Between how long after its end a page showed a payment as open, and how long after it a page showed the end."""
    trust = Trust()
    trust.saw_end(50.0, math.inf)
    assert trust.delay(0.0) == 50
    for _ in range(20):
        trust.saw_end(30.0, math.inf)
    assert trust.delay(0.0) == 50, "a lookup tells no more than that it is at least so far behind"
    for _ in range(20):
        trust.saw_end(-5.0, 40.0)
    assert trust.delay(0.0) == pytest.approx(40, abs=0.2)
    trust.saw_end(1.0, 45.0)
    assert trust.delay(0.0) == pytest.approx(40, abs=0.2), "two seconds are the clocks'"


def test_a_list_that_showed_no_endings_is_tried_again() -> None:
    """Each check that finds one makes it four times as far behind; while no page is asked for, that fades."""
    trust = Trust()
    delays = []
    for _ in range(5):
        pages_until_a_check(trust, expected=1.0)
        trust.checked(has_ended=True, was_late=True)
        delays.append(trust.delay(0.0))
    assert delays == [10, 40, 160, 600, 600]
    assert trust.delay(600.0) == 300


def test_for_how_long_new_payments_are_missing_is_learned() -> None:
    """More than the age of the oldest that is missing, no more than that of the youngest that is shown."""
    trust = Trust()
    trust.saw_newest(shown=math.inf, missing=9.0)
    assert trust.missing == 15
    trust.saw_newest(shown=11.0, missing=10.0)
    assert trust.missing == 11
    trust.saw_newest(shown=2.0, missing=0.0)
    assert trust.missing == 2
    trust.saw_newest(shown=math.inf, missing=1000.0)
    assert trust.missing == 120


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


# How old payments are


@given(
    st.floats(-1e9, 1e9),
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 60)), min_size=1, max_size=20),
)
def test_a_payment_is_at_least_as_old_as_is_said(ahead: float, seen: list[tuple[float, float]]) -> None:
    """Whatever the service's clock shows, by which alone ages are told: rows, with when they were made and seen."""
    time = ServiceTime()
    rows = [(Paper(id="x", created_at=made + ahead).row(0.0), made, made + after) for made, after in seen]
    for row, _, at in rows:
        time.saw([row], at)
    now = max(at for _, _, at in rows)
    latest = min(at - made for _, made, at in rows)
    for row, made, _ in rows:
        assert time.age(row, now) <= now - made + 0.01
        assert time.age(row, now) == pytest.approx(max(0.0, now - made - latest), abs=0.01)


def test_ids_are_taken_for_new_after_five_in_a_row() -> None:
    """One that was older begins the row anew."""
    habit = Habit()
    taken = []
    for age in [0.1] * 4 + [3.0] + [1.9] * 5 + [2.1]:
        habit.saw(age)
        taken.append(habit.is_new)
    assert taken == [False] * 9 + [True, False]


def test_where_the_list_lacks_new_ids_they_are_expected_there_ever_less() -> None:
    """They stay new all the same: it takes five in a row, ten, then twenty until they are looked for in the list."""
    habit = Habit()
    rows = 0
    for in_a_row in (5, 10, 20):
        while rows < in_a_row:
            assert not habit.is_listed
            habit.saw(0.0)
            rows += 1
        assert habit.is_listed
        habit.missed()
        rows = 5
        assert habit.is_new
