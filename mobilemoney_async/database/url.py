"""URL of a database, and the SQLAlchemy engine made of it: the settings of SQLite and of PostgreSQL."""

from __future__ import annotations

import functools
import os
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet, finalize

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from mobilemoney_async.errors import StoreError
from mobilemoney_async.tasks import monotonic
from mobilemoney_async.values import can_encode, hide_text, missing_extra, refuse, url_shape

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

# Servers since PostgreSQL 14 end a connection that is idle for longer, unless they have a time of their own for that.
_KEPT = "60s"
# For so long one try of a transaction waits for a lock; see `engine.Database`.
_LOCK_TRY = "500ms"
NEVER_IDLE = (
    "SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('idle_session_timeout', true) <> '0'"
)
"""Statement by which a connection that listens is kept for as long as it lasts."""

IS_POOLED = "mobilemoney_is_pooled"
"""Note about a connection: it leads to a pooler, so that a session of the server lasts for one transaction."""

# SQLite's engines, and the files of their open connections, each with what tells it from another one of its name. The
# child of a fork inherits SQLite's list of locks, but not the locks: no connection there, not even a new one, keeps
# others from removing the log of what it has committed. So idle connections are closed before a fork, and the child
# refuses files that were in use.
_engines: WeakSet[sa.Engine] = WeakSet()
_open: dict[int, tuple[str, tuple[int, int] | None]] = {}
_inherited: set[str] = set()

_ACCEPTS = 'a URL such as "sqlite:///payments.db" or "postgresql+psycopg://user:password@host/database"'


def read_url(url: object) -> sa.URL:
    """Return the meaning of a URL, independent of the working directory.

    Raises:
        InvalidRequest: It is no URL of a store, or needs an extra.
    """
    url = hide_text(url)
    if not isinstance(url, str) or not can_encode(url):
        raise refuse("url", _ACCEPTS, str if isinstance(url, str) else type(url))
    driver, read = "", None
    with suppress(Exception):  # any error of SQLAlchemy's; it may quote a password
        read = make_url(url)
        read.get_backend_name()
        driver = read.drivername
    # Another driver is asked for with a reason, encryption say.
    if read is not None and driver in {"sqlite", "sqlite+pysqlite"}:
        return _read_file(read)
    # Some platforms write `postgres`, which SQLAlchemy no longer reads.
    if read is None or driver not in {"postgres", "postgresql", "postgresql+psycopg"}:
        del read  # a tuple, with the password in it
        kind, _, name = driver.partition("+")
        advice = "the store's driver is psycopg: write postgresql+psycopg://; your own engine may keep " + name
        advice = advice if kind == "postgresql" else ""
        raise refuse("url", _ACCEPTS, f"{driver}://…" if driver else url_shape(url), advice)
    try:
        import psycopg  # noqa: F401 (here, since only PostgreSQL needs it)
    except ImportError as exc:
        del read
        raise missing_extra("url", "postgres", exc) from exc
    return read.set(drivername="postgresql+psycopg")


def _read_file(url: sa.URL) -> sa.URL:
    file = url.database or ""
    if file == "" or ":memory:" in file or url.query.get("mode") == "memory":
        advice = 'for Django\'s test database, name a file: "TEST": {"NAME": "test-shop.db"}'
        raise refuse("url", "a database that outlives the process: " + _ACCEPTS, advice=advice)
    if url.query or file.startswith("file:"):
        # SQLAlchemy drops options: a URL with mode=ro would write.
        raise refuse("url", "an SQLite file without options: " + _ACCEPTS)
    return url.set(drivername="sqlite+pysqlite", database=os.path.abspath(file))


