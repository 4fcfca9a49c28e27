"""Answers that come after their key was released and sent again: they decide nothing about the next attempt."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import AsyncClient, MobileMoneyError, OutcomeUnknown
from mobilemoney_async.sandbox import Fault, faults
from tests.payments.service import ORDER, get, make_world

pytestmark = pytest.mark.pairs


async def create(client: AsyncClient) -> None:
    """Make the payment; its error is in the record too."""
    with suppress(MobileMoneyError):
        await client.collections.create(**ORDER, idempotency_key="k")


async def dispatch(client: AsyncClient) -> None:
    """Send it from the queue, again if it comes back into the queue."""
    await client.payments.enqueue(**ORDER, type="collection", idempotency_key="k")
    async with client.dispatcher():
        await anyio.sleep_forever()


LATE: dict[str, tuple[Fault | None, str]] = {
    "not sent": (faults.refused(), "not sent"),
    "refused": (faults.rate_limited(), "RATE_LIMIT_EXCEEDED"),
    "refused softly": (faults.server_error(422, processed=False), "HTTP 422"),
    "unreadable": (faults.html_page(502, processed=True), "HTTP 502"),
    "acknowledged": (None, "acknowledged: transaction txn_"),
}
"""End of the first attempt, and the reason that the history gives for it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "send"), [*((late, create) for late in LATE), ("not sent", dispatch), ("refused", dispatch)]
)
async def test_a_late_answer_leaves_the_next_attempt_alone(
    store_url: str, late: str, send: Callable[[AsyncClient], Coroutine[Any, Any, None]]
) -> None:
    """The second attempt stays on its way, no third is sent, and the history says how the first one ended."""
    world, (fault, said) = make_world(store_url), LATE[late]
    begun, may_end = [anyio.Event(), anyio.Event()], [anyio.Event(), anyio.Event()]

    async def hold(request: httpx.Request) -> None:
        if request.method == "POST" and world.sent <= 2:
            number = world.sent - 1
            begun[number].set()
            await may_end[number].wait()

    world.line.before = hold
    if fault is not None:
        world.sandbox.script(fault, on="c2b")
    async with (
        world.client(timeout=60.0) as first,
        world.client(world.store(grace=0), timeout=60.0) as second,
        world.client(deadline=3.0) as third,
        anyio.create_task_group() as group,
    ):
        group.start_soon(send, first)
        await begun[0].wait()
        await second.payments.reconcile(stale_after=0)
        await second.payments.confirm_absent("k", note="looked, and found none")
        group.start_soon(create, second)
        await begun[1].wait()
        may_end[0].set()
        with pytest.raises(OutcomeUnknown):
            await third.collections.create(**ORDER, idempotency_key="k")
        record = await get(third, "k")
        assert (record.state, record.attempt, world.sent) == ("SENDING", 2, 2)
        assert [each.what for each in record.history][-4:] == ["unknown", "confirmed", "sent", "contradiction"]
        assert record.history[-1].detail is not None
        assert said in record.history[-1].detail
        assert "is of attempt 1, and attempt 2 is SENDING" in record.history[-1].detail
        may_end[1].set()
        await anyio.sleep(3)
        assert (await get(third, "k")).state == "ACKNOWLEDGED"
        group.cancel_scope.cancel()
    assert world.sent == 2


async def test_an_attempt_that_is_lost_after_its_key_was_released_leaves_it_released(
    sqlite_file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A person has decided, and nothing is known that they did not know; the history says so."""
    world, begun, may_end = make_world(sqlite_file_url), anyio.Event(), anyio.Event()

    async def hold(request: httpx.Request) -> None:
        if request.method == "POST":
            begun.set()
            await may_end.wait()

    world.line.before = hold
    world.sandbox.script(faults.html_page(502, processed=True), on="c2b")
    async with (
        world.client(timeout=60.0) as first,
        world.client(world.store(grace=0)) as second,
        anyio.create_task_group() as group,
    ):
        group.start_soon(create, first)
        await begun.wait()
        await second.payments.reconcile(stale_after=0)
        await second.payments.confirm_absent("k", note="looked, and found none")
        may_end.set()
        await anyio.sleep(3)
        record = await get(second, "k")
    assert (record.state, record.history[-1].what) == ("RELEASED", "contradiction")
    assert "the result of payment 'k' of account 'default' is not recorded: " in caplog.text  # and never will be
