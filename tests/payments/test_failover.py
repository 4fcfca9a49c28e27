"""PostgreSQL fails over, or stands behind a pooler: sessions are replaced, and no process has to restart."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, StoreError
from mobilemoney_async.database.connections import THREADS
from mobilemoney_async.database.engine import Database
from mobilemoney_async.payments.store import account_store
from tests.payments.service import make_world, on_asyncio, rows
from tests.support.databases import OTHERS, run_on
from tests.support.patience import PATIENCE
from tests.support.pooler import pooler

pytestmark = pytest.mark.real_time

_RECORDS = "mobilemoney_payment_records"


@contextmanager
def written_no_more(url: str) -> Iterator[None]:
    """Let the sessions that are opened meanwhile be read-only as long as they last, as those at a demoted server."""
    name = sa.make_url(url).database
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}"
    run_on(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on", end)
    try:
        yield
    finally:
        run_on(url, "SET default_transaction_read_only = off", f"ALTER DATABASE {name} RESET ALL")


async def pay(client: AsyncClient, *numbers: int) -> list[StoreError]:
    """Make payments at once, and return the errors."""
    failures: list[StoreError] = []

    async def create(number: int) -> None:
        try:
            await client.collections.create(
                phone_number=f"+2556812345{number:02}", amount=1000, idempotency_key=f"order-{number}"
            )
        except StoreError as exc:
            failures.append(exc)

    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(create, number)
    return failures


async def open_sessions(database: Database) -> None:
    """Read in all threads at once, each of which needs a session."""
    async with anyio.create_task_group() as tasks:
        for _ in range(2 * THREADS):
            tasks.start_soon(database.read, lambda connection: connection.exec_driver_sql("SELECT pg_sleep(0.05)"))


@on_asyncio
async def test_sessions_of_a_demoted_server_are_replaced(postgres_url: str) -> None:
    """Payments that meet a session which cannot write use a new one; without one that can, the next ones try anew."""
    world = make_world(postgres_url)
    store = world.store()
    async with world.client(store) as client:
        assert not await pay(client, 1)
        with written_no_more(postgres_url):
            await open_sessions(account_store(store).database)
        assert not await pay(client, *range(2, 12))
        with written_no_more(postgres_url):
            failures = await pay(client, *range(12, 22))
            assert [each.outcome for each in failures] == ["not_sent"] * 10
        assert not await pay(client, *range(12, 22))
    assert world.sent == 21


@on_asyncio
@pytest.mark.parametrize("state", ["08P01", "57P01", "57P03"])
async def test_an_error_of_a_server_that_goes_away_replaces_all_sessions(postgres_url: str, state: str) -> None:
    """Also where the session lasts, as at a pooler: the next payment has a new one, and so have all others."""
    world = make_world(postgres_url)
    store = world.store()
    fails = f"""CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF pg_backend_pid() IN (SELECT pid FROM olds) THEN RAISE SQLSTATE '{state}'; END IF; RETURN NEW; END $$"""
    async with world.client(store) as client:
        await open_sessions(account_store(store).database)
        run_on(
            postgres_url,
            f"CREATE TABLE olds AS SELECT pid FROM pg_stat_activity WHERE {OTHERS}",
            fails,
            f"CREATE TRIGGER fails BEFORE INSERT ON {_RECORDS} FOR EACH ROW EXECUTE FUNCTION fails()",
        )
        try:
            (failure,) = await pay(client, 1)
            assert failure.outcome == "not_sent"
            assert not await pay(client, *range(1, 11))
        finally:
            run_on(postgres_url, f"DROP TRIGGER fails ON {_RECORDS}; DROP FUNCTION fails; DROP TABLE olds")
    assert world.sent == 10


@on_asyncio
@pytest.mark.costly("each transaction of a pooler has another session, which no other test has")
async def test_a_pooler_in_transaction_mode(postgres_url: str) -> None:
    """Two processes behind it pay, follow and read the feed; nothing of theirs is left in a session that others get."""
    with pooler(postgres_url) as url:
        world = make_world(url, median_delay=0.1, longest_delay=0.2)
        stores = [world.store(), world.store()]
        async with (
            world.client(stores[0]) as one,
            world.client(stores[1]) as other,
            other.poller(resume=True) as poller,
        ):
            assert not await pay(one, *range(30))
            assert not await pay(other, *range(30, 60))
            with anyio.fail_after(PATIENCE):
                for transaction in world.made:
                    assert (await poller.wait(transaction)).succeeded
                assert not account_store(stores[0]).database.can_listen
        left = "SELECT current_setting('statement_timeout'), (SELECT count(*) FROM pg_prepared_statements), "
        left += "(SELECT count(*) FROM pg_listening_channels()), current_setting('idle_session_timeout')"
        for _ in range(6):
            assert rows(url, left) == [("0", 0, 0, "0")]
    assert world.sent == 60
