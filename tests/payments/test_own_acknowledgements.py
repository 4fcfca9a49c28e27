"""Our own answer comes after the list has shown another row like the payment: the answer wins, however late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentChange,
    PaymentState,
    SQLStore,
)
from mobilemoney_async.payments.store import account_store
from tests.payments.second_world import GRACE, KINDS, MINUTE, TYPES, Order, World, make_world, number, refuse
from tests.payments.service import Outage
from tests.payments.steps import settle
from tests.support.scale import crossed
from tests.support.second_service import ListBehaviour, error

pytestmark = pytest.mark.pairs


@asynccontextmanager
async def on_its_way(
    world: World, client: AsyncClient, kind: str, *, answer_after: float = 5.0
) -> AsyncIterator[list[Acknowledgement | MobileMoneyError]]:
    """Let a payment be on its way, as from a process that freezes; afterwards the yielded list has its answer."""
    answers = list[Acknowledgement | MobileMoneyError]()
    acknowledge, world.service.acknowledge = world.service.acknowledge, lambda row: row
    await world.pay(client, [Order("before", kind, number(500), 900)])
    await anyio.sleep(MINUTE)
    world.service.answer_after, world.service.acknowledge = answer_after, acknowledge

    async def pay() -> None:
        answers.append(await world.attempt(client, Order("k", kind, number(1))))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pay)
        await anyio.sleep(1)
        yield answers


async def adopt_another(world: World, client: AsyncClient, kind: str, status: str = "PENDING") -> str:
    """Let another process take a row of the till for it, since the list does not show its own; return that row."""
    world.service.list = ListBehaviour(hide=lambda payment: payment.owner == "k")
    row = world.service.make(TYPES[kind], number(1), "5000", status=status, external_id="till/7")
    await client.payments.reconcile(stale_after=0)
    record = await world.get(client, "k")
    assert (record.transaction_id, record.is_adopted) == (row.id, True)
    return row.id


async def changes_of(client: AsyncClient, name: str) -> list[PaymentChange]:
    changes = [change async for change in client.payments.changes(forever=False)]
    return [each for each in changes if name in {each.key, each.transaction and each.transaction.transaction_id}]


@pytest.mark.parametrize(("kind", "status"), crossed(KINDS, ["PENDING", "SUCCESS"]))
async def test_our_own_acknowledgement_wins_against_a_row_that_was_adopted(
    world: World, client: AsyncClient, kind: str, status: str
) -> None:
    """Its transaction is the payment's, also once the adopted row has ended; that row is unclaimed from then on."""
    async with world.client() as other, on_its_way(world, client, kind) as answers:
        row = await adopt_another(world, other, kind, status)
    (own,), record = world.made("k"), await world.get(client, "k")
    assert isinstance(answers[0], Acknowledgement)
    assert (record.state, record.transaction_id, record.is_adopted) == (PaymentState.ACKNOWLEDGED, own, False)
    assert (record.transaction, record.status, record.external_id) == (None, answers[0].status_code, None)
    assert record.history[-1].detail == f"{own}, in place of {row}, which was taken for it"
    assert [(each.transaction_id, each.fits_key) for each in await client.payments.unclaimed()] == [(row, "k")]
    assert [each.status for each in await changes_of(client, row)] == [status]
    another = await world.attempt(client, Order("another", kind, number(1)))
    assert isinstance(another, DuplicateSuspected) == (kind == "disbursements")  # customers approve each prompt


async def test_a_final_state_of_the_wrong_row_is_corrected_in_the_feed(world: World, client: AsyncClient) -> None:
    """Readers that were told of a success hear that the payment is open, and then how it ended."""
    async with world.client() as other, on_its_way(world, client, "collections"):
        await adopt_another(world, other, "collections", "SUCCESS")
    for payment in world.service.payments[:2]:
        world.service.finish(payment, "FAILED")
    await settle(client)
    told = [(str(each.state), each.status and str(each.status)) for each in await changes_of(client, "k")]
    assert told[-3:] == [("FINAL", "SUCCESS"), ("ACKNOWLEDGED", "PENDING"), ("FINAL", "FAILED")]


