"""Event stream of the phone page: its events, and its end when the page closes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import anyio
import httpx
import pytest

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sandbox.page import app, snapshot
from mobilemoney_async.sandbox.page.fragments import REGIONS, TICK, as_event, write_parts
from tests.sandbox.page_user import Elements, PageUser, Reader, ask
from tests.sandbox.service import ORDINARY
from tests.support.patience import until

OTHER = "+255681000002"


@asynccontextmanager
async def reading(user: PageUser, cookie: str = "") -> AsyncIterator[Reader]:
    """Read the stream in the background, then leave as a page that closes."""
    reader = Reader(user, cookie)
    with anyio.fail_after(3600):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.read)
            await anyio.sleep(TICK / 2)
            yield reader
            reader.left.set()


def touched(events: list[str]) -> list[str]:
    """Return the ids of the parts in some events, in their order."""
    parts = [found["id"] for _, found in Elements("\n".join(events)).attributes if "hx-swap-oob" in found]
    return sorted(parts)


def text(event: str) -> str:
    return Elements(event.replace("data: ", "")).text


async def test_a_page_that_connects_gets_everything_at_once(user: PageUser, sandbox: Sandbox) -> None:
    """The first event is the whole snapshot, so a page that lost its connection is right again."""
    await ask(sandbox, ORDINARY)
    async with reading(user) as reader:
        (first,) = reader.chunks
    assert touched([first]) == sorted(REGIONS)
    assert "15,000" in text(first)
    headers = dict(reader.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-store"


async def test_only_changed_parts_are_sent(user: PageUser, sandbox: Sandbox) -> None:
    """Only changed parts are sent."""
    sandbox.run_clock(0)
    first = await ask(sandbox, ORDINARY)
    sandbox.advance(1)
    await ask(sandbox, OTHER)
    sandbox.advance(60)  # so that the request limit is whole again, and does not change
    async with reading(user) as reader:
        reader.sent.clear()
        await anyio.sleep(10)
        assert reader.chunks == []
        sandbox.enter_pin(first, "0000")
        await anyio.sleep(2 * TICK)
        (event,) = reader.chunks
        assert touched([event]) == ["phone-list"]
        assert "2 tries left" in text(event)
        reader.sent.clear()
        sandbox.switches.turn_on("slow")
        await anyio.sleep(2 * TICK)
        assert touched(reader.chunks) == ["fault-list", "faults-on"]
        reader.sent.clear()
        sandbox.approve(first)
        await anyio.sleep(2 * TICK)
        assert touched(reader.chunks) == ["announcement", "phone-list", "summary", "transactions"]
        assert "collection of 15,000 TZS is SUCCESS" in text(reader.chunks[0])


async def test_an_action_on_the_page_is_shown_at_once(user: PageUser, sandbox: Sandbox) -> None:
    """A form is followed by its effect without waiting for the next look."""
    async with reading(user) as reader:
        await anyio.sleep(TICK)
        reader.sent.clear()
        await user.do("/faults", once="slow")
        await anyio.sleep(TICK / 100)
        assert touched(reader.chunks) == ["fault-list", "faults-on"]


async def test_the_clock_and_the_time_left_are_followed(user: PageUser, sandbox: Sandbox) -> None:
    """A prompt counts down on the page second by second, and nothing else is sent."""
    await ask(sandbox, ORDINARY)
    sandbox.advance(60)
    async with reading(user) as reader:
        reader.sent.clear()
        await anyio.sleep(3)
        assert len(reader.chunks) == 3
        assert all(touched([event])[0] == "clock-face" and len(touched([event])) == 2 for event in reader.chunks)
        assert "0:57 left" in text(reader.chunks[-1])


async def test_a_quiet_stream_gives_signs_of_life(user: PageUser, sandbox: Sandbox) -> None:
    """The stream of a paused sandbox sends a comment now and then."""
    sandbox.run_clock(0)
    async with reading(user) as reader:
        reader.sent.clear()
        await anyio.sleep(31)
        assert reader.chunks == [":\n\n"] * 2


@pytest.mark.slow
async def test_idle_pages_share_one_picture(user: PageUser, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty open pages cost as many looks as two, and each gets every change."""
    looks, rendered = Mock(wraps=snapshot.take), Mock(wraps=write_parts)
    monkeypatch.setattr(app, "take", looks)
    monkeypatch.setattr(app, "write_parts", rendered)
    sandbox.run_clock(0)
    readers = [Reader(user) for _ in range(50)]
    async with anyio.create_task_group() as tasks:
        for reader in readers:
            tasks.start_soon(reader.read)
            await anyio.sleep(TICK / 100)
        await anyio.sleep(1)
        looks.reset_mock()
        rendered.reset_mock()
        await anyio.sleep(50 * TICK)
        assert 50 <= looks.call_count <= 101
        assert rendered.call_count == 0
        for reader in readers:
            reader.sent.clear()
        sandbox.switches.turn_on("slow")
        await anyio.sleep(2 * TICK)
        assert rendered.call_count == 1
        assert {tuple(touched(reader.chunks)) for reader in readers} == {("fault-list", "faults-on")}
        for reader in readers:
            reader.left.set()


