"""The ASGI front, without sockets."""

import logging
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from mobilemoney_async.sandbox import Choices, Sandbox, faults
from mobilemoney_async.sandbox.messages import Request
from mobilemoney_async.sandbox.server import CONNECTION, CannotDropError, target
from tests.sandbox.service import ORDINARY, START
from tests.sandbox.test_transport import over_asgi

Messages = list[dict[str, Any]]


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(now=START, choices=Choices(rate_limit=None))


def http_scope(**more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": "/v1/user-service/profile",
        "query_string": b"",
        "headers": [],
        **more,
    }


async def test_each_request_is_logged_in_one_line_without_phone_numbers(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mobilemoney_async.sandbox")
    sandbox.script(faults.latency(0.25))
    async with over_asgi(sandbox) as client:
        await client.get("/payment-service/transaction", params={"external_id": ORDINARY})
        await client.post("/payment-service/airtel/c2b", json={"phone_number": ORDINARY, "amount": "5"})
    lines = [record.getMessage() for record in caplog.records if record.name == "mobilemoney_async.sandbox"]
    assert lines == [
        "GET /v1/payment-service/transaction?external_id=+255 ••• ••• 001 404 250 ms",
        "POST /v1/payment-service/airtel/c2b 200 0 ms",
    ]


def test_phone_numbers_are_masked_wherever_they_stand() -> None:
    request = Request(method="GET", path="/v1/%2B255681000001/x", query={"a": " 255681000001", "b": "12"})
    assert target(request) == "/v1/+255 ••• ••• 001/x?a= 2556 ••• ••• 001&b=12"


async def test_no_web_page_writes_to_the_terminal(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    """An image's address on any page may hold escape sequences, line ends and bidi controls, as long as it likes."""
    caplog.set_level(logging.INFO, "mobilemoney_async.sandbox")
    async with over_asgi(sandbox) as client:
        for text in ("\x1b]0;x\x07\x1b[2J", "a\r\nGET / 200", "\u202e\x9b", "W" * 5_000):
            await client.get("/payment-service/transactions", params={text: text})
    lines = [record.getMessage() for record in caplog.records if record.name == "mobilemoney_async.sandbox"]
    assert len(lines) == 4 and all(line.isprintable() and len(line) < 600 for line in lines), lines


async def test_a_server_that_cannot_drop_connections_is_told_so(sandbox: Sandbox) -> None:
    sandbox.script(faults.drop(processed=True))
    async with over_asgi(sandbox) as client:
        with pytest.raises(CannotDropError, match="closed"):
            await client.get("/user-service/profile")


class Line:
    """Both ends of one ASGI connection."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.incoming = list(messages)
        self.sent: Messages = []
        self.ended: list[bool] = []

    async def receive(self) -> dict[str, Any]:
        await anyio.sleep(1)
        return self.incoming.pop(0)

    async def send(self, message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)

    def end(self, *, reset: bool) -> None:
        self.ended.append(reset)


REQUEST = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


async def test_a_client_that_leaves_before_its_request_is_whole_has_no_effect(sandbox: Sandbox) -> None:
    line = Line({**REQUEST, "more_body": True}, GONE)
    await sandbox.app(http_scope(), line.receive, line.send)
    assert line.sent == []
    assert not sandbox.requests.total


async def test_a_client_that_leaves_early_is_not_waited_for(sandbox: Sandbox) -> None:
    sandbox.script(faults.lost(processed=True))
    line = Line(REQUEST, REQUEST, GONE)
    await sandbox.app(http_scope(), line.receive, line.send)
    assert line.sent == []
    assert anyio.current_time() >= 3


async def test_broken_off_answers_end_the_connection(sandbox: Sandbox) -> None:
    sandbox.script(faults.truncated())
    sandbox.script(faults.refused())
    for reset, sent in ((False, ["http.response.start", "http.response.body"]), (True, [])):
        line = Line(REQUEST, GONE)
        await sandbox.app(http_scope(state={CONNECTION: line.end}), line.receive, line.send)
        assert line.ended == [reset]
        assert [message["type"] for message in line.sent] == sent


async def test_it_follows_the_lifespan_protocol(sandbox: Sandbox) -> None:
    line = Line({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    await sandbox.app({"type": "lifespan"}, line.receive, line.send)
    assert line.sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]


async def test_it_serves_http_only(sandbox: Sandbox) -> None:
    line = Line()
    with pytest.raises(RuntimeError, match="websocket"):
        await sandbox.app({"type": "websocket"}, line.receive, line.send)


async def test_the_phone_page_is_beside_the_api() -> None:
    """Requests of the page are not requests to the service: not logged, not counted, not struck by faults."""
    sandbox = Sandbox(now=START)
    rule = sandbox.script(faults.html_page(), times=100)
    sandbox.switches.turn_on("answer-lost", once=False)
    app = sandbox.app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8765") as client:
        for _ in range(15):
            answer = await client.get("/")
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (await client.get("/v1x")).headers["content-type"].startswith("text/plain")
        assert (rule.fired, sandbox.requests.total, sandbox.rate_budget().window_used) == (0, 0, 0)
        sandbox.clear_script()
        sandbox.switches.all_off()
        for path in ("/v1", "/v1/", "/v1/nothing"):
            assert (await client.get(path)).json()["error_code"] == "NOT_FOUND"
    assert sandbox.requests.total == 3
