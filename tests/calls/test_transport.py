"""The wire: every library's error becomes ours, and a request that may have arrived is never "provably not sent"."""

import asyncio
import builtins
import errno
import gc
import gzip
import inspect
import logging
import re
import socket
import ssl
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import anyio
import httpcore
import httpcore2
import httpx
import httpx2
import httpx_aiohttp
import pytest
import respx
import trio
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_writer import StreamWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    AsyncClient,
    ConnectionFailed,
    InvalidCredentials,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    Priority,
    RateLimiter,
    RateLimitExceeded,
    RequestTimeout,
    RetryPolicy,
    TransportError,
    UnexpectedResponse,
)
from mobilemoney_async.calls import transport as wire
from mobilemoney_async.calls import transport_pool
from mobilemoney_async.calls.transport import Wire
from mobilemoney_async.calls.transport_errors import Flight
from mobilemoney_async.testing import run_virtual
from tests.calls.ways import connect
from tests.support.fakes import (
    BASE_URL,
    PHONE_NUMBER,
    TOKEN,
    FakeTransport,
    acknowledgement,
    look_up,
    make_client,
    pay,
    replies,
    service,
)
from tests.support.scale import examples
from tests.support.server import Close, NeverAnswer, Request, Response, serve

ONCE = RetryPolicy(max_attempts=1)
asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
# httpx leaves its generators in the middle when it cannot decode a body or the body is given up; trio complains.
abandoned_generators = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


