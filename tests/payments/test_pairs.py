"""Pairs of features that meant the same thing differently: a deadline and a comparison, a pause and the rate limit.

Each was found by trying one feature with another; both alone had their tests.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from anyio.abc import TaskGroup

from mobilemoney_async import (
    AccountNeed,
    AccountState,
    AccountSuspended,
    AsyncClient,
    DisbursementLimits,
    InvalidRequest,
    LimitExceeded,
    NoSuchMerchant,
    OutcomeUnknown,
    PaymentChange,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.database import schema
from mobilemoney_async.payments.ownership.searches import note_restored
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sharing.overview import read_overview
from tests.payments.platform import NUMBER, PAYS, STAYS_OPEN, Platform
from tests.payments.service import get, on_asyncio
from tests.payments.test_recovery import dump, replace

pytestmark = [pytest.mark.slow, on_asyncio]


@pytest.fixture
def store(sqlite_file_url: str) -> SQLStore:
    return SQLStore(sqlite_file_url)


def fill_line(tasks: TaskGroup, client: AsyncClient, count: int = 60) -> None:
    """Let collections wait for the rate limit."""
    for number in range(count):
        order: dict[str, Any] = {"amount": 1000, "idempotency_key": f"order-{number}"}
        tasks.start_soon(partial(client.collections.create, f"+2556812{number:05d}", **order))


async def test_an_order_that_was_told_as_late_is_not_sent_later(
    store: SQLStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its create waits for the rate limit while a dispatcher takes it out of the queue."""
    caplog.set_level(logging.CRITICAL)
    sandbox, told, sent = Sandbox(), set[str](), list[str]()

    async def settle(change: PaymentChange) -> None:
        if change.state is PaymentState.NOT_SENT:
            told.add(str(change.key))

    async def order(backend: Backend, number: int) -> None:
        with suppress(StoreError):  # of those that are late
            await backend.collect(f"o{number}", phone_number=f"+2556812{number:05d}", amount=5000, patience=100.0)

    async with (
        sandbox.client(store=store) as client,
        Backend(client, send_within=20, on_settled=settle, name="shop") as backend,
    ):
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(order, backend, number)
        await anyio.sleep(60)
        for record in await client.payments.list():
            sent += [record.key] if record.sent_at is not None else []
    assert told
    assert told.isdisjoint(sent)
    assert len(sent) == len(sandbox.transactions)


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_pause_stops_the_payment_that_waits_for_the_rate_limit(store: SQLStore, is_own: bool) -> None:
    """It was not on its way, whichever process has paused."""
    sandbox = Sandbox()
    order: dict[str, Any] = {"type": "disbursement", "phone_number": PAYS, "amount": 50_000}

    async with (
        sandbox.client(store=store) as client,
        client.dispatcher() as dispatcher,
        sandbox.client(store=store) as another,
    ):
        await anyio.sleep(1)  # then that one sends
        async with another.dispatcher() as other, anyio.create_task_group() as tasks:
            fill_line(tasks, client)
            await anyio.sleep(5)
            await client.payments.enqueue(**order, idempotency_key="salary")
            await anyio.sleep(5)
            (dispatcher if is_own else other).pause("wrong file")
        await anyio.sleep(60)
        record = await get(client, "salary")
        assert (record.state, dispatcher.stats.paused) == (PaymentState.QUEUED, "wrong file")
    assert PAYS not in {each.phone_number for each in sandbox.transactions.values()}


async def test_a_hold_makes_no_scheduled_payment_earlier(store: SQLStore) -> None:
    """One that waits until tomorrow goes on to wait until then."""
    sandbox = Sandbox()
    async with sandbox.client(store=store) as client:
        for key, wait in (("rent", timedelta(days=1)), ("now", None)):
            await client.payments.enqueue(
                type="disbursement", phone_number=NUMBER, amount=5000, idempotency_key=key, not_before=wait
            )
        await client.payments.hold(["rent", "now"], timedelta(0))
        await client.payments.hold(["rent", "now"], timedelta(seconds=15))
        wrong: Any
        for wrong in (None, 5, timedelta(366), timedelta.max, timedelta(-1)):
            with pytest.raises(InvalidRequest, match="time must be a timedelta from 0 to 365 days"):
                await client.payments.hold(["rent"], wrong)
        rent, now = [await get(client, key) for key in ("rent", "now")]
        assert rent.not_before is not None and now.not_before is not None
        assert (rent.not_before - now.not_before) > timedelta(hours=23)


async def test_a_hold_reaches_a_payment_that_a_dispatcher_has_in_hand(store: SQLStore) -> None:
    """It waits for the rate limit as it is held: it is not sent then, and holds up no other of its type."""
    sandbox = Sandbox()

    async with sandbox.client(store=store) as client, client.dispatcher() as dispatcher:
        async with anyio.create_task_group() as tasks:
            fill_line(tasks, client)
            await anyio.sleep(5)
            for key, amount in (("held", 5000), ("other", 6000)):
                await client.payments.enqueue(
                    type="disbursement", phone_number=PAYS, amount=amount, idempotency_key=key
                )
            await anyio.sleep(5)
            await client.payments.hold(["held"], timedelta(minutes=3))
            held = await get(client, "held")
        await anyio.sleep(90)
        now = await get(client, "held")
        assert (now.state, now.not_before, dispatcher.stats.paused) == (PaymentState.QUEUED, held.not_before, None)
        assert (await get(client, "other")).transaction_id is not None
        await anyio.sleep(120)
        assert (await get(client, "held")).transaction_id is not None


