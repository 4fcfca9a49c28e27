"""What it costs in list requests to find out about payments: little, and no more with time, size or processes."""

import math
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import OutcomeUnknown, SQLStore
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from tests.payments.second_world import (
    HOUR,
    KINDS,
    MINUTE,
    Order,
    World,
    make_world,
    number,
    outcome,
)
from tests.support.patience import PATIENCE
from tests.support.scale import soak
from tests.support.second_service import ListBehaviour
from tests.support.talk import talk

# What the shop's other payments look like; none of them is of the same number as one that is looked for.
OTHER = "+255689000000"


@pytest.fixture
def world(tmp_path: Path, anyio_backend: Any) -> World:
    return make_world(f"sqlite:///{tmp_path / 'payments.db'}")


def make_busy(world: World, per_day: int, *, days: float) -> None:
    """Let the service have so many transactions a day, for some days until now."""
    now, count = world.utcnow(), round(per_day * days)
    for each in range(count):
        at = now - timedelta(days=days * (count - each) / count)
        world.service.make("disbursement" if each % 3 else "collection", OTHER, str(1000 + each % 500), created_at=at)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anyio_backend", "store_url", "every", "hours", "has_poller"),
    [
        ("asyncio", "sqlite", 1, 8, False),
        ("trio", "postgresql", 6, 12, False),
        ("asyncio", "sqlite", 6, 4, True),
        ("trio", "postgresql", 20, 24, False),
        ("asyncio", "postgresql", 90, 24, False),
    ],
    indirect=["anyio_backend", "store_url"],
)
async def test_a_merchant_who_pays_all_day(store_url: str, every: float, hours: int, has_poller: bool) -> None:
    """Beside the poller's own requests, one list request for each pause of five minutes: a new life is compared."""
    world, asked = make_world(store_url), list[str]()
    service = world.service
    service.finish_after = 30.0

    def note(request: httpx.Request) -> None:
        if "from" in request.url.params:  # the poller has no use for it
            asked.append(str(request.url))

    service.answer_list = note
    async with world.client() as client, AsyncExitStack() as stack:
        poller = await stack.enter_async_context(client.poller()) if has_poller else None
        count = math.ceil(soak(hours) * 60 / every)
        for each in range(count):
            await world.pay(client, [Order(f"k{each}", KINDS[each % 2], number(each))])
            if poller is not None:
                poller.track(service.payments[-1].id)
            await anyio.sleep(every * MINUTE)
        assert len(asked) <= (1 if every < 5 else count + 1)  # the first is made again after grace
        assert service.lists == len(asked) or has_poller
        assert not await client.payments.unclaimed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "newest_first", "is_moving"),
    [
        pytest.param("collections", True, False, id="newest first"),
        pytest.param("disbursements", False, False, id="oldest first"),
        pytest.param("disbursements", True, True, id="newest first, payments arrive meanwhile"),
        pytest.param("collections", False, True, id="oldest first, payments arrive meanwhile"),
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_fresh_payment_among_twenty_thousand_a_day(
    world: World, kind: str, newest_first: bool, is_moving: bool
) -> None:
    """It is found and adopted in about log2 of the pages, and four requests more, whatever the order of the list."""
    service, asked = world.service, Order("k", kind, number(1))
    service.list = ListBehaviour(newest_first=newest_first)
    make_busy(world, 20_000, days=1.5)

    def arrive(request: httpx.Request) -> None:
        assert service.lists < 50, "this reads the whole list"
        for _ in range(2 if is_moving else 0):
            service.make("collection", OTHER, "900")

    async with world.client() as client:
        for each in range(4):
            await world.pay(client, [Order(f"before {each}", kind, number(10 + each))])
            await anyio.sleep(10)
        await world.lose(client, asked, made=True)
        for each in range(4):
            await anyio.sleep(10)
            await world.pay(client, [Order(f"after {each}", kind, number(20 + each))])
        await anyio.sleep(MINUTE)
        service.answer_list = arrive
        await client.payments.reconcile()
        assert outcome(await world.get(client, "k")) == "found"
        await world.hold(client)
    yesterday = world.utcnow().replace(hour=0, minute=0, second=0) - timedelta(days=1)
    pages = sum(each.created_at >= yesterday for each in service.payments) / 100
    assert pages > 250
    assert service.lists <= math.ceil(math.log2(pages)) + 4


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_payments_that_stay_unknown_cost_nothing_for_good(world: World) -> None:
    """One payment a day is lost and never confirmed: a routine `reconcile` costs six requests at most, for good.

    That is where nothing new is due: payments that were looked for in vain are looked for ever more seldom.
    """
    service, per_day = world.service, {1: 100}.get(soak(4), soak(1000))
    every, days = 8, max(10, soak(30))
    async with world.client() as client:
        await world.pay(client, [Order("first", "disbursements", number(1))])
        routine: list[int] = []
        for day in range(days):
            for hour in range(0, 24, every):
                for each in range(round(per_day / (24 / every))):
                    service.make("collection", OTHER, str(1000 + each), created_at=world.utcnow())
                kind = KINDS[(day + hour) % 2]
                await world.pay(client, [Order(f"{day}-{hour} {each}", each, number(100 + hour)) for each in KINDS])
                if hour == 8:
                    await world.lose(client, Order(f"lost {day}", kind, number(200 + day)), made=False)
                await anyio.sleep(every * HOUR - MINUTE)
                await client.payments.reconcile()
                await anyio.sleep(MINUTE / 2)
                lists = service.lists
                await client.payments.reconcile()
                routine.append(service.lists - lists)
            if day % 10 == 9:
                assert max(routine[-24 // every :]) <= 6, routine
        records = [await world.get(client, f"lost {day}") for day in range(days)]
        assert {outcome(record) for record in records} <= {"absent", "open"}
        await world.hold(client)
    assert median(routine) <= 6


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_of_two_processes_of_a_machine_one_reads_the_list(postgres_url: str) -> None:
    """Real ones, on PostgreSQL: one lists, and the other gets the result from the store."""
    sandbox = Sandbox(choices=Choices(rate_limit=None, latency=0.2))
    orders = [f"order-{each}" for each in range(5)]
    async with sandbox.serve() as base_url, AsyncExitStack() as stack:
        client = await stack.enter_async_context(sandbox.client(store=SQLStore(postgres_url)))
        for each, key in enumerate(orders):
            sandbox.script(faults.drop(processed=True), on="c2b")
            with pytest.raises(OutcomeUnknown):
                await client.collections.create(phone_number=OTHER, amount=1000 + each, idempotency_key=key)
        arguments = (base_url, postgres_url, sandbox.token)
        processes = [
            await stack.enter_async_context(talk("tests.payments.process", "reconcile", *arguments)) for _ in range(2)
        ]
        # While one waits for the list, the other must have begun, however late the machine lets it.
        sandbox.script(faults.latency(2), on="transactions", times=1)
        found = list(zip(orders, sandbox.transactions, strict=True))
        with anyio.fail_after(PATIENCE):
            assert [await process.line() for process in processes] == ["ready"] * 2
            for process in processes:
                await process.tell("go")
            for process in processes:
                assert [await process.line() for _ in orders] == [f"{key} {name}" for key, name in found]
        # The page with the rows, and the empty one that proves its end.
        assert sandbox.requests.count("transactions") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anyio_backend", "hours", "newest_first"),
    [("asyncio", -3, True), ("trio", 7, False)],
    indirect=["anyio_backend"],
)
async def test_a_list_in_local_time(world: World, hours: int, newest_first: bool) -> None:
    """The time zone of the list is undocumented: once it is known, a lost payment costs little again."""
    service, ahead = world.service, timedelta(hours=hours)
    service.list = ListBehaviour(newest_first=newest_first)
    make_busy(world, 1_000, days=2)
    for payment in service.payments:
        payment.created_at += ahead
    service.utcnow = lambda: world.utcnow() + ahead
    async with world.client() as client:
        await world.pay(client, [Order(f"early{each}", "collections", number(300 + each)) for each in range(5)])
        for name in ("first", "second"):
            await world.reconcile(client, *[4 * MINUTE] * 15)
            await world.lose(client, Order(name, "collections", number(len(name))), made=True)
            for each in range(120):
                await anyio.sleep(60)
                service.make("disbursement", OTHER, str(2000 + each))
                if not each % 4:
                    await world.pay(client, [Order(f"{name}{each}", "collections", number(400 + each))])
            before = service.lists
            await client.payments.reconcile()
            assert outcome(await world.get(client, name)) == "found"
            assert service.lists - before <= (80 if name == "first" else 30)
