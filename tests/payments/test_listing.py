"""The transaction list as evidence: read as a whole or around one time, and never believed beyond what it has shown."""

import functools
import itertools
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from typing import Any, cast

import anyio
import attrs
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    AsyncClient,
    Pagination,
    PermissionDenied,
    RateLimiter,
    RetryPolicy,
    Transaction,
    UnexpectedResponse,
)
from mobilemoney_async.calls.options import Options
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.models import PageAnswer, UnreadableRow
from mobilemoney_async.payments.ownership import listing as module
from mobilemoney_async.payments.ownership.evidence import Listing
from mobilemoney_async.payments.ownership.listing import Lister
from mobilemoney_async.testing import run_virtual
from tests.contract.test_models import PENDING
from tests.payments.listed import time_of
from tests.payments.service import on_asyncio
from tests.support.fakes import NOON
from tests.support.patience import PATIENCE
from tests.support.scale import crossed, examples
from tests.support.second_service import BASE_URL, TOKEN, ListBehaviour, Payment, Row, SecondService, error

DAY = timedelta(days=1)
YESTERDAY = (NOON - DAY).date()
ORDERS = pytest.mark.parametrize("newest_first", [True, False])


@pytest.fixture
def service(anyio_backend: Any) -> SecondService:
    began: list[float] = []

    def utcnow() -> datetime:
        began[:] = began or [anyio.current_time()]
        return NOON + timedelta(seconds=anyio.current_time() - began[0])

    return SecondService(utcnow=utcnow)


@asynccontextmanager
async def lister(service: SecondService, *, limit: RateLimiter | None = None) -> AsyncIterator[Lister]:
    """Yield a lister of a client without a limit worth mentioning, or with another."""
    unlimited = RateLimiter(per_minute=600_000, burst=10_000)
    async with AsyncClient(
        BASE_URL, auth=TOKEN, transport=service, utcnow=service.utcnow, rate_limiter=limit or unlimited
    ) as client:
        yield Lister(client._pipeline)


async def read_all(service: SecondService) -> Listing:
    async with lister(service) as listing:
        return await listing.complete(YESTERDAY)


async def read_near(service: SecondService, window: tuple[datetime, datetime]) -> Listing:
    async with lister(service) as listing:
        return await listing.near(*window, YESTERDAY)


def fill(service: SecondService, count: int, *, span: timedelta = DAY, at: datetime = NOON) -> None:
    """Make payments at even times of the time before `at`."""
    for number in range(count):
        service.make("collection", "+255681234501", "5000", created_at=at - span * (count - number) / count)


def grow(service: SecondService, per_minute: float) -> Callable[[int], None]:
    """Return a hook that makes the payments of the time since the page before."""
    due = [service.utcnow()]

    def before(shown: int) -> None:
        while due[0] <= service.utcnow():
            service.make("collection", "+255681234502", "700", created_at=due[0])
            due[0] += timedelta(minutes=1) / per_minute

    return before


def ids(service: SecondService) -> set[str]:
    return {payment.id for payment in service.payments}


def shown(walk: Listing) -> set[str]:
    assert len({row.id for row in walk.rows}) == len(walk.rows)
    return {row.id for row in walk.rows}


def shuffled(payment: Payment) -> float:
    return random.Random(payment.number).random()


def refuse(page: int, last: int) -> int:
    raise LookupError


