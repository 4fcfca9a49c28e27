"""The connections that merchants have: each takes a payment into its own transaction, or says why not."""

import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import django
import django.conf
import django.db
import psycopg
import pytest
import sqlalchemy as sa
from django.db import transaction
from django.db.utils import ConnectionHandler
from psycopg.rows import dict_row, scalar_row
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from mobilemoney_async import (
    APIError,
    ConnectionFailed,
    IdempotencyConflict,
    InvalidRequest,
    PaymentState,
    RetryPolicy,
    SQLStore,
    StoreError,
)
from mobilemoney_async.sandbox import faults
from tests.payments.service import PHONE_NUMBER, make_world, on_asyncio
from tests.payments.steps import record_of
from tests.support.databases import dsn, sqlite_url
from tests.support.patience import PATIENCE, wait_until

ORDER: dict[str, Any] = {"type": "collection", "phone_number": PHONE_NUMBER, "amount": 1000, "extra": {"note": "100 %"}}


@pytest.fixture
def store(store_url: str) -> SQLStore:
    return SQLStore(store_url)


def enqueue(store: SQLStore, connection: Any, key: str) -> None:
    """Queue a payment, and again, which gives the same one; other parameters are a conflict, and undo nothing."""
    queued = store.enqueue(connection, **ORDER, idempotency_key=key)
    assert (queued.key, queued.state, queued.attempt) == (key, PaymentState.QUEUED, 0)
    assert store.enqueue(connection, **ORDER, idempotency_key=key) == queued
    with pytest.raises(IdempotencyConflict):
        store.enqueue(connection, **{**ORDER, "amount": 1}, idempotency_key=key)


def keys(url: str) -> list[str]:
    """The queued payments, and the changes of the feed, which are the same."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        found = connection.scalars(sa.text("SELECT key FROM mobilemoney_payment_records ORDER BY key")).all()
        assert connection.scalars(sa.text("SELECT name FROM mobilemoney_changes ORDER BY name")).all() == found
        assert connection.scalars(sa.text("SELECT key FROM mobilemoney_payment_history ORDER BY key")).all() == found
    return [*found]


def file_of(url: str) -> str:
    return sa.make_url(url).database or ""


# SQLAlchemy


@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
def test_sqlalchemy(store: SQLStore, store_url: str, kind: str) -> None:
    """A Connection, and sessions of the ORM: the rollback of a savepoint takes back what was queued in it."""
    engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
    maker: Any = {
        "connection": engine.connect,
        "session": sessionmaker(engine),
        "scoped session": scoped_session(sessionmaker(engine)),
    }[kind]
    with maker() as connection:
        enqueue(store, connection, "a")
        if kind != "scoped session":
            nested = connection.begin_nested()
            enqueue(store, connection, "undone")
            nested.rollback()
        enqueue(store, connection, "b")
        connection.commit()
        enqueue(store, connection, "c")
        connection.rollback()
    engine.dispose()
    assert keys(store_url) == ["a", "b"]


def fail_as_pg8000(*_: Any) -> None:
    """Raise an error with PostgreSQL's fields under their letters, as that driver does."""
    raise RuntimeError({"S": "ERROR", "C": "42P01"})


@pytest.mark.parametrize("kind", ["sqlalchemy", "driver", "pg8000"])
def test_a_database_without_our_tables_is_an_error_of_ours(store_url: str, tmp_path: Path, kind: str) -> None:
    """It says what makes them; it may be another database than the store's, too."""
    is_sqlite = store_url.startswith("sqlite")
    url = sqlite_url(tmp_path, has_tables=False) if is_sqlite else store_url
    hidden = "SELECT 1" if is_sqlite else "SET search_path TO pg_temp"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(hidden)
        if kind == "pg8000":
            sa.event.listen(engine, "before_cursor_execute", fail_as_pg8000)
        own: Any = connection.connection.driver_connection if kind == "driver" else connection
        with pytest.raises(StoreError, match=r"lacks the store's tables.*mobilemoney payments list") as raised:
            SQLStore(url).enqueue(own, **ORDER, idempotency_key="a")
        assert raised.value.outcome == "not_sent"
    engine.dispose()


