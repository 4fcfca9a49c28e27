"""One call from method to wire and back: the retry table end to end, over real sockets and over a fake transport."""

import itertools
import math
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import anyio
import attrs
import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    AsyncClient,
    ConnectionFailed,
    InvalidToken,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    RateLimiter,
    RateLimitExceeded,
    RequestTimeout,
    RetryPolicy,
    ServerError,
    TokenExpired,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.calls.collaborators import AnswerFacts
from mobilemoney_async.contract.endpoints import GET_TRANSACTION
from mobilemoney_async.testing import run_virtual
from tests.calls.test_bucket import StrictService
from tests.support.fakes import (
    EMAIL,
    LOGIN,
    NOON,
    PASSWORD,
    PHONE_NUMBER,
    CountingSource,
    FakeTransport,
    Hang,
    Sent,
    Step,
    acknowledgement,
    logged_in,
    look_up,
    make_client,
    pay,
    refusal,
    replies,
    script,
    service,
    transaction,
    verify,
)
from tests.support.scale import examples
from tests.support.server import Close, Cut, NeverAnswer, Raw, Reply, Response, Trickle, serve

Call = Callable[[AsyncClient], Coroutine[Any, Any, object]]


async def disburse(client: AsyncClient) -> object:
    return await client.disbursements.create(phone_number=PHONE_NUMBER, amount=1000)


CREATES = [pytest.param(pay, id="c2b"), pytest.param(disburse, id="b2c")]

ACCEPTED = acknowledgement()
HALF = len(ACCEPTED.to_bytes()) - 20

# Sent, but no usable answer: the money may or may not have moved.
SILENCES: dict[str, tuple[Reply, type[MobileMoneyError]]] = {
    "reset before the body is read": (Close(read=False, reset=True), ConnectionFailed),
    "closed before the body is read": (Close(read=False), ConnectionFailed),
    "reset": (Close(reset=True), ConnectionFailed),
    "closed without an answer": (Close(), ConnectionFailed),
    "reset in mid-answer": (Cut(ACCEPTED, after=HALF, reset=True), ConnectionFailed),
    "closed in mid-answer": (Cut(ACCEPTED, after=HALF), ConnectionFailed),
    "closed in mid-head": (Cut(ACCEPTED, after=20), ConnectionFailed),
    "no HTTP": (Raw(b"SSH-2.0-OpenSSH\r\n"), ConnectionFailed),
    "truncated": (Response(200, ACCEPTED.body[:-20], ACCEPTED.headers), UnexpectedResponse),
    "empty": (Response(200), UnexpectedResponse),
    "wrong shape": (Response.json({"status": "success"}), UnexpectedResponse),
    "a list": (Response.json([]), UnexpectedResponse),
    "HTML under 200": (Response.html(200), UnexpectedResponse),
    "HTML under 502": (Response.html(502), ServerError),
    "500": (Response.json({"status": "error", "message": "oops"}, 500), ServerError),
    "503 empty": (Response(503), ServerError),
    "504 HTML": (Response.html(504), ServerError),
    "500 with a code of its own": (refusal("DATABASE_DOWN", 500), ServerError),
    "301": (Response(301, b"", {"location": "/v1/elsewhere"}), UnexpectedResponse),
    "307": (Response(307, b"", {"location": "/v1/elsewhere"}), UnexpectedResponse),
    "never answers": (NeverAnswer(), RequestTimeout),
    "too slow an answer": (Trickle(ACCEPTED, pause=1), RequestTimeout),
}
silences = pytest.mark.parametrize(("reply", "kind"), SILENCES.values(), ids=SILENCES)


# -- over real sockets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", CREATES)
@silences
async def test_money_that_may_have_arrived_is_sent_once(create: Call, reply: Reply, kind: type[Exception]) -> None:
    """A create without a usable answer ends in OutcomeUnknown, and the service has seen it at most once."""
    async with serve(replies(reply)) as server, make_client(base_url=server.base_url) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await create(client)
    assert [request.method for request in server.requests] == ["POST"]
    assert isinstance(caught.value.__cause__, kind)
    assert caught.value.outcome == "unknown"
    assert caught.value.idempotency_key
    assert caught.value.sent_at == NOON


