"""Callbacks of the sandbox, received by a real server on loopback."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async.sandbox import CallbackKind, CallbackMode, Choices, Sandbox, SentCallback, faults
from mobilemoney_async.sandbox.callbacks import MOST_WAITING, SENT_SHOWN, TIMEOUT
from tests.sandbox.service import ORDINARY, START, STUCK, SUCCEEDS
from tests.support.server import Close, NeverAnswer, Reply, Request, Response, Server, Trickle, serve

# `Sandbox.serve` needs asyncio; its clock is virtual.
pytestmark = [pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)]


class Scene:
    """A sandbox that is served, its client, and a receiver of callbacks."""

    def __init__(self, sandbox: Sandbox, client: httpx.AsyncClient, receiver: Server) -> None:
        self.sandbox = sandbox
        self.client = client
        self.receiver = receiver
        self.url = f"http://127.0.0.1:{receiver.port}/callbacks/secret-path"

    @property
    def received(self) -> list[Request]:
        return self.receiver.requests

    @property
    def statuses(self) -> list[tuple[str, str]]:
        """Of each callback: the transaction and its claimed status."""
        return [(request.json()["transaction_id"], request.json()["status"]) for request in self.received]

    async def collect(self, phone_number: str = SUCCEEDS) -> str:
        body = {"phone_number": phone_number, "amount": "1000"}
        answer = await self.client.post("/payment-service/airtel/c2b", json=body)
        return str(answer.json()["transaction_id"])

    async def until_sent(self, count: int) -> tuple[SentCallback, ...]:
        """Wait until so many were sent or could not be, and give them, oldest first."""
        with anyio.fail_after(600):
            while len(self.sandbox.callbacks.sent) < count:
                await anyio.sleep(0.1)
        return self.sandbox.callbacks.sent[::-1]


@asynccontextmanager
async def scene(
    mode: CallbackMode | None = CallbackMode.ONCE,
    *,
    reply: Reply | None = None,
    handler: Callable[[Request], Awaitable[Reply]] | None = None,
    **options: Any,
) -> AsyncIterator[Scene]:
    async def answer(request: Request) -> Reply:
        await request.read()
        return Response(204) if reply is None else reply

    sandbox = Sandbox(now=START, choices=Choices(rate_limit=None), **options)
    headers = {"Authorization": f"Bearer {sandbox.token}"}
    async with serve(handler or answer) as receiver, sandbox.serve() as base_url:
        async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=60, trust_env=False) as client:
            here = Scene(sandbox, client, receiver)
            if mode is not None:
                sandbox.callbacks.configure(here.url, mode)
            yield here


async def test_each_status_change_is_reported_once() -> None:
    """Callbacks report an automatic end and a decision at the moment of the change, and no creation."""
    async with scene() as here:
        first, second = await here.collect(SUCCEEDS), await here.collect(STUCK)
        assert not here.received
        here.sandbox.decline(second)
        await here.until_sent(1)
        await anyio.sleep(60)
        assert here.statuses == [(second, "FAILED"), (first, "SUCCESS")]
        sent = here.sandbox.callbacks.sent
    assert [(each.transaction_id, each.kind, each.status, each.error) for each in sent] == [
        (first, CallbackKind.CHANGED, 204, None),
        (second, CallbackKind.CHANGED, 204, None),
    ]
    assert (sent[0].at - START).total_seconds() == pytest.approx(5, abs=0.1)
    assert "secret-path" not in repr(sent)


async def test_the_body_is_an_invention_and_says_so() -> None:
    async with scene() as here:
        transaction_id = await here.collect()
        await here.until_sent(1)
        (request,) = here.received
        payment = here.sandbox.transactions[transaction_id]
    assert (request.method, request.target) == ("POST", "/callbacks/secret-path")
    assert request.header("content-type") == "application/json"
    assert request.json() == {
        "transaction_id": transaction_id,
        "reference": payment.reference,
        "status": "SUCCESS",
    }
    for name in request.json():
        assert f'"{name}"' in here.sandbox.callbacks.body_note
    assert "documents neither payload nor signature" in here.sandbox.callbacks.body_note


async def test_twice_is_the_same_again() -> None:
    async with scene(CallbackMode.TWICE) as here:
        await here.collect()
        sent = await here.until_sent(2)
        first, second = here.received
    assert first.body == second.body
    assert {each.kind for each in sent} == {CallbackKind.CHANGED, CallbackKind.REPEATED}


async def test_late_is_half_a_minute_of_the_services_time() -> None:
    """The delay is by the sandbox's clock, which can be paused and moved ahead."""
    async with scene(CallbackMode.LATE) as here:
        transaction_id = await here.collect()
        here.sandbox.approve(transaction_id)
        await anyio.sleep(29)
        assert not here.received
        here.sandbox.run_clock(0)
        await anyio.sleep(600)
        assert not here.received
        here.sandbox.advance(1.5)
        await here.until_sent(1)
        here.sandbox.run_clock(100)
        await here.collect()
        started = anyio.current_time()
        await here.until_sent(2)
        assert anyio.current_time() - started < 1


