"""Laws of a full listing of a list that changes while it is read. No I/O: pages are made from a model of the list."""

import functools
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import Pagination, Transaction, TransactionPage
from mobilemoney_async.resources.page_choice import FullListing
from tests.contract.test_models import PENDING
from tests.support.scale import examples

MANY = 2500  # more requests than any listing here may need


@functools.cache
def row(number: int) -> Transaction:
    return attrs.evolve(PENDING, id=f"t-{number}")


@attrs.define
class List:
    """The service's list, as a model: numbers in either order, cut into pages.

    Attributes:
        newest_first: The order, which the contract does not document.
        size: How many rows the service puts on a page.
        rows: Oldest first.
    """

    newest_first: bool
    size: int
    rows: list[int]
    made: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.made = len(self.rows)

    def arrive(self, count: int) -> None:
        self.rows += range(self.made, self.made + count)
        self.made += count

    def leave(self, numbers: set[int]) -> None:
        self.rows = [number for number in self.rows if number not in numbers]

    def page(self, number: int) -> TransactionPage:
        rows = self.rows[::-1] if self.newest_first else self.rows
        cut = rows[(number - 1) * self.size : number * self.size]
        return TransactionPage(
            transactions=tuple(map(row, cut)),
            pagination=Pagination(
                current_page=number,
                total_pages=-(-len(rows) // self.size),
                total_count=len(rows),
                per_page=self.size,
            ),
        )


def list_all(
    fetch: Callable[[int], TransactionPage], between: Callable[[int], object] = int
) -> tuple[list[str], list[int]]:
    """List to the end, with a change of the list after each page; return the ids in order, and the pages asked for."""
    steps, shown, asked = FullListing(), list[str](), list[int]()
    while steps.page is not None:
        asked.append(steps.page)
        assert steps.page >= 1
        assert len(asked) <= MANY, "the listing does not end"
        answer, _ = fetch(steps.page), between(steps.page)
        shown += [each.id for each in steps.take(answer)]
    return shown, asked


sizes = st.integers(min_value=1, max_value=7)
lengths = st.integers(min_value=0, max_value=40)


@given(st.booleans(), sizes, lengths)
def test_a_list_at_rest_takes_as_many_requests_as_it_has_pages(newest_first: bool, size: int, length: int) -> None:
    """Each row once, in the service's order, with one request more where the last page is full."""
    model = List(newest_first, size, [*range(length)])
    shown, asked = list_all(model.page)
    expected = [f"t-{number}" for number in model.rows]
    assert shown == (expected[::-1] if newest_first else expected)
    assert asked == [*range(1, length // size + 2)]


@pytest.mark.slow
@given(st.booleans(), sizes, lengths, st.data())
@settings(max_examples=examples(200))
def test_rows_that_arrive_hide_none_that_were_there(
    newest_first: bool, size: int, length: int, data: st.DataObject
) -> None:
    """Newest first or oldest first, whatever arrives between two pages: nothing old is missed, each row comes once."""
    model = List(newest_first, size, [*range(length)])
    arrivals = data.draw(st.lists(st.integers(min_value=0, max_value=20), max_size=20))
    shown, _ = list_all(model.page, lambda _: model.arrive(arrivals.pop() if arrivals else 0))
    assert len(set(shown)) == len(shown)
    assert {f"t-{number}" for number in range(length)} <= set(shown)


@pytest.mark.slow
@given(st.booleans(), sizes, lengths, st.data())
@settings(max_examples=examples(200))
def test_rows_that_leave_take_none_with_them(newest_first: bool, size: int, length: int, data: st.DataObject) -> None:
    """Of a list by status, rows leave while it is read: those that stay are all shown, each once."""
    model = List(newest_first, size, [*range(length)])
    departures = data.draw(st.lists(st.sets(st.integers(min_value=0, max_value=40)), max_size=20))
    shown, _ = list_all(model.page, lambda _: model.leave(departures.pop() if departures else set()))
    assert len(set(shown)) == len(shown)
    assert {f"t-{number}" for number in model.rows} <= set(shown)


@pytest.mark.slow
@given(st.booleans(), sizes, lengths, st.data())
@settings(max_examples=examples(200))
def test_rows_that_come_and_go_by_turns_take_none_with_them(
    newest_first: bool, size: int, length: int, data: st.DataObject
) -> None:
    """Between two pages rows arrive or leave, not both: what was there and stays is shown."""
    turns = st.integers(min_value=0, max_value=9) | st.sets(st.integers(min_value=0, max_value=40))
    check_turns(newest_first, size, length, data.draw(st.lists(turns, max_size=20)))


@pytest.mark.parametrize("turns", [[{6}, 1], [{0, 7}, 1], [{2, 5}, 2, {1}, 1]])
def test_rows_that_arrive_after_others_have_left_move_what_was_read_ahead(turns: list[int | set[int]]) -> None:
    check_turns(newest_first=True, size=2, length=8, turns=turns)


def check_turns(newest_first: bool, size: int, length: int, turns: list[int | set[int]]) -> None:
    model, left = List(newest_first, size, [*range(length)]), iter(turns)

    def change(_: int) -> None:
        turn = next(left, 0)
        if isinstance(turn, int):
            model.arrive(turn)
        else:
            model.leave(turn)

    shown, _ = list_all(model.page, change)
    assert len(set(shown)) == len(shown)
    assert {f"t-{number}" for number in model.rows if number < length} <= set(shown)


@pytest.mark.slow
@given(st.booleans(), sizes, lengths, st.data())
@settings(max_examples=examples(200))
def test_any_change_leaves_each_row_at_most_once_and_an_end(
    newest_first: bool, size: int, length: int, data: st.DataObject
) -> None:
    """Arrivals and departures at once may hide a row, as documented; they never show one twice or go on for ever."""
    model = List(newest_first, size, [*range(length)])
    changes = st.tuples(st.integers(min_value=0, max_value=9), st.sets(st.integers(min_value=0, max_value=60)))
    left = data.draw(st.lists(changes, max_size=20))

    def change(page: int) -> None:
        arriving, leaving = left.pop() if left else (0, set[int]())
        model.arrive(arriving)
        model.leave(leaving)

    shown, _ = list_all(model.page, change)
    assert len(set(shown)) == len(shown)


odd_numbers = st.integers(min_value=-5, max_value=1000) | st.just(10**12)
odd_pagination = st.builds(
    Pagination, current_page=odd_numbers, total_pages=odd_numbers, total_count=odd_numbers, per_page=odd_numbers
)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(min_value=0, max_value=30), max_size=6), min_size=1, max_size=12),
    st.lists(odd_pagination, min_size=1, max_size=12),
)
@settings(max_examples=examples(200))
def test_a_service_that_lies_is_walked_to_an_end(pages: list[list[int]], numbers: list[Pagination]) -> None:
    """Under any pagination, in any order, the listing ends and shows each row once."""
    calls = 0

    def fetch(page: int) -> TransactionPage:
        nonlocal calls
        calls += 1
        return TransactionPage(
            transactions=tuple(map(row, pages[calls % len(pages)])), pagination=numbers[calls % len(numbers)]
        )

    shown, _ = list_all(fetch)
    assert len(set(shown)) == len(shown)


