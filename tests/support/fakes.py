"""The service's answers, and hand-written stand-ins for what lies beyond the client.

`Response` of `tests.support.server` is what both a real server and `FakeTransport` answer with, so that a script can be
played over either.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import attrs
import httpx

from mobilemoney_async import AsyncClient, RateLimiter, Secret
from mobilemoney_async.calls.transport import HTTPTransport
from tests.contract import samples
from tests.support.server import Reply, Request, Response

BASE_URL = "https://payments.example/v1"
TOKEN = "issued.token-of-the-tests"
EMAIL = "merchant@example.com"
PASSWORD = "correct horse battery"
PHONE_NUMBER = "+255780000789"
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)

C2B = "/v1/payment-service/airtel/c2b"
B2C = "/v1/payment-service/airtel/b2c"
LOGIN = "/v1/user-service/login"


def acknowledgement(transaction_id: str = "tx-1") -> Response:
    """Return the answer to a create."""
    names = {"transaction_id": transaction_id, "reference": "REF-1", "phone_number": PHONE_NUMBER}
    return Response.json(samples.acknowledgement(**names))


def transaction(transaction_id: str = "tx-1", status: str = "PENDING") -> Response:
    """Return the answer to a lookup."""
    shown = {"id": transaction_id, "reference": "REF-1", "phone_number": PHONE_NUMBER, "status": status}
    return Response.json(samples.found(**shown, created_at="2026-01-02T12:00:00Z"))


def logged_in(token: str = "login-token-1", expires_in: int = 3600) -> Response:
    """Return the answer to a login."""
    return Response.json(samples.login(access_token=token, expires_in=expires_in, user=None))


def refusal(code: str, status: int, retry_after: int | None = None) -> Response:
    """Return an error in the shape that the contract gives its code: upper case is the payment service's."""
    if code.isupper():
        body: dict[str, Any] = {"status": "error", "message": "no", "error_code": code}
        if retry_after is not None:
            body["retry_after"] = retry_after
        return Response.json(body, status)
    return Response.json({"success": False, "error": code, "message": "no"}, status)


def service(path: str) -> Response:
    """Return what a healthy service answers on a path."""
    if path == LOGIN:
        return logged_in()
    if path in {C2B, B2C}:
        return acknowledgement()
    if "/payment-service/transaction" in path:
        return transaction(path.rpartition("/")[2])
    return Response.json({"status": "success"})


@attrs.define(eq=False)
class Sent:
    """One request that reached a `FakeTransport`.

    Attributes:
        at: When, on the loop's clock.
    """

    method: str
    url: httpx.URL
    headers: httpx.Headers
    body: bytes = attrs.field(repr=False)
    at: float

    @property
    def path(self) -> str:
        return self.url.path

    @property
    def id(self) -> str:
        """The last part of the path: the id that a lookup is for."""
        return self.path.rpartition("/")[2]

    @property
    def token(self) -> str | None:
        """The bearer token, or None."""
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None


class Hang:
    """A step of a script: the request is taken, and no answer ever comes."""


Step: TypeAlias = Response | httpx.Response | Exception | Hang
Handler: TypeAlias = Callable[[Sent], Awaitable[Step] | Step]


class FakeTransport(httpx.AsyncBaseTransport):
    """Takes the whole request, as a wire does, then does what a handler says.

    Args:
        handler: Says what happens to a request; by default what a healthy service does.
        refuse: How many connections are refused before the first request is taken.

    Attributes:
        sent: Every request taken, oldest first.
        refuse: How many more connections are refused.
        flying: How many are being answered.
        most: How many were being answered at once, at most.
        closed: Whether somebody closed it.
    """

    def __init__(self, handler: Handler | None = None, *, refuse: int = 0) -> None:
        self.refuse = refuse
        self.handler = handler or (lambda sent: service(sent.path))
        self.sent: list[Sent] = []
        self.flying = self.most = 0
        self.closed = False

    @property
    def paths(self) -> list[str]:
        return [sent.path for sent in self.sent]

    @property
    def times(self) -> list[float]:
        return [sent.at for sent in self.sent]

    @property
    def pages(self) -> list[int]:
        """The page numbers of the requests of a listing."""
        return [int(sent.url.params["page"]) for sent in self.sent]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.refuse:
            self.refuse -= 1
            raise httpx.ConnectError("All connection attempts failed")
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([chunk async for chunk in request.stream])
        await anyio.lowlevel.checkpoint()
        sent = Sent(request.method, request.url, request.headers, body, anyio.current_time())
        self.sent.append(sent)
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            step = self.handler(sent)
            if isinstance(step, Awaitable):
                step = await step
            if isinstance(step, Hang):
                await anyio.sleep_forever()
        finally:
            self.flying -= 1
        if isinstance(step, Exception):
            raise step
        if isinstance(step, httpx.Response):
            return step
        assert isinstance(step, Response)
        body = step.body
        if sent.path == B2C:
            body = body.replace(b'"status_code": "PENDING"', b'"status_code": "PROCESSING"')
        return httpx.Response(step.status, content=body, headers=dict(step.headers))

    async def aclose(self) -> None:
        self.closed = True


