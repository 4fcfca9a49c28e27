"""Ways of a request to the service: each HTTP library, as our own pool or as a caller's transport or client."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import httpx2

from mobilemoney_async import AsyncClient, RateLimiter
from tests.support.fakes import TOKEN

WAYS = ["httpx", "transport", "client", "httpx2", "httpx2 transport", "aiohttp"]
"""The last one is on asyncio only."""


@asynccontextmanager
async def connect(way: str, base_url: str, **options: Any) -> AsyncIterator[AsyncClient]:
    """Connect by one way of sending, without a limit of the rate."""
    wide: dict[str, Any] = {"rate_limiter": RateLimiter(per_minute=6_000_000, burst=100_000), "auth": TOKEN}
    async with AsyncExitStack() as stack:
        own: dict[str, Any] = {}
        match way:
            case "transport":
                own["transport"] = await stack.enter_async_context(httpx.AsyncHTTPTransport(verify=False))
            case "client":
                own["http_client"] = await stack.enter_async_context(httpx.AsyncClient(verify=False))
            case "httpx2":
                own["http_client"] = await stack.enter_async_context(httpx2.AsyncClient(verify=False))
            case "httpx2 transport":
                own["transport"] = await stack.enter_async_context(httpx2.AsyncHTTPTransport(verify=False))
            case "aiohttp":
                own["transport"] = way
        yield await stack.enter_async_context(AsyncClient(base_url, **wide | own | options))