@on_asyncio
class TestWholeDays:
    @ORDERS
    async def test_all_pages_are_read_and_two_more(self, service: SecondService, newest_first: bool) -> None:
        """An empty page proves the end, and the first page that nothing has moved: no count is believed."""
        fill(service, 1_500)
        service.list.newest_first = newest_first
        walk = await read_all(service)
        assert (walk.is_complete, walk.covered, shown(walk)) == (True, None, ids(service))
        assert service.lists == 15 + 2
        assert (walk.first_day, walk.last_day, walk.began_at, walk.ended_at) == (YESTERDAY, None, NOON, NOON)
        assert [(each.shown, each.began_at, each.ended_at) for each in walk.dates] == [(NOON, NOON, NOON)] * 17

    @pytest.mark.parametrize(("count", "requests"), [(0, 1), (12, 2), (100, 2), (101, 4)])
    async def test_a_short_list_takes_one_request_more_than_it_has_pages(
        self, service: SecondService, count: int, requests: int
    ) -> None:
        fill(service, count)
        walk = await read_all(service)
        assert (walk.is_complete, shown(walk), service.lists) == (True, ids(service), requests)

    @pytest.mark.parametrize(
        ("last_day", "sent"), [(None, None), (NOON.date(), None), (YESTERDAY, YESTERDAY.isoformat())]
    )
    async def test_the_first_day_is_always_sent_and_the_last_if_it_is_over(
        self, service: SecondService, last_day: date | None, sent: str | None
    ) -> None:
        """A list without `from` may show the last day only; one with `to` may leave that day out."""
        fill(service, 10)
        service.list.default_days = 0.1
        async with lister(service) as listing:
            walk = await listing.complete(YESTERDAY - DAY, last_day)
            if last_day is None:
                await listing.near(NOON - DAY, NOON - DAY, YESTERDAY - DAY)
        assert walk.is_complete
        assert walk.last_day == last_day
        for query in map(dict, service.queries):
            assert (query["from"], query.get("to"), query["limit"]) == ("2025-12-31", sent, "100")

    async def test_pages_may_be_thin_or_empty_in_the_middle(self, service: SecondService) -> None:
        """A service that filters its pages after it has cut them leaves holes, which are no end."""
        fill(service, 1_000)
        service.list.cut = lambda page, rows: rows[: page * 37 % 100] if page % 3 else []
        thin = sum(page * 37 % 100 for page in range(1, 11) if page % 3)
        walk = await read_all(service)
        assert (walk.is_complete, len(walk.rows)) == (False, thin)  # the total counts more

    async def test_rows_that_are_shown_twice_count_once(self, service: SecondService) -> None:
        fill(service, 250)
        service.list.cut = lambda page, rows: [*rows, *rows[-2:]]
        walk = await read_all(service)
        assert (walk.is_complete, shown(walk)) == (True, ids(service))

    async def test_a_service_that_ignores_the_page_is_no_whole(self, service: SecondService) -> None:
        """The same rows for every number are no end of the list."""
        fill(service, 250)
        first: list[Row] = []

        def cut(page: int, rows: list[Row]) -> list[Row]:
            first.extend([] if first else rows)
            return first

        service.list.cut = cut
        async with lister(service) as listing:
            walk = await listing.complete(YESTERDAY)
            assert (await listing.near(NOON - DAY / 10, NOON - DAY / 10, YESTERDAY)).covered
            assert not (await listing.near(NOON - DAY / 2, NOON - DAY / 3, YESTERDAY)).covered
        assert (walk.is_complete, len(walk.rows)) == (False, 100)
        assert service.lists <= 2 * 21 + 1 + 4

    async def test_a_row_that_cannot_be_read_is_kept_as_far_as_it_can(self, service: SecondService) -> None:
        """One broken row of a stranger hides no other, and its id and time are known where it shows them."""
        fill(service, 150)
        at = service.payments[70].created_at
        broken: dict[int, Row] = {71: {"amount": "many"}, 72: {"id": None}, 73: {"id": 5.5, "created_at": "soon"}}
        service.list.spell = lambda row: {**row, **broken.get(int(row["id"][2:]), {})}
        service.list.extra = [cast(Row, None)]
        walk = await read_all(service)
        assert len(walk.rows) == 147
        assert walk.unreadable == (
            UnreadableRow(),
            UnreadableRow(created_at=service.payments[71].created_at),
            UnreadableRow(id="t-000071", created_at=at),
        )
        assert walk.is_complete

    async def test_a_row_that_was_readable_once_is_read(self, service: SecondService) -> None:
        fill(service, 150)

        def spell(row: Row) -> Row:
            return {**row, "amount": 5} if service.lists == 1 and row["id"] == "t-000100" else row

        service.list.spell = spell
        walk = await read_all(service)
        assert (walk.is_complete, walk.unreadable, shown(walk)) == (True, (), ids(service))

    @pytest.mark.parametrize(
        ("answer", "raised"),
        [
            (lambda: httpx.Response(200, json={"status": "success", "transactions": {}}), UnexpectedResponse),
            (lambda: error(403, "insufficient_permissions"), PermissionDenied),
            (lambda: error(404, None), APIError),
        ],
    )
    async def test_a_page_that_is_none_is_an_error(
        self, service: SecondService, monkeypatch: pytest.MonkeyPatch, answer: Any, raised: type[Exception]
    ) -> None:
        """Tolerance ends with the rows: a page needs its array, and the first page must exist."""
        monkeypatch.setattr(SecondService, "_page", lambda *_: answer())
        async with lister(service) as listing:
            with pytest.raises(raised):
                await listing.complete(YESTERDAY)
            with pytest.raises(raised):
                await listing.near(NOON, NOON, YESTERDAY)


