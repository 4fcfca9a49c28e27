"""The suite over httpx2: each client of a test sends through an httpx2 transport, which passes the request on.

`nox -s httpx2`, or MOBILEMONEY_TESTS_WIRE=httpx2.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx2

from mobilemoney_async.calls.transport import Wire


class _Body(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """Body of a request or an answer of one library, for the other one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:  # no generator, which complains where a call is left in the middle
        self._chunks = aiter(self._stream)
        return self

    async def __anext__(self) -> bytes:
        with _errors():
            chunk: bytes = await anext(self._chunks)
            return chunk

    async def aclose(self) -> None:
        with _errors():
            await self._stream.aclose()


class Bridge(httpx2.AsyncBaseTransport):
    """Transport of httpx2 over one of httpx."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self.transport: httpx.AsyncBaseTransport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A transport may read either: the content, or the stream, by which ours notices that it is sent.
        passed = httpx.Request(
            request.method,
            str(request.url),
            headers=request.headers.raw,
            content=request.content,
            extensions=request.extensions,
        )
        passed.stream = _Body(request.stream)
        with _errors():
            answer = await self.transport.handle_async_request(passed)
        return httpx2.Response(
            answer.status_code,
            headers=answer.headers.raw,
            stream=_Body(answer.stream),
            extensions=answer.extensions,
        )


@contextmanager
def _errors() -> Iterator[None]:
    """Raise an error of httpx as that of httpx2."""
    try:
        yield
    except httpx.RequestError as exc:
        raise getattr(httpx2, type(exc).__name__)(str(exc)) from exc


def over_httpx2() -> None:
    """Let each client with an httpx transport send through httpx2, for the rest of this process.

    Except in the tests of transports, which are about those that they name.
    """
    plain = Wire.__init__

    def make(wire: Wire, base_url: str, transport: Any = None, http_client: Any = None) -> None:
        is_named = "tests/calls/test_transport.py" in os.environ.get("PYTEST_CURRENT_TEST", "")
        if isinstance(transport, httpx.AsyncBaseTransport) and http_client is None and not is_named:
            transport = Bridge(transport)
        plain(wire, base_url, transport, http_client)

    setattr(Wire, "__init__", make)  # noqa: B010
