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

pytestmark = pytest.mark.anyio

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

    (request,) = server.requests
    assert request.body == b"half"
    assert not request.complete


@pytest.mark.parametrize("data", [b"", b"POST /pay HT", b"\x00\xff\r\n\r\n"])
async def test_records_nothing_when_no_head_arrives(data: bytes) -> None:
    async with serve(always(ANSWER)) as server:
        async with await say(server, data) as stream:
            await stream.send_eof()
            assert await until_eof(stream) == b""

    assert server.requests == []
    assert server.connections == 1


async def test_closes_without_an_answer_after_the_whole_request() -> None:
    async with serve(always(Close())) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(server)

    assert [request.complete for request in server.requests] == [True]


async def test_resets_without_an_answer() -> None:
    async with serve(always(Close(reset=True))) as server:
        with pytest.raises(httpx.ReadError):
            await post(server)

    assert [request.complete for request in server.requests] == [True]


async def test_closes_before_it_reads_the_body() -> None:
    async with serve(always(Close(read=False))) as server:
        async with await say(server, b"POST /pay HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n") as stream:
            assert await until_eof(stream) == b""

    assert [(request.body, request.complete) for request in server.requests] == [(b"", False)]


@pytest.mark.parametrize(("reset", "error"), [(True, httpx.ReadError), (False, httpx.RemoteProtocolError)])
@pytest.mark.parametrize("after", [5, len(ANSWER.to_bytes()) - 3])
async def test_breaks_off_inside_the_head_or_the_body(after: int, *, reset: bool, error: type[Exception]) -> None:
    async with serve(always(Cut(ANSWER, after=after, reset=reset))) as server:
        with pytest.raises(error):
            await post(server)


async def test_lies_about_the_length() -> None:
    async with serve(always(Response(body=b"{}", headers={"content-length": "99", "connection": "close"}))) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(server)


async def test_sends_what_is_no_http() -> None:
    async with serve(always(Raw(b"SSH-2.0-OpenSSH\r\n"))) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(server)


async def test_sends_html() -> None:
    async with serve(always(Response.html())) as server:
        response = await post(server)

    assert (response.status_code, response.headers["content-type"]) == (502, "text/html")


async def test_never_answers() -> None:
    async with serve(always(NeverAnswer())) as server:
        start = anyio.current_time()
        with pytest.raises(httpx.ReadTimeout):
            await post(server, timeout=20)
        assert anyio.current_time() - start == pytest.approx(20)

    assert [request.complete for request in server.requests] == [True]


async def test_answers_slowly_without_tripping_a_time_out_between_two_bytes() -> None:
    async with serve(always(Trickle(ANSWER, pause=2))) as server:
        start = anyio.current_time()
        response = await post(server, timeout=5)
        assert anyio.current_time() - start == pytest.approx(2 * len(ANSWER.to_bytes()))

    assert response.json() == {"status": "success"}


async def test_survives_clients_that_leave_in_the_middle_of_an_answer() -> None:
    async with serve(always(Trickle(ANSWER, pause=2))) as server:
        with pytest.raises(httpx.ReadTimeout):
            await post(server, timeout=1)
        assert (await post(server)).status_code == 200


@pytest.mark.slow
@pytest.mark.real_time
async def test_moves_bodies_larger_than_the_socket_buffers() -> None:
    large = bytes(20_000_000)

    async def handler(request: Request) -> Reply:
        return Response(body=await request.read())

    async with serve(handler) as server, httpx.AsyncClient(timeout=240) as client:
        assert (await client.post(server.base_url, content=large)).content == large


async def test_an_error_in_the_handler_fails_the_test_as_itself() -> None:
    async def handler(request: Request) -> Reply:
        raise LookupError(request.target)

    with pytest.raises(LookupError, match="/v1/pay"):
        async with serve(handler) as server:
            await post(server)


async def test_several_errors_stay_together() -> None:
    async def handler(request: Request) -> Reply:
        raise LookupError

    with pytest.raises(BaseExceptionGroup) as caught:
        async with serve(handler) as server:
            with pytest.raises(httpx.HTTPError):
                try:
                    await post(server)
                finally:
                    raise ValueError
    assert caught.group_contains(LookupError)
    assert caught.group_contains(ValueError)


async def test_is_gone_afterwards() -> None:
    async with serve(always(ANSWER)) as server:
        pass

    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", server.port))
