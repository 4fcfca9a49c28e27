"""Wire: sends one request through httpx, and maps every failure to one of our errors.

Invariant: nothing but a `MobileMoneyError` leaves `Wire.send`, cancellation and the like aside, and nothing at all
leaves it with the frames below: those of the libraries hold the token, or a part of an answer. Whatever is answered, no
more than 1 MiB of it is read, and no more is made of it by decompression.
"""

from __future__ import annotations

import functools
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import attrs
import httpx

from mobilemoney_async.calls.bodies import read_body
from mobilemoney_async.calls.transport_errors import Flight, library, map_error
from mobilemoney_async.calls.transport_pool import below, check_base_url, make_pool, require_aiohttp, route
from mobilemoney_async.contract.error_mapping import Answer
from mobilemoney_async.errors import ConnectionFailed, InvalidRequest, MobileMoneyError
from mobilemoney_async.tasks import asyncio_loop, callers_code, running_loop, shielded
from mobilemoney_async.tracebacks import without_frames
from mobilemoney_async.values import HiddenText, refuse

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

_CLOSE_TIMEOUT = 5.0
# Libraries with a parser that keeps the bytes after an answer.
_PARSED = frozenset({"httpcore", "httpcore2"})
_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})  # the length is said even where there is nothing

HTTPTransport: TypeAlias = httpx.AsyncBaseTransport | Literal["aiohttp"]
"""Type of `AsyncClient`'s argument ``transport``."""
HTTPClient: TypeAlias = httpx.AsyncClient
"""Type of `AsyncClient`'s argument ``http_client``; httpx2's client has the same interface."""

_ssl_objects: WeakKeyDictionary[object, Any] = WeakKeyDictionary()  # or None, by connection
_in_our_call: ContextVar[bool] = ContextVar("mobilemoney_async_in_our_call", default=False)


class _Body(httpx.AsyncByteStream):
    """Request body that notes when it begins to be read.

    No generator: a write that fails would leave it unfinished, of which trio complains.
    """

    def __init__(self, content: bytes, flight: Flight) -> None:
        self._content = content
        self._flight = flight
        self._read = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._read = False
        return self

    async def __anext__(self) -> bytes:
        if self._read:
            raise StopAsyncIteration
        self._flight.check()
        self._read = self._flight.begun = True
        return self._content


@functools.cache
def _body_class(httpx2: Any) -> Any:
    """Return the class of a request body that httpx, and httpx2 where it is loaded, takes: they refuse any other."""
    return _Body if httpx2 is None else type("_Body", (_Body, httpx2.AsyncByteStream), {})


@attrs.frozen(eq=False, repr=False)
class _Outgoing:
    """Request to a whole URL, with its progress, and the reader of its answer."""

    method: str
    url: str
    headers: dict[str, str]
    content: bytes | None
    timeout: float
    flight: Flight
    read: Callable[[Answer], Any]

    @property
    def may_move_money(self) -> bool:
        """True if it may, and has no body of which one sees whether it is read."""
        return self.content is None and self.method != "GET"


class _Sender(Protocol):
    """Way of a request to the service: a transport, or a caller's client."""

    async def send(self, outgoing: _Outgoing) -> Any:
        """Send one request, and have its answer read while its connection is still ours; any exception may leave."""

    def prepare(self) -> None:
        """Open connections ahead of the first request, where they are ours."""

    async def aclose(self, *, is_resting: bool = False) -> None:
        """Close connections, where they are ours; if `is_resting`, not those of requests that are under way."""


def _body(outgoing: _Outgoing) -> Any:
    """Return the body of a request over a caller's transport or client, which may be of either library."""
    return _body_class(sys.modules.get("httpx2"))(outgoing.content or b"", outgoing.flight)


@functools.lru_cache(maxsize=64)
def _parse(made_by: Any, url: str) -> Any:
    """Return a library's object for a URL, which is the same for all payments of a kind."""
    return made_by.URL(url)


