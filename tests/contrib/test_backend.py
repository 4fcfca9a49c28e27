"""The payments of a backend: orders are paid once, answered soon, and known for ever."""

import asyncio
import sqlite3
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import anyio
import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mobilemoney_async import (
    AsyncClient,
    ConnectionFailed,
    IdempotencyConflict,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentCause,
    PaymentState,
    PermissionDenied,
    RateLimiter,
    RetryPolicy,
    SQLStore,
    StoreError,
    TransportError,
)
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.orders import OrderState, OrderStatus, TooManyOrders, TooManyPrompts, read_record
from mobilemoney_async.contrib.prompt_limit import PromptLimits
from mobilemoney_async.payments.feed.payment_change import PaymentChange
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.messages import Reply, auth_error
from mobilemoney_async.testing import killed_at_end

SPEED = 100.0
PAYS, DECLINES, STUCK, NO_ANSWER = (f"+255780000{n}" for n in ("789", "039", "129", "203"))


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(speed=SPEED)


@asynccontextmanager
async def opened(
    sandbox: Sandbox, folder: Path, *, token: str | None = None, limiter: RateLimiter | None = None, **options: Any
) -> AsyncIterator[Backend]:
    fast = RateLimiter(per_minute=60 * SPEED, burst=10, window=60 / SPEED, jitter=0.5 / SPEED)
    store = SQLStore(f"sqlite:///{folder}/payments.db", grace=0)
    settings = {"min_interval": 0.02, "reconcile_every": 0.2, "drain": 5.0, **options}
    async with (
        sandbox.client(
            auth=token or sandbox.token,
            store=store,
            rate_limiter=limiter or fast,
            timeout=0.5,
            retry=RetryPolicy(first_delay=0.05),
        ) as client,
        Backend(client, **settings) as backend,
    ):
        yield backend


async def end(backend: Backend, order: str) -> OrderStatus:
    with anyio.fail_after(20):
        statuses = [status async for status in backend.watch(order)]
    assert statuses[-1].is_settled
    return statuses[-1]


class Settled:
    """The merchant's function, which notes the keys and the ends that it was told of."""

    def __init__(self) -> None:
        self.told: list[tuple[str | None, str | None]] = []

    @property
    def keys(self) -> list[str | None]:
        return [key for key, _ in self.told]

    async def __call__(self, change: PaymentChange) -> None:
        self.told.append((change.key, change.status and str(change.status)))

    async def called(self, times: int) -> None:
        """Wait until it was called so often."""
        with anyio.fail_after(60):
            while len(self.told) < times:
                await anyio.sleep(0.05)


@pytest.mark.costly("runs lines of contrib/backend.py, contrib/orders.py that no quick test runs")
async def test_an_order_is_paid_watched_and_told(sandbox: Sandbox, tmp_path: Path) -> None:
    """A watcher sees each state once, `on_settled` gets the final one, and the order is known from then on."""
    settled: list[tuple[str | None, str]] = []
    # The second one as by a task that the merchant's code waits for, and that somebody else has cancelled.
    failures: list[BaseException] = [RuntimeError("the merchant's code fails once"), asyncio.CancelledError()]

    async def on_settled(change: PaymentChange) -> None:
        settled.append((change.key, str(change.status)))
        if failures:
            raise failures.pop(0)

    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop") as backend:
        first = await backend.collect("order-1", phone_number=PAYS, amount=1500)
        assert first.state is OrderState.PENDING
        assert first.reference is not None
        states = [status.state async for status in backend.watch("order-1")]
        assert states == [OrderState.PENDING, OrderState.SUCCEEDED]
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED
        refused = await backend.disburse("order-2", phone_number="+255780000089", amount=1500)
        assert refused.state is OrderState.PENDING
        assert (await end(backend, "order-2")).reason == "RECIPIENT_NOT_FOUND"
        with anyio.fail_after(20):
            while len(settled) < 4:
                await anyio.sleep(0.05)
    assert sorted(settled) == [("order-1", "SUCCESS")] * 2 + [("order-2", "FAILED")] * 2


async def test_numbers_are_read_as_customers_type_them(sandbox: Sandbox, tmp_path: Path) -> None:
    """Only where the shop says so: without a country code, a number might be of any country."""
    async with opened(sandbox, tmp_path) as backend:
        with pytest.raises(InvalidRequest, match=r"^phone_number must be in international format"):
            await backend.collect("order-1", phone_number="0780 000 129", amount=1500)
    async with opened(sandbox, tmp_path, local_numbers=True) as backend:
        await backend.collect("order-1", phone_number="0780 000 129", amount=1500)
        await backend.disburse("order-2", phone_number="00255 780 000 129", amount=1500)
        with pytest.raises(InvalidRequest, match=r"^phone_number must be a Tanzanian mobile number"):
            await backend.collect("order-3", phone_number="+254780000129", amount=1500)
    assert {each.phone_number for each in sandbox.transactions.values()} == {"+255780000129"}


