"""Fake of the service behind the client's own pipeline: it answers by a test's script, and records the requests."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import httpx

from mobilemoney_async import AsyncClient, RateLimiter
from tests.contract import samples

BASE_URL = "https://pay.example/v1"

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


@attrs.define(eq=False)
class Service(httpx.AsyncBaseTransport):
    """A transport that gives each request to a handler.

    Attributes:
        handler: Gives the answers.
        requests: Every request, oldest first.
        at: When each came, virtual seconds.
        flying: How many are being answered.
        most: How many were being answered at once, at most.
        closed: Whether the transport was closed.
    """

    handler: Handler
    requests: list[httpx.Request] = attrs.field(factory=list)
    at: list[float] = attrs.field(factory=list)
    flying: int = 0
    most: int = 0
    closed: bool = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        self.at.append(anyio.current_time())
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            return await self.handler(request)
        finally:
            self.flying -= 1

    async def aclose(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[str]:
        """The last part of the path of every request: the id that a lookup is for."""
        return [request.url.path.rpartition("/")[2] for request in self.requests]

    @property
    def pages(self) -> list[int]:
        """The page numbers of the requests of a listing."""
        return [int(request.url.params["page"]) for request in self.requests]

    def body(self) -> Any:
        """Return the body of the only request."""
        (request,) = self.requests
        return json.loads(request.content)


def always(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Handler:
    """Return a handler that answers every request with the same JSON."""
    return in_turn((content, status), headers=headers)


def in_turn(*answers: Any, headers: Mapping[str, str] | None = None) -> Handler:
    """Return a handler that answers with one JSON value after the other, and goes on with the last.

    A pair is a JSON value and its HTTP status; an exception is raised.
    """
    left = list(answers)

    async def handler(request: httpx.Request) -> httpx.Response:
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, Exception):
            raise given
        content, status = given if isinstance(given, tuple) else (given, 200)
        if request.url.path.endswith("/b2c") and isinstance(content, dict) and content.get("status_code") == "PENDING":
            content = {**content, "status_code": "PROCESSING"}  # in which a disbursement begins
        return httpx.Response(status, json=content, headers=headers)

    return handler


def error(code: str, **more: Any) -> dict[str, Any]:
    """Return an error in the payment shape (contract, section 7)."""
    return {"status": "error", "error_code": code, "message": "no"} | more


@asynccontextmanager
async def connect(handler: Handler, **options: Any) -> AsyncIterator[tuple[AsyncClient, Service]]:
    """Yield a client and the service that it talks to; the limiter is wide open unless given."""
    service = Service(handler)
    options.setdefault("rate_limiter", RateLimiter(per_minute=6_000_000, burst=100_000))
    options.setdefault("auth", "token")
    async with AsyncClient(BASE_URL, transport=service, **options) as client:
        yield client, service


async def found(request: httpx.Request) -> httpx.Response:
    """Answer a lookup by id with a successful collection of that id."""
    wanted = request.url.path.rpartition("/")[2]
    return httpx.Response(200, json={"status": "success", "transaction": samples.settled(id=wanted)})
