"""The figures that the store is built to reach: many orders, every fault, kill -9, and a database that goes away."""

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import OutcomeUnknown, PaymentState, SQLStore, StoreError, TransportError
from mobilemoney_async.database import connections as connections_module
from mobilemoney_async.database import engine as engine_module
from mobilemoney_async.sandbox import Choices, Fault, Sandbox, faults
from tests.payments.crash_worker import ONCE_MORE, Job, Order, wide_open
from tests.payments.merchant import (
    Held,
    Merchant,
    all_is_paid,
    creates,
    faulty_sandbox,
    is_missing,
    make_orders,
    open_merchant,
)
from tests.payments.nursery import Nursery, nursery
from tests.payments.second_world import BOTH
from tests.support.patience import PATIENCE, until
from tests.support.scale import soak

pytestmark = pytest.mark.real_time

# One process


@pytest.mark.soak
@BOTH
async def test_of_many_orders_under_faults_none_is_paid_twice_and_none_is_lost(store_url: str) -> None:
    """Whatever happens to a third of the requests, each order ends as paid once, or is openly unresolved."""
    sandbox, orders, ahead = faulty_sandbox(seed=1), make_orders(seed=1, count=soak(200)), timedelta()

    def pass_time(seconds: float) -> None:
        nonlocal ahead
        sandbox.advance(seconds)
        ahead += timedelta(seconds=seconds)

    async with sandbox.client(
        store=SQLStore(store_url, grace=600),
        timeout=0.5,  # real time: lost answers take as long; what comes late counts as lost
        retry=ONCE_MORE,
        rate_limiter=wide_open(),
        utcnow=lambda: datetime.now(UTC) + ahead,
    ) as client:
        # The creates may be too late for a busy machine, and count as faults; the list may not.
        patient = client.with_options(timeout=PATIENCE)
        merchant = Merchant(sandbox, client, orders)
        left = await merchant.try_all(orders)
        await merchant.check()
        pass_time(5)
        for _ in range(4):
            await patient.payments.reconcile()
            left = await merchant.try_all(left)
        records = await merchant.check()
        assert merchant.errors[OutcomeUnknown] > soak(30)
        adopted = [record for record in records.values() if record.is_adopted]
        assert len(adopted) > soak(12)
        # Before the grace period is over, no payment is called absent.
        assert await merchant.say_the_word() == 0

        while left:
            for _ in range(5):  # two looks after the grace period, half of it apart, in one life of the store
                pass_time(240)
                await patient.payments.reconcile()
            # The rest is missing, and the check agrees; or its duplicate was in the way.
            records = await merchant.check()
            assert all(is_missing(record) for record in records.values() if record.is_unresolved)
            await merchant.say_the_word()
            left = await merchant.try_all(left)
        records = await merchant.check()
        assert len(records) == len(orders)
        assert not await client.payments.unresolved()
        await merchant.check_histories()
    all_is_paid(sandbox, orders)


# kill -9


WORKERS = 4
# By default, and at each other scale.
ORDERS, KILLS = {1: (30, 3)}.get(soak(4), (soak(300), soak(24)))


async def kill_in_a_create(workers: Nursery, sandbox: Sandbox, dice: random.Random) -> None:
    """Kill all workers while the answer to one of their creates is on its way.

    The sandbox does so: on a busy machine they may have made any number of payments before this task runs again.
    """
    is_over = anyio.Event()

    def kill_all(reply: Any) -> Any:
        for pid in [*workers.alive]:
            workers.kill(pid)
        is_over.set()
        return reply

    sandbox.script(faults.latency(0), on="POST", times=dice.randrange(1, 12))
    sandbox.script(Fault(name="kill -9", change=kill_all), on="POST")
    for _ in range(WORKERS):
        await workers.start()
    with anyio.fail_after(PATIENCE):
        await is_over.wait()
    await workers.kill_everybody()  # one may have started meanwhile


async def kill_at_random(workers: Nursery, sandbox: Sandbox, dice: random.Random) -> None:
    """Kill one of the workers again and again, each time after a few creates, and start another in its place.

    None ends by itself: it cannot finish the payments of those that were killed.
    """
    for _ in range(WORKERS):
        await workers.start()
    for _ in range(KILLS):
        enough = creates(sandbox) + dice.randrange(1, 12)
        with anyio.move_on_after(1):  # real time: they may all be waiting for payments of the dead
            await until(lambda: creates(sandbox) >= enough)  # noqa: B023 (called here)
        await anyio.sleep(dice.uniform(0, 0.03))  # real time: the moment of the kill
        await workers.reap()
        workers.kill(dice.choice(sorted(workers.alive)))
        await workers.start()


