"""Connections of a process to a database, which its threads use. A fork leaves them to the parent.

Critical sections: `_lock` is held while the engine is made. `_writer` is held for a whole transaction that writes
SQLite: it has one writer at a time, and threads of one process queue here, first come first served, rather than at the
file, which favours the one that asks at the right moment.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from mobilemoney_async.database.prepared import collect_pending
from mobilemoney_async.database.url import NEVER_IDLE, PATIENCE, file_of, make_engine, obstacle
from mobilemoney_async.errors import StoreError
from mobilemoney_async.tasks import monotonic
from mobilemoney_async.text import redact
from mobilemoney_async.tracebacks import without_frames

T = TypeVar("T")

OF_THE_DATABASE = (sa.exc.SQLAlchemyError, OSError)
"""Errors of the database and of the way to it."""

_NOTIFY = sa.text("NOTIFY mobilemoney_changes")
_LISTEN = f"LISTEN mobilemoney_changes; {NEVER_IDLE}"


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
        """Return a new engine, which the caller disposes of; see `url.make_engine`."""
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
