"""asyncio's own `Task.cancel()`, of which a program that ends may get several: no shield of anyio's stops it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import pytest

from mobilemoney_async import AsyncClient
from mobilemoney_async.cancellation import shielded
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.merchants import Merchants
from tests.payments.service import ORDER, leave, make_world, on_asyncio, rows

pytestmark = on_asyncio

Section: TypeAlias = Callable[[AsyncClient, int], Awaitable[object]]


async def create(client: AsyncClient, number: int) -> None:
    await client.collections.create(**{**ORDER, "amount": 1000 + number}, idempotency_key=f"order-{number}")


async def dispatch(client: AsyncClient, number: int) -> None:
    await client.payments.enqueue(
        type="collection", **{**ORDER, "amount": 1000 + number}, idempotency_key=f"order-{number}"
    )
    async with client.dispatcher(per_minute=6000):
        await anyio.sleep_forever()


async def sell(client: AsyncClient, number: int) -> None:
    async with Backend(client) as backend:
        await backend.collect(f"order-{number}", **{**ORDER, "amount": 1000 + number}, patience=0.1)
        await anyio.sleep_forever()


async def consume(client: AsyncClient, number: int) -> None:
    async for _ in client.payments.changes(consumer="books", start="oldest"):
        pass


async def follow(client: AsyncClient, number: int) -> None:
    async with client.poller() as poller:
        poller.track("tx-of-another-process")
        await anyio.sleep_forever()


async def reconcile(client: AsyncClient, number: int) -> None:
    await client.payments.reconcile()


async def cancel_twice(task: asyncio.Future[Any], steps: int) -> None:
    """Cancel a task again after so many steps of the loop, and wait until it has ended."""
    task.cancel()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.costly("no quick test cancels natively twice in the middle of a section that must end")
@pytest.mark.parametrize("section", [create, dispatch, sell, consume, follow, reconcile])
async def test_a_section_that_is_cancelled_twice_leaves_no_lease_and_no_result_behind(
    sqlite_file_url: str, section: Section
) -> None:
    """Wherever the second one strikes: others go on at once, and the store has the result of what was sent."""
    world = make_world(sqlite_file_url)
    async with world.client(timeout=30) as client:
        await create(client, 0)
        if section is reconcile:
            await leave(world, "order-lost")
            await anyio.sleep(200)
        world.line.answer_after = 3.0
        for steps in (1, 2, 3, 5, 8):
            task = asyncio.ensure_future(section(client, steps))
            await anyio.sleep(1.5)
            await cancel_twice(task, steps)
            held = rows(sqlite_file_url, "SELECT name FROM mobilemoney_leases WHERE holder IS NOT NULL")
            assert (held, world.states().count("SENDING")) == ([], 0), steps
            if section in {dispatch, sell}:  # these wait for the answers
                assert {*world.states()} == {"ACKNOWLEDGED"}, steps


@pytest.mark.costly("no quick test cancels a worker natively twice")
async def test_a_worker_that_is_cancelled_twice_ends_and_leaves_its_accounts(sqlite_file_url: str) -> None:
    """Such as by SIGTERM and Ctrl-C: it waits for the answer to what it has sent, and renews no claim afterwards."""
    world = make_world(sqlite_file_url)
    world.line.after = lambda request: anyio.sleep(6 if request.method == "POST" else 0)

    async def auth(account: str) -> str:
        return world.sandbox.token

    async def serve() -> None:
        given: dict[str, Any] = {"auth": auth, "transport": lambda _: world.line, "utcnow": world.utcnow}
        async with Merchants(world.sandbox.base_url, store=world.store(), **given) as merchants, merchants.worker():
            client = await merchants.client("shop")
            await client.payments.enqueue(type="collection", **ORDER, idempotency_key="order-1")
            await anyio.sleep_forever()

    task = asyncio.create_task(serve())
    while not world.sent:
        await anyio.sleep(0.1)
    await cancel_twice(task, 1)
    assert world.states() == ["ACKNOWLEDGED"]
    assert rows(sqlite_file_url, "SELECT name FROM mobilemoney_leases WHERE holder IS NOT NULL") == []


async def test_a_shielded_section_gives_its_error_and_lets_a_time_out_be_one() -> None:
    """An error comes out as itself, unless it is ignored; a program's own time-out around the section goes on."""

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await shielded(fail)
    await shielded(fail, ignored=ValueError)
    await shielded(anyio.sleep_forever, timeout=5)
    began = anyio.current_time()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(shielded(lambda: anyio.sleep(10)), 1)
    assert anyio.current_time() == began + 10
