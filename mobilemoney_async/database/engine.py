"""Database of a store, SQLite or PostgreSQL, used from worker threads. Their differences end here and below.

Each piece of work is one transaction in one thread. Work that has begun runs to its end, even if the task that asked
for it is cancelled; it is bounded by the database's time-outs (`connections.PATIENCE`), not by a clock of the event
loop.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database import schema
from mobilemoney_async.database.clock import SETBACK, WallClock
from mobilemoney_async.database.connections import (
    GROUP_THREADS,
    IS_POOLED,
    OF_THE_DATABASE,
    THREADS,
    Connections,
    database_failure,
)
from mobilemoney_async.database.group import Leader, Work, is_conflict, is_locked, needs_new_session, run_in_group
from mobilemoney_async.database.threads import clock_stands_still, run_in_thread
from mobilemoney_async.database.url import read_url
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.tasks import PerLoop, loop_time, monotonic
from mobilemoney_async.tracebacks import without_frames

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

# Seconds for which a transaction waits for the locks of this process, and is run again after conflicts.
_QUEUE = 10
# Longest pause before it is run again, seconds.
_CONFLICT_PAUSE = 0.1
# Seconds for which one attempt to make the tables waits for SQLite's write lock, and between two attempts.
_LOCK_TRY = 0.5
_FIRST_PAUSE, _PAUSE_FACTOR, _LAST_PAUSE = 0.02, 1.5, 1.0
_POSTGRESQL_TIMELINE = sa.text("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
_POSTGRESQL_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp()) AS shown").columns(sa.column("shown"))
_LOCKED = "the store failed: another transaction, perhaps an open one of yours, has locked a row that this one changes"
_OWN = (
    "your own transaction is open since enqueue(), and SQLite has one writer: commit it before you await a call that "
    "writes to the store, which would wait for it"
)

# How far the host's monotonic clock, which its processes share, is ahead of an event loop's: measured once for a loop,
# so that in virtual time the store's clock is virtual too.
_clock_offset = PerLoop(lambda: monotonic() - loop_time())

# The last transaction in which a task has enqueued on SQLite: the task, and whether the transaction is still open.
_guest: ContextVar[tuple[int, Callable[[], bool]] | None] = ContextVar("mobilemoney_async_guest", default=None)

Clock = Callable[[], float]
"""Returns the store's time, seconds: PostgreSQL's own, or for SQLite the clock that all processes of the host share."""


_READING = "mobilemoney_reading"
"""Option of a transaction's connection: what it has read of PostgreSQL's clock, and when by the clock of this host."""


class _LockedError(Exception):
    """Another transaction holds a lock that one of ours has waited for long enough to leave its thread to others."""


@attrs.define(eq=False)
class _Loop:
    """Parts of one event loop: threads for single work and for groups, and the leaders of groups.

    The work of payments is in groups, and must not wait behind that of hundreds of accounts.
    """

    single: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(THREADS - GROUP_THREADS))
    group: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(GROUP_THREADS))
    # For reads, for writes and for durable writes.
    leaders: tuple[Leader[Work[Any]], ...] = attrs.field(factory=lambda: (Leader(), Leader(), Leader()))


_loops = PerLoop(_Loop)


class Database:
    """Database that runs transactions in worker threads.

    Every async method raises `StoreError` if the database fails or cannot be reached.

    Raises:
        InvalidRequest: The URL is neither of SQLite with a file nor of PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self._url = read_url(url)
        self._connections = Connections(self._url)
        self.file: Path | None = self._connections.file  # of SQLite, which need not exist
        self.dialect: str = self._url.get_backend_name()
        self.wall_clock: WallClock = WallClock(time.time if self.dialect == "sqlite" else _steady_clock())
        self.clients: int = 0  # open ones, of all accounts
        self.can_listen: bool = self.dialect == "postgresql"  # and no pooler is between, which the first use shows
        self._is_prepared = False
        self._last_reading = (-math.inf, 0.0)  # of PostgreSQL's clock, and when by the clock of this host

    @property
    def name(self) -> str:
        """Its URL without the password."""
        return self._url.render_as_string(hide_password=True)

    def __repr__(self) -> str:
        return f"<Database {self.name}>"

    async def open(self) -> None:
        """Make the tables if they are missing, and read the clock, unless that was done before.

        While another process makes them, this waits. Cancelling ends the wait at once.
        """
        until, pause = monotonic() + _QUEUE, _FIRST_PAUSE
        while not self._is_prepared:
            # While the database is away each attempt waits for its time-out; a hundred tasks must not do so one by one.
            if monotonic() > until:
                raise database_failure()
            if not await run_in_thread(self._try_to_prepare, limiter=self._threads().single):
                await anyio.sleep(pause)
                pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)

    async def read(self, work: Callable[[sa.Connection], T], *, share_key: Sequence[str] = ()) -> T:
        """Run work that changes nothing, and return its result; `share_key` as for `write`."""
        return await self._run(Work(work, writes=False, durable=False, share_key=share_key))

    async def write(
        self,
        work: Callable[[sa.Connection], T],
        *,
        durable: bool = True,
        on_commit: Callable[[T], object] | None = None,
        share_key: Sequence[str] = (),
        high_priority: bool = False,
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
            on_commit: Called in the thread with the result, once it is committed: also if the task that waits for it is
                cancelled in between and never gets it. If it returns True, the readers of changes are notified.
            share_key: Names the row that short work locks, if that work may share a transaction with the work of other
                tasks (`database.group`). Where the work of another fails, this work runs again, alone. Empty: it does
                not share.
            high_priority: Whether the work ends what other work has begun: in a busy process it goes first.

        Raises:
            StoreError: The database failed, or cannot be reached; nothing was changed, or after a broken commit
                everything was. On SQLite also if this task's own transaction is open, since it would wait for itself.
        """
        return await self._run(
            Work(work, durable=durable, on_commit=on_commit, share_key=share_key, high_priority=high_priority)
        )

    async def timed(
        self,
        work: Callable[[sa.Connection, Clock], T],
        *,
        durable: bool = False,
        writes: bool = True,
        share_key: Sequence[str] = (),
        own_thread: bool = False,
    ) -> tuple[T, float]:
        """Run work that needs the time which all processes share.

        Args:
            work: As for `write`; its second argument returns that time. Call it once the rows are locked.
            durable: As for `write`.
            writes: Whether the work changes anything.
            share_key: As for `write`.
            own_thread: Whether it has a thread of its own: for a lease that must not end while hundreds of others wait.

        Returns:
            The work's result, and the seconds to add to a time of the store to get a time of this event loop.
        """
        is_server, clock_offset = self.dialect == "postgresql", _clock_offset.of(Database)
        began_at, began = loop_time() + clock_offset, monotonic()
        # Waiting for the lock takes real time, but none of a virtual clock: it would have to go back afterwards.
        pace = 0.0 if clock_stands_still() else 1.0

        def timed(connection: sa.Connection) -> tuple[T, float, float]:
            seen = at = 0.0

            def clock() -> float:
                nonlocal seen, at
                seen = self._time(connection) if is_server else began_at + pace * (monotonic() - began)
                at = monotonic()
                return seen

            result = work(connection, clock)
            seen = seen or clock()
            return result, seen, at

        work_of = Work(timed, writes=writes, durable=durable, share_key=share_key, own_thread=own_thread)
        result, seen, at = await self._run(work_of)
        # Everything since, the commit above all, took time of its own.
        return result, loop_time() - (monotonic() - at) - seen if is_server else -clock_offset

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

    async def open_listener(self) -> Any:
        """Open a connection of the driver that listens for new changes, and leave it open."""
        await self.open()
        until = monotonic() + _QUEUE
        return await run_in_thread(lambda: self._connections.open_listener(until), limiter=self._threads().single)

    def require_file(self) -> None:
        """Make no file of SQLite that is missing; called before the first use."""
        self._connections.makes_file = False

    async def peek(self, work: Callable[[sa.Connection], T]) -> T:
        """Run work without making the tables, and roll it back."""

        def roll_back() -> T:
            try:
                with self._connections.engine(monotonic() + _QUEUE).connect() as connection:
                    return work(connection)
            except OF_THE_DATABASE as exc:
                raise self._connections.failure_alone(exc) from None

        return await run_in_thread(roll_back, limiter=self._threads().single)

    def close(self) -> None:
        """Close the connections that are idle. The next work opens new ones."""
        self._connections.close()

    async def _run(self, work: Work[T]) -> T:
        if work.writes and self.dialect == "sqlite":
            _require_no_guest()
        if not self._is_prepared:
            await self.open()
        work.until = monotonic() + _QUEUE
        if work.share_key:
            leader = _loops.of(self).leaders[work.writes + work.durable]
            await run_in_group(leader, work, self._connections, self._threads().group)
            if not work.is_alone:
                return work.take_result()
            work.until = monotonic() + _QUEUE
        pause, limiter = _FIRST_PAUSE, anyio.CapacityLimiter(1) if work.own_thread else self._threads().single
        while True:
            try:
                return await run_in_thread(lambda: self._run_alone(work), limiter=limiter)
            except _LockedError:
                if monotonic() + pause > work.until:
                    raise database_failure(_LOCKED) from None
                # Not in the thread: a wait for a row of one account must not keep all others waiting.
                await anyio.sleep(random.uniform(0, pause))  # noqa: S311 (no secret)
                pause = min(_LAST_PAUSE, pause * _PAUSE_FACTOR)

    def _run_alone(self, work: Work[T]) -> T:
        """Run work in a transaction of its own, in a thread; again after conflicts, of which nothing was committed."""
        connections, is_new = self._connections, False
        while True:
            try:
                connections.transact(work.run, writes=work.writes, durable=work.durable, until=work.until)
            except OF_THE_DATABASE as exc:
                if self.dialect == "postgresql" and is_locked(exc) and monotonic() < work.until:
                    without_frames(exc)
                    raise _LockedError from None
                if needs_new_session(exc) and not is_new:
                    is_new, work.until = True, monotonic() + _QUEUE
                elif not is_conflict(exc) or monotonic() + _CONFLICT_PAUSE > work.until:
                    raise connections.failure_alone(exc) from None
            except MobileMoneyError as exc:
                without_frames(exc)  # they hold rows
                raise
            except (ValueError, TypeError, ArithmeticError, RecursionError) as exc:
                # A row that was edited: SQLite keeps any text as a time. Not as the cause, as above.
                said = f"the store holds a row that cannot be read ({type(exc).__name__})"
                without_frames(exc)
                raise StoreError(said, outcome="not_sent") from None
            else:
                if work.committed():
                    connections.notify()
                return work.take_result()
            time.sleep(random.uniform(0, _CONFLICT_PAUSE))  # noqa: S311 (no secret)

    def _threads(self) -> _Loop:
        # Files share theirs. Work for a server that does not answer must not hold up that for another server.
        return _loops.of(self if self.dialect == "postgresql" else Database)

    def _try_to_prepare(self) -> bool:
        """Make the tables unless that is done; return False if another thread or process does it now."""
        connections = self._connections
        connections.leave_to_parent()
        if not connections.preparing.acquire(blocking=False):
            return False
        try:
            # A read: on SQLite it does not wait for a process that makes them.
            found = connections.transact(self._look, writes=False, durable=False, until=monotonic() + _QUEUE)
            if found is None and not self._make_tables():
                return False
            self._is_prepared = True
        except OF_THE_DATABASE as exc:
            if is_locked(exc):
                return False
            raise connections.failure_alone(exc) from None
        finally:
            connections.preparing.release()
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
        engine = self._connections.make_engine(patience=_LOCK_TRY)
        try:
            with engine.connect() as connection, connection.execution_options(mobilemoney_writes=True).begin():
                return schema.make_tables(connection)
        except sa.exc.DBAPIError as exc:
            if not is_conflict(exc):
                raise
            return False
        finally:
            engine.dispose()

    def _time(self, connection: sa.Connection) -> float:
        """Return the time of PostgreSQL, which is asked for it once a transaction: the work of many may share one."""
        reading = connection.get_execution_options().get(_READING)
        if reading is None:
            reading = self._read_clock(connection), monotonic()
            connection.execution_options(**{_READING: reading})
        shown, read_at = reading
        return float(shown + monotonic() - read_at)

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


def timeline(connection: sa.Connection) -> int | None:
    """Return PostgreSQL's timeline, which each failover and recovery changes; None for SQLite, or if it is hidden.

    It is read once for each session, which stays with its server; behind a pooler a session is a transaction's.
    """
    known = connection.info
    if connection.dialect.name == "postgresql" and ("timeline" not in known or IS_POOLED in known):
        known["timeline"] = None
        try:
            with connection.begin_nested():
                known["timeline"] = int(connection.execute(_POSTGRESQL_TIMELINE).scalar_one(), 16)
        except sa.exc.DBAPIError as exc:
            if exc.connection_invalidated:
                raise
    return known.get("timeline")


def note_guest(is_open: Callable[[], bool]) -> None:
    """Note a transaction of the current task's own in which it enqueues on SQLite, and what says whether it is open."""
    if (task := _current_task()) is not None:
        _guest.set((task, is_open))


def _require_no_guest() -> None:
    """Raise `StoreError` if the current task has enqueued on SQLite, and its own transaction is still open.

    A write of this library would wait for the end of that transaction, which this task alone can bring about.
    """
    found = _guest.get()
    if found is not None and found[0] == _current_task() and found[1]():
        raise StoreError(_OWN, outcome="not_sent")


def _current_task() -> int | None:
    try:
        return anyio.get_current_task().id
    except RuntimeError:
        return None


def _steady_clock() -> Callable[[], float]:
    """Return a clock that begins with that of the host, is not set with it, and goes on while the host sleeps."""
    # The clock of event loops stops then, but for Windows, which has no other one.
    kind = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    read = monotonic if kind is None else partial(time.clock_gettime, kind)
    began = time.time() - read()
    return lambda: began + read()