@pytest.mark.slow
async def test_a_slow_service_does_not_keep_the_customer(sandbox: Sandbox, tmp_path: Path) -> None:
    """The answer comes when patience ends, and a customer who leaves does not take the create along."""
    sandbox.script(faults.latency(0.3 * SPEED), on="POST c2b")
    async with opened(sandbox, tmp_path) as backend:
        with anyio.move_on_after(0.05) as left:
            await backend.collect("order-1", phone_number=PAYS, amount=1500)
        assert left.cancelled_caught
        spaced = f"{PAYS[:4]} {PAYS[4:]}"
        soon = await backend.collect("order-1", phone_number=spaced, amount=1500, patience=0)
        assert soon.state is OrderState.SENDING
        with pytest.raises(IdempotencyConflict):
            await backend.collect("order-1", phone_number=PAYS, amount=1501)
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED
    assert len(sandbox.transactions) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_leaving_waits_for_what_is_on_its_way(
    sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_cancelled: bool
) -> None:
    """A create in progress is finished before the backend closes, and its payment resumed by the next one."""
    sandbox.script(faults.latency(0.3 * SPEED), on="POST c2b")
    with anyio.CancelScope() as scope:
        async with opened(sandbox, tmp_path) as backend:
            await backend.collect("order-1", phone_number=STUCK, amount=1500, patience=0)
            if is_cancelled:
                await anyio.sleep(0.1)
                scope.cancel()
                await anyio.sleep_forever()
    assert "order-1" not in caplog.text
    (transaction_id,) = sandbox.transactions
    async with opened(sandbox, tmp_path) as backend:
        status = await backend.status("order-1")
        assert status is not None and status.state is OrderState.PENDING
        sandbox.approve(transaction_id)
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED


@pytest.mark.slow
async def test_an_unknown_payment_is_found_out(sandbox: Sandbox, tmp_path: Path) -> None:
    """The caller hears that nobody knows, and a watcher what became of it, without a second payment."""
    async with opened(sandbox, tmp_path) as backend:
        with pytest.raises(OutcomeUnknown):
            await backend.collect("order-1", phone_number=NO_ANSWER, amount=1500)
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED
    assert len(sandbox.transactions) == 1


@pytest.mark.slow
async def test_an_order_does_not_go_back(sandbox: Sandbox, tmp_path: Path) -> None:
    """Whoever asks while an unknown payment is being found sees the states in their order, in every process."""
    sandbox.script(faults.drop(processed=True), on="POST c2b")
    no_list = sandbox.script(faults.drop(processed=False), on="GET transactions", times=10_000)  # until both have seen
    order = [OrderState.SENDING, OrderState.FINDING_OUT, OrderState.PENDING, OrderState.SUCCEEDED]
    seen: dict[str, list[OrderState]] = {"one": [], "other": []}

    async def ask(backend: Backend, states: list[OrderState]) -> None:
        while order[-1] not in states:
            status = await backend.status("order-1")
            if status is not None:
                states.append(status.state)
            if all(OrderState.FINDING_OUT in known for known in seen.values()):
                no_list.cancel()
            await anyio.sleep(0.005)

    async with opened(sandbox, tmp_path) as one, opened(sandbox, tmp_path) as other:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, one, seen["one"])
                tasks.start_soon(ask, other, seen["other"])
                with pytest.raises(OutcomeUnknown):
                    await one.collect("order-1", phone_number=PAYS, amount=1500)
    for states in seen.values():
        assert states == sorted(states, key=order.index)
        assert OrderState.FINDING_OUT in states


