"""Recorded creates of many accounts in one process, beside as many bare commits on the same database.

Run as a module it is that process: a database's URL as argument.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import EARLIER, Row, at_most, earlier_package, in_process, interleave, plain_url, size, sync
from benchmarks.many_accounts import AT_ONCE, Service, auth, create
from mobilemoney_async import Merchants, SQLStore

_ACCOUNTS, _EACH, _COMMITS = size((200, 8, 2000), (2, 2, 50))  # no account comes to its own limit
_ROUNDS = size(5, 1)


def run() -> Iterator[Row]:
    """Measure a process on each database."""
    from tests.support.databases import postgres

    with TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder, postgres() as server:
        numbers = count()
        new: dict[str, Callable[[], str]] = {
            "SQLite": lambda: f"sqlite:///{folder}/creates-{next(numbers)}.db",
            "PostgreSQL": server.new_database,
        }
        sync(server.new_database())
        earlier = earlier_package(folder)
        for kind, new_url in new.items():
            yield from _rows(kind, new_url, earlier)


def _rows(kind: str, new_url: Callable[[], str], earlier: str | None) -> Iterator[Row]:
    found: dict[str, list[float]] = {"creates": [], "bare": []}

    def measure(package: str = "") -> float:
        one = in_process("benchmarks.creates", new_url(), package=package)
        if not package:
            for name, values in found.items():
                values.append(one[name])
        return float(one["CPU"])

    ways = {"ours": measure} if earlier is None else {"ours": measure, "earlier": partial(measure, earlier)}
    figures = interleave(ways, _ROUNDS)
    case, cpu = f"recorded creates of {_ACCOUNTS} accounts, {AT_ONCE} at once, {kind}: ", figures.cost("ours") * 1e3
    if earlier is None:
        yield Row(f"{case}CPU of one", f"{cpu:.2f} ms")
    else:
        against = f"commit {EARLIER}, {figures.cost('earlier') * 1e3:.2f} ms"
        ratio = at_most(figures.ratio("ours", "earlier"), 1.2)
        yield Row(f"{case}CPU of one", f"{cpu:.2f} ms", against, "at most 1.2x", *ratio)
    rate, bare = (statistics.median(values) for values in found.values())
    yield Row(f"{case}rate", f"{rate:,.0f}/s", f"a bare `INSERT` and commit, {bare:,.0f}/s", "", f"{bare / rate:.1f}x")


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
    made = _ACCOUNTS * len(keys)
    bare = await _bare_postgres(url) if url.startswith("postgres") else _bare_sqlite(url)
    return {"creates": made / seconds, "CPU": cpu / made, "bare": _COMMITS / bare}


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