@on_asyncio
class TestAListThatChanges:
    @ORDERS
    async def test_rows_that_arrive_hide_none(self, service: SecondService, newest_first: bool) -> None:
        """Sixty new payments a minute, under the real limit: one attempt, and each old row once."""
        fill(service, 3_000)
        before = ids(service)
        service.list = ListBehaviour(newest_first=newest_first, before=grow(service, 60))
        async with lister(service, limit=RateLimiter()) as listing:
            walk = await listing.complete(YESTERDAY)
        assert walk.is_complete
        assert shown(walk) >= before
        assert service.lists <= 30 + 3
        assert walk.ended_at - walk.began_at > timedelta(seconds=15)

    async def test_a_batch_that_arrives_at_once_is_no_gap(self, service: SecondService) -> None:
        """Three pages of new rows between two requests repeat three pages, and the listing goes on behind them."""
        fill(service, 1_000)
        before = ids(service)
        service.list.before = lambda shown: fill(service, 300, span=timedelta(seconds=1)) if shown == 4 else None
        walk = await read_all(service)
        assert (walk.is_complete, shown(walk)) == (True, before | ids(service))

    async def test_a_count_that_rises_with_the_last_page_counts_a_hidden_row(self, service: SecondService) -> None:
        """A row that arrived would have pushed one onto that page, or be shown on it: the list is no whole."""
        fill(service, 350)
        page = [0]

        def cut(number: int, rows: list[Any]) -> list[Any]:
            page[0] = number
            return rows

        service.list = ListBehaviour(
            hide=lambda payment: payment.number == 100, cut=cut, total_count=lambda count: count + (page[0] >= 4)
        )
        walk = await read_all(service)
        assert (walk.is_complete, len(walk.rows)) == (False, 349)

    @pytest.mark.parametrize("total_count", [lambda count: 0, lambda count: count])
    async def test_a_row_that_leaves_is_noticed(self, service: SecondService, total_count: Any) -> None:
        """The oldest row leaves a list with the oldest first: the row that moved up is found by another attempt.

        The list is no whole then, since it has shown a row that it does not have any more. It is one the next time.
        """
        fill(service, 400)
        gone: set[int] = set()
        service.list = ListBehaviour(newest_first=False, total_count=total_count)
        service.list.hide = lambda payment: payment.number in gone
        service.list.before = lambda shown: gone.add(1) if shown == 2 else None
        async with lister(service) as listing:
            walk = await listing.complete(YESTERDAY)
            assert (walk.is_complete, shown(walk)) == (False, ids(service))
            assert service.lists <= 3 * 6
            assert (await listing.complete(YESTERDAY)).is_complete

    async def test_a_window_that_slides_is_noticed_though_the_total_stays(self, service: SecondService) -> None:
        """One row leaves and one arrives between two pages, always: after three attempts it is no whole."""
        fill(service, 400)
        service.list.newest_first = False
        service.list.hide = lambda payment: payment.number <= service.lists
        service.list.before = lambda shown: fill(service, 1, span=timedelta(0))
        walk = await read_all(service)
        assert not walk.is_complete
        assert service.lists <= 3 * 6

    async def test_rows_that_move_to_the_front_are_found_there(self, service: SecondService) -> None:
        """A list in the order of the last change moves a row past the reader, who looks at the front again."""
        fill(service, 400)
        touched: dict[int, int] = {}
        service.list.order = lambda payment: (-touched.get(payment.number, 0), -payment.number)
        service.list.before = lambda shown: touched.update({5: 1}) if shown == 2 else None
        walk = await read_all(service)
        assert (walk.is_complete, shown(walk), service.lists) == (True, ids(service), 5 + 6)

    @pytest.mark.parametrize("moved", [350, 250, 150])
    async def test_a_known_row_that_moves_to_the_end_is_a_gap(self, service: SecondService, moved: int) -> None:
        fill(service, 400)
        touched: dict[int, int] = {}
        service.list.order = lambda payment: (touched.get(payment.number, 0), -payment.number)
        service.list.before = lambda shown: touched.update({moved: 1}) if shown == 3 else None
        walk = await read_all(service)
        assert (walk.is_complete, shown(walk)) == (True, ids(service))
        assert service.lists == 5 + 6

    @pytest.mark.parametrize(("count", "moved", "arrival"), [(351, 151, 0), (400, 9, 0), (251, 200, 0), (251, 200, 2)])
    async def test_a_gap_is_noticed_though_an_arrival_makes_up_the_count(
        self, service: SecondService, count: int, moved: int, arrival: int
    ) -> None:
        """With the oldest change first, a known row ends the list, alone on its page or behind or before an arrival."""
        fill(service, count)
        places = {count + 1: arrival}
        service.list.order = lambda payment: (places.get(payment.number, 0), payment.number)

        def before(shown: int) -> None:
            if shown == 2:
                fill(service, 1, span=timedelta(0))
                places[moved] = 1

        service.list.before = before
        walk = await read_all(service)
        assert (walk.is_complete, shown(walk)) == (True, ids(service))

    @ORDERS
    async def test_a_service_that_repeats_its_first_page_beyond_the_last_has_a_whole(
        self, service: SecondService, newest_first: bool
    ) -> None:
        fill(service, 250)
        service.list = ListBehaviour(
            newest_first=newest_first, beyond=lambda page, last: 1, before=lambda shown: fill(service, 1)
        )
        walk = await read_all(service)
        assert walk.is_complete

    @pytest.mark.parametrize("total_count", [lambda count: 0, lambda count: count])
    async def test_a_list_that_is_away_for_a_moment_does_not_end_there(
        self, service: SecondService, total_count: Any
    ) -> None:
        """Pages that are empty for a moment are found out by the first page, or by the total that fell.

        Nor does it count as empty then: the rows have been shown.
        """
        fill(service, 400)
        service.list.total_count = total_count

        def before(shown: int) -> None:
            service.list.empty_until = NOON + DAY if away[0] <= shown < away[1] else None

        away = (2, 5)
        service.list.before = before
        async with lister(service) as listing:
            walk = await listing.complete(YESTERDAY)
            assert (walk.is_complete, shown(walk)) == (True, ids(service))
            assert service.lists <= 3 * 6
            away = (service.lists + 2, service.lists + 100)
            assert not (await listing.complete(YESTERDAY)).is_complete
        assert service.lists <= 3 * 6 + 60

    @pytest.mark.slow
    async def test_a_list_without_end_is_left(self, service: SecondService, monkeypatch: pytest.MonkeyPatch) -> None:
        """A service that invents rows for ever costs a bounded number of requests."""
        monkeypatch.setattr(module, "_MOST_REQUESTS", 300)
        numbers = iter(range(10**9))
        service.make("collection", "+255681234501", "5000")
        service.list.beyond = lambda page, last: 1
        service.list.spell = lambda row: row | {"id": f"x-{next(numbers)}"}
        async with lister(service) as listing:
            assert not (await listing.complete(YESTERDAY)).is_complete
            # Pages with another number than the one asked for are asked for a second time.
            assert service.lists == 599
            assert (await listing.near(NOON - DAY, NOON - DAY, YESTERDAY)).covered is None
        assert service.lists <= 720


