"""Answers too many on a connection that is kept alive: none of them is believed, and the connection is closed."""

import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import attrs
import pytest
from anyio.abc import SocketAttribute, SocketStream

from mobilemoney_async import AsyncClient, LoginAuth, OutcomeUnknown, PermissionDenied, RetryPolicy, UnexpectedResponse
from mobilemoney_async.calls import transport, transport_pool
from tests.calls.ways import WAYS, connect
from tests.contract import samples
from tests.support.certificates import certificate
from tests.support.fakes import EMAIL, PASSWORD, PHONE_NUMBER, refusal
from tests.support.server import Request, Response, serve

OTHER = {"id": "tx-OTHER", "reference": "r-OTHER", "external_id": "o-OTHER", "status": "SUCCESS", "amount": "250"}


@attrs.frozen
class Surplus(Response):
    """An answer, and one more in the same segment."""

    more: Response = attrs.field(factory=Response)

    def to_bytes(self) -> bytes:
        return super().to_bytes() + self.more.to_bytes()


def right(request: Request) -> Response:
    """Return the answer to a request, by its target and body."""
    url = urlsplit(request.target)
    query = {name: value for name, (value,) in parse_qs(url.query).items()}
    match url.path.split("/")[3:]:
        case ["login"]:
            return Response.json(samples.login(user={"id": 1, "email": EMAIL.upper()}))
        case ["airtel", _]:
            body = request.json()
            return Response.json(samples.acknowledgement(**body, transaction_id="tx-MINE"))
        case ["transactions"]:
            page = samples.pagination(current_page=int(query["page"]), total_pages=9)
            return Response.json(samples.page(samples.transaction(id=f"tx-{query['page']}")) | {"pagination": page})
        case ["transaction"]:
            return Response.json(samples.found(**query))
        case [*_, name]:
            known = OTHER if name == OTHER["id"] else {"id": name}
            return Response.json(samples.found(**known))
    raise AssertionError(request.target)


def surplus(more: Response, *, times: int = 1) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of right answers, the first of which bring one too many."""
    left = [times]

    async def answer(request: Request) -> Response:
        await request.read()
        reply = right(request)
        if left[0]:
            left[0] -= 1
            return Surplus(reply.status, reply.body, reply.headers, more)
        return reply

    return answer


LOOKUPS: dict[str, tuple[Callable[[AsyncClient], Any], Callable[[Any], bool]]] = {
    "get": (lambda c: c.transactions.get("tx-MINE"), lambda found: found.id == "tx-MINE"),
    "reference": (lambda c: c.transactions.get_by_reference("r-MINE"), lambda found: found.reference == "r-MINE"),
    "external id": (
        lambda c: c.transactions.get_by_external_id("o-MINE"),
        lambda found: found.external_id == "o-MINE",
    ),
    "wait": (lambda c: c.transactions.wait("tx-MINE", timeout=30), lambda found: found.id == "tx-MINE"),
    "page": (lambda c: c.transactions.page(3), lambda page: page.transactions[0].id == "tx-3"),
}


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("more", ["lookup", "page", "error", "html"])
async def test_a_lookup_is_made_again_on_another_connection(way: str, name: str, more: str) -> None:
    """A surplus answer about somebody else's payment shifts nothing: you get what you asked for."""
    late = {
        "lookup": Response.json(samples.found(**OTHER)),
        "page": Response.json(samples.page(samples.transaction(**OTHER)) | {"pagination": samples.pagination()}),
        "error": Response.json({"hello": "stranger"}),
        "html": Response.html(200),
    }[more]
    act, is_right = LOOKUPS[name]

    async def answer(request: Request) -> Response:
        if name == "wait" and len(server.requests) > 1:
            await request.read()
            return Response.json(samples.found(id="tx-MINE", status="SUCCESS"))
        return await surplus_once(request)

    surplus_once = surplus(late)
    async with serve(answer) as server, connect(way, server.base_url, retry=RetryPolicy(first_delay=0)) as client:
        await client.transactions.get("tx-0")
        assert is_right(await act(client))
        assert is_right(await act(client))
        assert server.connections == 2


