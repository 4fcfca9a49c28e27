"""Transactions that PostgreSQL ends because of another are run again, and histories keep their order."""

import itertools
import threading
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, StoreError
from mobilemoney_async.database import engine as engine_module
from mobilemoney_async.database.engine import Database
from mobilemoney_async.payments.ownership.evidence import Evidence, Listing, Verdict
from mobilemoney_async.payments.ownership.matching import query_for
from mobilemoney_async.payments.ownership.reconciliation import ListCheck, record_listing
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import Source
from tests.payments.service import ORDER, make_world, on_asyncio, rows
from tests.payments.tables import SEEN, insert_payment
from tests.support.fakes import NOON
from tests.support.patience import PATIENCE, until, wait_until

pytestmark = pytest.mark.real_time

_PAYMENTS = 80
_AT_ONCE = 40
_OPEN = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
)


def set_default(url: str, setting: str) -> None:
    """Change a default of a database, for new connections."""
    with sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool).connect() as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE {name} SET {setting}"))


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.new_database
@on_asyncio
async def test_creates_succeed_whatever_the_default_isolation_is(postgres_url: str, isolation: str) -> None:
    """On a server whose transactions are stricter by default, many creates, dozens at once, all succeed."""
    set_default(postgres_url, f"default_transaction_isolation = '{isolation}'")
    database, shown = Database(postgres_url), sa.text("SHOW transaction_isolation")
    for run in (database.read, database.write):
        assert await run(lambda each: each.execute(shown).scalar_one()) == "read committed"
    database.close()
    world = make_world(postgres_url)
    numbers = iter(range(_PAYMENTS))

    async def create(client: AsyncClient) -> None:
        for number in numbers:
            order = {**ORDER, "amount": 1_000 + number, "idempotency_key": f"order-{number}"}
            await client.collections.create(**order)

    async with world.client() as first, world.client() as second, anyio.create_task_group() as group:
        for each in range(_AT_ONCE):
            group.start_soon(create, (first, second)[each % 2])
    assert world.states() == ["ACKNOWLEDGED"] * _PAYMENTS
    assert world.sent == _PAYMENTS
    entries = "SELECT key, array_agg(what ORDER BY number) FROM mobilemoney_payment_history GROUP BY key"
    assert [whats for _, whats in rows(postgres_url, entries)] == [["sent", "acknowledged"]] * _PAYMENTS


@pytest.mark.new_database
@on_asyncio
async def test_a_deadlock_is_resolved(postgres_url: str) -> None:
    """Two transactions that wait for each other both succeed: the one that the database ends is run again."""
    set_default(postgres_url, "deadlock_timeout = '10ms'")
    databases, runs, both = [Database(postgres_url), Database(postgres_url)], itertools.count(1), threading.Barrier(2)
    await databases[0].write(lambda each: insert_payment(each, key="a", amount="1"))
    await databases[0].write(lambda each: insert_payment(each, key="b", amount="2"))

    async def lock(number: int) -> None:
        is_first = True

        def work(connection: sa.Connection) -> None:
            nonlocal is_first
            journal = Journal(connection, "default")
            next(runs)
            journal.row("ab"[number], lock=True)
            if is_first:
                both.wait(PATIENCE)
            is_first = False
            journal.row("ba"[number], lock=True)
            journal.update("b", {"walks": 1})

        await databases[number].write(work)

    async with anyio.create_task_group() as group:
        group.start_soon(lock, 0)
        group.start_soon(lock, 1)
    # As a rule three runs: the one that is run again may take a lock before the other has woken up, and wait once more.
    assert next(runs) > 3
    for database in databases:
        database.close()


@on_asyncio
async def test_a_conflict_at_the_commit_is_resolved(postgres_url: str) -> None:
    """A transaction that the database ends at its commit has changed nothing: it is run again as a whole."""
    database, both, runs = Database(postgres_url), threading.Barrier(2), list[str]()

    async def add(name: str) -> None:
        def work(connection: sa.Connection) -> None:
            is_first = name not in runs
            runs.append(name)
            if is_first:
                # Only so can a conflict wait for the commit.
                connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
            total = connection.execute(sa.text("SELECT count(*) FROM mobilemoney_budgets")).scalar_one()
            if is_first:
                both.wait(PATIENCE)
            values = {"account": name, "state": str(total)}
            connection.execute(sa.text("INSERT INTO mobilemoney_budgets VALUES (:account, :state)"), values)
            if is_first:
                both.wait(PATIENCE)

        await database.write(work)

    async with anyio.create_task_group() as group:
        group.start_soon(add, "a")
        group.start_soon(add, "b")
    assert len(runs) == 3
    assert sorted(rows(postgres_url, "SELECT state FROM mobilemoney_budgets")) == [("0",), ("1",)]
    database.close()