@pytest.mark.soak
@pytest.mark.new_database
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # the sandbox serves sockets there only
async def test_kill_9_costs_no_payment_and_makes_none_twice(store_url: str, tmp_path: Path) -> None:
    """Four processes on the same orders, killed again and again: each payment is known, and none exists twice."""
    sandbox, orders, answers = faulty_sandbox(seed=2), make_orders(seed=2, count=ORDERS), tmp_path / "answers"
    async with sandbox.serve() as base_url:
        job = Job(base_url, sandbox.token, store_url, 1.0, 0.5, 6, str(answers), orders)
        async with nursery(job) as workers:
            await kill_in_a_create(workers, sandbox, random.Random(2))
            await kill_at_random(workers, sandbox, random.Random(2))
            assert len(workers.killed) >= KILLS
            await workers.kill_everybody()  # at last the power fails

        sandbox.clear_script()
        async with sandbox.client(
            store=SQLStore(store_url, grace=1.0), retry=ONCE_MORE, rate_limiter=wide_open()
        ) as client:
            merchant = Merchant(sandbox, client, orders)
            for line in answers.read_text().splitlines():
                key, transaction_id = line.split()
                assert merchant.told.setdefault(key, transaction_id) == transaction_id
            await merchant.check()
            # No other process is alive. Those who were may have found out all payments of the dead before.
            await client.payments.reconcile(stale_after=0)
            await merchant.check()
            assert not await client.payments.list(PaymentState.SENDING)
            left = await merchant.try_all(orders)
            with anyio.fail_after(PATIENCE):
                while left:
                    await anyio.sleep(1.1)  # real time: the grace period
                    await client.payments.reconcile()
                    await client.payments.reconcile()
                    await merchant.check()
                    await merchant.identify()
                    await merchant.say_the_word()
                    left = await merchant.try_all(left)
            await merchant.check()
            assert not await client.payments.unresolved()
            await merchant.check_histories()
    all_is_paid(sandbox, orders)


# The database goes away


@contextmanager
def away(url: str) -> Iterator[None]:
    """Take the database away: another connection locks the file, or the server closes all connections."""
    if url.startswith("sqlite"):
        with (
            closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other,
            pytest.MonkeyPatch.context() as patch,
        ):
            other.execute("BEGIN EXCLUSIVE")
            # Not before: on a busy machine the transactions of many tasks wait longer for each other.
            patch.setattr(engine_module, "_QUEUE", 0.5)
            yield
        return
    name = sa.make_url(url).database
    engine = sa.create_engine(sa.make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(sa.text(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false"))
            everybody = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            connection.execute(sa.text(everybody), {"name": name})
            try:
                yield
            finally:
                connection.execute(sa.text(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true"))
    finally:
        engine.dispose()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    """Let transactions wait for half a second where another connection locks the file."""
    if store_url.startswith("sqlite"):
        monkeypatch.setattr(connections_module, "PATIENCE", 0.5)


@pytest.mark.costly("runs lines of database/engine.py that no quick test runs")
@pytest.mark.usefixtures("impatient")
@BOTH
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
async def test_an_answer_that_cannot_be_recorded_is_not_lost(store_url: str, dies: bool) -> None:
    """If an answer came while the database was away, its id is known afterwards, even by a new process."""
    sandbox, orders = Sandbox(choices=Choices(rate_limit=None), balance=10**9), make_orders(4, count=20)
    orders = list({(order.is_collection, order.phone_number, order.amount): order for order in orders}.values())
    held = Held(sandbox)
    merchant = open_merchant(sandbox, store_url, orders, transport=held)
    async with merchant.client:
        async with anyio.create_task_group() as group:
            group.start_soon(merchant.try_all, orders)
            await until(lambda: creates(sandbox) == len(orders))
            with away(store_url):
                held.let_go.set()
                await until(lambda: merchant.errors.total() == len(orders))
                assert merchant.errors == {OutcomeUnknown: len(orders)}
                if dies:
                    await merchant.client.aclose()
        if dies:
            merchant = open_merchant(sandbox, store_url, orders)
            await merchant.client.payments.reconcile(stale_after=0)
        async with merchant.client:
            left = orders
            while left:
                left = await merchant.try_all(left, tasks=5)
            records = await merchant.check()
        assert all(record.is_adopted is dies for record in records.values())
    assert creates(sandbox) == len(orders), "one was sent again"
    all_is_paid(sandbox, orders)


@pytest.mark.soak
@pytest.mark.usefixtures("impatient")
@BOTH
async def test_orders_survive_a_database_that_comes_and_goes(store_url: str) -> None:
    """Also under faults of the service: after its absences the store agrees with the service's book."""
    sandbox, orders = faulty_sandbox(seed=5), make_orders(seed=5, count=soak(120))
    merchant = open_merchant(sandbox, store_url, orders, grace=1.0, timeout=0.5)  # real time: as above

    async def come_and_go() -> None:
        for _ in range(soak(4)):
            enough, failed = creates(sandbox) + 15, merchant.errors[StoreError]
            await until(lambda: creates(sandbox) >= enough)  # noqa: B023 (called here)
            with away(store_url):
                await anyio.sleep(0.7)  # real time: the length of an absence
                # A task that records an answer tries for longer than that.
                await until(lambda: not left or merchant.errors[StoreError] > failed)  # noqa: B023

    left: Sequence[Order] = orders
    async with merchant.client:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(come_and_go)
                while left:
                    left = await merchant.try_all(left, tasks=20)
                    with suppress(StoreError, TransportError):
                        await merchant.client.payments.reconcile()
                        await merchant.check()
                        await merchant.identify()
                        await merchant.say_the_word()
                    await anyio.sleep(0.1)  # real time: a merchant who tries again
        await merchant.check()
        assert merchant.errors[StoreError] > 0
        await merchant.check_histories()
    all_is_paid(sandbox, orders)
