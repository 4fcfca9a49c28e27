"""Waiting for a final state: by the contract's schedule, to the second, and through passing faults."""

import logging
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    ConnectionFailed,
    InvalidRequest,
    InvalidTransactionId,
    PermissionDenied,
    RateLimitExceeded,
    RetryPolicy,
    Schedule,
    ServerError,
    TransactionNotFound,
    UnexpectedResponse,
    WaitTimeout,
)
from tests.contract import samples
from tests.support.fakes import Handler, Hang, Sent, Step, connect, held, in_turn, refusal
from tests.support.server import Response

PENDING = samples.found()
PAID = samples.found(status="SUCCESS")
ONCE = RetryPolicy(max_attempts=1)
MISSING = refusal("TRANSACTION_NOT_FOUND", 404)


def finally_after(looks: int, last: Any = PAID, before: Any = PENDING) -> Handler:
    return in_turn(*[before] * looks, last)


class TestSchedule:
    async def test_the_looks_follow_the_contract_s_advice(self) -> None:
        """At once, then after 1 s, 1.5 s, 2.25 s, … and never more than 30 s apart."""
        async with connect(finally_after(14)) as (client, service):
            start = anyio.current_time()
            paid = await client.transactions.wait("t-1")
        assert paid.succeeded
        pauses = [min(30.0, 1.5**look) for look in range(14)]
        expected = [sum(pauses[:look]) for look in range(15)]
        assert expected[:4] == [0, 1, 2.5, 4.75]
        assert [at - start for at in service.times] == pytest.approx(expected)

    async def test_a_schedule_of_one_s_own(self) -> None:
        async with connect(finally_after(5)) as (client, service):
            start = anyio.current_time()
            await client.transactions.wait("t-1", schedule=Schedule(first=2, factor=2, cap=5))
        assert [at - start for at in service.times] == pytest.approx([0, 2, 6, 11, 16, 21])

    async def test_a_final_payment_takes_one_look_and_no_time(self) -> None:
        async with connect(in_turn(PAID)) as (client, service):
            start = anyio.current_time()
            await client.transactions.wait("t-1")
            assert anyio.current_time() == start
        assert len(service.sent) == 1

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            *(({"schedule": each}, "schedule must be a Schedule, not ") for each in (5, "fast", Schedule)),
            *(({"timeout": each}, "timeout must be ") for each in (0, -1, float("nan"), float("inf"), True, "5")),
            *(({"transaction_id": each}, "transaction_id must be ") for each in ("", ".", "..", None)),
        ],
        ids=str,
    )
    async def test_what_makes_no_sense_is_refused_before_the_first_look(self, wrong: Any, said: str) -> None:
        async with connect(in_turn(PENDING)) as (client, service):
            with pytest.raises(InvalidRequest, match=f"^{said}"):
                await client.transactions.wait(**{"transaction_id": "t-1", **wrong})
        assert service.sent == []


class TestStates:
    @pytest.mark.parametrize(
        ("kind", "status"),
        [
            ("collection", "SUCCESS"),
            ("collection", "FAILED"),
            ("collection", "TIMEOUT"),
            ("disbursement", "SUCCESS"),
            ("disbursement", "FAILED"),
            ("disbursement", "INSUFFICIENT_FUNDS"),
        ],
    )
    async def test_every_final_state_ends_the_wait(self, kind: str, status: str) -> None:
        """A failed payment is a result, not an exception: look at `succeeded`."""
        async with connect(finally_after(1, samples.found(type=kind, status=status))) as (client, _):
            row = await client.transactions.wait("t-1")
        assert (row.status, row.succeeded) == (status, status == "SUCCESS")

    async def test_an_unknown_state_is_never_final(self) -> None:
        """A state that the contract does not list is waited out, and is on the error if time runs out."""
        async with connect(in_turn(samples.found(status="REVERSED"))) as (client, service):
            with pytest.raises(WaitTimeout, match="REVERSED") as caught:
                await client.transactions.wait("t-1", timeout=100)
        assert caught.value.transaction.status == "REVERSED"
        assert len(service.sent) > 5


