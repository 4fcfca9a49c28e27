"""Connections of a process to a database, which its threads use: how each begins, and begins a transaction.

A fork leaves them to the parent.

Critical sections: `_lock` is held while the engine is made. `_writer` is held for a whole transaction that writes
SQLite: it has one writer at a time, and threads of one process queue here, first come first served, rather than at the
file, which favours the one that asks at the right moment.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from mobilemoney_async.database.prepared import collect_pending
from mobilemoney_async.database.url import file_of, obstacle
from mobilemoney_async.errors import StoreError
from mobilemoney_async.tasks import monotonic
from mobilemoney_async.text import redact
from mobilemoney_async.tracebacks import without_frames

T = TypeVar("T")

PATIENCE = 10
"""Seconds for which a transaction waits for a lock, and PostgreSQL for one statement."""

# Seconds for which a statement is waited for, which the server itself ends before, unless it stands still.
_ANSWER = PATIENCE + 5

THREADS = 6
"""Worker threads of one event loop."""

GROUP_THREADS = 3
"""Those of them that only groups of work use: see `database.group`."""

# A server that lost its power says nothing: the defaults of Linux would wait for it for a quarter of an hour.
_CONNECT: dict[str, Any] = {
    "connect_timeout": PATIENCE,
    "tcp_user_timeout": 1000 * PATIENCE,
    "keepalives_idle": PATIENCE,
    "keepalives_interval": PATIENCE // 2,
    "client_encoding": "utf8",  # the driver gives bytes where the database has none: `initdb` under LANG=C
}

# Connections of one database and process, whatever its accounts and event loops: those of the threads, and some more
# for the threads of other loops. Of several that wait for one longer than for a lock, the last ones fail.
_POOL: dict[str, Any] = {"pool_size": THREADS, "max_overflow": 2, "pool_timeout": PATIENCE, "pool_use_lifo": True}
# Rows are read by names. To read them by the columns of each statement, too, SQLAlchemy takes half of the time of a
# short SELECT of payments.
_BY_NAME: dict[str, Any] = {"_result_disable_adapt_to_context": True}

# Servers since PostgreSQL 14 end a connection that is idle for longer, unless they have a time of their own for that.
_KEPT = "60s"
# For so long one try of a transaction waits for a lock; see `engine.Database`.
_LOCK_TRY = "500ms"
# Statement by which a connection that listens is kept for as long as it lasts.
_NEVER_IDLE = (
    "SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('idle_session_timeout', true) <> '0'"
)

IS_POOLED = "mobilemoney_is_pooled"
"""Note about a connection: it leads to a pooler, so that a session of the server lasts for one transaction."""

# SQLite's engines, and the files of their open connections, each with what tells it, and its log, from others. The
# child of a fork inherits SQLite's list of locks, but not the locks: no connection there, not even a new one, keeps
# others from removing the log of what it has committed. So idle connections are closed before a fork, and the child
# refuses files that were in use.
_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_open: dict[int, tuple[str, Mapping[str, tuple[int, int] | None]]] = {}
_inherited: set[str] = set()

OF_THE_DATABASE = (sa.exc.SQLAlchemyError, OSError)
"""Errors of the database and of the way to it."""

_NOTIFY = sa.text("NOTIFY mobilemoney_changes")
_LISTEN = f"LISTEN mobilemoney_changes; {_NEVER_IDLE}"


class Connections:
    """Connections of a process to a database. `until` is a time of the monotonic clock, which all threads share."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.dialect: str = url.get_backend_name()
        self.file: Path | None = file_of(url)
        self.makes_file: bool = True
        self._engine: sa.Engine | None = None
        self._start_afresh()

    def transact(self, work: Callable[[sa.Connection], T], *, writes: bool, durable: bool, until: float) -> T:
        """Run work in one transaction and return its result; an exception rolls everything back."""
        engine = self.engine(until)
        if self.dialect == "postgresql" or not writes:
            with engine.begin() as connection, collect_pending(connection):
                return work(connection)
        with _held(self._writer, until), engine.connect() as connection:
            # Outside a transaction, the only place where SQLite lets it change.
            driver: Any = connection.connection.dbapi_connection
            driver.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with connection.execution_options(mobilemoney_writes=True).begin(), collect_pending(connection):
                return work(connection)

    def engine(self, until: float) -> sa.Engine:
        """Return the engine, which is made if need be."""
        self.leave_to_parent()
        with _held(self._lock, until):
            if self._engine is None:
                self._engine = self.make_engine()
                # A store that is never closed leaves no connection behind.
                weakref.finalize(self, _dispose, self._engine, self._pid)
            return self._engine

    def make_engine(self, *, patience: float = PATIENCE) -> sa.Engine:
        """Return a new engine, which the caller disposes of; see `make_engine`."""
        return make_engine(self.url, patience=patience, makes_file=self.makes_file)

    def notify(self) -> None:
        """Notify the processes that listen on PostgreSQL that there are new changes. A failure does not matter.

        In a transaction of its own: one that also writes would hold up the commits of all others.
        """
        if self.dialect == "postgresql":
            with suppress(*OF_THE_DATABASE, StoreError), self.engine(monotonic() + PATIENCE).begin() as connection:
                connection.execute(_NOTIFY)

    def open_listener(self, until: float) -> Any:
        """Open a connection of the driver that listens, outside every transaction, and leave it open."""
        try:
            pooled = self.engine(until).raw_connection()
        except OF_THE_DATABASE as exc:
            raise self.failure_alone(exc) from None
        driver: Any = pooled.driver_connection
        pooled.detach()  # the pool may open another one in its place
        try:
            driver.autocommit = True
            driver.execute(_LISTEN)
        except Exception as exc:  # noqa: BLE001 (the driver's own)
            driver.close()
            raise self.failure_alone(exc) from None
        return driver

    def close(self) -> None:
        """Close the connections, those in use when they are given back. The next work opens new ones."""
        with self._lock:
            if self._engine is not None:
                _dispose(self._engine, self._pid)

    def leave_to_parent(self) -> None:
        """Leave inherited state to the parent of a fork: sockets that it still uses, locks that its threads hold."""
        if self._pid != os.getpid():
            self._start_afresh()

    def failure(self, exc: Exception) -> StoreError:
        """Return our error for one of the database."""
        cause = getattr(exc, "orig", None) or exc
        said = f"the store failed: {type(cause).__name__}: {redact(str(cause))}"
        if self.file is not None:
            said += f" ({': '.join(filter(None, [str(self.file), obstacle(self.file)]))})"
        return database_failure(said)

    def failure_alone(self, exc: Exception) -> StoreError:
        """Return our error for one of the database, which is its context then, but shows nothing any more.

        A driver quotes the values of a row, phone numbers among them, and its frames hold the password of the database.
        """
        failure = self.failure(exc)
        without_frames(exc)
        return failure

    def _start_afresh(self) -> None:
        if self._engine is not None:
            self._engine.dispose(close=False)
        self._engine = None
        self._pid = os.getpid()
        self._lock, self._writer = threading.Lock(), threading.Lock()
        self.preparing: threading.Lock = threading.Lock()
        """Held while the tables are made. No thread waits for it: tasks wait in their event loops."""