async def test_an_acknowledgement_of_the_adopted_transaction_makes_it_our_own(
    world: World, client: AsyncClient, kind: str
) -> None:
    """The payment stays as it is, and its acknowledgement shows the service's clock and the merchant from then on."""
    async with world.client() as other, on_its_way(world, client, kind) as answers:
        await other.payments.reconcile(stale_after=0)
        assert (await world.get(other, "k")).is_adopted
        before = await changes_of(client, "k")
    record = await world.get(client, "k")
    assert isinstance(answers[0], Acknowledgement)
    assert (record.transaction_id, record.is_adopted) == (world.made("k")[0], False)
    assert len(await changes_of(client, "k")) == len(before)
    assert [each.what for each in record.history] == ["sent", "unknown", "adopted"]  # nothing is said twice
    assert await client.payments.unclaimed() == []


async def test_a_late_refusal_wins_against_a_candidate(store_url: str, kind: str) -> None:
    """A payment that is refused for certain is none of the rows that the list has shown meanwhile: its key is free."""
    world = make_world(store_url)
    world.sole_writer = False  # beside other systems, no row is adopted
    world.service.answer_after = 5.0

    async def pay() -> None:
        await world.answered(client, Order("k", kind, number(1)), refuse, made=False)

    async with world.client() as client, world.client() as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pay)
            await anyio.sleep(1)
            world.service.make(TYPES[kind], number(1), "5000", status="SUCCESS")
            await other.payments.reconcile(stale_after=0)
            assert (await world.get(other, "k")).candidates == ("t-000001",)
        record = await world.get(client, "k")
        assert (record.state, record.candidates, record.cause) == (PaymentState.REFUSED, (), None)
        assert isinstance(await world.attempt(client, Order("k", kind, number(1))), Acknowledgement)


@pytest.mark.costly("no quick test would miss the condition in payments/records/due.py")
async def test_a_candidate_that_is_acknowledged_as_anothers_holds_up_nothing(world: World, client: AsyncClient) -> None:
    """The list shows a second try before its answer comes: the first one is absent in time, and its reason is true."""
    cart = Order("cart", "collections", number(1))
    async with world.client() as other:
        await world.pay(client, [Order("first", "collections", number(500))])
        await anyio.sleep(MINUTE)
        await world.lose(client, cart, made=False)
        await world.reconcile(client, 4 * MINUTE, 4 * MINUTE)
        async with on_its_way(world, client, "collections"):  # the customer tries again, as "k"
            assert isinstance(await world.attempt(other, cart), OutcomeUnknown)  # which looks for it
            assert (await world.get(other, "cart")).candidates == tuple(world.made("k"))
        await world.reconcile(other, GRACE, GRACE)
    record = await world.get(client, "cart")
    assert (record.state, record.candidates, record.reason) == (PaymentState.ABSENT, (), None)


async def test_a_word_does_not_outweigh_what_a_late_acknowledgement_names(store_url: str, kind: str) -> None:
    """Someone confirmed an absence, then the answer names a transaction that does not fit: nothing is sent again."""
    world = make_world(store_url)
    world.service.acknowledge = lambda row: {**row, "amount": "4999"}
    world.service.answer_lookup = lambda request: error(404, "TRANSACTION_NOT_FOUND")
    async with world.client(timeout=600.0) as client, world.client() as other:
        async with on_its_way(world, client, kind, answer_after=300.0) as answers:
            world.service.list = ListBehaviour(hide=lambda payment: payment.owner == "k")
            await other.payments.reconcile(stale_after=0)
            await anyio.sleep(GRACE + 1)
            await world.confirm(other, "k")
        assert isinstance(answers[0], OutcomeUnknown), answers
        record = await world.get(client, "k")
        assert (record.state, record.candidates) == (PaymentState.UNKNOWN, tuple(world.made("k")))
        assert isinstance(await world.attempt(client, Order("k", kind, number(1))), OutcomeUnknown)
        assert world.posts("k") == 1


@pytest.mark.slow
async def test_our_own_acknowledgement_wins_once_the_store_is_back(store_url: str, kind: str) -> None:
    """The process that got it could not write it, while another one adopted a row: nothing is lost."""
    world, store = make_world(store_url), SQLStore(store_url, grace=GRACE)
    outage = Outage(account_store(store).database)
    async with world.client(store=store) as client, world.client() as other:
        async with on_its_way(world, client, kind) as answers:
            outage.away = True
            row = await adopt_another(world, other, kind)
        assert isinstance(answers[0], MobileMoneyError)
        assert (await world.get(other, "k")).transaction_id == row
        outage.away = False
        await client.payments.reconcile()
        (own,) = world.made("k")
        assert (await world.get(other, "k")).transaction_id == own
        assert [each.transaction_id for each in await other.payments.unclaimed()] == [row]
