"""Tasks that wait: a signal, values and the time of an event loop, a task group that keeps its error."""

from __future__ import annotations

import logging
import math
import sys
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import anyio.abc
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

logger: logging.Logger = logging.getLogger("mobilemoney_async")


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


V = TypeVar("V")


def _asyncio_loop() -> AbstractEventLoop | None:
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
    return _asyncio_loop() or current_token().native_token


def loop_time() -> float:
    """Return the time of the running event loop."""
    loop = _asyncio_loop()
    return anyio.current_time() if loop is None else loop.time()


def loop_and_time() -> tuple[object, float]:
    """Return the running event loop, as `running_loop` does, and its time."""
    loop = _asyncio_loop()
    return (current_token().native_token, anyio.current_time()) if loop is None else (loop, loop.time())


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
