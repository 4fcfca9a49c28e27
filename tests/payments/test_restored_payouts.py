"""A restored backup has forgotten what people cancelled, retried and paid since: no payout goes out for that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient
from mobilemoney_async.database import schema
from tests.payments.second_world import BOTH, HOUR, World, number
from tests.payments.test_recovery import replace

pytestmark = pytest.mark.anyio

GRACE_IS_OVER = 5 * 60


def back_up(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables."""
    with sa.create_engine(url, poolclass=sa.pool.NullPool).connect() as connection:
        tables = schema.METADATA.sorted_tables
        return {each.name: [dict(row) for row in connection.execute(sa.select(each)).mappings()] for each in tables}


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
        backup = back_up(world.url)
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
            dispatcher.resume()
            await anyio.sleep(30)
        assert [each.phone_number for each in world.service.payments] == [number(1), number(3), number(4)]