def test_sqlalchemy_with_begin_immediate(sqlite_file_url: str) -> None:
    """The recipe of SQLAlchemy's documentation: no transactions of the driver, and a BEGIN of one's own."""
    engine, store = sa.create_engine(sqlite_file_url), SQLStore(sqlite_file_url)

    @sa.event.listens_for(engine, "connect")
    def connect(driver: Any, record: Any) -> None:
        driver.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.begin() as connection:
        enqueue(store, connection, "a")
    with Session(engine) as session:
        enqueue(store, session, "b")
        session.rollback()
    engine.dispose()
    assert keys(sqlite_file_url) == ["a"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "aiosqlite"])
@on_asyncio
@pytest.mark.real_time
async def test_an_async_session_takes_it_through_run_sync(
    driver: str, request: pytest.FixtureRequest, anyio_backend: object
) -> None:
    """Of SQLAlchemy's drivers for asyncio; the session itself is refused by a sentence that says so."""
    name = "sqlite_file_url" if driver == "aiosqlite" else "postgres_url"
    url: str = request.getfixturevalue(name)
    store, made = SQLStore(url), sa.make_url(url)
    if driver == "asyncpg":  # it knows no host in the query
        made = sa.URL.create("postgresql", made.username, made.password, database=made.database, query=made.query)
    engine = create_async_engine(made.set(drivername=f"{made.get_backend_name()}+{driver}"))
    async with AsyncSession(engine) as session:
        for wrong in (session, engine, await session.connection()):
            with pytest.raises(InvalidRequest, match="run_sync"):
                store.enqueue(wrong, **ORDER, idempotency_key="a")
        await session.run_sync(lambda sync: enqueue(store, sync, "a"))
        await session.commit()
        await session.run_sync(lambda sync: enqueue(store, sync, "b"))
        await session.rollback()
    await engine.dispose()
    assert keys(url) == ["a"]


def test_what_commits_each_statement_by_itself_is_refused(store: SQLStore, store_url: str) -> None:
    """SQLAlchemy's AUTOCOMMIT; the connection may be used as before."""
    engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(InvalidRequest, match="commits each statement"):
            store.enqueue(connection, **ORDER, idempotency_key="a")
        with connection.begin():
            connection.execute(sa.text("SELECT 1"))
    assert keys(store_url) == []


# Drivers


@pytest.mark.parametrize("factory", [dict_row, scalar_row, None])
def test_psycopg(postgres_url: str, factory: Any) -> None:
    """Whatever its rows and cursors are, also in autocommit mode inside a transaction; but not in a pipeline."""
    store = SQLStore(postgres_url)
    with psycopg.connect(dsn(postgres_url)) as connection:
        if factory is None:
            connection.cursor_factory = psycopg.RawCursor
        else:
            connection.row_factory = factory
        enqueue(store, connection, "a")
        with pytest.raises(ZeroDivisionError), connection.transaction():
            enqueue(store, connection, "undone")
            raise ZeroDivisionError
        connection.commit()
        with connection.pipeline(), pytest.raises(InvalidRequest, match="in no pipeline"):
            store.enqueue(connection, **ORDER, idempotency_key="b")
        connection.autocommit = True
        with pytest.raises(InvalidRequest, match="commits each statement"):
            store.enqueue(connection, **ORDER, idempotency_key="c")
        with connection.transaction():
            enqueue(store, connection, "d")
    assert keys(postgres_url) == ["a", "d"]


@pytest.mark.parametrize("kind", ["driver", "sqlalchemy", "django"])
@pytest.mark.parametrize(
    ("broken", "mended", "says"),
    [
        ("client_encoding TO sql_ascii", "client_encoding TO utf8", "reads text as str"),
        ("datestyle TO sql", "datestyle TO iso", "DateStyle is not ISO"),
    ],
)
def test_psycopg_that_cannot_read_is_refused_before_anything_is_written(
    postgres_url: str, broken: str, mended: str, says: str, kind: str
) -> None:
    """A database may set it for all; the merchant's own transaction goes on."""
    store, engine = SQLStore(postgres_url), sa.create_engine(postgres_url, poolclass=sa.pool.NullPool)
    with ExitStack() as stack:
        if kind == "django":
            connection: Any = stack.enter_context(in_django(postgres_url))
            stack.enter_context(transaction.atomic())
        else:
            connection = stack.enter_context(psycopg.connect(dsn(postgres_url)) if kind == "driver" else engine.begin())
        run: Any = connection.exec_driver_sql if kind == "sqlalchemy" else connection.cursor().execute
        run(f"SET {broken}")
        with pytest.raises(InvalidRequest, match=says):
            store.enqueue(connection, **ORDER, idempotency_key="a")
        run(f"SET {mended}")
        enqueue(store, connection, "b")
    assert keys(postgres_url) == ["b"]


