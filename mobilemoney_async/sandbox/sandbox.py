"""Sandbox: its controls, and the three fronts that serve it: in process, ASGI and sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import httpx

from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.endpoints import PREFIX
from mobilemoney_async.sandbox.messages import Reply, ReplyDelivery, Request

if TYPE_CHECKING:
    from mobilemoney_async import AsyncClient
    from mobilemoney_async.sandbox.server import SandboxApp

_DEFAULT_READ_TIMEOUT = 5.0
"""httpx's default, seconds, for requests without a read time-out."""


class Sandbox(Controls):
    """Payments service on your own machine: simulated money, magic numbers, scripted faults, a movable clock.

    Args:
        speed: Divides the durations under "Pace" in `Choices` and multiplies the rate limit. The clock runs on (see
            `run_clock`), and a login token lives 3600 seconds at any speed.
        seed: The same seed and the same requests at the same times have the same ids, delays and probable faults.
        run: Tells runs with the same seed apart: their transactions have other ids and delays, under the same token.
            A store that outlives the sandbox needs that. `mobilemoney sandbox` takes a new one each time.
        balance: Opening balance of each merchant, TZS.
        choices: Behaviour that the contract leaves open.
        now: Aware time at which the sandbox's clock starts; None for the present.
        by_hand: True if collections wait for your answer; see the property.
        merchants: The number of merchants, 1 to 10,000, each with its own token, transactions, balance and request
            limit, at one address: see the property. `base_url`, `client`, `token` and others are of the first one.

    Attributes:
        speed: As given.
        callbacks: Reports status changes to a URL, while `serve()` runs.

    Raises:
        ValueError: `speed` is not a positive number, `balance` is negative or not a number, `now` is naive, or
            `merchants` is out of its range.
        TypeError: `balance` is a float, `choices` is no `Choices`, or `by_hand` is not a bool.
    """

    @property
    def base_url(self) -> str:
        """The base URL for the in-process front, which answers under any other as well. `serve()` yields a real one."""
        return f"https://sandbox.mobilemoney.test{PREFIX}"

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return an in-process transport for httpx: no sockets, on asyncio and trio, in real and in virtual time."""
        return _Transport(self._handle)

    @property
    def app(self) -> SandboxApp:
        """The ASGI application: the API under `/v1`, and the phone page at `/`.

        Raises:
            ImportError: The extra `sandbox` is not installed.
        """
        try:
            from mobilemoney_async.sandbox.page.app import create_page
            from mobilemoney_async.sandbox.server import SandboxApp
        except ImportError as exc:
            raise ImportError('the sandbox\'s server needs an extra: pip install "mobilemoney-async[sandbox]"') from exc
        return SandboxApp(partial(self.callbacks.reported_before, self._handle), create_page(self))

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve API and phone page on a real socket inside the running asyncio loop, until the context is left.

        While it serves, it also sends callbacks; see `callbacks`.

        Args:
            host: Address to listen on. Requests are answered under this host, loopback names and the address of the
                connection only: a website with a name that resolves here cannot use the sandbox.
            port: TCP port; 0 takes a free one.

        Yields:
            The base URL, version prefix included.

        Raises:
            ImportError: The extra `sandbox` is not installed.
            RuntimeError: The running loop is not asyncio's.
            OSError: The address cannot be listened on, for example because the port is in use.
        """
        app = self.app
        from mobilemoney_async.sandbox import server

        async with server.serve(app, host=host, port=port, background=self.callbacks.run) as address:
            yield address + PREFIX

    def client(self, **options: Any) -> AsyncClient:
        """Make a client of this sandbox, in process.

        Args:
            **options: Of `AsyncClient`. The defaults are the issued token, the in-process transport, a limiter at the
                sandbox's speed, and a wall clock that `advance` moves too.
        """
        # The only import of the client: the service shares no code with it, and is tested without it.
        from mobilemoney_async import AsyncClient, RateLimiter

        chosen: dict[str, Any] = {"base_url": self.base_url, "auth": self.token, "utcnow": self._utcnow}
        if "http_client" not in options:
            chosen["transport"] = self.transport()
        if "rate_limiter" not in options:
            chosen["rate_limiter"] = RateLimiter(
                per_minute=60 * self.speed, burst=10, window=60 / self.speed, jitter=0.5 / self.speed
            )
        return AsyncClient(**{**chosen, **options})

    def _utcnow(self) -> datetime:
        """Return the time of a client's clock: unscaled, as are the lifetimes of its requests."""
        return self._engine.book.datetime_at(self._clock.unscaled_seconds())

    def _handle(self, request: Request) -> Reply:
        return self._engine.handle(request, self._clock.seconds(), self._clock.unscaled_seconds())


@attrs.define(eq=False)
class _Transport(httpx.AsyncBaseTransport):
    """Transport to the engine, which fails as a real socket would, without delays except those of the reply."""

    _handle: Callable[[Request], Reply]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request, or raise httpx's error for the fault or the read time-out.

        Cancelled before the engine is called, the request has no effect; cancelled later, it was processed, and only
        the answer is lost.
        """
        body = await request.aread()
        # The last point at which a cancelled request has no effect.
        await anyio.lowlevel.checkpoint()
        reply = self._handle(
            Request(
                method=request.method,
                path=request.url.raw_path.decode("ascii").partition("?")[0],
                query=dict(request.url.params),
                headers=request.headers,
                body=body,
            )
        )
        if reply.wire is ReplyDelivery.REFUSED:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        await _wait_for(reply, request)
        if reply.wire is ReplyDelivery.CLOSED:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        if reply.wire is ReplyDelivery.RESET:
            raise httpx.ReadError("Connection reset by peer", request=request)
        return httpx.Response(
            reply.status,
            headers=reply.headers,
            stream=_BodyStream(reply, request),
            extensions={"http_version": b"HTTP/1.1"},
            request=request,
        )


@attrs.define(eq=False)
class _BodyStream(httpx.AsyncByteStream):
    _reply: Reply
    _request: httpx.Request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await anyio.lowlevel.checkpoint()
        yield self._reply.sent_body
        if self._reply.wire is ReplyDelivery.TRUNCATED:
            received, expected = len(self._reply.sent_body), len(self._reply.body)
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body "
                f"(received {received} bytes, expected {expected})",
                request=self._request,
            )


async def _wait_for(reply: Reply, request: httpx.Request) -> None:
    """Wait for the delay of the reply, at most for the client's read time-out."""
    timeout = request.extensions.get("timeout", {}).get("read", _DEFAULT_READ_TIMEOUT)
    if reply.wire is not ReplyDelivery.LOST and (timeout is None or reply.delay <= timeout):
        await anyio.sleep(reply.delay)
        return
    if timeout is None:
        await anyio.sleep_forever()
    await anyio.sleep(timeout)
    raise httpx.ReadTimeout("The read operation timed out", request=request)
