"""The audit: what differs between the store and the service, in words."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, AuditReport, InvalidRequest, OutcomeUnknown
from mobilemoney_async.database.schema import payments
from mobilemoney_async.sandbox import faults
from tests.payments.service import ORDER, PHONE_NUMBER, World, make_world

pytestmark = pytest.mark.anyio


async def audit(world: World, client: AsyncClient) -> AuditReport:
    today = world.utcnow().date()
    return await client.payments.audit(from_date=today, to_date=today)


async def pay(client: AsyncClient, *amounts: int) -> None:
    for amount in amounts:
        await client.collections.create(**{**ORDER, "amount": amount}, idempotency_key=f"k{amount}")


async def finish(client: AsyncClient) -> None:
    async with client.poller(resume=True) as poller:
        async for _ in poller.outcomes():
            pass


async def change(client: AsyncClient, key: str, **values: Any) -> None:
    """Change a row behind the library's back."""
    assert client._store is not None
    await client._store.database.write(
        lambda connection: connection.execute(payments.update().where(payments.c.key == key).values(values))
    )


async def test_books_that_agree_are_clean_and_come_with_their_totals(store_url: str) -> None:
    """By type, status and settlement batch, with gross, fees and net."""
    world = make_world(store_url)
    async with world.client() as client:
        await pay(client, 1000, 2000)
        await finish(client)
        await client.disbursements.create(**ORDER, idempotency_key="d")
        report = await audit(world, client)
    assert report.is_clean and (report.transactions, report.payments) == (3, 3)
    collected = next(each for each in report.totals if each.type == "collection")
    assert (collected.count, collected.gross, collected.status) == (2, Decimal(3000), "SUCCESS")
    assert collected.net == collected.gross - collected.fees < 3000 and collected.settlement_batch is not None


async def test_each_kind_of_difference_has_a_reason_and_a_next_step(store_url: str) -> None:
    """A stranger, a second payment, another state, another amount, an unknown result, a transaction that is gone."""
    world = make_world(store_url)
    async with world.client() as client, world.client(store=world.store(account="other system")) as other:
        await pay(client, 1000, 2000, 3000)
        await finish(client)
        await pay(client, 4000)
        await pay(other, 77, 1000)
        world.sandbox.script(faults.lost(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await pay(client, 5000)
        await finish(other)
        await change(client, "k2000", amount="2001")
        await change(client, "k3000", transaction_id="txn_gone", sent_at=world.utcnow() - timedelta(seconds=20))
        await anyio.sleep(60)
        report = await audit(world, client)
        found = {(str(each.kind), each.key) for each in report.differences}
    assert ("unclaimed", None) in found
    assert ("paid_twice", "k1000") in found
    assert ("content", "k2000") in found
    assert ("missing", "k3000") in found
    assert ("state", "k4000") in found
    assert ("unresolved", "k5000") in found
    assert all(each.reason and each.advice for each in report.differences)
    assert PHONE_NUMBER not in repr(report)


async def test_a_list_that_cannot_be_read_as_a_whole_is_not_clean(store_url: str) -> None:
    """And nothing is called missing because of it."""
    world = make_world(store_url)
    async with world.client() as client:
        await pay(client, 1000, 2000)
        world.sandbox.script(faults.list_lag(3600), on="GET transactions", times=100)
        report = await audit(world, client)
    assert {str(each.kind) for each in report.differences} <= {"incomplete"}


async def test_other_days_are_not_compared(store_url: str) -> None:
    """Nor is anything changed."""
    world = make_world(store_url)
    async with world.client() as client:
        await pay(client, 1000)
        yesterday = world.utcnow().date() - timedelta(days=1)
        before = await client.payments.list()
        report = await client.payments.audit(from_date=yesterday, to_date=yesterday)
        assert (report.is_clean, report.payments, report.transactions) == (True, 0, 0)
        assert await client.payments.list() == before
        wrong: list[tuple[Any, Any]] = [("2026-01-01", yesterday), (yesterday, world.utcnow()), (date.max, yesterday)]
        for first, last in wrong:
            with pytest.raises(InvalidRequest):
                await client.payments.audit(from_date=first, to_date=last)
