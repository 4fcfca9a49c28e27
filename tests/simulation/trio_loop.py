"""A world on trio: the same history, laws and faults, on the other event loop.

Not byte for byte: trio puts its tasks in an order of its own. A process dies here by an exception from its next step
towards disk or wire, and by its cancellation: its `finally` blocks run, and reach nothing. None is stopped.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock

from tests.simulation.loop import PROCESS, Dead, Life


class TrioLoop:
    """Those methods of an event loop that a world uses."""

    def __init__(self) -> None:
        self._clock = MockClock(autojump_threshold=0)
        self._nursery: trio.Nursery
        self._ended_at: float | None = None

    def time(self) -> float:
        """Return the virtual time since the world began."""
        return trio.current_time() - self._began_at if self._ended_at is None else self._ended_at

    def run_until_complete(self, main: Awaitable[None]) -> None:
        """Run a world to its end."""
        trio.run(self._run, main, clock=self._clock)

    async def _run(self, main: Awaitable[None]) -> None:
        self._began_at = trio.current_time()
        try:
            async with trio.open_nursery() as self._nursery:
                await main
                self._nursery.cancel_scope.cancel()
        finally:
            self._ended_at = trio.current_time() - self._began_at

    def create_task(self, work: Awaitable[None], *, context: contextvars.Context) -> None:
        """Begin a task that belongs to the process of a context."""
        context.run(self._nursery.start_soon, self._live, work)

    async def _live(self, work: Awaitable[None]) -> None:
        try:
            await work
        except BaseException:
            life = PROCESS.get()
            if life is None or not life.is_dead:
                raise

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context) -> None:
        """Call a function at a time."""
        self.call_later(when - self.time(), callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context
    ) -> None:
        """Call a function after some seconds."""

        async def wait() -> None:
            await trio.sleep(max(0.0, delay))
            callback(*args)

        context.run(self._nursery.start_soon, wait)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context) -> None:
        """Call a function soon."""
        self.call_later(0.0, callback, *args, context=context)

    async def create_future(self) -> None:
        """End the task of a dead process, which on asyncio waits here for ever."""
        await trio.lowlevel.checkpoint_if_cancelled()
        raise Dead

    def kill(self, life: Life) -> None:
        """End a process as SIGKILL does, as far as the world can see."""
        life.is_dead = True
        life.end()

    def resume(self, life: Life) -> None:
        """Do nothing: no process is stopped."""
