"""The database behind the store: which are taken, how they are used, and that their errors tell no secrets."""

import gc
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import InvalidRequest, PaymentRecord, SQLStore, StoreError
from mobilemoney_async.database import connections as connections_module
from mobilemoney_async.database import engine as engine_module
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.url import obstacle, readable_files
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox
from tests.payments.service import ORDER, make_world, on_asyncio, rows
from tests.support.databases import OTHERS, Postgres
from tests.support.patience import PATIENCE

_FORK = """
import os, sys, anyio
import sqlalchemy as sa
from mobilemoney_async.database.engine import Database

database = Database(sys.argv[1])
create = "CREATE TABLE marks (who TEXT)"
mark = sa.text("INSERT INTO marks VALUES (:who)")

async def write(who):
    for _ in range(5):
        await database.write(lambda each: each.execute(mark, {"who": who}))

async def main():
    await database.write(lambda each: each.execute(sa.text(create)))
    await write("before")

anyio.run(main)
(reader, writer), (has_written, writes) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    anyio.run(write, "child")
    os.write(writes, b".")
    os.read(reader, 1)
    anyio.run(write, "child")
    os._exit(0)
anyio.run(write, "parent")
os.read(has_written, 1)
database.close()
os.write(writer, b".")
assert os.waitpid(child, 0)[1] == 0
anyio.run(write, "after")
"""

_BUSY_FORK = """
import os, sys, threading, anyio
import sqlalchemy as sa
from mobilemoney_async import StoreError
from mobilemoney_async.database.engine import Database

url = sys.argv[1]
has_begun, may_end = threading.Event(), threading.Event()

def wait(connection):
    has_begun.set()
    assert may_end.wait(60)

thread = threading.Thread(target=anyio.run, args=(Database(url).read, wait))
thread.start()
assert has_begun.wait(60)
child = os.fork()
if child == 0:
    try:
        anyio.run(Database(url).read, lambda connection: None)
    except StoreError as exc:
        os._exit(7 if "was open when this process was forked" in str(exc) and exc.outcome == "not_sent" else 1)
    os._exit(2)
may_end.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
anyio.run(Database(url).read, lambda connection: None)
"""


def one(connection: sa.Connection) -> int:
    """Ask for the least."""
    number: int = connection.execute(sa.text("SELECT 1")).scalar_one()
    return number


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite+pysqlite:///:memory:",
        "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "mysql://user:hunter2@host/payments",
        "mysql+pymysql://user:hunter2@host/payments",
        "oracle://user:hunter2@host/payments",
        "postgresql+psycopg2://user:hunter2@host/payments",
        "postgresql+asyncpg://user:hunter2@host/payments",
        "sqlite+aiosqlite:///payments.db",
        "sqlite+pysqlcipher://:hunter2@/payments.db",
        "https://user:hunter2@host/payments",
        "payments.db",
        "",
        "://",
        "postgresql+psycopg://user:hunter2@host:port/payments",
        None,
        7,
    ],
)
def test_a_database_that_is_refused(url: str) -> None:
    """Any URL but an SQLite file or PostgreSQL is refused at once; the error shows examples and no password."""
    with pytest.raises(InvalidRequest, match=r"sqlite:///payments\.db.*postgresql\+psycopg://") as caught:
        SQLStore(url)
    assert caught.value.argument == "url"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["asyncpg", "psycopg2", "pg8000"])
def test_another_driver_of_postgresql_is_named(name: str) -> None:
    """A URL that the rest of a program uses is refused by its cause, without its password."""
    advice = rf"write postgresql\+psycopg://; your own engine may keep {name}$"
    with pytest.raises(InvalidRequest, match=advice) as caught:
        SQLStore(f"postgresql+{name}://user:hunter2@host/payments")
    assert f"not 'postgresql+{name}://…'" in str(caught.value)


def test_a_url_as_platforms_write_it_is_read() -> None:
    """`postgres://` is PostgreSQL's, too."""
    assert "postgresql+psycopg://user:***@host/payments" in repr(SQLStore("postgres://user:hunter2@host/payments"))


