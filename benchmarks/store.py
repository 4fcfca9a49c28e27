"""Cost of the store: a create with an SQLite store, the outbox, and queries of a million records."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.common import Clock, Figures, Row, at_most, size
from mobilemoney_async import AsyncClient, RateLimiter, SQLStore

Work = Callable[[], Awaitable[object]]

_BASE_URL = "https://payments.example/v1"
_PHONE_NUMBER = "+255680000001"
_CREATES, _LOOKUPS, _WARM = size((300, 300, 20), (2, 2, 1))
_UNRESOLVED = 50
_RECORDS = size(1_000_000, 20 * _UNRESOLVED)
_MILLI = 1e3


def run() -> Iterator[Row]:
    """Compare a create with a store, one without, and a bare commit; then query a large store."""
    # Here, not in /tmp, which may be memory.
    with TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        yield from _creates(Path(folder))
        yield from _outbox(Path(folder))
        yield from _questions(Path(folder) / "million.db")


def _creates(folder: Path) -> list[Row]:
    with asyncio.Runner() as runner:
        figures = runner.run(_measure_creates(folder))
    added = figures.difference("kept", "plain") * _MILLI
    pairs = zip(figures.rounds["kept"], figures.rounds["plain"], figures.rounds["bare"], strict=True)
    ratio = statistics.median((mine - without) / bare for mine, without, bare in pairs)
    bare = f"a bare `INSERT` and commit, {figures.cost('bare') * _MILLI:.1f} ms"
    return [
        Row(
            "a recorded create, SQLite",
            f"{figures.cost('kept') * _MILLI:.1f} ms",
            f"one without a store, {figures.cost('plain') * _MILLI:.1f} ms",
            "at most 10 ms more",
            f"{added:.1f} ms",
            added <= 10,
        ),
        Row("cost of the record: two commits", f"{added:.1f} ms", bare, "", f"{ratio:.2f}x"),
    ]


def _outbox(folder: Path) -> list[Row]:
    with asyncio.Runner() as runner:
        each, together, sent, made = runner.run(_measure_outbox(folder))
    return [
        Row("`enqueue` in an open transaction, SQLite", f"{1 / together:,.0f}/s, {together * 1e6:.0f} µs"),
        Row("a transaction with one `enqueue`", f"{1 / each:,.0f}/s, {each * _MILLI:.1f} ms"),
        Row(
            "a queued payment, dispatched",
            f"{sent * _MILLI:.1f} ms",
            f"a recorded create, {made * _MILLI:.1f} ms",
            "at most 1.4x",
            *at_most(sent / made, 1.4),
        ),
    ]


async def _measure_outbox(folder: Path) -> tuple[float, float, float, float]:
    """Return the seconds of an enqueue with its own commit, of one without, of a dispatch and of a create."""
    path, numbers = folder / "outbox.db", count(1)
    store = SQLStore(f"sqlite:///{path}")

    def enqueue(connection: sqlite3.Connection) -> None:
        number = next(numbers)
        order: dict[str, Any] = {"type": "collection", "phone_number": _PHONE_NUMBER, "amount": number}
        store.enqueue(connection, **order, idempotency_key=f"order-{number}")

    async with make_client(store) as client:
        await client.payments.list(limit=1)  # makes the tables
        with closing(sqlite3.connect(path)) as connection:
            enqueue(connection)
            started = time.perf_counter()
            for _ in range(_CREATES):
                enqueue(connection)
            together = (time.perf_counter() - started) / _CREATES
            connection.commit()
            started = time.perf_counter()
            for _ in range(_CREATES):
                enqueue(connection)
                connection.commit()
            each = (time.perf_counter() - started) / _CREATES
        queued = next(numbers) - 1
        started = time.perf_counter()
        async with client.dispatcher(per_minute=1e7) as dispatcher:
            while dispatcher.stats.sent < queued:
                await asyncio.sleep(0.01)
        sent = (time.perf_counter() - started) / queued
        started = time.perf_counter()
        for _ in range(_CREATES):
            await client.collections.create(phone_number=_PHONE_NUMBER, amount=1_000)
        return each, together, sent, (time.perf_counter() - started) / _CREATES


def _questions(path: Path) -> list[Row]:
    with asyncio.Runner() as runner:
        figures = runner.run(_measure_questions(path))
    among = f"{_RECORDS:,} records ({os.path.getsize(path) / 1e9:.1f} GB)"
    questions = {
        "by_key": "`payments.get(key)` with its history",
        "unresolved": f"`payments.unresolved()`, {_UNRESOLVED} of them",
        "latest": "`payments.list(limit=10, newest_first=True)`",
    }
    return [
        Row(case, f"{cost * _MILLI:.2f} ms", among, "at most 5 ms", reached=cost <= 0.005)
        for case, cost in ((case, figures.cost(name)) for name, case in questions.items())
    ]


async def _measure_creates(folder: Path) -> Figures:
    bare = _open_bare(folder / "bare.db")

    async def commit() -> None:
        bare.execute("BEGIN IMMEDIATE")
        bare.execute("INSERT INTO bare (account, key, state) VALUES ('default', 'order-1', 'SENDING')")
        bare.execute("COMMIT")

    def create(client: AsyncClient) -> Work:
        return lambda: client.collections.create(phone_number=_PHONE_NUMBER, amount=1_000)

    async with make_client() as plain, make_client(SQLStore(f"sqlite:///{folder / 'payments.db'}")) as kept:
        return await take_turns({"plain": create(plain), "kept": create(kept), "bare": commit}, _CREATES)


async def _measure_questions(path: Path) -> Figures:
    async with make_client(SQLStore(f"sqlite:///{path}")) as client:
        await client.payments.list(limit=1)  # makes the tables
        _fill(path)
        numbers = count(12_345)

        async def by_key() -> None:
            record = await client.payments.get(f"order-{next(numbers) * 7_919 % _RECORDS}")
            assert record is not None
            assert record.history

        async def unresolved() -> None:
            assert len(await client.payments.unresolved()) == _UNRESOLVED

        async def latest() -> None:
            assert len(await client.payments.list(limit=10, newest_first=True)) == 10

        return await take_turns({"by_key": by_key, "unresolved": unresolved, "latest": latest}, _LOOKUPS)


async def take_turns(works: Mapping[str, Work], rounds: int, clock: Clock = time.perf_counter) -> Figures:
    """Measure single operations in turn, all in one task: the threads of a store belong to the task that it runs in."""
    figures: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-_WARM, rounds):
        for name in list(works)[:: 1 if number % 2 else -1]:
            started = clock()
            await works[name]()
            if number >= 0:
                figures[name].append(clock() - started)
    return Figures(figures)


def make_client(store: SQLStore | None = None) -> AsyncClient:
    """Return a client of a service that accepts every create at once."""
    numbers = count(1)

    async def accept(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        number = next(numbers)
        answer = {
            "status": "success",
            "message": "accepted",
            "transaction_id": f"txn_{number:016x}",
            "reference": f"REF{number:010}",
            "currency": "TZS",
            "status_code": "PENDING",
            **sent,
        }
        return httpx.Response(200, json=answer)

    return AsyncClient(
        _BASE_URL,
        auth="benchmark-token",
        transport=httpx.MockTransport(accept),
        rate_limiter=RateLimiter(per_minute=60_000_000, burst=1_000_000),
        store=store,
    )


def _open_bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, account TEXT, key TEXT, state TEXT)")
    return connection


def _fill(path: Path) -> None:
    """Put in a million payments as they are after years: nearly all of them final, with three entries of history."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO mobilemoney_payment_records (account, key, type, phone_number, amount, extra_digest, state,"
        " attempt, created_at, changed_at, sent_at, stale_at, ended_at, transaction_id, reference, status,"
        ' acknowledgement, "transaction", is_adopted, walks, priority, stops_kind)'
        " VALUES ('default', ?, 'collection', ?, '1000', '', ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)",
        _payments(),
    )
    connection.executemany(
        "INSERT INTO mobilemoney_payment_history (account, key, number, at, what, source, detail)"
        " VALUES ('default', ?, ?, ?, ?, ?, ?)",
        _histories(),
    )
    connection.execute("COMMIT")
    connection.close()


