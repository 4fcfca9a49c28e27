"""Accounts in three databases, on three PostgreSQL servers of which one is killed."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.to_thread
import pytest

from mobilemoney_async import AsyncClient, Merchants, SQLStore, StoreError
from mobilemoney_async.database.connections import THREADS
from tests.payments.hosts import token_of
from tests.payments.service import on_asyncio
from tests.support.databases import Postgres, postgres
from tests.support.patience import PATIENCE
from tests.support.second_service import BASE_URL, SecondService

ACCOUNTS = [f"shop-{number}" for number in range(9)]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Postgres]]:
    with ExitStack() as stack:
        yield [stack.enter_context(postgres()) for _ in range(3)]


async def pay(client: AsyncClient, key: str) -> str:
    made = await client.collections.create(
        phone_number="+255681234567", amount=int(key[-1]) + 1000, idempotency_key=key
    )
    return made.transaction_id


def options_of(service: SecondService, stores: Mapping[str, SQLStore]) -> dict[str, Any]:
    async def store_of(account: str) -> SQLStore:
        return stores[account]

    return {"store": store_of, "auth": token_of, "transport": lambda account: service}


@pytest.mark.real_time
@pytest.mark.soak
@on_asyncio
async def test_one_killed_server_concerns_its_own_accounts(
    servers: list[Postgres], caplog: pytest.LogCaptureFixture
) -> None:
    """Their payments are not sent and their pollers wait; the others pay and follow meanwhile; then all goes on."""
    service = SecondService(
        utcnow=lambda: datetime.now(UTC), merchants={f"token.of.{account}": account for account in ACCOUNTS}
    )
    stores = [SQLStore(server.new_database()) for server in servers]
    lost, others = ACCOUNTS[::3], [account for place, account in enumerate(ACCOUNTS) if place % 3]
    options = options_of(service, {account: stores[place % 3] for place, account in enumerate(ACCOUNTS)})
    with anyio.fail_after(PATIENCE):
        async with Merchants(BASE_URL, **options) as merchants, AsyncExitStack() as stack:
            clients = {account: await merchants.client(account) for account in ACCOUNTS}
            pollers = {
                account: await stack.enter_async_context(client.poller(resume=True, min_interval=0.2))
                for account, client in clients.items()
            }
            open_ones = {account: await pay(client, "order-1") for account, client in clients.items()}
            await anyio.to_thread.run_sync(servers[0].stop)
            try:
                caplog.clear()
                for account in lost:
                    with pytest.raises(StoreError) as caught:
                        await pay(clients[account], "order-2")
                    assert caught.value.outcome == "not_sent"
                for account in others:
                    pollers[account].track(await pay(clients[account], "order-2"))
                for payment in service.payments:
                    service.finish(payment)
                for account in others:
                    assert (await pollers[account].wait(open_ones[account])).succeeded
                said = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
                assert not any(account in text for account in others for text in said)
            finally:
                await anyio.to_thread.run_sync(servers[0].start)
            for account in lost:
                await pay(clients[account], "order-2")
                assert (await pollers[account].wait(open_ones[account])).succeeded
    made = sorted((each.merchant_id, each.amount) for each in service.payments)
    assert made == [(account, amount) for account in ACCOUNTS for amount in ("1001", "1002")]


@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.stops
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_a_server_that_does_not_answer_takes_no_threads_from_the_others(servers: list[Postgres]) -> None:
    """While more payments than there are threads wait for it, the accounts of another server pay."""
    service = SecondService(utcnow=lambda: datetime.now(UTC), merchants={"token.of.a": "a", "token.of.b": "b"})
    stores = {name: SQLStore(server.new_database()) for name, server in zip("ab", servers, strict=False)}
    async with Merchants(BASE_URL, **options_of(service, stores)) as merchants, anyio.create_task_group() as tasks:
        first, second = await merchants.client("a"), await merchants.client("b")

        async def try_to_read() -> None:
            with suppress(StoreError):
                await first.payments.get("order-1")

        for client in (first, second):
            await pay(client, "order-1")
        # A connection for each thread: those that are made later give up after ten seconds.
        async with anyio.create_task_group() as reads:
            for _ in range(10 * THREADS):
                reads.start_soon(try_to_read)
        with servers[0].frozen(), anyio.fail_after(PATIENCE):
            for _ in range(2 * THREADS):
                tasks.start_soon(try_to_read)
            await anyio.sleep(1)  # real time: until they have the threads; were it too short, this would show less
            await pay(second, "order-2")
    assert [(each.merchant_id, each.amount) for each in service.payments] == [
        ("a", "1001"),
        ("b", "1001"),
        ("b", "1002"),
    ]