MINUTE = timedelta(minutes=1)


def around(at: datetime) -> tuple[datetime, datetime]:
    """Return the window in which a payment of this time is looked for."""
    return at - MINUTE, at + 3 * MINUTE


def inside(service: SecondService, window: tuple[datetime, datetime]) -> set[str]:
    return {payment.id for payment in service.payments if window[0] <= payment.created_at <= window[1]}


# A number of rows, and what comes beyond the last page.
LIES = list(
    itertools.product(
        [lambda count: 0, lambda count: min(count, 1_000), lambda count: 9 * count],
        [lambda page, last: page, lambda page, last: last, refuse],
    )
)
AGES = [timedelta(0), 7 * MINUTE, timedelta(hours=1), timedelta(hours=7.3), timedelta(hours=17), timedelta(hours=23.99)]


@on_asyncio
class TestOneTime:
    @pytest.mark.slow
    @ORDERS
    @pytest.mark.parametrize("per_minute", [0, 60])
    async def test_its_pages_are_found_by_bisection(
        self, service: SecondService, newest_first: bool, per_minute: float
    ) -> None:
        """Of a day's rows, those of four minutes in log2(pages) + 4 requests, also while rows arrive."""
        fill(service, 5_000)
        before = grow(service, per_minute) if per_minute else lambda shown: None
        service.list = ListBehaviour(newest_first=newest_first, before=before)
        async with lister(service, limit=RateLimiter()) as listing:
            for age in AGES:
                service.lists = 0
                window = around(service.utcnow() - age)
                wanted = inside(service, window)
                walk = await listing.near(*window, YESTERDAY)
                assert (walk.covered, walk.is_complete) == (window, False)
                assert shown(walk) >= wanted
                assert service.lists <= math.log2(len(service.payments) / 100) + 4
                if age < timedelta(minutes=5):
                    assert service.lists <= (1 if newest_first and not per_minute else 6)

    @pytest.mark.parametrize(("lie", "newest_first"), crossed(LIES, [True, False]))
    async def test_a_total_that_lies_costs_some_requests_more(
        self, service: SecondService, newest_first: bool, lie: tuple[Any, Any]
    ) -> None:
        """The service's number of pages is where the search begins, and the pages decide."""
        total_count, beyond = lie
        fill(service, 2_000)
        service.list = ListBehaviour(newest_first=newest_first, total_count=total_count, beyond=beyond, page_size=10)
        for age in AGES:
            service.lists = 0
            window = around(NOON - age)
            walk = await read_near(service, window)
            assert shown(walk) >= inside(service, window)
            assert service.lists <= 5 * math.log2(200)
            # A page that comes for all numbers, all of which the service counts, is no end of the list.
            assert walk.covered == window or (total_count(1) == 9 and beyond(7, 5) == 5)

    async def test_a_list_without_an_order_covers_nothing(self, service: SecondService) -> None:
        fill(service, 1_000)
        service.list.order = shuffled
        walk = await read_near(service, around(NOON - DAY / 2))
        assert (walk.covered, service.lists) == (None, 1)

    async def test_a_short_one_is_read_as_a_whole(self, service: SecondService) -> None:
        """A small merchant's list needs no order to show a fresh payment."""
        fill(service, 440)
        service.list.order = shuffled
        window = around(NOON)
        walk = await read_near(service, window)
        assert (walk.covered, shown(walk), service.lists) == (window, ids(service), 6)

    @ORDERS
    async def test_a_batch_of_one_second_is_read_to_both_its_ends(
        self, service: SecondService, newest_first: bool
    ) -> None:
        """A thousand rows of one instant are no order, and may hold the payment: all of them are read."""
        fill(service, 1_000, at=NOON - DAY / 2, span=DAY / 4)
        for _ in range(1_000):
            service.make("disbursement", "+255681234503", "900", created_at=NOON - DAY / 2)
        fill(service, 1_000, span=DAY / 4)
        service.list.newest_first = newest_first
        for window in (around(NOON - DAY / 2), around(NOON - DAY / 8), around(NOON - DAY / 1.5)):
            service.lists = 0
            walk = await read_near(service, window)
            assert walk.covered == window
            assert shown(walk) >= inside(service, window)
            assert service.lists <= math.log2(30) + 5 + len(inside(service, window)) / 100

    @pytest.mark.parametrize("count", [0, 300])
    async def test_one_instant_only_or_no_row_at_all_is_no_order(self, service: SecondService, count: int) -> None:
        """A list that is empty now covers nothing; one of a single time covers what lies outside it at its ends."""
        for _ in range(count):
            service.make("disbursement", "+255681234503", "900", created_at=NOON - DAY / 2)
        for window in (around(NOON), around(NOON - DAY / 2), around(NOON - DAY)):
            walk = await read_near(service, window)
            assert walk.covered == (window if count else None)
            assert shown(walk) == ids(service)

    @ORDERS
    async def test_unreadable_rows_do_not_stop_it(self, service: SecondService, newest_first: bool) -> None:
        fill(service, 1_000)
        service.list.newest_first = newest_first
        service.list.cut = lambda page, rows: [row | {"amount": None} for row in rows] if page in {5, 8} else rows
        for age in AGES:
            window = around(NOON - age)
            service.lists = 0
            walk = await read_near(service, window)
            known = shown(walk) | {row.id for row in walk.unreadable}
            assert walk.covered in {window, None}
            assert walk.covered is None or known >= inside(service, window)
            assert service.lists <= 60

    async def test_a_total_that_falls_covers_nothing(self, service: SecondService) -> None:
        """Where rows leave while they are searched, any page may hide one."""
        fill(service, 1_000)
        service.list.hide = lambda payment: payment.number < service.lists
        walk = await read_near(service, around(NOON - DAY / 2))
        assert (walk.covered, service.lists) == (None, 2)