@pytest.mark.parametrize(
    "url", ["sqlite:///payments.db?mode=ro", "sqlite:///file:payments.db?uri=true", "sqlite:///\ud800"]
)
def test_a_file_is_named_plainly(url: str) -> None:
    """An option that would go unheeded, and a name that no file can have, are refused rather than passed over."""
    with pytest.raises(InvalidRequest, match=r"^url must be .*sqlite:///payments\.db"):
        SQLStore(url)


@on_asyncio
async def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """If SQLite cannot use its file, the error names the file and the obstacle."""
    text = tmp_path / "notes.txt"
    text.write_text("no database, but long enough to be none: " * 50)
    for file, why in [
        (tmp_path / "nowhere" / "payments.db", f": there is no directory {tmp_path / 'nowhere'})"),
        (tmp_path, ": that is a directory)"),
        (text, ")"),
    ]:
        database = Database(f"sqlite:///{file}")
        for work in (database.write, database.read, database.peek):
            with pytest.raises(StoreError) as caught:
                await work(one)
            assert str(caught.value).endswith(f"({file}{why}")
            assert caught.value.outcome == "not_sent"
        database.close()


def test_a_file_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory or a file of another user is named as such, also if the tests run as root."""
    file, nowhere = tmp_path / "payments.db", tmp_path / ("a" * 300)  # the system refuses to say whether that exists
    assert obstacle(file) == ""
    assert obstacle(nowhere / "payments.db") == f"there is no directory {nowhere}"
    file.touch()
    assert obstacle(file) == ""
    for theirs in (tmp_path, file):
        with monkeypatch.context() as patch:
            patch.setattr("os.access", lambda path, mode, theirs=theirs: path != theirs)
            assert obstacle(file) == f"this user may not write to {theirs}"


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("sqlite:///payments.db", "sqlite"),
        ("sqlite:////var/lib/payments.db", "sqlite"),
        ("sqlite+pysqlite:///payments.db", "sqlite"),
        ("postgresql+psycopg://user:hunter2@host/payments", "postgresql"),
        ("postgresql://user:hunter2@host/payments", "postgresql"),
        ("postgresql+psycopg:///payments?host=/run/postgresql", "postgresql"),
    ],
)
def test_a_database_that_is_taken(url: str, dialect: str) -> None:
    """SQLite files and PostgreSQL are taken, without a connection, and the repr shows no password."""
    store = SQLStore(url, account="shop")
    assert account_store(store).database.dialect == dialect
    assert "hunter2" not in repr(store)
    assert "shop" in repr(store)
    store.close()


def test_without_the_driver_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg, or without SQLAlchemy, the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidRequest, match=r'pip install "mobilemoney-async\[postgres\]"'):
        SQLStore("postgresql+psycopg://user:hunter2@host/payments")
    SQLStore("sqlite:///payments.db").close()
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(InvalidRequest, match=r'pip install "mobilemoney-async\[store\]"'):
        SQLStore("sqlite:///payments.db")


async def test_work_is_one_transaction(store_url: str) -> None:
    """Work that raises changes nothing, and its own error comes out; work that returns has changed everything."""
    database = Database(store_url)

    def half(connection: sa.Connection) -> None:
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = 1 + version"))
        raise LookupError("half way")

    with pytest.raises(LookupError, match="half way"):
        await database.write(half)
    assert rows(store_url, "SELECT version FROM mobilemoney_schema") == [(schema.VERSION,)]
    assert await database.write(one) == 1
    assert await database.read(one) == 1
    database.close()


async def test_sqlite_is_set_for_money(sqlite_file_url: str) -> None:
    """SQLite writes ahead, syncs each durable commit, and keeps its foreign keys."""
    database = Database(sqlite_file_url)

    def settings(connection: sa.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]

    for _ in range(2):
        assert await database.write(settings) == ["wal", 2, 1]
        assert await database.write(settings, durable=False) == ["wal", 1, 1]
    database.close()


async def test_postgresql_waits_for_the_disk(postgres_url: str) -> None:
    """PostgreSQL syncs each commit: processes of other hosts rely on it after a crash."""
    database = Database(postgres_url)
    show = sa.text("SHOW synchronous_commit")
    for _ in range(2):
        assert await database.write(lambda each: each.execute(show).scalar_one()) == "on"
        assert await database.write(lambda each: each.execute(show).scalar_one(), durable=False) == "on"
    database.close()


@pytest.mark.slow
@on_asyncio
async def test_a_database_without_an_encoding_is_read_as_text(postgres_server: Postgres) -> None:
    """`initdb` makes such ones where the locale is C."""
    url = postgres_server.new_database("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    world = make_world(url)
    async with world.client() as client:
        await client.collections.create(**ORDER, idempotency_key="chai-\u20ac")
        assert [each.key for each in await client.payments.list()] == ["chai-\u20ac"]


async def test_a_relative_file_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that changes its directory goes on with the file that it began with."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    database = Database("sqlite:///payments.db")
    monkeypatch.chdir(tmp_path / "b")
    await database.write(one)
    database.close()
    assert (tmp_path / "a" / "payments.db").exists()
    assert not (tmp_path / "b" / "payments.db").exists()


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process whose own files everyone may read and write."""
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("url", ["sqlite:///{}/new.db", "sqlite:///{}/link"])
async def test_a_new_database_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """A new file is private before SQLite opens it, as are -wal and -shm, whatever the umask, which is left alone."""
    (tmp_path / "link").symlink_to(tmp_path / "new.db")
    connect: Callable[..., sqlite3.Connection] = sqlite3.dbapi2.connect
    seen: list[int] = []

    def connect_to_seen(*arguments: Any, **options: Any) -> sqlite3.Connection:
        seen.append(modes(tmp_path)["new.db"])
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect_to_seen)
    database = Database(url.format(tmp_path))
    await database.write(one)
    assert set(seen) == {0o600}
    found = modes(tmp_path)
    del found["link"]
    assert found == {"new.db": 0o600, "new.db-shm": 0o600, "new.db-wal": 0o600}
    assert readable_files(database.file) == []
    database.close()