@pytest.mark.parametrize("way", [each for each in WAYS if each != "aiohttp"])
async def test_a_refusal_with_an_acknowledgement_behind_it_proves_nothing(way: str) -> None:
    """The payment may be made: it is not sent again. aiohttp does not show that there is more."""
    made: list[Any] = []

    async def answer(request: Request) -> Response:
        made.append(json.loads(await request.read()))
        reply = refusal("RATE_LIMIT_EXCEEDED", 429)
        return Surplus(reply.status, reply.body, reply.headers, right(request))

    async with serve(answer) as server, connect(way, server.base_url, retry=RetryPolicy(first_delay=0)) as client:
        with pytest.raises(OutcomeUnknown, match="more than one answer"):
            await client.disbursements.create(PHONE_NUMBER, 1000)
    assert len(made) == 1


async def test_each_of_many_surplus_answers_costs_one_connection(way: str) -> None:
    """The shift does not last: every connection that brings one answer too many is closed at its next answer."""
    other = Response.json(samples.found(**OTHER))
    async with (
        serve(surplus(other, times=1000)) as server,
        connect(way, server.base_url, retry=RetryPolicy(first_delay=0)) as client,
    ):
        for number in range(6):
            assert (await client.transactions.get(f"tx-{number}")).id == f"tx-{number}"


async def test_an_answer_that_stays_wrong_is_an_unexpected_response(way: str) -> None:
    """A service that answers with another transaction each time is not believed, and its error names the field."""

    async def answer(request: Request) -> Response:
        await request.read()
        return Response.json(samples.found(**OTHER))

    async with serve(answer) as server, connect(way, server.base_url, retry=RetryPolicy(first_delay=0)) as client:
        with pytest.raises(UnexpectedResponse, match="transaction_id"):
            await client.transactions.get("tx-MINE")
        assert server.connections == len(server.requests) == 4


OTHER_ACKNOWLEDGEMENT = samples.acknowledgement(transaction_id="tx-OTHER", amount="250", phone_number="+255680000999")


@pytest.mark.parametrize(
    "more",
    [
        Response.json(OTHER_ACKNOWLEDGEMENT),
        Response.json({"status": "error", "message": "", "error_code": "RATE_LIMIT_EXCEEDED", "retry_after": 0}, 429),
        Response.json({"success": False, "message": "", "error": "token_expired"}, 401),
        Response.json({"success": False, "message": "", "error": "insufficient_permissions"}, 403),
        Response.html(408),
    ],
    ids=["acknowledgement", "rate", "token", "permission", "time-out"],
)
async def test_a_surplus_answer_is_none_to_a_create(way: str, more: Response) -> None:
    """An error names no payment: taken for the create's, it would have it refused, or sent again."""
    async with serve(surplus(more)) as server, connect(way, server.base_url) as client:
        await client.transactions.get("tx-0")
        assert (await client.collections.create(phone_number=PHONE_NUMBER, amount=900)).transaction_id == "tx-MINE"
        assert (await client.transactions.get_by_external_id("o-MINE")).external_id == "o-MINE"
        assert [each.method for each in server.requests].count("POST") == 1
        assert server.connections == 2


async def read_request(receive: Callable[[], Awaitable[bytes]]) -> tuple[str, bytes]:
    """Return the method and the body of the next request."""
    got = b""
    while not (head := re.match(rb"(\w+) (?s:.*?)\r\n\r\n", got)):
        got += await receive()
    length = re.search(rb"(?i)content-length: (\d+)", head[0])
    while len(got) < head.end() + int(length[1] if length else 0):
        got += await receive()
    return head[1].decode(), got[head.end() :]


