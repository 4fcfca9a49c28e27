"""The in-process front fails as a real socket does, after the same waits."""

from collections.abc import Callable, Iterator

import anyio
import httpx
import pytest

from mobilemoney_async.sandbox import Choices, Sandbox, faults
from mobilemoney_async.sandbox.faults import Fault
from tests.sandbox.service import START, STUCK, http

BODY = {"phone_number": STUCK, "amount": "1"}


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(now=START, choices=Choices(rate_limit=None))


@pytest.mark.parametrize(
    ("fault", "error", "after", "processed"),
    [
        (faults.refused(), httpx.ConnectError, 0.0, False),
        (faults.drop(processed=False), httpx.RemoteProtocolError, 0.0, False),
        (faults.drop(processed=True), httpx.RemoteProtocolError, 0.0, True),
        (faults.drop(processed=False, reset=True), httpx.ReadError, 0.0, False),
        (faults.drop(processed=True, reset=True), httpx.ReadError, 0.0, True),
        (faults.lost(processed=False), httpx.ReadTimeout, 7.0, False),
        (faults.lost(processed=True), httpx.ReadTimeout, 7.0, True),
        (faults.truncated(), httpx.RemoteProtocolError, 0.0, True),
        (faults.latency(7.5), httpx.ReadTimeout, 7.0, True),
    ],
)
async def test_failures(
    sandbox: Sandbox, fault: Fault, error: type[httpx.HTTPError], after: float, processed: bool
) -> None:
    sandbox.script(fault)
    async with http(sandbox, timeout=7.0) as client:
        start = anyio.current_time()
        with pytest.raises(error) as failure:
            await client.post("/payment-service/airtel/c2b", json=BODY)
        assert anyio.current_time() - start == after
    assert failure.value.request.method == "POST"
    assert len(sandbox.transactions) == processed


def in_process(sandbox: Sandbox) -> httpx.AsyncClient:
    return http(sandbox, timeout=7.0)


def over_asgi(sandbox: Sandbox) -> httpx.AsyncClient:
    return http(sandbox, transport=httpx.ASGITransport(sandbox.app))


fronts = pytest.mark.parametrize("front", [in_process, over_asgi])


@fronts
async def test_answers_take_their_time(sandbox: Sandbox, front: Callable[[Sandbox], httpx.AsyncClient]) -> None:
    sandbox.script(faults.latency(6.5))
    async with front(sandbox) as client:
        start = anyio.current_time()
        answer = await client.get("/user-service/profile")
        assert anyio.current_time() - start == 6.5
    assert answer.headers["content-type"] == "application/json"
    assert answer.http_version == "HTTP/1.1"


async def test_without_a_time_out_a_lost_answer_is_waited_for_for_ever(sandbox: Sandbox) -> None:
    sandbox.script(faults.latency(59.0))
    sandbox.script(faults.lost(processed=True))
    async with http(sandbox, timeout=None) as client:
        assert (await client.get("/user-service/profile")).status_code == 200
        with anyio.move_on_after(10_000) as scope:
            await client.get("/user-service/profile")
    assert scope.cancelled_caught


async def test_a_bare_request_has_the_time_out_of_httpx(sandbox: Sandbox) -> None:
    sandbox.script(faults.lost(processed=True))
    request = httpx.Request("GET", sandbox.base_url + "/user-service/profile")
    start = anyio.current_time()
    with pytest.raises(httpx.ReadTimeout):
        await sandbox.transport().handle_async_request(request)
    assert anyio.current_time() - start == 5.0


async def test_a_call_cancelled_beforehand_has_no_effect(sandbox: Sandbox) -> None:
    async with http(sandbox, timeout=7.0) as client:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.post("/payment-service/airtel/c2b", json=BODY)
    assert scope.cancelled_caught
    assert not sandbox.requests.total


async def test_a_call_cancelled_while_it_waits_has_taken_effect(sandbox: Sandbox) -> None:
    sandbox.script(faults.latency(3))
    async with http(sandbox, timeout=7.0) as client:
        with anyio.move_on_after(1):
            await client.post("/payment-service/airtel/c2b", json=BODY)
    assert len(sandbox.transactions) == 1


@fronts
async def test_queries_paths_and_streamed_bodies_arrive(
    sandbox: Sandbox, front: Callable[[Sandbox], httpx.AsyncClient]
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"phone_number":"+2556810'
        yield b'00001","amount":"5","external_id":"a/b c+d"}'

    async def stream() -> object:
        for chunk in chunks():
            yield chunk

    async with front(sandbox) as client:
        headers = {"content-type": "application/json"}
        created = await client.post("/payment-service/airtel/c2b", content=stream(), headers=headers)  # type: ignore[arg-type]
        assert created.status_code == 200
        found = await client.get("/payment-service/transaction", params={"external_id": "a/b c+d"})
        assert found.json()["transaction"]["amount"] == "5"
        assert (await client.get("/payment-service/transaction/a%2Fb")).json()["error_code"] == "INVALID_TRANSACTION_ID"
