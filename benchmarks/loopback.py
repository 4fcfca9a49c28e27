"""A server on loopback, in a process of its own and as light as Python allows: the same bytes for every request.

Run as a script it is the server: bodies on its standard input, ports on its standard output, until the input ends.
It imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

_END_OF_HEAD = b"\r\n\r\n"


@contextmanager
def serving(bodies: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Serve each body on a port of its own; give the addresses by the same names.

    Args:
        bodies: JSON, the answer to every request. Requests have no body.
    """
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps([body.decode() for body in bodies.values()]), file=server.stdin, flush=True)
        ports = json.loads(server.stdout.readline())
        try:
            yield {name: f"http://127.0.0.1:{port}" for name, port in zip(bodies, ports, strict=True)}
        finally:
            server.stdin.close()


class _Answering(asyncio.Protocol):
    """Protocol that sends one answer for each request head in the received bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._rest = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        data = self._rest + data
        self._transport.write(self._answer * data.count(_END_OF_HEAD))
        self._rest = data.rpartition(_END_OF_HEAD)[2]


def _answer(body: str) -> bytes:
    payload = body.encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
    return head.encode() + _END_OF_HEAD + payload


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    answers = [_answer(body) for body in json.loads(sys.stdin.readline())]
    servers = [await loop.create_server(partial(_Answering, answer), "127.0.0.1", 0) for answer in answers]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