class _TransportSender:
    """Sender through an httpx transport, below httpx's client: no redirects, cookies, netrc or INFO line.

    Args:
        transport: A caller's, never closed by us, or None for a pool of our own.
        base_url: Where the requests go.
        aiohttp: Whether a pool of our own is httpx-aiohttp's.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None, base_url: str, *, aiohttp: bool = False) -> None:
        self._transport = transport
        self._owned = transport is None
        self._base_url = base_url
        self._base = httpx.URL(base_url)
        self._aiohttp = aiohttp
        self._loop: object = None
        self._flights: dict[int, int] = {}  # under way, by the transport's `id`

    def prepare(self) -> None:
        if self._owned and self._transport is None:
            self._open()

    async def send(self, outgoing: _Outgoing) -> Any:
        flight = outgoing.flight
        flight.proves_unsent = True  # until there is a pool
        transport = self._open() if self._transport is None or self._owned else self._transport
        flight.proves_unsent = self._owned and outgoing.content is not None
        flight.is_direct = self._owned and not self._aiohttp
        flight.begun = not self._owned and outgoing.may_move_money
        self._flights[id(transport)] = self._flights.get(id(transport), 0) + 1
        try:
            return await _read(await transport.handle_async_request(self._request(transport, outgoing)), outgoing)
        finally:
            if flight.is_suspect and self._aiohttp and self._transport is transport:
                self._transport = None  # aiohttp does not show the connection: later requests go over a new pool
            await self._end_flight(transport)

    def _request(self, transport: httpx.AsyncBaseTransport, outgoing: _Outgoing) -> httpx.Request:
        """Return the request in the classes that a transport takes."""
        method, url, headers, content = outgoing.method, outgoing.url, outgoing.headers, outgoing.content
        # A deadline of its own for each phase lets the pool name the phase; the attempt's own scope ends the whole.
        phase, timeout, flight = 0.95 * outgoing.timeout, outgoing.timeout, outgoing.flight
        extensions: dict[str, Any] = {"timeout": {"connect": phase, "pool": phase, "read": timeout, "write": timeout}}
        if flight.checks:
            extensions["trace"] = flight.trace
        if self._owned:
            # With a stream, httpx leaves the headers that frame the request to us.
            headers = {"Host": self._base.netloc.decode("ascii"), **headers}
            if content is not None or method in _WITH_LENGTH:
                headers["Content-Length"] = str(len(content or b""))
            body = httpx.ByteStream(b"") if content is None else _Body(content, flight)
            made = httpx.Request(method, self._base, headers=headers, stream=body, extensions=extensions)
            made.url = below(self._base, url, url.removeprefix(self._base_url))
            if content is None:
                made.read()  # else httpx-aiohttp would send an empty body, in chunks
            return made
        # A transport of a caller's may read `content` or `stream`; give it both. httpx2's takes its own classes.
        made_by: Any = sys.modules["httpx2"] if "httpx2" in map(library, type(transport).__mro__) else httpx
        place = url if content is None else _parse(made_by, url)
        request: httpx.Request = made_by.Request(method, place, headers=headers, content=content, extensions=extensions)
        request.stream = _body(outgoing)
        return request

    async def _end_flight(self, transport: httpx.AsyncBaseTransport) -> None:
        """Count a request over a transport as ended; the last one closes a pool that is used no longer."""
        self._flights[id(transport)] -= 1
        if not self._flights[id(transport)]:
            del self._flights[id(transport)]
            if self._owned and self._transport is not transport:
                await shielded(transport.aclose, timeout=_CLOSE_TIMEOUT, ignored=Exception)

    def _open(self) -> httpx.AsyncBaseTransport:
        """Return our pool, a new one in another event loop: connections belong to their loop."""
        loop = running_loop()
        if self._transport is None or self._loop is not loop:
            self._transport = make_pool(self._base_url, aiohttp=self._aiohttp)
            self._loop = loop
        return self._transport

    async def aclose(self, *, is_resting: bool = False) -> None:
        if self._owned and self._transport is not None:
            transport, self._transport = self._transport, None
            if is_resting and id(transport) in self._flights:
                return  # the last request over it closes it
            # The connections of another loop are beyond reach: it has ended, and they with it.
            if self._loop is running_loop():
                await transport.aclose()


class _ClientSender:
    """Sender through a caller's client, httpx's or httpx2's, which the caller closes."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        logging.getLogger(library(type(client))).addFilter(_drop_our_calls)

    async def send(self, outgoing: _Outgoing) -> Any:
        flight, timeout = outgoing.flight, outgoing.timeout
        if getattr(self._client, "is_closed", False):  # as where a shop ends that closes it before ours
            raise ConnectionFailed("http_client is closed; nothing was sent", outcome="not_sent")
        flight.proves_unsent = True  # until there is a request: the client's own headers or cookies may not make one
        request = self._client.build_request(
            outgoing.method,
            outgoing.url,
            headers=outgoing.headers,
            content=outgoing.content,
            timeout=(0.95 * timeout, timeout, timeout, 0.95 * timeout),
        )
        if "?" in outgoing.url and getattr(self._client, "params", None):  # which have taken the place of our query
            request.url = request.url.copy_merge_params(outgoing.url.partition("?")[2])
        flight.proves_unsent = False
        flight.begun = outgoing.may_move_money
        request.stream = _body(outgoing)
        token = _in_our_call.set(True)
        try:
            response = await self._client.send(request, auth=None, follow_redirects=False, stream=True)
        finally:
            _in_our_call.reset(token)
        if "set-cookie" in response.headers:
            # As over our own pool: a service's cookies would go with another merchant's requests, or let none be made.
            for cookie in response.cookies.jar:
                with suppress(KeyError):
                    self._client.cookies.jar.clear(cookie.domain, cookie.path, cookie.name)
        return await _read(response, outgoing)

    def prepare(self) -> None:
        """Do nothing."""

    async def aclose(self, *, is_resting: bool = False) -> None:
        """Do nothing."""


