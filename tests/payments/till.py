"""The second service for the tests of shared pollers, which records who asks for what."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self

import attrs
import httpx

from mobilemoney_async import AsyncClient, RateLimiter, Schedule
from mobilemoney_async.payments.store import SQLStore, account_store
from mobilemoney_async.polling.poller import Poller
from mobilemoney_async.polling.sharing import PollerChannel
from mobilemoney_async.sharing.poller import StoreChannel
from tests.support.second_service import BASE_URL, SecondService, error

TTL = 0.8
"""Of the lease of a poller that is to die, seconds."""
LEASE = 60.0
"""Of all others, seconds: a machine that stands still for seconds does not lose its lease. None may be longer."""


@attrs.define(eq=False, kw_only=True)
class Till(SecondService):
    """Payments that are pending until the test says otherwise, and the requests of each name.

    Attributes:
        asked: The requests: the token, and an id or a page.
        cut_off: Names that cannot reach the service.
    """

    utcnow: Callable[[], datetime] = lambda: datetime.now(UTC)
    asked: list[tuple[str, str]] = attrs.field(factory=list)
    cut_off: set[str] = attrs.field(factory=set)

    @classmethod
    def of(cls, *names: str) -> Self:
        """Return a service with these payments."""
        till = cls()
        till.open(*names)
        return till

    def open(self, *names: str) -> None:
        """Let payments be created."""
        for name in names:
            self.make("collection", "+255680000001", "1000", id=name)

    def end(self, *names: str, status: str = "SUCCESS") -> None:
        """Let payments end; all of them if none is named."""
        for payment in self.payments:
            if not names or payment.id in names:
                self.finish(payment, status)

    @property
    def askers(self) -> Counter[str]:
        """Number of requests by name."""
        return Counter(who for who, _ in self.asked)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        who, page = request.headers["authorization"].removeprefix("Bearer "), request.url.params.get("page")
        if who in self.cut_off:
            raise httpx.ConnectError("no route")
        self.merchants[who] = "merchant-1"
        what = request.url.path.rpartition("/")[2] if page is None else f"page {page}"
        self.asked.append((who, what))
        if what == "malformed":
            return error(400, "INVALID_TRANSACTION_ID")
        return await super().handle_async_request(request)

    def client(self, name: str) -> AsyncClient:
        """Return a client with its requests recorded under a name."""
        return AsyncClient(BASE_URL, auth=name, transport=self, rate_limiter=wide())


def wide() -> RateLimiter:
    """Return a limiter that does not limit."""
    return RateLimiter(per_minute=6_000_000, burst=100_000)


def utcnow() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def make_poller(client: AsyncClient, fleet: PollerChannel, **options: Any) -> Poller:
    """Return a poller that is quicker than the real ones."""
    options.setdefault("schedule", Schedule(first=0.1, factor=1, cap=0.1))
    options.setdefault("min_interval", 0.05)
    return Poller(client._pipeline, channel=fleet, **options)


def make_fleet(url: str, *, ttl: float = LEASE, poll: float = 0.05) -> StoreChannel:
    """Return a connection to the store that is quicker than the real ones."""
    fleet = StoreChannel(account_store(SQLStore(url)), utcnow=utcnow)
    fleet.ttl, fleet.poll, fleet.linger = ttl, poll, 0.2
    return fleet


@asynccontextmanager
async def process(till: Till, url: str, name: str, *, ttl: float = LEASE, **options: Any) -> AsyncIterator[Poller]:
    """Yield a poller with all that another process would have for itself."""
    fleet = make_fleet(url, ttl=ttl)
    fleet.store.attach()
    try:
        async with till.client(name) as client, make_poller(client, fleet, **options) as poller:
            yield poller
    finally:
        fleet.store.detach()
