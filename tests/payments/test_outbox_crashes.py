"""Merchants' programs around the outbox, killed again and again: orders, payments and books agree to the shilling."""

import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, MobileMoneyError, PaymentState
from mobilemoney_async.contract.codec import Fields
from mobilemoney_async.payments.outbox.outbox import enqueue_all, read_order
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from tests.payments.merchant import is_missing
from tests.payments.nursery import Nursery, nursery
from tests.payments.outbox_worker import TABLES, Job, open_client, open_store, order_of
from tests.support.databases import execute
from tests.support.patience import PATIENCE, until
from tests.support.scale import soak

# By default, in `nox -s soak`, and in `nox -t nightly`.
ORDERS, QUEUED, KILLS = {1: (30, 80, 2), 4: (300, 1_000, 20)}.get(soak(4), (1_500, 5_000, 20))


pytestmark = [
    pytest.mark.real_time,
    pytest.mark.soak,
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),  # the sandbox serves sockets there only
]


def make_sandbox() -> Sandbox:
    choices = Choices(rate_limit=None, latency=0.01, list_lag=0.1, median_delay=0.3, longest_delay=1.0)
    sandbox = Sandbox(seed=1, choices=choices)
    # Beside the kills, some answers are lost.
    sandbox.script(faults.drop(processed=True), on="c2b", probability=0.02)
    sandbox.script(faults.drop(processed=False), on="c2b", probability=0.02)
    return sandbox


async def decide(client: AsyncClient, killed_at: float) -> None:
    """Look for unknown payments as an operator would, and let those be sent again that do not exist.

    Only what was sent before the last kill counts as lost: the others' senders are alive, and may be slow.
    """
    with suppress(MobileMoneyError):  # the list came too late: there is a next time
        await client.payments.reconcile(stale_after=anyio.current_time() - killed_at)
    for record in await client.payments.unresolved():
        if is_missing(record):
            with suppress(MobileMoneyError):  # a worker has just sent it again
                await client.payments.confirm_absent(record.key, note="not in the dashboard")
    # All together: one look in the list serves them all.
    for record in await client.payments.list(PaymentState.RELEASED):
        order = order_of(int(record.key.removeprefix("order-")))
        del order["type"]
        with suppress(MobileMoneyError):
            await client.collections.create(**order)


async def query(url: str, statement: str) -> list[Any]:
    return await anyio.to_thread.run_sync(execute, url, statement)


async def begin_again(processes: Nursery, url: str, number: int) -> float:
    """Kill all processes and start others; end the leases of the dead, for which those would wait for half a minute.

    Returns the time between the death of the ones and the birth of the others.
    """
    for pid in sorted(processes.alive):
        processes.kill(pid)
    await processes.reap()
    killed_at = anyio.current_time()
    await query(url, "UPDATE mobilemoney_leases SET until = 0")
    for _ in range(number):
        await processes.start()
    return killed_at


# Dispatchers


def queue(store: AccountStore, number: int) -> Any:
    plain = {"not_before": None, "not_after": None, "priority": 0, "now": datetime.now(UTC)}
    asked = map(order_of, range(number))
    orders = [read_order(**{**plain, **each, "extra": Fields(each["extra"])}) for each in asked]
    return lambda journal: enqueue_all(journal, orders, datetime.now(UTC), used=())


