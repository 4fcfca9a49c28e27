"""The socket front, over real loopback sockets in real time; no test depends on how long anything takes."""

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

from mobilemoney_async.sandbox import Choices, Sandbox, faults
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.server import MAX_BODY, origin
from mobilemoney_async.testing import run_virtual
from tests.sandbox.service import ORDINARY, SUCCEEDS
from tests.sandbox.service import http as program


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(choices=Choices(rate_limit=None))


def http(sandbox: Sandbox, base_url: str, timeout: httpx.Timeout | float | None = 30.0) -> httpx.AsyncClient:
    return program(sandbox, transport=None, base_url=base_url, timeout=timeout)


@pytest.mark.asyncio
async def test_a_payment_over_a_socket(sandbox: Sandbox) -> None:
    async with sandbox.serve() as base_url, http(sandbox, base_url) as client:
        assert base_url.startswith("http://127.0.0.1:")
        assert base_url.endswith("/v1")
        login = await client.post("/user-service/login", json={"email": sandbox.email, "password": sandbox.password})
        assert login.status_code == 200
        created = await client.post("/payment-service/airtel/c2b", json={"phone_number": SUCCEEDS, "amount": "1000"})
        sandbox.advance(5)
        found = await client.get(f"/payment-service/transaction/{created.json()['transaction_id']}")
        assert found.json()["transaction"]["status"] == "SUCCESS"
        malformed = await client.get("/payment-service/transaction/a%2Fb")
        assert malformed.json()["error_code"] == "INVALID_TRANSACTION_ID"
        sandbox.advance(86_400)
        shown = (await client.get("/user-service/profile")).headers.get_list("date")
        assert [parsedate_to_datetime(date) > datetime.now(UTC) + timedelta(hours=23) for date in shown] == [True]


@pytest.mark.parametrize(
    ("fault", "error", "processed"),
    [
        (faults.refused(), httpx.ReadError, False),
        (faults.drop(processed=False), httpx.RemoteProtocolError, False),
        (faults.drop(processed=True), httpx.RemoteProtocolError, True),
        (faults.drop(processed=True, reset=True), httpx.ReadError, True),
        (faults.truncated(), httpx.RemoteProtocolError, True),
    ],
)
@pytest.mark.asyncio
async def test_broken_connections(
    sandbox: Sandbox, fault: Fault, error: type[httpx.HTTPError], processed: bool
) -> None:
    body = {"phone_number": ORDINARY, "amount": "1"}
    sandbox.script(fault)
    async with sandbox.serve() as base_url, http(sandbox, base_url) as client:
        with pytest.raises(error):
            await client.post("/payment-service/airtel/c2b", json=body)
        assert len(sandbox.transactions) == processed
        assert (await client.post("/payment-service/airtel/c2b", json=body)).status_code == 200


