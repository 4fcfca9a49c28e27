"""Worker of a platform: what accounts cost that wait for a payment.

Run as a module it is that process: a database's URL and a number of accounts as arguments.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import anyio
import httpx

from benchmarks.common import Row, ask, in_process, size
from mobilemoney_async import Merchants, SQLStore
from tests.contract import samples

# Until each payment is looked at every half minute, and then.
_ACCOUNTS, _SETTLE, _SECONDS = size((1000, 120.0, 60.0), (2, 0.0, 1.0))
_MOST_TRANSACTIONS, _MOST_CORES = 50, 0.3  # of issue 16, at 1,000 accounts, beside the requests themselves
_NUMBER = "+255681234567"


def run() -> list[Row]:
    """Measure a process that serves accounts with one pending payment each."""
    from tests.support.databases import postgres

    with postgres() as server:
        found = in_process("benchmarks.worker", server.new_database(), str(_ACCOUNTS))
    case = f"{_ACCOUNTS:,} accounts with one pending payment, one worker, PostgreSQL"
    transactions, cores = found["transactions"] - found["requests"], found["cores"] - found["request_cores"]
    return [
        Row(
            case,
            f"{found['transactions']:.0f} transactions/s",
            f"one for each request, {found['requests']:.0f}/s",
            f"{_MOST_TRANSACTIONS} more",
            f"{transactions:.0f}/s more",
            transactions <= _MOST_TRANSACTIONS,
        ),
        Row(
            case,
            f"{found['cores']:.2f} cores",
            f"those requests by `transactions.get`, {found['request_cores']:.2f} cores",
            f"{_MOST_CORES} more",
            f"{cores:.2f} more",
            cores <= _MOST_CORES,
        ),
    ]


class _Service(httpx.AsyncBaseTransport):
    """Service of all accounts, whose payments stay pending."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if request.method == "POST":
            number = f"t-{next(self._numbers)}"
            made = samples.acknowledgement(transaction_id=number, reference=f"R-{number}")
            return httpx.Response(200, json=made | json.loads(await request.aread()))
        number = request.url.path.rpartition("/")[2]
        if number == "transactions":
            return httpx.Response(200, json=samples.page())
        return httpx.Response(
            200, json=samples.found(id=number, reference=f"R-{number}", phone_number=_NUMBER, merchant_id=number)
        )


async def _auth(account: str) -> str:
    return f"token.of.{account}"


async def _measure(url: str, count: int) -> dict[str, Any]:
    store, service = SQLStore(url), _Service()
    async with Merchants(
        "https://pay.example/v1", store=store, auth=_auth, transport=lambda _: service, max_open=count + 1
    ) as merchants:
        clients = [await merchants.client(f"shop-{number}") for number in range(count)]
        for client in clients:
            await client.collections.create(phone_number=_NUMBER, amount=1000, idempotency_key="order-1")
        async with merchants.worker() as worker:
            while len(worker.accounts) < count:
                await anyio.sleep(1)
            await anyio.sleep(_SETTLE)
            before, asked, cpu, began = _commits(url), service.requests, time.process_time(), time.perf_counter()
            await anyio.sleep(_SECONDS)
            took = time.perf_counter() - began
            commits, asked, cpu = _commits(url) - before, service.requests - asked, time.process_time() - cpu
        some = clients[:200]
        own = time.process_time()
        for number, client in enumerate(some, 1):
            await client.transactions.get(f"t-{number}")
        own = (time.process_time() - own) / len(some)
    return {
        "transactions": commits / took,
        "requests": asked / took,
        "cores": cpu / took,
        "request_cores": own * asked / took,
    }


def _commits(url: str) -> int:
    return int(ask(url, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))


if __name__ == "__main__":
    print(json.dumps(anyio.run(_measure, sys.argv[1], int(sys.argv[2]))))
