"""The tables: made once, as a whole, and used by no release that does not know their version."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, ConnectionFailed, StoreError
from mobilemoney_async.database import engine as engine_module
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Database
from mobilemoney_async.payments.feed.changes import number_changes, prune_changes, read_changes
from mobilemoney_async.payments.payouts.queries import find_payments
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import find_named
from mobilemoney_async.payments.records.record import UNIDENTIFIED, PaymentState
from mobilemoney_async.payments.records.unmatched import IS_OPEN, find_lines
from tests.payments.service import ORDER, World, on_asyncio, rows
from tests.payments.steps import record_of
from tests.payments.tables import insert_payment
from tests.support.fakes import NOON
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.new_database


def version(connection: sa.Connection) -> int:
    """Return the version that the database says it is of."""
    number: int = connection.execute(sa.text("SELECT version FROM mobilemoney_schema")).scalar_one()
    return number


@on_asyncio
async def test_the_tables_are_made_on_first_use(store_url: str) -> None:
    """A new database needs no preparation, and a store that is opened again finds its tables."""
    database = Database(store_url)
    assert await database.read(version) == schema.VERSION
    database.close()
    again = Database(store_url)
    assert await again.read(version) == schema.VERSION
    again.close()
    assert rows(store_url, "SELECT count(*) FROM mobilemoney_schema") == [(1,)]


def test_every_table_has_our_prefix() -> None:
    """The tables may lie in a database of the merchant's own."""
    assert all(name.startswith("mobilemoney_") for name in schema.METADATA.tables)


def test_the_index_on_unidentified_payments_lists_their_states() -> None:
    """The database allows one payment that stops its kind, and finds the unidentified ones by the records' states."""
    indexes = {str(each.name): each for each in schema.payments.indexes}
    stopping = indexes["mobilemoney_payment_records_stopping"]
    assert stopping.unique
    for dialect in ("sqlite", "postgresql"):
        where = str(indexes["mobilemoney_payment_records_unidentified"].dialect_options[dialect]["where"])
        assert set(re.findall("'(.*?)'", where)) == {str(state) for state in UNIDENTIFIED}
        assert where == str(schema.IS_UNIDENTIFIED), "SQLite uses the index only for a query with the same text"
        assert str(stopping.dialect_options[dialect]["where"]) == str(schema.STOPS_KIND)
        refused = indexes["mobilemoney_payment_records_refused"]
        assert str(refused.dialect_options[dialect]["where"]) == str(schema.WAS_REFUSED_SOFTLY)


OTHER = {
    schema.VERSION + 1: f"version {schema.VERSION + 1}, this release knows {schema.VERSION}: update mobilemoney-async",
    schema.VERSION - 1: f"version {schema.VERSION - 1}, this release knows {schema.VERSION}: .* use a new database",
    0: "does not show the version of its tables: restore mobilemoney_schema",
}
"""What is said of each version that this release does not know."""


@pytest.mark.parametrize("other", [*OTHER, None])
@on_asyncio
async def test_a_database_of_another_version_is_refused(store_url: str, other: int | None) -> None:
    """A newer one, an older one or one without a version is left alone, and the error says what to do."""
    database = Database(store_url)
    change = "DELETE FROM mobilemoney_schema" if other is None else f"UPDATE mobilemoney_schema SET version = {other}"
    await database.write(lambda each: each.execute(sa.text(change)))
    database.close()
    late = Database(store_url)
    for use in (late.read, late.write):
        with pytest.raises(StoreError, match=OTHER[other or 0]) as caught:
            await use(version)
        assert caught.value.outcome == "not_sent"
    late.close()
    assert rows(store_url, "SELECT version FROM mobilemoney_schema") == ([] if other is None else [(other,)])


@pytest.mark.parametrize("other", [schema.VERSION + 1, schema.VERSION - 1])
async def test_a_process_that_began_before_the_tables_changed_sends_nothing(
    world: World, client: AsyncClient, other: int
) -> None:
    """Each transaction that begins a payment checks the version; an answer that is on its way is still recorded."""
    world.line.refuse = 99
    with pytest.raises(ConnectionFailed):
        await client.collections.create(**ORDER, idempotency_key="order-1")
    world.line.refuse = 0

    def change(_: object) -> None:
        with sa.create_engine(world.url, poolclass=sa.pool.NullPool).begin() as connection:
            connection.execute(sa.text(f"UPDATE mobilemoney_schema SET version = {other}"))

    world.line.before = lambda request: change(request) if request.method == "POST" else None
    paid = await client.collections.create(**{**ORDER, "amount": 7}, idempotency_key="order-2")
    for key in ("order-1", "order-3"):
        with pytest.raises(StoreError, match=OTHER[other]) as caught:
            await client.collections.create(**ORDER, idempotency_key=key)
        assert caught.value.outcome == "not_sent"
    with pytest.raises(StoreError, match=OTHER[other]):
        await client.payments.enqueue(**{**ORDER, "amount": 8}, type="collection", idempotency_key="order-4")
    record = await record_of(client, "order-2")
    assert record.transaction_id == paid.transaction_id
    assert await client.payments.get("order-3") is None
    assert world.sent == 1
    assert world.states() == ["NOT_SENT", "ACKNOWLEDGED"]