def found(sent: Sent) -> Response:
    """Answer a lookup by id with a successful collection of that id."""
    return Response.json({"status": "success", "transaction": samples.settled(id=sent.id)})


def script(*steps: Step, then: Handler | None = None) -> Handler:
    """Return a handler that goes through steps, then on as a healthy service does, or as `then` says."""
    left: Iterator[Step] = iter(steps)

    def handler(sent: Sent) -> Awaitable[Step] | Step:
        step = next(left, None)
        if step is None:
            return service(sent.path) if then is None else then(sent)
        return step

    return handler


def in_turn(*answers: Any) -> Handler:
    """Return a handler that gives one answer after the other, and goes on with the last.

    One is a step, a JSON value, or a pair of that and its HTTP status.
    """
    left = list(answers)

    def handler(sent: Sent) -> Step:
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, Response | Exception):
            return given
        return Response.json(*given) if isinstance(given, tuple) else Response.json(given)

    return handler


def replies(*steps: Reply) -> Callable[[Request], Awaitable[Reply]]:
    """Return a handler for a real server that goes through replies, then on as a healthy service does."""
    left = iter(steps)

    async def handler(request: Request) -> Reply:
        return next(left, None) or service(request.target)

    return handler


class CountingSource:
    """A token source that hands out ``token-1``, ``token-2`` … : a new one after each refusal."""

    def __init__(self) -> None:
        self.number = 1
        self.asked = 0
        self.refused: list[tuple[str, bool]] = []

    async def token(self, login: object) -> str:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        return f"token-{self.number}"

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        self.refused.append((token.reveal(), replacement))
        self.number += 1


def make_client(transport: HTTPTransport | None = None, *, base_url: str = BASE_URL, **options: Any) -> AsyncClient:
    """Return a client over a fake transport, on a fixed wall clock, with an issued token unless `auth` is given."""
    options.setdefault("auth", TOKEN)
    return AsyncClient(base_url, transport=transport, utcnow=lambda: NOON, **options)


@asynccontextmanager
async def connect(
    handler: Handler | None = None, *, refuse: int = 0, **options: Any
) -> AsyncIterator[tuple[AsyncClient, FakeTransport]]:
    """Yield a client and the service that it talks to; the limiter is wide open unless given."""
    transport = FakeTransport(handler, refuse=refuse)
    options = {"rate_limiter": RateLimiter(per_minute=6_000_000, burst=100_000), "auth": "token", **options}
    async with AsyncClient(BASE_URL, transport=transport, **options) as client:
        yield client, transport


async def pay(client: AsyncClient) -> object:
    """Make a call that moves money."""
    return await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)


async def look_up(client: AsyncClient) -> object:
    """Make a call that reads."""
    return await client.transactions.get("tx-1")


async def verify(client: AsyncClient) -> object:
    """Make a session call."""
    return await client.users.verify_otp(PHONE_NUMBER, "123456")


def held(seconds: float) -> RateLimiter:
    """Return a limiter that lets nothing go for some seconds, and then has the contract's limit."""
    limiter = RateLimiter()
    limiter.hold(seconds)
    return limiter


async def settle() -> None:
    """Let every task that can run do so, in no time: anyio's own `wait_all_tasks_blocked` sleeps on asyncio."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