class Naive(TimestamptzLoader):
    """Loader of a merchant who wants local times in all of psycopg."""

    def load(self, data: Any) -> Any:
        return super().load(data).astimezone(ZoneInfo("Africa/Dar_es_Salaam")).replace(tzinfo=None)


@pytest.fixture
def naive_psycopg() -> Iterator[None]:
    psycopg.adapters.register_loader("timestamptz", Naive)
    yield
    psycopg.adapters.register_loader("timestamptz", TimestamptzLoader)


@on_asyncio
@pytest.mark.usefixtures("naive_psycopg")
async def test_times_do_not_depend_on_what_psycopg_was_set_to(postgres_url: str, anyio_backend: object) -> None:
    """The store's connections and a cursor of ours read the zone. Over SQLAlchemy what is queued is right, at least."""
    world, store, asked = make_world(postgres_url), SQLStore(postgres_url), datetime.now(UTC)
    with psycopg.connect(dsn(postgres_url)) as connection:
        queued = store.enqueue(connection, **ORDER, idempotency_key="a")
    assert abs(queued.created_at - asked) < timedelta(hours=1)
    async with world.client(SQLStore(postgres_url)) as client:
        record = await record_of(client, "a")
    assert record.created_at == queued.created_at
    begin = queued.created_at + timedelta(days=1)
    with sa.create_engine(postgres_url, poolclass=sa.pool.NullPool).begin() as other:
        store.enqueue(other, **ORDER, idempotency_key="b", not_before=begin)
    record = await record_of(client, "b")
    assert (record.state, record.not_before) == (PaymentState.QUEUED, begin)


def test_errors_of_the_driver_pass_unchanged(postgres_url: str) -> None:
    """Such as a serialization failure, so that the merchant's own code repeats the transaction."""
    store = SQLStore(postgres_url)
    with psycopg.connect(dsn(postgres_url)) as one, psycopg.connect(dsn(postgres_url)) as other:
        one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        one.execute("SELECT 1")
        store.enqueue(other, **ORDER, idempotency_key="a")
        other.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            store.enqueue(one, **ORDER, idempotency_key="a")
        one.rollback()
        enqueue(store, one, "a")
        one.execute("ALTER TABLE mobilemoney_changes RENAME COLUMN name TO other")
        with pytest.raises(psycopg.errors.UndefinedColumn):
            store.enqueue(one, **ORDER, idempotency_key="b")
        one.rollback()


@pytest.mark.real_time
@on_asyncio
async def test_a_key_that_two_transactions_queue_again_is_queued_once(postgres_url: str) -> None:
    """The second one waits for the first one, wherever that comes in between, and leaves the payment as it is then."""
    world, order = make_world(postgres_url), {**ORDER, "idempotency_key": "a"}
    store, engine = world.store(), sa.create_engine(postgres_url, poolclass=sa.pool.NullPool)
    async with world.client(store, retry=RetryPolicy(max_attempts=1)) as client:
        world.line.refuse = 1
        with pytest.raises(ConnectionFailed):
            await client.collections.create(PHONE_NUMBER, 1000, idempotency_key="a", extra=ORDER["extra"])
        with psycopg.connect(dsn(postgres_url)) as first, engine.connect() as second:

            def commit_first() -> None:
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                try:
                    with psycopg.connect(dsn(postgres_url), autocommit=True) as watcher:
                        wait_until(lambda: watcher.execute(waiting).fetchone() != (0,))
                finally:
                    first.commit()

            committer = threading.Thread(target=commit_first)

            @sa.event.listens_for(second, "after_cursor_execute")
            def come_between(*said: Any) -> None:
                if said[2].startswith("SELECT") and committer.ident is None:  # the second one has seen the payment
                    store.enqueue(first, **order, priority=1)
                    committer.start()

            seen = store.enqueue(second, **order, priority=9)
            second.commit()
            committer.join()
        record = await record_of(client, "a")
    assert [each.what for each in record.history] == ["sent", "not_sent", "queued"]
    assert (record.state, record.priority, seen.priority) == (PaymentState.QUEUED, 1, 1)