def database_failure(said: str = "the store failed: it is busy, or the database does not answer") -> StoreError:
    """Return an error of a database that has changed nothing."""
    error = StoreError(said, outcome="not_sent")
    error.is_database = True
    return error


@contextmanager
def _held(lock: threading.Lock, until: float) -> Iterator[None]:
    """Hold a lock, but wait for it only until a deadline, which waiting for a thread counts to.

    While the database is away each holder waits for its time-out; a queue of a hundred must not do so one by one.

    Raises:
        StoreError: It is too late.
    """
    left = until - monotonic()
    if left <= 0 or not lock.acquire(timeout=left):
        raise database_failure()
    try:
        yield
    finally:
        lock.release()


def _dispose(engine: sa.Engine, pid: int) -> None:
    """Close all connections, unless they are those of the process that this one was forked from; one in use, later."""
    if os.getpid() == pid:
        pool = engine.pool
        engine.dispose()  # it has another pool from now on
        sa.event.listen(pool, "checkin", lambda _, record: record.invalidate())
        pool.dispose()  # of what was given back in between


def make_engine(url: sa.URL, *, patience: float = PATIENCE, makes_file: bool = True) -> sa.Engine:
    """Return an engine that opens no connection yet.

    Args:
        url: As `read_url` returns it.
        patience: Seconds for which SQLite waits for its locks.
        makes_file: Whether a file of SQLite that is missing is made.
    """
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            url,
            hide_parameters=True,  # they are phone numbers
            connect_args={"timeout": PATIENCE, "check_same_thread": False, "factory": _Connection},
            execution_options=_BY_NAME,
            **_POOL,
        )
        file = str(url.database)
        sa.event.listen(engine, "do_connect", functools.partial(_before_connect, file=file, makes_file=makes_file))
        sa.event.listen(engine, "connect", functools.partial(_on_connect, file=file, patience=patience))
        sa.event.listen(engine, "close", lambda connection, _: _open.pop(id(connection), None))
        _engines.add(engine)
        sa.event.listen(engine, "begin", _on_begin)
        return engine
    settings: dict[str, str] = {}
    if "options" not in url.query:
        settings = dict.fromkeys(("statement_timeout", "idle_in_transaction_session_timeout"), f"{PATIENCE}s")
        settings["lock_timeout"] = _LOCK_TRY
        # In another zone, the first and the last day of the calendar lie outside Python's.
        settings["TimeZone"] = "UTC"
        settings["DateStyle"] = "ISO"  # psycopg reads no other one
    engine = sa.create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        connect_args={name: value for name, value in _CONNECT.items() if name not in url.query},
        # Whatever the server's default is: after a wait for a lock, a transaction must see the row as it is then.
        isolation_level="READ COMMITTED",
        execution_options=_BY_NAME,
        **_POOL,
    )
    if settings:
        sa.event.listen(engine, "do_connect", _connect)
    sa.event.listen(engine, "connect", functools.partial(_begin_session, settings=settings))
    sa.event.listen(engine, "begin", functools.partial(_begin_in_pool, settings=settings))
    sa.event.listen(engine, "handle_error", _replace_sessions)
    return engine


