"""ASGI application of the sandbox, and its server on sockets (extra `sandbox`).

The server is uvicorn's HTTP/1.1 protocol in the running loop. uvicorn's own `Server` is not used: it takes over the
signal handlers, wakes ten times a second and ends the process when it cannot start. Its protocol class is all that a
sandbox needs, and a subclass can drop connections.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any

import anyio
import attrs
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from mobilemoney_async.sandbox.endpoints import PREFIX
from mobilemoney_async.sandbox.messages import Reply, ReplyDelivery, Request, payment_error
from mobilemoney_async.sandbox.page.app import HOST, is_own_host
from mobilemoney_async.sandbox.page.forms import read_body
from mobilemoney_async.sandbox.page.snapshot import mask_within

logger: logging.Logger = logging.getLogger("mobilemoney_async.sandbox")

CONNECTION = "mobilemoney_async.sandbox.connection"
"""Key in the ASGI scope's `state`: a function that ends the connection without an answer, which ASGI cannot.

With `reset=True` it resets the connection, otherwise it closes it after the bytes already written.
"""

# Characters of a path and query in the log.
_MOST_SHOWN = 500

MAX_BODY = 1024 * 1024
"""Bytes of a request's body that are read."""

# Seconds until the tasks of connections that were cut are cancelled, and then until they are abandoned.
_LEAVING = 1.0
_SHUTDOWN_TIMEOUT = 5.0

# Seconds. Longer than clients keep idle connections (httpx: 5), so that the server is never the one that closes a
# connection just as a payment is being sent on it.
_KEEP_ALIVE = 75

_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)


class CannotDropError(RuntimeError):
    """Fault that ends the connection without a whole answer, on an ASGI server that cannot do that."""


@attrs.define(eq=False)
class SandboxApp:
    """ASGI application of the sandbox: it answers API requests itself, and all others by the page.

    On the sockets of `serve` both answer only under a loopback name or the address served at: its token is the same on
    every machine, and a website whose name resolves to this one could otherwise use it (DNS rebinding). Under another
    ASGI server, a test's, the API answers under any name.
    """

    _handle: Callable[[Request], Awaitable[Reply]]
    _page: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope. Raises `CannotDropError`, though never under `Sandbox.serve()`."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] != "http":
            raise RuntimeError(f"the sandbox serves HTTP, not {scope['type']}")
        elif f"{_raw_path(scope)}/".startswith(f"{PREFIX}/"):
            await self._answer(HTTPRequest(scope, receive), send)
        else:
            await self._page(scope, receive, send)

    async def _answer(self, http: HTTPRequest, send: Send) -> None:
        request = Request(method=http.method, path=_raw_path(http.scope), query=http.query_params, headers=http.headers)
        log = partial(_log, request, anyio.current_time())
        if HOST in http.scope.get("state", {}) and not is_own_host(http.scope):
            text = "Use a loopback address, such as http://127.0.0.1, or the host that the sandbox is served at"
            await _refuse(request, payment_error(403, "FOREIGN_HOST", text), http, send)
            return
        try:
            body = await read_body(http, MAX_BODY)
        except ClientDisconnect:
            log("client left")
            return
        if body is None:
            text = f"A body has at most {MAX_BODY:,} bytes"
            await _refuse(request, payment_error(413, "BODY_TOO_LARGE", text), http, send)
            return
        request = attrs.evolve(request, body=body)
        reply = await self._handle(request)
        # The request has taken effect, even if the client leaves now or this task is cancelled.
        silence = inf if reply.wire is ReplyDelivery.LOST else reply.delay
        if silence and await _client_left_within(silence, http.receive):
            log("client left")
            return
        log(reply.status if reply.wire is ReplyDelivery.ANSWERED else reply.wire.value)
        if reply.wire is ReplyDelivery.ANSWERED:
            await Response(reply.body, reply.status, dict(reply.headers))(http.scope, http.receive, send)
        else:
            await _break_off(reply, http, send)


async def _refuse(request: Request, reply: Reply, http: HTTPRequest, send: Send) -> None:
    """Answer a request that is no matter of the service, and let its connection end: the rest of it is not read."""
    _log(request, anyio.current_time(), reply.status)
    headers = {**dict(reply.headers), "connection": "close"}
    await Response(reply.body, reply.status, headers)(http.scope, http.receive, send)


