"""Decisions that an unknown payment is a certain transaction."""

from __future__ import annotations

from typing import Any

import pytest

from mobilemoney_async import AsyncClient, InvalidRequest, OutcomeUnknown, StoreError, TransactionNotFound
from mobilemoney_async.sandbox import faults
from tests.payments.service import ORDER, World, make_world

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def lose_among_others(world: World, client: AsyncClient, other: AsyncClient) -> tuple[str, str]:
    """Create a payment and lose its answer, and the same by a system without a store; return both ids."""
    world.sandbox.script(faults.drop(processed=True), on="c2b")
    with pytest.raises(OutcomeUnknown):
        await client.collections.create(**ORDER, idempotency_key="order-1")
    (ours,) = world.made
    theirs = await other.collections.create(**ORDER)
    return ours, theirs.transaction_id


def make_other(world: World) -> Any:
    """Return a client of another system: without a store."""
    return world.sandbox.client()


async def test_an_ambiguous_payment_becomes_the_transaction_that_someone_names(store_url: str) -> None:
    """Its key then gives that transaction, and duplicates may be sent again."""
    world = make_world(store_url)
    async with world.client() as client, make_other(world) as other:
        ours, theirs = await lose_among_others(world, client, other)
        (record,) = await client.payments.reconcile()
        assert record.candidates == tuple(sorted([ours, theirs]))
        record = await client.payments.identify("order-1", ours, note="Asha asked the customer")
        assert (record.state, record.transaction_id, record.candidates) == ("ACKNOWLEDGED", ours, ())
        answer = await client.collections.create(**ORDER, idempotency_key="order-1")
        assert answer.transaction_id == ours
        await client.collections.create(**ORDER, idempotency_key="order-2")
        found = await client.payments.get("order-1")
    assert found is not None
    last = found.history[-1]
    assert (last.what, last.source, last.detail) == ("adopted", "person", f"{ours}: Asha asked the customer")


async def test_a_transaction_of_another_kind_is_not_taken(sqlite_file_url: str) -> None:
    """A mistyped id is refused if the transaction has another phone number or amount."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, make_other(world) as other:
        await lose_among_others(world, client, other)
        wrong = await other.collections.create(**{**ORDER, "amount": 77})
        with pytest.raises(StoreError, match="another type, phone number or amount"):
            await client.payments.identify("order-1", wrong.transaction_id, note="no")
        with pytest.raises(TransactionNotFound):
            await client.payments.identify("order-1", "txn_nobody", note="no")
        for key, transaction_id, note in (("", "x", "y"), ("x", "", "y"), ("x", "y", " ")):
            with pytest.raises(InvalidRequest):
                await client.payments.identify(key, transaction_id, note=note)
        record = await client.payments.get("order-1")
    assert record is not None
    assert record.state == "UNKNOWN"


async def test_a_transaction_belongs_to_one_payment(sqlite_file_url: str) -> None:
    """A transaction of another payment cannot be given to a second one, nor can a known payment be changed."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, make_other(world) as other:
        ours, theirs = await lose_among_others(world, client, other)
        await client.payments.identify("order-1", ours, note="yes")
        with pytest.raises(StoreError, match="not unknown or absent"):
            await client.payments.identify("order-1", theirs, note="no")
        world.sandbox.script(faults.drop(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**ORDER, idempotency_key="order-2")
        with pytest.raises(StoreError, match="belongs to another payment"):
            await client.payments.identify("order-2", ours, note="no")
        with pytest.raises(StoreError, match="there is no payment"):
            await client.payments.identify("order-3", ours, note="no")