# Laws. The list is a model without a wire, so that many can be tried.


@functools.cache
def row(number: int, seconds: int) -> Transaction:
    return attrs.evolve(PENDING, id=f"t-{number}", created_at=NOON + timedelta(seconds=seconds))


@attrs.define
class ModelList:
    """Pipeline whose list is a model: rows in some order, cut into pages, and changed before each page.

    Attributes:
        rows: The rows, as they are shown.
        size: How many rows are on a page.
        count: The total for a true total.
        beyond: The page shown for one beyond the last.
        change: Changes the rows before each page.
    """

    rows: list[Transaction]
    size: int
    count: Callable[[int], int] = lambda count: count
    beyond: Callable[[int, int], int] = lambda page, last: page
    change: Callable[[list[Transaction]], None] = lambda rows: None
    requests: int = 0
    options: Options = attrs.field(
        factory=lambda: Options(timeout=PATIENCE, deadline=None, retry=RetryPolicy(), headers={})
    )

    def utcnow(self) -> datetime:
        return NOON

    def page(self, number: int) -> PageAnswer:
        total, last = self.count(len(self.rows)), max(1, -(-len(self.rows) // self.size))
        number = number if number <= last else self.beyond(number, last)
        cut = self.rows[(number - 1) * self.size : number * self.size]
        numbers = Pagination(
            current_page=number, total_pages=-(-total // self.size), total_count=total, per_page=self.size
        )
        return PageAnswer(transactions=tuple(cut), pagination=numbers)

    async def call(self, endpoint: object, *, query: dict[str, Any], **rest: object) -> PageAnswer:
        self.requests += 1
        self.change(self.rows)
        return self.page(query["page"])

    def complete(self) -> Listing:
        return run_virtual(Lister(cast(Pipeline, self)).complete, YESTERDAY)

    def near(self, start: int, end: int) -> Listing:
        window = NOON + timedelta(seconds=start), NOON + timedelta(seconds=end)
        return run_virtual(Lister(cast(Pipeline, self)).near, *window, YESTERDAY)


sizes = st.integers(min_value=1, max_value=7)
lies: st.SearchStrategy[Callable[[int], int]] = st.sampled_from(
    [lambda count: count, lambda count: 0, lambda count: min(count, 6), lambda count: count + 3]
)
ends: st.SearchStrategy[Callable[[int, int], int]] = st.sampled_from(
    [lambda page, last: page, lambda page, last: last, lambda page, last: 1]
)
orders = st.sampled_from(["newest first", "oldest first", "none"])


def ordered(rows: list[Transaction], order: str) -> list[Transaction]:
    """Return rows in an order; a list without one keeps the order in which they are given."""
    if order == "none":
        return list(rows)
    return sorted(rows, key=lambda each: (each.created_at, each.id), reverse=order == "newest first")


rows_of_a_list = st.lists(st.integers(min_value=0, max_value=60), max_size=40).map(
    lambda times: [row(number, at) for number, at in enumerate(times)]
)


def names(rows: list[Transaction] | tuple[Transaction, ...]) -> set[str]:
    return {each.id for each in rows}


@pytest.mark.slow
@given(rows_of_a_list, orders, sizes, lies, ends)
@settings(max_examples=examples(100))
def test_a_still_list_is_whole_only_with_all_its_rows(
    rows: list[Transaction], order: str, size: int, count: Callable[[int], int], beyond: Callable[[int, int], int]
) -> None:
    """Whatever a list counts and shows beyond its end: a whole one has every row; and an honest one is whole."""
    model = ModelList(ordered(rows, order), size, count, beyond)
    walk = model.complete()
    assert names(walk.rows) <= names(rows)
    assert not walk.is_complete or names(walk.rows) == names(rows)
    pages = -(-len(rows) // size)
    if count(1) == 1 and count(40) == 40 and beyond(5, 2) != 1:
        assert walk.is_complete
        assert model.requests <= pages + 4
    assert model.requests <= 3 * (pages + 25)


@pytest.mark.slow
@given(rows_of_a_list, orders, sizes, lies, st.data())
@settings(max_examples=examples(100))
def test_rows_that_arrive_anywhere_hide_none(
    rows: list[Transaction], order: str, size: int, count: Callable[[int], int], data: st.DataObject
) -> None:
    """A whole list has every row that was there when it was first read, in any order and under any total."""
    numbers = iter(range(1000, 2000))
    arrivals = data.draw(st.lists(st.lists(st.integers(min_value=0, max_value=90), max_size=9), max_size=20))

    def change(shown: list[Transaction]) -> None:
        for at in arrivals.pop() if arrivals else []:
            new = row(next(numbers), at)
            shown.insert(data.draw(st.integers(min_value=0, max_value=len(shown))), new)
            shown[:] = ordered(shown, order)

    model = ModelList(ordered(rows, order), size, count, change=change)
    walk = model.complete()
    assert not walk.is_complete or names(walk.rows) >= names(rows)
    assert model.requests <= 1000


@pytest.mark.costly("runs lines of resources/page_choice.py that no quick test runs")
@given(
    st.lists(st.lists(st.integers(min_value=0, max_value=30), max_size=6), min_size=1, max_size=12),
    st.lists(st.integers(min_value=-5, max_value=1000) | st.just(10**12), min_size=1, max_size=12),
    st.integers(min_value=-100, max_value=100),
)
@settings(max_examples=examples(100))
def test_any_list_comes_to_an_end(pages: list[list[int]], totals: list[int], start: int) -> None:
    """Pages of any rows in any order, under any totals: both ways of reading end after a bounded number of requests."""
    model = ModelList([], 5)

    def change(shown: list[Transaction]) -> None:
        shown[:] = [row(number, number * 7 % 40) for number in pages[model.requests % len(pages)]]

    model.count, model.change = lambda count: totals[model.requests % len(totals)], change
    model.beyond = lambda page, last: 1
    model.complete()
    assert model.requests <= 3 * 31 * 20
    model.requests = 0
    model.near(start, start + 10)
    assert model.requests <= 60


@pytest.mark.slow
@given(
    rows_of_a_list,
    st.tuples(st.sampled_from(["newest first", "oldest first"]), sizes),
    lies,
    st.tuples(st.integers(min_value=-10, max_value=70), st.integers(min_value=0, max_value=20)),
    st.lists(st.integers(min_value=0, max_value=2), max_size=30),
)
@settings(max_examples=examples(100))
def test_a_time_is_covered_only_with_all_its_rows(
    rows: list[Transaction],
    shape: tuple[str, int],
    count: Callable[[int], int],
    window: tuple[int, int],
    arrivals: list[int],
) -> None:
    """A window that is covered has every row that the list had, if less than a page arrives between two requests.

    A list at rest is covered whenever its counts are true and its times are an order.
    """
    (order, size), numbers, is_still = shape, iter(range(1000, 2000)), not any(arrivals)

    def change(shown: list[Transaction]) -> None:
        for _ in range(min(size - 1, arrivals.pop()) if arrivals else 0):
            shown[:] = ordered([*shown, row(next(numbers), 60)], order)

    model = ModelList(ordered(rows, order), size, count, change=change)
    start, width = window
    walk = model.near(start, start + width)
    wanted = {each.id for each in rows if start <= (time_of(each) - NOON).total_seconds() <= start + width}
    assert walk.covered is None or names(walk.rows) >= wanted
    if rows and is_still and count(1) == 1 and count(40) == 40 and len({each.created_at for each in rows}) == len(rows):
        assert walk.covered is not None
    assert model.requests <= 60