async def test_a_second_click_does_not_hide_what_is_known(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an order with an unknown result is paid for again, it is shown as unknown, not as "sending"."""
    sandbox.script(faults.drop(processed=True), on="POST c2b")
    sandbox.script(
        faults.drop(processed=False), on="GET transactions", times=100
    )  # reconciliation fails: the result stays unknown
    async with opened(sandbox, tmp_path) as backend:
        with pytest.raises(OutcomeUnknown):
            await backend.collect("order-1", phone_number=PAYS, amount=1500)
        clicked = anyio.Event()

        async def endless(**_: Any) -> NoReturn:
            clicked.set()
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(backend.client.collections, "create", endless)
        again = await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=0)
        assert again.state is OrderState.FINDING_OUT
        await clicked.wait()
        status = await backend.status("order-1")
        assert status is not None and status.state is OrderState.FINDING_OUT
        monkeypatch.setattr(backend, "_drain", 0)


@pytest.mark.slow
async def test_an_order_hears_that_its_payment_is_not_made(sandbox: Sandbox, tmp_path: Path) -> None:
    """`on_settled` gets a payment that was refused after its answer, or taken out of the queue."""
    told: list[tuple[str | None, str]] = []

    async def on_settled(change: PaymentChange) -> None:
        told.append((change.key, str(change.state)))

    async def heard(*expected: tuple[str, str]) -> None:
        with anyio.fail_after(60):
            while told != [*expected]:
                await anyio.sleep(0.05)
        told.clear()

    no = Reply(status=422, body=b'{"status": "error", "error_code": "AMOUNT_TOO_LOW", "message": "no"}', code=None)
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop") as backend:
        sandbox.script(faults._answer_with("too low", no, processed=False), on="c2b")
        answer = await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=0)
        assert answer.state is OrderState.SENDING
        await heard(("order-1", "REFUSED"))
        payments = backend.client.payments
        order: Any = {"type": "collection", "phone_number": DECLINES, "amount": 2}
        await payments.enqueue(**order, idempotency_key="order-2", not_before=timedelta(hours=1))
        await payments.cancel("order-2", note="the customer has left")
        await heard(("order-2", "CANCELLED"))
        again = await backend.collect("order-2", phone_number=DECLINES, amount=2)
        assert (again.state, again.reason) == (OrderState.FAILED, "CANCELLED")


@pytest.mark.slow
@pytest.mark.parametrize("pause_after", [2, None])
async def test_customers_who_do_not_approve_pause_the_queue_or_not(
    sandbox: Sandbox, tmp_path: Path, pause_after: int | None
) -> None:
    """A shop whose customers are strangers goes on to sell and to pay out, if it says so."""
    async with opened(sandbox, tmp_path, pause_after=pause_after, per_minute=60.0) as backend:

        async def enqueue(order: str, kind: str, phone_number: str, amount: int) -> None:
            await backend.client.payments.enqueue(
                type=kind, phone_number=phone_number, amount=amount, idempotency_key=order
            )

        for amount in (1, 2):
            await enqueue(f"order-{amount}", "collection", DECLINES, amount)
            assert (await end(backend, f"order-{amount}")).state is OrderState.FAILED
        await enqueue("order-3", "collection", PAYS, 3)
        await enqueue("refund-1", "disbursement", PAYS, 1000)
        with anyio.move_on_after(5):
            assert (await end(backend, "refund-1")).state is OrderState.SUCCEEDED
        assert (backend.dispatcher.stats.paused is None) == (pause_after is None)
        status = await backend.status("refund-1")
        assert status is not None
        assert status.state is (OrderState.SUCCEEDED if pause_after is None else OrderState.SENDING)


@pytest.mark.slow
async def test_an_order_that_was_adopted_is_settled_after_a_crash(sandbox: Sandbox, tmp_path: Path) -> None:
    """`on_settled` gets a payment that ended while no process was there, and that only the list shows."""
    sandbox.script(faults.drop(processed=True), on="POST c2b")
    on_settled = Settled()
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop", reconcile_every=60.0) as backend:
        with pytest.raises(OutcomeUnknown):
            await backend.collect("order-1", phone_number=STUCK, amount=1500)
        assert on_settled.keys == []
    (transaction_id,) = sandbox.transactions
    sandbox.approve(transaction_id)
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop") as backend:
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED
        await on_settled.called(1)
    assert on_settled.keys == ["order-1"]


@pytest.mark.slow
async def test_a_crash_in_the_middle_of_an_order_does_not_hold_up_its_end(sandbox: Sandbox, tmp_path: Path) -> None:
    """A process that died between two changes of a payment leaves its end to the next one, at once."""
    on_settled = Settled()
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop"):
        pass  # the consumer has begun
    async with opened(sandbox, tmp_path) as backend:
        await backend.collect("order-1", phone_number=STUCK, amount=1500)
        changes = backend.client.payments.changes(consumer="shop")
        assert (await anext(changes)).key == "order-1"  # not done: the process ends here
    (transaction_id,) = sandbox.transactions
    sandbox.approve(transaction_id)
    quiet: dict[str, Any] = {"min_interval": 1.0, "reconcile_every": 1000.0}
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop", **quiet) as backend:
        await on_settled.called(1)
        await anyio.sleep(60)
        (consumer,) = await backend.client.payments.consumers()
        assert (consumer.lagging, consumer.parked) == ((), ())
    assert on_settled.keys == ["order-1"]


@pytest.mark.slow
async def test_a_backend_that_dies_at_its_first_start_misses_no_final_payment(sandbox: Sandbox, tmp_path: Path) -> None:
    """From entering on, each payment that becomes final is one for `on_settled`, whoever finds it out, and whenever."""
    on_settled = Settled()
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop"):
        pass  # killed before it has read its first change
    async with opened(sandbox, tmp_path) as other:
        await other.collect("order-1", phone_number=PAYS, amount=1500)
        assert (await end(other, "order-1")).state is OrderState.SUCCEEDED
    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop"):
        await on_settled.called(1)
    assert on_settled.keys == ["order-1"]


@pytest.mark.slow
@pytest.mark.parametrize("delay", [None, timedelta(hours=1)])
async def test_an_order_that_the_merchant_queues_at_that_moment_stays_queued(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: timedelta | None
) -> None:
    """Its create fails, since the token is refused: that takes back only what the create itself has queued."""
    async with opened(sandbox, tmp_path, token="revoked") as backend:
        backend.dispatcher.pause()
        payments = backend.client.payments
        get = payments.get

        async def get_and_queue(key: str) -> Any:
            found = await get(key)
            await payments.enqueue(
                type="collection", phone_number=PAYS, amount=1500, idempotency_key=key, not_before=delay
            )
            return found

        monkeypatch.setattr(payments, "get", get_and_queue)
        await backend.collect("order-1", phone_number=PAYS, amount=1500)
        monkeypatch.undo()
        record = await payments.get("order-1")
        assert record is not None and record.state is PaymentState.QUEUED and len(record.history) > 1
        with pytest.raises(MobileMoneyError):
            await backend.collect("order-2", phone_number=PAYS, amount=1500)
        record = await payments.get("order-2")
        assert record is not None and record.state is PaymentState.NOT_SENT


@pytest.mark.costly("runs lines of contrib/orders.py that no quick test runs")
async def test_a_queued_order_is_known_and_sent(sandbox: Sandbox, tmp_path: Path) -> None:
    """An order that was enqueued is about to be sent, unless staff has to decide first; a cancelled one has failed."""
    async with opened(sandbox, tmp_path, per_minute=60.0) as backend:
        backend.dispatcher.pause()
        payments = backend.client.payments
        for order in ("order-1", "order-2"):
            await payments.enqueue(type="collection", phone_number=PAYS, amount=1500, idempotency_key=order)
        await payments.cancel("order-2", note="Asha: ordered twice")
        status = await backend.status("order-1")
        assert status is not None and status.state is OrderState.SENDING
        queued = await payments.get("order-1")
        assert queued is not None
        shown = [
            read_record(attrs.evolve(queued, cause=cause)).state for cause in (PaymentCause.WAITS, PaymentCause.HELD)
        ]
        assert shown == [OrderState.SENDING, OrderState.FINDING_OUT]
        backend.dispatcher.resume()
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED
        paid = await payments.get("order-1")
        assert paid is not None
        turned = attrs.evolve(paid, cause=PaymentCause.CHANGED)
        assert read_record(turned).state is OrderState.FINDING_OUT  # the service contradicts itself: paid, or not
        cancelled = await end(backend, "order-2")
        assert (cancelled.state, cancelled.reason) == (OrderState.FAILED, "CANCELLED")
        assert await backend.collect("order-2", phone_number=PAYS, amount=1500) == cancelled


async def test_an_order_that_was_made_with_extra_fields_is_answered_as_it_is(sandbox: Sandbox, tmp_path: Path) -> None:
    """Whoever has paid it, or waits for it, is not told that the order has another payment."""
    async with opened(sandbox, tmp_path) as backend:
        backend.dispatcher.pause()
        client, order = backend.client, dict[str, Any](phone_number=STUCK, amount=1500)
        with_extra = {**order, "extra": {"external_id": "cart-1"}}
        await client.collections.create(**with_extra, idempotency_key="order-1")
        await client.payments.enqueue(type="collection", **with_extra, idempotency_key="order-2")
        asked = [(await backend.collect(f"order-{each}", **order)).state for each in (1, 2)]
        assert asked == [OrderState.PENDING, OrderState.SENDING]
        with pytest.raises(IdempotencyConflict):
            await backend.collect("order-1", phone_number=STUCK, amount=1600)


@pytest.mark.slow
async def test_a_refused_order_may_be_paid_again(sandbox: Sandbox, tmp_path: Path) -> None:
    """An order that was provably not sent says so, and is paid under the same name when the service is back."""
    sandbox.script(faults.refused(), on="POST c2b", times=4)
    async with opened(sandbox, tmp_path) as backend:
        first = await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=0)
        assert first.state is OrderState.SENDING
        assert (await end(backend, "order-1")).state is OrderState.NOT_MADE
        await backend.collect("order-1", phone_number=PAYS, amount=1500)
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED


@pytest.mark.slow
async def test_another_process_s_order_is_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    """Status, watch and callbacks of one process tell about the orders of another."""
    async with opened(sandbox, tmp_path) as one, opened(sandbox, tmp_path) as other:
        paid = await one.collect("order-1", phone_number=STUCK, amount=1500)
        assert paid.reference is not None
        result = await other.callbacks.receive(b'{"reference": "%s"}' % paid.reference.encode())
        (transaction_id,) = result.transaction_ids
        assert await other.status("order-1") == paid
        sandbox.approve(transaction_id)
        assert (await end(other, "order-1")).state is OrderState.SUCCEEDED
        assert (await end(one, "order-1")).state is OrderState.SUCCEEDED


@pytest.mark.slow
async def test_all_processes_agree_on_an_order_that_waits(sandbox: Sandbox, tmp_path: Path) -> None:
    """An order that waits for the rate limit is being sent, in every process, from the first answer on."""
    slow = RateLimiter(per_minute=1, burst=1, window=60)
    async with (
        opened(sandbox, tmp_path, limiter=slow, per_minute=1, drain=0) as one,
        opened(sandbox, tmp_path) as other,
    ):
        await one.collect("order-1", phone_number=PAYS, amount=1500)
        for order in ("order-2", "order-3"):
            waiting = await one.collect(order, phone_number=STUCK, amount=int(order[-1]), patience=0)
            assert waiting.state is OrderState.SENDING
            assert await other.status(order) == await one.status(order) == waiting
    assert len(sandbox.transactions) == 1


async def test_an_order_that_waits_is_no_other_payment(sandbox: Sandbox, tmp_path: Path) -> None:
    """Another amount, number or type is a conflict at once: the answer shows no payment that was not asked for."""
    slow = RateLimiter(per_minute=1, burst=1, window=60)
    async with opened(sandbox, tmp_path, limiter=slow, per_minute=1, drain=0) as backend:
        await backend.collect("order-1", phone_number=PAYS, amount=1500)
        await backend.collect("order-2", phone_number=PAYS, amount=2, patience=0)
        for ask, number, amount in (
            (backend.collect, PAYS, 3),
            (backend.collect, STUCK, 2),
            (backend.disburse, PAYS, 2),
        ):
            with pytest.raises(IdempotencyConflict) as caught:
                await ask("order-2", phone_number=number, amount=amount, patience=0)
            assert caught.value.idempotency_key == "order-2"


@pytest.mark.slow
async def test_an_order_whose_process_has_died_is_sent_by_another(sandbox: Sandbox, tmp_path: Path) -> None:
    """Once, within a minute, before bulk payouts; a click at another process sends it at once."""
    slow = RateLimiter(per_minute=1, burst=1, window=60)
    async with opened(sandbox, tmp_path, limiter=slow, per_minute=1, drain=0) as dying:
        await dying.collect("order-1", phone_number=PAYS, amount=1500)
        for order in ("order-2", "order-3"):
            await dying.collect(order, phone_number=PAYS, amount=int(order[-1]), patience=0)
    async with opened(sandbox, tmp_path, min_interval=1.0, reconcile_every=1000.0) as backend:
        clicked = await backend.collect("order-2", phone_number=PAYS, amount=2, patience=100)
        assert clicked.state is OrderState.PENDING
        with anyio.fail_after(100):
            statuses = [status async for status in backend.watch("order-3")]
    assert statuses[0] == OrderStatus(order="order-3", state=OrderState.SENDING, amount=Decimal(3))
    assert statuses[-1].state is OrderState.SUCCEEDED
    assert len(sandbox.transactions) == 3


@pytest.mark.costly("runs lines of contrib/orders.py that no quick test runs")
async def test_an_order_that_waited_for_too_long_is_not_made(
    sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No phone rings hours after a crash: status, `on_settled` and log say so, and the order may be paid again."""
    slow, on_settled = RateLimiter(per_minute=1, burst=1, window=60), Settled()
    ours: dict[str, Any] = {"on_settled": on_settled, "name": "shop"}
    async with killed_at_end(opened(sandbox, tmp_path, limiter=slow, per_minute=1, **ours)) as dying:
        await dying.collect("order-1", phone_number=PAYS, amount=1500)
        await dying.collect("order-2", phone_number=PAYS, amount=2, patience=0)
        await dying.disburse("refund-3", phone_number=PAYS, amount=3, patience=0)
    await anyio.sleep(600)
    caplog.clear()
    async with opened(sandbox, tmp_path, **ours) as backend, opened(sandbox, tmp_path, **ours) as other:
        for each in (backend, other):
            late = await end(each, "order-2")
            assert (late.state, late.reason) == (OrderState.NOT_MADE, "TOO_LATE")
        assert (await end(backend, "refund-3")).state is OrderState.SUCCEEDED
        await on_settled.called(3)
        assert ("order-2", None) in on_settled.told
        assert caplog.text.count("order-2") == 1
        assert len(sandbox.transactions) == 2
        again = await other.collect("order-2", phone_number=PAYS, amount=2)
        assert (again.state, again.reason) == (OrderState.PENDING, None)
        assert (await end(backend, "order-2")).state is OrderState.SUCCEEDED
        await on_settled.called(4)
    assert on_settled.told[-1] == ("order-2", "SUCCESS")


@pytest.mark.slow
async def test_an_order_that_was_not_made_is_not_sent_later(sandbox: Sandbox, tmp_path: Path) -> None:
    """Who heard that nothing was paid is not rung when the service is back; their own click pays the same order."""
    sandbox.script(faults.refused(), on="POST c2b", times=4)
    quiet: dict[str, Any] = {"min_interval": 1.0, "reconcile_every": 1000.0}
    async with opened(sandbox, tmp_path, **quiet) as one, opened(sandbox, tmp_path, **quiet) as other:
        with pytest.raises(ConnectionFailed):
            await one.collect("order-1", phone_number=PAYS, amount=1500, patience=20)
        for backend in (one, other):
            status = await backend.status("order-1")
            assert status is not None and status.state is OrderState.NOT_MADE
        await anyio.sleep(45)  # longer than a crash would leave it in the queue
        assert not sandbox.transactions
        assert (await other.collect("order-1", phone_number=PAYS, amount=1500)).state is OrderState.PENDING
        assert (await end(one, "order-1")).state is OrderState.SUCCEEDED


@pytest.mark.slow
async def test_a_payment_that_you_queued_stays_in_the_queue(sandbox: Sandbox, tmp_path: Path) -> None:
    """Where a click sends it before its time, and fails, the order is still being sent, as its transaction promised."""
    sandbox.script(faults.refused(), on="POST c2b", times=4)
    async with opened(sandbox, tmp_path) as backend:
        backend.dispatcher.pause()
        await backend.client.payments.enqueue(
            type="collection", phone_number=PAYS, amount=1500, idempotency_key="order-1"
        )
        clicked = await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=20)
        assert clicked.state is OrderState.SENDING
        backend.dispatcher.resume()
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED


@pytest.mark.slow
async def test_a_released_order_is_answered_once_it_is_sent(sandbox: Sandbox, tmp_path: Path) -> None:
    """After an operator has confirmed that it is absent, it may be paid again, and no answer in between denies it."""
    sandbox.script(faults.drop(processed=False), on="POST c2b")
    async with opened(sandbox, tmp_path, reconcile_every=1000.0) as backend:
        with pytest.raises(OutcomeUnknown):
            await backend.collect("order-1", phone_number=PAYS, amount=1500)
        await backend.client.payments.confirm_absent("order-1", note="Asha looked")
        status = await backend.status("order-1")
        assert status is not None and status.state is OrderState.NOT_MADE
        sandbox.script(faults.latency(0.3 * SPEED), on="GET transactions")
        again = await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=0)
        assert again.state in {OrderState.SENDING, OrderState.PENDING}
        assert (await end(backend, "order-1")).state is OrderState.SUCCEEDED


@pytest.mark.slow
async def test_too_many_orders_are_turned_away(sandbox: Sandbox, tmp_path: Path) -> None:
    """What could only wait for hours is refused at once, and may come again."""
    sandbox.script(faults.latency(0.2 * SPEED), on="POST c2b")
    async with opened(sandbox, tmp_path, most_waiting=1) as backend:
        await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=0)
        with pytest.raises(TooManyOrders) as raised:
            await backend.collect("order-2", phone_number=PAYS, amount=1500)
        assert raised.value.outcome == "not_sent"
        assert await backend.status("order-2") is None
        await end(backend, "order-1")
        assert (await backend.collect("order-2", phone_number=PAYS, amount=1500)).state is OrderState.PENDING