@pytest.mark.asyncio
async def test_a_lost_answer_meets_the_read_timeout(sandbox: Sandbox) -> None:
    sandbox.script(faults.lost(processed=True))
    async with sandbox.serve() as base_url, http(sandbox, base_url, timeout=httpx.Timeout(60, read=0.05)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/user-service/profile")


@pytest.mark.asyncio
async def test_leaving_cuts_the_connections_that_wait(sandbox: Sandbox) -> None:
    """A server with a request that will never be answered stops all the same."""
    sandbox.script(faults.lost(processed=True))
    async with http(sandbox, "", timeout=None) as client:
        async with sandbox.serve() as base_url:
            waiting = asyncio.create_task(client.get(f"{base_url}/user-service/profile"))
            while not sandbox.requests.total:
                await asyncio.sleep(0)
        with pytest.raises(httpx.RemoteProtocolError):
            await waiting
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{base_url}/user-service/profile")


@pytest.mark.asyncio
async def test_a_port_in_use_is_the_callers_error(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        async with sandbox.serve(port=taken.getsockname()[1]):
            pytest.fail("the port is taken")


def test_an_ipv6_address_is_bracketed() -> None:
    assert origin("::1", 80) == "http://[::1]:80"
    assert origin("127.0.0.1", 80) == "http://127.0.0.1:80"


class Stuck:
    """An application that does not notice when its client has left, nor at first that it is cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.ended = False

    async def __call__(self, *args: Any) -> None:
        self.entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.5)
            self.ended = True


def test_an_application_that_does_not_notice_is_cancelled(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving takes seconds at most, whatever a page does, and leaves no task behind."""
    stuck = Stuck()
    monkeypatch.setattr("mobilemoney_async.sandbox.page.app.create_page", lambda _: stuck)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with http(sandbox, "") as client, sandbox.serve() as base_url:
            asking = asyncio.create_task(client.get(base_url.removesuffix("v1")))
            await stuck.entered.wait()
            started = loop.time()
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
        assert stuck.ended
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return loop.time() - started

    assert run_virtual(main) < 3


@pytest.mark.asyncio
async def test_an_error_beside_the_server_is_not_lost(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes out when the server is left, unless the caller has an error of its own."""

    async def fail() -> None:
        raise KeyError("beside")

    monkeypatch.setattr(sandbox.callbacks, "run", fail)
    with pytest.raises(KeyError, match="beside"):
        async with sandbox.serve():
            await asyncio.sleep(0)
    with pytest.raises(KeyError, match="mine"):
        async with sandbox.serve():
            await asyncio.sleep(0)
            raise KeyError("mine")


def test_it_runs_in_virtual_time_too(sandbox: Sandbox) -> None:
    async def main() -> list[str]:
        async with sandbox.serve() as base_url, http(sandbox, base_url) as client:
            body = {"phone_number": SUCCEEDS, "amount": "1"}
            created = (await client.post("/payment-service/airtel/c2b", json=body)).json()
            states = []
            for _ in range(3):
                await asyncio.sleep(2.5)
                found = await client.get(f"/payment-service/transaction/{created['transaction_id']}")
                states.append(found.json()["transaction"]["status"])
            return states

    assert run_virtual(main) == ["PENDING", "SUCCESS", "SUCCESS"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("[::1]:{port}", 200),
        ("shop.localhost", 200),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.1.5:{port}", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
@pytest.mark.asyncio
async def test_a_website_cannot_pay_by_a_name_of_its_own(sandbox: Sandbox, host: str, status: int) -> None:
    """The served API answers under loopback names only: a foreign name that resolves here gets 403, with no effect."""
    body = {"phone_number": ORDINARY, "amount": "1"}
    async with sandbox.serve() as base_url, http(sandbox, base_url) as client:
        port = base_url.removesuffix("/v1").rpartition(":")[2]
        headers = {"Host": host.format(port=port)}
        answer = await client.post("/payment-service/airtel/c2b", json=body, headers=headers)
        assert answer.status_code == status
        assert len(sandbox.transactions) == (status == 200)
        if status == 403:
            assert "loopback" in answer.json()["message"]
            assert not sandbox.requests.total


@pytest.mark.asyncio
async def test_the_host_that_it_is_served_at_is_its_own(sandbox: Sandbox) -> None:
    """On all interfaces it answers under the address of the connection, and the name that was asked for."""
    async with sandbox.serve("0.0.0.0") as base_url, http(sandbox, base_url) as client:
        for host, status in (("0.0.0.0", 200), ("127.0.0.1", 200), ("evil.example", 403)):
            for url in ("/user-service/profile", base_url.removesuffix("/v1")):
                assert (await client.get(url, headers={"Host": host})).status_code == status


@pytest.mark.asyncio
async def test_in_a_test_any_name_does(sandbox: Sandbox) -> None:
    """The ASGI application answers under the base URL of a test."""
    transport = httpx.ASGITransport(sandbox.app)
    async with program(sandbox, transport=transport, base_url="https://pay.example/v1") as client:
        assert (await client.get("/user-service/profile")).status_code == 200


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.asyncio
async def test_a_body_without_end_is_not_read_to_its_end(sandbox: Sandbox, has_length: bool) -> None:
    """A large body is refused while it is read, and its connection closed; the sandbox goes on."""
    async with sandbox.serve() as base_url, http(sandbox, base_url) as client:
        address = base_url.removeprefix("http://").removesuffix("/v1")
        reader, writer = await asyncio.open_connection(*address.split(":"))
        length = b"Content-Length: 1000000000" if has_length else b"Transfer-Encoding: chunked"
        head = (
            b"POST /v1/payment-service/airtel/c2b HTTP/1.1\r\nHost: "
            + address.encode()
            + b"\r\n"
            + length
            + b"\r\n\r\n"
        )
        piece = b" " * 65_536 if has_length else b"10000\r\n" + b" " * 65_536 + b"\r\n"
        sent = 0
        try:
            writer.write(head)
            while not reader.at_eof() and sent < 1_000_000_000:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        except OSError:
            pass
        # What the buffers of two sockets hold at most is far less than the body.
        assert MAX_BODY < sent < 100_000_000
        writer.transport.abort()
        assert sandbox.requests.total == 0
        whole = b'{"phone_number": "%s", "amount": "1"}' % ORDINARY.encode()
        for size, status in ((MAX_BODY, 200), (MAX_BODY + 1, 413)):
            answer = await client.post(
                "/payment-service/airtel/c2b",
                content=whole.ljust(size),
                headers={"Content-Type": "application/json"},
            )
            assert answer.status_code == status
    assert len(sandbox.transactions) == 1