class Wire:
    """Wire to the service: sends one request and returns its answer, of any kind.

    Args:
        base_url: The service, with its version prefix; https, or http on loopback only (contract, section 5).
        transport: A caller's transport, or ``"aiohttp"`` for httpx-aiohttp's pool, or None for httpx's.
        http_client: A caller's client. Not together with `transport`.

    Raises:
        InvalidRequest: An argument is invalid.

    Attributes:
        base_url: Where the requests go.
        in_use: Makes the context of each call, poller and dispatcher, in which the connections are not closed as idle.
    """

    in_use: Callable[[], AbstractAsyncContextManager[object]] = nullcontext

    def __init__(
        self, base_url: str, transport: HTTPTransport | None = None, http_client: HTTPClient | None = None
    ) -> None:
        self.base_url: str = check_base_url(base_url)
        self._closed = False
        self._needs_asyncio = transport == "aiohttp"
        self._has_own_pool = http_client is None and not hasattr(transport, "handle_async_request")
        self._sender: _Sender
        if http_client is not None:
            if transport is not None:
                raise InvalidRequest("http_client and transport cannot be used together", argument="http_client")
            if not all(hasattr(http_client, name) for name in ("build_request", "aclose")):  # `Client` has one of them
                raise refuse("http_client", "an httpx.AsyncClient, or one with its interface", http_client)
            self._sender = _ClientSender(http_client)
        elif transport == "aiohttp":
            require_aiohttp()
            self._sender = _TransportSender(None, self.base_url, aiohttp=True)
        elif transport is None or hasattr(transport, "handle_async_request"):
            self._sender = _TransportSender(transport, self.base_url)
        else:
            raise refuse("transport", 'an httpx.AsyncBaseTransport, "aiohttp" or None', transport)

    def check_open(self) -> None:
        """Raise `InvalidRequest` after `aclose`, and inside trio if the pool is aiohttp's."""
        if self._closed:
            raise InvalidRequest("the client is closed", argument="client")
        if self._needs_asyncio and asyncio_loop() is None:
            raise refuse("transport", "None or a transport of yours inside trio: aiohttp runs on asyncio alone")

    def prepare(self) -> None:
        """Open the pool ahead of the first request: imports and certificates take tenths of a second.

        A place under the limit must be used when it is granted. A request that leaves late arrives beside those that
        were granted after it, and the service counts when they arrive.
        """
        if not self._closed:
            with suppress(Exception):  # the request will fail by the same error
                self._sender.prepare()

    async def send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None,
        timeout: float,
        flight: Flight,
        read: Callable[[Answer], T],
    ) -> T:
        """Send one request to a quoted target below the base URL, and note its progress in `flight`.

        Args:
            method: The HTTP method.
            target: Path and query, quoted.
            headers: All headers but those that frame the request.
            content: The body, or None.
            timeout: The longest time for each phase of the request, seconds.
            flight: Its progress.
            read: From the answer to the value; where it makes the flight a suspect, the connection is closed.

        Raises:
            TransportError: No whole answer came back.
            MobileMoneyError: By `read`.
        """
        outer = sys.exception()  # of the caller's, who may pay in an `except` clause
        try:
            url = HiddenText(self.base_url + target)
            outgoing = _Outgoing(method, url, dict(headers), content, timeout, flight, read)
            with callers_code():  # of a transport or a client of the caller's
                answer: T = await self._sender.send(outgoing)
                return answer
        except BaseException as exc:
            if isinstance(exc, MobileMoneyError) or not isinstance(exc, Exception):
                without_frames(exc, outer)
                raise
            peer = route(self.base_url) if self._has_own_pool else urlsplit(self.base_url).netloc
            failed = map_error(exc, flight, peer)
            cause = without_frames(exc, outer)
        # Outside: the rest of the cause must not come back as the context.
        raise failed from cause

    async def close_idle(self) -> None:
        """Close the idle connections of our own pool, whatever fails in it. The next request opens new ones."""
        await shielded(lambda: self._sender.aclose(is_resting=True), timeout=_CLOSE_TIMEOUT, ignored=Exception)

    async def aclose(self) -> None:
        """Close the connections of our own pool. A second call does nothing."""
        self._closed = True
        await shielded(self._sender.aclose, timeout=_CLOSE_TIMEOUT)


