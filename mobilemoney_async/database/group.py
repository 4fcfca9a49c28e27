"""Group commit: work of several tasks in one transaction, which costs one thread, connection and commit.

The first task that waits leads: it has all work run that waits at that moment, while later work gathers for the next
transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Generic, TypeVar

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.database.connections import OF_THE_DATABASE, Connections
from mobilemoney_async.database.prepared import run_pending
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.tasks import Signal
from mobilemoney_async.tracebacks import without_frames

T = TypeVar("T")

MOST_TOGETHER = 32
"""Pieces of work in one transaction: with more, each would wait longer for its own result than for the disk."""

# While others may wait for its locks, a shared transaction does not wait for theirs.
_SHORT_PATIENCE = sa.text("SET LOCAL lock_timeout = 50")


@attrs.define(eq=False)
class Waiter:
    """Task that waits until a leader has done something for it.

    Attributes:
        is_done: Whether that is done.
        turn: Wakes the task: it is done, or is to lead.
    """

    is_done: bool = attrs.field(default=False, init=False)
    turn: Signal = attrs.field(factory=Signal, init=False)

    def finish(self) -> None:
        """Note that it is done, and wake the task."""
        self.is_done = True
        self.turn.send()


W = TypeVar("W", bound=Waiter)


class Leader(Generic[W]):
    """Leader among the tasks that wait: it works for all of them, and when it leaves, the next one leads.

    Attributes:
        waiting: The tasks that wait, first come first.
    """

    def __init__(self) -> None:
        self.waiting: dict[W, None] = {}
        self._is_led = False

    async def wait(self, waiter: W, lead: Callable[[], Awaitable[object]]) -> None:
        """Wait until a task is done; without a leader, run `lead`, which works for all that wait and wakes them."""
        self.waiting[waiter] = None
        try:
            while not waiter.is_done:
                if self._is_led:
                    await waiter.turn.wait()
                    continue
                self._is_led = True
                try:
                    await lead()
                finally:
                    self._is_led = False
        finally:
            del self.waiting[waiter]
            # Also if this one was to lead next, and was cancelled in between.
            follower = next((each for each in self.waiting if not each.is_done), None)
            if follower is not None and not self._is_led:
                follower.turn.send()


@attrs.define(eq=False)
class Work(Waiter, Generic[T]):
    """Work of one task, which may run more than once, and its result.

    The thread and the task both try to take the lock `_is_taken`: the first one decides, and never releases it.

    Attributes:
        function: Gets the connection.
        writes: Whether it changes anything.
        durable: Whether its commit is on disk when it has ended.
        on_commit: Called in the thread with the result, once it is committed; returns whether to notify the readers.
        share_key: What it locks, if it may share a transaction. Work of one transaction runs in the order of these, so
            that two processes do not wait for each other.
        high_priority: Whether others wait for its end, so that it goes first.
        own_thread: Whether it waits for no thread.
        until: The time of the monotonic clock until which it may wait for locks.
        is_alone: Whether a shared transaction was rolled back, perhaps because of other work: it has to run alone.
    """

    function: Callable[[sa.Connection], T]
    writes: bool = True
    durable: bool = True
    on_commit: Callable[[T], object] | None = None
    share_key: Sequence[str] = ()
    high_priority: bool = False
    own_thread: bool = False
    until: float = attrs.field(default=0.0, init=False)
    is_alone: bool = attrs.field(default=False, init=False)
    result: Any = attrs.field(default=None, init=False)
    error: BaseException | None = attrs.field(default=None, init=False)
    _is_taken: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def take(self) -> bool:
        """Return whether the caller is the first: the thread, which runs it now, or the task, which withdraws it."""
        return self._is_taken.acquire(blocking=False)

    def run(self, connection: sa.Connection) -> None:
        """Run it inside a transaction, which it ends by an error if it writes."""
        self.error = None
        try:
            self.result = self.function(connection)
        except MobileMoneyError as exc:
            without_frames(exc)  # they hold rows
            if self.writes:
                raise
            self.error = exc

    def committed(self) -> bool:
        """Report that it is committed, unless it failed; return whether to notify the readers of changes."""
        return self.on_commit is not None and self.error is None and self.on_commit(self.result) is True

    def take_result(self) -> T:
        """Return the result or raise the error, which then keeps no frame alive."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            result: T = self.result
            return result
        finally:
            del error


