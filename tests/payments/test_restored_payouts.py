"""A restored backup has forgotten what people cancelled, retried and paid since: no payout goes out for that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, DisbursementLimits, LimitExceeded, PayoutBatch, StoreError
from mobilemoney_async.database import schema
from tests.payments.second_world import BOTH, HOUR, World, masked, number
from tests.payments.test_recovery import dump, replace
from tests.support.second_service import ListBehaviour

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.costly("no quick test restores a backup that has forgotten cancellations, retries or a limit's sum"),
]

GRACE_IS_OVER = 5 * 60


async def restore(world: World, client: AsyncClient, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Restore a backup, and compare it as the runbook says."""
    replace(world.url, tables)
    await client.payments.restored(note="Asha: backup of noon")
    for _ in range(2):
        await client.payments.reconcile()
        await anyio.sleep(GRACE_IS_OVER)


async def enqueue(client: AsyncClient, type: str, key: str, last: int) -> None:
    waits: dict[str, Any] = {"type": type, "not_before": timedelta(seconds=20)}
    await client.payments.enqueue(phone_number=number(last), amount=1_000, idempotency_key=key, **waits)


@BOTH
@pytest.mark.parametrize("sole_writer", [None, False])
async def test_queued_payouts_wait_until_someone_resumes(world: World, sole_writer: bool | None) -> None:
    """The store has forgotten that they were cancelled. Collections of the queue go on."""
    world.sole_writer = sole_writer
    async with world.client() as client:
        await client.disbursements.create(phone_number=number(1), amount=900, idempotency_key="paid")
        await enqueue(client, "disbursement", "refund", 2)
        await enqueue(client, "collection", "order", 3)
        backup = dump(world.url, schema.METADATA.sorted_tables)
        await client.payments.cancel("refund", note="Neema: not this one")
        await anyio.sleep(HOUR)
    async with world.client() as client:
        await restore(world, client, backup)
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(5)
            assert [each.phone_number for each in world.service.payments] == [number(1), number(3)]
            assert dispatcher.stats.paused is not None
            await client.payments.cancel("refund", note="Neema: not this one")
            await enqueue(client, "disbursement", "later", 4)
            await anyio.sleep(30)
            assert len(world.service.payments) == 2
            dispatcher.pause("the till is closed")  # ends by a word of its own
            await anyio.sleep(5)
            dispatcher.resume()
            await anyio.sleep(30)
            assert len(world.service.payments) == 2
            dispatcher.resume()
            await anyio.sleep(30)
        assert [each.phone_number for each in world.service.payments] == [number(1), number(3), number(4)]


async def approve(client: AsyncClient, batch: PayoutBatch) -> None:
    await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)


async def send(world: World, client: AsyncClient, status: str) -> str:
    """Send what is queued, end the newest transaction so, let the store know, and return its id."""
    async with client.dispatcher(per_minute=6_000, pause_after=None):
        await anyio.sleep(3)
    payment = world.service.payments[-1]
    world.service.finish(payment, status)
    await client.payments.reconcile()
    async with client.poller(resume=True, timeout=600) as poller:
        async for _ in poller.outcomes():
            pass
    return payment.id


@BOTH
@pytest.mark.parametrize("word", ["explain", "own key", "next key", "none"])
async def test_a_line_whose_lost_retry_was_paid_is_not_paid_again(world: World, client: AsyncClient, word: str) -> None:
    """Whatever someone says of that transaction, and also where one retry was cancelled, and the next one paid."""
    rows = [{"phone_number": number(1), "amount": 1_000}]
    first = await client.payouts.propose(rows, name="salaries", by="Asha")
    await approve(client, first)
    await send(world, client, "FAILED")
    backup = dump(world.url, schema.METADATA.sorted_tables)
    await anyio.sleep(HOUR)
    await client.payouts.cancel((await client.payouts.retry(first.id, by="Asha")).id, by="Juma")
    retry = await client.payouts.retry(first.id, by="Asha")
    await approve(client, retry)
    paid = await send(world, client, "SUCCESS")
    (line,) = await client.payouts.report(retry.id)
    await anyio.sleep(HOUR)
    await restore(world, client, backup)
    own = (await client.payouts.report(first.id))[0].key
    with pytest.raises(StoreError, match=f"{first.id}-retry-1-1"):
        await client.payments.recover({own: paid}, note="Asha: the order book")
    if word == "explain":
        await client.payments.explain(paid, note="Asha: the retry of line 1, paid")
    elif word != "none":
        key = line.key if word == "own key" else f"{first.id}-retry-1-1"
        await client.payments.recover({key: paid}, note="Asha: the report")
    if word != "next key":
        with pytest.raises(StoreError, match="may have paid it"):
            await client.payouts.retry(first.id, by="Asha")
    if word in {"explain", "none"}:  # as the error has said
        await client.payments.recover({f"{first.id}-retry-1-1": paid}, note="Asha: the report")
    if word != "own key":
        await approve(client, await client.payouts.retry(first.id, by="Asha"))
        assert (await client.payouts.report(first.id))[0].transaction_id == paid
    await client.payments.reconcile()
    async with client.dispatcher():
        await anyio.sleep(30)
    assert len(world.service.payments) == 2


@BOTH
@pytest.mark.parametrize("is_masked", [False, True])
async def test_what_the_store_has_forgotten_counts_for_the_limits(world: World, is_masked: bool) -> None:
    """Of one payment and of a batch, until it is recovered: then the payment counts, once."""
    limits = DisbursementLimits(per_recipient_a_day=1_500, per_day=3_000)
    async with world.client(disbursement_limits=limits) as client:
        await client.disbursements.create(phone_number=number(1), amount=900, idempotency_key="kept")
        backup = dump(world.url, schema.METADATA.sorted_tables)
        await anyio.sleep(HOUR)
        await client.disbursements.create(phone_number=number(2), amount=1_000, idempotency_key="lost")
    if is_masked:
        world.service.list = ListBehaviour(spell=masked)
    await anyio.sleep(HOUR)
    async with world.client(disbursement_limits=limits) as client:
        await restore(world, client, backup)
        lost = [each.transaction_id for each in await client.payments.unclaimed() if each.is_gap]
        assert len(lost) == 1
        for is_known in (False, True):
            if is_known:
                await client.payments.recover({"lost": lost[0]}, note="Asha", phone_numbers={lost[0]: number(2)})
            for last, amount, limit in ((2, 501, "per_recipient_a_day"), (3, 1_101, "per_day")):
                with pytest.raises(LimitExceeded) as raised:
                    await client.disbursements.create(phone_number=number(last), amount=amount, idempotency_key="x")
                assert (raised.value.limit, int(raised.value.left)) == (limit, amount - 1)
                rows = [{"phone_number": number(last), "amount": amount}]
                batch = await client.payouts.propose(rows, name="salaries", by="Asha")
                with pytest.raises(LimitExceeded):
                    await approve(client, batch)
        await client.disbursements.create(phone_number=number(3), amount=1_100, idempotency_key="x")
    assert len(world.service.payments) == 3
