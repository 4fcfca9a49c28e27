"""A payout that had failed and is shown as paid stops others of its kind until someone decides."""

from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, DuplicateSuspected, IdempotencyConflict, PaymentState, SQLStore
from mobilemoney_async.payments.payouts.batch import PayoutBatch
from mobilemoney_async.payments.store import account_store
from tests.payments.second_world import BOTH, GRACE, MINUTE, Order, World, make_world, number
from tests.payments.service import Outage, on_asyncio
from tests.payments.steps import approved, dispatch, settle
from tests.support.second_service import ListBehaviour, SecondService, error

pytestmark = pytest.mark.anyio


async def fail(world: World, client: AsyncClient, *keys: str) -> None:
    """Make payouts of one kind that fail, one after the other."""
    for key in keys:
        await world.pay(client, [Order(key, "disbursements", number(1))])
        world.service.finish(world.service.payments[-1], "FAILED")
        await settle(client)
        await anyio.sleep(MINUTE)


async def fail_batch(world: World, client: AsyncClient) -> PayoutBatch:
    """Let the payout of a batch fail, and return the batch."""
    batch = await approved(client, [{"phone_number": number(1), "amount": 5000}])
    await dispatch(client, 3)
    world.service.finish(world.service.payments[0], "FAILED")
    await settle(client)
    return batch


async def retry_failed(world: World, client: AsyncClient) -> tuple[PayoutBatch, PayoutBatch]:
    """Let the payout of a batch fail; return the batch, and its retry, which is approved."""
    batch = await fail_batch(world, client)
    retry = await client.payouts.retry(batch.id, by="Asha")
    await client.payouts.approve(retry.id, by="Juma", digest=retry.digest)
    return batch, retry


async def turn(world: World, client: AsyncClient) -> None:
    """Let all payouts have been paid after all, as usual with mobile money, and a page show it."""
    for payment in world.service.payments:
        payment.status = "SUCCESS"
    async for _ in client.transactions.list():
        pass


async def stopped_by(world: World, client: AsyncClient, key: str) -> Any:
    answer = await world.attempt(client, Order(key, "disbursements", number(1)))
    return answer.other_key if isinstance(answer, DuplicateSuspected) else answer


def limit_once(service: SecondService) -> None:
    """Let the service reject the next create for the rate limit."""

    def limit(*_: Any) -> Any:
        service.answer_create, service.makes = (lambda *_: None), True
        return error(429, "RATE_LIMIT_EXCEEDED", retry_after=2)

    service.answer_create, service.makes = limit, False


async def test_whoever_looks_at_a_line_that_has_turned_is_told(sqlite_file_url: str) -> None:
    """In the report, and before the approval of a batch that would pay it once more, or under its key."""
    world, said = make_world(sqlite_file_url), "the service shows its final state as SUCCESS now"
    async with world.client() as client:
        batch = await fail_batch(world, client)
        await turn(world, client)
        (line,) = await client.payouts.report(batch.id)
        assert (line.state, line.reason) == ("FAILED", said)
        for note, fate in (({}, f"it is not made again, and {said}"), ({"note": "corrected"}, f", and {said}")):
            row = {"phone_number": number(1), "amount": 5000}
            again = await client.payouts.propose([row | note], name="x", by="Asha")
            assert "FAILED since" in again.duplicates[1] and again.duplicates[1].endswith(fate)


@pytest.mark.slow
@BOTH
async def test_one_that_turns_beside_an_unknown_one_stops_that_too(store_url: str) -> None:
    world = make_world(store_url)
    async with world.client() as client:
        await fail(world, client, "A")
        await world.lose(client, Order("B", "disbursements", number(1)), made=False)
        await turn(world, client)
        await anyio.sleep(GRACE)
        await world.confirm(client, "B")
        assert await stopped_by(world, client, "B") == "A"
    assert len(world.service.payments) == 1


@pytest.mark.slow
@on_asyncio
async def test_each_of_two_that_turn_has_to_be_decided(sqlite_file_url: str) -> None:
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await fail(world, client, "A", "B")
        await turn(world, client)
        first = await stopped_by(world, client, "C")
        (second,) = {"A", "B"} - {first}
        paid = (await world.get(client, first)).transaction_id
        assert paid is not None
        await client.payments.recover({first: paid}, note="Asha: the customer has it")
        assert await stopped_by(world, client, "C") == second
        (other,) = {payment.id for payment in world.service.payments} - {paid}
        await client.payments.explain(other, note="Asha: the customer does not have it")
        await world.pay(client, [Order("C", "disbursements", number(1))])


@pytest.mark.slow
@on_asyncio
async def test_one_whose_number_was_erased_stops_others_too(sqlite_file_url: str) -> None:
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await fail(world, client, "A")
        await SQLStore(world.url, grace=GRACE).erase(phone_number=number(1))
        await turn(world, client)
        assert await stopped_by(world, client, "C") == "A"


