"""Steps of a merchant that many tests take: a record is read, payments are sent and followed, a batch is approved."""

from typing import Any

import anyio

from mobilemoney_async import AsyncClient, PaymentRecord, PayoutBatch
from mobilemoney_async.payments.outbox.dispatcher import Dispatcher


async def record_of(client: AsyncClient, key: str) -> PaymentRecord:
    """Return the record of a key that was used."""
    record = await client.payments.get(key)
    assert record is not None, key
    return record


async def dispatch(client: AsyncClient, seconds: float = 12, **options: Any) -> Dispatcher:
    """Let what is queued be sent for some seconds."""
    async with client.dispatcher(**options) as dispatcher:
        await anyio.sleep(seconds)
    return dispatcher


async def settle(client: AsyncClient) -> None:
    """Follow all payments of an account to their final states."""
    async with client.poller(resume=True) as poller:
        _ = [outcome async for outcome in poller.outcomes()]


async def approved(client: AsyncClient, rows: Any, name: str = "salaries") -> PayoutBatch:
    """Let Asha propose a batch, and Juma approve it."""
    batch = await client.payouts.propose(rows, name=name, by="Asha")
    return await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