async def _break_off(reply: Reply, http: HTTPRequest, send: Send) -> None:
    end: Callable[..., None] | None = http.scope.get("state", {}).get(CONNECTION)
    if end is None:
        raise CannotDropError(f"the connection should be {reply.wire.value} here")
    if reply.wire is ReplyDelivery.TRUNCATED:
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.sent_body, "more_body": True})
    end(reset=reply.wire in (ReplyDelivery.RESET, ReplyDelivery.REFUSED))
    await _until_left(http.receive)


async def _client_left_within(seconds: float, receive: Receive) -> bool:
    """Wait, at most until the client closes the connection; return whether it did."""
    # Only this task receives here, so no two tasks ever receive at once.
    with anyio.move_on_after(seconds) as waiting:
        await _until_left(receive)
    return not waiting.cancelled_caught


async def _until_left(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def _live(receive: Receive, send: Send) -> None:
    """Answer the lifespan protocol: there is nothing to start or stop."""
    message: Message = {"type": ""}
    while message["type"] != "lifespan.shutdown":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})


def _raw_path(scope: Scope) -> str:
    """Return the path as on the wire; the decoded one if the ASGI server leaves the raw one out."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw_path.decode("latin-1")


def _log(request: Request, came: float, outcome: int | str) -> None:
    """Write one line, without secrets and whole phone numbers: method, path and query, outcome, milliseconds."""
    took = anyio.current_time() - came
    logger.info("%s %s %s %.0f ms", request.method, target(request), outcome, took * 1000)


def target(request: Request) -> str:
    """Return path and query for a log, with masked phone numbers: any web page may have sent them."""
    query = "&".join(map("=".join, request.query.items()))
    whole = f"{request.path}?{query}" if query else request.path
    return "".join(filter(str.isprintable, mask_within(whole[:_MOST_SHOWN])))


class _State(ServerState):
    """uvicorn's connections and tasks, and whether the server has been closed."""

    is_closed = False


class _Protocol(H11Protocol):
    """uvicorn's protocol, which lets the application end its connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, CONNECTION: partial(_end_connection, transport)}
        # A connection that was accepted just before the end arrives here after it.
        if isinstance(self.server_state, _State) and self.server_state.is_closed:
            transport.abort()


@asynccontextmanager
async def serve(
    app: ASGIApp, *, host: str, port: int, background: Callable[[], Coroutine[Any, Any, None]]
) -> AsyncIterator[str]:
    """Serve until the context is left; then all connections are cut, and `background` is cancelled.

    Yields scheme, host and port of the server; raises as `Sandbox.serve` does.
    """
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,  # the service's clock is the sandbox's, which may be far from the computer's
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()
    state = _State()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: _Protocol(config=config, server_state=state, app_state={HOST: host}, _loop=loop),
        host,
        port,
        reuse_address=True,
    )
    bound_to, bound_port = listener.sockets[0].getsockname()[:2]
    worker = asyncio.create_task(background())
    try:
        # Cancelling the caller raises here, so the cleanup below always runs.
        yield origin(bound_to, bound_port)
    finally:
        worker.cancel()
        listener.close()
        state.is_closed = True
        for connection in list(state.connections):
            assert isinstance(connection, _Protocol), "every connection was made above"
            connection.transport.abort()
        await _end({worker, *state.tasks})
    if worker.done() and not worker.cancelled():
        worker.result()  # it only ends when cancelled, or by an error, which must be raised


def _end_connection(transport: asyncio.Transport, *, reset: bool) -> None:
    if not reset:
        transport.close()
        return
    # With no time to linger, closing sends RST in place of FIN.
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
    transport.abort()


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for the tasks of cut connections, then cancel the rest."""
    for grace in (_LEAVING, _SHUTDOWN_TIMEOUT):
        # Shielded: a cancelled caller still waits for the tasks, so that none outlives the server.
        with anyio.CancelScope(shield=True):
            try:
                _, tasks = await asyncio.wait(tasks, timeout=grace)
            except asyncio.CancelledError:  # asyncio's own, which no shield stops
                for task in tasks:
                    task.cancel()
                raise
        if not tasks:
            return
        for task in tasks:
            task.cancel()


def origin(address: str, port: int) -> str:
    """Return the origin of an IP address and port, `http://` included."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
