"""A batch's failed lines go again, as a new batch that is approved again; each line moves money once at most."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import attrs
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    DisbursementLimits,
    InvalidRequest,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    PayoutBatch,
    PermissionDenied,
    RetryPolicy,
    ServerError,
    SQLStore,
    StoreError,
)
from mobilemoney_async.database.schema import payments
from mobilemoney_async.events import FinalStateChanged
from mobilemoney_async.payments.payouts.payouts import Payouts
from mobilemoney_async.payments.store import account_store
from tests.payments import steps
from tests.payments.second_world import BOTH, World, lose_answer, make_world, number
from tests.payments.service import on_asyncio
from tests.payments.steps import dispatch
from tests.payments.tables import edit
from tests.support.scale import soak
from tests.support.second_service import ListBehaviour, Payment, error

pytestmark = pytest.mark.anyio

ROWS = [{"phone_number": number(each), "amount": 1_000 + each, "employee": f"E{each}"} for each in range(3)]


async def approved(client: AsyncClient, batch: PayoutBatch | None = None) -> PayoutBatch:
    """Propose the rows, or take a batch, and let Juma approve it."""
    found = batch or await client.payouts.propose(ROWS, name="salaries", by="Asha")
    return await client.payouts.approve(found.id, by="Juma", digest=found.digest)


async def send(client: AsyncClient, seconds: float = 3.0) -> None:
    await dispatch(client, seconds, per_minute=6_000, pause_after=None)


async def settle(world: World, client: AsyncClient, ends: Mapping[str, str] | None = None) -> None:
    """End the open transactions, by number or as FAILED, and let the store know."""
    for each in world.service.payments:
        if each.status == "PROCESSING":
            world.service.finish(each, "FAILED" if ends is None else ends.get(each.phone_number, "FAILED"))
    await steps.settle(client)


def refuse(request: httpx.Request, payment: Payment | None) -> httpx.Response:
    return error(403, "insufficient_permissions")


async def said(client: AsyncClient, batch: PayoutBatch) -> dict[int, tuple[str, str | None]]:
    """Return state and reason of each line."""
    return {line.line: (line.state, line.reason) for line in await client.payouts.report(batch.id)}


def live(world: World) -> Counter[str]:
    """Return how many transactions to each number have moved money, or may."""
    return Counter(each.phone_number for each in world.service.payments if each.status != "FAILED")


@pytest.mark.costly("runs lines of payments/payouts/retry.py that no quick test runs")
@BOTH
async def test_failed_lines_go_again_after_another_approval(world: World, client: AsyncClient) -> None:
    """Under new keys, with their columns; what was paid stays out, and a retry that fails may be retried.

    A deadline of calls is none of its lookups.
    """
    first = await approved(client)
    await send(client)
    await settle(world, client, {number(0): "SUCCESS"})
    world.service.latency = 1.0
    retry = await client.with_options(deadline=0.5).payouts.retry(first.id, by="Asha")
    world.service.latency = 0.0
    assert (retry.state, retry.name, retry.retry_of, retry.lines) == ("proposed", "salaries, retry 1", first.id, 2)
    assert not retry.left_out and not retry.duplicates
    assert await client.payouts.retry(first.id, by="Neema") == retry
    with pytest.raises(StoreError, match="someone else has to approve it"):
        await client.payouts.approve(retry.id, by="Asha", digest=retry.digest)
    await approved(client, retry)
    lines = await client.payouts.report(retry.id)
    assert [(line.key, line.info["employee"]) for line in lines] == [
        (f"{first.id}-retry-1-2", "E1"),
        (f"{first.id}-retry-1-3", "E2"),
    ]
    assert await said(client, first) == {
        1: ("SUCCESS", None),
        2: ("QUEUED", f"RECIPIENT_NOT_FOUND; tried again under the key '{first.id}-retry-1-2': queued"),
        3: ("QUEUED", f"RECIPIENT_NOT_FOUND; tried again under the key '{first.id}-retry-1-3': queued"),
    }
    with pytest.raises(StoreError, match=f"no payment of batch '{first.id}' waits to be sent"):
        await client.payouts.cancel(first.id, by="Asha")
    with pytest.raises(StoreError, match=r"no line .* can be paid again \(line 1: .* is SUCCESS; line 2: .*QUEUED"):
        await client.payouts.retry(first.id, by="Asha")
    await send(client)
    await settle(world, client, {number(1): "SUCCESS"})
    again = await client.payouts.retry(retry.id, by="Asha")
    assert (again.retry_of, again.lines) == (retry.id, 1)
    await client.payouts.cancel(again.id, by="Asha")
    third = f"RECIPIENT_NOT_FOUND; tried again under the key '{first.id}-retry-1-3': failed, RECIPIENT_NOT_FOUND"
    assert (await said(client, first))[3] == ("FAILED", third)
    stopped = await approved(client, await client.payouts.retry(first.id, by="Asha"))  # by the first batch, too
    await client.payouts.cancel(stopped.id, by="Asha")
    assert (await said(client, first))[3][0] == "FAILED"
    await approved(client, await client.payouts.retry(first.id, by="Asha"))
    await send(client)
    await settle(world, client, {number(2): "SUCCESS"})
    assert live(world) == {number(each): 1 for each in range(3)}
    assert len(world.service.payments) == 6
    assert (await client.payouts.get(first.id)).states == {"SUCCESS": 3}
    line = (await client.payouts.report(first.id))[1]
    assert line.transaction_id == (await client.payouts.report(retry.id))[0].transaction_id
    assert str((await said(client, first))[3][1]).endswith("-3': paid")


async def test_a_retry_of_nothing_names_three_lines_and_says_that_there_are_more(sqlite_file_url: str) -> None:
    rows = [{"phone_number": number(each), "amount": 1_000} for each in range(4)]
    async with make_world(sqlite_file_url).client() as client:
        batch = await approved(client, await client.payouts.propose(rows, name="salaries", by="Asha"))
        with pytest.raises(StoreError, match=r"line 3: [^;]*; and more\)"):
            await client.payouts.retry(batch.id, by="Asha")


@pytest.mark.slow
@BOTH
async def test_two_people_who_ask_at_once_get_one_retry(world: World) -> None:
    """From two processes; and of two who approve it at once, each line is queued once."""
    found: list[PayoutBatch] = []
    async with world.client() as client, world.client() as other:
        batch = await approved(client)
        await send(client)
        await settle(world, client)

        async def ask(each: AsyncClient, by: str) -> None:
            found.append(await each.payouts.retry(batch.id, by=by))

        async with anyio.create_task_group() as tasks:
            for place, each in enumerate((client, other) * 2):
                tasks.start_soon(ask, each, f"Asha {place}")
        assert len({each.id for each in found}) == 1
        async with anyio.create_task_group() as tasks:
            for each in (client, other):
                tasks.start_soon(approved, each, found[0])
        await send(other)
    assert live(world) == {number(each): 1 for each in range(3)}


async def refuse_line(world: World, client: AsyncClient, key: str) -> None:
    """Take a line out of the queue, and let a create under its key be refused for certain."""
    await client.payments.cancel(key, note="Asha", reusable=True)
    record = await world.get(client, key)
    world.service.answer_create, world.service.makes = refuse, False
    with pytest.raises(PermissionDenied):
        await pay(client, record)
    world.service.answer_create, world.service.makes = (lambda request, payment: None), True


async def pay(client: AsyncClient, record: PaymentRecord) -> None:
    await client.disbursements.create(
        phone_number=record.phone_number, amount=record.amount, idempotency_key=record.key
    )


@pytest.mark.slow
@BOTH
async def test_a_line_that_may_have_been_paid_stays_out_and_says_why(store_url: str) -> None:
    """Its result is unknown, it was refused without a code of the contract, it waits, or has turned to SUCCESS."""
    world, events = make_world(store_url), list[Any]()
    async with world.client(on_event=events.append) as client:
        rows = [{"phone_number": number(each), "amount": 1_000} for each in range(6)]
        batch = await approved(client, await client.payouts.propose(rows, name="salaries", by="Asha"))
        keys = [line.key for line in await client.payouts.report(batch.id)]
        await client.payments.hold(keys[5:], timedelta(days=1))
        await refuse_line(world, client, keys[2])

        def answer(request: httpx.Request, payment: Payment | None) -> httpx.Response | None:
            assert payment is not None
            if payment.phone_number == number(3):
                world.service.payments.remove(payment)
                return error(400, "SOME_LIMIT")
            return None if payment.phone_number != number(4) else lose_answer(request, payment)

        world.service.answer_create = answer
        await send(client)
        for each in world.service.payments[:2]:
            world.service.finish(each, "FAILED")
        await settle(world, client)
        world.service.payments[1].status = "SUCCESS"
        retry = await client.payouts.retry(batch.id, by="Asha")
        assert [line.line for line in await client.payouts.report(retry.id)] == [1, 3]
        assert dict(retry.left_out) == {
            2: f"the service shows another final state of payment {keys[1]!r} than before",
            4: f"payment {keys[3]!r} was refused without a code of the contract, and may exist: "
            "propose and approve the same content again, which looks for it first",
            5: f"payment {keys[4]!r} is UNKNOWN",
            6: f"payment {keys[5]!r} is QUEUED",
        }
    assert [each.status for each in events if isinstance(each, FinalStateChanged)] == ["SUCCESS"]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("way", ["create", "enqueue", "same file"])
async def test_an_old_key_is_used_before_the_retry_is_approved_or_never(
    world: World, client: AsyncClient, way: str
) -> None:
    """A refused key may be used again until then, and stops the approval; afterwards it is used up."""

    async def use(record: PaymentRecord) -> None:
        if way == "create":
            await pay(client, record)
        elif way == "enqueue":
            order: dict[str, Any] = {"phone_number": record.phone_number, "amount": record.amount}
            await client.payments.enqueue(type="disbursement", **order, idempotency_key=record.key)
        else:
            await approved(client)

    batch = await approved(client)
    key = (await client.payouts.report(batch.id))[0].key
    await refuse_line(world, client, key)
    early = await client.payouts.retry(batch.id, by="Asha")
    await use(await world.get(client, key))
    with pytest.raises(StoreError, match=f"repeats payment '{key}', which must not be paid again.*nothing was"):
        await approved(client, early)
    await client.payouts.cancel(early.id, by="Asha")
    await send(client)
    await settle(world, client)
    late = await approved(client, await client.payouts.retry(batch.id, by="Asha"))
    assert late.name == "salaries, retry 2"
    with suppress(StoreError):
        await use(await world.get(client, key))
    await send(client)
    assert live(world) == {number(each): 1 for each in range(3)}


@pytest.mark.slow
@BOTH
async def test_a_refused_payment_is_cancelled_once_its_retry_is_approved(world: World, client: AsyncClient) -> None:
    """So no create sends it; who recovers it before, in place of its transaction, stops the approval."""
    batch = await approved(client)
    first, second, _ = [line.key for line in await client.payouts.report(batch.id)]
    await refuse_line(world, client, first)
    retry = await approved(client, await client.payouts.retry(batch.id, by="Asha"))
    assert (await world.get(client, first)).state is PaymentState.CANCELLED
    with pytest.raises(StoreError, match="was cancelled, and its key is used up"):
        await pay(client, await world.get(client, first))
    await client.payouts.cancel(retry.id, by="Asha")  # before it was sent: the line may be tried again
    await refuse_line(world, client, second)
    again = await client.payouts.retry(batch.id, by="Asha")
    assert again.lines == 2
    made = world.service.make("disbursement", number(1), "1001")
    await world.read(client)
    await client.payments.recover({second: made.id}, note="Neema: on the dashboard")
    with pytest.raises(StoreError, match=r"line 2 .* must not be paid again"):
        await approved(client, again)


@pytest.mark.slow
@BOTH
async def test_a_retry_is_not_sent_once_the_cancelled_payment_was_made_after_all(
    world: World, client: AsyncClient
) -> None:
    """By the word of an operator: the service had made what it refused."""
    batch = await approved(client)
    (first, *_) = [line.key for line in await client.payouts.report(batch.id)]
    await refuse_line(world, client, first)
    retry = await approved(client, await client.payouts.retry(batch.id, by="Asha"))
    made = world.service.make("disbursement", number(0), "1000")
    await anyio.sleep(300)
    (record,) = await client.payments.recover({first: made.id}, note="Neema: on the dashboard")
    assert record.transaction_id == made.id
    await send(client)
    assert (await client.payouts.report(retry.id))[0].state == "CANCELLED"
    assert live(world)[number(0)] == 1


@pytest.mark.slow
@pytest.mark.parametrize("word", ["recover", "explain"])
@BOTH
async def test_a_retry_waits_for_a_decision_if_the_first_payment_turns_to_success(
    world: World, client: AsyncClient, word: str
) -> None:
    """Whoever reads it on a page of the list, the next retry leaves it out; paid, it is cancelled, and else it goes."""
    batch = await approved(client)
    await send(client)
    await settle(world, client)
    retry = await approved(client, await client.payouts.retry(batch.id, by="Asha"))
    world.service.payments[0].status = "SUCCESS"
    await world.read(client)
    await send(client)
    await settle(world, client)
    assert [line.state for line in await client.payouts.report(retry.id)] == ["QUEUED", "FAILED", "FAILED"]
    again = await client.payouts.retry(batch.id, by="Asha")
    assert again.lines == 2 and "another final state" in again.left_out[1]
    first = world.service.payments[0].id
    if word == "explain":
        await client.payments.explain(first, note="Asha: the customer does not have it")
    else:
        await client.payments.recover({f"{(await client.payouts.report(batch.id))[0].key}": first}, note="Asha: paid")
    await send(client, 40.0)
    assert (await client.payouts.report(retry.id))[0].state == ("ACKNOWLEDGED" if word == "explain" else "CANCELLED")
    assert live(world) == {number(0): 2 if word == "explain" else 1}


async def fail_twice(world: World, client: AsyncClient) -> list[PayoutBatch]:
    """Return a batch of one line, whose payment has failed, and the retry, whose payment has failed too."""
    proposed, batches = await client.payouts.propose(ROWS[:1], name="salaries", by="Asha"), list[PayoutBatch]()
    while True:
        batches.append(await approved(client, proposed))
        await send(client, 1)
        await settle(world, client)
        if len(batches) == 2:
            return batches
        proposed = await client.payouts.retry(proposed.id, by="Asha")


@pytest.mark.slow
@on_asyncio
async def test_of_two_retries_of_one_payment_one_is_approved(sqlite_file_url: str) -> None:
    """A retry and the first batch may both be retried: the second one would pay beside the first."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        batch, first = await fail_twice(world, client)
        second, third = [await client.payouts.retry(each.id, by="Asha") for each in (first, batch)]
        await approved(client, second)
        await send(client, 1)
        await settle(world, client)
        with pytest.raises(StoreError, match="must not be paid again"):
            await approved(client, third)


