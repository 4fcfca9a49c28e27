"""Worker threads that a virtual clock waits for.

The clock of a test jumps when no task can run, and a working thread is no task: a time-out around it would fire at
once. So the owner of such a clock is notified while a thread is at work. Production code pays one loop over an empty
tuple.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Generic, TypeAlias, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

Watcher: TypeAlias = Callable[[], AbstractContextManager[bool]]
"""Returns a context that is entered, in the event loop, before a thread is asked for, and left after its work. It gives
whether the clock of that loop stops in between."""

_watchers: tuple[Watcher, ...] = ()


def watch(watcher: Watcher) -> None:
    """Notify a watcher of all work from now on, in every event loop of this process."""
    global _watchers  # noqa: PLW0603 (a process has one)
    _watchers = (*_watchers, watcher)


def clock_stands_still() -> bool:
    """Return whether the clock of the running event loop stops while a thread works."""
    with ExitStack() as stack:
        return any(stack.enter_context(watcher()) for watcher in _watchers)


async def run_in_thread(work: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run a function in a worker thread and return its result, or raise its error.

    Once begun it runs to its end. A task that is cancelled in between gets the cancellation at its next await; one that
    asyncio cancels natively, which no shield of anyio's stops, when the function has ended. Not for work that waits for
    the event loop: a virtual clock stops until the work is done. The limiter of threads is anyio's own by default.
    """
    with ExitStack() as stack:
        for watcher in _watchers:
            stack.enter_context(watcher())
        job = _Job(work)
        try:
            return await anyio.to_thread.run_sync(job.run, limiter=limiter)
        except anyio.get_cancelled_exc_class():
            if job.is_running():
                await job.end()
            raise


class _Job(Generic[T]):
    """Function that a thread may run, unless its caller gives up before.

    The thread and the caller both try to take the lock `_is_taken`: the first one decides, and never releases it.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._is_taken = threading.Lock()
        self._ended = threading.Event()

    def run(self) -> T:
        """Run it, in the thread."""
        if not self._is_taken.acquire(blocking=False):
            raise RuntimeError("its caller has given up")
        try:
            return self._work()
        finally:
            self._ended.set()

    def is_running(self) -> bool:
        """Return whether the thread has begun; if not, it never will."""
        return not self._is_taken.acquire(blocking=False)

    async def end(self) -> None:
        """Wait until the thread has ended, however often the task is cancelled."""
        with anyio.CancelScope(shield=True):
            while not self._ended.is_set():
                # Suppressed: the caller raises the first cancellation afterwards.
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.to_thread.run_sync(self._ended.wait, limiter=anyio.CapacityLimiter(1))
