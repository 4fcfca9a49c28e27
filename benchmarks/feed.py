"""Feed of changes: from a commit to a handler in another process, reading many, and what a create pays for it.

Run as a module it is that process: a database's URL as argument.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import sqlalchemy as sa

from benchmarks.common import Figures, Row, module_command, size
from benchmarks.store import Work, make_client, take_turns
from mobilemoney_async import SQLStore
from mobilemoney_async.database.schema import changes
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentState

_CHANGES, _LATENCIES, _CREATES = size((100_000, 50, 300), (100, 2, 2))
_ORDER: dict[str, Any] = {"phone_number": "+255680000001", "amount": 1_000}
_MILLI = 1e3


def run() -> Iterator[Row]:
    """Measure on SQLite and on PostgreSQL."""
    from tests.support.databases import postgres

    with TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder, postgres() as server:
        for name, limit in (("PostgreSQL", 50), ("SQLite", 500)):
            numbers = count()

            def url(name: str = name, numbers: Iterator[int] = numbers) -> str:
                file = Path(folder) / f"feed-{next(numbers)}.db"
                return server.new_database() if name == "PostgreSQL" else f"sqlite:///{file}"

            yield _latency(name, url(), limit)
            yield from _reading(name, url())
            yield _creates(name, url(), url())


def _latency(name: str, url: str, limit: float) -> Row:
    delays = asyncio.run(_measure_latency(url))
    median = statistics.median(delays) * _MILLI
    case = f"a commit to its handler in another process, {name}"
    slow = f"95 of 100 within {statistics.quantiles(delays, n=20)[-1] * _MILLI:.0f} ms"
    return Row(case, f"{median:.0f} ms", slow, f"median under {limit:.0f} ms", reached=median < limit)


async def _measure_latency(url: str) -> list[float]:
    """Return the seconds from each create's return, which is after the commits, to the handler; both clocks are one."""
    async with make_client(SQLStore(url)) as client:
        await client.payments.list(limit=1)  # makes the tables
        command = module_command("benchmarks.feed", url)
        listener = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 (it begins once)
        assert listener.stdout is not None
        try:
            await asyncio.to_thread(listener.stdout.readline)  # it has begun
            delays = []
            for number in range(_LATENCIES):
                await asyncio.sleep(0.1 + number % 7 / 10)
                await client.collections.create(**_ORDER, idempotency_key=f"order-{number}")
                made = time.monotonic()
                key, at = (await asyncio.to_thread(listener.stdout.readline)).split()
                assert key == f"order-{number}"
                delays.append(float(at) - made)
        finally:
            listener.kill()
            listener.wait()
            listener.stdout.close()
    return delays


def _listen(url: str) -> None:
    """Print the time at which each acknowledgement is handed out."""

    async def read() -> None:
        async with make_client(SQLStore(url)) as client:
            await client.payments.consumers()
            print("ready", flush=True)
            async for change in client.payments.changes(consumer="benchmark", start="now"):
                if change.state is PaymentState.ACKNOWLEDGED:
                    print(change.key, time.monotonic(), flush=True)
                await change.done()

    asyncio.run(read())


def _reading(name: str, url: str) -> list[Row]:
    rates = asyncio.run(_measure_reading(url))
    among = f"{_CHANGES:,} changes of {_CHANGES // 2:,} payments"
    cases = (f"changes read by their first reader, who numbers them, {name}", f"changes read, {name}")
    return [
        Row(case, f"{rate:,.0f}/s, {cpu:,.0f}/s of CPU", among, "at least 20,000/s", reached=rate >= 20_000)
        for case, (rate, cpu) in zip(cases, rates, strict=True)
    ]


async def _measure_reading(url: str) -> list[tuple[float, float]]:
    """Return how many changes a second the first reader gets, and the next one, by the clock and of its CPU time."""
    rates = []
    async with make_client(SQLStore(url)) as client:
        await client.payments.list(limit=1)
        assert client._store is not None
        await client._store.account_store.write(_fill)
        for _ in range(2):
            started, cpu, found = time.perf_counter(), time.process_time(), 0
            async for _ in client.payments.changes(forever=False):
                found += 1
            rates.append((found / (time.perf_counter() - started), found / (time.process_time() - cpu)))
            assert found == _CHANGES
    return rates


def _fill(journal: Journal) -> None:
    """Make payments with two changes each, as thousands that were queued and refused."""
    now = datetime.now(UTC)
    record = "account, key, type, phone_number, amount, extra_digest, state, attempt, created_at, changed_at, priority"
    rows = {
        f"mobilemoney_payment_records ({record}, is_adopted, walks, stops_kind)": (
            "'default', 'order-' || n, 'collection', '+255680000001', '1000', '', 'CANCELLED', 1, :at, :at, 0,"
            " false, 0, false"
        ),
        "mobilemoney_changes (account, name, entry, state, at)": ("'default', 'order-' || n, entry, 'CANCELLED', :at"),
    }
    series = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {_CHANGES // 2})"
    at = sa.bindparam("at", now, type_=changes.c.at.type)
    for table, values in rows.items():
        entries = ", (SELECT 1 AS entry UNION ALL SELECT 2) AS e" if "entry" in table else ""
        statement = sa.text(f"INSERT INTO {table} {series} SELECT {values} FROM s{entries}")
        journal.connection.execute(statement.bindparams(at))


def _creates(name: str, url: str, other: str) -> Row:
    figures = asyncio.run(_measure_creates(url, other))
    case, cost = f"CPU of a recorded create, {name}", f"{figures.cost('with') * _MILLI:.2f} ms"
    without = f"one that records no change, {figures.cost('without') * _MILLI:.2f} ms"
    return Row(case, cost, without, "", f"{figures.ratio('with', 'without'):.2f}x")


async def _measure_creates(url: str, other: str) -> Figures:
    numbers = count()
    async with make_client(SQLStore(url)) as one, make_client(SQLStore(other)) as two:

        async def with_changes() -> None:
            await one.collections.create(**_ORDER, idempotency_key=f"order-{next(numbers)}")

        async def without() -> None:
            with _no_changes():
                await two.collections.create(**_ORDER, idempotency_key=f"order-{next(numbers)}")

        works: dict[str, Work] = {"with": with_changes, "without": without}
        return await take_turns(works, _CREATES, clock=time.process_time)


@contextmanager
def _no_changes() -> Iterator[None]:
    with mock.patch.object(Journal, "record", _note_alone):
        yield


def _note_alone(
    journal: Journal,
    key: str,
    event: PaymentEvent,
    *_: object,
    values: Mapping[str, Any] | None = None,
    is_last: bool = False,
    **options: Any,
) -> None:
    if values:
        journal.update(key, values)
    journal.note(key, what=event.value, **options)


if __name__ == "__main__":
    _listen(sys.argv[1])
