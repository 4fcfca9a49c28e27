"""Database of a store, SQLite or PostgreSQL, used from worker threads. Their differences end here and in `url`.

Every piece of work is one transaction in one thread. A piece that has begun runs to its end, even if the task that
asked for it is cancelled; it is bounded by the database's time-outs (`url.PATIENCE`), not by a clock of the event loop.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import sqlalchemy as sa
from anyio.lowlevel import RunVar

from mobilemoney_async.database import schema
from mobilemoney_async.database.clock import SETBACK, WallClock
from mobilemoney_async.database.group import AfterCommit, Group, Piece, run_together
from mobilemoney_async.database.guest import require_no_guest
from mobilemoney_async.database.threads import clock_stands_still, run_in_thread
from mobilemoney_async.database.url import (
    GROUP_THREADS,
    IS_POOLED,
    THREADS,
    file_of,
    is_conflict,
    is_locked,
    make_engine,
    needs_new_session,
    obstacle,
    read_url,
    readable_files,
)
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.host_clock import monotonic
from mobilemoney_async.tracebacks import without_frames
from mobilemoney_async.values import redact

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

# Seconds for which a transaction waits for the locks of this process, and is run again after conflicts.
_QUEUE = 10
# Longest pause before it is run again, seconds.
_CONFLICT_PAUSE = 0.1
# Seconds for which one attempt to make the tables waits for SQLite's write lock, and between two attempts.
_LOCK_TRY = 0.5
_FIRST_PAUSE, _PAUSE_FACTOR, _LAST_PAUSE = 0.02, 1.5, 1.0
_BUSY = "the store failed: it is busy, or the database does not answer"
_POSTGRESQL_TIMELINE = sa.text("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
_NOTIFY = sa.text("SELECT pg_notify(:channel, '')")
_POSTGRESQL_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp()) AS shown").columns(sa.column("shown"))

_Threads = tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]
_threads: RunVar[weakref.WeakKeyDictionary[object, _Threads]] = RunVar("mobilemoney_async_store_threads")
_own_thread: ContextVar[anyio.CapacityLimiter | None] = ContextVar("mobilemoney_async_own_thread", default=None)
_Groups = tuple[Group, Group, Group]
_groups: RunVar[weakref.WeakKeyDictionary[Database, _Groups]] = RunVar("mobilemoney_async_store_groups")
_loop_clocks: RunVar[float] = RunVar("mobilemoney_async_store_clock")

Clock = Callable[[], float]
"""Returns the store's time, seconds: PostgreSQL's own, or for SQLite the clock that all processes of the host share."""


class _LockedError(Exception):
    """Another transaction holds a lock that one of ours has waited for long enough to leave its thread to others."""


class Database:
    """Database that runs transactions in worker threads.

    Every async method raises `StoreError` if the database fails or cannot be reached.

    Raises:
        InvalidRequest: The URL is neither of SQLite with a file nor of PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self._url = read_url(url)
        self.dialect: str = self._url.get_backend_name()
        self.wall_clock: WallClock = WallClock(time.time if self.dialect == "sqlite" else _steady_clock())
        self.clients: int = 0  # open ones, of all accounts
        self.can_listen: bool = self.dialect == "postgresql"  # and no pooler is between, which the first use shows
        self.makes_file: bool = True  # whether a file of SQLite that is missing is made; set before the first use
        self._is_prepared = False
        self._last_reading = (-math.inf, 0.0)  # of PostgreSQL's clock, and when by the clock of this host
        self._engine: sa.Engine | None = None
        self._start_afresh()

    def __repr__(self) -> str:
        return f"<Database {self._url.render_as_string(hide_password=True)}>"

    async def open(self) -> None:
        """Make the tables if they are missing, and read the clock, unless that was done before.

        While another process makes them, this waits. Cancelling ends the wait at once.
        """
        until, pause = monotonic() + _QUEUE, _FIRST_PAUSE
        while not self._is_prepared:
            # While the database is away each attempt waits for its time-out; a hundred tasks must not do so one by one.
            if monotonic() > until:
                raise _database_error(_BUSY)
            if not await self._in_thread(self._try_to_prepare):
                await anyio.sleep(pause)
                pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)

    async def read(self, work: Callable[[sa.Connection], T], *, joins: Sequence[str] = ()) -> T:
        """Run work that changes nothing, and return its result; `joins` as for `write`."""
        if joins:
            return await self._join(work, joins, None, writes=False, durable=False)
        return await self._alone(work, writes=False, durable=False, then=None)

    async def write(
        self,
        work: Callable[[sa.Connection], T],
        *,
        durable: bool = True,
        then: AfterCommit | None = None,
        joins: Sequence[str] = (),
        is_end: bool = False,
    ) -> T:
        """Run work in one transaction and return its result, once that is committed.

        Once begun it is not cancelled; a task that is cancelled in between gets the cancellation after its end.

        Args:
            work: Gets a connection inside a transaction that no other writer of SQLite shares; on PostgreSQL it locks
                the rows that it reads and changes. May run in any thread, and more than once, if the database ends a
                transaction because of another's. An exception rolls everything back.
            durable: Whether the commit of SQLite is on disk when this returns. Data that matters only to processes of
                this machine need not be: they are lost with its power too. That of PostgreSQL always is: after a crash
                its server is back in a second, while they are sending.
            then: Called in the thread with the result, once it is committed: also if the task that waits for it is
                cancelled in between and never gets it. It may return a channel, which is then notified.
            joins: Names the row that short work locks, if that work may share a transaction with the work of other
                tasks (`database.group`). Where the work of another fails, this work runs again, alone. Empty: it does
                not share.
            is_end: Whether the work ends what another piece of work has begun: in a busy process it goes first.

        Raises:
            StoreError: The database failed, or cannot be reached; nothing was changed, or after a broken commit
                everything was. On SQLite also if this task's own transaction is open, since it would wait for itself.
        """
        if self.dialect == "sqlite":
            require_no_guest()
        if joins:
            return await self._join(work, joins, then, writes=True, durable=durable, is_end=is_end)
        return await self._alone(work, writes=True, durable=durable, then=then)

    async def timed(
        self,
        work: Callable[[sa.Connection, Clock], T],
        *,
        durable: bool = False,
        writes: bool = True,
        joins: Sequence[str] = (),
    ) -> tuple[T, float]:
        """Run work that needs the time which all processes share.

        Args:
            work: As for `write`; its second argument returns that time. Call it once the rows are locked.
            durable: As for `write`.
            writes: Whether the work changes anything.
            joins: As for `write`.

        Returns:
            The work's result, and the seconds to add to a time of the store to get a time of this event loop.
        """
        if self.dialect == "postgresql":
            return await self._timed_by_server(work, durable=durable, writes=writes, joins=joins)
        ahead = _ahead_of_the_host()
        began_at, began = anyio.current_time() + ahead, monotonic()
        # Waiting for the lock takes real time, but none of a virtual clock: it would have to go back afterwards.
        pace = 0.0 if clock_stands_still() else 1.0

        def timed(connection: sa.Connection) -> T:
            return work(connection, lambda: began_at + pace * (monotonic() - began))

        result = await (self.write(timed, durable=durable, joins=joins) if writes else self.read(timed))
        return result, -ahead

    async def _timed_by_server(
        self, work: Callable[[sa.Connection, Clock], T], *, durable: bool, writes: bool, joins: Sequence[str]
    ) -> tuple[T, float]:
        def timed(connection: sa.Connection) -> tuple[T, float, float]:
            seen = at = 0.0

            def clock() -> float:
                nonlocal seen, at
                seen = self._read_clock(connection)
                at = monotonic()
                return seen

            result = work(connection, clock)
            if not seen:
                clock()
            return result, seen, at

        result, seen, at = await (self.write(timed, durable=durable, joins=joins) if writes else self.read(timed))
        # Everything since, the commit above all, took time of its own.
        return result, anyio.current_time() - (monotonic() - at) - seen

    def time_of_transaction(self, utcnow: Callable[[], datetime]) -> Callable[[sa.Connection], datetime]:
        """Return what tells a transaction the time, where it decides what cannot be taken back: by PostgreSQL's clock.

        Another `utcnow` than the store's counts instead. It is asked here: no other thread may be able to read it.
        """
        if utcnow != self.wall_clock.utcnow:
            at = utcnow()
            return lambda _: at
        if self.dialect == "sqlite":
            return lambda _: utcnow()
        return lambda connection: datetime.fromtimestamp(self._read_clock(connection), UTC)

    async def open_driver(self, statement: str) -> Any:
        """Open a connection of the driver, outside every transaction, execute a statement, and leave it open."""
        await self.open()
        until = monotonic() + _QUEUE
        return await self._in_thread(lambda: self._open_driver(statement, until))

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database, which need not exist; None for PostgreSQL."""
        return file_of(self._url)

    def readable_files(self) -> list[Path]:
        """Return the files of an SQLite database that other users of this machine can read or write."""
        return readable_files(self._url)

    async def peek(self, work: Callable[[sa.Connection], T]) -> T:
        """Run work on a connection of its own, without making the tables, and roll it back."""

        def roll_back() -> T:
            engine = make_engine(self._url, makes_file=self.makes_file)
            try:
                with engine.connect() as connection, connection.begin() as transaction:
                    try:
                        return work(connection)
                    finally:
                        transaction.rollback()
            except (sa.exc.SQLAlchemyError, OSError) as exc:
                raise self._failed_alone(exc) from None
            finally:
                engine.dispose()

        return await self._in_thread(roll_back)

    def close(self) -> None:
        """Close the connections that are idle. The next work opens new ones."""
        with self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self._engine.dispose()

    def _notify(self, channels: Iterable[str | None]) -> None:
        """Notify the processes that listen to channels of PostgreSQL; called in a thread. A failure does not matter.

        In a transaction of its own: one that also writes would hold up the commits of all others.
        """
        if self.dialect == "postgresql":
            for channel in filter(None, channels):
                with suppress(sa.exc.SQLAlchemyError, OSError, StoreError):
                    engine = self._ready_engine(monotonic() + _QUEUE)
                    with engine.begin() as connection:
                        connection.execute(_NOTIFY, {"channel": channel})

    def _failed(self, exc: Exception) -> StoreError:
        cause = getattr(exc, "orig", None) or exc
        said = f"the store failed: {type(cause).__name__}: {redact(str(cause))}"
        if self.file is not None:
            said += f" ({': '.join(filter(None, [str(self.file), obstacle(self.file)]))})"
        return _database_error(said)

    def _failed_alone(self, exc: Exception) -> StoreError:
        """Return our error for one of the database, which is its context then, but shows nothing any more.

        A driver quotes the values of a row, phone numbers among them, and its frames hold the password of the database.
        """
        failed = self._failed(exc)
        without_frames(exc)
        return failed

    async def _in_thread(self, work: Callable[[], T], *, is_group: bool = False) -> T:
        # Files share theirs. Work for a server that does not answer must not hold up that for another server.
        owner = self if self.dialect == "postgresql" else Database
        return await run_in_thread(work, limiter=_own_thread.get() or _shared_threads(owner)[is_group])

    def _start_afresh(self) -> None:
        """Leave inherited state to the parent of a fork: sockets that it still uses, locks that its threads hold."""
        if self._engine is not None:
            self._engine.dispose(close=False)
        self._engine = None
        self._listening = weakref.WeakSet[Any]()  # connections of the driver
        self._pid = os.getpid()
        # Held while the engine is made, and while `_listening` changes.
        self._lock = threading.Lock()
        # Held while the tables are made. No thread waits for it: tasks wait in their event loops.
        self._preparing = threading.Lock()
        # Held for a whole transaction. SQLite has one writer at a time: threads of one process queue here, first come
        # first served, rather than at the file, which favours the one that asks at the right moment.
        self._writer = threading.Lock()

    def _open_driver(self, statement: str, until: float) -> Any:
        try:
            pooled = self._ready_engine(until).raw_connection()
        except (sa.exc.SQLAlchemyError, OSError) as exc:
            raise self._failed_alone(exc) from None
        driver: Any = pooled.driver_connection
        pooled.detach()  # the pool may open another one in its place
        try:
            driver.autocommit = True
            driver.execute(statement)
        except Exception as exc:  # noqa: BLE001 (the driver's own)
            driver.close()
            raise self._failed_alone(exc) from None
        with self._lock:
            self._listening.add(driver)
        return driver

    def _hang_up(self) -> None:
        """End the connections that listen: they may be those of a server that notifies nobody any more."""
        with self._lock:
            listening = list(self._listening)
        for driver in listening:
            # Not closed: another thread reads it. The driver's own error shows that it is closed already.
            with suppress(Exception), socket.fromfd(driver.fileno(), socket.AF_INET, socket.SOCK_STREAM) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def _transact(self, work: Callable[[sa.Connection], T], *, writes: bool, durable: bool, until: float) -> T:
        engine = self._ready_engine(until)
        is_new = False
        while True:
            try:
                return self._run(engine, work, writes=writes, durable=durable, until=until)
            except (sa.exc.SQLAlchemyError, OSError) as exc:
                # Of a conflict with another transaction nothing was committed, even if the commit itself shows it.
                if self.dialect == "postgresql" and is_locked(exc) and monotonic() < until:
                    without_frames(exc)
                    raise _LockedError from None
                if needs_new_session(exc) and not is_new:
                    is_new, until = True, monotonic() + _QUEUE
                elif not is_conflict(exc) or monotonic() > until:
                    raise self._failed_alone(exc) from None
            except MobileMoneyError as exc:
                without_frames(exc)  # they hold rows
                raise
            except (ValueError, TypeError, ArithmeticError, RecursionError) as exc:
                # A row that was edited: SQLite keeps any text as a time. Not as the cause, as above.
                said = f"the store holds a row that cannot be read ({type(exc).__name__})"
                without_frames(exc)
                raise StoreError(said, outcome="not_sent") from None
            time.sleep(random.uniform(0, _CONFLICT_PAUSE))  # noqa: S311 (no secret)

    async def _alone(
        self, work: Callable[[sa.Connection], T], *, writes: bool, durable: bool, then: AfterCommit | None
    ) -> T:
        """Run work in a transaction of its own."""
        if not self._is_prepared:
            await self.open()
        until, pause = monotonic() + _QUEUE, _FIRST_PAUSE

        def transact() -> T:
            result = self._transact(work, writes=writes, durable=durable, until=until)
            if then is not None:
                self._notify({then(result)})
            return result

        while True:
            try:
                return await self._in_thread(transact)
            except _LockedError:
                # Not in the thread: whoever wants a row of one account must not keep all others waiting.
                await anyio.sleep(random.uniform(0, pause))  # noqa: S311 (no secret)
                pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)

    async def _join(
        self,
        work: Callable[[sa.Connection], T],
        name: Sequence[str],
        then: AfterCommit | None,
        *,
        writes: bool,
        durable: bool,
        is_end: bool = False,
    ) -> T:
        if not self._is_prepared:
            await self.open()
        piece = Piece(work, tuple(name), monotonic() + _QUEUE, then, is_end)
        group = _group(self, writes=writes, durable=durable)

        def run(shared: Callable[[sa.Connection], None], until: float) -> None:
            self._run(self._ready_engine(until), shared, writes=writes, durable=durable, until=until)

        def run_pieces(pieces: Sequence[Piece]) -> None:
            self._notify(run_together(pieces, run, self._failed, writes=writes))

        await group.run(piece, lambda pieces: self._in_thread(lambda: run_pieces(pieces), is_group=True))
        if piece.is_alone:
            return await self._alone(work, writes=writes, durable=durable, then=then)
        result: T = piece.take_result()
        return result

    def _run(
        self, engine: sa.Engine, work: Callable[[sa.Connection], T], *, writes: bool, durable: bool, until: float
    ) -> T:
        if self.dialect == "postgresql" or not writes:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except sa.exc.DBAPIError as exc:
                if exc.connection_invalidated:
                    self._hang_up()
                raise
        with _held(self._writer, until), engine.connect() as connection:
            # Outside a transaction, the only place where SQLite lets it change.
            driver: Any = connection.connection.dbapi_connection
            driver.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with connection.execution_options(mobilemoney_writes=True).begin():
                return work(connection)

    def _ready_engine(self, until: float) -> sa.Engine:
        if self._pid != os.getpid():
            self._start_afresh()
        with _held(self._lock, until):
            if self._engine is None:
                self._engine = make_engine(self._url, makes_file=self.makes_file)
                # A store that is never closed leaves no connection behind.
                weakref.finalize(self, _dispose, self._engine, self._pid)
            return self._engine

    def _try_to_prepare(self) -> bool:
        """Make the tables unless that is done; return False if another thread or process does it now."""
        if self._pid != os.getpid():
            self._start_afresh()
        if not self._preparing.acquire(blocking=False):
            return False
        try:
            # A read: on SQLite it does not wait for a process that makes them.
            found = self._run(
                self._ready_engine(monotonic() + _QUEUE), self._look, writes=False, durable=False, until=0
            )
            if found is None and not self._make_tables():
                return False
            self._is_prepared = True
        except (sa.exc.SQLAlchemyError, OSError) as exc:
            raise self._failed_alone(exc) from None
        finally:
            self._preparing.release()
        return True

    def _look(self, connection: sa.Connection) -> int | None:
        if self.dialect == "postgresql":
            self._read_clock(connection)
            self.can_listen = IS_POOLED not in connection.info
        found = schema.find_version(connection)
        if found is not None:
            schema.require_known(found)
        return found

    def _make_tables(self) -> bool:
        """Try to make the tables; return False if locks of others are in the way."""
        # A connection of its own, which waits for a lock for a moment only: the task waits for longer, and may be
        # cancelled in between.
        engine = make_engine(self._url, patience=_LOCK_TRY, makes_file=self.makes_file)
        try:
            with engine.connect() as connection, connection.execution_options(mobilemoney_writes=True).begin():
                return schema.make_tables(connection)
        except sa.exc.DBAPIError as exc:
            if not (is_locked(exc) or is_conflict(exc)):
                raise
            return False
        finally:
            engine.dispose()

    def _read_clock(self, connection: sa.Connection) -> float:
        """Return the time of PostgreSQL, seconds since 1970, and correct the wall clock by it."""
        asked_at, began = self.wall_clock.host(), monotonic()
        shown = float(connection.execute(_POSTGRESQL_CLOCK).scalar_one())
        self.wall_clock.seen(shown, after=asked_at, before=self.wall_clock.host())
        last, self._last_reading = self._last_reading, (shown, monotonic())
        # Of two readings the second one began after the first had ended; those of other threads may overlap.
        back = last[0] + max(0.0, began - last[1]) - shown
        if back > SETBACK:
            logger.warning("the clock of the database has gone back by %.1f s: what is timed comes later", back)
        return shown


@contextmanager
def ahead() -> Iterator[None]:
    """Run this task's work in a thread of its own: for a lease that must not end while hundreds of others wait."""
    token = _own_thread.set(anyio.CapacityLimiter(1))
    try:
        yield
    finally:
        _own_thread.reset(token)