@silences
async def test_a_lookup_gives_up_after_its_attempts(reply: Reply, kind: type[MobileMoneyError]) -> None:
    """A read raises its last error after `max_attempts` requests; where the answer comes in time, nobody notices."""
    handler = replies(*[reply] * 5)
    retry = RetryPolicy(max_attempts=3)
    async with serve(handler) as server, make_client(base_url=server.base_url, retry=retry) as client:
        with pytest.raises(kind) as caught:
            await look_up(client)
        assert len(server.requests) == 3
        assert caught.value.outcome == "unknown"
        await look_up(client)
    assert len(server.requests) == 6


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nothing listens, and on which nothing will for the length of the test."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize("call", [*CREATES, pytest.param(look_up, id="lookup"), pytest.param(verify, id="session")])
async def test_whatever_was_refused_a_connection_was_not_sent(call: Call, closed_port: int) -> None:
    """A service that is down is asked `max_attempts` times; then the error of a create means that no money moved."""
    start = anyio.current_time()
    async with make_client(base_url=f"http://127.0.0.1:{closed_port}/v1") as client:
        with pytest.raises(ConnectionFailed) as caught:
            await call(client)
    assert caught.value.outcome == "not_sent"
    assert bool(caught.value.idempotency_key) is (call in {pay, disburse})
    assert 1.75 <= anyio.current_time() - start <= 3.5  # three pauses


@pytest.mark.parametrize("call", [*CREATES, pytest.param(look_up, id="lookup"), pytest.param(verify, id="session")])
async def test_a_call_goes_through_once_the_service_is_back(call: Call) -> None:
    """Connections that are refused at first cost pauses and nothing else."""
    transport = FakeTransport(refuse=3)
    await call(make_client(transport))
    assert len(transport.sent) == 1


# -- rejected before processing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [20, 120])
@pytest.mark.parametrize("call", [*CREATES, pytest.param(look_up, id="lookup")])
async def test_a_rejection_holds_every_other_call(call: Call, asked: int) -> None:
    """No client of the limiter sends anything before the service is ready again; then they go one a second."""
    transport = FakeTransport(script(refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=asked)))
    client = make_client(transport)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, client)
        await anyio.sleep(1)
        for _ in range(4):
            tasks.start_soon(client.users.profile)
    start = transport.sent[0].at
    assert [sent.at - start for sent in transport.sent[1:]] == pytest.approx([asked + each for each in range(5)])


@pytest.mark.parametrize(
    "refused", [refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=5), refusal("token_expired", 401)], ids=["429", "401"]
)
async def test_a_call_that_was_rejected_keeps_its_turn(refused: Response) -> None:
    """It goes again before those that came after it, however many wait by then."""
    again = [] if refused.status == 429 else [logged_in("login-token-2")]
    transport = FakeTransport(script(logged_in("login-token-1"), refused, *again))
    client = make_client(transport, auth=LoginAuth(EMAIL, PASSWORD), rate_limiter=RateLimiter(per_minute=60, burst=1))
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(client.transactions.get, f"tx-{number}")
    sent = [path for path in transport.paths if path != LOGIN]
    assert len(sent) == 11
    assert sent[0] == sent[1]


@pytest.mark.parametrize("asked", [None, 0])
async def test_a_rejection_without_retry_after_waits_a_growing_while(asked: int | None) -> None:
    """A service that answers 0 is not asked in a circle either."""
    transport = FakeTransport(script(*[refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=asked)] * 3))
    await look_up(make_client(transport))
    times = [sent.at for sent in transport.sent]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert 0.25 <= pauses[0] <= 0.5
    # The limiter's steady rate after a rejection comes on top.
    assert 0.5 <= pauses[1] <= 1.1
    assert 1.0 <= pauses[2] <= 2.1


