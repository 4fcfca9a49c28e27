"""Tasks: the clocks that they read, what they wait for, and sections that no cancellation interrupts."""

from __future__ import annotations

import logging
import math
import sys
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.abc
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from anyio.abc import AsyncBackend

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")
V = TypeVar("V")

# A deadline that the event loop computes and a thread compares must not come from two clocks. freezegun replaces
# `time.monotonic`, for some callers: what a thread reads depends on how deep its stack is.
if sys.platform == "win32":
    _CLOCKS = (time.monotonic,)  # in a tuple, where freezegun does not find it

    def monotonic() -> float:
        """Return the time of the host's clock, seconds."""
        return _CLOCKS[0]()

else:
    # The one that `time.monotonic` reads; macOS has a name of its own for it.
    _CLOCK: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)

    def monotonic() -> float:
        """Return the time of the host's clock, seconds."""
        return time.clock_gettime(_CLOCK)


def asyncio_loop() -> AbstractEventLoop | None:
    """Return asyncio's running event loop, or None. What anyio asks for it takes is felt in a create.

    Inside trio too, which may run inside such a loop, as in a notebook: it says so to sniffio, which it imports.
    """
    sniffio, asyncio = sys.modules.get("sniffio"), sys.modules.get("asyncio")
    if asyncio is not None and (sniffio is None or sniffio.thread_local.name != "trio"):
        try:  # `suppress` costs as much again
            loop: AbstractEventLoop = asyncio.get_running_loop()
        except RuntimeError:  # none runs here
            return None
        return loop
    return None


def running_loop() -> object:
    """Return asyncio's running event loop, or the token of trio's: what identifies it."""
    return asyncio_loop() or current_token().native_token


def loop_time() -> float:
    """Return the time of the running event loop."""
    loop = asyncio_loop()
    return anyio.current_time() if loop is None else loop.time()


class LoopClock:
    """Clock of the first event loop that asks, which goes on in the next one: each run of trio has a clock of its own.

    Attributes:
        backend: anyio's backend of the loop that asked last; None before.
    """

    __slots__ = ("_first", "_known", "backend")

    def __init__(self) -> None:
        self.backend: type[AsyncBackend] | None = None
        self._known: tuple[object, float] = (None, 0.0)  # the event loop, and the correction of its time
        self._first: float | None = None  # how far the host's clock is ahead of the first loop's

    def now(self) -> float:
        """Return the time."""
        loop: Any = asyncio_loop()
        now = anyio.current_time() if loop is None else loop.time()
        loop = loop or current_token().native_token
        known, offset = self._known
        if loop is not known:
            self.backend = current_token().backend_class
            host = monotonic() - now
            self._first = host if self._first is None else self._first
            offset = host - self._first
            self._known = loop, offset
        return now + offset


class PerLoop(Generic[V]):
    """Values of each event loop by their owners, each made when it is first asked for."""

    def __init__(self, make: Callable[[], V]) -> None:
        self._values: weakref.WeakKeyDictionary[object, weakref.WeakKeyDictionary[object, V]]
        self._values = weakref.WeakKeyDictionary()
        self._make = make

    def of(self, owner: object) -> V:
        """Return the value of an owner in this event loop."""
        loop = running_loop()
        values = self._values.get(loop)
        if values is None:
            values = self._values[loop] = weakref.WeakKeyDictionary()
        value = values.get(owner)
        if value is None:
            value = values[owner] = self._make()
        return value


class Signal:
    """Signal that wakes all tasks that wait for it. One that waits later waits for the next `send`."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def send(self) -> None:
        """Wake the tasks that wait."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, *, until: float = math.inf) -> None:
        """Wait for the next `send`, but not longer than until a time of the event loop."""
        event = self._event = self._event or anyio.Event()
        if until == math.inf:  # most do, and a scope costs as much as the event
            await event.wait()
            return
        with anyio.CancelScope(deadline=until):
            await event.wait()


@asynccontextmanager
async def task_group() -> AsyncGenerator[anyio.abc.TaskGroup]:
    """Open a task group that ends with its block, and raises the error of that or of its only failed task as it is.

    Where both fail, the block's error is raised and the other one logged.
    """
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except (GeneratorExit, anyio.get_cancelled_exc_class()):
                raise
            except BaseException as exc:  # noqa: BLE001 (raised below: the group would wrap it)
                failure = exc
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as exc:
        if failure is not None:
            logger.exception("a task of the block failed as well")
        elif len(exc.exceptions) == 1:
            failure = exc.exceptions[0]
        else:
            raise
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # it holds this frame


@contextmanager
def callers_code() -> Iterator[None]:
    """Run a function of the caller's, which may wait for a task or a future that another task cancels.

    asyncio raises its `CancelledError` for that, too, and anyio would end the whole task group in silence. Here it
    becomes an `Exception`: the `CancelledError` of `concurrent.futures`. A cancellation of this task passes.
    """
    try:
        yield
    except BaseException as exc:
        asyncio = sys.modules.get("asyncio")  # a program on trio need not load it
        if asyncio is None or not isinstance(exc, asyncio.CancelledError):
            raise
        with suppress(RuntimeError):  # no event loop of asyncio's here: nothing of it is cancelled
            task = asyncio.current_task()
            if task is not None and task.cancelling() > 0:
                raise
        raise CancelledError("a task or a future that it waits for was cancelled") from exc


async def shielded(
    work: Callable[[], Awaitable[T]],
    *,
    timeout: float | None = None,
    ignored: type[Exception] | tuple[type[Exception], ...] = (),
) -> T | None:
    """Run work to its end, however often its task is cancelled until then, and let the cancellation go on afterwards.

    Returns its result; None where it has none, by its time-out or an error that is ignored.

    A shield of anyio's does not stop asyncio's own `Task.cancel()`, and a program that ends may get several: by a
    signal, a time-out, a task group. So the work runs in a task of its own, which only a loop that closes cancels.

    Args:
        work: A section that must not be interrupted. Its error is raised, unless asyncio has cancelled the task.
        timeout: Seconds after which the work is cancelled all the same; None for never.
        ignored: Errors that end the work and are not raised.
    """
    result: T | None = None
    failure: Exception | None = None

    async def run() -> None:
        nonlocal result, failure
        with anyio.move_on_after(timeout, shield=True):
            try:
                result = await work()
            except ignored:
                pass  # the caller has said that these change nothing
            except Exception as exc:  # noqa: BLE001 (raised below: the group would wrap it)
                failure = exc

    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # it holds this frame
    return result
