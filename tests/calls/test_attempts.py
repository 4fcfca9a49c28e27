"""One call around its attempts: the order before a request leaves, its record, and the figures of its events."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import attrs
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    AuthenticationError,
    InvalidRequest,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    Priority,
    RateLimiter,
    RequestTimeout,
    RetryPolicy,
    StoreError,
    Transaction,
)
from mobilemoney_async.calls import transport as transport_module
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, GET_TRANSACTION
from mobilemoney_async.contract.models import UnreadableRow
from mobilemoney_async.errors import CallOutcome
from mobilemoney_async.events import AttemptEnded, Event, LimiterWaited, PaymentUnknown, RetryScheduled, TokenRenewed
from tests.contract import samples
from tests.support.fakes import (
    C2B,
    EMAIL,
    LOGIN,
    NOON,
    PASSWORD,
    PHONE_NUMBER,
    CountingSource,
    FakeTransport,
    Handler,
    Hang,
    Sent,
    Step,
    acknowledgement,
    held,
    logged_in,
    look_up,
    make_client,
    pay,
    refusal,
    script,
    service,
    transaction,
)
from tests.support.server import Response

PAYMENT, LOOKUP = Priority.PAYMENT, Priority.LOOKUP
ANOTHER = Response.json(samples.acknowledgement(transaction_id="tx-1", phone_number=PHONE_NUMBER, amount="999"))
OTHER_ROW = Response.json(samples.found(id="tx-1", phone_number=PHONE_NUMBER, amount="999"))


# -- before a request leaves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [pay, look_up])
async def test_a_closed_client_refuses_a_call_at_once(call: Callable[[AsyncClient], Any]) -> None:
    """It waits for no turn, and asks for no token: a login would be one for nothing."""
    source, transport = CountingSource(), FakeTransport()
    client = make_client(transport, auth=source, rate_limiter=held(100))
    await client.aclose()
    start = anyio.current_time()
    with pytest.raises(InvalidRequest, match="closed") as caught:
        await call(client)
    assert caught.value.outcome == "not_sent"
    assert (source.asked, transport.sent, anyio.current_time()) == (0, [], start)


async def test_a_call_that_waits_when_its_client_is_closed_is_not_sent() -> None:
    """It is refused when its turn comes, and its record never begins."""
    transport, recorder = FakeTransport(), Recorder()
    client = make_client(transport, rate_limiter=held(10))
    async with anyio.create_task_group() as tasks:

        async def late() -> None:
            with pytest.raises(InvalidRequest, match="closed"):
                await record(client, recorder)

        tasks.start_soon(late)
        await anyio.sleep(1)
        await client.aclose()
    assert (transport.sent, recorder.noted) == ([], [])


class NotingLimiter(RateLimiter):
    """Limiter that notes each place it is asked for.

    Attributes:
        asked: Lanes, and whether the place was wanted ahead of others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Priority, bool]] = []

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, front_of_lane: bool = False) -> None:
        self.asked.append((priority, front_of_lane))
        await super().acquire(priority, front_of_lane=front_of_lane)


class SlowSource(CountingSource):
    """Source of tokens that takes some time from its second token on, seconds."""

    def __init__(self, takes: float) -> None:
        super().__init__()
        self.takes = takes

    async def token(self, login: object) -> str:
        token = await super().token(login)
        if self.asked > 1:
            await anyio.sleep(self.takes)
        return token


@pytest.mark.parametrize(("takes", "is_late"), [(0.0, False), (0.5, False), (0.75, True), (30.0, True)])
@pytest.mark.parametrize(("call", "lane"), [(pay, PAYMENT), (look_up, LOOKUP)])
async def test_a_place_that_waited_for_a_token_is_used_within_half_a_second(
    call: Callable[[AsyncClient], Any], lane: Priority, takes: float, is_late: bool
) -> None:
    """Later it would come on top of those granted since: the call takes another one, at the head of its lane."""
    limiter, transport = NotingLimiter(), FakeTransport()
    await call(make_client(transport, auth=SlowSource(takes), rate_limiter=limiter))
    assert limiter.asked == [(lane, False)] + [(lane, True)] * is_late
    assert len(transport.sent) == 1


async def test_a_call_may_wait_in_another_lane_than_its_endpoint_s() -> None:
    """A lookup of many is bulk work, one of a poller is polling."""
    limiter = NotingLimiter()
    pipeline = make_client(FakeTransport(), rate_limiter=limiter)._pipeline
    for lane in (None, Priority.POLL, Priority.BULK):
        await pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": "tx-1"}, lane=lane)
    assert limiter.asked == [(LOOKUP, False), (Priority.POLL, False), (Priority.BULK, False)]