@pytest.mark.costly("runs lines of contrib/backend.py that no quick test runs")
async def test_a_full_queue_does_not_hide_what_is_known(sandbox: Sandbox, tmp_path: Path) -> None:
    """While the queue is full, a paid order says so; a new one is refused at once, and takes no place of its caller."""
    async with opened(sandbox, tmp_path, most_waiting=1, per_caller=(1, 600.0)) as backend:
        await backend.collect("order-1", phone_number=PAYS, amount=1500)
        await end(backend, "order-1")
        sandbox.script(faults.latency(0.2 * SPEED), on="POST c2b")
        await backend.collect("order-2", phone_number=PAYS, amount=1500, patience=0)
        known = await backend.collect("order-1", phone_number=PAYS, amount=1500, caller="asha")
        assert known.state is OrderState.SUCCEEDED
        with pytest.raises(TooManyOrders):
            await backend.collect("order-3", phone_number=PAYS, amount=1500, patience=0, caller="asha")
        await end(backend, "order-2")
        await backend.collect("order-3", phone_number=PAYS, amount=1500, caller="asha")
        with pytest.raises(TooManyPrompts):
            await backend.collect("order-4", phone_number=PAYS, amount=1500, patience=0, caller="asha")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("token", "as refused, InvalidToken: invalid_token (HTTP 401): "),
        ("host", "as not_sent, ConnectionFailed: "),
        ("number", "as refused, APIError: NUMBER_BLOCKED (HTTP 400): "),
    ],
)
async def test_what_keeps_a_customer_from_paying_is_in_the_log(
    sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str, said: str
) -> None:
    """A wrong token, a dead host and a refusal are one warning each, with order, code and message, and no number."""
    if wrong == "host":
        sandbox.script(faults.refused(), on="POST c2b", times=100)
    elif wrong == "number":
        body = f'{{"status": "error", "error_code": "NUMBER_BLOCKED", "message": "{PAYS} is blocked"}}'
        answer = Reply(status=400, body=body.encode(), code="NUMBER_BLOCKED")
        sandbox.script(faults.Fault(name="blocked", instead=lambda _: answer), on="POST c2b")
    token = "not-a-token" if wrong == "token" else None
    async with opened(sandbox, tmp_path, token=token) as backend:
        with pytest.raises(MobileMoneyError):
            await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=20)
    (warned,) = [each for each in caplog.records if "order-1" in each.getMessage()]
    assert (warned.name, warned.levelname) == ("mobilemoney_async", "WARNING")
    assert warned.getMessage().startswith(f"order 'order-1': the create ended {said}")
    assert PAYS[4:] not in caplog.text