async def test_a_rate_limited_call_gives_up_after_its_attempts() -> None:
    """The error of a create that is rejected each time means that no money moved."""
    transport = FakeTransport(lambda sent: refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=1))
    with pytest.raises(RateLimitExceeded) as caught:
        await pay(make_client(transport))
    assert len(transport.sent) == 4
    assert caught.value.outcome == "refused"
    assert caught.value.retry_after == 1
    assert caught.value.idempotency_key


@pytest.mark.parametrize(("patience", "asked", "held"), [(120, 121, 120), (1, 30, 30), (0, 1000, 120), (400, 500, 400)])
async def test_too_long_a_retry_after_raises_at_once(patience: int, asked: int, held: int) -> None:
    """Beyond `max_retry_after` the caller gets the error and decides; the limiter holds, up to two minutes or that."""
    transport = FakeTransport(script(refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=asked)))
    client = make_client(transport, retry=RetryPolicy(max_retry_after=patience))
    start = anyio.current_time()
    with pytest.raises(RateLimitExceeded) as caught:
        await pay(client)
    assert anyio.current_time() == start
    assert caught.value.retry_after == asked
    await look_up(client)
    assert anyio.current_time() - start == pytest.approx(held)


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("call", [*CREATES, pytest.param(look_up, id="lookup")])
async def test_a_call_that_renews_its_token_has_exactly_its_attempts(call: Call, before: int, most: int) -> None:
    """`max_attempts` requests and the replay, not one more or less, whenever the token was refused."""
    rejected = refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=1)
    steps = [*[rejected] * min(before, most - 1), refusal("token_expired", 401)]
    source = CountingSource()
    transport = FakeTransport(script(*steps, then=lambda sent: rejected))
    with pytest.raises(RateLimitExceeded) as caught:
        await call(make_client(transport, auth=source, retry=RetryPolicy(max_attempts=most)))
    assert len(transport.sent) == most + 1
    assert source.refused == [("token-1", False)]
    assert (caught.value.outcome, caught.value.is_certain) == ("refused", True)


@pytest.mark.parametrize("code", ["invalid_token", "token_expired"])
async def test_a_token_that_is_never_accepted_ends_in_invalid_token(code: str) -> None:
    """A second refusal is final, and means that the token is not accepted rather than that it ran out."""
    source = CountingSource()
    transport = FakeTransport(lambda sent: refusal(code, 401))
    with pytest.raises(InvalidToken) as caught:
        await pay(make_client(transport, auth=source))
    assert len(transport.sent) == 2
    assert source.refused == [("token-1", False), ("token-2", True)]
    assert (caught.value.outcome, caught.value.code) == ("refused", code)
    assert (caught.value.message, caught.value.status_code) == ("no", 401)


@pytest.mark.parametrize("create", CREATES)
@pytest.mark.parametrize("code", ["invalid_token", "token_expired"])
@pytest.mark.parametrize("status", [200, 401])
async def test_a_replay_whose_refusal_names_a_payment_is_unknown(create: Call, code: str, status: int) -> None:
    """The payment that the second refusal names may be the one that was asked for."""
    named = {"success": False, "error": code, "message": "no", "transaction_id": "tx-9"}
    transport = FakeTransport(script(refusal(code, 401), Response.json(named, status)))
    with pytest.raises(OutcomeUnknown) as caught:
        await create(make_client(transport, auth=CountingSource()))
    assert len(transport.sent) == 2
    cause = caught.value.__cause__
    assert isinstance(cause, APIError)
    assert (cause.code, cause.outcome, cause.is_certain) == (code, "unknown", False)


async def test_an_issued_token_cannot_be_renewed() -> None:
    """A client with an issued token reports that it ran out, after one request."""
    transport = FakeTransport(lambda sent: refusal("token_expired", 401))
    with pytest.raises(TokenExpired):
        await look_up(make_client(transport))
    assert len(transport.sent) == 1


# -- pauses, budgets, laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
async def test_pauses_between_attempts_grow_and_are_jittered(chance: float) -> None:
    """Half a second, doubled each time, less up to half of it by chance."""
    transport = FakeTransport(script(*[Response(503)] * 5))
    client = make_client(transport, retry=RetryPolicy(max_attempts=6))
    client._pipeline.random = lambda: chance
    await look_up(client)
    times = [sent.at for sent in transport.sent]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses == pytest.approx([(1 - chance / 2) * pause for pause in (0.5, 1, 2, 4, 8)])


