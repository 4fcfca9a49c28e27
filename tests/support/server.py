"""A scriptable HTTP/1.1 server on loopback, for what goes wrong on a real wire.

It runs in the test's own loop, on asyncio and on trio, also in virtual time::

    async def handler(request: Request) -> Reply:
        await request.read()
        return Close()                       # sent, and no answer: did it happen?

    async with serve(handler) as server:
        ...                                  # talk to server.base_url
        assert len(server.requests) == 1     # one, even if only its head arrived

Each connection is one task over one non-blocking socket: a stream of asyncio's would always say goodbye (FIN) before
it resets. h11 reads the requests; answers are written as the test wants them, since h11 refuses to break HTTP.
"""

import http.client
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import anyio
import attrs
import h11
from anyio.abc import TaskGroup

_CHUNK = 65_536


class _ClientGoneError(Exception):
    """The client closed or reset its connection before the end of a request."""


@attrs.frozen
class Response:
    """An answer.

    Attributes:
        status: HTTP status code.
        body: The whole body.
        headers: Headers beside `content-length`. A `content-length` given here replaces the true one.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def json(cls, content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Self:
        """Return an answer with a JSON body."""
        return cls(status, json.dumps(content).encode(), {"content-type": "application/json", **(headers or {})})

    @classmethod
    def html(cls, status: int = 502, text: str = "<html><h1>Bad Gateway</h1></html>") -> Self:
        """Return what a proxy in front of the service answers."""
        return cls(status, text.encode(), {"content-type": "text/html"})

    def to_bytes(self) -> bytes:
        """Return the answer as it goes over the wire."""
        phrase = http.client.responses.get(self.status, "Unknown")
        headers = {"content-length": str(len(self.body)), **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} {phrase}\r\n{head}\r\n".encode() + self.body


@attrs.frozen
class Raw:
    """Send these bytes, whatever they are, then close."""

    data: bytes


@attrs.frozen
class Cut:
    """Send the first `after` bytes of an answer (head included), then close, or reset."""

    response: Response
    after: int
    reset: bool = False


@attrs.frozen
class Trickle:
    """Send an answer byte by byte, or in pieces of some bytes, with a pause, in seconds, before each."""

    response: Response
    pause: float
    size: int = 1


@attrs.frozen
class Close:
    """Close without an answer.

    Attributes:
        read: Read the whole request first. False leaves the body unread, of which the client may learn while it sends.
        reset: Reset the connection (RST) instead of closing it (FIN).
    """

    read: bool = True
    reset: bool = False


@attrs.frozen
class NeverAnswer:
    """Read the request and say nothing until the client leaves."""


Reply = Response | Raw | Cut | Trickle | Close | NeverAnswer


@attrs.define(eq=False)
class Request:
    """One request, recorded as soon as its head has arrived.

    Attributes:
        method: The method.
        target: The raw target: path and query as the client quoted them.
        headers: Names in lower case, in the order of arrival.
        body: What has arrived of the body.
        complete: Whether the whole body has arrived.
    """

    method: str
    target: str
    headers: list[tuple[str, str]]
    _read_more: Callable[[], Awaitable[bytes | None]] = attrs.field(repr=False)
    body: bytes = b""
    complete: bool = False

    async def read(self) -> bytes:
        """Read the rest of the body and return the whole."""
        while not self.complete:
            more = await self._read_more()
            if more is None:
                self.complete = True
            else:
                self.body += more
        return self.body

    def header(self, name: str) -> str | None:
        """Return the first header of this name (in lower case)."""
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        """Return what the body that has arrived says."""
        return json.loads(self.body)


Handler = Callable[[Request], Awaitable[Reply]]


@attrs.define(eq=False)
class Server:
    """A running server.

    Attributes:
        base_url: What a client takes as its base URL; ends in `/v1`.
        port: The TCP port on 127.0.0.1.
        requests: Every request of which the head arrived, oldest first.
        connections: How many connections have been accepted.
    """

    port: int
    requests: list[Request] = attrs.field(factory=list)
    connections: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@attrs.define(eq=False)
class _Connection:
    """One accepted socket: bytes in, requests out, answers back."""

    sock: socket.socket
    parser: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.SERVER))

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                sent = self.sock.send(view)
            except BlockingIOError:
                await anyio.wait_writable(self.sock)
            except ConnectionError as exc:
                raise _ClientGoneError from exc
            else:
                view = view[sent:]

    async def receive(self) -> bytes:
        while True:
            try:
                return self.sock.recv(_CHUNK)
            except BlockingIOError:
                await anyio.wait_readable(self.sock)
            except ConnectionError as exc:
                raise _ClientGoneError from exc

    async def next_event(self) -> h11.Event:
        """Return the next complete piece of the current request.

        Raises:
            _ClientGoneError: The connection ended inside a request, or what came is no HTTP.
        """
        try:
            while (event := self.parser.next_event()) is h11.NEED_DATA:
                self.parser.receive_data(await self.receive())
        except h11.RemoteProtocolError as exc:
            raise _ClientGoneError from exc
        if not isinstance(event, h11.Event):
            raise _ClientGoneError
        return event

    async def next_request(self) -> Request | None:
        """Return the next request when its head has arrived, or None if the client closed instead.

        The previous request must have been read to its end.
        """
        # h11 would have to see our answers before it goes on, but they may be no HTTP at all: each request has its own.
        rest, closed = self.parser.trailing_data
        self.parser = h11.Connection(h11.SERVER)
        if rest or closed:
            self.parser.receive_data(rest)
        head = await self.next_event()
        if not isinstance(head, h11.Request):
            return None
        return Request(
            method=head.method.decode(),
            target=head.target.decode(),
            headers=[(name.decode(), value.decode()) for name, value in head.headers],
            read_more=self.more_body,
        )

    async def more_body(self) -> bytes | None:
        event = await self.next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def close(self, *, reset: bool) -> None:
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


async def _carry_out(reply: Reply, request: Request, connection: _Connection) -> bool:
    """Do to the connection what the handler wants; return whether it can serve another request."""
    if not isinstance(reply, Close) or reply.read:
        await request.read()
    match reply:
        case Response():
            await connection.send(reply.to_bytes())
            return reply.headers.get("connection") != "close"
        case Trickle(response, pause, size):
            answer = response.to_bytes()
            for start in range(0, len(answer), size):
                await anyio.sleep(pause)
                await connection.send(answer[start : start + size])
            return True
        case Raw(data):
            await connection.send(data)
        case Cut(response, after, _):
            await connection.send(response.to_bytes()[:after])
        case NeverAnswer():
            while await connection.receive():
                pass
        case Close():
            pass
    return False


async def _converse(sock: socket.socket, server: Server, handler: Handler) -> None:
    """Serve one connection until one side ends it."""
    connection = _Connection(sock)
    reset = False
    try:
        keep = True
        while keep and (request := await connection.next_request()):
            server.requests.append(request)
            reply = await handler(request)
            keep = await _carry_out(reply, request, connection)
            reset = isinstance(reply, Close | Cut) and reply.reset
    except _ClientGoneError:
        pass  # What had arrived is recorded; the test decides what it means.
    finally:
        connection.close(reset=reset)


@contextmanager
def _single_error_unwrapped() -> Iterator[None]:
    """Let the one error of a task group out as itself, so that a failed assertion reads as such."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        (error,) = group.exceptions
        raise error from error.__cause__


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[Server]:
    """Serve on a free port of 127.0.0.1 for as long as the context lasts.

    Args:
        handler: Is called with each request when its head has arrived, and says what happens to it. It may read the
            body (`await request.read()`) and wait (`await anyio.sleep(5)`). What it raises ends the context.

    Yields:
        The running server.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        server = Server(port=listener.getsockname()[1])

        async def accept(tasks: TaskGroup) -> None:
            while True:
                await anyio.wait_readable(listener)
                sock, _ = listener.accept()
                sock.setblocking(False)
                # With Nagle's algorithm a last short segment waits up to 40 ms of real time for an ACK.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.connections += 1
                tasks.start_soon(_converse, sock, server, handler)

        with _single_error_unwrapped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(accept, tasks)
                yield server
                tasks.cancel_scope.cancel()