@pytest.mark.slow
async def test_one_number_is_not_rung_all_day(sandbox: Sandbox, tmp_path: Path) -> None:
    """A sixth new payment of a number is refused with the time to wait, however it is written; known orders never."""
    async with opened(sandbox, tmp_path) as backend:
        for n in range(5):
            await backend.collect(f"order-{n}", phone_number=STUCK, amount=1500 + n)
        for number in (STUCK, f"{STUCK[:4]} {STUCK[4:7]}-{STUCK[7:]}"):
            with pytest.raises(TooManyPrompts) as raised:
                await backend.collect("order-9", phone_number=number, amount=1500)
            assert raised.value.outcome == "not_sent"
            assert raised.value.idempotency_key == "order-9"
            assert 0 < raised.value.retry_after <= 600
        assert await backend.status("order-9") is None
        again = await backend.collect("order-0", phone_number=STUCK, amount=1500)
        assert again.state is OrderState.PENDING
        assert (await backend.collect("order-8", phone_number=PAYS, amount=1500)).state is OrderState.PENDING
        paid = await backend.disburse("order-7", phone_number=STUCK, amount=1500)
        assert paid.state is OrderState.PENDING
    assert len(sandbox.transactions) == 7


@pytest.mark.slow
async def test_one_caller_does_not_ring_all_phones(sandbox: Sandbox, tmp_path: Path) -> None:
    """A stranger with many numbers is stopped, others are not; a second click and a known order take no place."""
    async with opened(sandbox, tmp_path, per_caller=(2, 600.0), per_number=None) as backend:
        for n in (0, 1, 0, 1):
            await backend.collect(f"order-{n}", phone_number=f"+25568100000{n}", amount=1500, caller="stranger")
        with pytest.raises(TooManyPrompts):
            await backend.collect("order-2", phone_number="+255681000002", amount=1500, caller="stranger")
        for caller in ("asha", None):
            await backend.collect(f"order-{caller}", phone_number=PAYS, amount=1500, caller=caller)
        with pytest.raises(InvalidRequest):
            await backend.collect("order-3", phone_number=PAYS, amount=1500, caller=" ")
    assert len(sandbox.transactions) == 4


