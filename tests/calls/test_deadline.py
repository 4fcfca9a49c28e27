"""Time-outs and deadlines: exact, and honest about the result of the request."""

import gc
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from mobilemoney_async import (
    AsyncClient,
    InvalidRequest,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    RateLimiter,
    RequestTimeout,
    RetryPolicy,
)
from tests.support.fakes import (
    EMAIL,
    LOGIN,
    NOON,
    PASSWORD,
    FakeTransport,
    Hang,
    Sent,
    Step,
    held,
    look_up,
    make_client,
    pay,
    refusal,
    script,
    service,
)
from tests.support.server import NeverAnswer, Response, serve

ONCE = RetryPolicy(max_attempts=1)


class Stopwatch:
    """Stopwatch on the loop's clock."""

    def __init__(self) -> None:
        self.start = anyio.current_time()

    @property
    def seconds(self) -> float:
        return anyio.current_time() - self.start


def stage(name: str) -> tuple[FakeTransport, dict[str, Any]]:
    """Return a service and options with which a call is at a certain stage from its first to its tenth second."""
    limiter = RateLimiter()
    options: dict[str, Any] = {"rate_limiter": limiter}
    if name == "waiting for its turn":
        limiter.hold(100)
        return FakeTransport(), options
    if name == "logging in":
        options["auth"] = LoginAuth(EMAIL, PASSWORD)
        return FakeTransport(script(Hang())), options
    if name == "pausing":
        options["retry"] = RetryPolicy(first_delay=100, max_delay=100)
        return FakeTransport(refuse=1), options
    if name == "held by a rejection":
        return FakeTransport(script(refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=30))), options
    if name == "renewing its token":
        options["auth"] = LoginAuth(EMAIL, PASSWORD)
        return FakeTransport(script(service(LOGIN), refusal("token_expired", 401), Hang())), options
    assert name == "in flight"
    return FakeTransport(script(Hang())), options


OUTCOMES = {
    "waiting for its turn": "not_sent",
    "logging in": "not_sent",
    "pausing": "not_sent",
    "held by a rejection": "refused",
    "renewing its token": "refused",
    "in flight": "unknown",
}


@pytest.mark.parametrize(("name", "outcome"), OUTCOMES.items())
@pytest.mark.parametrize("call", [pay, look_up])
async def test_the_deadline_ends_a_call_exactly_and_says_what_became_of_it(call: Any, name: str, outcome: str) -> None:
    """Wherever a call is when its deadline passes, it ends then; a create that is in flight ends in OutcomeUnknown."""
    transport, options = stage(name)
    client = make_client(transport, deadline=10.0, **options)
    watch = Stopwatch()
    with pytest.raises(OutcomeUnknown if call is pay and outcome == "unknown" else RequestTimeout) as caught:
        await call(client)
    assert watch.seconds == pytest.approx(10.0)
    assert caught.value.outcome == outcome
    assert (caught.value.idempotency_key is not None) is (call is pay)
    if isinstance(caught.value, OutcomeUnknown):
        assert isinstance(caught.value.__cause__, RequestTimeout)
        assert caught.value.sent_at == NOON


async def test_the_deadline_covers_login_turn_attempts_and_pauses_together() -> None:
    """Three seconds each for the login, the turn, an attempt and a pause leave the second attempt no time."""

    async def slow(sent: Sent) -> Step:
        await anyio.sleep(3)
        return service(sent.path) if sent.path == LOGIN else Response(503)

    transport = FakeTransport(slow)
    limiter = RateLimiter(per_minute=20, burst=1, jitter=0)
    auth = LoginAuth(EMAIL, PASSWORD)
    retry = RetryPolicy(first_delay=3, factor=1)
    client = make_client(transport, auth=auth, rate_limiter=limiter, retry=retry, deadline=13.5)
    client._pipeline.random = lambda: 0.0
    await limiter.acquire()
    watch = Stopwatch()
    with pytest.raises(RequestTimeout) as caught:
        await look_up(client)
    assert watch.seconds == pytest.approx(13.5)
    assert [sent.at - watch.start for sent in transport.sent] == pytest.approx([3, 6, 12])
    assert caught.value.outcome == "unknown"
    assert isinstance(caught.value.__cause__, MobileMoneyError)