async def test_before_the_answer_means_before_the_answer() -> None:
    """The receiver hears of the new transaction first, and of its end as usual."""
    heard_of = []

    async def handler(request: Request) -> Reply:
        heard_of.append((await request.read(), answered[:]))
        await anyio.sleep(2)
        return Response()

    answered: list[str] = []
    async with scene(CallbackMode.BEFORE_ANSWER, handler=handler) as here:
        transaction_id = await here.collect()
        answered.append(transaction_id)
        assert [each.kind for each in here.sandbox.callbacks.sent] == [CallbackKind.CREATED]
        await here.until_sent(2)
        assert here.statuses == [(transaction_id, "PENDING"), (transaction_id, "SUCCESS")]
    assert [before for _, before in heard_of] == [[], [transaction_id]]


@pytest.mark.parametrize("reply", [NeverAnswer(), Close(), Response(500)], ids=["silent", "closed", "500"])
async def test_a_receiver_that_fails_holds_an_answer_for_seconds_only(reply: Reply) -> None:
    async with scene(CallbackMode.BEFORE_ANSWER, reply=reply) as here:
        started = anyio.current_time()
        transaction_id = await here.collect(STUCK)
        assert transaction_id in here.sandbox.transactions
        assert anyio.current_time() - started == pytest.approx(TIMEOUT if reply == NeverAnswer() else 0, abs=0.5)


async def test_before_the_answer_holds_no_other_request() -> None:
    async with scene(CallbackMode.BEFORE_ANSWER, reply=NeverAnswer()) as here:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.collect, STUCK)
            with anyio.fail_after(60):
                while not here.sandbox.transactions:
                    await anyio.sleep(0.1)
            started = anyio.current_time()
            assert (await here.client.get("/user-service/profile")).status_code == 200
            assert anyio.current_time() - started < 1


@pytest.mark.slow
async def test_many_at_once_are_each_reported_before_their_own_answer() -> None:
    async def handler(request: Request) -> Reply:
        await request.read()
        reported.add(request.json()["transaction_id"])
        await anyio.sleep(1)
        return Response()

    async def collect(here: Scene) -> None:
        assert await here.collect(STUCK) in reported

    reported: set[str] = set()
    async with scene(CallbackMode.BEFORE_ANSWER, handler=handler) as here, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(collect, here)
    assert len(reported) == 50


async def test_a_create_whose_answer_is_lost_is_reported_all_the_same() -> None:
    """An early callback comes like this: the payment exists, and the client got no answer."""
    async with scene(CallbackMode.BEFORE_ANSWER) as here:
        here.sandbox.script(faults.drop(processed=True))
        with pytest.raises(httpx.RemoteProtocolError):
            await here.collect(STUCK)
        assert here.statuses == [(*here.sandbox.transactions, "PENDING")]