@pytest.mark.slow
async def test_many_at_once_take_no_place_twice(sandbox: Sandbox, tmp_path: Path) -> None:
    """A hundred requests in the same moment ring a phone as often as the limit says."""
    refused: list[str] = []
    async with opened(sandbox, tmp_path, per_number=(3, 600.0)) as backend:

        async def click(n: int) -> None:
            try:
                await backend.collect(f"order-{n}", phone_number=STUCK, amount=1500 + n, patience=20)
            except TooManyPrompts:
                refused.append(f"order-{n}")

        async with anyio.create_task_group() as tasks:
            for n in range(100):
                tasks.start_soon(click, n)
    assert (len(sandbox.transactions), len(refused)) == (3, 97)


@pytest.mark.slow
async def test_what_was_not_sent_takes_no_place(sandbox: Sandbox, tmp_path: Path) -> None:
    """A customer whose payments never left, since the network was away, or were refused, may try again."""
    sandbox.script(faults.refused(), on="POST c2b", times=4)
    async with opened(sandbox, tmp_path, per_number=(1, 600.0)) as backend:
        with pytest.raises(ConnectionFailed):
            await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=20)
        refusal = auth_error(403, "insufficient_permissions", "The token does not allow this")
        sandbox.script(faults.Fault(name="forbidden", instead=lambda _: refusal), on="POST c2b")
        with pytest.raises(PermissionDenied):
            await backend.collect("order-1", phone_number=PAYS, amount=1500, patience=20)
        assert (await backend.collect("order-1", phone_number=PAYS, amount=1500)).state is OrderState.PENDING


@pytest.mark.slow
@given(
    most=st.integers(1, 4),
    pauses=st.lists(st.floats(0, 12), max_size=40),
    names=st.lists(st.sampled_from("ab"), min_size=40, max_size=40),
)
@example(most=1, pauses=[12.0, 0.0, 0.0], names=["a"] * 40)
def test_no_span_has_more_than_the_limit(most: int, pauses: list[float], names: list[str]) -> None:
    """Whenever a name comes, it takes a place or is told when; coming then it gets one, and no span has too many."""
    limits, now = PromptLimits(per_number=None, per_caller=(most, 10.0)), 0.0
    taken: dict[str, list[float]] = {"a": [], "b": []}
    for pause, name in zip(pauses, names, strict=False):
        now += pause
        wait = limits.take((PAYS, name), now)
        assert 0 <= wait <= 10.0 + 1e-6  # a float of the clock
        if wait:
            now += wait + 1e-9
            assert limits.take((PAYS, name), now) == 0
        taken[name].append(now)
    for times in taken.values():
        for first, after in zip(times, times[most:], strict=False):
            assert after - first >= 10.0 - 1e-6


class Name(str):
    """A name that may be watched until nobody keeps it."""

    __slots__ = ("__weakref__",)


def test_a_limit_counts_in_any_span_and_forgets() -> None:
    """A place is free again after exactly its time, is taken under both limits or none, and is forgotten in the end."""
    limits = PromptLimits(per_number=(2, 10.0), per_caller=(3, 5.0))
    assert [limits.take(("a", "x"), now) for now in (0.0, 4.0, 5.0)] == [0.0, 0.0, 5.0]
    assert [limits.take(("b", "x"), now) for now in (5.0, 5.5, 6.0)] == [0.0, 0.0, 9.0]
    assert limits.take(("c", "x"), 6.0) == 3.0
    assert limits.take(("c", None), 6.0) == limits.take(("a", "x"), 10.0) == 0.0
    assert limits.take(("a", None), 10.0) == 4.0
    limits.give_back(("a", "x"), 10.0)
    limits.give_back(("a", "x"), 10.0)
    assert limits.take(("a", None), 10.0) == 0.0
    strangers = [Name(f"stranger {n}") for n in range(1000)]
    kept = weakref.WeakSet(strangers)
    for _ in range(1000):
        limits.take((strangers.pop(), None), 11.0)
    assert len(kept) == 1000
    limits.take(("last", None), 21.0)
    assert not kept


async def test_a_quiet_watch_says_the_same_again(sandbox: Sandbox, tmp_path: Path) -> None:
    """A watcher of an open order hears from it at every heartbeat; of an unknown one nothing."""
    async with opened(sandbox, tmp_path) as backend:
        await backend.collect("order-1", phone_number=STUCK, amount=1500)
        heard = []
        async for status in backend.watch("order-1", heartbeat=0.05):
            heard.append(status.state)
            if len(heard) == 3:
                break
        assert heard == [OrderState.PENDING] * 3
        assert [status async for status in backend.watch("order-9")] == []


