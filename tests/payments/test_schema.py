"""The tables: made once, brought forward in a transaction, and never used by a release that is too old for them."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import Network, SQLStore, StoreError, Transaction, TransactionStatus, TransactionType
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.payments.journal import IS_UNIDENTIFIED, WAS_RELEASED, Journal
from mobilemoney_async.payments.payments import PaymentBook
from mobilemoney_async.payments.queries import find_named
from mobilemoney_async.payments.records import UNIDENTIFIED, PaymentState
from mobilemoney_async.payments.store import account_store
from tests.payments.service import on_asyncio, rows
from tests.support.fakes import NOON

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
    assert indexes["mobilemoney_payments_unidentified"].unique
    for dialect in ("sqlite", "postgresql"):
        where = str(indexes["mobilemoney_payments_unidentified"].dialect_options[dialect]["where"])
        assert set(re.findall("'(.*?)'", where)) == {str(state) for state in UNIDENTIFIED}
        assert where == str(IS_UNIDENTIFIED), "SQLite uses the index only for a query with the same text"
        assert str(indexes["mobilemoney_payments_released"].dialect_options[dialect]["where"]) == str(WAS_RELEASED)


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

    def adds(name: str) -> schema.Migration:
        def migrate(connection: sa.Connection) -> None:
            done.append(name)
            if connection.dialect.name == "postgresql":
                assert connection.execute(sa.text("SHOW statement_timeout")).scalar_one() == "0"
            connection.execute(sa.text(f"ALTER TABLE mobilemoney_payments ADD COLUMN {name} TEXT"))

        return migrate

    def forward(to: int) -> Any:
        migrations = [*[adds("before")] * (schema.VERSION - 1), adds("first"), adds("second"), adds("third")]
        return database.write(lambda each: schema.prepare(each, version=schema.VERSION + to, migrations=migrations))

    await forward(2)
    assert done == ["first", "second"]
    assert await database.read(version) == schema.VERSION + 2
    await forward(3)
    await forward(3)
    assert done == ["first", "second", "third"]
    columns = await database.read(
        lambda each: {c["name"] for c in sa.inspect(each).get_columns("mobilemoney_payments")}
    )
    assert {"first", "second", "third"} < columns
    database.close()


SEEN = Transaction(
    id="tx-1",
    reference="REF-1",
    external_id="order/7",
    type=TransactionType.COLLECTION,
    amount=Decimal(1000),
    currency="TZS",
    phone_number="+255780000789",
    network=Network.AIRTEL_MONEY,
    status=TransactionStatus.FAILED,
    created_at=NOON,
)


def shape(connection: sa.Connection) -> dict[str, Any]:
    """Return the columns and the indexes of every table, as the database tells them."""
    told = sa.inspect(connection)
    return {
        name: (
            {each["name"]: str(each["type"]) for each in told.get_columns(name)},
            sorted((str(each["name"]), each["column_names"], bool(each["unique"])) for each in told.get_indexes(name)),
            told.get_pk_constraint(name)["constrained_columns"],
        )
        for name in sorted(schema.METADATA.tables)
    }


@on_asyncio
async def test_a_database_of_version_1_is_brought_forward(store_url: str) -> None:
    """A store that the first release made has all of its payments after an upgrade, and finds them by every name."""
    engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        tables = Path(__file__).with_name(f"version_1.{engine.dialect.name}.sql").read_text(encoding="utf-8")
        for statement in tables.split(";\n"):
            connection.execute(sa.text(statement or "SELECT 1"))
        final = {"state": "FINAL", "status": "FAILED"}
        _insert(connection, **final, transaction_id="tx-1", reference="REF-1", transaction=dump(SEEN))
        unreadable = {"transaction": '{"external_id":"order/8"}', "reference": "REF" * 5_000}
        _insert(connection, **final, key="order-2", transaction_id="tx-2", **unreadable)
        nameless = {"transaction": dump(attrs.evolve(SEEN, external_id="x" * 9_000))}
        _insert(connection, **final, key="order-3", transaction_id="tx-3", **nameless)
        _insert(connection, key="order-4")
    store = SQLStore(store_url)
    book = PaymentBook(account_store(store), lambda: NOON)
    for name in ("tx-1", "REF-1", "order/7", "order-1"):
        assert [each.key for each in await book.find(name)] == ["order-1"], name
    assert (await book.find("order-1"))[0].external_id == "order/7"
    assert await book.find(["order/8", "REF"]) == []
    assert await account_store(store).database.read(version) == schema.VERSION == 2
    migrated = await account_store(store).database.read(shape)
    store.close()
    assert rows(store_url, "SELECT count(*) FROM mobilemoney_payments") == [(4,)]
    with engine.begin() as connection:
        schema.METADATA.drop_all(connection)
        schema.prepare(connection)
        assert shape(connection) == migrated


@on_asyncio
async def test_payments_are_found_by_indexes(store_url: str) -> None:
    """However many payments there are, those that a callback may name are not searched one by one."""
    plans = list[str]()

    def explain(connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SET LOCAL enable_seqscan = off"))

        @sa.event.listens_for(connection, "before_cursor_execute", retval=True)
        def ask(_: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> tuple[str, Any]:
            prefix = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
            cursor.execute(prefix + statement, parameters)
            plans.extend(str(row) for row in cursor.fetchall())
            return statement, parameters

        names = [f"name-{number}" for number in range(100)]
        find_named(Journal(connection, "default"), names, states=[PaymentState.ACKNOWLEDGED], most=100)

    database = Database(store_url)
    await database.read(explain)
    database.close()
    told = " ".join(plans)
    for index in ("transaction", "key", "reference", "external_id"):
        assert f"mobilemoney_payments_{index}" in told or (index == "key" and "sqlite_autoindex" in told), told
    assert "SCAN mobilemoney_payments" not in told
    assert "Seq Scan" not in told


@on_asyncio
async def test_a_migration_that_fails_changes_nothing(store_url: str) -> None:
    """Where one step fails the database stays as it was, with the version that it had."""
    database = Database(store_url)

    def adds(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE mobilemoney_payments ADD COLUMN half TEXT"))

    def breaks(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE no_such_table ADD COLUMN other TEXT"))

    with pytest.raises(StoreError, match="the store failed"):
        migrations = [adds] * schema.VERSION + [breaks]
        await database.write(lambda each: schema.prepare(each, version=schema.VERSION + 2, migrations=migrations))
    assert await database.read(version) == schema.VERSION
    columns = await database.read(
        lambda each: {c["name"] for c in sa.inspect(each).get_columns("mobilemoney_payments")}
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
            own._transact(version, writes=True, durable=True, until=time.monotonic() + 60)
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


def _insert(connection: sa.Connection, **changes: Any) -> None:
    values: dict[str, Any] = {
        "account": "default",
        "key": "order-1",
        "type": "collection",
        "phone_number": "+255780000789",
        "amount": "1000",
        "extra_digest": "",
        "state": "UNKNOWN",
        "attempt": 1,
        "created_at": "2026-01-02 12:00:00",
        "changed_at": "2026-01-02 12:00:00",
        "is_adopted": False,
        "walks": 0,
    }
    values |= changes
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO mobilemoney_payments ({names}) VALUES ({marks})"), values)


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
    await database.write(lambda each: _insert(each, transaction_id="tx-1"))
    with pytest.raises(StoreError, match=r"IntegrityError|UniqueViolation"):
        await database.write(lambda each: _insert(each, **second))
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
    await database.write(_insert)
    await database.write(lambda each: _insert(each, **second))
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
