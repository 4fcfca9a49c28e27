"""Work that is done in batches: nothing is lost or done twice at the edges, where there are n things or n + 1."""

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from mobilemoney_async import PaymentState, TransactionType
from mobilemoney_async.database.schema import payments
from mobilemoney_async.payments.outbox.outbox import QueueOptions, cancel_batch, enqueue_all
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks, find_all, owners
from mobilemoney_async.payments.records.record import PaymentRequest
from mobilemoney_async.payments.store import account_store
from tests.payments.service import World, on_asyncio
from tests.support.fakes import NOON

MANY = 501
KEYS = [f"salary-{number:04}" for number in range(MANY)]
EDGES = (0, 1, 499, 500, 501)


@pytest.mark.parametrize("number", [*EDGES, 1000, 1001])
def test_each_thing_is_in_one_batch(number: int) -> None:
    """Batches are full but the last one, in order, and together they are everything."""
    batches = [*chunks(range(number))]
    assert [each for some in batches for each in some] == [*range(number)]
    assert [len(some) for some in batches] == [500] * (number // 500) + [number % 500] * bool(number % 500)


async def queue(world: World) -> None:
    """Queue many payments in one transaction, each of which gets a transaction afterwards."""

    def work(connection: sa.Connection) -> None:
        orders = [
            (
                PaymentRequest(
                    key=key,
                    type=TransactionType.DISBURSEMENT,
                    phone_number=f"+2556812{number:05}",
                    amount="1000",
                    extra_digest="",
                ),
                QueueOptions(batch="november", line=number),
            )
            for number, key in enumerate(KEYS)
        ]
        # The second half is queued a second time, with the first: that changes nothing.
        for some, used in (orders[MANY // 2 :], ()), (orders, KEYS[MANY // 2 :]):
            enqueue_all(Journal(connection, "default"), some, NOON, used=used)
        connection.execute(payments.update().values(transaction_id=sa.literal("tx-") + payments.c.key))

    await account_store(world.store()).database.write(work)


@pytest.mark.slow
@on_asyncio
async def test_hundreds_of_payments_are_found_and_changed_in_batches(world: World) -> None:
    """Each key and each transaction is found once, each change is read once, whatever the number of them."""
    await queue(world)
    async with world.client() as client:
        store = account_store(world.store())
        for number in EDGES:

            def look(journal: Journal, some: Sequence[str] = KEYS[:number]) -> Any:
                return find_all(journal, some), owners(journal, [f"tx-{key}" for key in some])

            found, owned = await store.read(look)
            assert sorted(record.key for record in found) == KEYS[:number]
            assert {name: record.key for name, record in owned.items()} == {f"tx-{key}": key for key in KEYS[:number]}
            pages = client.payments.changes(start="oldest", limit=number or 1, forever=False)
            assert [change.key async for change in pages] == KEYS[: number or 1]
        feed = client.payments.changes(consumer="books", start="oldest", forever=False)
        seen = []
        async for change in feed:
            seen.append(change.key)
            await change.done()
        assert seen == KEYS
        await store.write(lambda journal: cancel_batch(journal, "november", note="stop", at=NOON))
    assert world.states() == [str(PaymentState.CANCELLED)] * MANY
    assert sorted(world.happened()) == ["cancelled"] * MANY + ["queued"] * MANY
