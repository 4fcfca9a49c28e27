"""A platform of several hosts in one process, each with a store of its own, and what is done there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs
import httpx

from mobilemoney_async import Merchants, SQLStore
from mobilemoney_async.merchants.worker import Worker
from tests.support.fakes import NOON
from tests.support.second_service import BASE_URL, SecondService

NUMBER = "+255681234567"


def utcnow() -> datetime:
    return NOON + timedelta(seconds=anyio.current_time())


def shops(count: int) -> list[str]:
    return [f"shop-{number:02}" for number in range(count)]


async def token_of(account: str) -> str:
    return f"token.of.{account}"


@attrs.define(eq=False)
class Line(httpx.AsyncBaseTransport):
    """Way of one account of one host to the service."""

    platform: Platform
    host: str
    account: str

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.platform.asked.append((anyio.current_time(), self.host, self.account))
        if self.platform.answer_first is not None:
            answer = await self.platform.answer_first(self.account)
            if answer is not None:
                return answer
        return await self.platform.service.handle_async_request(request)


@attrs.define(eq=False)
class Platform:
    """Platform of several hosts, each with a store of its own over one database, in one process.

    Attributes:
        asked: The requests that came to the service: when, from which host, of which account.
    """

    url: str
    service: SecondService = attrs.field(factory=lambda: SecondService(utcnow=utcnow))
    asked: list[tuple[float, str, str]] = attrs.field(factory=list)
    answer_first: Callable[[str], Awaitable[httpx.Response | None]] | None = None
    stores: dict[str, SQLStore] = attrs.field(factory=dict)

    @asynccontextmanager
    async def merchants(self, host: str = "one", **options: Any) -> AsyncIterator[Merchants]:
        async def auth(account: str) -> str:
            self.service.merchants[f"token.of.{account}"] = account
            return f"token.of.{account}"

        self.stores[host] = store = SQLStore(self.url, grace=5)
        base_url = options.pop("base_url", BASE_URL)
        given = {"auth": auth, "transport": lambda account: Line(self, host, account), "utcnow": utcnow, **options}
        async with Merchants(base_url, **{"store": store, **given}) as merchants:
            yield merchants

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[Worker]:
        async with self.merchants(name) as merchants, merchants.worker() as worker:
            yield worker

    def hosts_of(self, account: str) -> list[str]:
        """Return the hosts that asked for an account, in order, without repetitions in a row."""
        hosts = [host for _, host, whose in self.asked if whose == account and host != "shop"]
        return [each for each, before in zip(hosts, [None, *hosts], strict=False) if each != before]


async def pay(merchants: Merchants, accounts: Iterable[str], key: str = "order-1") -> None:
    """Make a payment in each account, which stays pending."""
    for account in accounts:
        client = await merchants.client(account)
        await client.collections.create(
            phone_number=NUMBER, amount=1000, idempotency_key=key, extra={"order": f"{account}-{key}"}
        )


async def enqueue(merchants: Merchants, accounts: Iterable[str], key: str = "queued-1", **changes: Any) -> None:
    for account in accounts:
        client = await merchants.client(account)
        given = {"type": "collection", "phone_number": NUMBER, "amount": 2000, "extra": {"order": f"{account}-{key}"}}
        await client.payments.enqueue(idempotency_key=key, **{**given, **changes})


async def until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not is_so():
            await anyio.sleep(0.5)
