"""Accounts of `Merchants` in one process: seconds, CPU, memory, files and connections to the database.

Run as a module it is that process: a database's URL, a number of accounts and the address of a lookup as arguments.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx

from benchmarks.bodies import one_transaction
from benchmarks.common import EARLIER, Row, ask, at_most, earlier_package, in_process, interleave, size
from benchmarks.loopback import serving
from mobilemoney_async import Merchants, SQLStore
from tests.contract import samples

_COUNTS = size((30, 150, 1000), (2,))
AT_ONCE = 50
_MOST_POLLERS = 150
_TARGETS = {  # of issue 16, at 1,000 accounts
    "CPU": ("CPU of each of these", " ms", 4),
    "kB": ("memory of an open account", " kB", 60),
    "descriptors": ("descriptors after a lookup of each over HTTP, `max_open=10`", "", 20),
    "connections": ("connections, each with a poller", "", 11),
}
_ACKNOWLEDGED = {"status": "success", "message": "accepted", "currency": "TZS", "status_code": "PENDING"}


def run() -> Iterator[Row]:
    """Measure a process of each size on each database, and one with pollers."""
    # Here: only this benchmark and that of the feed need a server.
    from tests.support.databases import postgres

    with (
        TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder,
        postgres() as server,
        serving({"lookup": one_transaction()}) as addresses,
    ):
        for number in _COUNTS:
            for kind in ("SQLite", "PostgreSQL"):
                url = f"sqlite:///{folder}/{number}.db" if kind == "SQLite" else server.new_database()
                found = in_process("benchmarks.many_accounts", url, str(number), addresses["lookup"])
                yield from _rows(kind, number, found)
        if (earlier := earlier_package(folder)) is not None:
            yield from _against(server.new_database, earlier, addresses["lookup"])


def _against(new_url: Callable[[], str], earlier: str, address: str) -> Iterator[Row]:
    """Compare the first create of each account with an earlier commit."""

    def measure(package: str = "") -> float:
        found = in_process("benchmarks.many_accounts", new_url(), str(_COUNTS[-1]), address, package=package)
        return float(found["CPU"])

    figures = interleave({"ours": measure, "earlier": partial(measure, earlier)}, size(3, 1))
    case = f"{_COUNTS[-1]:,} accounts, PostgreSQL: CPU of the first create of each"
    against, ratio = f"commit {EARLIER}, {figures.cost('earlier'):.2f} ms", figures.ratio("ours", "earlier")
    yield Row(case, f"{figures.cost('ours'):.2f} ms", against, "at most 0.75x", *at_most(ratio, 0.75))


def _rows(kind: str, number: int, found: dict[str, Any]) -> Iterator[Row]:
    yield Row(f"{number:,} accounts, {kind}: first create of each, {AT_ONCE} at once", f"{found['seconds']:.3g} s")
    for name, (what, unit, target) in _TARGETS.items():
        if (value := found[name]) is not None:
            case = f"{number:,} accounts, {kind}: {what}"
            yield Row(case, f"{value:.3g}{unit}", target=f"at most {target:g}{unit}", reached=value <= target)


class Service(httpx.AsyncBaseTransport):
    """Service of all accounts, which makes each payment."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            found = samples.found(id="t-1") if "transactions" not in request.url.path else samples.page()
            return httpx.Response(200, json=found)
        body = json.loads(await request.aread())
        number = next(self._numbers)
        named = {"transaction_id": f"t-{number}", "reference": f"R{number}", **body}
        return httpx.Response(200, json={**_ACKNOWLEDGED, **named})


async def auth(account: str) -> str:
    """Return the token of an account."""
    return f"token.of.{account}"


def _resident() -> int:
    """Return the bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def _measure(url: str, number: int, address: str) -> dict[str, Any]:
    accounts, store, service = [f"shop-{each}" for each in range(number)], SQLStore(url), Service()
    async with Merchants(
        "https://pay.example/v1", store=store, auth=auth, transport=lambda _: service, max_open=number + 1
    ) as merchants:
        await create(merchants, "warm")  # the tables, and imports
        before, cpu, began = _resident(), time.process_time(), time.perf_counter()
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def create_first(account: str) -> None:
            async with limiter:
                await create(merchants, account)

        async with anyio.create_task_group() as tasks:
            for account in accounts:
                tasks.start_soon(create_first, account)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        kept = _resident() - before
        is_counted = url.startswith("postgres") and number <= _MOST_POLLERS
        connections = await _connections_of_pollers(merchants, accounts, url) if is_counted else None
    return {
        "seconds": seconds,
        "CPU": 1e3 * cpu / number,
        "kB": kept / number / 1e3,
        "descriptors": await _descriptors_of_lookups(store, accounts, address),
        "connections": connections,
    }


async def create(merchants: Merchants, account: str, key: str = "order-1") -> None:
    """Make a payment under a key of an account."""
    client = await merchants.client(account)
    await client.collections.create(phone_number="+255681234567", amount=1000, idempotency_key=key)


async def _descriptors_of_lookups(store: SQLStore, accounts: list[str], address: str) -> int:
    """Return how many more descriptors are open at most, looking something up for each account over HTTP."""
    before, most, transaction_id = _descriptors(), 0, json.loads(one_transaction())["transaction"]["id"]
    async with Merchants(f"{address}/v1", store=store, auth=auth, max_open=10) as merchants:
        for account in accounts:  # others than those whose payments are at the service above
            await (await merchants.client(f"{account}-over-http")).transactions.get(transaction_id)
            most = max(most, _descriptors() - before)
    return most


async def _connections_of_pollers(merchants: Merchants, accounts: list[str], url: str) -> int:
    """Return how many sessions the server has at most while each account has a poller, for some seconds."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    @asynccontextmanager
    async def polling(account: str) -> AsyncIterator[None]:
        async with (await merchants.client(account)).poller() as poller:
            poller.track("t-1")
            yield

    most = 0
    async with AsyncExitStack() as stack:
        for account in accounts:
            await stack.enter_async_context(polling(account))
        for _ in range(size(20, 1)):
            most = max(most, await anyio.to_thread.run_sync(ask, url, query))
            await anyio.sleep(0.2)
    return most


if __name__ == "__main__":
    print(json.dumps(anyio.run(_measure, sys.argv[1], int(sys.argv[2]), sys.argv[3])))
