"""Events of a client, and that their handler cannot do harm."""

import asyncio
import logging
import pickle
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    InvalidRequest,
    LoginAuth,
    Priority,
    RateLimiter,
    RetryPolicy,
    SQLStore,
    TransactionNotFound,
)
from mobilemoney_async.events import (
    AttemptEnded,
    Event,
    LimiterWaited,
    PaymentFinal,
    PaymentFollowed,
    PaymentGivenUp,
    PollerAsked,
    PollerClosed,
    TokenRenewed,
    both,
)
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import page_answer, transaction_record
from tests.support.fakes import (
    EMAIL,
    PASSWORD,
    PHONE_NUMBER,
    FakeTransport,
    Sent,
    make_client,
    refusal,
    script,
    service,
    settle,
)
from tests.support.server import Response

GARBAGE = Response(status=502, body=b"<html>bad gateway</html>", headers={"content-type": "text/html"})


def of(kind: type, events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


async def test_a_refusal_is_told_from_a_failure() -> None:
    """A merchant's alarm need not ring for a transaction that does not exist."""
    events: list[Event] = []
    transport = FakeTransport(script(refusal("TRANSACTION_NOT_FOUND", 404)))
    async with make_client(transport, on_event=events.append) as client:
        with pytest.raises(TransactionNotFound):
            await client.transactions.get("tx-1")
    (ended,) = events
    assert isinstance(ended, AttemptEnded)
    assert (ended.outcome, ended.error) == ("refused", "TransactionNotFound")


async def test_a_login_that_is_cut_short_is_not_told_as_a_success() -> None:
    """An alarm that counts logins without an error counts tokens."""
    events: list[Event] = []

    async def hang(sent: Sent) -> Response:
        await anyio.sleep_forever()
        raise AssertionError

    async with make_client(FakeTransport(hang), auth=LoginAuth(EMAIL, PASSWORD), on_event=events.append) as client:
        with anyio.move_on_after(1):
            await client.transactions.get("tx-1")
    (renewed,) = of(TokenRenewed, events)
    assert isinstance(renewed, TokenRenewed)
    assert renewed.error == "cancelled"


@pytest.mark.parametrize(("seconds", "waits"), [(0.00005, 0), (0.002, 1)])
async def test_the_time_that_it_takes_to_ask_a_limiter_is_no_wait(seconds: float, waits: int) -> None:
    """A call and a poller's request that had not to wait say so; by a real clock, nothing takes no time."""

    class Asked(RateLimiter):
        async def acquire(self, priority: Priority = Priority.LOOKUP, *, front_of_lane: bool = False) -> None:
            await super().acquire(priority, front_of_lane=front_of_lane)
            await anyio.sleep(seconds)

    def answer(sent: Sent) -> httpx.Response | Response:
        is_list = sent.path.endswith("/transactions")
        return page_answer(transaction_record("tx-1")) if is_list else service(sent.path)

    events: list[Event] = []
    async with make_client(FakeTransport(answer), rate_limiter=Asked(), on_event=events.append) as client:
        await client.transactions.get("tx-1")
        async with client.poller() as poller:
            await poller.wait("tx-1")
    assert len(of(LimiterWaited, events)) == waits
    (asked,) = of(PollerAsked, events)
    assert isinstance(asked, PollerAsked)
    assert asked.waited == pytest.approx(seconds * waits)


STRANGER = "txn_" + "0" * 20
PENDING = (PaymentFollowed, PaymentFinal, PaymentGivenUp, PollerAsked, PollerClosed)


def pending(events: list[Event]) -> list[int]:
    """Return the number of payments that a poller followed, at each of its events."""
    return [event.pending for event in events if isinstance(event, PENDING)]


async def test_what_a_poller_follows_can_be_counted() -> None:
    """Each payment that is followed ends in an event: final, given up, or left when the poller is closed."""
    events: list[Event] = []
    sandbox = Sandbox()
    async with sandbox.client(on_event=events.append) as client:
        paid = await client.collections.create(phone_number="+255780000789", amount=1000)
        stuck = [await client.collections.create(phone_number="+255780000129", amount=n) for n in (1000, 2000)]
        events.clear()
        async with client.poller() as poller:
            poller.track(paid)
            poller.track(paid)
            poller.track(stuck[0], timeout=60)
            poller.track(STRANGER)
            assert len([outcome async for outcome in poller.outcomes()]) == 3
            assert pending(events)[-1] == poller.pending == 0
            poller.track(stuck[1])
            await anyio.sleep(10)
    assert of(PaymentFollowed, events) == [
        PaymentFollowed(transaction_id=paid.transaction_id, pending=1),
        PaymentFollowed(transaction_id=stuck[0].transaction_id, pending=2),
        PaymentFollowed(transaction_id=STRANGER, pending=3),
        PaymentFollowed(transaction_id=stuck[1].transaction_id, pending=1),
    ]
    (final,) = of(PaymentFinal, events)
    assert isinstance(final, PaymentFinal)
    assert (final.transaction_id, final.status, final.pending) == (paid.transaction_id, "SUCCESS", 2)
    assert of(PaymentGivenUp, events) == [
        PaymentGivenUp(transaction_id=stuck[0].transaction_id, error="WaitTimeout", pending=1),
        PaymentGivenUp(transaction_id=STRANGER, error="TransactionNotFound", pending=0),
    ]
    assert events[-1] == PollerClosed(pending=1)
    assert pickle.loads(pickle.dumps(events)) == events


async def test_an_answer_that_comes_as_the_poller_is_closed_leaves_nothing_pending() -> None:
    """An ending that is told after `PollerClosed` says 0, so that a gauge does not stand at what was left."""
    events: list[Event] = []
    comes = anyio.Event()

    async def answer(sent: Sent) -> httpx.Response:
        await comes.wait()
        return page_answer(transaction_record("tx-1"), transaction_record("tx-2", "PENDING"))

    async with make_client(FakeTransport(answer), on_event=events.append) as client, client.poller() as poller:
        poller.track("tx-1")
        poller.track("tx-2")
        await settle()
        comes.set()
    (closed,) = of(PollerClosed, events)
    assert pending(events[events.index(closed) :]) == [2, 0]


async def test_each_process_counts_its_own(tmp_path: Path) -> None:
    """Where one poller asks for those of all processes, their numbers of pending payments add up."""
    sandbox = Sandbox()
    told: list[list[Event]] = [[], []]
    url = f"sqlite:///{tmp_path}/payments.db"
    clients = [sandbox.client(store=SQLStore(url), on_event=events.append) for events in told]
    async with clients[0] as one, clients[1] as other, one.poller() as first, other.poller() as second:
        payments = [await one.collections.create(phone_number="+255780000789", amount=n) for n in (1000, 2000, 3000)]
        first.track(payments[0])
        second.track(payments[1])
        second.track(payments[2])
        for number, poller in enumerate((first, second)):
            assert len([outcome async for outcome in poller.outcomes()]) == 1 + number
    for number, events in enumerate(told):
        assert max(pending(events)) == 1 + number
        assert len(of(PaymentFinal, events)) == 1 + number
        assert events[-1] == PollerClosed(pending=0)
    assert sorted(bool(of(PollerAsked, events)) for events in told) == [False, True]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/payment-service/bulk", "/payment-service/bulk"),
        ("/v2/Bulk_payments/", "/v2/Bulk_payments/"),
        (f"/customers/{PHONE_NUMBER}/limits", "/customers/{…}/limits"),
        ("/customers/255%37800", "/customers/{…}"),
        ("/tokens/" + "abcdef" * 6, "/tokens/{…}"),
        ("/me@example.com/9132", "/{…}/{…}"),
    ],
    ids=["words", "version", "phone number", "quoted", "token", "e-mail and code"],
)
async def test_the_path_of_a_call_of_ones_own_shows_no_id(
    path: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a caller puts into the path of `client.request`, events and logs show its plain words."""
    events: list[Any] = []
    transport = FakeTransport(script(GARBAGE, Response.json({})))
    retry = RetryPolicy(first_delay=0)
    async with make_client(transport, on_event=events.append, retry=retry) as client:
        with caplog.at_level(logging.DEBUG, "mobilemoney_async"):
            await client.request("GET", path)
    assert [event.path for event in events] == [shown] * 3
    assert caplog.messages[0].startswith(f"GET {shown}: 502 ")


@pytest.mark.filterwarnings("error")
async def test_an_async_handler_is_refused_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing awaits it, so its alerts would be lost in silence."""

    async def alert(event: Event) -> None:
        raise AssertionError

    for wrong in (alert, 7):
        with pytest.raises(InvalidRequest, match=r"^on_event must be"):
            make_client(FakeTransport(), on_event=wrong)
    async with make_client(FakeTransport(), on_event=both(alert, alert)) as client:
        await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
    assert "it must be a plain function" in caplog.text


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])  # as by `result()` of such a task
async def test_a_handler_that_fails_harms_nothing(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """A broken metric does not break a payment; it is logged."""

    def fail(event: Event) -> None:
        raise error

    async with make_client(FakeTransport(), on_event=fail) as client:
        with caplog.at_level(logging.ERROR, "mobilemoney_async"):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
    assert "the handler of events failed" in caplog.text


async def test_clients_with_other_options_tell_the_same_handler() -> None:
    """`with_options` keeps the handler."""
    events: list[Event] = []
    async with make_client(FakeTransport(), on_event=events.append) as client:
        await client.with_options(timeout=5).transactions.get("tx-1")
    assert len(of(AttemptEnded, events)) == 1
    assert pickle.loads(pickle.dumps(events)) == events