class OverSocket(FakeTransport):
    """Transport that shows the socket of its connection, as httpx's own does.

    Attributes:
        ended: How often that was shut down.
    """

    ended = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        response.extensions["network_stream"] = self
        return response

    def get_extra_info(self, name: str) -> Any:
        return self

    def shutdown(self, how: int) -> None:
        self.ended += 1


@pytest.mark.parametrize(
    ("call", "answer", "is_suspect"),
    [
        (look_up, service("/v1/payment-service/transaction/tx-1"), False),
        (look_up, service("/v1/payment-service/transaction/tx-2"), True),
        (look_up, refusal("TRANSACTION_NOT_FOUND", 404), False),
        (look_up, Response.json({"status": "success"}), True),
        (look_up, Response.html(200), True),
        (pay, acknowledgement(), False),
        (pay, refusal("insufficient_permissions", 403), False),
        (pay, Response.json(samples.acknowledgement(phone_number="+255781111111", amount="250")), True),
        (pay, Response.json({"status": "success"}), True),
    ],
)
async def test_the_connection_of_a_doubtful_answer_is_not_used_again(
    call: Callable[[AsyncClient], Any], answer: Response, is_suspect: bool
) -> None:
    """It may be the answer to another request, and the next one would be too."""
    transport = OverSocket(script(answer))
    with suppress(MobileMoneyError):
        await call(make_client(transport, retry=RetryPolicy(max_attempts=1)))
    assert transport.ended == is_suspect


async def test_a_login_goes_ahead_of_the_payments_that_wait_for_it() -> None:
    """In their lane, so that lookups do not delay them."""
    limiter = NotingLimiter()
    await look_up(make_client(FakeTransport(), auth=LoginAuth(EMAIL, PASSWORD), rate_limiter=limiter))
    assert limiter.asked == [(PAYMENT, True), (LOOKUP, False)]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("limited", [False, True])
async def test_the_attempts_of_a_call_and_of_its_login_do_not_multiply(attempts: int, limited: bool) -> None:
    """A service that is down, or busy, for good is asked `max_attempts` times by a call that has no token yet."""
    transport = FakeTransport(lambda sent: refusal("RATE_LIMIT_EXCEEDED", 429), refuse=0 if limited else 1000)
    client = make_client(transport, auth=LoginAuth(EMAIL, PASSWORD), retry=RetryPolicy(max_attempts=attempts))
    with pytest.raises(MobileMoneyError) as caught:
        await pay(client)
    assert caught.value.outcome == "not_sent"
    assert (transport.paths if limited else [LOGIN] * (1000 - transport.refuse)) == [LOGIN] * attempts


EXPIRED, BARE_401, FOUND = refusal("token_expired", 401), Response(401), transaction()


@pytest.mark.parametrize(
    ("calls", "answers", "refused"),
    [
        # A create is not replayed after a bare 401; the next one's token is the replacement.
        ((pay, pay, pay), (BARE_401,) * 3, [("token-1", False), ("token-2", True), ("token-3", True)]),
        # A token that ran out and was replaced is no evidence against later ones.
        ((look_up, pay), (EXPIRED, FOUND, BARE_401), [("token-1", False), ("token-2", False)]),
        ((pay, look_up), (BARE_401, EXPIRED, FOUND), [("token-1", False), ("token-2", False)]),
        ((look_up, look_up), (EXPIRED, FOUND, EXPIRED, FOUND), [("token-1", False), ("token-2", False)]),
    ],
)
async def test_a_refused_token_counts_as_a_replacement_only_after_a_refused_one(
    calls: tuple[Callable[[AsyncClient], Any], ...], answers: tuple[Response, ...], refused: list[tuple[str, bool]]
) -> None:
    """For the same call, or for a create after one that got a 401: so that not each of them costs a login."""
    source = CountingSource()
    client = make_client(FakeTransport(script(*answers)), auth=source)
    for call in calls:
        with suppress(AuthenticationError):
            await call(client)
    assert source.refused == refused


