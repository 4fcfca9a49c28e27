"""Drivers of the merchant's own servers in virtual time: their answers come before a time-out does."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import redis.asyncio

from mobilemoney_async.testing import run_virtual
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.slow  # each answer takes some real time

Ask = Callable[[], AsyncIterator[object]]


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Ask]:
    connection = await asyncpg.connect(url)

    async def ask() -> AsyncIterator[object]:
        yield await connection.fetchval("SELECT 1 FROM pg_sleep(0.1)")
        yield len(await connection.fetch("SELECT generate_series(1, 10000)")) / 10_000

    yield ask
    await connection.close()


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Ask]:
    async with await psycopg.AsyncConnection.connect(url) as connection:

        async def ask() -> AsyncIterator[object]:
            yield (await (await connection.execute("SELECT 1 FROM pg_sleep(0.1)")).fetchall())[0][0]

        yield ask


@asynccontextmanager
async def by_redis(url: str) -> AsyncIterator[Ask]:
    async with redis.asyncio.Redis.from_url(url) as connection:

        async def ask() -> AsyncIterator[object]:
            yield await connection.incr("asked") - await connection.incr("asked") + 2
            yield await connection.ping()

        yield ask


@pytest.mark.parametrize("connect", [by_asyncpg, by_psycopg, by_redis])
def test_an_answer_comes_before_a_time_out(
    connect: Callable[[str], AbstractAsyncContextManager[Ask]], postgres_url: str
) -> None:
    """A query with a short time-out around it, while timers run; an idle connection costs nothing."""

    async def main(url: str) -> None:
        async with anyio.create_task_group() as tasks, connect(url) as ask:

            async def tick() -> None:
                for _ in range(100):
                    await anyio.sleep(0.01)

            tasks.start_soon(tick)
            with anyio.fail_after(0.001):
                async for answer in ask():
                    assert answer == 1
            before = anyio.current_time()
            await anyio.sleep(3_600)
            assert anyio.current_time() == before + 3_600

    with redis_server() as redis_url:
        run_virtual(main, redis_url if connect is by_redis else postgres_url.replace("+psycopg", ""))
