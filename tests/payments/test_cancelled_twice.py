"""asyncio's own `Task.cancel()`, of which a program that ends may get several: no shield of anyio's stops it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import pytest

from mobilemoney_async import AsyncClient, InvalidRequest, NoSuchMerchant, SQLStore
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.schema import payments, retries
from mobilemoney_async.events import ChangeParked, FinalStateChanged, MerchantSuspended, StoreBehind
from mobilemoney_async.merchants import Merchants
from mobilemoney_async.payments.feed.consumers import MOST_TRIES
from mobilemoney_async.tasks import shielded
from tests.payments import second_world
from tests.payments.service import ORDER, leave, make_world, on_asyncio, rows
from tests.payments.tables import edit
from tests.support.second_service import BASE_URL

pytestmark = on_asyncio

Section: TypeAlias = Callable[[AsyncClient, int], Awaitable[object]]
Act: TypeAlias = Callable[[], Awaitable[Any]]
Scene: TypeAlias = Callable[[second_world.World, AsyncClient], Awaitable[Act]]


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


async def test_a_client_is_closed_though_its_close_is_cancelled(sqlite_file_url: str) -> None:
    """While it leaves the store: its connections are closed all the same, and it makes no call any more."""
    async with make_world(sqlite_file_url).client() as client:
        await create(client, 0)
        await anext(client.payments.changes(consumer="books", start="oldest"))
        task = asyncio.ensure_future(client.aclose())
        await asyncio.sleep(0)
        await cancel_twice(task, 1)
        with pytest.raises(InvalidRequest, match="closed"):
            await client.transactions.page()


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


async def turn(world: second_world.World, client: AsyncClient) -> Act:
    await world.pay(client, [second_world.Order("k", "disbursements", second_world.number(1))])
    edit(world.url, payments.update().values(state="FINAL", status="FAILED"))
    world.service.finish(world.service.payments[0])
    return client.transactions.page


async def fall_behind(world: second_world.World, client: AsyncClient) -> Act:
    orders = [second_world.Order(key, "collections", second_world.number(place)) for place, key in enumerate("abc")]
    await world.pay(client, orders[:2])
    edit(world.url, payments.delete().where(payments.c.key == "b"))
    await anyio.sleep(600)
    return lambda: world.pay(client, orders[2:])


async def fail_often(world: second_world.World, client: AsyncClient) -> Act:
    await world.pay(client, [second_world.Order("k", "collections", second_world.number(1))])
    change = await anext(client.payments.changes(consumer="books", start="oldest"))
    await change.failed(ValueError())
    edit(world.url, retries.update().values(tries=MOST_TRIES))
    return lambda: change.failed(ValueError())


async def leave_the_platform(world: second_world.World, client: AsyncClient) -> Act:
    await world.pay(client, [second_world.Order("k", "collections", second_world.number(1))])
    note, store = client._pipeline.on_event, SQLStore(world.url)
    assert note is not None

    async def auth(account: str) -> str:
        raise NoSuchMerchant("left in May")

    async def act() -> None:
        options: dict[str, Any] = {"transport": lambda _: world.service, "on_event": lambda account, event: note(event)}
        async with Merchants(BASE_URL, store=store, auth=auth, utcnow=world.utcnow, **options) as merchants:
            await (await merchants.client("default")).transactions.page()

    return act


@pytest.mark.costly("no quick test cancels natively between a mark in the store and the report")
@pytest.mark.parametrize(
    ("scene", "noted", "event"),
    [
        (turn, "key FROM mobilemoney_payment_records WHERE cause = 'CHANGED'", FinalStateChanged),
        (fall_behind, "account FROM mobilemoney_accounts WHERE lost_at IS NOT NULL", StoreBehind),
        (fail_often, "name FROM mobilemoney_retries WHERE next_at IS NULL", ChangeParked),
        (leave_the_platform, "account FROM mobilemoney_accounts WHERE state = 'SUSPENDED'", MerchantSuspended),
    ],
)
async def test_what_is_told_once_is_told_by_a_task_that_is_cancelled_as_it_is_noted(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch, scene: Scene, noted: str, event: type
) -> None:
    """The store says from then on that it was told: no other task will."""
    world, events = second_world.make_world(sqlite_file_url), list[Any]()
    run = Database._run
    tasks = list[asyncio.Task[Any]]()

    async def cancel_once_noted(database: Database, work: Any) -> Any:
        result = await run(database, work)
        if tasks and not tasks[0].cancelling() and rows(sqlite_file_url, f"SELECT {noted}"):
            tasks[0].cancel()
            await asyncio.sleep(0)
        return result

    async with world.client(on_event=events.append) as client:
        act = await scene(world, client)
        monkeypatch.setattr(Database, "_run", cancel_once_noted)
        task = asyncio.ensure_future(act())
        assert isinstance(task, asyncio.Task)
        tasks.append(task)
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
    assert [type(each) for each in events if isinstance(each, event)] == [event]


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