async def _read(response: httpx.Response, outgoing: _Outgoing) -> Any:
    """Return the value of an answer, and give its connection back to the pool, which closes that of a suspect."""
    flight = outgoing.flight
    try:
        body = await read_body(response)
        flight.is_suspect = _holds_more(response)
        headers = response.headers
        answer = Answer(
            status_code=response.status_code,
            content_type=headers.get("content-type"),
            retry_after=headers.get("retry-after"),
            date=headers.get("date"),
            body=body,
        )
        try:
            value = outgoing.read(answer)
        finally:
            if flight.is_suspect:
                _end_connection(response)
        with suppress(Exception):  # the answer is there
            await response.aclose()
    except BaseException:
        # Cancelled or broken: give the connection back to the pool, however often it is cancelled. Errors of that are
        # dropped: the first error is the one to report.
        await shielded(response.aclose, timeout=_CLOSE_TIMEOUT, ignored=Exception)
        raise
    return value


def _holds_more(response: httpx.Response) -> bool:
    """Return whether more came with an answer, which httpcore would take for that to the next request.

    An error names no payment: one answer too many could refuse the next create, or have it sent again. Where it comes
    later, httpcore itself closes the connection; of aiohttp's, `transport_pool` has those closed. A connection on which
    the server has ended TLS is ended here, since this look has read what would show it to the pool.
    """
    if response.extensions.get("http_version") == b"HTTP/2":
        return False
    network: Any = response.extensions.get("network_stream")
    with suppress(Exception):  # no TLS, or, as it should be, nothing to read
        if network not in _ssl_objects:  # anyio asks the socket for much more, whatever it is asked for
            _ssl_objects[network] = network.get_extra_info("ssl_object")
        if _ssl_objects[network].read(1):
            return True
        _end_connection(response)  # the server has ended TLS on it, perhaps not TCP
    stream: Any = response.stream
    for _ in range(4):  # one around the other, the last of them httpcore's; there is no public way to its parser
        stream = getattr(stream, "_httpcore_stream", None) or getattr(stream, "_stream", stream)
    state = getattr(getattr(stream, "_connection", None), "_h11_state", None)
    rest: Any = getattr(state, "trailing_data", None)
    if rest is None:
        if (name := library(type(network))) in _PARSED:
            _warn_of_names(name)
        return False
    return bool(rest[0])


@functools.cache
def _warn_of_names(name: str) -> None:
    """Warn once in a process that a release of a library hides its parser."""
    logger.warning(
        "this release of %s does not show what came with an answer: an answer too many is noticed later, or not; "
        "install one that mobilemoney-async has been tested with",
        name,
    )


def _end_connection(response: httpx.Response) -> None:
    """End a connection that may give another's answer next, before the pool has it back: it then reads as ended."""
    # One of HTTP/2 is shared, and does not mistake one answer for another.
    if response.extensions.get("http_version") != b"HTTP/2":
        stream: Any = response.extensions.get("network_stream")
        with suppress(Exception):  # not httpx's own, or it has ended
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _drop_our_calls(record: logging.LogRecord) -> bool:
    """Keep a client's INFO line with the whole URL out of the logs, for our calls only."""
    return not _in_our_call.get()