@pytest.mark.parametrize(
    ("reply", "status", "error"),
    [
        (Response(503), 503, None),
        (Response(302, headers={"location": "http://127.0.0.1:1/"}), 302, None),
        (Close(), None, "not delivered: RemoteProtocolError"),
        (Close(reset=True), None, "not delivered: ReadError"),
        (NeverAnswer(), None, "no answer within 5 s"),
    ],
    ids=["503", "redirect", "closed", "reset", "silent"],
)
async def test_the_result_is_listed(reply: Reply, status: int | None, error: str | None) -> None:
    """No answer of the receiver's disturbs the service, is followed elsewhere, or is sent a second time."""
    async with scene(reply=reply) as here:
        await here.collect()
        (sent,) = await here.until_sent(1)
        assert (sent.status, sent.error, sent.url) == (status, error, here.url)
        await anyio.sleep(600)
        assert len(here.received) == 1
        assert (await here.client.get("/user-service/profile")).status_code == 200


async def test_the_body_of_an_answer_is_not_waited_for() -> None:
    """The head comes within the time-out, the body does not."""
    async with scene(reply=Trickle(Response(200, b"x" * 1000), pause=0.05)) as here:
        await here.collect()
        (sent,) = await here.until_sent(1)
    assert sent.status == 200


async def test_a_slow_receiver_delays_no_other_callback() -> None:
    async def handler(request: Request) -> Reply:
        body = await request.read()
        return NeverAnswer() if slow.encode() in body else Response()

    slow = "none"
    async with scene(handler=handler) as here:
        slow, quick = await here.collect(STUCK), await here.collect(STUCK)
        here.sandbox.approve(slow)
        here.sandbox.approve(quick)
        (sent,) = await here.until_sent(1)
    assert (sent.transaction_id, sent.status) == (quick, 200)


async def test_a_forged_one_claims_an_unknown_payment() -> None:
    """At once, also while the clock is paused, to the URL given or to the configured one."""
    async with scene() as here:
        here.sandbox.run_clock(0)
        made_up = here.sandbox.callbacks.forge(f"http://127.0.0.1:{here.receiver.port}/elsewhere")
        (sent,) = await here.until_sent(1)
        here.sandbox.callbacks.forge()
        await here.until_sent(2)
        assert [request.target for request in here.received] == ["/elsewhere", "/callbacks/secret-path"]
        assert here.statuses[0] == (made_up, "SUCCESS")
        assert (sent.kind, sent.transaction_id) == (CallbackKind.FORGED, made_up)
        assert made_up not in here.sandbox.transactions
        assert made_up[:4] == (await here.collect(STUCK))[:4]
        assert not here.sandbox.ledger.collected


async def test_without_a_url_nothing_is_sent() -> None:
    async with scene(None) as here:
        await here.collect()
        await anyio.sleep(600)
        assert not here.sandbox.callbacks.sent
        assert here.sandbox.callbacks.url is None


async def test_it_can_be_stopped_and_changed_at_any_time() -> None:
    """Without a URL, waiting callbacks are dropped too."""
    async with scene(CallbackMode.LATE) as here:
        callbacks = here.sandbox.callbacks
        here.sandbox.approve(await here.collect(STUCK))
        callbacks.configure(None)
        await anyio.sleep(600)
        assert not here.received
        callbacks.configure(here.url, "twice")
        assert (callbacks.url, callbacks.mode) == (here.url, CallbackMode.TWICE)
        here.sandbox.approve(await here.collect(STUCK))
        await here.until_sent(2)


