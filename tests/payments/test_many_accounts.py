"""Many merchants in one process: what their stores share, and what they do not."""

import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, InvalidRequest, PaymentState, Secret, SQLStore
from mobilemoney_async.database import change_watch, connections
from mobilemoney_async.database.change_watch import watches
from mobilemoney_async.database.connections import THREADS
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.engine import Database
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Choices, Sandbox
from tests.payments.service import Outage, on_asyncio, on_one
from tests.payments.steps import approved, dispatch, settle
from tests.support.databases import OTHERS, execute
from tests.support.patience import PATIENCE, until
from tests.support.scale import soak

ORDER: dict[str, Any] = {"phone_number": "+255681234567", "amount": 1000, "idempotency_key": "order-1"}


async def sessions(url: str, condition: str) -> int:
    """Return how many sessions of a database fulfil a condition, beside the one that asks."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS} AND {condition}"
    ((count,),) = await anyio.to_thread.run_sync(execute, url, query)
    return int(count)


@asynccontextmanager
async def merchants(store: SQLStore, count: int) -> AsyncIterator[list[tuple[Sandbox, AsyncClient]]]:
    """Open a client for each account, each with a service of its own."""
    async with AsyncExitStack() as stack:
        made = []
        for number in range(count):
            sandbox = Sandbox(seed=number, choices=Choices(median_delay=0.3, longest_delay=1.0))
            account = store.for_account(f"shop-{number}")
            made.append((sandbox, await stack.enter_async_context(sandbox.client(store=account))))
        yield made


def has_log(url: str) -> bool:
    """Return whether SQLite's log is there, which the last connection takes with it."""
    return Path(f"{sa.make_url(url).database}-wal").exists()


async def _has_no_session(url: str, condition: str) -> bool:
    return not await sessions(url, condition)


async def until_nobody_listens(url: str) -> None:
    """Wait until the server has noticed that the connection is closed, which takes it a moment."""
    await until(partial(_has_no_session, url, "query LIKE 'LISTEN%'"))


async def test_accounts_of_one_store_share_nothing_but_the_database(store_url: str) -> None:
    """The same key is another payment in each account, and no account sees another's payments or changes."""
    async with merchants(SQLStore(store_url), 3) as made:
        for sandbox, client in made:
            await client.collections.create(**ORDER)
            assert len(sandbox.transactions) == 1
        for sandbox, client in made:
            (record,) = await client.payments.list()
            assert record.transaction_id in sandbox.transactions
            changes = [each async for each in client.payments.changes(forever=False)]
            assert {each.record.transaction_id for each in changes if each.record} == {record.transaction_id}


@on_one
async def test_a_batch_is_reviewed_with_payments_of_its_own_account(store_url: str) -> None:
    """What another account has paid, approved and proposed is no duplicate, and no number that is known."""
    order = {"phone_number": ORDER["phone_number"], "amount": 1000}
    async with merchants(SQLStore(store_url), 2) as ((_, one), (_, other)):
        await one.payouts.propose([order], name="salaries", by="Asha")
        await approved(one, [order])
        await dispatch(one, 5)
        await settle(one)
        again = await one.payouts.propose([order], name="salaries", by="Asha")
        assert not again.new_recipients and again.last_total and again.duplicates
        batch = await other.payouts.propose([order], name="salaries", by="Asha")
        assert batch.new_recipients and not (batch.last_total or batch.duplicates or batch.repeats)


async def test_the_store_of_an_account_is_made_once(store_url: str) -> None:
    """Asked twice, also through another account's, it is the same, so that creates under one key wait in line."""
    store = SQLStore(store_url, account="platform", grace=7)
    one = store.for_account("shop-1")
    assert one is store.for_account("shop-1").for_account("shop-1")
    assert one.for_account("platform") is store
    assert (one.account, one.grace) == ("shop-1", 7)
    assert "account='shop-1'" in repr(one)
    for name in ("", "x" * 201, 7):
        with pytest.raises(InvalidRequest, match="account must be"):
            store.for_account(name)  # type: ignore[arg-type]


async def test_clients_of_an_account_share_its_locks_though_nobody_holds_its_store(store_url: str) -> None:
    """`store=platform.for_account(…)`, written for each client: creates under one key wait in line all the same."""
    platform = SQLStore(store_url, account="platform")
    sandbox, parts = Sandbox(), set()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            store = platform.for_account("shop-1")
            parts.add(account_store(store))
            await stack.enter_async_context(sandbox.client(store=store))
            del store
            gc.collect()
    assert len(parts) == 1


@pytest.mark.slow
def test_every_account_encrypts_under_the_key_of_the_store() -> None:
    """Another process, which was given this account only, reads the token; another account does not."""
    ours = TokenCipher("platform", "0123456789abcdef").for_account("shop-1")
    theirs = TokenCipher("shop-1", "0123456789abcdef")
    token = Secret("issued-token")
    name = ours.name_token(token)
    assert name == theirs.name_token(token)
    found = theirs.decrypt(ours.encrypt(token, name), name)
    assert found is not None
    assert found.reveal() == "issued-token"
    assert ours.for_account("shop-2").decrypt(ours.encrypt(token, name), name) is None


