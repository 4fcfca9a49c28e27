"""A final state that changes on a later page is told once, whoever reads the list."""

from contextlib import nullcontext, suppress
from typing import Any

import anyio
import pytest

from mobilemoney_async import PaymentCause, SQLStore, StoreError
from mobilemoney_async.database.schema import payments
from mobilemoney_async.events import FinalStateChanged, TransactionUnclaimed
from mobilemoney_async.payments.records.next_steps import next_step
from tests.payments.second_world import BOTH, DAY, GRACE, MINUTE, Order, World, make_world, number, refuse_softly
from tests.payments.service import on_asyncio
from tests.payments.tables import edit

pytestmark = pytest.mark.anyio


async def read(client: Any) -> None:
    async for _ in client.transactions.list():
        pass


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_final_state_that_changes_is_told_once(
    store_url: str, is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In an event, in the history and among the unresolved payments; a page that shows it again is silent."""
    world, events = make_world(store_url), list[Any]()
    payment = await fail(world)
    payment.status = "SUCCESS" if is_restarted else "FAILED"
    async with world.client(on_event=events.append) as client, world.client(on_event=events.append) as other:
        await read(client)
        payment.status = "SUCCESS"
        for each in (client, other, client):
            await read(each)
        record = await world.get(client, "k")
        assert [each.key for each in await client.payments.unresolved()] == ["k"]
    told = [each for each in events if isinstance(each, FinalStateChanged)]
    assert [(each.idempotency_key, each.before, each.status) for each in told] == [("k", "FAILED", "SUCCESS")]
    assert (record.status, record.cause, record.is_contradicted) == ("FAILED", PaymentCause.CHANGED, True)
    assert record.reason is not None and record.reason in next_step(record, world.utcnow()).text
    assert [each.what for each in record.history].count("contradiction") == 1
    assert caplog.text.count("was finally FAILED") == 1


@pytest.mark.slow
async def test_a_final_state_that_changes_is_told_where_other_systems_pay(sqlite_file_url: str) -> None:
    """It is of a payment of ours; what no payment claims is theirs, and no one is told."""
    world, events = make_world(sqlite_file_url), list[Any]()
    payment = await fail(world)
    payment.status = "SUCCESS"
    store = SQLStore(world.url, grace=GRACE, sole_writer=False)
    async with world.client(store=store, on_event=events.append) as client:
        await read(client)
        assert (await world.get(client, "k")).cause is PaymentCause.CHANGED
    assert [type(each) for each in events if isinstance(each, FinalStateChanged | TransactionUnclaimed)] == [
        FinalStateChanged
    ]


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_final_state_that_the_list_showed_first_is_told(sqlite_file_url: str, is_known: bool) -> None:
    """Before the payment had ended here, or was known to be its transaction."""
    world, events = make_world(sqlite_file_url), list[Any]()
    async with world.client(on_event=events.append) as client:
        await world.pay(client, [Order("k", "collections", number(1))])
        payment = world.service.payments[-1]
        world.service.finish(payment)
        own = payments.update().where(payments.c.key == "k")
        if not is_known:
            edit(world.url, own.values(transaction_id="another"))
        await read(client)
        edit(world.url, own.values(transaction_id=payment.id, state="FINAL", status="FAILED"))
        for _ in range(3):
            await anyio.sleep(MINUTE)
            await read(client)
        assert [each.key for each in await client.payments.unresolved()] == ["k"]
    told = [each for each in events if isinstance(each, FinalStateChanged)]
    assert [(each.before, each.status) for each in told] == [("FAILED", "SUCCESS")]


@pytest.mark.parametrize("later", ["SUCCESS", "FAILED"])
@on_asyncio
async def test_a_final_state_that_a_poller_sees_changed_is_told(sqlite_file_url: str, later: str) -> None:
    """By a lookup, of a payment that was identified with its first final state meanwhile; the same state is no news."""
    world, events = make_world(sqlite_file_url), list[Any]()
    async with world.client(on_event=events.append) as client:
        await world.lose(client, Order("k", "collections", number(1)), made=True)
        payment = world.service.payments[-1]
        async with client.poller() as poller:
            poller.track(payment.id)
            await anyio.sleep(MINUTE)
            payment.status = "FAILED"
            await client.payments.identify("k", payment.id, note="Asha")
            payment.status = later
            with suppress(StoreError) if later == "SUCCESS" else nullcontext():
                await poller.wait(payment.id)
        told = [("k", "FAILED", "SUCCESS")] if later == "SUCCESS" else []
        assert [each.key for each in await client.payments.unresolved()] == [key for key, *_ in told]
    changes = [each for each in events if isinstance(each, FinalStateChanged)]
    assert [(each.idempotency_key, each.before, each.status) for each in changes] == told


@pytest.mark.parametrize("amount", ["5000", "4999"])
async def test_a_stored_transaction_that_cannot_be_read_is_recovered(sqlite_file_url: str, amount: str) -> None:
    """By the word of an operator the record has what the service shows now, if that is this payment."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.pay(client, [Order("k", "collections", number(1))])
        payment = world.service.payments[-1]
        world.service.finish(payment)
        async with client.poller(resume=True) as poller:
            await poller.wait(payment.id)
        before = await world.get(client, "k")
        assert before.transaction is not None and before.is_final
        edit(world.url, payments.update().values(transaction='{"id": "\\ud800"}'))
        broken = await world.get(client, "k")
        assert (broken.transaction, broken.error is None) == (None, False)
        payment.amount = amount
        is_same, again = amount == "5000", {"k": payment.id}
        with nullcontext() if is_same else pytest.raises(StoreError):
            (found,) = await client.payments.recover(again, note="Asha")
            assert found.transaction == before.transaction
        shown = await world.get(client, "k")
        assert (shown.transaction is not None, shown.error is None) == (is_same, is_same)
        assert shown.status == "SUCCESS"


@pytest.mark.slow
async def test_a_word_about_a_transaction_holds_for_the_state_that_it_was_said_of(sqlite_file_url: str) -> None:
    """A third final state is told; the audit takes the word; `recover` takes back the word and the first state."""
    world = make_world(sqlite_file_url)
    payment, today = await fail(world), world.utcnow().date()
    async with world.client() as client:
        for status in ("TIMEOUT", "SUCCESS"):
            payment.status = status
            await read(client)
            assert [each.key for each in await client.payments.unresolved()] == ["k"]
            await client.payments.explain(payment.id, note="Asha: it failed")
            async with world.client() as other:
                assert (await other.payments.audit(from_date=today, to_date=today)).is_clean
        assert await client.payments.unresolved() == []
        for status in ("SUCCESS", "FAILED", "SUCCESS"):
            (record,) = await client.payments.recover({"k": payment.id}, note="Asha: as it is shown")
            assert (record.status, await client.payments.unresolved()) == (status, [])
            payment.status = "FAILED" if status == "SUCCESS" else "SUCCESS"
            await read(client)
            assert [each.key for each in await client.payments.unresolved()] == ["k"]


@pytest.mark.parametrize("word", ["identify", "recover"])
async def test_a_word_about_a_transaction_ends_once_it_is_a_payments(sqlite_file_url: str, word: str) -> None:
    """It was explained by mistake, and given to its payment then: another final state is told as ever."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.lose(client, Order("k", "disbursements", number(1)), made=True)
        payment = world.service.payments[-1]
        await anyio.sleep(GRACE)
        payment.status = "SUCCESS"
        for _ in range(2):
            await read(client)
            await anyio.sleep(2 * GRACE)
        await client.payments.explain(payment.id, note="Asha: not ours")
        payment.status = "FAILED"
        if word == "identify":
            await client.payments.identify("k", payment.id, note="Asha: it is")
        else:
            await client.payments.recover({"k": payment.id}, note="Asha: it is")
        payment.status = "SUCCESS"
        await read(client)
        assert [each.key for each in await client.payments.unresolved()] == ["k"]


async def test_an_erased_number_does_not_come_back_with_another_state(sqlite_file_url: str) -> None:
    """Not as an operator takes the new state, nor as the list shows it after that."""
    world = make_world(sqlite_file_url)
    payment = await fail(world)
    store = SQLStore(world.url, grace=GRACE)
    await store.erase(phone_number=number(2))
    payment.status = "SUCCESS"
    async with world.client(store=store) as client:
        await read(client)
        assert (await world.get(client, "k")).cause is PaymentCause.CHANGED
        await client.payments.recover({"k": payment.id}, note="Asha: it was paid")
        record = await world.get(client, "k")
    assert record.transaction is not None
    assert (record.status, record.transaction.phone_number) == ("SUCCESS", "erased")


async def test_an_erased_number_does_not_come_back_with_a_late_transaction(sqlite_file_url: str) -> None:
    """Of a payment that was refused softly, and is recovered after its number was erased."""
    world = make_world(sqlite_file_url)
    store = SQLStore(world.url, grace=GRACE)
    async with world.client(store=store) as client:
        await world.answered(client, Order("k", "collections", number(2)), refuse_softly, made=True)
        payment = world.service.payments[-1]
        world.service.finish(payment)
        await anyio.sleep(40 * DAY)
        await store.erase(phone_number=number(2))
        await client.payments.recover({"k": payment.id}, note="Asha: it was paid")
        record = await world.get(client, "k")
    assert record.transaction is not None
    assert (record.status, record.transaction.phone_number) == ("SUCCESS", "erased")


async def fail(world: World) -> Any:
    """Let a payment fail, as the store records it, and return it."""
    async with world.client() as client:
        await world.pay(client, [Order("before", "collections", number(1))])
        await anyio.sleep(MINUTE)
        await world.lose(client, Order("k", "collections", number(2)), made=True)
        payment = world.service.payments[-1]
        payment.status = "FAILED"
        await anyio.sleep(GRACE)
        await client.payments.reconcile()
        assert (await world.get(client, "k")).status == "FAILED"
    return payment