class Observer:
    """Observer of the list, which notes the rows of each page."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    async def observe(self, rows: Sequence[Transaction], unreadable: Sequence[UnreadableRow] = ()) -> None:
        self.seen.append([row.id for row in rows])


async def test_an_observer_sees_each_page_of_the_list_and_no_other_row() -> None:
    """Whichever part of the client reads it: what is found there is new. After a lookup it sees that alone."""
    observer = Observer()
    client = make_client(FakeTransport(script(Response.json(samples.page(samples.transaction(id="tx-9"))))))
    client._pipeline.observer = observer
    await client.transactions.list().collect()
    await look_up(client)
    assert observer.seen == [["tx-9"], []]


# -- the record of a create --------------------------------------------------------------------------------------------


@attrs.define
class Recorder:
    """Record of a create's attempts, on paper.

    Attributes:
        patience: The time in which an attempt must be sent, seconds.
        on_sending: Awaited before it returns that.
        noted: What happened.
        lives: The longest time of an attempt, seconds.
    """

    patience: float = 10.0
    on_sending: Callable[[], Any] | None = None
    noted: list[tuple[CallOutcome | None, str | None]] = attrs.field(factory=list)
    lives: float = 0.0

    async def sending(self, lives: float) -> float:
        self.lives = lives
        if self.on_sending is not None:
            await self.on_sending()
        return self.patience

    async def answered(self, answer: Any) -> None:
        await anyio.sleep(1)  # on disk
        self.noted.append((None, answer.transaction_id))

    async def failed(self, outcome: CallOutcome, error: MobileMoneyError | None) -> None:
        await anyio.sleep(1)
        self.noted.append((outcome, None if error is None else type(error).__name__))


async def record(client: AsyncClient, recorder: Recorder) -> Any:
    """Make a create with a record."""
    body = {"phone_number": PHONE_NUMBER, "amount": "1000"}
    return await client._pipeline.call(CREATE_COLLECTION, body=body, idempotency_key="order-1", recorder=recorder)


async def test_a_record_knows_how_long_an_attempt_may_live_and_its_answer() -> None:
    recorder = Recorder()
    await record(make_client(FakeTransport(), timeout=7.0), recorder)
    assert (recorder.lives, recorder.noted) == (7.0, [(None, "tx-1")])


@pytest.mark.parametrize("clock", ["of the loop", "of the wall"])
@pytest.mark.parametrize(("took", "is_sent"), [(9.75, True), (10.0, True), (10.25, False), (600.0, False)])
async def test_an_attempt_whose_record_took_too_long_is_not_sent(clock: str, took: float, is_sent: bool) -> None:
    """By either clock: another process may have recorded it as lost by then. The loop's stops while a laptop sleeps."""
    transport = FakeTransport()
    client, now = make_client(transport, retry=RetryPolicy(max_attempts=1)), [NOON]
    client._pipeline.utcnow = lambda: now[0]

    async def take() -> None:
        if clock == "of the loop":
            await anyio.sleep(took)
        else:
            now[0] += timedelta(seconds=took)

    recorder = Recorder(on_sending=take)
    await anyio.sleep(1000)  # the loop's clock begins anywhere
    if is_sent:
        await record(client, recorder)
        assert recorder.noted == [(None, "tx-1")]
    else:
        with pytest.raises(StoreError) as caught:
            await record(client, recorder)
        assert caught.value.outcome == "not_sent"
        assert recorder.noted == [("not_sent", "StoreError")]
    assert len(transport.sent) == is_sent


@pytest.mark.parametrize(
    ("step", "outcome", "name"),
    [
        (Response(503), "unknown", "ServerError"),
        (refusal("insufficient_permissions", 403), "refused", "PermissionDenied"),
        (OSError("x"), "unknown", "ConnectionFailed"),
        (Hang(), "unknown", "RequestTimeout"),
    ],
)
async def test_a_record_learns_the_result_of_an_attempt_that_failed(
    step: Step, outcome: CallOutcome, name: str
) -> None:
    recorder = Recorder()
    with pytest.raises(MobileMoneyError):
        await record(make_client(FakeTransport(lambda sent: step)), recorder)
    assert recorder.noted == [(outcome, name)]


async def test_a_record_learns_of_an_attempt_that_was_never_sent() -> None:
    """No connection: no money moved, and the next attempt is on record again."""
    recorder = Recorder()
    await record(make_client(FakeTransport(refuse=1)), recorder)
    assert recorder.noted == [("not_sent", "ConnectionFailed"), (None, "tx-1")]


@pytest.mark.parametrize("way", ["cancelled", "deadline"])
async def test_a_record_learns_of_a_call_that_is_cut_short(way: str) -> None:
    """Cancelled, or out of time, with the request on its way: writing that down is not cut short in turn."""
    recorder, transport = Recorder(), FakeTransport(lambda sent: Hang())
    client = make_client(transport, deadline=5.0 if way == "deadline" else None)
    if way == "deadline":
        with pytest.raises(OutcomeUnknown):
            await record(client, recorder)
    else:
        with anyio.move_on_after(5.0) as scope:
            await record(client, recorder)
        assert scope.cancelled_caught
    assert recorder.noted == [("unknown", None)]


