"""Cancelling a call at any stage: the client works afterwards, and nothing of it stays used up."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from mobilemoney_async import AsyncClient, OutcomeUnknown
from mobilemoney_async.calls.limiter import Limiter
from tests.calls.test_deadline import stage
from tests.calls.ways import connect
from tests.support.fakes import (
    C2B,
    LOGIN,
    FakeTransport,
    Hang,
    Step,
    look_up,
    make_client,
    pay,
    replies,
    script,
    settle,
)
from tests.support.scale import soak
from tests.support.server import NeverAnswer, Reply, Request, Response, Server, Trickle, serve

asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
WIDE = {"per_minute": 6_000_000, "burst": 100_000}


async def give_up(
    client: AsyncClient, call: Callable[[AsyncClient], Awaitable[object]] = pay, after: float = 5.0
) -> None:
    """Cancel a call after a while, and make sure that it ended by that and then."""
    start = anyio.current_time()
    with anyio.move_on_after(after) as scope:
        await call(client)
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(start + after)


async def places(limiter: Limiter) -> int:
    """Return how many requests could go at once."""
    count = 0
    while limiter.has_capacity():
        await limiter.acquire()
        count += 1
    return count


@pytest.mark.parametrize(
    ("name", "paths", "times"),
    [
        ("waiting for its turn", [C2B], [100]),
        ("logging in", [LOGIN, LOGIN, C2B], [0, 5, 5]),
        ("pausing", [C2B], [5]),
        ("held by a rejection", [C2B, C2B], [0, 30]),
        ("renewing its token", [LOGIN, C2B, LOGIN, LOGIN, C2B], [0, 0, 0, 5, 5]),
    ],
)
async def test_at_a_stage_before_it_is_sent(name: str, paths: list[str], times: list[float]) -> None:
    """The next call logs in for itself, and is held as long as the service asked; no place is lost."""
    transport, options = stage(name)
    client = make_client(transport, **options)
    await give_up(client)
    await pay(client)
    assert transport.paths == paths
    assert [sent.at for sent in transport.sent] == pytest.approx(times)
    await anyio.sleep(60)
    assert await places(options["rate_limiter"]) == 10


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_while_it_connects() -> None:
    """A handshake that never ends can be left, as often as one likes."""
    connections = 0

    async def silent(stream: anyio.abc.SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, silent)
        async with make_client(base_url=f"https://127.0.0.1:{port}/v1") as client:
            await give_up(client)
            await give_up(client)
        assert connections == 2
        tasks.cancel_scope.cancel()
    gc.collect()  # httpcore leaves a connection whose TLS handshake is cancelled to the garbage collector


@asynccontextmanager
async def served(*first: Reply) -> AsyncIterator[tuple[Server, AsyncClient]]:
    """Serve replies in turn, then as a healthy service does; with a client that has a real pool."""
    async with serve(replies(*first)) as server, make_client(base_url=server.base_url) as client:
        yield server, client


async def test_while_it_writes() -> None:
    """A service that does not read lets the body pile up; the call can be left, and the client goes on."""
    stop = anyio.Event()

    async def reluctant(request: Request) -> Reply:
        if len(server.requests) == 1:
            await stop.wait()
        await request.read()
        return Response.json({"status": "success"})

    async with serve(reluctant) as server, make_client(base_url=server.base_url) as client:

        async def upload(client: AsyncClient) -> None:
            await client.request("POST", "/documents", json={"scan": "x" * 30_000_000})

        await give_up(client, upload)
        stop.set()
        await client.users.profile()


@pytest.mark.parametrize("reply", [NeverAnswer(), Trickle(Response.json({"status": "success"}), pause=0.2)])
async def test_while_it_reads_the_head_or_the_body(reply: Reply) -> None:
    async with served(reply) as (server, client):
        await give_up(client)
        await pay(client)
    assert len(server.requests) == 2


@pytest.mark.parametrize("after", range(30))
async def test_at_every_single_step(after: int) -> None:
    """Cancelled at its first, second … thirtieth checkpoint, a call leaves a client that works."""
    async with served() as (_, client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pay, client)
            for _ in range(after):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await pay(client)


@pytest.mark.parametrize("fails", [False, True])
async def test_closing_the_connection_is_not_cut_short_by_the_cancellation(fails: bool) -> None:
    """A caller's transport gets to close its answer, even while the call is being cancelled; if it cannot, it ends."""
    closed: list[str] = []

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"{"
            await anyio.sleep_forever()

        async def aclose(self) -> None:
            await anyio.sleep(1)
            closed.append("closed")
            if fails:
                raise RuntimeError("broken")

    with anyio.move_on_after(5) as scope:
        await pay(make_client(FakeTransport(lambda sent: httpx.Response(200, stream=Endless()))))
    assert scope.cancelled_caught
    assert closed == ["closed"]


@asyncio_only
async def test_a_task_that_is_cancelled_by_asyncio_itself_ends_cancelled() -> None:
    """`task.cancel()`, which is raised only once, is not mistaken for a failed connection."""
    transport = FakeTransport(script(Hang()))
    client = make_client(transport)
    task = asyncio.create_task(pay(client))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await pay(client)


async def test_a_task_that_the_transport_waits_for_and_others_cancel_fails_the_attempt() -> None:
    """Nobody cancelled the call, and the payment may have been sent: an error says so."""

    async def answer(sent: object) -> Step:
        raise asyncio.CancelledError

    with pytest.raises(OutcomeUnknown):
        await pay(make_client(FakeTransport(answer)))


@pytest.mark.soak
@pytest.mark.parametrize("way", ["httpx", "aiohttp"], indirect=True)
async def test_hundreds_of_cancelled_calls_leave_a_client_that_works(way: str) -> None:
    """Calls that are given up while they wait for an answer do not fill the pool (httpcore#1093)."""
    answering = False

    async def handler(request: Request) -> Reply:
        return await replies()(request) if answering else NeverAnswer()

    async with serve(handler) as server:
        async with connect(way, server.base_url) as client:
            for _ in range(soak(16)):  # fifty each: more than the pool's hundred connections
                with anyio.move_on_after(1):
                    async with anyio.create_task_group() as tasks:
                        for _ in range(50):
                            tasks.start_soon(look_up, client)
            answering = True
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(look_up, client)