async def test_a_call_that_makes_it_is_not_disturbed_by_its_deadline() -> None:
    async def slow(sent: Sent) -> Step:
        await anyio.sleep(9.999)
        return service(sent.path)

    await pay(make_client(FakeTransport(slow), deadline=10.0))


async def test_without_a_deadline_a_call_waits_its_turn_for_hours() -> None:
    client = make_client(FakeTransport(), rate_limiter=held(10_000))
    watch = Stopwatch()
    await pay(client)
    assert watch.seconds == pytest.approx(10_000)


async def test_the_time_out_is_for_one_attempt() -> None:
    """Each attempt has the whole time-out; waiting for a turn does not count."""
    transport = FakeTransport(script(Hang(), Hang()))
    client = make_client(transport, timeout=5.0, retry=RetryPolicy(first_delay=0), rate_limiter=held(100))
    watch = Stopwatch()
    await look_up(client)
    assert watch.seconds == pytest.approx(110.0)


# -- over real sockets -------------------------------------------------------------------------------------------------


# httpcore leaves a connection whose TLS handshake is cancelled to the garbage collector.
left_in_the_handshake = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
    gc.collect()


@left_in_the_handshake
@pytest.mark.parametrize(
    ("scheme", "limit", "seconds", "outcome"),
    [
        ("https", "timeout", 9.5, "not_sent"),
        ("https", "deadline", 10.0, "not_sent"),
        ("http", "timeout", 10.0, "unknown"),
        ("http", "deadline", 10.0, "unknown"),
    ],
)
async def test_a_create_that_is_still_connecting_was_not_sent(
    silent_port: int, scheme: str, limit: str, seconds: float, outcome: str
) -> None:
    """A TLS handshake that never ends has carried no request; without TLS the same silence comes after the request.

    Connecting has 95 % of the time-out, so that the pool can name the phase.
    """
    options: dict[str, Any] = {"timeout": 30.0, limit: 10.0}
    async with make_client(base_url=f"{scheme}://127.0.0.1:{silent_port}/v1", retry=ONCE, **options) as client:
        watch = Stopwatch()
        with pytest.raises(RequestTimeout if outcome == "not_sent" else OutcomeUnknown) as caught:
            await pay(client)
    assert watch.seconds == pytest.approx(seconds)
    assert caught.value.outcome == outcome


async def test_a_connection_that_never_comes_is_tried_again() -> None:
    """Connecting has a time-out of its own within the attempt's; after it a create goes again: nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with make_client(base_url=f"https://127.0.0.1:{listener.getsockname()[1]}/v1", timeout=10.0) as client:
            watch = Stopwatch()
            with pytest.raises(RequestTimeout) as caught:
                await pay(client)
    assert watch.seconds == pytest.approx(4 * 9.5 + 2.6, abs=1)
    assert caught.value.outcome == "not_sent"


@pytest.mark.slow
async def test_no_free_connection_means_not_sent() -> None:
    """If all hundred connections of the pool are all waiting for answers, the next create was not sent."""
    outcomes: list[str] = []

    async def one(client: AsyncClient) -> None:
        try:
            await pay(client)
        except MobileMoneyError as exc:
            outcomes.append(exc.outcome)

    limiter = RateLimiter(per_minute=600_000, burst=1000)
    async with serve(never) as server:
        async with make_client(base_url=server.base_url, rate_limiter=limiter, retry=ONCE) as client:
            async with anyio.create_task_group() as tasks:
                for _ in range(110):
                    tasks.start_soon(one, client)
    assert sorted(outcomes) == ["not_sent"] * 10 + ["unknown"] * 100
    assert len(server.requests) == 100


async def never(request: object) -> NeverAnswer:
    return NeverAnswer()


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "10"])
@pytest.mark.parametrize("argument", ["timeout", "deadline"])
async def test_patience_of_nonsense_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_client(FakeTransport(), **{argument: value})
    assert caught.value.argument == argument