async def run_in_group(
    leader: Leader[Work[Any]], work: Work[Any], connections: Connections, limiter: anyio.CapacityLimiter
) -> None:
    """Have work run, with that of other tasks, and return once it is done.

    Cancelling withdraws it before its transaction begins, and gets the cancellation after its end.
    """

    async def lead() -> None:
        await checkpoint()  # work that comes in the same moment is included
        waiting = [each for each in leader.waiting if not each.is_done]
        chosen = sorted(waiting, key=lambda each: not each.high_priority)[:MOST_TOGETHER]
        chosen.sort(key=lambda each: tuple(each.share_key))
        try:
            await run_in_thread(
                lambda: _run_together([each for each in chosen if each.take()], connections), limiter=limiter
            )
        finally:
            # If this task was cancelled before the thread began, none has run: the others go on without it.
            for each in chosen:
                each.turn.send()

    try:
        await leader.wait(work, lead)
    finally:
        if not (work.is_done or work.take()):
            with anyio.CancelScope(shield=True):
                while not work.is_done:
                    # Suppressed: the first cancellation goes on afterwards.
                    with suppress(anyio.get_cancelled_exc_class()):
                        await work.turn.wait()


def _run_together(works: Sequence[Work[Any]], connections: Connections) -> None:
    """Run work in one transaction, in a thread; where one piece fails, each has to run alone."""
    if not works:
        return
    failure: BaseException | None = None
    is_under_way, writes, durable = False, works[0].writes, works[0].durable

    def run(connection: sa.Connection) -> None:
        nonlocal is_under_way
        is_under_way = True
        if writes and connections.dialect == "postgresql":
            connection.execute(_SHORT_PATIENCE)
        _run_each(works, connection)
        is_under_way = False

    try:
        # The latest: work that has waited for longer is done, rather than all of it alone.
        until = max(works, key=attrgetter("until")).until
        try:
            connections.transact(run, writes=writes, durable=durable, until=until)
        except Exception as exc:  # noqa: BLE001 (each task raises it, or what its own transaction then shows)
            is_alone = _may_succeed_alone(exc, is_under_way=is_under_way, is_one_of_many=len(works) > 1)
            for work in works:
                work.error = connections.failure(exc) if isinstance(exc, OF_THE_DATABASE) else exc
                work.is_alone = is_alone
        has_changes = [work.committed() for work in works]
    except BaseException as exc:
        failure = exc
        raise
    finally:
        for work in works:
            work.error, work.is_done = failure or work.error, True
        failure = None
    if any(has_changes):
        connections.notify()


def _run_each(works: Sequence[Work[Any]], connection: sa.Connection) -> None:
    """Run work that is sorted by its accounts; what it leaves for later runs before more work of its account."""
    account: Sequence[str] = ()
    for work in works:
        if work.share_key[:1] == account:
            run_pending(connection)
        account = work.share_key[:1]
        work.run(connection)
    run_pending(connection)


def _may_succeed_alone(exc: Exception, *, is_under_way: bool, is_one_of_many: bool) -> bool:
    """Return whether nothing was committed, and work may still succeed in a transaction of its own."""
    if isinstance(exc, MobileMoneyError):
        return is_one_of_many
    if not isinstance(exc, OF_THE_DATABASE) or is_conflict(exc) or needs_new_session(exc):
        return True
    # Else the database is away, or the commit was broken: then all of it is there, or nothing.
    is_sound = is_under_way and not getattr(exc, "connection_invalidated", False)
    return is_sound and (is_one_of_many or is_locked(exc))


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