def file_of(url: sa.URL) -> Path | None:
    """Return the file of an SQLite database, which need not exist; None for PostgreSQL."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def readable_files(file: Path | None) -> list[Path]:
    """Return the files of an SQLite database that other users of this machine can read or write, as far as is shown.

    Empty for PostgreSQL, which has no file, and on Windows.
    """
    found: list[Path] = []
    if os.name == "posix" and file is not None:
        for each in (Path(os.path.realpath(file) + end) for end in ("", "-wal", "-shm")):
            with suppress(OSError):  # it is missing, or SQLite removes it just now
                if each.stat().st_mode & 0o077:
                    found.append(each)
    return found


def _make_private(name: str) -> None:
    """Make the file of an SQLite database, if it is missing, so that only its owner can read it from the start.

    SQLite takes an empty file for a new database, and gives -wal and -shm its mode. The umask, which is the whole
    process's, stays as it is. An existing file keeps its mode. Errors are left to SQLite, which reports them.
    """
    file = os.path.realpath(name)  # through a link, as SQLite does: its target may be missing
    # Only a new file is opened: closing one ends the locks on it of all threads of this process.
    with suppress(OSError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def obstacle(file: Path) -> str:
    """Return why SQLite cannot use a file, which its own errors leave out; an empty text if nothing is found."""
    # Not by pathlib, which raises for a folder that may not be entered.
    folder = file.parent
    if not os.path.isdir(folder):
        return f"there is no directory {folder}"
    # It makes two more files beside its own.
    for each, mode in ((folder, os.W_OK | os.X_OK), (file, os.W_OK)):
        if os.path.exists(each) and not os.access(each, mode):
            return f"this user may not write to {each}"
    return "that is a directory" if os.path.isdir(file) else ""


def make_engine(url: sa.URL, *, patience: float = PATIENCE, makes_file: bool = True) -> sa.Engine:
    """Return an engine that opens no connection yet.

    Args:
        url: As `read_url` returns it.
        patience: Seconds for which SQLite waits for its locks.
        makes_file: Whether a file of SQLite that is missing is made.
    """
    # hide_parameters: they are phone numbers.
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            url,
            hide_parameters=True,
            connect_args={"timeout": PATIENCE, "check_same_thread": False, "factory": _Connection},
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
    engine = sa.create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        connect_args={name: value for name, value in _CONNECT.items() if name not in url.query},
        # Whatever the server's default is: after a wait for a lock, a transaction must see the row as it is then.
        isolation_level="READ COMMITTED",
        **_POOL,
    )
    if settings:
        sa.event.listen(engine, "do_connect", _connect)
    sa.event.listen(engine, "connect", functools.partial(_begin_session, settings=settings))
    sa.event.listen(engine, "begin", functools.partial(_begin_in_pool, settings=settings))
    sa.event.listen(engine, "handle_error", _replace_sessions)
    return engine


def is_conflict(error: Exception) -> bool:
    """Return whether PostgreSQL has ended a transaction because of another one: nothing was committed."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in {"40001", "40P01"}


def needs_new_session(error: Exception) -> bool:
    """Return whether a session of PostgreSQL has refused a transaction that a new one may make: nothing was committed.

    It has ended since this process did nothing in it, or its server no longer writes: another one has taken over.
    """
    cause = getattr(error, "orig", None)
    # Old releases of psycopg show the server's last words without their code.
    return getattr(cause, "sqlstate", None) in {"25P03", "25006"} or "idle-in-transaction timeout" in str(cause)


def is_locked(error: Exception) -> bool:
    """Return whether another transaction has held a lock for too long."""
    cause = getattr(error, "orig", None)
    is_busy = getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return is_busy or getattr(cause, "sqlstate", None) == "55P03"


class _Connection(sqlite3.Connection):
    """Connection to SQLite whose end can be noticed."""


def _before_connect(
    dialect: object, record: object, arguments: list[Any], options: dict[str, Any], *, file: str, makes_file: bool
) -> None:
    if file in _inherited:
        said = f"a transaction in {file} was open when this process was forked, and SQLite would lose data here"
        raise StoreError(f"{said}: fork while the store is idle, or start processes with spawn", outcome="not_sent")
    for opened in [each for each in list(_open.values()) if each[0] == file]:
        _require_in_place(*opened)
    if makes_file:
        _make_private(file)
    else:
        # Nobody can look and open in one step: a file that is moved away in between must not be made anew.
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
    _open[id(connection)] = file, _identity(file)
    finalize(connection, _open.pop, id(connection), None).atexit = False  # where no event tells of its end
    connection.isolation_level = None  # the driver's own BEGIN comes too late, and takes no lock
    connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}").close()
    # SQLite itself does not wait here if several processes make the database at once: `Database.open` tries again.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
    _open[id(connection)] = file, _identity(file)  # the first write may copy a file of an image


def _identity(file: str) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None if it is missing."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _require_in_place(file: str, known: tuple[int, int] | None) -> None:
    """Refuse to work in a file that its name no longer leads to: SQLite would go on in it, and nobody find it again."""
    if known is None or _identity(file) != known:
        said = f"{file} was removed or replaced while this process had it open, and what it writes would be lost"
        raise StoreError(f"{said}: stop all processes, put the file back, and start them again", outcome="not_sent")


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


def _on_begin(connection: sa.Connection) -> None:
    _require_in_place(*_open[id(connection.connection.dbapi_connection)])
    # IMMEDIATE takes SQLite's only write lock now, before the first read: two writers never read the same state.
    writes = connection.get_execution_options().get("mobilemoney_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