async def test_every_attempt_takes_its_place_under_the_limit() -> None:
    """Retries are requests too: they wait for their turn."""
    transport = FakeTransport(script(*[Response(503)] * 3))
    client = make_client(transport, rate_limiter=RateLimiter(per_minute=6, burst=1, jitter=0))
    await look_up(client)
    start = transport.sent[0].at
    assert [sent.at - start for sent in transport.sent] == pytest.approx([0, 10, 20, 30])


faults: st.SearchStrategy[Step] = st.sampled_from(
    [
        httpx.ConnectError("x"),
        httpx.ReadError("x"),
        httpx.RemoteProtocolError("x"),
        httpx.PoolTimeout("x"),
        OSError("x"),
        ZeroDivisionError("x"),
        Hang(),
        Response(200),
        Response.html(502),
        Response.html(401),
        Response.html(429),
        Response(302),
        Response.json({"status": "error"}, 500),
        refusal("RATE_LIMIT_EXCEEDED", 200, retry_after=1),
        refusal("RATE_LIMIT_EXCEEDED", 503, retry_after=1000),
        refusal("invalid_token", 401),
        refusal("token_expired", 200),
        refusal("DAILY_LIMIT", 400),
        refusal("DAILY_LIMIT", 409),
        refusal("account_locked", 401),
        refusal("SLOW_DOWN", 429, retry_after=1),
        refusal("TRANSACTION_NOT_FOUND", 404),
        refusal("DATABASE_DOWN", 503),
        acknowledgement(),
    ]
)
EXPIRED = refusal("token_expired", 401)
LIMITED: list[Response | None] = [
    None,
    None,
    EXPIRED,
    Response(503),
    refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=3),
]
late = st.lists(st.one_of(st.just(0.0), st.floats(0, 0.5), st.floats(0, 90)), max_size=50)  # of the event loop, seconds
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 12),
    first_delay=st.floats(0, 5),
    factor=st.floats(1, 5),
    max_delay=st.floats(0, 20),
    max_retry_after=st.floats(0, 2000),
)


