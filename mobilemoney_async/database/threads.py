"""Worker threads that a virtual clock waits for.

The clock of a test jumps when no task can run, and a working thread is no task: a time-out around it would fire at
once. So the owner of such a clock is notified while a thread is at work. Production code pays one loop over an empty
tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import TypeAlias, TypeVar

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
        job = Future[None]()  # of which the first decides: the thread, which runs it, or the task, which cancels it
        try:
            return await anyio.to_thread.run_sync(partial(_run, job, work), limiter=limiter)
        except anyio.get_cancelled_exc_class():
            if not job.cancel():
                with anyio.CancelScope(shield=True):
                    while not job.done():
                        # Suppressed: the first cancellation is raised afterwards, however often the task is cancelled.
                        with suppress(anyio.get_cancelled_exc_class()):
                            await anyio.to_thread.run_sync(partial(wait, [job]), limiter=anyio.CapacityLimiter(1))
            raise


def _run(job: Future[None], work: Callable[[], T]) -> T:
    """Run a function in the thread, unless its caller has given up."""
    if not job.set_running_or_notify_cancel():
        raise RuntimeError("its caller has given up")
    try:
        return work()
    finally:
        job.set_result(None)