@on_asyncio
@pytest.mark.parametrize("what", ["removed", "replaced", "wal", "shm"])
async def test_in_a_file_that_was_removed_or_replaced_nothing_is_paid(tmp_path: Path, what: str) -> None:
    """SQLite would write on in it: who opens the file of that name knows of no such payment, and pays again."""
    file = tmp_path / "payments.db"
    world = make_world(f"sqlite:///{file}")
    async with world.client() as client:
        await client.collections.create(**ORDER, idempotency_key="order-1")
        if what in {"wal", "shm"}:  # as the usual advice goes after a file was copied
            (tmp_path / f"payments.db-{what}").unlink()
        elif what == "replaced":
            shutil.copy(file, tmp_path / "backup")
            (tmp_path / "backup").replace(file)
        else:
            file.unlink()
        async with world.client() as other:
            for each in (client, other):
                with pytest.raises(StoreError, match="was removed or replaced") as caught:
                    await each.collections.create(**ORDER, idempotency_key="order-2")
                assert caught.value.outcome == "not_sent"
                with pytest.raises(StoreError, match="was removed or replaced"):
                    await each.payments.list()
    assert world.sent == 1 and file.exists() is (what != "removed")


async def test_an_existing_database_keeps_its_mode(tmp_path: Path) -> None:
    """A merchant's own database stays readable for those who could read it; the files are named."""
    file = tmp_path / "mine.db"
    with closing(sqlite3.connect(file)) as mine:
        mine.execute("CREATE TABLE t (n)")
    file.chmod(0o640)
    database = Database(f"sqlite:///{file}")
    await database.write(one)
    assert set(modes(tmp_path).values()) == {0o640}
    assert [each.name for each in readable_files(database.file)] == ["mine.db", "mine.db-wal", "mine.db-shm"]
    database.close()


@on_asyncio
async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """A file that cannot be made gives a `StoreError` that says so, and works once the directory is there."""
    database = Database(f"sqlite:///{tmp_path}/missing/payments.db")
    with pytest.raises(StoreError, match="unable to open database file") as caught:
        await database.write(one)
    assert caught.value.outcome == "not_sent"
    (tmp_path / "missing").mkdir()
    assert await database.write(one) == 1
    database.close()