@pytest.mark.slow
@on_asyncio
async def test_an_explained_transaction_keeps_no_line_of_another_number_out(sqlite_file_url: str) -> None:
    """Though the amount is the same."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        rows = [{**ROWS[each], "amount": 1_000} for each in range(2)]
        batch = await approved(client, await client.payouts.propose(rows, name="salaries", by="Asha"))
        await send(client, 1)
        await settle(world, client)
        made = world.service.make("disbursement", number(0), "1000", status="SUCCESS")
        await world.read(client)
        await client.payments.explain(made.id, note="Asha: paid by hand")
        retry = await client.payouts.retry(batch.id, by="Asha")
        assert (retry.lines, [*retry.left_out]) == (1, [1])


@pytest.mark.slow
@BOTH
async def test_a_line_whose_number_was_erased_stays_out(world: World, client: AsyncClient) -> None:
    """The store cannot pay it any more, and sends no mark of an erased number."""
    batch = await approved(client)
    await send(client)
    await settle(world, client)
    await SQLStore(world.url).erase(phone_number=number(0))
    retry = await client.payouts.retry(batch.id, by="Asha")
    assert (retry.lines, dict(retry.left_out)) == (2, {1: "its phone number was erased"})


@on_asyncio
@pytest.mark.parametrize(
    ("hours", "is_retried"), [(-30, False), (-0.5, False), pytest.param(3, True, marks=pytest.mark.slow)]
)
async def test_a_line_that_was_paid_at_the_dashboard_stays_out(
    sqlite_file_url: str, hours: float, is_retried: bool
) -> None:
    """Once that is imported, wherever the service's clock is, and also if it was made before a retry that failed."""
    world = make_world(sqlite_file_url)
    world.service.utcnow = lambda: world.utcnow() + timedelta(hours=hours)
    async with world.client() as client:
        batch = await approved(client, await client.payouts.propose(ROWS[:1], name="salaries", by="Asha"))
        await send(client, 1)
        await settle(world, client)
        made = world.service.make("disbursement", number(0), "1000", status="SUCCESS")
        world.service.list = ListBehaviour(hide=lambda payment: payment is made)
        await anyio.sleep(2 * 86_400)
        if is_retried:
            await approved(client, await client.payouts.retry(batch.id, by="Asha"))
            await send(client)
            await settle(world, client)
        await client.payments.recover({"book-1": made.id}, note="Asha: paid by hand")
        with pytest.raises(StoreError, match="payment 'book-1', which was imported, may have paid it"):
            await client.payouts.retry(batch.id, by="Asha")


