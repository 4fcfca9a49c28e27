"""The service for the tests of shared pollers: it answers lookups and pages, and records each request."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import httpx

from mobilemoney_async import AsyncClient, RateLimiter, Schedule
from mobilemoney_async.database.engine import Database
from mobilemoney_async.polling.poller import Poller
from mobilemoney_async.polling.sharing import Fleet
from mobilemoney_async.sharing.poller import StoreFleet
from tests.contract import samples
from tests.support.server import Reply, Request, Response

TTL = 0.8
"""Of the lease of a poller that is to die, seconds."""
LEASE = 60.0
"""Of all others, seconds: a machine that stands still for seconds does not lose its lease. None may be longer."""


@attrs.define(eq=False)
class Till:
    """Payments that are pending until the test says otherwise.

    Attributes:
        statuses: Of each payment, oldest first.
        asked: The requests: the token, and an id or a page.
        cut_off: Names that cannot reach the service.
    """

    statuses: dict[str, str] = attrs.field(factory=dict)
    asked: list[tuple[str, str]] = attrs.field(factory=list)
    cut_off: set[str] = attrs.field(factory=set)

    def open(self, *numbers: str) -> None:
        """Let payments be created."""
        self.statuses |= dict.fromkeys(numbers, "PENDING")

    def end(self, *numbers: str, status: str = "SUCCESS") -> None:
        """Let payments end."""
        self.statuses |= dict.fromkeys(numbers, status)

    @property
    def askers(self) -> Counter[str]:
        """Number of requests by name."""
        return Counter(who for who, _ in self.asked)

    def answer(self, target: str, who: str) -> tuple[dict[str, Any], int]:
        """Return the body and the status of the answer."""
        url = urlsplit(target)
        if url.path.endswith("/transactions"):
            page = int(parse_qs(url.query)["page"][0])
            self.asked.append((who, f"page {page}"))
            rows = [_row(number, status) for number, status in reversed(self.statuses.items())]
            shown = rows[100 * (page - 1) : 100 * page]
            pages = max(1, -(-len(rows) // 100))
            pagination = {"current_page": page, "total_pages": pages, "total_count": len(rows), "per_page": 100}
            return {"status": "success", "transactions": shown, "pagination": pagination}, 200
        number = url.path.rpartition("/")[2]
        self.asked.append((who, number))
        if number == "malformed":
            return {"status": "error", "message": "no", "error_code": "INVALID_TRANSACTION_ID"}, 400
        if number not in self.statuses:
            return {"status": "error", "message": "no", "error_code": "TRANSACTION_NOT_FOUND"}, 404
        return {"status": "success", "transaction": _row(number, self.statuses[number])}, 200

    async def handle(self, request: Request) -> Reply:
        """Answer a request on a real socket."""
        await request.read()
        who = dict(request.headers).get("authorization", "").removeprefix("Bearer ")
        return Response.json(*self.answer(request.target, who))

    def client(self, name: str) -> AsyncClient:
        """Return a client with its requests recorded under a name."""
        return AsyncClient("https://pay.example/v1", auth=name, transport=_Wire(self), rate_limiter=wide())


@attrs.define(eq=False)
class _Wire(httpx.AsyncBaseTransport):
    till: Till

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        who = request.headers["authorization"].removeprefix("Bearer ")
        if who in self.till.cut_off:
            raise httpx.ConnectError("no route")
        body, status = self.till.answer(str(request.url), who)
        return httpx.Response(status, json=body)


def wide() -> RateLimiter:
    """Return a limiter that does not limit."""
    return RateLimiter(per_minute=6_000_000, burst=100_000)


def utcnow() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def make_poller(client: AsyncClient, fleet: Fleet, **options: Any) -> Poller:
    """Return a poller that is quicker than the real ones."""
    options.setdefault("schedule", Schedule(first=0.1, factor=1, cap=0.1))
    options.setdefault("min_interval", 0.05)
    return Poller(client._pipeline, fleet=fleet, **options)


def make_fleet(url: str, *, ttl: float = LEASE, poll: float = 0.05) -> StoreFleet:
    """Return a connection to the store that is quicker than the real ones."""
    fleet = StoreFleet(Database(url), "default", utcnow=utcnow)
    fleet.ttl, fleet.poll, fleet.linger = ttl, poll, 0.2
    fleet.listening_poll = max(poll, TTL / 2)
    return fleet


@asynccontextmanager
async def process(till: Till, url: str, name: str, *, ttl: float = LEASE, **options: Any) -> AsyncIterator[Poller]:
    """Yield a poller with all that another process would have for itself."""
    fleet = make_fleet(url, ttl=ttl)
    try:
        async with till.client(name) as client, make_poller(client, fleet, **options) as poller:
            yield poller
    finally:
        fleet.database.close()


def _row(number: str, status: str) -> dict[str, Any]:
    return samples.settled(id=number) if status == "SUCCESS" else samples.transaction(id=number, status=status)