async def test_a_call_that_is_cut_short_before_it_is_sent_is_recorded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of our own that never comes has carried nothing."""

    class NeverConnects(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await anyio.sleep_forever()
            raise AssertionError

    monkeypatch.setattr(transport_module, "make_pool", lambda *_, **__: NeverConnects())
    recorder = Recorder()
    with anyio.move_on_after(5.0):
        await record(make_client(), recorder)
    assert recorder.noted == [("not_sent", None)]


async def test_an_answer_is_recorded_though_its_call_is_cut_short() -> None:
    """It came: what the service said is not lost because the caller left in that moment."""
    recorder = Recorder()
    with anyio.move_on_after(0.5):
        await record(make_client(FakeTransport()), recorder)
    assert recorder.noted == [(None, "tx-1")]


# -- figures -----------------------------------------------------------------------------------------------------------


def rounded(event: Any) -> Event:
    """Return an event with times to the millisecond."""
    times = {name: round(value, 3) for name, value in attrs.asdict(event).items() if isinstance(value, float)}
    result: Event = attrs.evolve(event, **times)
    return result


async def test_the_figures_of_events_are_those_of_the_clock() -> None:
    """Each wait, login, attempt and pause of a call is reported once, with its number and its length."""
    steps = [
        (2.0, logged_in("login-token-1")),
        (3.0, Response(503)),
        (4.0, refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=7)),
        (1.0, refusal("token_expired", 401)),
        (0.25, logged_in("login-token-2")),
        (1.5, service("/v1/payment-service/transaction/tx-1")),
    ]

    async def answer(sent: Sent) -> Step:
        took, step = steps.pop(0)
        await anyio.sleep(took)
        return step

    events: list[Event] = []
    client = make_client(FakeTransport(answer), auth=LoginAuth(EMAIL, PASSWORD), on_event=events.append)
    client._pipeline.random = lambda: 0.0
    await look_up(client)

    path = "/payment-service/transaction/{transaction_id}"
    login: dict[str, Any] = {"method": "POST", "path": "/user-service/login", "attempt": 1}
    call: dict[str, Any] = {"method": "GET", "path": path}
    assert [rounded(event) for event in events] == [
        AttemptEnded(**login, status_code=200, outcome="answered", error=None, duration=2.0),
        TokenRenewed(error=None, duration=2.0),
        AttemptEnded(**call, attempt=1, status_code=503, outcome="unknown", error="ServerError", duration=3.0),
        RetryScheduled(**call, attempt=1, delay=0.5, error="ServerError"),
        AttemptEnded(**call, attempt=2, status_code=429, outcome="refused", error="RateLimitExceeded", duration=4.0),
        RetryScheduled(**call, attempt=2, delay=7.0, error="RateLimitExceeded"),
        LimiterWaited(lane="LOOKUP", waited=7.0),
        AttemptEnded(**call, attempt=3, status_code=401, outcome="refused", error="TokenExpired", duration=1.0),
        RetryScheduled(**call, attempt=3, delay=0.0, error="TokenExpired"),
        AttemptEnded(**login, status_code=200, outcome="answered", error=None, duration=0.25),
        TokenRenewed(error=None, duration=0.25),
        LimiterWaited(lane="LOOKUP", waited=0.75),
        AttemptEnded(**call, attempt=3, status_code=200, outcome="answered", error=None, duration=1.5),
    ]
    assert not any(secret in repr(events) for secret in (EMAIL, PASSWORD, "login-token"))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda sent: Response(503), "ServerError"),
        (lambda sent: ANOTHER if sent.path == C2B else OTHER_ROW, "OutcomeUnknown"),
        (lambda sent: ANOTHER if sent.path == C2B else refusal("TRANSACTION_NOT_FOUND", 404), "TransactionNotFound"),
    ],
    ids=["no answer", "another's transaction", "nobody's transaction"],
)
async def test_a_payment_with_an_unknown_result_is_one_event(answer: Handler, error: str) -> None:
    """With its key and the time of its request, by which it can be found; it is never sent again."""
    events: list[Event] = []
    client = make_client(FakeTransport(answer), on_event=events.append)
    with pytest.raises(OutcomeUnknown) as caught:
        await pay(client)
    key = caught.value.idempotency_key
    assert [each for each in events if not isinstance(each, AttemptEnded)] == [
        PaymentUnknown(idempotency_key=key, sent_at=NOON, error=error)
    ]
    assert PHONE_NUMBER[1:] not in repr(events)


async def test_the_figures_of_an_attempt_without_an_answer() -> None:
    """Its length is the time-out, its status none; a call that is cancelled says so."""
    events: list[Event] = []
    client = make_client(FakeTransport(lambda sent: Hang()), timeout=5.0, on_event=events.append)
    with pytest.raises(RequestTimeout):
        await look_up(client.with_options(retry=RetryPolicy(max_attempts=1)))
    with anyio.move_on_after(2.0):
        await look_up(client)
    common: dict[str, Any] = {"method": "GET", "path": "/payment-service/transaction/{transaction_id}", "attempt": 1}
    timed_out, cancelled = [rounded(event) for event in events]
    assert timed_out == AttemptEnded(
        **common, status_code=None, outcome="unknown", error="RequestTimeout", duration=5.0
    )
    assert isinstance(cancelled, AttemptEnded)
    assert (cancelled.status_code, cancelled.outcome, cancelled.duration) == (None, "cancelled", 2.0)