async def test_masked_numbers_are_nowhere_in_the_stream(user: PageUser, sandbox: Sandbox) -> None:
    """A stream that was opened masked never sends a whole number."""
    async with reading(user, "mobilemoney_mask=yes") as reader:
        await ask(sandbox, ORDINARY, external_id=ORDINARY)
        sandbox.approve(await ask(sandbox, ORDINARY))
        await anyio.sleep(5)
        sent = "".join(reader.chunks)
    assert "+255 ••• ••• 001" in sent
    assert "681000001" not in sent and "681 000 001" not in sent


async def test_masking_ends_the_streams_that_were_opened_without(user: PageUser, sandbox: Sandbox) -> None:
    """Masking in one window ends the streams of all, which connect again with the new cookie."""
    async with reading(user) as reader:
        await user.do("/mask", masked="yes")
        await ask(sandbox, ORDINARY)
        await anyio.sleep(5)
        assert reader.ended
        assert "681 000 001" not in "".join(reader.chunks)


async def test_a_page_that_closes_leaves_nothing_behind(user: PageUser, sandbox: Sandbox) -> None:
    """When the page is closed its stream ends, even with nothing to send."""
    sandbox.run_clock(0)
    async with reading(user) as reader:
        reader.sent.clear()
    assert reader.sent == []


async def test_a_foreign_page_gets_no_stream(user: PageUser, sandbox: Sandbox) -> None:
    """The stream answers under addresses of this machine only."""
    answer = await user.http.get("/live", headers={"host": "evil.example"})
    assert answer.status_code == 403


async def test_each_part_begins_with_the_element_that_it_replaces(user: PageUser, sandbox: Sandbox) -> None:
    """Every part is one element with its id, whole and in one event, whatever line ends it holds."""
    await ask(sandbox, ORDINARY, external_id="two\r\nlines\u2028three>")
    parts = write_parts(snapshot.take(sandbox, sandbox.merchants["shop-1"], masked=False, secret=b""))
    for name, html in parts.items():
        event = as_event((html,)).decode()
        assert event.endswith("\n\n")
        assert event.count("\n\n") == 1
        assert all(line.startswith("data: ") for line in event.splitlines() if line)
        assert touched([event]) == [name]


# Over sockets: asyncio only, as the server is.

over_sockets = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


@over_sockets
@pytest.mark.real_time
async def test_the_server_stops_under_open_pages() -> None:
    """Leaving `serve()` ends the streams of all pages at once, and leaves no task."""
    sandbox = Sandbox()
    before = asyncio.all_tasks()
    async with sandbox.serve() as base_url, httpx.AsyncClient(base_url=base_url.removesuffix("/v1")) as http:
        first, second = [await http.send(http.build_request("GET", "/live"), stream=True) for _ in range(2)]
        lines = [await anext(each.aiter_lines()) for each in (first, second)]
        assert all(line.startswith("data: <") for line in lines)
    assert asyncio.all_tasks() == before
    for each in (first, second):
        await each.aclose()


@over_sockets
@pytest.mark.real_time
async def test_a_page_that_leaves_ends_its_task() -> None:
    """A reload or a closed tab costs the sandbox nothing afterwards."""
    sandbox = Sandbox()
    async with sandbox.serve() as base_url, httpx.AsyncClient(base_url=base_url.removesuffix("/v1")) as http:
        await http.get("/")
        before = len(asyncio.all_tasks())
        async with http.stream("GET", "/live") as answer:
            await anext(answer.aiter_bytes())
            assert len(asyncio.all_tasks()) > before
        await until(lambda: len(asyncio.all_tasks()) <= before)
