"""The scriptable server follows a test's script, and records the requests."""

import socket
from collections.abc import Awaitable, Callable

import anyio
import httpx
import pytest
from anyio.abc import SocketStream

from tests.support.server import (
    Close,
    Cut,
    NeverAnswer,
    Raw,
    Reply,
    Request,
    Response,
    Server,
    serve,
)

BODY = b'{"amount":"1000"}'
ANSWER = Response.json({"status": "success"})


def always(reply: Reply) -> Callable[[Request], Awaitable[Reply]]:
    async def handler(request: Request) -> Reply:
        return reply

    return handler


async def post(server: Server, *, timeout: float = 30.0) -> httpx.Response:
    async with httpx.AsyncClient(timeout=timeout) as client:
        return await client.post(f"{server.base_url}/pay%2Fment?from=a%20b", content=BODY, headers={"X-Trace": "1"})


async def say(server: Server, data: bytes) -> SocketStream:
    stream = await anyio.connect_tcp("127.0.0.1", server.port)
    await stream.send(data)
    return stream


async def until_eof(stream: SocketStream) -> bytes:
    data = b""
    try:
        while True:
            data += await stream.receive()
    except anyio.EndOfStream:
        return data


async def test_records_a_request_whose_body_never_arrives() -> None:
    async with serve(always(ANSWER)) as server:
        async with await say(server, b"POST /pay HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf") as stream:
            while not server.requests:
                await anyio.sleep(0.01)
            await stream.send_eof()
            assert await until_eof(stream) == b""
    assert [(request.body, request.complete) for request in server.requests] == [(b"half", False)]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Close(), httpx.RemoteProtocolError),
        (Close(reset=True), httpx.ReadError),
        *((Cut(ANSWER, after), httpx.RemoteProtocolError) for after in (5, len(ANSWER.to_bytes()) - 3)),
        *((Cut(ANSWER, after, reset=True), httpx.ReadError) for after in (5, len(ANSWER.to_bytes()) - 3)),
        (Response(body=b"{}", headers={"content-length": "99", "connection": "close"}), httpx.RemoteProtocolError),
        (Raw(b"SSH-2.0-OpenSSH\r\n"), httpx.RemoteProtocolError),
        (NeverAnswer(), httpx.ReadTimeout),
    ],
)
async def test_takes_the_whole_request_and_answers_wrongly(reply: Reply, error: type[Exception]) -> None:
    async with serve(always(reply)) as server:
        with pytest.raises(error):
            await post(server)
    assert [request.complete for request in server.requests] == [True]


async def test_errors_in_the_handler_fail_the_test() -> None:
    """A single one as itself, several together."""

    async def handler(request: Request) -> Reply:
        raise LookupError(request.target)

    with pytest.raises(LookupError, match="/v1/pay"):
        async with serve(handler) as server:
            await post(server)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with serve(handler) as server:
            try:
                await post(server)
            finally:
                raise ValueError
    assert caught.group_contains(LookupError)
    assert caught.group_contains(ValueError)
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", server.port))