def _payments() -> Iterator[tuple[Any, ...]]:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    step = _RECORDS // _UNRESOLVED
    for number in range(_RECORDS):
        at = first + timedelta(seconds=13 * number)
        moment, phone_number = at.strftime("%Y-%m-%d %H:%M:%S.%f"), f"+2556{number % 100_000_000:08}"
        row = (f"order-{number}", phone_number)
        if number % step == 0:
            yield (*row, "UNKNOWN", *[moment] * 5, None, None, None, None, None, True)
            continue
        transaction_id, reference = f"txn_{number:016x}", f"REF{number:010}"
        common = f'"reference":"{reference}","amount":"1000","currency":"TZS","phone_number":"{phone_number}"'
        acknowledgement = f'{{"transaction_id":"{transaction_id}",{common},"status_code":"PENDING","status":"success"}}'
        transaction = (
            f'{{"id":"{transaction_id}",{common},"type":"collection","network":"airtel_money","status":"SUCCESS",'
            f'"created_at":"{at.isoformat()}","completed_at":"{at.isoformat()}"}}'
        )
        yield (
            *(*row, "FINAL", *[moment] * 5),
            *(transaction_id, reference, "SUCCESS", acknowledgement, transaction, False),
        )


def _histories() -> Iterator[tuple[Any, ...]]:
    moment = "2026-01-01 00:00:00.000000"
    for number in range(_RECORDS):
        key = f"order-{number}"
        yield key, 1, moment, "sent", "answer", "attempt 1"
        yield key, 2, moment, "acknowledged", "answer", f"txn_{number:016x}"
        yield key, 3, moment, "final", "poll", "SUCCESS"
