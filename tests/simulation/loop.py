"""Event loop of a world: virtual time, several processes that can stop and die, and the same order of events each time.

A process is a context variable. A callback that was scheduled by a process belongs to it. Once the process is dead none
of its callbacks runs any more: no `finally`, no shield, no answer of a database. While it is stopped, as by SIGSTOP,
they wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from asyncio import events
from collections.abc import Callable
from typing import Any

import attrs
from anyio._backends import _asyncio as backend

from mobilemoney_async.testing import VirtualClockEventLoop

# Turns of the loop at one moment, after which nothing will ever wait.
_MOST_TURNS = 20_000

PROCESS: contextvars.ContextVar[Life | None] = contextvars.ContextVar("simulated_process", default=None)


class Dead(BaseException):
    """End of a process that tried to reach the world after its death."""


@attrs.define(eq=False)
class Life:
    """One run of a process.

    Attributes:
        name: Of the process, with the number of its run.
        late: Returns by how much a timer of it fires late, seconds.
        engines: Those of its databases, whose connections end with it.
        end: Cancels it, where its death cannot be had otherwise.
        tasks: Those that have not ended. The dead's stay here, so that they are not closed.
    """

    name: str
    late: Callable[[], float] = float
    end: Callable[[], object] = bool
    engines: list[Any] = attrs.field(factory=list)
    is_dead: bool = False
    is_stopped: bool = False
    backlog: list[events.Handle] = attrs.field(factory=list)
    tasks: dict[int, asyncio.Task[Any]] = attrs.field(factory=dict)

    def require_alive(self) -> None:
        """Raise `Dead` after its death."""
        if self.is_dead:
            raise Dead


def _may_run(handle: events.Handle) -> bool:
    life: Life | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
    if life is None or not (life.is_dead or life.is_stopped):
        return True
    if not life.is_dead:
        life.backlog.append(handle)
    return False


class _Handle(events.Handle):
    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _TimerHandle(events.TimerHandle):
    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _Task(asyncio.Task[Any]):
    """Task whose hash is its number, so that a set of tasks has the same order in each run."""

    number: int

    def __hash__(self) -> int:
        return self.number


class Livelock(BaseException):
    """End of a world whose time stands still, since its tasks never wait."""


class SimulatedLoop(VirtualClockEventLoop):
    """Loop of one world."""

    def __init__(self) -> None:
        super().__init__()
        self._turns, self._turned_at = 0, -1.0
        self._numbers = itertools.count(1)
        self.set_task_factory(self._make_task)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        # The hash is asked for while the task is made.
        number = _Task.number = next(self._numbers)
        task = _Task(coro, loop=loop, **options)
        task.number = number
        context = options.get("context")
        life = PROCESS.get() if context is None else context.get(PROCESS)
        if life is not None:
            life.tasks[number] = task
            if number % 64 == 0:
                life.tasks = {number: each for number, each in life.tasks.items() if not each.done()}
        return task

    def _call_soon(self, callback: Any, args: Any, context: contextvars.Context | None) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        """Call a function at a time, or later, if the process is late."""
        life = PROCESS.get() if context is None else context.get(PROCESS)
        if life is not None:
            when += life.late()
        handle = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, handle)  # type: ignore[attr-defined]
        handle._scheduled = True  # type: ignore[attr-defined]
        return handle

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self._turns += 1
        if self._turned_at != self.time():
            self._turns, self._turned_at = 0, self.time()
        elif self._turns > _MOST_TURNS:
            raise Livelock(f"time stands still at {self.time():.3f}")

    def kill(self, life: Life) -> None:
        """End a process as SIGKILL does."""
        life.is_dead = True
        life.backlog.clear()

    def resume(self, life: Life) -> None:
        """Let a stopped process go on: everything that became due in the meantime is run at once."""
        life.is_stopped = False
        backlog, life.backlog = life.backlog, []
        self._ready.extend(backlog)  # type: ignore[attr-defined]


def numbered(kind: type[Any]) -> type[Any]:
    """Return a kind of object whose hash is its number, for those that the package keeps in sets."""
    numbers = itertools.count(1)

    class Numbered(kind):  # type: ignore[misc]
        __slots__ = ("number",)
        number: int

        def __hash__(self) -> int:
            try:
                return int(self.number)
            except AttributeError:
                self.number = next(numbers)
                return int(self.number)

    return Numbered


def ordered_scope() -> type[Any]:
    """Return a kind of cancel scope, which anyio keeps in sets, whose hash is the same in each run."""
    numbers, original = itertools.count(1), backend.CancelScope

    class NumberedScope(original):  # type: ignore[misc, valid-type]
        __slots__ = ("number",)

        def __new__(cls, *args: Any, **options: Any) -> Any:
            made = object.__new__(cls)
            made.number = next(numbers)
            return made

        def __hash__(self) -> int:
            return int(self.number)

    return NumberedScope
