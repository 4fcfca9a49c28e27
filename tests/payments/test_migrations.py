"""Migrations: old databases keep all payments, old code cannot write beside new tables, other processes wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    ConnectionFailed,
    SQLStore,
    StoreError,
)
from mobilemoney_async.database import engine as engine_module
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.migrations import MIGRATIONS, prepare
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.payments.journal import WAS_REFUSED_SOFTLY
from mobilemoney_async.payments.payments import PaymentBook
from mobilemoney_async.payments.queries import check_health
from mobilemoney_async.payments.store import account_store
from tests.payments.service import ORDER, make_world, on_asyncio, rows
from tests.payments.tables import OLD, SEEN, insert_old, insert_payment, make_old_tables
from tests.payments.test_schema import version
from tests.support.fakes import NOON, PHONE_NUMBER

pytestmark = [pytest.mark.anyio, pytest.mark.new_database]


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
    assert await account_store(store).database.read(version) == schema.VERSION == 4
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


def connect(url: str) -> sa.Engine:
    """Return an engine for a process of an older release, or a program of the merchant's."""
    return sa.create_engine(url, poolclass=sa.pool.NullPool)


def make_old_store(url: str) -> None:
    """Make a database of version 2 with one payment."""
    with connect(url).begin() as connection:
        make_old_tables(connection, "version 2")
        insert_old(connection, "sent", key="old-1", state="ACKNOWLEDGED", transaction_id="tx-1")


@on_asyncio
async def test_old_code_cannot_write_beside_new_tables(store_url: str) -> None:
    """A process of an older release works until the migration; afterwards it fails, and has written nothing."""
    make_old_store(store_url)
    old = connect(store_url)
    with old.begin() as connection:
        insert_old(connection, "sent", key="old-2", phone_number="+255780000788")
    database = Database(store_url)
    await database.open()
    statements = [
        "UPDATE mobilemoney_payments SET state = 'FINAL'",
        "INSERT INTO mobilemoney_history (payment_id, at, what, source) VALUES (1, '2026-01-02', 'final', 'poll')",
    ]
    for statement in statements:
        with pytest.raises(sa.exc.DBAPIError, match="mobilemoney_"), old.begin() as connection:
            connection.execute(sa.text(statement))
    with pytest.raises(sa.exc.DBAPIError, match="mobilemoney_payments"), old.begin() as connection:
        insert_payment(connection, "mobilemoney_payments", key="old-3")
    database.close()
    found = rows(store_url, "SELECT key, state FROM mobilemoney_payment_records ORDER BY key")
    assert found == [("old-1", "ACKNOWLEDGED"), ("old-2", "UNKNOWN")]


async def test_a_process_older_than_the_tables_sends_nothing(store_url: str) -> None:
    """Once a newer release has migrated the tables, a process that began before refuses to send, and says why."""
    world = make_world(store_url)
    async with world.client() as client:
        world.line.refuse = 99
        with pytest.raises(ConnectionFailed):
            await client.collections.create(**ORDER, idempotency_key="order-1")
        world.line.refuse = 0

        def migrate(_: object) -> None:
            engine = connect(store_url)
            with engine.begin() as connection:
                connection.execute(sa.text(f"UPDATE mobilemoney_schema SET version = {schema.VERSION + 1}"))

        # An answer that comes after the migration is recorded all the same.
        world.line.before = lambda request: migrate(request) if request.method == "POST" else None
        paid = await client.collections.create(**{**ORDER, "amount": 7}, idempotency_key="order-2")
        for key in ("order-1", "order-3"):
            with pytest.raises(StoreError, match=rf"version {schema.VERSION + 1}.*update mobilemoney-async") as caught:
                await client.collections.create(**ORDER, idempotency_key=key)
            assert caught.value.outcome == "not_sent"
        record = await client.payments.get("order-2")
        assert record is not None
        assert record.transaction_id == paid.transaction_id
        assert await client.payments.get("order-3") is None
    assert world.sent == 1
    assert world.states() == ["NOT_SENT", "ACKNOWLEDGED"]


@on_asyncio
async def test_the_health_of_an_old_store(store_url: str) -> None:
    """The health check shows the version of old tables and their unknown payments, and does not migrate them."""
    make_old_store(store_url)
    with connect(store_url).begin() as connection:
        insert_old(connection, key="old-2", state="SENDING", stale_at="2026-01-02 12:00:00")
        insert_old(connection, key="old-3", amount="7", state="SENDING", stale_at="2100-01-02 12:00:00")
    store = SQLStore(store_url)
    for _ in range(2):
        look = partial(check_health, account=store.account, now=NOON.replace(year=2030))
        health = await account_store(store).database.peek(look)
        assert (health.version, health.known_version, health.unresolved) == (2, schema.VERSION, 1)
        assert health.cannot_write is None
    store.close()


@attrs.define
class Migration:
    """Migration that another process has begun, and ends when it may."""

    begun: threading.Event = attrs.field(factory=threading.Event)
    may_end: threading.Event = attrs.field(factory=threading.Event)

    def run(self, url: str) -> None:
        """Migrate a database, in a thread with a connection of its own."""

        def held(connection: sa.Connection) -> None:
            self.begun.set()
            assert self.may_end.wait(60)
            MIGRATIONS[1](connection)

        with connect(url).connect() as connection:
            if connection.dialect.name == "sqlite":
                driver: Any = connection.connection.dbapi_connection
                driver.isolation_level = None
                driver.execute("PRAGMA journal_mode=WAL")
                driver.execute("BEGIN IMMEDIATE")
            prepare(connection, migrations=[MIGRATIONS[0], held])
            connection.commit()