@on_asyncio
async def test_a_retry_that_exceeds_a_limit_says_so(sqlite_file_url: str) -> None:
    """To who proposes it, and to who asks for it again."""
    world = make_world(sqlite_file_url)
    limits = DisbursementLimits(per_payment=1_001)
    async with world.client() as client, world.client(disbursement_limits=limits) as limited:
        batch = await approved(client)
        edit(world.url, payments.update().values(state="REFUSED", is_certain=True))
        for _ in range(2):
            retry = await limited.payouts.retry(batch.id, by="Asha")
            assert str(retry.exceeds).startswith(f"line 3 of batch {retry.id!r} exceeds per_payment")


@on_asyncio
@pytest.mark.parametrize("moved", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_line_of_which_a_payment_was_moved_away_stays_out(sqlite_file_url: str, moved: int) -> None:
    """That one may have paid it. Both batches are shown all the same."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        first, retry = await fail_twice(world, client)
        (key,) = [(await client.payouts.report(each.id))[0].key for each in (first, retry)][moved : moved + 1]
        edit(world.url, payments.delete().where(payments.c.key == key))
        for each in (first, retry):
            with pytest.raises(StoreError, match="line 1: a payment of it was moved away"):
                await client.payouts.retry(each.id, by="Asha")
        assert {each.id: dict(each.states) for each in await client.payouts.list()} == {
            each.id: {} if place == moved else {"FAILED": 1} for place, each in enumerate((first, retry))
        }
        reasons = [(await said(client, each))[1][1] for each in (first, retry)]
        assert reasons == [
            f"RECIPIENT_NOT_FOUND; a payment of it was moved away: {key!r}" if moved else None,
            None if moved else "RECIPIENT_NOT_FOUND",
        ]


@BOTH
async def test_what_cannot_be_retried_is_said(world: World) -> None:
    """A batch that was not approved; a service that does not answer; the store alone."""
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        batch = await client.payouts.propose(ROWS, name="salaries", by="Asha")
        with pytest.raises(StoreError, match="was not approved: none of its lines was sent: nothing was changed"):
            await client.payouts.retry(batch.id, by="Asha")
        with pytest.raises(StoreError, match="no batch 'none'"):
            await client.payouts.retry("none", by="Asha")
        await approved(client, batch)
        await send(client)
        await settle(world, client)
        world.service.answer_lookup = lambda request: error(500, None)
        with pytest.raises(ServerError):
            await client.payouts.retry(batch.id, by="Asha")
        world.service.answer_lookup = lambda request: error(404, "TRANSACTION_NOT_FOUND")
        with pytest.raises(StoreError, match="line 1: its transaction is not shown as failed"):
            await client.payouts.retry(batch.id, by="Asha")
        assert len(await client.payouts.list()) == 1
        alone = Payouts(account_store(SQLStore(world.url)), world.utcnow)
        with pytest.raises(InvalidRequest, match="payouts must be those of a client"):
            await alone.retry(batch.id, by="Asha")


@BOTH
async def test_a_first_payment_that_has_turned_since_the_proposal_stops_the_approval(world: World) -> None:
    """The approver may come days later: each transaction is looked up once more, or nothing is queued."""
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        rows = [{"phone_number": number(each), "amount": 1_000} for each in range(2)]
        first = await approved(client, await client.payouts.propose(rows, name="salaries", by="Asha"))
        await send(client)
        await settle(world, client)
        retry = await client.payouts.retry(first.id, by="Asha")
        asked = world.service.lookups, world.service.lists
        for by, shown in (("Juma", "0" * 64), ("Asha", retry.digest)):
            with pytest.raises(StoreError, match="nothing was changed"):
                await client.payouts.approve(retry.id, by=by, digest=shown)
        assert (world.service.lookups, world.service.lists) == asked
        alone = Payouts(account_store(SQLStore(world.url)), world.utcnow)
        with pytest.raises(InvalidRequest, match="payouts must be those of a client"):
            await alone.approve(retry.id, by="Juma", digest=retry.digest)
        world.service.answer_lookup = lambda request: error(500, None)
        with pytest.raises(ServerError):
            await approved(client, retry)
        world.service.answer_lookup = lambda request: error(404, "TRANSACTION_NOT_FOUND")
        with pytest.raises(StoreError, match=r"line 1 .* its transaction is not shown as failed; cancel this retry"):
            await approved(client, retry)
        world.service.answer_lookup = lambda request: None
        world.service.payments[0].status = "SUCCESS"
        with pytest.raises(StoreError, match=r"line 1 .* shows another final state .*; cancel this retry"):
            await approved(client, retry)
        assert len(await client.payments.list()) == 2
        await client.payouts.cancel(retry.id, by="Juma")
        again = await approved(client, await client.payouts.retry(first.id, by="Asha"))
        asked = world.service.lookups, world.service.lists
        assert (await approved(client, again)).states == {"QUEUED": 1}
        assert (world.service.lookups, world.service.lists) == asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anyio_backend", "store_url", "seed"),
    [(*(("asyncio", "sqlite"), ("trio", "postgresql"))[seed % 2], seed) for seed in range(soak(32))],
    indirect=["anyio_backend", "store_url"],
)
async def test_whatever_happens_at_most_one_payment_of_a_line_moves_money(store_url: str, seed: int) -> None:
    """Two processes that retry, approve, cancel, send and create, answers that are lost, and failures that turn."""
    dice, world = random.Random(seed), make_world(store_url)

    def answer(request: httpx.Request, payment: Payment | None) -> httpx.Response | None:
        assert payment is not None
        fate = dice.random()
        if fate < 0.2:
            world.service.payments.remove(payment)
            return error(403, "insufficient_permissions") if fate < 0.1 else error(400, "SOME_LIMIT")
        if fate < 0.3:
            return lose_answer(request, payment)
        return None

    world.service.answer_create = answer
    async with world.client() as client, world.client() as other:
        await approved(client)
        for _ in range(40):
            each = dice.choice((client, other))
            step = Step(world, each, dice, await each.payouts.list(), dice.choice(await each.payments.list()))
            with suppress(MobileMoneyError):
                await dice.choice(STEPS)(step)
            wrong = {number: count for number, count in live(world).items() if count > 1}
            assert not wrong, wrong


@attrs.frozen
class Step:
    """One step of a random history."""

    world: World
    client: AsyncClient
    dice: random.Random
    batches: Sequence[PayoutBatch]
    record: PaymentRecord

    async def retry(self) -> None:
        await self.client.payouts.retry(self.dice.choice(self.batches).id, by="Asha")

    async def approve(self) -> None:
        await approved(self.client, next((each for each in self.batches if each.state == "proposed"), None))

    async def cancel(self) -> None:
        await self.client.payouts.cancel(self.dice.choice(self.batches).id, by="Asha")

    async def send(self) -> None:
        await send(self.client)

    async def settle(self) -> None:
        ends = {number(each): self.dice.choice(("SUCCESS", "FAILED")) for each in range(3)}
        await settle(self.world, self.client, ends)

    async def create(self) -> None:
        await pay(self.client, self.record)

    async def enqueue(self) -> None:
        order: dict[str, Any] = {"phone_number": self.record.phone_number, "amount": self.record.amount}
        await self.client.payments.enqueue(type="disbursement", **order, idempotency_key=self.record.key)

    async def withdraw(self) -> None:
        await self.client.payments.cancel(self.record.key, note="Asha", reusable=True)

    async def look(self) -> None:
        await anyio.sleep(400)
        await self.client.payments.reconcile()

    async def turn(self) -> None:
        last = {each.phone_number: each for each in self.world.service.payments}
        for each in last.values():
            if each.status == "FAILED":
                each.status = "SUCCESS"
                break
        await self.world.read(self.client)

    async def recover(self) -> None:
        for each in await self.client.payments.list():
            if each.is_contradicted:
                await self.client.payments.recover({each.key: str(each.transaction_id)}, note="Asha: paid")


STEPS = (
    *(Step.retry, Step.approve, Step.send, Step.settle) * 2,
    *(Step.approve, Step.cancel, Step.create, Step.enqueue, Step.withdraw, Step.look, Step.turn, Step.recover),
)