async def test_arguments_are_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    """What could not work is refused by name, and nothing is sent."""
    async with opened(sandbox, tmp_path) as backend:
        with pytest.raises(InvalidRequest):
            await backend.collect("order-1", phone_number="0681", amount=1500)
        with pytest.raises(InvalidRequest):
            await backend.collect(" ", phone_number=PAYS, amount=1500)
        assert await backend.status("order-1") is None
        client = backend.client
    with pytest.raises(InvalidRequest):
        await backend.collect("order-1", phone_number=PAYS, amount=1500)
    with pytest.raises(InvalidRequest):
        Backend(client, reconcile_every=0)
    with pytest.raises(InvalidRequest, match="send_within"):
        Backend(client, send_within=0)
    for wrong in (5, (0, 60.0), (5, 0.0), (5,), ("5", 60.0)):
        with pytest.raises(InvalidRequest, match="per_number"):
            Backend(client, per_number=wrong)  # type: ignore[arg-type]

    async def generator(change: PaymentChange) -> AsyncIterator[None]:
        yield

    for wrong_function in (5, generator):
        with pytest.raises(InvalidRequest, match="on_settled must be an async function"):
            Backend(client, on_settled=wrong_function, name="shop")  # type: ignore[arg-type]
    async with sandbox.client() as without_store:
        with pytest.raises(InvalidRequest):
            Backend(without_store)
    assert not sandbox.transactions


@pytest.mark.slow
async def test_a_plain_function_is_no_on_settled(
    sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only its call tells: the log names the argument. A plain function that returns an awaitable is one."""
    settled = Settled()

    def on_settled(change: PaymentChange) -> Any:
        return settled(change) if change.key == "order-2" else None

    async with opened(sandbox, tmp_path, on_settled=on_settled, name="shop") as backend:
        await backend.collect("order-1", phone_number=PAYS, amount=1500)
        await end(backend, "order-1")
        await backend.collect("order-2", phone_number=PAYS, amount=1501)
        await settled.called(1)
    assert "on_settled must be an async function" in caplog.text
    assert settled.told == [("order-2", "SUCCESS")]


@pytest.mark.slow
async def test_a_caller_s_own_failure_is_the_caller_s(sandbox: Sandbox, tmp_path: Path) -> None:
    """Whoever pays hears that a token source failed, and of what; it does not end the backend."""

    class Broken:
        async def token(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("no token today")

    client = AsyncClient(
        sandbox.base_url,
        auth=Broken(),  # type: ignore[arg-type]
        transport=sandbox.transport(),
        store=SQLStore(f"sqlite:///{tmp_path}/payments.db"),
    )
    async with client, Backend(client) as backend:
        for number in range(2):
            with pytest.raises(TransportError, match="auth failed: RuntimeError") as caught:
                await backend.collect(f"order-{number}", phone_number=PAYS, amount=1500 + number, patience=100)
            assert isinstance(caught.value.__cause__, RuntimeError)
            assert caught.value.outcome == "not_sent"


async def test_an_exception_of_the_block_leaves_it_as_it_is(sandbox: Sandbox, tmp_path: Path) -> None:
    """What the application raises, and what keeps the backend from starting, is not wrapped in a group."""
    with pytest.raises(KeyError):
        async with opened(sandbox, tmp_path):
            raise KeyError("mine")
    with pytest.raises(StoreError):
        async with opened(sandbox, tmp_path / "missing"):
            pytest.fail("there is no database")


async def test_a_backend_that_ends_by_itself_says_so(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may drop the error of its lifespan: the log tells that orders are not sent any more."""

    class Broken(BaseException):
        pass

    async def fail() -> NoReturn:
        raise Broken

    with pytest.raises(Broken):
        async with opened(sandbox, tmp_path) as backend:
            monkeypatch.setattr(backend.client.payments, "reconcile", fail)
            await anyio.sleep(20)
    (said,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert said.getMessage().startswith("the backend has ended")
    monkeypatch.undo()
    caplog.clear()
    for _ in range(3):  # trio ends the tasks and the block in any order
        with anyio.CancelScope() as scope:
            async with opened(sandbox, tmp_path):
                await anyio.sleep(0.02)
                scope.cancel()
                await anyio.sleep_forever()
    assert "ended" not in caplog.text


async def test_a_store_that_is_away_is_reported_once_a_minute(
    sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An hour without the database does not fill the log, however many readers a backend has."""
    ours: dict[str, Any] = {"on_settled": Settled(), "name": "shop", "reconcile_every": 60, "min_interval": 1}
    async with opened(sandbox, tmp_path, **ours):
        with closing(sqlite3.connect(tmp_path / "payments.db")) as database:
            database.execute("ALTER TABLE mobilemoney_changes RENAME TO gone")
        await anyio.sleep(6)
    assert caplog.text.count("changes of orders are shown, or settled, later") == 1


@pytest.mark.costly("runs lines of contrib/backend.py that no quick test runs")
async def test_a_store_that_fails_is_waited_out(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher of an order gets only what the store has said, also while the database is away."""
    async with opened(sandbox, tmp_path) as one, opened(sandbox, tmp_path) as other:
        await one.collect("order-1", phone_number=STUCK, amount=1500)

        async def fail(key: str) -> None:
            raise StoreError("the database is away")

        watch = other.watch("order-1", heartbeat=0.05)
        with monkeypatch.context() as away:
            away.setattr(other.client.payments, "get", fail)
            with pytest.raises(StoreError):
                await other.status("order-1")
            with anyio.move_on_after(5) as waited:
                await anext(watch)
            assert waited.cancelled_caught
        with anyio.fail_after(20):
            assert (await anext(watch)).state is OrderState.PENDING
            monkeypatch.setattr(other.client.payments, "get", fail)
            assert (await anext(watch)).state is OrderState.PENDING