# SQLite


class _Connection(sqlite3.Connection):
    """Connection to SQLite with an end that can be noticed."""


def _before_connect(
    dialect: object, record: object, arguments: list[Any], options: dict[str, Any], *, file: str, makes_file: bool
) -> None:
    if file in _inherited:
        said = f"a transaction in {file} was open when this process was forked, and SQLite would lose data here"
        raise StoreError(f"{said}: fork while the store is idle, or start processes with spawn", outcome="not_sent")
    for place, opened in [each for each in list(_open.items()) if each[1][0] == file]:
        try:
            _require_in_place(*opened)
        except StoreError:
            if _open.get(place) is opened:  # else it was closed meanwhile
                raise
    if makes_file:
        _make_private(file)
    else:
        # Nobody can look and open in one step: a file that is moved away in between must not be made again.
        arguments[0] = f"{Path(file).as_uri()}?mode=rw"
        options["uri"] = True


def _close_idle() -> None:
    """Close the idle connections to SQLite before a fork."""
    for engine in list(_engines):
        if not engine.pool.checkedout():  # type: ignore[attr-defined]
            engine.dispose()


def _inherit() -> None:
    """Note in the child of a fork which files were in use."""
    _inherited.update(file for file, _ in _open.values())
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_close_idle, after_in_child=_inherit)


def _on_connect(connection: Any, record: object, *, file: str, patience: float) -> None:
    weakref.finalize(connection, _open.pop, id(connection), None).atexit = False  # where no event tells of its end
    connection.isolation_level = None  # the driver's own BEGIN comes too late, and takes no lock
    connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}").close()
    # SQLite itself does not wait here if several processes make the database at once: `Database.open` tries again.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
    # From the first read on the log and its index are there, if at all. The first write may copy a file of an image.
    connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").close()
    names = [file, *(f"{os.path.realpath(file)}{end}" for end in ("-wal", "-shm"))]
    _open[id(connection)] = file, {each: known for each in names if (known := _identity(each)) or each == file}


def _identity(file: str) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None if it is missing."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _require_in_place(file: str, known: Mapping[str, tuple[int, int] | None]) -> None:
    """Refuse to work in files that their names no longer lead to: nobody would find again what SQLite writes there."""
    for name, identity in known.items():
        if identity is None or _identity(name) != identity:
            said = f"{name} was removed or replaced while this process had it open, and what it writes would be lost"
            advice = (
                "put the file back" if name == file else f"say mobilemoney payments restored (some of {file} is lost)"
            )
            raise StoreError(f"{said}: stop all processes, {advice}, and start them again", outcome="not_sent")


