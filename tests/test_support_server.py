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
    Trickle,
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


async def test_answers_and_records_the_request_as_the_client_wrote_it() -> None:
    async with serve(always(ANSWER)) as server:
        response = await post(server)
    assert response.status_code == 200
    assert response.json() == {"status": "success"}
    (request,) = server.requests
    assert (request.method, request.target) == ("POST", "/v1/pay%2Fment?from=a%20b")
    assert request.header("x-trace") == "1"
    assert request.header("authorization") is None
    assert request.body == BODY
    assert request.json() == {"amount": "1000"}
    assert request.complete


async def test_keeps_a_connection_alive_and_answers_pipelined_requests_in_order() -> None:
    async def handler(request: Request) -> Reply:
        headers = {"connection": "close"} if request.target == "/last" else {}
        return Response(body=request.target.encode() + await request.read(), headers=headers)

    async with serve(handler) as server:
        head = "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        data = head.format("/one") + "1" + head.format("/last") + "2"
        async with await say(server, data.encode()) as stream:
            answer = await until_eof(stream)
    assert answer.index(b"/one1") < answer.index(b"/last2")
    assert server.connections == 1


async def test_records_a_request_whose_body_never_arrives() -> None:
    async with serve(always(ANSWER)) as server:
        async with await say(server, b"POST /pay HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf") as stream:
            while not server.requests:
                await anyio.sleep(0.01)
            await stream.send_eof()
            assert await until_eof(stream) == b""
    assert [(request.body, request.complete) for request in server.requests] == [(b"half", False)]


@pytest.mark.parametrize("data", [b"", b"POST /pay HT", b"\x00\xff\r\n\r\n"])
async def test_records_nothing_when_no_head_arrives(data: bytes) -> None:
    async with serve(always(ANSWER)) as server:
        async with await say(server, data) as stream:
            await stream.send_eof()
            assert await until_eof(stream) == b""
    assert (server.requests, server.connections) == ([], 1)


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


async def test_closes_before_it_reads_the_body() -> None:
    async with serve(always(Close(read=False))) as server:
        async with await say(server, b"POST /pay HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n") as stream:
            assert await until_eof(stream) == b""
    assert [(request.body, request.complete) for request in server.requests] == [(b"", False)]


async def test_answers_slowly_also_after_a_client_that_has_left() -> None:
    """Without tripping a time-out between two bytes."""
    async with serve(always(Trickle(ANSWER, pause=2))) as server:
        with pytest.raises(httpx.ReadTimeout):
            await post(server, timeout=1)
        start = anyio.current_time()
        response = await post(server, timeout=5)
        assert anyio.current_time() - start == pytest.approx(2 * len(ANSWER.to_bytes()))
    assert response.json() == {"status": "success"}


@pytest.mark.slow
@pytest.mark.real_time
async def test_moves_bodies_larger_than_the_socket_buffers() -> None:
    large = bytes(20_000_000)

    async def handler(request: Request) -> Reply:
        return Response(body=await request.read())

    async with serve(handler) as server, httpx.AsyncClient(timeout=240) as client:
        assert (await client.post(server.base_url, content=large)).content == large


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