def note_plans(connection: sa.Connection, plans: list[str]) -> None:
    """Note the plan of each statement from now on."""
    prefix = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "

    @sa.event.listens_for(connection, "before_cursor_execute", retval=True)
    def ask(_: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> tuple[str, Any]:
        cursor.execute(prefix + statement, parameters)
        plans.append("\n".join(str(row[-1]) for row in cursor.fetchall()))
        return statement, parameters


@on_asyncio
async def test_payments_are_found_by_indexes(store_url: str) -> None:
    """However many payments there are, those that a callback may name are not searched one by one."""
    plans = list[str]()

    def explain(connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            # In a short table, its planner takes one index for as good as another.
            insert_payment(connection, state="ACKNOWLEDGED")
            columns = ", ".join(each.name for each in schema.payments.columns)
            others = columns.replace(" key,", " 'order-' || number,")
            many = "FROM mobilemoney_payment_records, generate_series(2, 20000) AS number"
            connection.execute(sa.text(f"INSERT INTO mobilemoney_payment_records ({columns}) SELECT {others} {many}"))
            connection.execute(sa.text("ANALYZE mobilemoney_payment_records"))

        note_plans(connection, plans)
        names = [f"name-{number}" for number in range(100)]
        find_named(Journal(connection, "default"), names, states=[PaymentState.ACKNOWLEDGED], most=100)

    database = Database(store_url)
    await database.write(explain)
    database.close()
    told = " ".join(plans)
    for index in ("transaction", "pkey", "reference", "external_id"):
        assert f"mobilemoney_payment_records_{index}" in told or (index == "pkey" and "sqlite_autoindex" in told), told
    assert "SCAN mobilemoney_payment_records" not in told
    assert "Seq Scan" not in told


@on_asyncio
async def test_rows_of_an_account_are_joined_by_their_names(postgres_url: str) -> None:
    """Not each with each: also while PostgreSQL expects one row of an account that its statistics do not know."""
    plans, number = list[str](), sa.func.generate_series(1, 3000).column_valued("number")
    name, nothing = sa.func.concat("name-", number), dict.fromkeys(("type", "amount", "phone_number", "state"), "")
    known: dict[sa.Table, dict[str, Any]] = {
        schema.payments: {**nothing, "key": name, "transaction_id": name, "extra_digest": "", "attempt": 1},
        schema.changes: {"name": name, "entry": 1, "number": number},
        schema.batch_lines: {**nothing, "batch": "b", "line": number, "key": name},
        schema.unmatched: {**nothing, "transaction_id": name, "shown_number": "", "status": ""},
    }

    def explain(connection: sa.Connection) -> None:
        for table, values in known.items():
            times = {each.name: NOON for each in table.c if each.name.endswith("at") and not each.nullable}
            row = {"account": sa.func.concat("shop-", number % 3), **times, **values}
            cells = {each.name: sa.cast(row[each.name], each.type) for each in table.c if each.name in row}
            connection.execute(table.insert().from_select([*cells], sa.select(*cells.values())))
            connection.execute(sa.text(f"ANALYZE {table.name}"))
        journal = Journal(connection, "new")
        journal.insert(schema.changes, name="old", entry=1, state="FINAL", at=NOON)
        note_plans(connection, plans)
        find_payments(journal, "b")
        read_changes(journal, number_changes(journal), after=0, limit=100)
        prune_changes(journal, NOON + timedelta(days=1))
        find_lines(journal, IS_OPEN)

    database = Database(postgres_url)
    await database.write(explain)
    database.close()
    joins = [plan for plan in plans if "Nested Loop" in plan]
    assert len(joins) == 5, plans
    assert not [plan for plan in joins if re.search("Join Filter: .* = ", plan)]


@on_asyncio
async def test_the_tables_are_made_as_a_whole_or_not_at_all(store_url: str) -> None:
    """Where one of them cannot be made there is none, and once nothing is in the way there are all."""
    engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
    obstacle = schema.METADATA.sorted_tables[-1].name
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {obstacle} (other TEXT)"))
    database = Database(store_url)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"the store failed: .*{obstacle}"):
            await database.read(version)
        assert sa.inspect(engine).get_table_names() == [obstacle]
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {obstacle}"))
    assert await database.read(version) == schema.VERSION
    assert set(sa.inspect(engine).get_table_names()) == {*schema.METADATA.tables}
    database.close()


@contextmanager
def made_elsewhere(url: str) -> Iterator[None]:
    """Let another process make the tables, and commit them only where the body ends."""
    begun, may_end = threading.Event(), threading.Event()

    def make() -> None:
        with sa.create_engine(url, poolclass=sa.pool.NullPool).connect() as connection:
            if connection.dialect.name == "sqlite":
                driver: Any = connection.connection.dbapi_connection
                driver.isolation_level = None
                driver.execute("PRAGMA journal_mode=WAL")
                driver.execute("BEGIN IMMEDIATE")
            assert schema.make_tables(connection)
            begun.set()
            assert may_end.wait(PATIENCE)
            connection.commit()

    thread = threading.Thread(target=make)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield
    finally:
        may_end.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.slow
@on_asyncio
@pytest.mark.real_time
async def test_a_process_waits_for_tables_that_another_makes(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts while the tables are being made waits for them; the wait can be cancelled."""
    monkeypatch.setattr(engine_module, "_LOCK_TRY", 0.02)
    database, found = Database(store_url), list[int]()

    async def look() -> None:
        found.append(await database.read(version))

    async with anyio.create_task_group() as group:
        with made_elsewhere(store_url):
            for _ in range(12):  # more than there are threads
                group.start_soon(look)
            with anyio.move_on_after(0.2) as scope:  # real time: nothing else ends this wait
                await database.write(version)
            assert scope.cancelled_caught
            assert not found
    assert found == [schema.VERSION] * 12
    database.close()


@on_asyncio
@pytest.mark.real_time
async def test_a_new_file_that_another_program_holds(sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of another program is waited for a while only, and the tables are made once it is free."""
    monkeypatch.setattr(engine_module, "_QUEUE", 0.1)
    monkeypatch.setattr(engine_module, "_LOCK_TRY", 0.02)
    database = Database(sqlite_file_url)
    with sa.create_engine(sqlite_file_url, poolclass=sa.pool.NullPool).connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.isolation_level = None
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="it is busy"):
            await database.read(version)
        driver.execute("ROLLBACK")
    monkeypatch.undo()
    assert await database.read(version) == schema.VERSION
    database.close()


@pytest.mark.costly("runs lines of database/schema.py that no quick test runs")
def test_threads_make_the_tables_at_once(store_url: str) -> None:
    """Several event loops that use a new database for the first time all find it ready."""
    database, errors = Database(store_url), list[BaseException]()
    barrier = threading.Barrier(6)

    def work(own: Database) -> None:
        barrier.wait()
        try:
            anyio.run(own.write, version)
        except BaseException as exc:  # noqa: BLE001
            errors.append(exc)

    databases = [database, database, *(Database(store_url) for _ in range(4))]
    threads = [threading.Thread(target=work, args=(each,)) for each in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in databases:
        each.close()
    assert not errors
    assert rows(store_url, "SELECT version FROM mobilemoney_schema") == [(schema.VERSION,)]


Changes = dict[str, Any]


FORBIDDEN: dict[str, Changes] = {
    "key": {"key": "order-1", "amount": "5"},
    "duplicate": {"key": "order-2"},
    "sending duplicate": {"key": "order-2", "state": "SENDING"},
    "absent duplicate": {"key": "order-2", "state": "ABSENT", "stops_kind": True},
    "transaction": {"key": "order-2", "amount": "5", "transaction_id": "tx-1"},
}
ALLOWED: dict[str, Changes] = {
    "account": {"account": "other"},
    "known duplicate": {"key": "order-2", "state": "ACKNOWLEDGED"},
    "unsent duplicate": {"key": "order-2", "state": "NOT_SENT"},
    "type": {"key": "order-2", "type": "disbursement"},
    "amount": {"key": "order-2", "amount": "1001"},
    "number": {"key": "order-2", "phone_number": "+255780000788"},
}


@pytest.mark.parametrize("second", FORBIDDEN | ALLOWED)
@on_asyncio
async def test_what_the_database_itself_forbids_and_allows(database: Database, second: str) -> None:
    """One record for a key, one for a transaction, one payment that stops its kind: whatever the code does.

    Other accounts, other kinds, and duplicates with known results do not block each other.
    """
    await database.write(lambda each: insert_payment(each, transaction_id="tx-1"))
    with pytest.raises(StoreError, match=r"IntegrityError|UniqueViolation") if second in FORBIDDEN else nullcontext():
        await database.write(lambda each: insert_payment(each, **(FORBIDDEN | ALLOWED)[second]))