@pytest.mark.slow
@pytest.mark.parametrize("decides", [False, True])
@on_asyncio
async def test_a_retry_that_comes_back_unsent_is_not_sent_once_the_first_was_paid(
    sqlite_file_url: str, decides: bool
) -> None:
    """The retry is on its way as the first one turns, and is rejected for the rate limit: it waits for a decision."""
    world = make_world(sqlite_file_url)
    service = world.service
    async with world.client() as client, world.client() as other:
        await retry_failed(world, client)

        limit_once(service)
        service.answer_after = 3.0
        async with client.dispatcher():
            await anyio.sleep(1.5)
            await turn(world, other)
            if decides:
                (record,) = [each for each in await other.payments.list() if each.is_contradicted]
                await other.payments.recover({record.key: str(record.transaction_id)}, note="Asha: paid")
            await anyio.sleep(20)
        states = [record.state for record in await client.payments.list()]
    assert {*states} == {PaymentState.CANCELLED if decides else PaymentState.QUEUED, PaymentState.FINAL}
    assert len(service.payments) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_on_its_way", [False, True])
@on_asyncio
async def test_a_retry_is_not_sent_once_the_first_is_acknowledged_after_all(
    sqlite_file_url: str, is_on_its_way: bool
) -> None:
    """A failed row of the list was taken for the first one, whose own acknowledgement came late."""
    world = make_world(sqlite_file_url)
    service, store = world.service, SQLStore(sqlite_file_url, grace=GRACE)
    outage = Outage(account_store(store).database)
    async with world.client(store=store) as client, world.client() as other:
        await world.pay(client, [Order("before", "disbursements", number(500), 900)])
        await anyio.sleep(MINUTE)
        batch = await approved(client, [{"phone_number": number(1), "amount": 5000}])
        service.answer_after = 3.0
        async with client.dispatcher():
            await anyio.sleep(2)
            outage.away = True
            own = service.payments[-1]
            service.list = ListBehaviour(hide=lambda payment: payment is own)
            row = service.make("disbursement", number(1), "5000", status="FAILED")
            await other.payments.reconcile(stale_after=0)
            await anyio.sleep(10)
        retry = await other.payouts.retry(batch.id, by="Asha")
        await other.payouts.approve(retry.id, by="Juma", digest=retry.digest)

        outage.away = False
        if is_on_its_way:
            limit_once(service)
            async with other.dispatcher():
                await anyio.sleep(1.5)
                await client.payments.reconcile()
                await anyio.sleep(20)
        else:
            await client.payments.reconcile()
            await dispatch(other, 20)
        states = {
            record.state: record.transaction_id for record in await other.payments.list() if record.key != "before"
        }
    assert states == {PaymentState.CANCELLED: None, PaymentState.ACKNOWLEDGED: own.id}
    assert [payment.id for payment in service.payments][1:] == [own.id, row.id]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["withdrawn", "refused", "refused and queued"])
@on_asyncio
async def test_a_retry_is_never_sent_once_the_first_was_paid(sqlite_file_url: str, way: str) -> None:
    """Whatever state the retry was in: its key is refused, the dispatcher takes it out, and the line says why."""
    world = make_world(sqlite_file_url)
    service = world.service
    async with world.client() as client:
        batch, retry = await retry_failed(world, client)
        (first,) = [each for each in await client.payments.list() if each.is_final]
        key = (await client.payouts.report(retry.id))[0].key
        order: dict[str, Any] = {"phone_number": number(1), "amount": 5000, "idempotency_key": key}
        if way == "withdrawn":
            await client.payments.cancel(key, note="Asha", reusable=True)
        else:
            service.answer_create, service.makes = (lambda *_: error(400, "SOME_LIMIT")), False
            await dispatch(client, 3)
            service.answer_create, service.makes = (lambda *_: None), True
            await world.pay(client, [Order("beside", "disbursements", number(500), 900)])
            await anyio.sleep(2 * GRACE)
        if way == "refused and queued":
            await client.payments.enqueue(type="disbursement", **order)
        await turn(world, client)
        await client.payments.recover({first.key: str(first.transaction_id)}, note="Asha: paid")
        with pytest.raises(IdempotencyConflict):
            await client.disbursements.create(**order)
        await client.payments.enqueue(type="disbursement", **order)
        await client.payments.enqueue(type="collection", phone_number=number(2), amount=700, idempotency_key="next")
        await dispatch(client, MINUTE)
        state = PaymentState.CANCELLED if way == "withdrawn" else PaymentState.REFUSED
        (record, line) = await world.get(client, key), (await client.payouts.report(batch.id))[0]
        assert (record.state, line.state) == (state, "SUCCESS")
        assert repr(first.key) in str(record.error) and repr(first.key) in str(line.reason)
        assert (await world.get(client, "next")).state is PaymentState.ACKNOWLEDGED
    assert sum(payment.phone_number == number(1) for payment in service.payments) == 1