class TLSConversation:
    """Server's end of a connection over TLS, which chooses the records of a segment."""

    def __init__(self, stream: SocketStream, file: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        self._stream, self._incoming, self._outgoing = stream, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def begin(self) -> None:
        await self._wait_for(self._tls.do_handshake)

    async def read(self) -> tuple[str, bytes]:
        """Return the method and the body of the next request."""
        return await read_request(self._read)

    async def send(self, *pieces: bytes) -> None:
        """Send pieces in one segment, each in a record of its own; an empty one ends the connection in it."""
        for piece in pieces:
            if piece:
                self._tls.write(piece)
            else:
                with suppress(ssl.SSLWantReadError):
                    self._tls.unwrap()
        await self._stream.send(self._outgoing.read())
        if not all(pieces):
            raise anyio.EndOfStream

    async def _read(self) -> bytes:
        piece: bytes = await self._wait_for(partial(self._tls.read, 65_536))
        if not piece:
            raise anyio.EndOfStream
        return piece

    async def _wait_for(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self._stream.send(self._outgoing.read())
                self._incoming.write(await self._stream.receive())


@asynccontextmanager
async def serve_tls(
    file: Path, answer: Callable[[str, bytes], Sequence[bytes]], *, stays: bool = False
) -> AsyncIterator[str]:
    """Serve answers to method and body over TLS, each piece in a record of its own, all of them in one segment.

    With `stays`, TCP is left open where TLS has ended.
    """

    async def converse(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                conversation = TLSConversation(stream, file)
                await conversation.begin()
                while True:
                    await conversation.send(*answer(*await conversation.read()))
            if stays:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        await stream.receive()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, converse)
        yield f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a certificate that clients trust."""
    file = certificate(tmp_path, days=30)
    trusting = ssl.create_default_context(cafile=str(file))
    monkeypatch.setattr(transport_pool, "ssl_context", lambda: trusting)
    return file


async def test_a_surplus_answer_in_a_record_of_its_own(way: str, trusted: Path) -> None:
    """Over TLS it may have arrived without having been read: neither the socket nor the parser shows it."""
    methods: list[str] = []
    rate = {"status": "error", "message": "", "error_code": "RATE_LIMIT_EXCEEDED", "retry_after": 0}

    def answer(method: str, body: bytes) -> Sequence[bytes]:
        methods.append(method)
        if method == "POST":
            made = samples.acknowledgement(**json.loads(body), transaction_id="tx-MINE")
            return [Response.json(made).to_bytes()]
        return [Response.json(samples.found(id="tx-0")).to_bytes(), Response.json(rate, 429).to_bytes()]

    async with serve_tls(trusted, answer) as base_url, connect(way, base_url) as client:
        await client.transactions.get("tx-0")
        await client.collections.create(phone_number=PHONE_NUMBER, amount=900)
    assert methods == ["GET", "POST"]


async def test_the_end_of_a_connection_is_no_surplus_answer(way: str, trusted: Path) -> None:
    """A server may end TLS right behind its answer: a refusal is certain all the same, and a limit waited for."""
    asked: list[str] = []

    def answer(method: str, body: bytes) -> Sequence[bytes]:
        asked.append(method)
        reply = refusal("RATE_LIMIT_EXCEEDED", 429) if len(asked) == 1 else refusal("insufficient_permissions", 403)
        return [attrs.evolve(reply, headers={**reply.headers, "Connection": "close"}).to_bytes(), b""]

    async with (
        serve_tls(trusted, answer) as base_url,
        connect(way, base_url, retry=RetryPolicy(first_delay=0)) as client,
    ):
        with pytest.raises(PermissionDenied) as caught:
            await client.disbursements.create(phone_number=PHONE_NUMBER, amount=900)
    assert caught.value.is_certain
    assert asked == ["POST", "POST"]


async def test_a_create_does_not_go_over_a_connection_that_has_ended(way: str, trusted: Path) -> None:
    """Some servers end TLS behind an answer without a word, and leave TCP open."""

    def answer(method: str, body: bytes) -> Sequence[bytes]:
        if method == "POST":
            made = samples.acknowledgement(**json.loads(body), transaction_id="tx-MINE")
            return [Response.json(made).to_bytes()]
        return [Response.json(samples.found(id="tx-0")).to_bytes(), b""]

    async with serve_tls(trusted, answer, stays=True) as base_url, connect(way, base_url) as client:
        await client.transactions.get("tx-0")
        assert (await client.collections.create(phone_number=PHONE_NUMBER, amount=900)).id == "tx-MINE"


async def test_an_answer_that_nobody_asked_for_is_none_to_the_next_create(way: str) -> None:
    """It comes on the idle connection, which is then closed."""
    made: list[Any] = []

    async def converse(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    _, body = await read_request(stream.receive)
                    made.append(json.loads(body))
                    await stream.send(Response.json(samples.acknowledgement(**made[-1])).to_bytes())
                    if len(made) == 1:
                        await answered.wait()
                        await stream.send(refusal("RATE_LIMIT_EXCEEDED", 429).to_bytes())
                        surplus_sent.set()

    answered, surplus_sent = anyio.Event(), anyio.Event()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, converse)
        base_url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        async with connect(way, base_url, retry=RetryPolicy(first_delay=0)) as client:
            await client.collections.create(phone_number=PHONE_NUMBER, amount=900)
            answered.set()
            await surplus_sent.wait()
            await anyio.wait_all_tasks_blocked()
            again = await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
            assert again.amount == 1000
        tasks.cancel_scope.cancel()
    assert [each["amount"] for each in made] == ["900", "1000"]


async def test_a_surplus_acknowledgement_settles_no_order(way: str) -> None:
    """An order of 900,000 is not settled by a payment of 250: its result is unknown, and it is not sent again."""

    async def answer(request: Request) -> Response:
        await request.read()
        return Response.json(OTHER_ACKNOWLEDGEMENT) if request.method == "POST" else right(request)

    async with serve(answer) as server, connect(way, server.base_url) as client:
        await client.transactions.get("tx-0")
        with pytest.raises(OutcomeUnknown, match="tx-OTHER"):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=900_000)
        assert [each.method for each in server.requests].count("POST") == 1
        assert server.connections == 2


async def test_a_login_of_another_user_is_not_used(way: str) -> None:
    """A token that belongs to another merchant is never sent."""
    tokens: list[str] = []

    async def answer(request: Request) -> Response:
        await request.read()
        if request.target.endswith("/login"):
            tokens.append("theirs" if not tokens else "mine")
            user = {"id": 1, "email": "other@example.com" if len(tokens) == 1 else f" {EMAIL.upper()}"}
            return Response.json(samples.login(access_token=tokens[-1], user=user))
        assert request.header("authorization") == "Bearer mine"
        return right(request)

    async with serve(answer) as server, connect(way, server.base_url, auth=LoginAuth(EMAIL, PASSWORD)) as client:
        await client.transactions.get("tx-MINE")
        assert tokens == ["theirs", "mine"]


@pytest.mark.parametrize("way", ["httpx", "transport", "client", "httpx2", "httpx2 transport"])
@pytest.mark.parametrize("name", ["_httpcore_stream", "_stream", "_connection", "_h11_state", None])
async def test_a_release_that_hides_its_parser_is_said_once(
    way: str, name: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard rests on private names of httpcore: where one has changed, a WARNING says so, and calls go on.

    With the releases that are installed, nothing is said.
    """
    transport._warn_of_names.cache_clear()

    def renamed(value: Any, wanted: str, *default: Any) -> Any:
        return getattr(value, "hidden" if wanted == name else wanted, *default)

    monkeypatch.setattr(transport, "getattr", renamed, raising=False)
    caplog.set_level("WARNING", "mobilemoney_async")
    async with serve(surplus(Response.json({}), times=0)) as server, connect(way, server.base_url) as client:
        for _ in range(3):
            await client.transactions.get("tx-1")
    assert [record.levelname for record in caplog.records] == ([] if name is None else ["WARNING"])
    assert ("httpcore" in caplog.text) is (name is not None)
    transport._warn_of_names.cache_clear()
