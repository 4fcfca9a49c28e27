"""Recorded creates of many accounts in one process, beside as many bare commits on the same database.

Run as a module it is that process: a database's URL as argument.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import Row, in_process, plain_url, size, sync
from benchmarks.many_accounts import AT_ONCE, Service, auth, create
from mobilemoney_async import Merchants, SQLStore

_ACCOUNTS, _EACH, _COMMITS = size((200, 8, 2000), (2, 2, 50))  # no account comes to its own limit
_RATE, _CPU, _RATIO = 800, 1.0, 3.0  # of issue 16


def run() -> Iterator[Row]:
    """Measure a process on each database."""
    from tests.support.databases import postgres

    with TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder, postgres() as server:
        sync(database := server.new_database())
        for kind, url in (("SQLite", f"sqlite:///{folder}/creates.db"), ("PostgreSQL", database)):
            yield from _rows(kind, in_process("benchmarks.creates", url))


def _rows(kind: str, found: dict[str, float]) -> Iterator[Row]:
    rate, bare = found["creates"], found["bare"]
    case = f"recorded creates of {_ACCOUNTS} accounts, {AT_ONCE} at once, {kind}: "
    cpu, is_fast = found["CPU"] * 1e3, rate >= _RATE and bare <= _RATIO * rate
    against, target = f"a bare `INSERT` and commit, {bare:,.0f}/s", f"{_RATE}/s, and {_RATIO:g}x"
    yield Row(f"{case}CPU of one", f"{cpu:.2f} ms", target=f"at most {_CPU:g} ms", reached=cpu <= _CPU)
    yield Row(f"{case}rate", f"{rate:,.0f}/s", against, target, f"{bare / rate:.1f}x", is_fast)


async def _measure(url: str) -> dict[str, float]:
    accounts, service = [f"shop-{each}" for each in range(_ACCOUNTS)], Service()
    async with Merchants(
        "https://pay.example/v1", store=SQLStore(url), auth=auth, transport=lambda _: service, max_open=_ACCOUNTS
    ) as merchants:
        await _all(partial(create, merchants, account, "order-0") for account in accounts)  # connections, and imports
        keys = [f"order-{number}" for number in range(1, _EACH)]
        cpu = time.process_time()
        seconds = await _all(partial(create, merchants, account, key) for key in keys for account in accounts)
        cpu = time.process_time() - cpu
    count = _ACCOUNTS * len(keys)
    bare = await _bare_postgres(url) if url.startswith("postgres") else _bare_sqlite(url)
    return {"creates": count / seconds, "CPU": cpu / count, "bare": _COMMITS / bare}


async def _all(calls: Iterable[Callable[[], Awaitable[object]]]) -> float:
    """Make calls, so many at once, and return the seconds that they took."""
    limiter = asyncio.Semaphore(AT_ONCE)

    async def make(call: Callable[[], Awaitable[object]]) -> None:
        async with limiter:
            await call()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(make(call))
    return time.perf_counter() - began


async def _bare_postgres(url: str) -> float:
    """Return the seconds of all commits, on as many connections as there are creates at once."""
    import psycopg

    async with AsyncExitStack() as stack:
        some = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(plain_url(url), autocommit=True))
            for _ in range(AT_ONCE)
        ]
        await some[0].execute("CREATE TABLE bare (id int)")

        async def commit(connection: psycopg.AsyncConnection[Any]) -> None:
            for number in range(_COMMITS // AT_ONCE):
                await connection.execute("INSERT INTO bare VALUES (%s)", [number])

        return await _all(partial(commit, connection) for connection in some)


def _bare_sqlite(url: str) -> float:
    """Return the seconds of all commits, on the one connection that can write."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE bare (id int)")
        began = time.perf_counter()
        for number in range(_COMMITS):
            connection.execute("INSERT INTO bare VALUES (?)", [number])
        return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(sys.argv[1]))))