def _shared_threads(owner: object) -> _Threads:
    """Return the threads of this event loop for an owner of connections: for single work, and for groups.

    The work of payments is in groups, and must not wait behind that of hundreds of accounts.
    """
    try:
        limiters = _threads.get()
    except LookupError:
        limiters = weakref.WeakKeyDictionary()
        _threads.set(limiters)
    if owner not in limiters:
        limiters[owner] = (anyio.CapacityLimiter(THREADS - GROUP_THREADS), anyio.CapacityLimiter(GROUP_THREADS))
    return limiters[owner]


def _group(database: Database, *, writes: bool, durable: bool) -> Group:
    """Return the group of this event loop for reads, for writes or for durable writes of a database."""
    try:
        groups = _groups.get()
    except LookupError:
        groups = weakref.WeakKeyDictionary()
        _groups.set(groups)
    if database not in groups:
        groups[database] = (Group(), Group(), Group())
    return groups[database][writes + durable]


def timeline(connection: sa.Connection) -> int | None:
    """Return PostgreSQL's timeline, which each failover and recovery changes; None for SQLite, or if it is hidden.

    It is read once for each session, which stays with its server; behind a pooler a session is a transaction's.
    """
    known = connection.info
    if connection.dialect.name == "postgresql" and ("timeline" not in known or IS_POOLED in known):
        known["timeline"] = None
        with suppress(sa.exc.DBAPIError), connection.begin_nested():
            known["timeline"] = int(connection.execute(_POSTGRESQL_TIMELINE).scalar_one(), 16)
    return known.get("timeline")


