"""CPU of comparing every page of the list with the store: single pages, and a busy merchant in virtual time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs

import anyio
import httpx

from benchmarks.common import Figures, Row, at_most, interleave, size
from mobilemoney_async import AsyncClient, RateLimiter, SQLStore
from mobilemoney_async.testing import run_virtual

_START = datetime(2026, 1, 12, 8, 30, tzinfo=UTC)
_PAGES, _PAGES_AT_ONCE, _MINUTES, _DAYS = size((40, 20, 10, 6), (1, 1, 1, 1))
_PER_MINUTE = 45
_MICRO = 1e6
# With the latter nothing is compared.
_OBSERVED = {"compared": None, "alone": False}


class _Service(httpx.AsyncBaseTransport):
    """Service that keeps its rows as bytes; a payment succeeds after 20 s."""

    def __init__(self, utcnow: Callable[[], datetime]) -> None:
        self._utcnow = utcnow
        self._rows: dict[str, tuple[datetime, bytes, bytes]] = {}

    def make(self, phone_number: str, amount: str) -> dict[str, str]:
        """Make a disbursement, and return what its acknowledgement shows."""
        at, number = self._utcnow(), len(self._rows) + 1
        ends_at = at + timedelta(seconds=20)
        shown = {"reference": f"REF{number:010}", "amount": amount, "currency": "TZS", "phone_number": phone_number}
        row = {
            "id": f"txn_{number:016x}",
            **shown,
            "type": "disbursement",
            "network": "airtel_money",
            "status": "PROCESSING",
            "created_at": at.isoformat(),
            "merchant_id": "m-1",
        }
        final = {**row, "status": "SUCCESS", "completed_at": ends_at.isoformat()}
        self._rows[row["id"]] = (ends_at, json.dumps(row).encode(), json.dumps(final).encode())
        return {"transaction_id": row["id"], **shown}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        now, path = self._utcnow(), request.url.path
        if request.method == "POST":
            sent = json.loads(await request.aread())
            made = self.make(sent["phone_number"], sent["amount"])
            return httpx.Response(
                200, json={"status": "success", "message": "accepted", "status_code": "PROCESSING", **made}
            )
        if not path.endswith("/transactions"):
            row = self._shown(path.rpartition("/")[2], now)
            return httpx.Response(200, content=b'{"status":"success","transaction":%b}' % row)
        page = int(parse_qs(request.url.query.decode()).get("page", ["1"])[0])
        ids, total = [*self._rows], len(self._rows)
        some = ids[max(0, total - 100 * page) : total - 100 * (page - 1)][::-1]
        counts = {"current_page": page, "total_pages": -(-total // 100), "total_count": total, "per_page": 100}
        rows = b",".join(self._shown(each, now) for each in some)
        content = b'{"status":"success","transactions":[%b],"pagination":%b}' % (rows, json.dumps(counts).encode())
        return httpx.Response(200, content=content)

    def _shown(self, name: str, now: datetime) -> bytes:
        ends_at, row, final = self._rows[name]
        return final if ends_at <= now else row


def run() -> list[Row]:
    """Compare clients whose pages are compared with their store, and such whose pages are not."""
    # Here, not in /tmp, which may be memory.
    with TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        pages = asyncio.run(_measure_pages(Path(folder)))
        databases = (Path(folder) / f"day-{number}.db" for number in count())
        days = {
            name: lambda sole_writer=sole_writer: run_virtual(_trade, next(databases), sole_writer)
            for name, sole_writer in _OBSERVED.items()
        }
        trade = interleave(days, _DAYS)
    case, cost = "a page of 100 known payments, with a store", f"{pages.cost('compared') * _MICRO:.0f} µs"
    without = f"the same with `sole_writer=False`, {pages.cost('alone') * _MICRO:.0f} µs"
    return [
        Row(case, cost, without, "at most 1.05x", *at_most(pages.ratio("compared", "alone"), 1.05)),
        Row(
            f"{_MINUTES} min, {_PER_MINUTE} payments a minute, their poller",
            f"{trade.cost('compared'):.2f} s",
            f"the same with `sole_writer=False`, {trade.cost('alone'):.2f} s",
            "at most 1.05x",
            *at_most(trade.ratio("compared", "alone"), 1.05),
        ),
    ]


async def _measure_pages(folder: Path) -> Figures:
    """Measure pages of payments that each client has made itself, in turn."""
    clients = {
        name: _client(
            SQLStore(f"sqlite:///{folder / name}.db", sole_writer=sole_writer),
            lambda: datetime.now(UTC),
            RateLimiter(per_minute=60_000_000, burst=1_000_000),
        )
        for name, sole_writer in _OBSERVED.items()
    }
    for client in clients.values():
        for number in range(100):
            await client.disbursements.create(phone_number=f"+2556{number:08}", amount=1_000)
    figures: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(-1, _PAGES):
        for name in list(clients)[:: 1 if number % 2 else -1]:
            started = time.process_time()
            for _ in range(_PAGES_AT_ONCE):
                await clients[name].transactions.page()
            if number >= 0:
                figures[name].append((time.process_time() - started) / _PAGES_AT_ONCE)
    for client in clients.values():
        await client.aclose()
    return Figures(figures)


async def _trade(path: Path, sole_writer: bool | None) -> float:
    """Make payments and follow them with the poller; return the CPU time, seconds."""
    began, started = anyio.current_time(), time.process_time()
    store = SQLStore(f"sqlite:///{path}", sole_writer=sole_writer)
    async with (
        _client(store, lambda: _START + timedelta(seconds=anyio.current_time() - began)) as client,
        client.poller() as poller,
        anyio.create_task_group() as group,
    ):

        async def pay() -> None:
            for number in range(_MINUTES * _PER_MINUTE):
                await anyio.sleep(began + number * 60 / _PER_MINUTE - anyio.current_time())
                made = await client.disbursements.create(phone_number=f"+2556{number:08}", amount=1_000)
                poller.track(made)
            await anyio.sleep(60)
            group.cancel_scope.cancel()

        group.start_soon(pay)
        async for _ in poller.outcomes(forever=True):
            pass
    return time.process_time() - started


def _client(store: SQLStore, utcnow: Callable[[], datetime], limiter: RateLimiter | None = None) -> AsyncClient:
    return AsyncClient(
        "https://payments.example/v1",
        auth="benchmark-token",
        transport=_Service(utcnow),
        utcnow=utcnow,
        store=store,
        rate_limiter=limiter,
    )
