"""ASGI front (extra `sandbox`): the engine behind any ASGI server, or behind httpx's ASGITransport."""

import logging
import re
from collections.abc import Awaitable, Callable
from math import inf
from urllib.parse import unquote

import anyio
import attrs
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mobilemoney_async.sandbox.endpoints import PREFIX
from mobilemoney_async.sandbox.messages import Reply, Request, Wire

logger: logging.Logger = logging.getLogger("mobilemoney_async.sandbox")
_PHONE_NUMBER = re.compile(r"[+]?[0-9]{8,15}")

CONNECTION = "mobilemoney_async.sandbox.connection"
"""Key in the ASGI scope's `state`: a function that ends the connection without an answer, which ASGI cannot.

With `reset=True` it resets the connection, otherwise it closes it after the bytes already written.
"""

_NO_PAGE = f'The API is under {PREFIX}. The phone page needs an extra: pip install "mobilemoney-async[sandbox]"\n'


class CannotDropError(RuntimeError):
    """Fault that ends the connection without a whole answer, on an ASGI server that cannot do that."""


class SandboxApp:
    """ASGI application of the sandbox: it answers API requests itself, and all others by the page."""

    def __init__(self, handle: Callable[[Request], Awaitable[Reply]], open_page: Callable[[], ASGIApp]) -> None:
        self._handle = handle
        self._open_page = open_page
        self._page: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope. Raises `CannotDropError`, though never under `Sandbox.serve()`."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            answer = self._answer if _is_for_the_api(scope) else self._show
            await answer(HTTPRequest(scope, receive), send)
        else:
            raise RuntimeError(f"the sandbox serves HTTP, not {scope['type']}")

    async def _show(self, http: HTTPRequest, send: Send) -> None:
        if self._page is None:
            try:
                self._page = self._open_page()
            except ImportError as exc:
                if exc.name != "jinja2":
                    raise
                self._page = PlainTextResponse(_NO_PAGE, 404)
        await self._page(http.scope, http.receive, send)

    async def _answer(self, http: HTTPRequest, send: Send) -> None:
        came = anyio.current_time()
        request = Request(method=http.method, path=_raw_path(http.scope), query=http.query_params, headers=http.headers)
        try:
            body = await http.body()
        except ClientDisconnect:
            _log(request, "client left", seconds=anyio.current_time() - came)
            return
        request = attrs.evolve(request, body=body)
        reply = await self._handle(request)
        # The request has taken effect, even if the client leaves now or this task is cancelled.
        silence = inf if reply.wire is Wire.LOST else reply.delay
        if silence and await _client_left_within(silence, http.receive):
            _log(request, "client left", seconds=anyio.current_time() - came)
            return
        outcome = str(reply.status) if reply.wire is Wire.ANSWERED else reply.wire.value
        _log(request, outcome, seconds=anyio.current_time() - came)
        if reply.wire is Wire.ANSWERED:
            await Response(reply.body, reply.status, dict(reply.headers))(http.scope, http.receive, send)
        else:
            await _break_off(reply, http, send)


async def _break_off(reply: Reply, http: HTTPRequest, send: Send) -> None:
    end: Callable[..., None] | None = http.scope.get("state", {}).get(CONNECTION)
    if end is None:
        raise CannotDropError(f"the connection should be {reply.wire.value} here")
    if reply.wire is Wire.TRUNCATED:
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.sent_body, "more_body": True})
    end(reset=reply.wire in (Wire.RESET, Wire.REFUSED))
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


def _is_for_the_api(scope: Scope) -> bool:
    path = _raw_path(scope)
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def _raw_path(scope: Scope) -> str:
    """Return the path as on the wire; the decoded one if the ASGI server leaves the raw one out."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw_path.decode("latin-1")


def _log(request: Request, outcome: str, *, seconds: float) -> None:
    """Write one line, without secrets and whole phone numbers: method, path and query, outcome, milliseconds."""
    logger.info("%s %s %s %.0f ms", request.method, target(request), outcome, seconds * 1000)


def target(request: Request) -> str:
    """Return path and query with masked phone numbers."""
    path = "/".join(map(_masked, request.path.split("/")))
    query = "&".join(f"{name}={_masked(value)}" for name, value in request.query.items())
    return f"{path}?{query}" if query else path


def _masked(text: str) -> str:
    plain = unquote(text).strip()
    return f"{plain[:6]}…{plain[-3:]}" if _PHONE_NUMBER.fullmatch(plain) else text