async def failure(exc: Exception, *, after_reading: bool = False) -> TransportError:
    """Return our error for an exception of a transport."""

    class Raising(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if after_reading:
                assert isinstance(request.stream, httpx.AsyncByteStream)
                assert [chunk async for chunk in request.stream] == [b"{}"]
            raise exc

    with pytest.raises(TransportError) as caught:
        await send(Wire(BASE_URL, Raising()))
    # One that shows a text, which it need not have from us, is not the cause.
    assert caught.value.__cause__ is (exc if not shown(exc) or isinstance(exc, OSError) else None)
    return caught.value


def shown(exc: BaseException) -> str:
    """Return the text of an exception; some have none without their arguments."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 (any class may raise anything here)
        return ""


async def send(sender: Wire, content: bytes | None = b"{}") -> Any:
    return await sender.send(
        "POST", "/x", headers={}, content=content, timeout=1.0, flight=Flight(), read=lambda answer: answer
    )


# -- the table ---------------------------------------------------------------------------------------------------------

NOT_SENT = {
    "httpx": {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol", "InvalidURL"},
    "httpcore": {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"},
    "aiohttp": {
        "ClientConnectorCertificateError",
        "ClientConnectorDNSError",
        "ClientConnectorError",
        "ClientConnectorSSLError",
        "ClientHttpProxyError",
        "ClientProxyConnectionError",
        "ClientSSLError",
        "ConnectionTimeoutError",
        "UnixClientConnectorError",
        "InvalidURL",
        "InvalidUrlClientError",
        "InvalidUrlRedirectClientError",
    },
    "builtins": {"ConnectionRefusedError"},
    "socket": {"gaierror"},
}
NOT_SENT |= {"httpx2": NOT_SENT["httpx"], "httpcore2": NOT_SENT["httpcore"]}


def exceptions_of(module: ModuleType) -> Iterator[Any]:
    """Return an instance of every exception class that a library exports."""
    for name, cls in sorted(vars(module).items()):
        if not (inspect.isclass(cls) and issubclass(cls, Exception)) or name.startswith("_"):
            continue
        if issubclass(cls, Warning | ExceptionGroup | UnicodeError):
            continue
        # Constructors differ from class to class; only the class of the instance matters.
        yield pytest.param(cls.__new__(cls), id=f"{module.__name__}.{name}")


LIBRARIES = [httpx, httpx2, httpcore, httpcore2, aiohttp, anyio, trio, ssl, socket]
ALL = [param for module in LIBRARIES for param in exceptions_of(module)]
# Without StopIteration, which a coroutine cannot raise.
ALL += [param for param in exceptions_of(builtins) if not isinstance(param.values[0], StopIteration)]


def is_documented_as_not_sent(exc: Exception) -> bool:
    cls = type(exc)
    library = cls.__module__.partition(".")[0]
    if cls is socket.gaierror or cls is ConnectionRefusedError:
        return True
    return cls.__name__ in NOT_SENT.get(library, set())


@pytest.mark.parametrize("exc", ALL)
async def test_every_exception_of_every_library_becomes_ours(exc: Exception) -> None:
    """Only the errors of the table prove that nothing was sent; after any other the service may have the request.

    So it may after each of them once the body was read: a harmless name is no proof then.
    """
    error = await failure(exc)
    assert error.outcome == ("not_sent" if is_documented_as_not_sent(exc) else "unknown")
    assert isinstance(error, RequestTimeout) == ("Timeout" in type(exc).__name__)
    assert str(error).startswith((type(exc).__name__, "cannot connect to "))
    again = type(exc).__new__(type(exc))  # the first has a cause now
    assert (await failure(again, after_reading=True)).outcome == "unknown"


@pytest.mark.parametrize("cls", httpx_aiohttp.transport.AIOHTTP_EXC_MAP, ids=lambda cls: cls.__name__)
async def test_what_httpx_aiohttp_maps_is_judged_by_its_cause(cls: type[Exception]) -> None:
    """httpx-aiohttp calls a lost answer a ConnectTimeout: the cause decides: the request may have arrived."""
    cause = cls.__new__(cls)
    mapped = httpx_aiohttp.transport.AIOHTTP_EXC_MAP[cls]("x")
    mapped.__cause__ = cause
    assert (await failure(mapped)).outcome == ("not_sent" if is_documented_as_not_sent(cause) else "unknown")


@pytest.mark.parametrize("cls", [aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionError])
async def test_a_lost_connection_of_aiohttp_may_have_arrived(cls: type[Exception]) -> None:
    """The three that httpx-aiohttp turns into ConnectTimeout, with the mapping itself."""

    class Lost(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            with httpx_aiohttp.transport.map_aiohttp_exceptions():
                raise cls

    with pytest.raises(TransportError) as caught:
        await send(Wire(BASE_URL, Lost()))
    assert isinstance(caught.value.__cause__, httpx.ConnectTimeout)
    assert caught.value.outcome == "unknown"


@pytest.mark.parametrize(("way", "is_written"), [("ours", False), ("ours", True), ("a caller's", False)])
async def test_a_body_that_our_pool_of_aiohttp_could_not_write_was_not_sent(
    way: str, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take a connection that was just closed. One lost after the write, or a caller's pool, proves nothing."""

    class Closed(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            body = b"".join([part async for part in request.stream])
            nowhere: Any = None
            with httpx_aiohttp.transport.map_aiohttp_exceptions():
                if is_written:
                    raise aiohttp.ClientConnectionResetError("Connection lost")
                await StreamWriter(BaseProtocol(nowhere), nowhere).write(body)
            raise AssertionError

    monkeypatch.setattr(wire, "make_pool", lambda base_url, *, aiohttp: Closed())
    with pytest.raises(TransportError) as caught:
        await send(Wire(BASE_URL, "aiohttp" if way == "ours" else Closed()))
    is_proven = way == "ours" and not is_written
    assert caught.value.outcome == ("not_sent" if is_proven else "unknown")
    assert ("the connection was closed while it began" in str(caught.value)) == is_proven


async def test_the_whole_chain_of_a_refused_connection_is_proof() -> None:
    """httpx from httpcore from the operating system: each means the same, so it was not sent."""
    middle = httpcore.ConnectError("x")
    middle.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "x")
    outer = httpx.ConnectError("x")
    outer.__cause__ = middle
    assert (await failure(outer)).outcome == "not_sent"


async def test_a_name_from_elsewhere_proves_nothing() -> None:
    """A class of another library that happens to be called ConnectError proves nothing."""

    class ConnectError(Exception):
        pass

    assert (await failure(ConnectError("x"))).outcome == "unknown"


async def test_an_error_of_ours_stays_what_it_is() -> None:
    """A transport that speaks our language is believed."""
    said = ConnectionFailed("the sidecar is down", outcome="not_sent")
    with pytest.raises(ConnectionFailed, match="the sidecar is down"):
        await pay(make_client(FakeTransport(lambda sent: said), retry=ONCE))


# New instances: a test that raises one gives it a cause.
any_exception = st.sampled_from([type(param.values[0]) for param in ALL]).map(lambda cls: cls.__new__(cls))


moments = st.sampled_from(["before the body is read", "after", "in mid-answer"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(exc=any_exception, cause=any_exception, moment=moments, call=st.sampled_from([pay, look_up]))
@settings(max_examples=examples(100))
def test_nothing_else_escapes_a_call(backend: Any, exc: Any, cause: Any, moment: str, call: Any) -> None:
    """Whatever a transport raises, before or while it answers, the caller sees one of our errors."""

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"{"
            raise exc from cause

    class Raising(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if moment != "before the body is read":
                await request.aread()
            if moment == "in mid-answer":
                return httpx.Response(200, stream=Body())
            raise exc from cause

    async def main() -> None:
        with pytest.raises(MobileMoneyError):
            await call(make_client(Raising(), retry=ONCE))

    run_virtual(main, backend=backend)


@pytest.mark.parametrize("answer", [None, "text", httpx.Response(200, stream=httpx.AsyncByteStream())])
async def test_a_transport_that_answers_nonsense_breaks_nothing(answer: Any) -> None:
    class Odd(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(OutcomeUnknown):
        await pay(make_client(Odd()))


# -- a caller's transport ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["content", "stream", "aread", "twice"])
async def test_a_transport_may_read_the_body_as_it_likes(way: str) -> None:
    """`request.content`, `request.stream` and `aread()` all give the body, as often as they are asked."""
    bodies: list[bytes] = []

    class Reading(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            stream = request.stream
            assert isinstance(stream, httpx.AsyncByteStream)
            for _ in range(2 if way == "twice" else 1):
                if way == "content":
                    bodies.append(request.content)
                elif way == "aread":
                    bodies.append(await request.aread())
                else:
                    bodies.append(b"".join([chunk async for chunk in stream]))
            response = service(request.url.path)
            return httpx.Response(200, content=response.body)

    await pay(make_client(Reading()))
    assert set(bodies) == {b'{"phone_number":"+255780000789","amount":"1000"}'}


@given(
    base=st.sampled_from(
        ["https://pay.example/v1", "https://PAY.example", "https://x:443/a/../b", "http://[::1]:80/v1/"]
    ),
    target=st.text("/ab.%2F-~_?=&+é ", max_size=12).map("/{}".format),
)
def test_a_url_below_the_base_url_is_that_of_httpx(base: str, target: str) -> None:
    """Whether it is parsed or not: for the pool, as the text that aiohttp takes, and for whoever else asks."""
    base = base.rstrip("/")
    made, url = transport_pool.below(httpx.URL(base), base + target, target), httpx.URL(base + target)
    assert httpx.URL(str(made)) == httpx.URL(made) == made == url
    assert (made.path, made.query, made.copy_with(port=1)) == (url.path, url.query, url.copy_with(port=1))
    assert (made.raw_scheme, made.raw_host, made.port, made.raw_path) == (
        url.raw_scheme,
        url.raw_host,
        url.port,
        url.raw_path,
    )


async def test_an_answer_that_cannot_be_closed_either_tells_of_the_first_error() -> None:
    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"{"
            raise httpx.ReadError("first")

        async def aclose(self) -> None:
            raise RuntimeError("second")

    with pytest.raises(OutcomeUnknown) as caught:
        await pay(make_client(FakeTransport(lambda sent: httpx.Response(200, stream=Body()))))
    assert isinstance(caught.value.__cause__, ConnectionFailed)
    assert isinstance(caught.value.__cause__.__cause__, httpx.ReadError)


async def test_a_whole_body_is_read_before_the_answer_counts() -> None:
    """An answer in pieces is put together."""

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for byte in acknowledgement().body:
                yield bytes([byte])

    await pay(make_client(FakeTransport(lambda sent: httpx.Response(200, stream=Pieces()))))


# -- a caller's client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_callers_client_is_used_and_stays_open(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    """httpx's or httpx2's: our calls go through it without its INFO line; the caller's own keep theirs."""
    caplog.set_level(logging.INFO)
    async with serve(replies()) as server, library.AsyncClient(headers={"x-trace": "1"}) as http_client:
        async with make_client(base_url=server.base_url, http_client=http_client) as client:
            await pay(client)
            await look_up(client)
            assert caplog.records == []
        assert not http_client.is_closed
        await http_client.get(f"{server.base_url}/of-my-own")
        assert [record.name for record in caplog.records] == [library.__name__]
    assert [request.header("x-trace") for request in server.requests] == ["1"] * 3
    assert server.requests[0].header("authorization") == f"Bearer {TOKEN}"
    assert server.requests[0].body == b'{"phone_number":"+255780000789","amount":"1000"}'
    assert server.requests[2].header("authorization") is None


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Close(), ConnectionFailed),
        (Close(reset=True), ConnectionFailed),
        (Close(read=False), ConnectionFailed),
        (Close(read=False, reset=True), ConnectionFailed),
        (NeverAnswer(), RequestTimeout),
        (Response(307, b"", {"location": "/v1/elsewhere"}), UnexpectedResponse),
    ],
)
@pytest.mark.parametrize("used", [False, True])
async def test_by_each_wire_money_is_sent_once(way: str, reply: Any, cause: type[Exception], used: bool) -> None:
    """On a new connection and on one that was used before."""
    async with serve(replies(*[service("")] * used, reply)) as server, connect(way, server.base_url) as client:
        for _ in range(used):
            await client.users.profile()
        with pytest.raises(OutcomeUnknown) as caught:
            await pay(client)
    assert isinstance(caught.value.__cause__, cause)
    assert len(server.requests) == 1 + used


async def test_by_each_wire_a_refused_connection_sent_nothing(way: str) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        async with connect(way, f"http://127.0.0.1:{sock.getsockname()[1]}/v1", retry=ONCE) as client:
            with pytest.raises(ConnectionFailed) as caught:
                await pay(client)
    assert caught.value.outcome == "not_sent"


async def test_by_each_wire_connections_are_used_again(way: str) -> None:
    async with serve(replies()) as server, connect(way, server.base_url) as client:
        for _ in range(3):
            await pay(client)
            await look_up(client)
    assert (len(server.requests), server.connections) == (6, 1)
    assert server.requests[0].body == b'{"phone_number":"+255780000789","amount":"1000"}'
    framing = ("content-length", "transfer-encoding", "content-type")
    assert [[request.header(name) for name in framing] for request in server.requests[:2]] == [
        [str(len(server.requests[0].body)), None, "application/json"],
        [None, None, None],
    ]


async def test_a_url_that_httpx_refuses_is_not_sent() -> None:
    """It is longer than any server takes."""
    async with serve(replies()) as server, make_client(base_url=server.base_url) as client:
        with pytest.raises(MobileMoneyError) as caught:
            await client.request("POST", "/a", params={"q": "1" * 70_000})
    assert (caught.value.outcome, server.requests) == ("not_sent", [])


async def test_a_callers_login_and_cookies_do_not_replace_the_token() -> None:
    """`auth=` of a caller's client is for other services."""
    async with serve(replies()) as server, httpx.AsyncClient(auth=("user", "word")) as http_client:
        await look_up(make_client(base_url=server.base_url, http_client=http_client))
    assert server.requests[0].header("authorization") == f"Bearer {TOKEN}"


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_callers_client_keeps_the_callers_cookies_only(library: Any) -> None:
    """A cookie of the service is not sent again, nor can one that no request may hold stop later calls."""
    reply = Response.json({}, headers={"set-cookie": "a=\xe9; Path=/"})
    async with serve(replies(reply)) as server, library.AsyncClient(cookies={"mine": "1"}) as http_client:
        client = make_client(base_url=server.base_url, http_client=http_client)
        await client.users.profile()
        await client.users.profile()
        http_client.cookies.set("mine", "\xe9")
        with pytest.raises(ConnectionFailed) as caught:
            await pay(client)
    assert [request.header("cookie") for request in server.requests] == ["mine=1"] * 2
    assert caught.value.outcome == "not_sent"


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_the_params_of_a_callers_client_come_on_top_of_ours(library: Any) -> None:
    """A subscription key, say, goes with each request; a name that we use too has our value."""
    async with serve(replies()) as server, library.AsyncClient(params={"key": "7", "limit": "9"}) as http_client:
        client = make_client(base_url=server.base_url, http_client=http_client)
        await client.request("GET", "/a", params={"reference": "a&é", "limit": 2})
        await client.users.profile()
    queries = [parse_qs(urlsplit(request.target).query) for request in server.requests]
    assert queries == [{"key": ["7"], "limit": ["2"], "reference": ["a&é"]}, {"key": ["7"], "limit": ["9"]}]


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_over_a_callers_closed_client_nothing_is_sent(library: Any) -> None:
    """As where a shop that ends closes its own client first: such a payment is not unknown."""
    http_client = library.AsyncClient()
    await http_client.aclose()
    for call in (pay, look_up):
        with pytest.raises(ConnectionFailed, match=r"^http_client is closed; nothing was sent$") as caught:
            await call(make_client(http_client=http_client, retry=ONCE))
        assert caught.value.outcome == "not_sent"


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without httpx-aiohttp the error names the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "httpx_aiohttp", None)
    with pytest.raises(InvalidRequest, match=r"mobilemoney-async\[aiohttp\]"):
        Wire(BASE_URL, "aiohttp")


def test_the_pool_of_aiohttp_is_refused_inside_trio() -> None:
    """Where each request would fail by an error of asyncio's, a read as one that was sent."""

    async def pay() -> None:
        async with make_client("aiohttp"):
            raise AssertionError

    with pytest.raises(InvalidRequest) as caught:
        anyio.run(pay, backend="trio")
    assert caught.value.argument == "transport"


# -- our own pool ------------------------------------------------------------------------------------------------------


class Wrapper:
    """Transport of a caller's that is derived from nothing, around one of a library."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        return await self._inner.handle_async_request(request)


@pytest.mark.parametrize("base", [object, httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport])
@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_transport_of_either_library_may_be_wrapped(library: Any, base: Any) -> None:
    """In a class of the other one, or of none: what is inside cannot be seen."""
    made = type("Made", (Wrapper, base), {})
    async with serve(replies()) as server, library.AsyncHTTPTransport() as inner:
        client = make_client(made(inner), base_url=server.base_url)
        await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
        await client.transactions.get("tx-1")


async def test_no_wire_follows_a_redirect(way: str) -> None:
    """It could carry a token elsewhere, and a payment a second time."""
    elsewhere: list[str] = []

    async def collect(request: Request) -> Response:
        elsewhere.append(request.target)
        return service(request.target)

    for status in (301, 302, 303, 307, 308):
        async with serve(collect) as other:

            async def redirect(request: Request, to: str = other.base_url, status: int = status) -> Response:
                await request.read()
                return Response(status, b"", {"location": f"{to}/collect"})

            async with serve(redirect) as server, connect(way, server.base_url) as client:
                with pytest.raises(OutcomeUnknown):
                    await client.disbursements.create(PHONE_NUMBER, 1000)
                with pytest.raises(UnexpectedResponse):
                    await client.transactions.get("tx-1")
                assert [request.method for request in server.requests].count("POST") == 1
    assert elsewhere == []


@pytest.mark.parametrize("token", ["issued.token-SECRET", "SECRETabc123"])
async def test_an_error_that_quotes_the_request_shows_no_token(way: str, token: str) -> None:
    async def echo(request: Request) -> Response:
        await request.read()
        shown = request.header("authorization") or ""
        return Response.json({"status": "error", "error_code": "X", "message": f"no {shown.split()[1]}, {shown}"}, 400)

    async with serve(echo) as server, connect(way, server.base_url, auth=token) as client:
        with pytest.raises(APIError) as caught:
            await client.collections.create(PHONE_NUMBER, 1000)
    assert "[redacted]" in str(caught.value)
    assert token not in "".join(traceback.format_exception(caught.value))


SECRETIVE: dict[str, Callable[[AsyncClient, str], Awaitable[object]]] = {
    "login": lambda c, secret: c.users.login("a@b.example", secret),
    "one-time password": lambda c, secret: c.users.verify_otp(PHONE_NUMBER, secret),
    "new password": lambda c, secret: c.users.reset_password("a@b.example", "reset-token-1", secret),
    "lookup": lambda c, _: c.transactions.get("tx-1"),
}


@pytest.mark.parametrize("status", [200, 422])
@pytest.mark.parametrize("secret", ["482913", 'hunter "2" hörse'])
@pytest.mark.parametrize("name", SECRETIVE)
async def test_an_error_that_quotes_the_request_shows_no_secret(name: str, secret: str, status: int) -> None:
    """Wherever it stands in the error, and a token under HTTP 200 too."""
    token = "correct-horse-battery"

    async def echo(request: Request) -> Response:
        await request.read()
        quoted = [*(request.json() if request.method == "POST" else {}).values(), request.header("authorization")]
        error = {"success": False, "error": "odd", "message": f"wrong: {quoted[-2:]}", "all": quoted}
        return Response.json(error, status)

    async with serve(echo) as server, make_client(base_url=server.base_url, auth=token) as client:
        with pytest.raises(APIError) as caught:
            await SECRETIVE[name](client, secret)
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert not [each for each in (secret, repr(secret), "reset-token-1", token) if each in shown]


@pytest.mark.parametrize(
    ("body", "kind", "outcome"),
    [
        (b'{"status": "error", "message": "too weak"}', APIError, "refused"),
        (b'{"status": "error", "error_code": "RATE_LIMIT_EXCEEDED", "at": 1764461234}', RateLimitExceeded, "refused"),
        (b'{"success": false, "error": "invalid_credentials", "message": "invalid"}', InvalidCredentials, "refused"),
    ],
)
@pytest.mark.parametrize("secret", ["error", "6446", "invalid", "credentials", "status"])
async def test_a_secret_changes_no_error(secret: str, body: bytes, kind: type[APIError], outcome: str) -> None:
    """Whatever words or digits of the answer it looks like: only the texts of the error are without it."""
    reply = Response(200, body, {"content-type": "application/json"})
    async with serve(replies(*[reply] * 9)) as server, make_client(base_url=server.base_url) as client:
        with pytest.raises(kind) as caught:
            await client.with_options(retry=RetryPolicy(max_attempts=1)).users.verify_otp(PHONE_NUMBER, secret)
    assert (type(caught.value), caught.value.outcome) == (kind, outcome)


@pytest.mark.parametrize("escaped", [r"hunter\/2\u0026x", r"h\u0075nter\/2&x", "hunter/2&x"])
async def test_a_secret_is_hidden_however_json_escapes_it(escaped: str) -> None:
    for body in (f'{{"success": false, "error": "no", "message": "not {escaped}"}}', f'["{escaped}"]'):
        reply = Response(400, body.encode(), {"content-type": "application/json"})
        async with serve(replies(reply)) as server, make_client(base_url=server.base_url) as client:
            with pytest.raises(MobileMoneyError) as caught:
                await client.users.login("a@b.example", "hunter/2&x")
        shown = str(caught.value) + repr(vars(caught.value))
        assert "[redacted]" in shown
        assert not re.search(r"2.{0,6}x", shown)


async def test_the_request_is_framed_once() -> None:
    """One Host and one Content-Length, and no chunks: old servers understand our creates."""
    async with serve(replies()) as server, make_client(base_url=server.base_url) as client:
        await pay(client)
    names = [name for name, _ in server.requests[0].headers]
    assert sorted(names) == [
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
    ]
    assert server.requests[0].header("host") == f"127.0.0.1:{server.port}"


async def test_a_compressed_answer_is_unpacked() -> None:
    answer = acknowledgement()
    packed = Response(200, gzip.compress(answer.body), {**answer.headers, "content-encoding": "gzip"})
    async with serve(replies(packed)) as server, make_client(base_url=server.base_url) as client:
        await pay(client)


@abandoned_generators
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_answer_that_cannot_be_unpacked_is_no_answer(encoding: str) -> None:
    broken = Response(200, b"no gzip at all", {"content-encoding": encoding})
    async with serve(replies(broken)) as server, make_client(base_url=server.base_url) as client:
        with pytest.raises(OutcomeUnknown):
            await pay(client)
        await look_up(client)


@abandoned_generators
@pytest.mark.parametrize("packed", [False, True])
async def test_an_endless_answer_is_cut_off(packed: bool) -> None:
    """More than 1 MiB is no answer of the contract, unpacked or not; it does not fill our memory."""
    body = bytes(1024 * 1024 + 1)
    reply = Response(200, gzip.compress(body), {"content-encoding": "gzip"}) if packed else Response(200, body)
    async with serve(replies(reply)) as server, make_client(base_url=server.base_url, retry=ONCE) as client:
        with pytest.raises(ConnectionFailed, match="larger"):
            await look_up(client)
        await look_up(client)


async def test_what_takes_long_is_done_before_a_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request leaves when the limiter grants it, not after the imports and certificates of its pool."""
    steps: list[str] = []

    class Watched(RateLimiter):
        async def acquire(self, priority: Priority = Priority.LOOKUP, *, front_of_lane: bool = False) -> None:
            steps.append("place")
            await super().acquire(priority, front_of_lane=front_of_lane)

    def make_pool(base_url: str, *, aiohttp: bool) -> httpx.AsyncBaseTransport:
        steps.append("pool")
        return httpx.MockTransport(lambda request: httpx.Response(200, json={"success": True}))

    monkeypatch.setattr(wire, "make_pool", make_pool)
    async with AsyncClient(BASE_URL, auth="token", rate_limiter=Watched()) as client:
        for _ in range(2):
            await client.users.profile()
    assert steps == ["pool", "place", "place"]
    steps.clear()
    async with AsyncClient(BASE_URL, auth="token", rate_limiter=Watched()) as client, client.poller() as poller:
        assert steps == ["pool"]
        poller.track("txn_1")
        await anyio.sleep(5)
    assert steps[:2] == ["pool", "place"]
    assert steps.count("pool") == 1


async def test_a_pool_that_cannot_be_made_is_an_error_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates that cannot be read, for example, are found before the request, and are its error: not sent."""

    def make_pool(base_url: str, *, aiohttp: bool) -> httpx.AsyncBaseTransport:
        raise OSError("no certificates")

    monkeypatch.setattr(wire, "make_pool", make_pool)
    async with AsyncClient(BASE_URL, auth="token", retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(TransportError) as caught:
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
        assert caught.value.outcome == "not_sent"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the first loop's connection, which cannot be closed
@pytest.mark.parametrize("transport", [None, "aiohttp"])
def test_a_client_may_go_on_in_another_loop(transport: Any) -> None:
    """`asyncio.run` twice with one client works, and so does closing it in a third loop."""
    clients: list[AsyncClient] = []

    async def main() -> None:
        async with serve(replies()) as server:
            if not clients:
                clients.append(make_client(transport, base_url=server.base_url))
            clients[0]._pipeline.wire.base_url = server.base_url
            await look_up(clients[0])
            await pay(clients[0])
            assert len(server.requests) == 2

    asyncio.run(main())
    asyncio.run(main())
    asyncio.run(clients[0].aclose())
    clients.clear()
    gc.collect()  # so that the warning about it falls here


# -- proxies -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [("HTTPS_PROXY", "http://"), ("https_proxy", "http://"), ("ALL_PROXY", ""), ("HTTPS_PROXY", "")],
)
@pytest.mark.parametrize("way", ["httpx", "aiohttp"], indirect=True)
async def test_the_environments_proxy_is_honoured(
    way: str, variable: str, scheme: str, clean_environment: pytest.MonkeyPatch
) -> None:
    """As every HTTP client does; a proxy that will not connect has sent nothing on."""

    async def proxy(request: Request) -> Response:
        return Response(403)

    async with serve(proxy) as server:
        clean_environment.setenv(variable, f"{scheme}127.0.0.1:{server.port}")
        async with connect(way, BASE_URL, retry=ONCE) as client:
            with pytest.raises(ConnectionFailed) as caught:
                await pay(client)
    assert caught.value.outcome == "not_sent"
    (request,) = server.requests
    assert (request.method, request.target) == ("CONNECT", "payments.example:443")
    assert request.header("authorization") is None


async def test_there_is_no_proxy_on_loopback_nor_where_the_environment_says_none(
    clean_environment: pytest.MonkeyPatch,
) -> None:
    """NO_PROXY may name a domain, a host, a host with its port, or a whole origin, as httpx reads it."""
    service, other = urlsplit("https://payments.example:8443/v1"), urlsplit("https://payments.test:443/v1")
    assert transport_pool._proxy(service) is None
    clean_environment.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    clean_environment.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    async with serve(replies()) as server, make_client(base_url=server.base_url) as client:
        await look_up(client)
    for each in (".example", "payments.example", "payments.example:8443", "https://payments.example"):
        clean_environment.setenv("NO_PROXY", f"localhost, {each}")
        assert transport_pool._proxy(service) is None, each
        assert transport_pool._proxy(other) is not None, each
    for each in ("payments.example:443", "http://payments.example", "ayments.example"):
        clean_environment.setenv("NO_PROXY", each)
        assert transport_pool._proxy(service) is not None, each


@pytest.mark.parametrize(
    "proxy",
    [
        "socks9://me:hunter2@127.0.0.1:9",
        "socks5://me:hunter2@127.0.0.1:9",
        "http://[::1",
        "http://me:hunt#er2@proxy.example",
        "http://127.0.0.1:99999",
        "me:hunter2@.proxy.example:1",
    ],
)
@pytest.mark.parametrize("way", ["httpx", "aiohttp"], indirect=True)
async def test_a_proxy_that_makes_no_sense_sends_nothing(
    way: str, proxy: str, clean_environment: pytest.MonkeyPatch
) -> None:
    """A mistake in the environment is a connection that failed, named without its password, for reads too."""
    clean_environment.setitem(sys.modules, "socksio", None)
    clean_environment.setenv("HTTPS_PROXY", proxy)
    async with connect(way, BASE_URL, retry=ONCE) as client:
        for call in (pay(client), look_up(client), client.request("POST", "/closings")):
            with pytest.raises(
                ConnectionFailed, match=r"payments\.example: HTTPS_PROXY .*; nothing was sent$"
            ) as caught:
                await call
            assert caught.value.outcome == "not_sent"
            assert "hunt" not in "".join(traceback.format_exception(caught.value))


async def test_certificates_that_cannot_be_read_send_nothing(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their setting is named, too."""
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")  # an older httpx takes its own ones where there is no file
    clean_environment.setattr(transport_pool, "ssl_context", transport_pool.ssl_context.__wrapped__)
    clean_environment.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(ConnectionFailed, match=r"certificates cannot be read .*SSL_CERT_FILE") as caught:
        await look_up(make_client(retry=ONCE))
    assert caught.value.outcome == "not_sent"


# -- aiohttp -----------------------------------------------------------------------------------------------------------


@asyncio_only
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "POST"])
@pytest.mark.parametrize("body", [None, {"amount": "1000"}])
async def test_aiohttp_repeats_nothing_on_its_own(method: str, body: dict[str, str] | None) -> None:
    """aiohttp sends idempotent methods again on a used connection; money must not go twice."""
    async with serve(replies(service(""), Close())) as server:
        async with make_client("aiohttp", base_url=server.base_url) as client:
            await client.users.profile()
            with pytest.raises(OutcomeUnknown):
                await client.request(method, "/refunds/1", json=body, effect="money")
    assert [request.method for request in server.requests] == ["GET", method]