@contextmanager
def _held(lock: threading.Lock, until: float) -> Iterator[None]:
    """Hold a lock, but wait for it only until a deadline of the monotonic clock, which waiting for a thread counts to.

    While the database is away each holder waits for its time-out; a queue of a hundred must not do so one by one.

    Raises:
        StoreError: It is too late.
    """
    left = until - monotonic()
    if left <= 0 or not lock.acquire(timeout=left):
        raise _database_error(_BUSY)
    try:
        yield
    finally:
        lock.release()


def _steady_clock() -> Callable[[], float]:
    """Return a clock that begins with that of the host, and is not set with it."""
    began = time.time() - monotonic()
    return lambda: began + monotonic()


def _ahead_of_the_host() -> float:
    """Return how far the host's monotonic clock, which its processes share, is ahead of this event loop's.

    Measured once for a loop, so that in virtual time the store's clock is virtual too.
    """
    try:
        return _loop_clocks.get()
    except LookupError:
        ahead = monotonic() - anyio.current_time()
        _loop_clocks.set(ahead)
        return ahead


def _dispose(engine: sa.Engine, pid: int) -> None:
    """Close the idle connections, unless they are those of the process that this one was forked from."""
    if os.getpid() == pid:
        engine.dispose()


def _database_error(said: str) -> StoreError:
    error = StoreError(said, outcome="not_sent")
    error.is_database = True
    return error