def is_documented_rejection(step: Step) -> bool:
    codes = (b"RATE_LIMIT_EXCEEDED", b"invalid_token", b"token_expired")
    is_proxys = isinstance(step, Response) and step.status in {407, 502, 503, 504}
    return isinstance(step, Response) and not is_proxys and any(code in step.body for code in codes)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(
    steps=st.lists(faults, max_size=12),
    delays=st.lists(st.one_of(st.just(0.0), st.floats(0, 100)), max_size=12),
    policy=policies,
    timeout=st.floats(0.1, 100),
    deadline=st.one_of(st.none(), st.floats(0.1, 1000)),
    late=late,
)
@settings(max_examples=examples(200))
def test_no_settings_and_no_faults_send_money_twice(  # noqa: PLR0917
    backend: Any,
    steps: list[Step],
    delays: list[float],
    policy: RetryPolicy,
    timeout: float,
    deadline: float | None,
    late: list[float],
) -> None:
    """Whatever goes wrong in whatever order, a create goes again only after a documented rejection.

    A transport that took the whole request proves nothing by the name of its error, and on a loop that wakes late an
    answer may come together with the end of its time.
    """
    lost = iter(late)

    async def main() -> None:
        pauses, play = iter(delays), script(*steps)

        async def answer(sent: Sent) -> Step:
            await anyio.sleep(next(pauses, 0.0))
            step = play(sent)
            return await step if isinstance(step, Awaitable) else step

        transport = FakeTransport(answer)
        client = make_client(transport, auth=CountingSource(), retry=policy, timeout=timeout, deadline=deadline)
        error: MobileMoneyError | None = None
        start = anyio.current_time()
        try:
            await pay(client)
        except MobileMoneyError as exc:
            error = exc
        now = anyio.current_time()
        seen = steps[: len(transport.sent)]
        assert all(is_documented_rejection(step) for step in seen[:-1])
        if isinstance(error, OutcomeUnknown):
            # The difference of two times of the clock is rounded.
            is_over = now - transport.sent[-1].at > timeout - 1e-6
            is_too_late = is_over or now - start > (deadline or math.inf) - 1e-6
            assert is_too_late or not is_documented_rejection(seen[-1])
        elif error is None:
            assert len(transport.sent) > len(steps) or seen[-1] == acknowledgement()
        else:
            assert error.outcome in {"not_sent", "refused"}
            assert is_documented_rejection(seen[-1]) or getattr(seen[-1], "status", None) in {400, 401, 429}
            assert not isinstance(error, APIError) or error.is_certain is is_documented_rejection(seen[-1])

    run_virtual(main, backend=backend, late=lambda: next(lost, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(
    arrivals=st.lists(st.tuples(st.floats(0, 30), st.sampled_from([pay, look_up])), min_size=20, max_size=90),
    answers=st.lists(st.tuples(st.sampled_from(LIMITED), st.floats(0, 3) | st.floats(0, 20)), max_size=30),
    lifetime=st.integers(61, 120),
    late=late,
)
@settings(max_examples=examples(25))
@example(arrivals=[(0.0, look_up)] * 90, answers=[], lifetime=61, late=[])
@example(arrivals=[(0.0, look_up)] * 90, answers=[], lifetime=90, late=[0.4] * 90)
@example(
    arrivals=[(0.0, look_up)] * 40, answers=[(None, 0.0)] * 5 + [(EXPIRED, 0.0), (None, 4.0)], lifetime=90, late=[]
)
def test_no_login_and_no_late_loop_breaks_the_limit(
    backend: Any,
    arrivals: list[tuple[float, Call]],
    answers: list[tuple[Response | None, float]],
    lifetime: int,
    late: list[float],
) -> None:
    """Calls that wait for a login, for retries and for a busy machine keep to both readings of the limit."""
    lost = iter(late)

    async def main() -> None:
        left, tokens = iter(answers), itertools.count(1)

        async def answer(sent: Sent) -> Step:
            refused, delay = next(left, (None, 0.1))
            await anyio.sleep(delay)
            if sent.path == LOGIN:
                return logged_in(f"login-token-{next(tokens)}", expires_in=lifetime)
            return refused or service(sent.path)

        async def make(at: float, call: Call) -> None:
            await anyio.sleep(at)
            with suppress(MobileMoneyError):
                await call(client)

        transport = FakeTransport(answer)
        client = make_client(transport, auth=LoginAuth(EMAIL, PASSWORD))
        with anyio.fail_after(30 + 10 * len(arrivals) + sum(late)):  # no call waits for ever
            async with anyio.create_task_group() as tasks:
                for arrival in arrivals:
                    tasks.start_soon(make, *arrival)
        assert StrictService().rejections([sent.at for sent in transport.sent]) == []

    run_virtual(main, backend=backend, late=lambda: next(lost, 0.0))


# -- arguments ---------------------------------------------------------------------------------------------------------


async def test_each_call_knows_the_date_of_its_own_answer() -> None:
    """Of two calls at once each gets the Date header of its own answer, though the other answers in between."""
    dates = {"tx-1": "Fri, 02 Jan 2026 12:00:01 GMT", "tx-2": "Fri, 02 Jan 2026 12:00:02 GMT"}

    async def answer(sent: Sent) -> Step:
        name = sent.path.rpartition("/")[2]
        await anyio.sleep(int(name[-1]))
        shown = transaction(name) if name == "tx-1" else refusal("TRANSACTION_NOT_FOUND", 404)
        return attrs.evolve(shown, headers={**shown.headers, "date": dates[name]})

    async def look(name: str) -> None:
        with suppress(TransactionNotFound):
            await pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": name}, facts=facts[name])
        assert facts[name].date == dates[name]

    pipeline, facts = make_client(FakeTransport(answer))._pipeline, {name: AnswerFacts() for name in dates}
    async with anyio.create_task_group() as tasks:
        for name in dates:
            tasks.start_soon(look, name)
