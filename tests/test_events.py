"""What `on_event` is told, and that it cannot do harm."""

import logging
import pickle

import pytest

from mobilemoney_async import LoginAuth, OutcomeUnknown, RateLimiter, TransactionNotFound
from mobilemoney_async.events import (
    AttemptEnded,
    Event,
    LimiterWaited,
    PaymentUnknown,
    RetryScheduled,
    TokenRenewed,
)
from tests.support.fakes import EMAIL, NOON, PASSWORD, PHONE_NUMBER, FakeTransport, make_client, refusal, script
from tests.support.server import Response

pytestmark = pytest.mark.anyio

GARBAGE = Response(status=502, body=b"<html>bad gateway</html>", headers={"content-type": "text/html"})


def of(kind: type, events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


async def test_each_attempt_is_an_event_and_so_is_each_retry() -> None:
    """Requests, failures and pauses can be counted without reading logs."""
    events: list[Event] = []
    async with make_client(FakeTransport(script(GARBAGE)), on_event=events.append) as client:
        await client.transactions.get("tx-1")
    first, retry, second = events
    assert isinstance(first, AttemptEnded) and isinstance(retry, RetryScheduled) and isinstance(second, AttemptEnded)
    assert (first.path, first.status_code, first.outcome) == (
        "/payment-service/transaction/{transaction_id}",
        502,
        "unknown",
    )
    assert first.error == retry.error == "ServerError"
    assert 0.25 <= retry.delay <= 0.5
    assert (second.attempt, second.status_code, second.outcome, second.error) == (2, 200, "answered", None)


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


async def test_waiting_for_the_limit_is_an_event() -> None:
    """How long the limit holds requests up can be plotted."""
    events: list[Event] = []
    limiter = RateLimiter(per_minute=60, burst=1)
    async with make_client(FakeTransport(), rate_limiter=limiter, on_event=events.append) as client:
        await client.transactions.get("tx-1")
        assert of(LimiterWaited, events) == []
        await client.transactions.get("tx-1")
    (waited,) = of(LimiterWaited, events)
    assert isinstance(waited, LimiterWaited)
    assert waited.lane == "LOOKUP"
    assert 0.9 < waited.waited < 1.2


async def test_a_login_is_an_event() -> None:
    """Renewals, and those that fail, can be counted; nothing of them is secret."""
    events: list[Event] = []
    async with make_client(FakeTransport(), auth=LoginAuth(EMAIL, PASSWORD), on_event=events.append) as client:
        await client.transactions.get("tx-1")
    (renewed,) = of(TokenRenewed, events)
    assert isinstance(renewed, TokenRenewed)
    assert renewed.error is None
    assert PASSWORD not in repr(events)
    assert EMAIL not in repr(events)


async def test_a_payment_of_which_nobody_knows_is_an_event() -> None:
    """What a person may have to look at is told once, with its key and without its phone number."""
    events: list[Event] = []
    async with make_client(FakeTransport(script(GARBAGE)), on_event=events.append) as client:
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="order-1")
    assert of(PaymentUnknown, events) == [
        PaymentUnknown(idempotency_key="order-1", sent_at=NOON, error="ServerError"),
    ]
    assert PHONE_NUMBER[1:] not in repr(events)


async def test_a_handler_that_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A broken metric does not break a payment; the log says so."""

    def fail(event: Event) -> None:
        raise ZeroDivisionError

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