async def test_kill_9_of_dispatchers_loses_no_queued_payment_and_sends_none_twice(store_url: str) -> None:
    """Three processes, of which one sends: whenever they are killed, each payment is sent once in the end."""
    sandbox, dice = make_sandbox(), random.Random(1)
    async with sandbox.serve() as base_url:
        job = Job("dispatcher", base_url, sandbox.token, store_url)
        store = open_store(job)
        async with nursery(job, "tests.payments.outbox_worker") as processes, open_client(job, store) as client:
            await client.payments.unresolved()
            parts = account_store(store)
            await parts.write(queue(parts, QUEUED))
            killed_at = await begin_again(processes, store_url, 3)
            for kill in range(KILLS):
                enough = QUEUED * (kill + 1) // (KILLS + 2)
                await until(lambda: len(sandbox.transactions) >= enough, pause=0.002)  # noqa: B023 (called here)
                await anyio.sleep(dice.uniform(0, 0.02))  # real time: the moment of the kill
                holder = await query(store_url, "SELECT holder FROM mobilemoney_leases WHERE name = 'dispatcher'")
                assert holder
                # Any of them may be the one that sends, and the others wait for its lease: none is left of it.
                killed_at = await begin_again(processes, store_url, 3)
            with anyio.fail_after(PATIENCE):
                while await client.payments.list(["QUEUED", "SENDING", "UNKNOWN", "ABSENT", "RELEASED"], limit=1):
                    await decide(client, killed_at)
                    await anyio.sleep(0.5)  # real time: an operator who looks now and then
            states = Counter(record.state for record in await client.payments.list())
            await processes.kill_everybody()
    assert states[PaymentState.ACKNOWLEDGED] + states[PaymentState.FINAL] == QUEUED
    sent = Counter(each.external_id for each in sandbox.transactions.values())
    assert sent == Counter(f"order-{number}" for number in range(QUEUED))


# Shops


@pytest.mark.parametrize(
    ("kind", "store_url"),
    [("psycopg", "postgresql"), ("sqlite3", "sqlite")],
    indirect=["store_url"],
)
async def test_a_shop_that_is_killed_keeps_orders_payments_and_books_together(kind: str, store_url: str) -> None:
    """Three processes of it: each order is paid once, each payment is in the books once, and no more than that."""
    sandbox, dice = make_sandbox(), random.Random(2)
    async with sandbox.serve() as base_url:
        job = Job(kind, base_url, sandbox.token, store_url, ORDERS)
        async with (
            nursery(job, "tests.payments.outbox_worker") as processes,
            open_client(job, open_store(job)) as client,
        ):
            await client.payments.unresolved()
            for statement in TABLES:
                await query(store_url, statement)
            with anyio.fail_after(PATIENCE):
                for _ in range(3):
                    await processes.start()
                enough = 0
                while (enough := enough + dice.randrange(5, 15)) < ORDERS:
                    await until(partial(has_rows, store_url, "shop_orders", enough))
                    await anyio.sleep(dice.uniform(0, 0.1))  # real time: the moment of the kill
                    await processes.reap()
                    processes.kill(dice.choice(sorted(processes.alive)))
                    await processes.start()
            killed_at = await begin_again(processes, store_url, 2)
            await settle(client, store_url, killed_at)
            orders = await query(store_url, "SELECT id, amount FROM shop_orders")
            books = await query(store_url, "SELECT id, amount, status FROM shop_books")
            await processes.kill_everybody()
            await query(store_url, "DROP TABLE shop_orders")
            await query(store_url, "DROP TABLE shop_books")
            await query(store_url, "DROP TABLE shop_place")
    assert {order.id for order in orders} == {f"order-{number}" for number in range(ORDERS)}
    made = sandbox.transactions.values()
    assert Counter(each.external_id for each in made) == Counter(order.id for order in orders)
    assert Counter((each.external_id, int(each.amount)) for each in made) == Counter(
        (row.id, row.amount) for row in books
    )
    paid = sum(row.amount for row in books if row.status == "SUCCESS")
    assert paid == sandbox.ledger.collected > 0


async def settle(client: AsyncClient, url: str, killed_at: float) -> None:
    """Wait until every order has its place in the books."""
    with anyio.fail_after(PATIENCE):
        while not await has_rows(url, "shop_books", ORDERS):
            await decide(client, killed_at)
            await anyio.sleep(0.3)  # real time: an operator who looks now and then


async def has_rows(url: str, table: str, count: int) -> bool:
    ((found,),) = await query(url, f"SELECT count(*) FROM {table}")
    return bool(found >= count)