class TestTimeout:
    async def test_it_is_exact_and_carries_what_was_seen_last(self) -> None:
        """Time runs out to the second, and the error holds the last state."""
        rows = [samples.found(status="PENDING", reference=f"r-{look}") for look in range(4)]
        async with connect(in_turn(*rows)) as (client, service):
            start = anyio.current_time()
            with pytest.raises(WaitTimeout) as caught:
                await client.transactions.wait("t-1", timeout=5)
            assert anyio.current_time() - start == pytest.approx(5)
        assert caught.value.transaction.reference == "r-3"
        assert caught.value.transaction_id == "t-1"
        assert str(caught.value) == "not final after 5 s: PENDING"
        assert caught.value.__cause__ is None
        assert [at - start for at in service.times] == pytest.approx([0, 1, 2.5, 4.75])

    async def test_it_is_exact_while_a_lookup_hangs(self) -> None:
        """A service that does not answer cannot keep the caller longer than agreed."""
        async with connect(lambda sent: Hang()) as (client, _):
            start = anyio.current_time()
            with pytest.raises(WaitTimeout, match="not seen") as caught:
                await client.transactions.wait("t-1", timeout=7)
            assert anyio.current_time() - start == pytest.approx(7)
        assert caught.value.transaction is None

    async def test_it_is_exact_while_the_limiter_holds(self) -> None:
        async with connect(in_turn(PENDING), rate_limiter=held(60)) as (client, service):
            start = anyio.current_time()
            with pytest.raises(WaitTimeout):
                await client.transactions.wait("t-1", timeout=3)
            assert anyio.current_time() - start == pytest.approx(3)
        assert service.sent == []

    @pytest.mark.parametrize(
        ("answers", "timeout", "cause"),
        [
            pytest.param([httpx.ConnectError("refused")], 5, ConnectionFailed, id="the last fault is"),
            pytest.param([({}, 502), PENDING], 5, type(None), id="one that passed is not"),
            pytest.param([refusal("TRANSACTION_NOT_FOUND", 404)], 60, TransactionNotFound, id="not found"),
        ],
    )
    async def test_a_fault_is_its_cause_if_nothing_was_seen_since(
        self, answers: list[Any], timeout: float, cause: type[object]
    ) -> None:
        """If the service could not be reached to the end, the error names that; a fault early on is not blamed."""
        async with connect(in_turn(*answers), retry=ONCE) as (client, _):
            with pytest.raises(WaitTimeout) as caught:
                await client.transactions.wait("t-1", timeout=timeout)
        assert isinstance(caught.value.__cause__, cause)
        assert caught.value.transaction is not None or "not seen" in str(caught.value)

    async def test_a_cancelled_wait_may_be_made_again(self) -> None:
        async with connect(finally_after(3)) as (client, _):
            with anyio.move_on_after(0.5):
                await client.transactions.wait("t-1")
            assert (await client.transactions.wait("t-1")).succeeded


FAULTS: dict[str, tuple[Any, type[Exception]]] = {
    "no connection": (httpx.ConnectError("refused"), ConnectionFailed),
    "reset": (httpx.ReadError("reset"), ConnectionFailed),
    "5xx": (({}, 503), ServerError),
    "wrong shape": ({"status": "success"}, UnexpectedResponse),
    "rate limit": (refusal("RATE_LIMIT_EXCEEDED", 429, 999), RateLimitExceeded),
}


class TestFaults:
    async def test_the_end_of_another_transaction_is_not_believed(self) -> None:
        """An answer that shows another id is that of another request."""
        async with connect(in_turn(samples.found(id="t-2", status="SUCCESS"), PAID)) as (client, service):
            assert (await client.transactions.wait("t-1")).id == "t-1"
        assert len(service.sent) == 2

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_a_passing_fault_is_waited_out_and_logged(self, fault: str, caplog: pytest.LogCaptureFixture) -> None:
        """A network that comes and goes does not end the wait."""
        answer, kind = FAULTS[fault]
        async with connect(in_turn(PENDING, answer, answer, PAID), retry=ONCE) as (client, service):
            with caplog.at_level(logging.WARNING, "mobilemoney_async"):
                assert (await client.transactions.wait("t-1")).succeeded
            with pytest.raises(kind):
                service.handler = in_turn(answer)
                await client.transactions.get("t-1")
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 2
        assert warnings[0].startswith("waiting for a transaction goes on after: ")
        assert len(service.sent) == 5

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            (refusal("INVALID_TRANSACTION_ID", 400), InvalidTransactionId),
            (refusal("insufficient_permissions", 403), PermissionDenied),
        ],
    )
    async def test_a_refusal_ends_the_wait(self, answer: Any, kind: type[Exception]) -> None:
        """An error that asking again cannot fix is raised at once."""
        async with connect(in_turn(PENDING, answer)) as (client, service):
            with pytest.raises(kind):
                await client.transactions.wait("t-1")
        assert len(service.sent) == 2


class TestNotFound:
    async def test_it_is_doubted_for_two_minutes(self) -> None:
        """A payment created a moment ago may not be shown yet."""
        start = anyio.current_time()

        async def handler(sent: Sent) -> Step:
            shown = anyio.current_time() - start >= 90
            return Response.json(PAID) if shown else MISSING

        async with connect(handler) as (client, _):
            assert (await client.transactions.wait("t-1")).succeeded
        assert anyio.current_time() - start < 120

    async def test_it_is_raised_by_the_first_look_after_that(self) -> None:
        async with connect(in_turn(MISSING)) as (client, service):
            start = anyio.current_time()
            with pytest.raises(TransactionNotFound):
                await client.transactions.wait("t-1")
            waited = anyio.current_time() - start
        assert 120 <= waited <= 150
        assert [at - start for at in service.times][-2] < 120

    async def test_a_payment_that_was_seen_does_not_vanish(self) -> None:
        """Once seen, "not found" is a passing fault: another replica has not caught up."""
        handler = in_turn(PENDING, *[MISSING] * 20, PAID)
        async with connect(handler) as (client, _):
            assert (await client.transactions.wait("t-1")).succeeded


async def test_many_waits_at_once_share_the_limit() -> None:
    """Waiting for several payments side by side needs nothing but a task group."""
    paid: list[str] = []

    async with connect(finally_after(20)) as (client, _), anyio.create_task_group() as tasks:

        async def follow() -> None:
            paid.append((await client.transactions.wait("t-1")).id)

        for _ in range(10):
            tasks.start_soon(follow)
    assert len(paid) == 10