@on_asyncio
@pytest.mark.real_time
async def test_a_locked_file_is_waited_for_and_given_up(sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the file, a write waits, gives up with `StoreError`, and works later."""
    monkeypatch.setattr(connections_module, "PATIENCE", 0.05)
    database = Database(sqlite_file_url)
    await database.write(one)
    other = sqlite3.connect(sqlite_file_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        await database.write(one)
    assert await database.read(one) == 1  # readers do not wait for writers
    other.execute("COMMIT")
    other.close()
    assert await database.write(one) == 1
    database.close()


@on_asyncio
@pytest.mark.real_time
async def test_a_payment_is_shown_while_writers_wait_for_another_program(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there are more of them than threads for single work."""
    monkeypatch.setattr(connections_module, "PATIENCE", 5)
    async with Sandbox().client(store=sqlite_file_url) as client:
        queue = partial(client.payments.enqueue, type="collection", amount=5000)
        await queue(phone_number="+255681234000", idempotency_key="order-0")
        queued = list[PaymentRecord]()

        async def enqueue(number: int) -> None:
            queued.append(await queue(phone_number=f"+25568123400{number}", idempotency_key=f"order-{number}"))

        with closing(sqlite3.connect(sqlite_file_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                for number in range(1, 5):
                    tasks.start_soon(enqueue, number)
                await anyio.wait_all_tasks_blocked()
                assert await client.payments.get("order-0") is not None
                assert queued == []
                other.execute("COMMIT")
        assert len(queued) == 4


async def test_the_time_of_sqlite_keeps_to_a_virtual_clock(sqlite_file_url: str) -> None:
    """A slow disk takes no virtual time: the limit that processes share would see time go back afterwards."""

    def look_late(_: sa.Connection, clock: Clock) -> float:
        time.sleep(0.02)  # real time: the work of a thread
        return clock()

    database = Database(sqlite_file_url)
    for _ in range(2):
        seen, offset = await database.timed(look_late)
        assert seen + offset == pytest.approx(anyio.current_time(), abs=1e-6)
        await anyio.sleep(10)
    database.close()


@on_asyncio
@pytest.mark.real_time
async def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PostgreSQL that does not answer gives a `StoreError` without the password or the user's name."""
    monkeypatch.setattr(connections_module, "PATIENCE", 1)
    database = Database("postgresql+psycopg://merchant:hunter2@127.0.0.1:1/payments")
    with pytest.raises(StoreError, match="the store failed") as caught:
        await database.write(one)
    assert caught.value.outcome == "not_sent"
    assert "hunter2" not in "".join(map(str, _chain(caught.value)))
    database.close()


def _chain(error: BaseException | None) -> list[BaseException]:
    seen: list[BaseException] = []
    while error is not None:
        seen.append(error)
        error = error.__cause__
    return seen


async def test_an_error_shows_no_phone_number(database: Database) -> None:
    """Neither the text nor the cause of a `StoreError` shows the values of a row, though drivers quote them."""
    insert = sa.text(
        "INSERT INTO mobilemoney_payment_records (account, key, type, phone_number, amount, extra_digest, state,"
        " attempt, created_at, changed_at, is_adopted, stops_kind, walks, priority) VALUES ('a', :key, 'collection',"
        " '+255780000789', '1000', '', 'UNKNOWN', 1, '2026-01-02 12:00:00', '2026-01-02 12:00:00', FALSE, TRUE, 0, 0)"
    )
    await database.write(lambda each: each.execute(insert, {"key": "order-1"}))
    with pytest.raises(StoreError) as caught:
        await database.write(lambda each: each.execute(insert, {"key": "order-2"}))
    said = "".join(f"{each!s}{each!r}" for each in _chain(caught.value))
    assert "780000789" not in said
    assert "the store failed" in said


@pytest.mark.new_database
async def test_work_that_has_begun_ends_though_its_task_is_cancelled(database: Database) -> None:
    """A task that is cancelled while the database works gets the cancellation afterwards; the commit stays."""
    await database.write(one)
    begun = threading.Event()

    def slow(connection: sa.Connection) -> None:
        begun.set()
        time.sleep(0.02)  # real time: the work of a thread
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = 1"))

    returned = False
    async with anyio.create_task_group() as group:

        async def work() -> None:
            nonlocal returned
            await database.write(slow)
            returned = True

        group.start_soon(work)
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert returned


@pytest.mark.new_database
async def test_many_tasks_write_at_once(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of one process and of another store write at once without an error or a lost write."""
    monkeypatch.setattr(engine_module, "_QUEUE", 120)  # thirty transactions of a slow machine may take ten seconds
    databases = [Database(store_url), Database(store_url)]
    create = sa.text("CREATE TABLE counter (value INTEGER)")
    await databases[0].write(lambda each: each.execute(create))
    await databases[0].write(lambda each: each.execute(sa.text("INSERT INTO counter VALUES (0)")))
    add = sa.text("UPDATE counter SET value = value + 1")
    async with anyio.create_task_group() as group:

        async def work(number: int) -> None:
            await databases[number % 2].write(lambda each: each.execute(add), durable=False)

        for number in range(30):
            group.start_soon(work, number)
    assert rows(store_url, "SELECT value FROM counter") == [(30,)]
    for database in databases:
        database.close()


@pytest.mark.slow
@pytest.mark.new_database
def test_a_fork_leaves_the_connections_to_the_parent(store_url: str) -> None:
    """Parent and child of a fork both go on with the store, also after the parent has closed it: no commit is lost."""
    subprocess.run([sys.executable, "-c", _FORK, store_url], check=True, timeout=PATIENCE, cwd=Path.cwd())
    counts = dict(rows(store_url, "SELECT who, count(*) FROM marks GROUP BY who"))
    assert counts == {"before": 5, "child": 10, "parent": 5, "after": 5}


@pytest.mark.slow
def test_a_fork_during_a_transaction_of_sqlite(tmp_path: Path) -> None:
    """The child refuses the file, in which SQLite would lose its commits; the parent goes on."""
    url = f"sqlite:///{tmp_path}/payments.db"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _BUSY_FORK, url], check=True, timeout=PATIENCE, cwd=Path.cwd()
    )


async def test_a_closed_store_opens_again(store_url: str) -> None:
    """Closing a store loses nothing; its next use opens new connections."""
    store = SQLStore(store_url)
    assert await account_store(store).database.read(one) == 1
    store.close()
    store.close()
    assert await account_store(store).database.read(one) == 1
    store.close()


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, as Linux lists them."""
    links = (os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd"))
    return [each for each in links if each.startswith(str(folder))]


@on_asyncio
async def test_a_connection_in_use_while_its_store_is_closed_is_closed_after_it(tmp_path: Path) -> None:
    """As where a worker ends while it reads: no file, or session of a server, is left to the garbage collector."""
    database, reading, go_on = Database(f"sqlite:///{tmp_path}/p.db"), threading.Event(), threading.Event()

    def read(connection: sa.Connection) -> int:
        reading.set()
        assert go_on.wait(PATIENCE)
        return one(connection)

    await database.write(one)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.read, read)
        await anyio.to_thread.run_sync(reading.wait)
        database.close()
        assert open_files(tmp_path)
        go_on.set()
    assert not open_files(tmp_path)


@on_asyncio
async def test_a_server_that_drops_its_connections(postgres_url: str) -> None:
    """Connections that the server has closed are replaced, without an error."""
    database = Database(postgres_url)
    await database.write(one)
    killer = sa.create_engine(postgres_url, poolclass=sa.pool.NullPool)
    with killer.connect() as connection:
        connection.execute(sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}"))
    assert await database.write(one) == 1
    database.close()


@on_asyncio
@pytest.mark.parametrize("at_commit", [True, False])
async def test_a_server_that_stands_still(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, *, at_commit: bool
) -> None:
    """A frozen server takes requests and answers none: it is waited for a moment longer than a statement may take."""
    monkeypatch.setattr(connections_module, "_ANSWER", 0.05)
    stopped = list[int]()

    def freeze(connection: sa.Connection) -> object:
        stopped.append(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
        os.kill(stopped[-1], signal.SIGSTOP)
        return None if at_commit else connection.execute(sa.text("SELECT 1")).scalar_one()

    database = Database(postgres_url)
    await database.write(one)
    try:
        with pytest.raises(StoreError, match="does not answer") as caught:
            await database.read(freeze)
        assert caught.value.outcome == "not_sent"
        assert await database.write(one) == 1
    finally:
        for each in stopped:
            os.kill(each, signal.SIGCONT)
        database.close()


def test_a_store_that_nobody_closed_leaves_no_connection_behind(sqlite_file_url: str) -> None:
    """Python 3.13 warns of connections that are left to the garbage collector: a dropped store closes its own."""

    async def use() -> int:
        return await Database(sqlite_file_url).write(one)

    assert anyio.run(use) == 1
    gc.collect()  # a warning would fail the test
