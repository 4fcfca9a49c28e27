"""Group commit: pieces of work of several tasks in one transaction, which costs one thread, connection and commit.

The first task that waits leads: it has all pieces run that wait at that moment, while later ones gather for the next
transaction. When it leaves, another one leads.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.database.url import is_conflict, is_locked, needs_new_session
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.tracebacks import without_frames

MOST_TOGETHER = 32
"""Pieces of work in one transaction: with more, each would wait longer for its own result than for the disk."""

# While others may wait for its locks, a shared transaction does not wait for theirs.
_SHORT_PATIENCE = sa.text("SET LOCAL lock_timeout = 50")

_OF_THE_DATABASE = (sa.exc.SQLAlchemyError, OSError)

AfterCommit = Callable[[Any], str | None]
"""Called in the thread with the result of work, once it is committed; returns a channel to notify, or None."""


@attrs.define(eq=False)
class Piece:
    """Work of one task, which may run more than once, and its result.

    The thread and the task both try to take the lock `_is_taken`: the first one decides, and never releases it.

    Attributes:
        work: Gets the connection.
        name: What it locks. Those of one transaction run in the order of their names, so that two processes do not wait
            for each other.
        until: The time of the monotonic clock until which it may wait for locks.
        then: Called in the thread after the commit, or None.
        is_end: Whether it ends what others wait for, and goes first.
        is_withdrawn: Whether its task has left before it began.
        is_done: Whether its transaction has ended, so that there is a result or an error.
        is_alone: Whether that was rolled back, perhaps because of another piece: it has to run in one of its own.
        turn: Wakes its task: it is done, or is to lead.
    """

    work: Callable[[sa.Connection], Any]
    name: tuple[str, ...]
    until: float
    then: AfterCommit | None = None
    is_end: bool = False
    result: Any = None
    error: BaseException | None = None
    is_withdrawn: bool = False
    is_done: bool = False
    is_alone: bool = False
    turn: anyio.Event = attrs.field(factory=anyio.Event)
    _is_taken: threading.Lock = attrs.field(factory=threading.Lock)

    def begin(self) -> bool:
        """Return whether the thread may run it; if not, its task has left."""
        return self._is_taken.acquire(blocking=False)

    def withdraw(self) -> bool:
        """Return whether it never runs; if not, the thread has begun it."""
        self.is_withdrawn = self._is_taken.acquire(blocking=False)
        return self.is_withdrawn

    async def wait(self) -> None:
        """Wait until it is done, or is to lead."""
        self.turn = anyio.Event()
        await self.turn.wait()

    def take_result(self) -> Any:
        """Return the result or raise the error, which then keeps no frame alive."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.result
        finally:
            del error


class Group:
    """Pieces of work of one event loop that may share a transaction."""

    def __init__(self) -> None:
        self._waiting: list[Piece] = []
        self._is_led = False

    async def run(self, piece: Piece, run: Callable[[Sequence[Piece]], Awaitable[object]]) -> None:
        """Have a piece of work run, with those of other tasks, and return once it is done.

        Cancelling withdraws it before its transaction begins, and gets the cancellation after its end.

        Args:
            piece: The work.
            run: Runs pieces in a thread, from `Piece.begin` until each that has begun is done.
        """
        self._waiting.append(piece)
        try:
            while not piece.is_done:
                # A task that is cancelled here withdraws its piece, or waits for its end.
                await (piece.wait() if self._is_led else self._lead(run))
        finally:
            if not (piece.is_done or piece.withdraw()):
                with anyio.CancelScope(shield=True):
                    while not piece.is_done:
                        # Suppressed: the first cancellation goes on afterwards.
                        with suppress(anyio.get_cancelled_exc_class()):
                            await piece.wait()
            if piece.is_withdrawn and piece in self._waiting:
                self._waiting.remove(piece)
            self._hand_on()

    async def _lead(self, run: Callable[[Sequence[Piece]], Awaitable[object]]) -> None:
        """Have the pieces run that wait."""
        pieces: list[Piece] = []
        self._is_led = True
        try:
            await checkpoint()  # work that comes in the same moment is included
            waiting = sorted(self._waiting, key=lambda piece: not piece.is_end)
            pieces, self._waiting = waiting[:MOST_TOGETHER], waiting[MOST_TOGETHER:]
            await run(sorted(pieces, key=lambda piece: piece.name))
        finally:
            # If this task was cancelled before the thread began, none has run: the others go on without it.
            self._waiting[:0] = [each for each in pieces if not (each.is_done or each.is_withdrawn)]
            self._is_led = False
            for each in pieces:
                each.turn.set()

    def _hand_on(self) -> None:
        """Let the next task lead."""
        if self._waiting and not self._is_led:
            self._waiting[0].turn.set()


def run_together(
    pieces: Sequence[Piece],
    run: Callable[[Callable[[sa.Connection], None], float], None],
    failed: Callable[[Exception], StoreError],
    *,
    writes: bool,
) -> set[str | None]:
    """Run pieces of work in one transaction, in a thread; where one of them fails, each has to run alone.

    Args:
        pieces: The work; what was withdrawn is left out.
        run: Runs work in a transaction until it is committed; its second argument is the `until` of the pieces.
        failed: Returns our error for one of the database.
        writes: Whether they change anything.

    Returns:
        The channels to notify.
    """
    begun = [piece for piece in pieces if piece.begin()]
    try:
        if begun:
            _run(begun, run, failed, writes=writes)
        return {piece.then(piece.result) for piece in begun if piece.then and piece.error is None}
    except BaseException as exc:
        for piece in begun:
            piece.error = exc
        raise
    finally:
        for piece in begun:
            piece.is_done = True


def _run(
    pieces: Sequence[Piece],
    run: Callable[[Callable[[sa.Connection], None], float], None],
    failed: Callable[[Exception], StoreError],
    *,
    writes: bool,
) -> None:
    has_begun = has_ended = False

    def work(connection: sa.Connection) -> None:
        nonlocal has_begun, has_ended
        has_begun = True
        if writes and connection.dialect.name == "postgresql":
            connection.execute(_SHORT_PATIENCE)
        for piece in pieces:
            try:
                piece.result = piece.work(connection)
            except MobileMoneyError as exc:
                without_frames(exc)  # they hold rows
                if writes:
                    raise  # what it has written is rolled back, with the work of the others
                piece.error = exc
        has_ended = True

    try:
        # The latest: work that has waited for longer is done, rather than all of it alone.
        run(work, max(piece.until for piece in pieces))
    except Exception as exc:  # noqa: BLE001 (each task raises it, or what its own transaction then shows)
        is_under_way = has_begun and not has_ended
        for piece in pieces:
            piece.error = failed(exc) if isinstance(exc, _OF_THE_DATABASE) else exc
            piece.is_alone = _may_succeed_alone(exc, is_under_way=is_under_way, is_one_of_many=len(pieces) > 1)


def _may_succeed_alone(exc: Exception, *, is_under_way: bool, is_one_of_many: bool) -> bool:
    """Return whether nothing was committed, and work may still succeed in a transaction of its own."""
    if isinstance(exc, MobileMoneyError):
        return is_one_of_many
    if not isinstance(exc, _OF_THE_DATABASE) or is_conflict(exc) or needs_new_session(exc):
        return True
    # Else the database is away, or the commit was broken: then all of it is there, or nothing.
    is_sound = is_under_way and not getattr(exc, "connection_invalidated", False)
    return is_sound and (is_one_of_many or is_locked(exc))