class TestServicesThatDoNotEnd:
    def test_one_that_repeats_a_page_for_ever_is_left(self) -> None:
        """A service that ignores `page` costs one request more, not all of them."""
        model = List(newest_first=True, size=5, rows=[*range(20)])
        shown, asked = list_all(lambda _: model.page(1))
        assert len(shown) == 5
        assert asked == [1, 2]

    def test_so_is_one_whose_total_grows_for_ever_meanwhile(self) -> None:
        """A count that grows explains repeated rows, but not for ever."""
        model = List(newest_first=True, size=5, rows=[*range(20)])
        totals = iter(range(1000, 10**9, 1000))

        def fetch(page: int) -> TransactionPage:
            total = next(totals)
            same = model.page(1).transactions
            numbers = Pagination(current_page=page, total_pages=total, total_count=total, per_page=5)
            return TransactionPage(transactions=same, pagination=numbers)

        shown, asked = list_all(fetch)
        assert len(shown) == 5
        assert len(asked) <= 1010

    def test_and_one_whose_total_swings(self) -> None:
        """A total that falls sends the listing back a page; it does not swing with the service for ever."""
        model = List(newest_first=True, size=5, rows=[*range(20)])
        calls = 0

        def fetch(page: int) -> TransactionPage:
            nonlocal calls
            calls += 1
            numbers = Pagination(current_page=page, total_pages=4, total_count=20 - 10 * (calls % 2), per_page=5)
            return TransactionPage(transactions=model.page(page).transactions, pagination=numbers)

        shown, asked = list_all(fetch)
        assert len(set(shown)) == len(shown) >= 10
        assert len(asked) <= 1010

    def test_a_page_that_says_there_is_more_and_is_empty_ends_it(self) -> None:
        numbers = Pagination(current_page=1, total_pages=10**9, total_count=10**9, per_page=5)
        assert list_all(lambda _: TransactionPage(transactions=(), pagination=numbers)) == ([], [1])


def test_a_limit_that_the_service_lowers_is_no_trouble() -> None:
    """Asked for 100, a service that gives 20 is listed 20 at a time, also where rows leave."""
    model = List(newest_first=True, size=20, rows=[*range(200)])
    read = set(range(110, 200))  # ninety of the hundred rows of the first five pages
    shown, asked = list_all(model.page, lambda page: model.leave(read if page == 5 else set()))
    assert set(shown) == {f"t-{number}" for number in range(200)}
    assert asked[:5] == [1, 2, 3, 4, 5]


def test_a_list_that_shrinks_under_the_walk_is_walked_back() -> None:
    """The payments of a page that became final are gone from `status=PENDING`; the others moved up and are shown."""
    model = List(newest_first=True, size=100, rows=[*range(150)])
    shown, asked = list_all(model.page, lambda _: model.leave(set(range(90, 150))))
    assert set(shown) == {f"t-{number}" for number in range(150)}
    assert asked == [1, 2, 1]


def test_a_list_that_shrinks_at_every_look_is_walked_all_the_same() -> None:
    """A busy merchant's pending payments become final all the time: the listing gets on, at some requests a page."""
    model = List(newest_first=True, size=100, rows=[*range(2000)])
    leaving = iter(range(1999, 0, -4))
    shown, asked = list_all(model.page, lambda _: model.leave({next(leaving)}))
    assert {f"t-{number}" for number in model.rows} <= set(shown)
    assert len(asked) <= 3 * 20


@pytest.mark.parametrize(
    ("second", "total", "third", "is_short"), [(50, 150, 0, False), (0, 0, 0, True), (0, 60, 0, True)]
)
def test_an_empty_page_at_the_end_is_no_gap(second: int, total: int, third: int, is_short: bool) -> None:
    """Rows have left before it, or the service counts a page too many; only one that counts nothing says nothing."""
    steps, lengths = FullListing(), {1: 100, 2: second, 3: third}
    while steps.page is not None:
        first, number = 100 * steps.page, steps.page
        rows = tuple(map(row, range(first, first + lengths[number])))
        counts = Pagination(current_page=number, total_pages=3, total_count=150 if number == 1 else total, per_page=100)
        steps.take(TransactionPage(transactions=rows, pagination=counts))
    assert steps.is_short is is_short