async def test_nothing_is_sent_while_nothing_is_served() -> None:
    """In-process payments go unreported, and a forged callback waits for the server."""
    async with serve(_ok) as receiver:
        sandbox = Sandbox(now=START)
        sandbox.callbacks.configure(f"http://127.0.0.1:{receiver.port}/")
        async with sandbox.client() as client:
            prompt = await client.collections.create(phone_number=STUCK, amount=1000)
        sandbox.approve(prompt.transaction_id)
        made_up = sandbox.callbacks.forge()
        for _ in range(2):
            async with sandbox.serve():
                await anyio.sleep(60)
        assert [request.json()["transaction_id"] for request in receiver.requests] == [made_up]


async def test_in_process_payments_are_reported_while_it_is_served() -> None:
    async with scene(CallbackMode.BEFORE_ANSWER) as here, here.sandbox.client() as client:
        prompt = await client.collections.create(phone_number=STUCK, amount=1000)
        (sent,) = await here.until_sent(1)
        assert sent.transaction_id == prompt.transaction_id
        started = anyio.current_time()
        assert (await here.client.get("/user-service/profile")).status_code == 200
        assert anyio.current_time() - started < 1


async def test_two_servers_of_one_sandbox_send_each_callback_once() -> None:
    async with scene() as here:
        async with here.sandbox.serve():
            await here.collect()
            await anyio.sleep(60)
            assert len(here.received) == 1
        await here.collect()
        await here.until_sent(2)


@pytest.mark.slow
async def test_leaving_cuts_unfinished_deliveries() -> None:
    """It is not sent by the next server either, and leaves room for as many as before."""
    async with scene(reply=NeverAnswer()) as here:
        callbacks = here.sandbox.callbacks
        for _ in range(MOST_WAITING):
            callbacks.forge()
        with anyio.fail_after(60):
            while not here.received:
                await anyio.sleep(0.1)
    assert not callbacks.sent
    async with here.sandbox.serve():
        callbacks.forge("http://127.0.0.1:1/")
        (sent,) = await here.until_sent(1)
    assert sent.error == "cannot connect"


@pytest.mark.costly("runs lines of sandbox/callbacks.py that no quick test runs")
async def test_a_flood_is_bounded() -> None:
    """Callbacks over the limit are not sent, and listed as such; the list keeps the newest."""
    async with scene(None) as here:
        here.sandbox.callbacks.configure("http://127.0.0.1:1/")
        for _ in range(MOST_WAITING + SENT_SHOWN + 5):
            here.sandbox.callbacks.forge()
        sent = here.sandbox.callbacks.sent
        assert len(sent) == SENT_SHOWN
        assert {each.error for each in sent} == {f"not sent: {MOST_WAITING} are waiting"}
        await here.collect(ORDINARY)


URLS = [
    "", "/relative", "ftp://example.com/", "http://", "http:///path", "https://:80/", "http://example.com:abc/",
    "http://example.com:0/", "http://example.com:65536/", "http://exa\nmple.com/", "javascript:alert(1)", "http://xn--/",
    5,
]  # fmt: skip


@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
async def test_a_malformed_url_is_refused(url: Any) -> None:
    """The error does not repeat the URL, which may hold a secret; the earlier configuration stays."""
    sandbox = Sandbox()
    sandbox.callbacks.configure("https://example.com/", CallbackMode.LATE)
    for use in (sandbox.callbacks.configure, sandbox.callbacks.forge):
        with pytest.raises(ValueError, match=r"^url must be an http:// or https:// URL with a host$"):
            use(url)
    assert (sandbox.callbacks.url, sandbox.callbacks.mode) == ("https://example.com/", CallbackMode.LATE)


async def test_an_unknown_mode_is_refused() -> None:
    sandbox = Sandbox()
    with pytest.raises(ValueError, match="mode must be one of: once, twice, late, before-answer"):
        sandbox.callbacks.configure("https://example.com/", "never")
    assert sandbox.callbacks.url is None
    with pytest.raises(ValueError, match="url is missing"):
        sandbox.callbacks.forge()


async def _ok(request: Request) -> Reply:
    await request.read()
    return Response()