@pytest.mark.slow
@pytest.mark.real_time
async def test_an_open_transaction_holds_up_no_other_payment_on_postgresql(postgres_url: str) -> None:
    """Nor the feed, nor a key that is used again; and serializable transactions that enqueue do not disturb another."""
    world = make_world(postgres_url)
    store = world.store()
    async with world.client(store) as client:
        world.sandbox.script(faults.server_error(422, processed=False), on="c2b")
        with pytest.raises(APIError):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=7, idempotency_key="refused")
        await client.payments.enqueue(**{**ORDER, "amount": 8}, idempotency_key="old")
        with psycopg.connect(dsn(postgres_url)) as one, psycopg.connect(dsn(postgres_url)) as other:
            for number, each in enumerate((one, other)):
                each.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                store.enqueue(each, **{**ORDER, "amount": 50 + number}, idempotency_key=f"open-{number}")
                locks = each.execute("SELECT count(*) FROM pg_locks WHERE mode LIKE '%Exclusive%' AND NOT granted")
                assert locks.fetchone() == (0,)
            other.rollback()
            store.enqueue(other, type="collection", phone_number=PHONE_NUMBER, amount=7, idempotency_key="refused")
            with anyio.fail_after(PATIENCE):
                await client.payments.reconcile()
                answer = await client.collections.create(phone_number=PHONE_NUMBER, amount=2, idempotency_key="now")
                async with client.dispatcher():
                    seen = set[str | None]()
                    async for change in client.payments.changes():
                        assert change.key is not None and not change.key.startswith("open")
                        seen.add(change.key)
                        if change.key == "old" and change.state is PaymentState.ACKNOWLEDGED:
                            break
                await client.payments.reconcile()
            assert answer.transaction_id and seen == {"old", "now", "refused"}
            one.commit()
            other.commit()


LEVELS: list[dict[str, Any]] = [{}, {"isolation_level": "IMMEDIATE"}]
if sys.version_info >= (3, 12):
    LEVELS.append({"autocommit": False})


@pytest.mark.parametrize("options", LEVELS)
def test_sqlite3(sqlite_file_url: str, options: dict[str, Any]) -> None:
    """In its usual transactions, with rows of any kind, and in a savepoint."""
    store = SQLStore(sqlite_file_url)
    with closing(sqlite3.connect(file_of(sqlite_file_url), **options)) as connection:
        connection.row_factory = sqlite3.Row
        enqueue(store, connection, "a")
        connection.execute("SAVEPOINT one")
        enqueue(store, connection, "undone")
        connection.execute("ROLLBACK TO one")
        connection.commit()
        enqueue(store, connection, "b")
        connection.rollback()
    assert keys(sqlite_file_url) == ["a"]


@pytest.mark.parametrize("options", [{"isolation_level": None}, *([{"autocommit": True}] if len(LEVELS) > 2 else [])])
def test_sqlite3_without_transactions_needs_a_begin(sqlite_file_url: str, options: dict[str, Any]) -> None:
    store = SQLStore(sqlite_file_url)
    with closing(sqlite3.connect(file_of(sqlite_file_url), **options)) as connection:
        with pytest.raises(InvalidRequest, match="commits each statement"):
            store.enqueue(connection, **ORDER, idempotency_key="a")
        connection.execute("BEGIN IMMEDIATE")
        enqueue(store, connection, "a")
        connection.execute("COMMIT")
    assert keys(sqlite_file_url) == ["a"]


def test_sqlite3_that_reads_bytes_is_refused_before_anything_is_written(sqlite_file_url: str) -> None:
    """The merchant's own transaction goes on."""
    store = SQLStore(sqlite_file_url)
    with closing(sqlite3.connect(file_of(sqlite_file_url))) as connection:
        connection.text_factory = bytes
        with pytest.raises(InvalidRequest, match="reads text as str"):
            store.enqueue(connection, **ORDER, idempotency_key="a")
        connection.text_factory = lambda read: read.decode(errors="replace")
        enqueue(store, connection, "b")
        connection.commit()
    assert keys(sqlite_file_url) == ["b"]