@asyncio_only
async def test_aiohttp_keeps_no_cookies() -> None:
    """No cookie of a load balancer ties one call to another, as with httpx's pool."""
    reply = Response.json({}, headers={"set-cookie": "session=1; Path=/"})
    async with serve(replies(reply)) as server:
        async with make_client("aiohttp", base_url=server.base_url) as client:
            await client.users.profile()
            await client.users.profile()
    assert [request.header("cookie") for request in server.requests] == [None, None]


def test_all_clients_of_a_process_share_their_certificates() -> None:
    """Loading them takes longer than a whole call."""
    assert transport_pool.ssl_context() is transport_pool.ssl_context()


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout])
@pytest.mark.parametrize("lost", [None, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.WriteError])
async def test_a_pool_that_a_test_mocks_fails_as_the_real_one_does(error: type[Exception], lost: Any) -> None:
    """Under respx, which reads the body of a request it does not send, a connection error is one, and is retried.

    A create whose answer is lost is not.
    """
    with respx.mock(base_url=BASE_URL) as routes:
        body = acknowledgement().body
        route = routes.post("/payment-service/airtel/c2b")
        route.mock(side_effect=[error("scripted"), lost("scripted") if lost else httpx.Response(200, content=body)])
        async with AsyncClient(BASE_URL, auth=TOKEN) as client:
            with pytest.raises(OutcomeUnknown) if lost else nullcontext():
                await pay(client)
    assert route.call_count == 2


@pytest.mark.parametrize("library", [None, httpx, httpx2])
@pytest.mark.parametrize("has_body", [True, False])
async def test_a_callers_retries_cannot_make_us_send_twice(library: Any, has_body: bool) -> None:
    """Where a transport or client of a caller's lost an answer and then found no connection, the payment may exist."""
    sent = 0
    made_by = library or httpx

    class Retrying(made_by.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            nonlocal sent
            sent += 1
            async for _ in request.stream:
                pass
            raise made_by.ConnectError("the second time")

    ours: Any = {"http_client": library.AsyncClient(transport=Retrying())} if library else {"transport": Retrying()}
    async with AsyncClient(BASE_URL, auth=TOKEN, **ours) as client:
        with pytest.raises(OutcomeUnknown):
            if has_body:
                await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
            else:
                await client.request("POST", "/payment-service/airtel/refund")
    assert sent == 1
