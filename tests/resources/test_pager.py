"""Full listing of the history: items, pages, `collect`, and a next page that is on its way while the caller works."""

import asyncio
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    APIError,
    ConnectionFailed,
    InvalidRequest,
    RateLimiter,
    RetryPolicy,
    ServerError,
    Transaction,
    TransactionPage,
    UnexpectedResponse,
)
from mobilemoney_async.testing import run_virtual
from tests.contract import samples
from tests.support.arguments import wrong
from tests.support.fakes import Handler, Sent, Step, connect
from tests.support.server import Response

ONCE = RetryPolicy(max_attempts=1)


def listing(length: int, *, takes: float = 0.0, at_most: int = 100) -> Callable[[Sent], Awaitable[Step]]:
    """Return a handler that serves a list at rest, newest first.

    Args:
        length: How many transactions there are.
        takes: How long an answer takes, seconds.
        at_most: The service's own greatest page size.
    """

    async def handler(sent: Sent) -> Step:
        await anyio.sleep(takes)
        page = int(sent.url.params["page"])
        limit = min(at_most, int(sent.url.params["limit"]))
        rows = [samples.transaction(id=f"t-{number}") for number in range(length)][(page - 1) * limit : page * limit]
        body = samples.page(
            *rows, current_page=page, total_pages=-(-length // limit), total_count=length, per_page=limit
        )
        return Response.json(body)

    return handler


def ids(rows: Any) -> list[str]:
    return [row.id for row in rows]


async def read(pager: Any, way: str) -> list[str]:
    """Return the ids of all rows, in one of three ways."""
    if way == "items":
        return ids([row async for row in pager])
    if way == "pages":
        return [row.id async for page in pager.pages() for row in page.transactions]
    return ids(await pager.collect())


def expected(length: int) -> list[str]:
    return [f"t-{number}" for number in range(length)]


@pytest.mark.parametrize(
    ("length", "limit", "requests"), [(0, 100, 1), (1, 100, 1), (100, 100, 2), (101, 100, 2), (250, 100, 3), (5, 1, 6)]
)
@pytest.mark.parametrize("way", ["items", "pages", "collect"])
async def test_every_way_shows_all_with_as_many_requests_as_pages(
    way: str, length: int, limit: int, requests: int
) -> None:
    """Items, pages and `collect` are the same listing, and ask for one page more only behind a full one."""
    async with connect(listing(length)) as (client, service):
        shown = await read(client.transactions.list(limit=limit), way)
    assert shown == expected(length)
    assert service.pages == [*range(1, requests + 1)]


async def test_each_loop_is_a_new_walk() -> None:
    """A pager may be iterated again, and then looks again."""
    async with connect(listing(3)) as (client, service):
        pager = client.transactions.list()
        assert ids([row async for row in pager]) == ids([row async for row in pager]) == expected(3)
        assert service.pages == [1, 1]


async def test_pages_are_whole_and_never_empty() -> None:
    """A page holds rows and pagination as the service gave them."""
    async with connect(listing(5)) as (client, _):
        pages = [page async for page in client.transactions.list(limit=2).pages()]
    assert all(isinstance(page, TransactionPage) for page in pages)
    assert [ids(page.transactions) for page in pages] == [["t-0", "t-1"], ["t-2", "t-3"], ["t-4"]]
    assert [page.pagination.current_page for page in pages] == [1, 2, 3]


async def test_an_ended_walk_stays_ended() -> None:
    async with connect(listing(1)) as (client, service):
        rows = aiter(client.transactions.list())
        await anext(rows)
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await anext(rows)
    assert service.pages == [1]


class TestMaxItems:
    @pytest.mark.parametrize(("most", "requests"), [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (25, 3), (999, 3)])
    @pytest.mark.parametrize("way", ["items", "pages", "collect"])
    async def test_it_stops_there_and_asks_for_no_more(self, way: str, most: int, requests: int) -> None:
        """No page is fetched for rows that are not wanted."""
        async with connect(listing(25)) as (client, service):
            shown = await read(client.transactions.list(limit=10, max_items=most), way)
            await anyio.sleep(10)
        assert shown == expected(min(most, 25))
        assert len(service.pages) == requests

    @pytest.mark.parametrize("most", [-1, 1.5, True, "5"])
    async def test_an_odd_number_is_refused(self, most: Any) -> None:
        async with connect(listing(5)) as (client, _):
            with pytest.raises(InvalidRequest, match=r"^max_items must be an int of at least 0, not "):
                client.transactions.list(max_items=most)


class TestAhead:
    @pytest.mark.parametrize(("way", "works", "takes"), [("pages", 1, 1 + 5), ("items", 0.2, 1 + 5 * 2)])
    async def test_the_next_page_is_fetched_while_the_caller_works(self, way: str, works: float, takes: float) -> None:
        """Fetching takes 1 s, working on a page 1 s: together they take no longer than one of them.

        Of items, the next page is on its way once the second row was asked for.
        """
        async with connect(listing(50, takes=1)) as (client, service):
            start, pager = anyio.current_time(), client.transactions.list(limit=10)
            async for _ in pager.pages() if way == "pages" else aiter(pager):
                await anyio.sleep(works)
            assert anyio.current_time() - start == pytest.approx(takes)
        assert (service.most, service.pages) == (1, [1, 2, 3, 4, 5, 6])

    async def test_the_first_row_costs_one_request(self) -> None:
        """The newest transaction alone costs one page."""
        async with connect(listing(50)) as (client, service):
            async for row in client.transactions.list(limit=10):
                assert row.id == "t-0"
                break
            await anyio.sleep(10)
        assert service.pages == [1]

    async def test_not_where_the_limiter_has_no_room(self) -> None:
        """Reading ahead never takes the place of a payment: it waits until it is asked for."""
        async with connect(listing(50), rate_limiter=RateLimiter(burst=1, jitter=0)) as (client, service):
            pages = aiter(client.transactions.list(limit=10).pages())
            await anext(pages)
            await anyio.sleep(30)
            assert service.pages == [1]
            await anext(pages)
        assert service.pages == [1, 2]

    async def test_breaking_out_leaves_a_client_that_works(self) -> None:
        """The page on its way ends by itself; nothing is left behind."""
        async with connect(listing(50, takes=1)) as (client, service):
            async for page in client.transactions.list(limit=10).pages():
                assert page.transactions
                break
            assert len(await client.transactions.list().collect()) == 50
            await anyio.sleep(10)
            assert service.flying == 0
        assert sorted(service.pages) == [1, 1, 2]

    async def test_an_exception_in_the_loop_is_the_caller_s(self) -> None:
        """No exception group, no scope left open."""
        async with connect(listing(50, takes=1)) as (client, _):
            with pytest.raises(KeyError):
                async for _ in client.transactions.list(limit=10):
                    raise KeyError
            with anyio.fail_after(5):
                await client.transactions.page()

    async def test_a_failed_page_ahead_fails_when_it_is_asked_for(self) -> None:
        """The error comes where the page would have come, and the page may be asked for again."""
        fail = True

        async def handler(sent: Sent) -> Step:
            if fail and sent.url.params["page"] == "2":
                return Response(502)
            return await listing(25)(sent)

        async with connect(handler, retry=ONCE) as (client, service):
            rows = aiter(client.transactions.list(limit=10))
            shown = [(await anext(rows)).id for _ in range(10)]
            with pytest.raises(ServerError):
                await anext(rows)
            fail = False
            shown += [row.id async for row in rows]
        assert shown == expected(25)
        assert service.pages == [1, 2, 2, 3]

    async def test_a_page_ahead_that_nobody_asks_for_fails_in_silence(self) -> None:
        async def handler(sent: Sent) -> Step:
            if sent.url.params["page"] == "2":
                raise httpx.ConnectError("refused")
            return await listing(25)(sent)

        async with connect(handler, retry=ONCE) as (client, service):
            await anext(aiter(client.transactions.list(limit=10).pages()))
            await anyio.sleep(10)
        assert service.pages == [1, 2]


class TestAgain:
    @pytest.mark.parametrize("way", ["items", "pages"])
    async def test_a_cancelled_page_may_be_asked_for_again(self, way: str) -> None:
        """A time-out around one step of the listing loses no row and shows none twice."""
        async with connect(listing(25, takes=3)) as (client, _):
            pager = client.transactions.list(limit=10)
            steps: AsyncIterator[Any] = aiter(pager) if way == "items" else pager.pages()
            shown: list[str] = []
            patience = [1.0, 2.0, 60.0] * 20  # each step is cancelled twice, then allowed to end
            ended = False
            while not ended:
                with anyio.move_on_after(patience.pop(0)):
                    try:
                        step = await anext(steps)
                        shown += [step.id] if isinstance(step, Transaction) else ids(step.transactions)
                    except StopAsyncIteration:
                        ended = True
        assert shown == expected(25)

    @pytest.mark.parametrize("after", [0, 1])
    def test_a_page_ahead_that_the_program_cancels_is_asked_for_again(self, after: float) -> None:
        """One that cancels all other tasks, as some do at their end, may go on to read."""

        async def main() -> None:
            shown: list[str] = []
            async with connect(listing(25, takes=3)) as (client, _):
                async for page in client.transactions.list(limit=10).pages():
                    shown += ids(page.transactions)
                    if after:
                        await anyio.sleep(after)
                    for task in asyncio.all_tasks() - {asyncio.current_task()}:
                        task.cancel()
            assert shown == expected(25)

        run_virtual(main)

    async def test_a_failed_page_may_be_asked_for_again(self) -> None:
        answers = [httpx.ConnectError("refused"), None, httpx.ConnectError("refused"), None, None]

        async def handler(sent: Sent) -> Step:
            if error := answers.pop(0):
                raise error
            return await listing(25)(sent)

        async with connect(handler, retry=ONCE) as (client, _):
            pages = aiter(client.transactions.list(limit=10).pages())
            shown: list[str] = []
            failed = 0
            while len(shown) < 25:
                try:
                    shown += ids((await anext(pages)).transactions)
                except ConnectionFailed:
                    failed += 1
        assert shown == expected(25)
        assert failed == 2


REFUSED = [
    *wrong(
        limit=[0, 101, True, "10"],
        from_date=[dt.datetime(2025, 1, 1, tzinfo=dt.UTC), "2025-01-01"],
        to_date=[dt.datetime(2025, 1, 1, tzinfo=dt.UTC), 20250101],
        status=["", 5, "\ud800"],
        type=[" ", b"collection"],
    ),
    ("from_date", {"from_date": dt.date(2025, 1, 2), "to_date": dt.date(2025, 1, 1)}),
]


class TestFilters:
    @pytest.mark.parametrize(("argument", "filters"), REFUSED, ids=repr)
    async def test_an_odd_filter_is_refused_before_anything_is_sent(
        self, argument: str, filters: dict[str, Any]
    ) -> None:
        """A filter that the service would ignore or misread is refused here, already by `list` itself."""
        async with connect(listing(5)) as (client, service):
            with pytest.raises(InvalidRequest) as caught:
                client.transactions.list(**filters)
            assert caught.value.argument == argument
            with pytest.raises(InvalidRequest) as caught:
                await client.transactions.page(**filters)
            assert caught.value.argument == argument
        assert service.sent == []

    @pytest.mark.parametrize("page", [0, -1, 1.0, True, "1"])
    async def test_pages_count_from_one(self, page: Any) -> None:
        async with connect(listing(5)) as (client, service):
            with pytest.raises(InvalidRequest, match=r"^page must be an int of at least 1, not "):
                await client.transactions.page(page)
        assert service.sent == []

    async def test_they_go_with_every_page(self) -> None:
        """A listing is one question, asked a page at a time."""
        async with connect(listing(25)) as (client, service):
            await client.transactions.list(limit=10, status="PENDING", from_date=dt.date(2025, 1, 1)).collect()
        asked = [dict(sent.url.params) for sent in service.sent]
        assert asked == [
            {"page": str(page), "limit": "10", "status": "PENDING", "from": "2025-01-01"} for page in (1, 2, 3)
        ]


async def test_a_row_that_cannot_be_read_is_skipped_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A full listing, and so a CSV of it, goes on after a broken row, and after a page of nothing but broken rows."""

    async def handler(sent: Sent) -> Step:
        page = int(sent.url.params["page"])
        rows = [samples.transaction(id=f"t-{page}-{number}") for number in range(3)]
        for row in rows if page == 2 else rows[:1]:
            row["amount"] = "1e999999999"
        rows[0]["id"] = "t\x1b[2J" if page == 1 else 5.5
        return Response.json(samples.page(*rows, current_page=page, total_pages=3, total_count=9))

    async with connect(handler) as (client, service):
        assert ids(await client.transactions.list().collect()) == ["t-1-1", "t-1-2", "t-3-1", "t-3-2"]
        assert service.pages == [1, 2, 3]
        pages = [page async for page in client.transactions.list().pages()]
        assert pages[0].skipped == ("t[2J: expected a decimal string at $.amount",)
        assert not pages[-1].is_complete
        with pytest.raises(UnexpectedResponse, match="decimal"):
            await client.transactions.page()
    assert "skipped: a row without an id: expected str at $.id" in caplog.text


@pytest.mark.parametrize("shown", [itertools.repeat(3), itertools.count(3)], ids=["the last page", "any pages"])
async def test_a_list_may_show_its_last_page_in_place_of_one_beyond_it(shown: Iterator[int]) -> None:
    """It is believed the second time; an answer that belongs to another request does not come twice."""

    async def handler(sent: Sent) -> Step:
        page = samples.page(samples.transaction(), current_page=next(shown), total_pages=3, total_count=201)
        return Response.json(page)

    async with connect(handler) as (client, _):
        if isinstance(shown, itertools.repeat):
            assert (await client.transactions.page(9)).pagination.current_page == 3
        else:
            with pytest.raises(UnexpectedResponse, match="page"):
                await client.transactions.page(90)


def short(counted: Any, shown: int, *, pages: Any = None) -> Handler:
    """Return a handler that serves some rows of a list, and counts others."""

    async def handler(sent: Sent) -> Step:
        page, limit = (int(sent.url.params[name]) for name in ("page", "limit"))
        rows = [samples.transaction(id=f"t-{number}") for number in range(shown)][(page - 1) * limit : page * limit]
        most = -(-max(shown, counted if isinstance(counted, int) else 0) // limit)
        body = samples.page(*rows, current_page=page, total_pages=pages or most, total_count=counted, per_page=limit)
        return Response.json(body)

    return handler


@pytest.mark.parametrize(
    ("counted", "shown", "pages", "limit"),
    [
        (130, 100, 2, 100),
        (130, 100, 1, 100),
        (130, 0, 2, 100),
        (130, 0, 0, 100),
        (7, 6, 3, 2),
        (7, 6, 4, 2),
        (1, 0, 1, 9),
    ],
)
async def test_a_list_that_counts_more_than_it_shows_is_not_complete(
    counted: int, shown: int, pages: int, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one warning with both numbers, and the last page says so; every way still gives what is shown."""
    async with connect(short(counted, shown, pages=pages)) as (client, _):
        found = [page async for page in client.transactions.list(limit=limit).pages()]
    assert [page.is_complete for page in found] == [True] * (len(found) - 1) + [False]
    assert sum(len(page) for page in found) == shown
    (said,) = caplog.messages
    assert f"counts {counted}, and has shown {shown} transactions" in said
    caplog.clear()
    async with connect(short(counted, shown, pages=pages)) as (client, _):
        assert len([row async for row in client.transactions.list(limit=limit)]) == shown
        assert len(await client.transactions.list(limit=limit)) == shown
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("counted", [None, "7", -1, 1.5, [], True])
async def test_a_list_without_readable_counts_is_read_and_never_complete(
    counted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read to the page that shows nothing new."""
    async with connect(short(counted, 7, pages=3)) as (client, service):
        found = [page async for page in client.transactions.list(limit=3).pages()]
        assert service.pages == [1, 2, 3, 4]
        assert not any(page.is_complete for page in found)
        assert sum(len(page) for page in found) == 7
    assert sum("without a readable count" in each for each in caplog.messages) == 1


@pytest.mark.parametrize("counted", [0, 2])
async def test_a_list_that_counts_less_than_a_page_shows_is_read_and_never_complete(counted: int) -> None:
    """Such a total does not end it after its first page."""
    async with connect(short(counted, 7, pages=1)) as (client, service):
        found = [page async for page in client.transactions.list(limit=3).pages()]
        assert service.pages == [1, 2, 3, 4]
        assert not found[-1].is_complete
        assert sum(len(page) for page in found) == 7


@pytest.mark.parametrize("length", [0, 1, 5, 6])
async def test_a_list_that_is_as_long_as_it_says_is_complete(length: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also where you asked for less of it."""
    async with connect(listing(length)) as (client, _):
        assert all([page.is_complete async for page in client.transactions.list(limit=2).pages()])
        assert all([page.is_complete async for page in client.transactions.list(limit=2, max_items=3).pages()])
    assert not caplog.messages


@pytest.mark.parametrize("counted", [20, 25, 30])
@pytest.mark.parametrize("beyond", ["empty", "last", 400, 404, 416, 422])
async def test_a_total_that_is_out_of_date_hides_no_row(counted: int, beyond: str | int) -> None:
    """A service may count its list now and then only, and refuse a page beyond its last, or show that once more."""

    async def handler(sent: Sent) -> Step:
        page = int(sent.url.params["page"])
        if page > 3 and isinstance(beyond, int):
            return Response.json({"status": "error", "message": "no", "error_code": "NO_PAGE"}, beyond)
        number = 3 if page > 3 and beyond == "last" else page
        rows = [samples.transaction(id=f"t-{each}") for each in range(30)][(number - 1) * 10 : number * 10]
        counts = {"current_page": number, "total_pages": -(-counted // 10), "total_count": counted, "per_page": 10}
        return Response.json(samples.page(*rows, **counts))

    async with connect(handler) as (client, _):
        found = [page async for page in client.transactions.list(limit=10).pages()]
    assert [row.id for page in found for row in page] == expected(30)
    assert found[-1].is_complete is (counted == 30)


async def test_a_page_that_is_counted_and_refused_is_an_error() -> None:
    """The list goes on behind it: it is not taken for the end."""

    async def handler(sent: Sent) -> Step:
        is_refused = sent.url.params["page"] == "2"
        return (
            Response.json({"status": "error", "message": "no", "error_code": "NO_PAGE"}, 404)
            if is_refused
            else await listing(25)(sent)
        )

    async with connect(handler) as (client, _):
        with pytest.raises(APIError, match="NO_PAGE"):
            await client.transactions.list(limit=10)
