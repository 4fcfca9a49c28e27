"""The tables: made once, brought forward in a transaction, and never used by a release that is too old for them."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import SQLStore, StoreError
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.migrations import Migration, prepare
from mobilemoney_async.payments.journal import IS_UNIDENTIFIED, WAS_REFUSED_SOFTLY, Journal
from mobilemoney_async.payments.queries import find_named
from mobilemoney_async.payments.records import UNIDENTIFIED, PaymentState
from mobilemoney_async.payments.store import account_store
from tests.payments.service import on_asyncio, rows
from tests.payments.tables import insert_payment

pytestmark = [pytest.mark.anyio, pytest.mark.new_database]

_WORKER = """
import sys, anyio
from mobilemoney_async.database.engine import Database
import sqlalchemy as sa
async def main():
    database = Database(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        await database.write(lambda each: each.execute(sa.text("SELECT version FROM mobilemoney_schema")).scalar_one())
anyio.run(main)
"""


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
    """The states that the database allows once for a kind are the unidentified ones of the records."""
    indexes = {str(each.name): each for each in schema.payments.indexes}
    assert indexes["mobilemoney_payment_records_unidentified"].unique
    for dialect in ("sqlite", "postgresql"):
        where = str(indexes["mobilemoney_payment_records_unidentified"].dialect_options[dialect]["where"])
        assert set(re.findall("'(.*?)'", where)) == {str(state) for state in UNIDENTIFIED}
        assert where == str(IS_UNIDENTIFIED), "SQLite uses the index only for a query with the same text"
        refused = indexes["mobilemoney_payment_records_refused"]
        assert str(refused.dialect_options[dialect]["where"]) == str(WAS_REFUSED_SOFTLY)


@on_asyncio
async def test_a_newer_database_is_refused(store_url: str) -> None:
    """A database of a newer release is left alone: the error names both versions, and the remedy."""
    database = Database(store_url)
    await database.write(lambda each: each.execute(sa.text("UPDATE mobilemoney_schema SET version = 99")))
    database.close()
    late = Database(store_url)
    with pytest.raises(StoreError, match=r"version 99.*update mobilemoney-async") as caught:
        await late.read(version)
    assert caught.value.outcome == "not_sent"
    with pytest.raises(StoreError, match="version 99"):
        await late.write(version)
    late.close()
    assert rows(store_url, "SELECT version FROM mobilemoney_schema") == [(99,)]


@on_asyncio
async def test_an_older_database_is_brought_forward(store_url: str) -> None:
    """Each version between the old and the new is made once, in order, however long it takes."""
    database = Database(store_url)
    done: list[str] = []

    def adds(name: str) -> Migration:
        def migrate(connection: sa.Connection) -> None:
            done.append(name)
            if connection.dialect.name == "postgresql":
                assert connection.execute(sa.text("SHOW statement_timeout")).scalar_one() == "0"
            connection.execute(sa.text(f"ALTER TABLE mobilemoney_payment_records ADD COLUMN {name} TEXT"))

        return migrate

    def forward(to: int) -> Any:
        migrations = [*[adds("before")] * (schema.VERSION - 1), adds("first"), adds("second"), adds("third")]
        return database.write(lambda each: prepare(each, version=schema.VERSION + to, migrations=migrations))

    await forward(2)
    assert done == ["first", "second"]
    assert await database.read(version) == schema.VERSION + 2
    await forward(3)
    await forward(3)
    assert done == ["first", "second", "third"]
    columns = await database.read(
        lambda each: {c["name"] for c in sa.inspect(each).get_columns("mobilemoney_payment_records")}
    )
    assert {"first", "second", "third"} < columns
    database.close()


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

        @sa.event.listens_for(connection, "before_cursor_execute", retval=True)
        def ask(_: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> tuple[str, Any]:
            prefix = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
            cursor.execute(prefix + statement, parameters)
            plans.extend(str(row) for row in cursor.fetchall())
            return statement, parameters

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
async def test_a_migration_that_fails_changes_nothing(store_url: str) -> None:
    """Where one step fails the database stays as it was, with the version that it had."""
    database = Database(store_url)

    def adds(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE mobilemoney_payment_records ADD COLUMN half TEXT"))

    def breaks(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE no_such_table ADD COLUMN other TEXT"))

    with pytest.raises(StoreError, match="the store failed"):
        migrations = [adds] * schema.VERSION + [breaks]
        await database.write(lambda each: prepare(each, version=schema.VERSION + 2, migrations=migrations))
    assert await database.read(version) == schema.VERSION
    columns = await database.read(
        lambda each: {c["name"] for c in sa.inspect(each).get_columns("mobilemoney_payment_records")}
    )
    assert "half" not in columns
    database.close()


@on_asyncio
async def test_tables_without_a_version_are_refused(store_url: str) -> None:
    """The version of a database is not guessed if it is missing."""
    database = Database(store_url)
    await database.write(lambda each: each.execute(sa.text("DELETE FROM mobilemoney_schema")))
    database.close()
    again = Database(store_url)
    with pytest.raises(StoreError):
        await again.read(version)
    again.close()


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


def test_processes_make_the_tables_at_once(store_url: str) -> None:
    """Several processes that use a new database for the first time all find it ready."""
    command = [sys.executable, "-c", _WORKER, store_url]
    workers = [Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=Path.cwd(), text=True) for _ in range(3)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    ended = [worker.communicate(timeout=240) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 3, ended
    assert rows(store_url, "SELECT version FROM mobilemoney_schema") == [(schema.VERSION,)]


Changes = dict[str, Any]


@pytest.mark.parametrize(
    "second",
    [
        {"key": "order-1", "amount": "5"},
        {"key": "order-2"},
        {"key": "order-2", "state": "SENDING"},
        {"key": "order-2", "state": "ABSENT"},
        {"key": "order-2", "amount": "5", "transaction_id": "tx-1"},
    ],
    ids=["key", "duplicate", "sending duplicate", "absent duplicate", "transaction"],
)
@on_asyncio
async def test_the_database_itself_forbids(store_url: str, second: Changes) -> None:
    """One record for a key, one for a transaction, one unidentified payment of a kind: whatever the code does."""
    database = Database(store_url)
    await database.write(lambda each: insert_payment(each, transaction_id="tx-1"))
    with pytest.raises(StoreError, match=r"IntegrityError|UniqueViolation"):
        await database.write(lambda each: insert_payment(each, **second))
    database.close()


@pytest.mark.parametrize(
    "second",
    [
        {"account": "other"},
        {"key": "order-2", "state": "ACKNOWLEDGED"},
        {"key": "order-2", "state": "NOT_SENT"},
        {"key": "order-2", "type": "disbursement"},
        {"key": "order-2", "amount": "1001"},
        {"key": "order-2", "phone_number": "+255780000788"},
    ],
    ids=str,
)
@on_asyncio
async def test_the_database_allows(store_url: str, second: Changes) -> None:
    """Other accounts, other kinds, and duplicates with known results do not block each other."""
    database = Database(store_url)
    await database.write(insert_payment)
    await database.write(lambda each: insert_payment(each, **second))
    database.close()


@pytest.mark.parametrize("break_it", [lambda path: path.write_bytes(b"not a database" * 99), lambda path: path.mkdir()])
@on_asyncio
async def test_a_file_that_is_no_database(tmp_path: Path, break_it: Callable[[Path], object]) -> None:
    """A file that is no SQLite database gives a `StoreError`, and stays as it is."""
    path = tmp_path / "payments.db"
    break_it(path)
    store = SQLStore(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="the store failed"):
        await account_store(store).database.read(version)
    store.close()
