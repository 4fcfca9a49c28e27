"""The service's answers, and hand-written stand-ins for what lies beyond the client.

`Response` of `tests.support.server` is what both a real server and `FakeTransport` answer with, so that a script can be
played over either.
"""

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import attrs
import httpx

from mobilemoney_async import AsyncClient, Secret
from mobilemoney_async.calls.transport import HTTPTransport
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
    return Response.json(
        {
            "status": "success",
            "message": "accepted",
            "transaction_id": transaction_id,
            "reference": "REF-1",
            "amount": "1000",
            "currency": "TZS",
            "phone_number": PHONE_NUMBER,
            "status_code": "PENDING",
        }
    )


def transaction(transaction_id: str = "tx-1", status: str = "PENDING") -> Response:
    """Return the answer to a lookup."""
    return Response.json(
        {
            "status": "success",
            "transaction": {
                "id": transaction_id,
                "reference": "REF-1",
                "type": "collection",
                "amount": "1000",
                "currency": "TZS",
                "phone_number": PHONE_NUMBER,
                "network": "airtel_money",
                "status": status,
                "created_at": "2026-01-02T12:00:00Z",
            },
        }
    )


def logged_in(token: str = "login-token-1", expires_in: int = 3600) -> Response:
    """Return the answer to a login."""
    return Response.json(
        {"success": True, "access_token": token, "token_type": "Bearer", "expires_in": expires_in, "user": None}
    )


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
    path: str
    headers: httpx.Headers
    body: bytes = attrs.field(repr=False)
    at: float

    @property
    def token(self) -> str | None:
        """The bearer token, or None."""
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None


class Hang:
    """A step of a script: the request is taken, and no answer ever comes."""


Step: TypeAlias = Response | Exception | Hang
Handler: TypeAlias = Callable[[Sent], Awaitable[Step] | Step]


class FakeTransport(httpx.AsyncBaseTransport):
    """Takes the whole request, as a wire does, then does what a handler says.

    Args:
        handler: Says what happens to a request; by default what a healthy service does.
        refuse: How many connections are refused before the first request is taken.

    Attributes:
        sent: Every request taken, oldest first.
        closed: Whether somebody closed it.
    """

    def __init__(self, handler: Handler | None = None, *, refuse: int = 0) -> None:
        self._refuse = refuse
        self._handler = handler or (lambda sent: service(sent.path))
        self.sent: list[Sent] = []
        self.closed = False

    @property
    def paths(self) -> list[str]:
        return [sent.path for sent in self.sent]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._refuse:
            self._refuse -= 1
            raise httpx.ConnectError("All connection attempts failed")
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([chunk async for chunk in request.stream])
        await anyio.lowlevel.checkpoint()
        sent = Sent(request.method, request.url.path, request.headers, body, anyio.current_time())
        self.sent.append(sent)
        step = self._handler(sent)
        if isinstance(step, Awaitable):
            step = await step
        if isinstance(step, Hang):
            await anyio.sleep_forever()
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, Response)
        body = step.body
        if sent.path == B2C:
            body = body.replace(b'"status_code": "PENDING"', b'"status_code": "PROCESSING"')
        return httpx.Response(step.status, content=body, headers=dict(step.headers))

    async def aclose(self) -> None:
        self.closed = True


def script(*steps: Step, then: Handler | None = None) -> Handler:
    """Return a handler that goes through steps, then on as a healthy service does, or as `then` says."""
    left: Iterator[Step] = iter(steps)

    def handler(sent: Sent) -> Awaitable[Step] | Step:
        step = next(left, None)
        if step is None:
            return service(sent.path) if then is None else then(sent)
        return step

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


async def settle() -> None:
    """Let every task that can run do so, in no time: anyio's own `wait_all_tasks_blocked` sleeps on asyncio."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