@contextmanager
def migrated_elsewhere(url: str) -> Iterator[Migration]:
    """Let another process migrate a database of version 2, for as long as the body lasts."""
    make_old_store(url)
    migration = Migration()
    thread = threading.Thread(target=migration.run, args=(url,))
    thread.start()
    try:
        assert migration.begun.wait(60)
        yield migration
    finally:
        migration.may_end.set()
        thread.join(60)
        assert not thread.is_alive()


@on_asyncio
@pytest.mark.real_time
async def test_a_process_waits_for_the_migration_of_another(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long another process migrates, one that starts in between waits, and then finds every payment."""
    monkeypatch.setattr(engine_module, "_QUEUE", 1.0)
    database, found = Database(store_url), list[int]()

    async def look() -> None:
        found.append(await database.read(version))

    async with anyio.create_task_group() as group:
        with migrated_elsewhere(store_url):
            for _ in range(12):  # more than there are threads
                group.start_soon(look)
            ends_at = time.monotonic() + 2.5
            while time.monotonic() < ends_at or not caplog.messages:
                await anyio.sleep(0.05)
                assert not found
            with anyio.move_on_after(0.2) as scope:
                await database.write(version)
            assert scope.cancelled_caught, "the wait can be cancelled"
    assert found == [schema.VERSION] * 12
    assert [each for each in caplog.messages if "waiting for another process" in each]
    monkeypatch.undo()
    keys = await database.read(lambda each: each.execute(sa.select(schema.payments.c.key)).scalars().all())
    assert keys == ["old-1"]
    database.close()


@on_asyncio
@pytest.mark.real_time
async def test_a_migration_lets_the_merchants_statements_pass(postgres_url: str) -> None:
    """While a long transaction reads the old tables, the migration waits, and other statements do not wait for it."""
    make_old_store(postgres_url)
    merchant = connect(postgres_url)
    count = sa.text("SELECT count(*) FROM mobilemoney_payments")
    asked = sa.text("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted")
    database = Database(postgres_url)
    async with anyio.create_task_group() as group:
        with merchant.begin() as long:
            assert long.execute(count).scalar() == 1
            group.start_soon(database.open)
            with merchant.begin() as other, anyio.fail_after(60):
                while not other.execute(asked).scalar():
                    await anyio.sleep(0.01)
            with merchant.begin() as other:
                assert other.execute(count).scalar() == 1
    assert await database.read(version) == schema.VERSION
    database.close()


@on_asyncio
@pytest.mark.real_time
async def test_a_new_file_that_another_program_holds(sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to migrate, a lock of another program is waited for a while only."""
    monkeypatch.setattr(engine_module, "_QUEUE", 0.5)
    monkeypatch.setattr(engine_module, "_LOCK_TRY", 0.05)
    database = Database(sqlite_file_url)
    other = connect(sqlite_file_url)
    with other.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.isolation_level = None
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="it is busy"):
            await database.read(version)
        driver.execute("ROLLBACK")
    assert await database.read(version) == schema.VERSION
    database.close()


@on_asyncio
async def test_a_store_of_version_3_gets_the_end_of_its_queue(store_url: str) -> None:
    """Its payments stay as they are, no row is written again, and a payment may then be queued until a time."""
    old = SQLStore(store_url)
    book = PaymentBook(account_store(old), lambda: NOON)
    order: Any = {"type": "collection", "phone_number": PHONE_NUMBER}
    await book.enqueue(**order, amount=1_000, idempotency_key="before")
    old.close()
    with connect(store_url).begin() as connection:
        connection.execute(sa.text("ALTER TABLE mobilemoney_payment_records DROP COLUMN not_after"))
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = 3"))
    store = SQLStore(store_url)
    book = PaymentBook(account_store(store), lambda: NOON)
    await book.enqueue(**order, amount=2_000, idempotency_key="after", not_after=NOON + timedelta(minutes=1))
    ends = {each.key: each.not_after for each in await book.list()}
    assert ends == {"before": None, "after": NOON + timedelta(minutes=1)}
    assert await account_store(store).database.read(version) == schema.VERSION
    store.close()


@on_asyncio
async def test_a_migration_says_how_far_it_is(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A migration logs how many payments there are, and its progress; in chunks it loses and doubles none."""
    monkeypatch.setattr("mobilemoney_async.database.migrations._CHUNK", 2)
    monkeypatch.setattr("mobilemoney_async.database.migrations._LOGGED_ROWS", 4)
    with connect(store_url).begin() as connection:
        make_old_tables(connection, "version 2")
        for account in ("b", "a"):
            for number in range(5):
                insert_old(connection, "sent", "final", account=account, key=f"{number}", state="FINAL")
    database = Database(store_url)
    with caplog.at_level("INFO", logger="mobilemoney_async"):
        await database.open()
    database.close()
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "migrating the store's tables to version 4; payments: 10; other processes wait"),
        ("INFO", "migrated 4 of 10 payments"),
        ("INFO", "migrated 8 of 10 payments"),
    ]
    entries = rows(store_url, "SELECT account, key, number, what FROM mobilemoney_payment_history ORDER BY 1, 2, 3")
    numbered = [(1, "sent"), (2, "final")]
    assert entries == [(account, f"{key}", *entry) for account in "ab" for key in range(5) for entry in numbered]