@on_asyncio
async def test_a_conflict_without_end_is_an_error(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conflicts that go on for longer than a transaction may take end in a `StoreError`."""
    database, runs = Database(postgres_url), itertools.count()
    await database.open()
    monkeypatch.setattr(engine_module, "_QUEUE", 0.3)
    fail = "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure'; END $$"

    def work(connection: sa.Connection) -> None:
        next(runs)
        connection.execute(sa.text(fail))

    with pytest.raises(StoreError, match="SerializationFailure"):
        await database.write(work)
    assert next(runs) > 1
    database.close()


@pytest.mark.costly("runs lines of database/engine.py that no quick test runs")
@on_asyncio
async def test_a_process_that_was_stopped_in_a_transaction_runs_it_again(postgres_url: str) -> None:
    """A laptop that sleeps, a SIGSTOP: the server has ended the transaction. It runs again once, not for ever."""
    database = Database(postgres_url)
    await database.open()
    insert = sa.text("INSERT INTO mobilemoney_budgets VALUES (:account, 'x')")
    runs: list[str] = []

    def stop(connection: sa.Connection, account: str, *, times: int) -> None:
        runs.append(account)
        connection.execute(insert, {"account": account})
        if runs.count(account) <= times:
            # Of no other transaction: a busy machine stops one too. Nor shorter: the driver loses what comes at once.
            connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = '1s'"))
            watcher = sa.create_engine(postgres_url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
            with watcher.connect() as other:
                wait_until(lambda: not other.execute(_OPEN).scalar_one())
        connection.execute(sa.text("SELECT 1"))

    with anyio.fail_after(PATIENCE):
        await database.write(lambda connection: stop(connection, "once", times=1))
        with pytest.raises(StoreError, match="idle-in-transaction"):
            await database.write(lambda connection: stop(connection, "always", times=9))
    assert runs == ["once"] * 2 + ["always"] * 2
    assert rows(postgres_url, "SELECT account FROM mobilemoney_budgets") == [("once",)]
    database.close()


@on_asyncio
async def test_two_processes_write_the_history_of_one_payment(postgres_url: str) -> None:
    """A late match is noted with the payment that it contests, though another process writes that one's history."""
    first, second = Database(postgres_url), Database(postgres_url)
    times: dict[str, Any] = dict.fromkeys(("created_at", "changed_at", "sent_at", "ended_at"), NOON)
    await first.write(lambda each: insert_payment(each, key="rival", state="RELEASED", **times))
    await first.write(lambda each: insert_payment(each, key="lost", state="UNKNOWN", **times))
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    is_locked = threading.Event()

    def note(connection: sa.Connection) -> None:
        journal = Journal(connection, "default")
        journal.row("rival", lock=True)
        is_locked.set()
        journal.note("rival", at=NOON, what="confirmed", source=Source.PERSON, detail=None)
        wait_until(lambda: connection.execute(waiting).scalar_one())

    def contest(connection: sa.Connection) -> None:
        journal = Journal(connection, "default")
        record = journal.find("lost")
        assert record is not None
        listing = Listing(rows=(SEEN,), began_at=NOON, ended_at=NOON, first_day=NOON.date(), is_complete=True)
        evidence = Evidence(listing=listing, owned={}, searches={"lost": query_for(record)}, grace=0.0)
        record_listing(journal, record, ListCheck(evidence=evidence, verdict=Verdict(adopt=SEEN), rival="rival"))

    async with anyio.create_task_group() as group:
        group.start_soon(first.write, note)
        await until(is_locked.is_set)
        await second.write(contest)
    entries = rows(postgres_url, "SELECT number, what FROM mobilemoney_payment_history WHERE key = 'rival' ORDER BY 1")
    assert entries == [(1, "confirmed"), (2, "contradiction")]
    for database in (first, second):
        database.close()