def test_a_connection_to_another_kind_of_database_is_refused(store: SQLStore, store_url: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        if store_url.startswith("postgresql"):
            with pytest.raises(InvalidRequest, match="which is postgresql, not sqlite"):
                store.enqueue(connection, **ORDER, idempotency_key="a")
        else:
            with pytest.raises(StoreError, match="your database lacks the store's tables"):
                store.enqueue(connection, **ORDER, idempotency_key="a")


# Sentences for SQLite, which has one writer


def test_a_transaction_that_read_too_early_says_so(sqlite_file_url: str) -> None:
    """SQLITE_BUSY_SNAPSHOT reaches the merchant as it is, with a note on what to do."""
    store, file = SQLStore(sqlite_file_url), file_of(sqlite_file_url)
    with closing(sqlite3.connect(file)) as one, closing(sqlite3.connect(file)) as other:
        one.execute("BEGIN")
        one.execute("SELECT count(*) FROM mobilemoney_payment_records").fetchall()
        store.enqueue(other, **ORDER, idempotency_key="a")
        other.commit()
        with pytest.raises(sqlite3.OperationalError) as caught:
            store.enqueue(one, **ORDER, idempotency_key="b")
        assert "BEGIN IMMEDIATE" in caught.value.__notes__[0]
        one.rollback()
        enqueue(store, one, "b")
        one.rollback()


async def test_awaiting_the_store_inside_the_transaction_is_an_error_at_once(sqlite_file_url: str) -> None:
    """Not a wait for oneself; other tasks wait for the commit, and reads do not wait at all."""
    world = make_world(sqlite_file_url)
    store = world.store()
    engine = sa.create_engine(sqlite_file_url, poolclass=sa.pool.NullPool)
    async with world.client(store) as client:
        for connect in (lambda: sqlite3.connect(file_of(sqlite_file_url)), engine.connect):
            with closing(connect()) as connection:
                for _ in range(2):
                    store.enqueue(connection, **ORDER, idempotency_key="a")
                    with pytest.raises(StoreError, match="your own transaction is open") as caught:
                        await client.collections.create(phone_number=PHONE_NUMBER, amount=5, idempotency_key="b")
                    assert caught.value.outcome == "not_sent"
                    assert await client.payments.get("a") is None
                    connection.rollback()
                store.enqueue(connection, **ORDER, idempotency_key="a")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: client.payments.enqueue(**ORDER, idempotency_key="c"))
                    await anyio.lowlevel.checkpoint()
                    connection.rollback()
            await client.payments.enqueue(**ORDER, idempotency_key="d")
    assert world.sent == 0 and keys(sqlite_file_url) == ["c", "d"]


# Django


@contextmanager
def in_django(url: str, alias: str = "default", **options: Any) -> Iterator[Any]:
    """The connection of a Django project to a database."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={}, LOGGING_CONFIG=None)
        django.setup()
    made = sa.make_url(url)
    if made.get_backend_name() == "sqlite":
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": made.database, "OPTIONS": options}
    else:
        options |= {"host": str(made.query["host"])}
        settings = {"ENGINE": "django.db.backends.postgresql", "NAME": made.database, "USER": made.username}
        settings["OPTIONS"] = options
    django.db.connections.databases[alias] = ConnectionHandler({"default": settings}).databases["default"]
    try:
        yield django.db.connections[alias]
    finally:
        django.db.connections[alias].close()
        del django.db.connections[alias]


@pytest.mark.parametrize("options", [{}, {"transaction_mode": "IMMEDIATE"}, {"server_side_binding": True}])
def test_django(store: SQLStore, store_url: str, options: dict[str, Any]) -> None:
    """Inside `atomic`, nested too; outside, it is refused. The errors are Django's."""
    is_sqlite = store_url.startswith("sqlite")
    given = {name: value for name, value in options.items() if is_sqlite == (name == "transaction_mode")}
    with in_django(store_url, **given) as connection:
        with pytest.raises(InvalidRequest, match="commits each statement"):
            store.enqueue(connection, **ORDER, idempotency_key="a")
        with transaction.atomic():
            enqueue(store, connection, "a")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                enqueue(store, connection, "undone")
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue(store, django.db.connection, "b")
            raise ZeroDivisionError
        with pytest.raises(django.db.Error), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE mobilemoney_payment_records RENAME COLUMN priority TO other")
            store.enqueue(connection, **ORDER, idempotency_key="c")
    assert keys(store_url) == ["a"]


def test_django_without_time_zones(store: SQLStore, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With USE_TZ=False its connection has local times; the payment's are right all the same."""
    with in_django(store_url) as connection:
        monkeypatch.setattr(django.conf.settings, "USE_TZ", False)
        monkeypatch.setattr(django.conf.settings, "TIME_ZONE", "Africa/Dar_es_Salaam")
        begin = datetime(2026, 12, 1, tzinfo=UTC)
        with transaction.atomic():
            queued = store.enqueue(connection, **ORDER, idempotency_key="a", not_before=begin)
    assert queued.not_before == begin
