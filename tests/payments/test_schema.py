"""The tables: made once, brought forward in a transaction, and never used by a release that is too old for them."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import anyio
import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import Network, SQLStore, StoreError, Transaction, TransactionStatus, TransactionType
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.migrations import Migration, prepare
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.payments.journal import IS_UNIDENTIFIED, WAS_REFUSED_SOFTLY, Journal
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


OLD = ["version 1", "version 2"]


def make_old_tables(connection: sa.Connection, which: str) -> None:
    """Make the tables as an older release made them, or migrated them; to version 2 in four statements."""
    scripts = [f"version_1.{connection.dialect.name}.sql", *(["version_2.sql"] if which == "version 2" else [])]
    for script in scripts:
        text = Path(__file__).with_name(script).read_text(encoding="utf-8")
        for statement in text.split(";\n"):
            connection.execute(sa.text(statement or "SELECT 1"))


def insert_old(connection: sa.Connection, *entries: str, **values: Any) -> None:
    """Insert a payment of version 1 or 2, with entries of its history."""
    _insert(connection, "mobilemoney_payments", **values)
    number = connection.execute(sa.text("SELECT max(id) FROM mobilemoney_payments")).scalar_one()
    moment = "'2026-01-02 12:00:00'"
    entry = f"INSERT INTO mobilemoney_history (payment_id, at, what, source) VALUES (:id, {moment}, :what, 'poll')"
    for what in entries:
        connection.execute(sa.text(entry), {"id": number, "what": what})


@pytest.mark.parametrize("which", OLD)
@on_asyncio
async def test_a_database_of_an_older_version_is_migrated(store_url: str, which: str) -> None:
    """A store that an earlier release made has all of its payments after an upgrade, and finds them by every name."""
    engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        make_old_tables(connection, which)
        final = {"state": "FINAL", "status": "FAILED"}
        named = {} if which == "version 1" else {"external_id": "order/7"}
        seen = {"transaction_id": "tx-1", "reference": "REF-1", "transaction": dump(SEEN), **named}
        insert_old(connection, "sent", "acknowledged", "final", **final, **seen)
        unreadable = {"transaction": '{"external_id":"order/8"}', "reference": "REF" * 5_000}
        insert_old(connection, **final, key="order-2", transaction_id="tx-2", **unreadable)
        nameless = {"transaction": dump(attrs.evolve(SEEN, external_id="x" * 9_000))}
        insert_old(connection, **final, key="order-3", transaction_id="tx-3", **nameless)
        insert_old(connection, "sent", key="order-4")
        insert_old(connection, "sent", "unknown", account="other", created_at="2025-01-02 12:00:00")
        # A payment of the future has the same names as one of the past: only its own entries are its own.
        connection.execute(sa.text("UPDATE mobilemoney_history SET at = '2026-01-03 12:00:00' WHERE what = 'final'"))
    store = SQLStore(store_url)
    book = PaymentBook(account_store(store), lambda: NOON)
    for name in ("tx-1", "REF-1", "order/7", "order-1"):
        assert [each.key for each in await book.find(name)] == ["order-1"], name
    record = await book.get("order-1")
    assert record is not None
    assert record.external_id == "order/7"
    assert record.transaction == SEEN
    assert [each.what for each in record.history] == ["sent", "acknowledged", "final"]
    assert await book.find(["order/8", "REF"]) == []
    assert await account_store(store).database.read(version) == schema.VERSION == 3
    migrated = await account_store(store).database.read(shape)
    store.close()
    assert rows(store_url, "SELECT account, count(*) FROM mobilemoney_payment_records GROUP BY 1 ORDER BY 1") == [
        ("default", 4),
        ("other", 1),
    ]
    entries = rows(store_url, "SELECT account, key, number, what FROM mobilemoney_payment_history ORDER BY 1, 2, 3")
    assert entries == [
        ("default", "order-1", 1, "sent"),
        ("default", "order-1", 2, "acknowledged"),
        ("default", "order-1", 3, "final"),
        ("default", "order-4", 1, "sent"),
        ("other", "order-1", 1, "sent"),
        ("other", "order-1", 2, "unknown"),
    ]
    first = rows(store_url, "SELECT account, first_record_at FROM mobilemoney_accounts ORDER BY account")
    assert [(account, str(at)[:4]) for account, at in first] == [("default", "2026"), ("other", "2025")]
    with engine.begin() as connection:
        assert not {"mobilemoney_payments", "mobilemoney_history"} & set(sa.inspect(connection).get_table_names())
        schema.METADATA.drop_all(connection)
        prepare(connection)
        assert shape(connection) == migrated


@on_asyncio
async def test_only_refusals_of_the_contract_are_certain_after_a_migration(store_url: str) -> None:
    """A payment that an earlier release called refused is certainly refused only by a code of the contract."""
    errors = {
        "RATE_LIMIT_EXCEEDED (HTTP 429): slow down": True,
        "insufficient_permissions (HTTP 403)": True,
        "invalid_credentials (HTTP 401): no": True,
        "invalid_token (HTTP 401): no": True,
        "token_expired (HTTP 401): no": True,
        "TRANSACTION_TIMEOUT (HTTP 400): invalid_token (HTTP 401)": False,
        "rate_limit_exceeded (HTTP 429): slow down": False,
        "RateLimitExceeded (HTTP 429): slow down": False,
        "TRANSACTION_NOT_FOUND (HTTP 404)": False,
        None: False,
    }
    engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        make_old_tables(connection, "version 2")
        for number, error in enumerate(errors):
            insert_old(connection, key=f"order-{number}", state="REFUSED", error=error)
        insert_old(connection, key="lost", error="invalid_token (HTTP 401): no")
        prepare(connection)
    found = rows(store_url, "SELECT error, is_certain FROM mobilemoney_payment_records WHERE state = 'REFUSED'")
    assert {error: bool(is_certain) for error, is_certain in found} == errors
    softly = f"SELECT count(*) FROM mobilemoney_payment_records WHERE {WAS_REFUSED_SOFTLY}"
    assert rows(store_url, softly) == [(5,)]
    assert rows(store_url, "SELECT is_certain FROM mobilemoney_payment_records WHERE key = 'lost'") == [(None,)]


@on_asyncio
async def test_payments_are_found_by_indexes(store_url: str) -> None:
    """However many payments there are, those that a callback may name are not searched one by one."""
    plans = list[str]()

    def explain(connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            # In a short table, its planner takes one index for as good as another.
            _insert(connection, state="ACKNOWLEDGED")
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


def _insert(connection: sa.Connection, table: str = "mobilemoney_payment_records", **changes: Any) -> None:
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
        **({"priority": 0} if table == "mobilemoney_payment_records" else {}),
    }
    values |= changes
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)


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