def _make_private(name: str) -> None:
    """Make the file of an SQLite database, if it is missing, so that only its owner can read it from the start.

    SQLite takes an empty file for a new database, and gives -wal and -shm its mode. The umask, which is the whole
    process's, stays as it is. An existing file keeps its mode. Errors are left to SQLite, which reports them.
    """
    file = os.path.realpath(name)  # through a link, as SQLite does: its target may be missing
    # Only a new file is opened: closing one ends the locks on it of all threads of this process.
    with suppress(OSError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _on_begin(connection: sa.Connection) -> None:
    _require_in_place(*_open[id(connection.connection.dbapi_connection)])
    # IMMEDIATE takes SQLite's only write lock now, before the first read: two writers never read the same state.
    writes = connection.get_execution_options().get("mobilemoney_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# PostgreSQL


@functools.cache
def _session_class() -> Any:
    import psycopg  # here, since only PostgreSQL needs it

    class Cursor(psycopg.Cursor[Any]):
        """Cursor that describes columns by what SQLAlchemy reads. psycopg's looks each type up, many times a create."""

        @property
        def description(self) -> Any:
            found = self.pgresult
            if found is None or not found.nfields:
                return None
            return [(found.fname(at).decode(), found.ftype(at)) for at in range(found.nfields)]  # type: ignore[union-attr]

    class Session(psycopg.Connection[Any]):
        """Session that ends where its server stands still: the server's own time-outs cannot strike then."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.cursor_factory = Cursor

        def wait(self, gen: Generator[Any, Any, T], *times: Any, **named: Any) -> T:
            return super().wait(self._answer(gen), *times, **named)

        def _answer(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
            until, ready = monotonic() + _ANSWER, None
            while True:
                try:
                    wanted = gen.send(ready)
                except StopIteration as exc:
                    return exc.value  # type: ignore[no-any-return]
                ready = yield wanted
                if not ready and monotonic() > until:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server has taken the request, and does not answer")

    return Session


def _connect(dialect: object, record: object, arguments: list[Any], options: dict[str, Any]) -> Any:
    return _session_class().connect(*arguments, **options)


def _begin_session(connection: Any, record: Any, *, settings: Mapping[str, str]) -> None:
    """Set what lasts as long as a session. If the server is another process than it said at first, a pooler is between.

    In transaction mode that gives each transaction a session that others share: nothing may be left in it.
    """
    from psycopg.types.datetime import TimestamptzLoader  # the merchant may have given psycopg another one for all

    connection.adapters.register_loader("timestamptz", TimestamptzLoader)
    is_pooled = f"pg_backend_pid() <> {connection.info.backend_pid}"
    # The pool hands out the connection that was used last, so that those above the need become idle; `pool_pre_ping`
    # replaces one that has ended.
    kept = f"set_config('idle_session_timeout', '{_KEPT}', {is_pooled})"
    kept = f"CASE WHEN current_setting('idle_session_timeout', true) = '0' THEN {kept} END"
    said = connection.execute(f"SELECT {is_pooled}, {kept}{_set(settings, is_pooled)}").fetchone()
    if said[0]:
        record.info[IS_POOLED] = True
        connection.prepare_threshold = None  # it prepares no statement
    connection.commit()


def _begin_in_pool(connection: sa.Connection, *, settings: Mapping[str, str]) -> None:
    if settings and connection.info.get(IS_POOLED):
        connection.exec_driver_sql(f"SELECT 1{_set(settings, 'true')}")


def _set(settings: Mapping[str, str], is_local: str) -> str:
    """Return more columns of a SELECT, which set something: for a session, or for its transaction if `is_local`."""
    return "".join(f", set_config('{name}', '{value}', {is_local})" for name, value in settings.items())


def _replace_sessions(context: sa.engine.ExceptionContext) -> None:
    """Let the pool replace all sessions that are older than an error of a server that fails over.

    SQLAlchemy does so itself where a session has ended. It may also last: at a server that writes no more, at a pooler.
    """
    state = getattr(context.original_exception, "sqlstate", None) or ""
    if state == "25006" or state[:2] == "08" or state[:4] == "57P0":
        context.is_disconnect = True