async def test_a_client_that_is_closed_leaves_the_others_of_the_database(store_url: str) -> None:
    """Only the last one of all accounts closes what they share."""
    store = SQLStore(store_url)
    async with merchants(store, 2) as ((_, one), (_, other)):
        await one.collections.create(**ORDER)
        await one.aclose()
        await other.collections.create(**ORDER)
        assert [each.key async for each in other.payments.changes(forever=False)] != []
    assert not has_log(store_url)


@pytest.mark.slow
@on_asyncio
async def test_a_store_that_is_away_is_said_once_for_all_accounts(
    sqlite_file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind of work says so in one line a minute, however many accounts there are."""
    store = SQLStore(sqlite_file_url)
    outage = Outage(account_store(store).database)
    async with merchants(store, 4) as made, AsyncExitStack() as stack:
        for _, client in made:
            await client.collections.create(**ORDER)
            await stack.enter_async_context(client.poller(resume=True))
            await stack.enter_async_context(client.dispatcher())
        await anyio.sleep(5)
        for _, client in made:
            await client.payments.enqueue(**{**ORDER, "idempotency_key": "order-2", "amount": 2000}, type="collection")
        caplog.clear()
        outage.away = True
        await anyio.sleep(55)
        outage.away = False
        said = Counter(record.message for record in caplog.records if "store" in record.message)
        await anyio.sleep(30)
        assert [len(sandbox.ledger) for sandbox, _ in made] == [2] * 4
    assert "the dispatcher waits for the store: the store failed: away" in said
    assert "the poller waits for the store: the store failed: away" in said
    assert max(said.values()) == 1, said


async def test_a_client_that_is_closed_begins_no_poller_and_no_dispatcher(postgres_url: str) -> None:
    """It would open connections that nobody closes any more."""
    async with merchants(SQLStore(postgres_url), 1) as ((_, client),):
        await client.collections.create(**ORDER)
        poller, dispatcher = client.poller(resume=True), client.dispatcher()
        await client.aclose()
        for part in (poller, dispatcher):
            with pytest.raises(InvalidRequest, match="the client is closed"):
                async with part:
                    raise AssertionError
        await until_nobody_listens(postgres_url)
        while await sessions(postgres_url, "true"):
            await anyio.sleep(0.02)


@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_any_number_of_accounts_with_pollers_and_readers_has_nine_connections(postgres_url: str) -> None:
    """Eight of them work, and one listens, for the readers of all accounts."""
    store = SQLStore(postgres_url)
    listening, working = "query LIKE 'LISTEN%'", "query NOT LIKE 'LISTEN%'"
    with anyio.fail_after(PATIENCE):
        async with merchants(store, soak(60)) as made:
            left = len(made)

            async def follow(client: AsyncClient) -> None:
                nonlocal left
                async with client.poller() as poller:
                    poller.track((await client.collections.create(**ORDER)).transaction_id)
                    async for change in client.payments.changes():
                        if change.state == PaymentState.FINAL:
                            break
                    left -= 1
                    await until(lambda: not left)

            async with anyio.create_task_group() as tasks:
                for _, client in made:
                    tasks.start_soon(follow, client)
                most = 0
                while left:
                    most = max(most, await sessions(postgres_url, working))
                    assert await sessions(postgres_url, listening) <= 1
                    await anyio.sleep(0.1)  # real time: it looks again and again, at what holds all the time
            assert 1 <= most <= THREADS + 2
        await until_nobody_listens(postgres_url)


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_the_connection_that_listens_lasts_and_is_replaced(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle ones end after a minute; here, after a fifth of a second. The one that listens ends with its server."""
    monkeypatch.setattr(connections, "_KEPT", "200ms")
    monkeypatch.setattr(change_watch, "_RELISTEN_DELAY", 0.05)
    database = Database(postgres_url)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watches.of(database).wait, database, "shop", 0)
            await until(partial(_has_session, postgres_url, "query LIKE 'LISTEN%'"))
            await until(lambda: watches.of(database)._driver is not None)  # the server knows it sooner
            first = watches.of(database)._driver.info.backend_pid
            await anyio.sleep(0.5)  # real time: idle ones have ended
            assert await sessions(postgres_url, f"pid = {first}") == 1
            await sessions(postgres_url, f"CASE WHEN pid = {first} THEN pg_terminate_backend(pid) END")
            await until(partial(_has_session, postgres_url, f"query LIKE 'LISTEN%' AND pid <> {first}"))
            tasks.cancel_scope.cancel()
    watches.of(database).close()
    database.close()
    await until_nobody_listens(postgres_url)


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_reader_is_notified_of_changes_of_other_processes(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait until it looks by itself."""
    sandbox = Sandbox()
    async with (
        sandbox.client(store=SQLStore(postgres_url)) as reader,
        sandbox.client(store=SQLStore(postgres_url)) as other,
    ):
        changes = reader.payments.changes()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                monkeypatch.setattr(change_watch, "_POLL", 10 * PATIENCE)
                tasks.start_soon(anext, changes)
                await until(partial(_has_session, postgres_url, "query LIKE 'LISTEN%'"))
                await other.collections.create(**ORDER)


async def _has_session(url: str, condition: str) -> bool:
    return bool(await sessions(url, condition))