async def test_an_order_that_one_process_gave_up_is_not_sent_by_another(store: SQLStore) -> None:
    """A click waits for the rate limit; the same one at another process failed, and was told that nothing was paid."""
    sandbox = Sandbox()
    order: dict[str, Any] = {"phone_number": PAYS, "amount": 5000, "idempotency_key": "order"}

    async def click() -> None:
        with pytest.raises(StoreError, match="taken out of the queue meanwhile; nothing was sent") as caught:
            await client.collections.create(**order)
        assert caught.value.outcome == "not_sent"

    async with (
        sandbox.client(store=store) as client,
        sandbox.client(store=store) as other,
        anyio.create_task_group() as tasks,
    ):
        fill_line(tasks, client)
        await anyio.sleep(5)
        await client.payments.enqueue(type="collection", not_before=timedelta(minutes=2), **order)
        tasks.start_soon(click)
        await anyio.sleep(5)
        await other.payments.cancel("order", note="its create has failed", reusable=True)
    assert not any(each.phone_number == PAYS for each in sandbox.transactions.values())


@pytest.mark.parametrize("deadline", [None, 5.0])
async def test_a_deadline_of_calls_is_none_of_the_list(store: SQLStore, deadline: float | None) -> None:
    """A page may come late, or wait behind payments: what is unknown is looked for, and books are compared."""
    sandbox = Sandbox()
    async with sandbox.client(store=store) as setting_up:
        sandbox.script(faults.drop(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await setting_up.collections.create(NUMBER, 1000, idempotency_key="lost")
        async with sandbox.client(store=store, deadline=deadline) as client:
            sandbox.script(faults.latency(10), times=20)
            (found,) = await client.payments.reconcile()
            assert found.state is PaymentState.ACKNOWLEDGED
            today = sandbox.now.date()
            report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today)
            assert report.transactions == 1


async def test_where_other_systems_pay_no_account_stays_behind(
    sqlite_file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is compared there, and an operator's word that it should be is answered so."""
    store, sandbox = SQLStore(sqlite_file_url, sole_writer=False), Sandbox()
    async with sandbox.client(store=store) as client:
        await client.disbursements.create(NUMBER, 5000, idempotency_key="k1")
        await client.payments.restored(note="Asha: the backup of Monday")
        assert "sole_writer=False" in caplog.text
        assert not (await read_overview(account_store(store), sandbox.now)).is_stopped
    # All accounts of the store are said to be restored, or a program without the option has found them behind.
    async with sandbox.client(store=SQLStore(sqlite_file_url)) as other:
        await other.payments.restored(note="Asha: the backup of Monday")
    async with sandbox.client(store=store) as client:
        assert (await read_overview(account_store(store), sandbox.now)).is_stopped
        await client.disbursements.create(NUMBER, 5000, idempotency_key="k2")
        assert not (await read_overview(account_store(store), sandbox.now)).is_stopped


async def test_a_removed_merchant_whose_secret_is_gone_stays_removed(sqlite_file_url: str) -> None:
    """The usual order of leaving; what is open cannot be followed, and nobody's word is changed."""
    platform, events, is_gone = Platform(sqlite_file_url), list[str](), False

    async def auth(account: str) -> str:
        if is_gone:
            raise NoSuchMerchant("it is not in the vault")
        return platform.sandbox.tokens[account]

    def note(account: str, event: Any) -> None:
        events.append(type(event).__name__)

    async with platform.merchants(auth=auth) as merchants:
        await (await merchants.client("shop-1")).collections.create(STAYS_OPEN, 5000, idempotency_key="order-1")
        await merchants.remove("shop-1", note="contract 17")
    is_gone = True
    async with platform.merchants(auth=auth, on_event=note) as merchants, merchants.worker():
        await anyio.sleep(90)
        (status,) = [each async for each in merchants.overview(everything=True)]
    assert (status.state, status.note) == (AccountState.REMOVED, "contract 17")
    assert AccountNeed.SUSPENDED not in status.needs
    assert "MerchantSuspended" not in events


async def test_a_refund_from_the_queue_does_not_take_the_place_of_salaries(store: SQLStore) -> None:
    """A create that finds its payment in the queue counts the others there, as any create does."""
    sandbox, limits = Sandbox(), DisbursementLimits(per_day=1_000)
    async with sandbox.client(store=store, disbursement_limits=limits) as client:
        order: dict[str, Any] = {"type": "disbursement", "phone_number": PAYS, "amount": 900}
        await client.payments.enqueue(**order, idempotency_key="salary")
        await client.payments.enqueue(**{**order, "phone_number": NUMBER, "amount": 500}, idempotency_key="refund")
        with pytest.raises(LimitExceeded):
            await client.disbursements.create(NUMBER, 500, idempotency_key="refund")
        await client.payments.cancel("refund", note="Asha: later")
        await client.disbursements.create(PAYS, 900, idempotency_key="salary")
    assert len(sandbox.transactions) == 1


async def test_a_suspended_account_queues_nothing_in_a_transaction_that_goes_on(sqlite_file_url: str) -> None:
    """The merchant catches the error, and commits that the order is refused: it is not paid after `resume`."""
    platform = Platform(sqlite_file_url)
    store = platform.store()
    async with platform.merchants() as merchants:
        client = await merchants.client("shop-1")
        order: dict[str, Any] = {"type": "disbursement", "phone_number": PAYS, "amount": 500}
        await client.payments.enqueue(**order, idempotency_key="tried")
        await client.payments.cancel("tried", note="later", reusable=True)
        await merchants.suspend("shop-1", note="papers are late")
        engine = sa.create_engine(sqlite_file_url, poolclass=sa.pool.NullPool)
        for key in ("order-1", "tried"):
            with engine.begin() as connection, pytest.raises(AccountSuspended):
                store.enqueue(connection, **order, idempotency_key=key)
        engine.dispose()
        assert [(each.key, each.state) for each in await client.payments.list()] == [("tried", PaymentState.NOT_SENT)]


@pytest.mark.parametrize("is_said_of_all", [True, False])
async def test_a_backup_with_a_queue_alone_does_not_pay_it_again(sqlite_file_url: str, is_said_of_all: bool) -> None:
    """An account whose first payment came after the backup: someone says that it was restored, and all of it waits."""
    sandbox = Sandbox()
    rows = [{"phone_number": f"+25578800000{number}", "amount": 3000} for number in range(3)]
    async with sandbox.client(store=SQLStore(sqlite_file_url)) as client:
        batch = await client.payouts.propose(rows, name="salaries", by="Asha")
        await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        backup = dump(sqlite_file_url, schema.METADATA.sorted_tables)
        async with client.dispatcher():
            await anyio.sleep(10)
    assert len(sandbox.transactions) == 3
    await anyio.sleep(3600)
    replace(sqlite_file_url, backup)
    store = SQLStore(sqlite_file_url)
    async with sandbox.client(store=store) as client:
        if is_said_of_all:
            parts = account_store(store)
            await parts.database.open()
            now = lambda: sandbox.now  # noqa: E731
            assert await parts.decide(lambda journal, at: note_restored(journal.connection, "Asha", at), now) == 1
        else:
            await client.payments.restored(note="Asha: the backup of Monday")
        for pause in (0, 600):  # longer than a new account waits: the next test
            await anyio.sleep(pause)
            await client.payments.reconcile()
            async with client.dispatcher():
                await anyio.sleep(30)
        assert len(await client.payments.unclaimed()) == 3
    assert len(sandbox.transactions) == 3


async def test_a_new_account_that_is_said_to_be_restored_pays_after_the_grace_period(store: SQLStore) -> None:
    """Nothing at the service is its own: its first disbursement waits as long as the docs say, and no longer."""
    sandbox = Sandbox()
    async with sandbox.client(store=store) as client:
        await client.payments.restored(note="Asha: the backup of Monday")
        for _ in range(4):
            await anyio.sleep(120)
            await client.payments.reconcile()
        await client.disbursements.create(NUMBER, 5000, idempotency_key="first")
    assert len(sandbox.transactions) == 1


async def test_a_program_ends_no_pause_of_a_restored_store_that_it_was_not_shown(sqlite_file_url: str) -> None:
    """Such as one that resumes whatever it finds, or while the account is suspended."""
    sandbox = Sandbox()
    async with sandbox.client(store=SQLStore(sqlite_file_url)) as client:
        await client.payments.enqueue(type="disbursement", phone_number=PAYS, amount=50_000, idempotency_key="salary")
        await client.payments.restored(note="Asha: the backup of Monday")
        await anyio.sleep(600)
        await client.payments.reconcile()
        async with client.dispatcher() as dispatcher:
            dispatcher.resume()
            await anyio.sleep(5)
            assert "restored from a backup" in (dispatcher.stats.paused or "")
            assert not sandbox.transactions
            dispatcher.resume()
            await anyio.sleep(5)
            assert dispatcher.stats.paused is None
    assert len(sandbox.transactions) == 1


async def test_a_queued_payment_is_cancelled_while_its_sender_waits(store: SQLStore) -> None:
    """For the rate limit, in this very process: it is not sent, and the answer comes at once."""
    sandbox = Sandbox()

    async with sandbox.client(store=store) as client, client.dispatcher(), anyio.create_task_group() as tasks:
        fill_line(tasks, client, 40)
        await anyio.sleep(2)
        order: dict[str, Any] = {"type": "disbursement", "phone_number": PAYS, "amount": 50_000}
        await client.payments.enqueue(**order, idempotency_key="salary")
        await anyio.sleep(3)
        with anyio.fail_after(1):
            assert (await client.payments.cancel("salary", note="Asha")).state is PaymentState.CANCELLED
    assert PAYS not in {each.phone_number for each in sandbox.transactions.values()}
