"""Prefetch: tasks beside a reader, for iterators that have no block to put a task group around.

A plain ``async for`` over an iterator gives it no scope to own tasks in, and a task group held open across ``yield``
corrupts the scopes of both event loops. So such a task is bound to its work instead: it makes one call, which ends by
itself (every call is bounded by its time-outs), keeps the result, and never raises. Only a reader that asks starts
another one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")

_running: set[object] = set()


def start_task(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a coroutine that ends by itself and raises nothing but cancellation, on the running event loop."""
    loop: Any = anyio.lowlevel.current_token().native_token
    if hasattr(loop, "create_task"):
        task = loop.create_task(work())
        _running.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(_running.discard)
    else:
        import trio

        trio.lowlevel.spawn_system_task(work, context=contextvars.copy_context())


class Prefetch(Generic[T]):
    """Call that has begun before its result is asked for."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._done = anyio.Event()
        self._value: list[T] = []
        self._error: Exception | None = None
        start_task(self._run)

    async def _run(self) -> None:
        try:
            self._value.append(await self._call())
        except Exception as exc:  # noqa: BLE001 (kept for the reader, which may never ask)
            self._error = exc
        finally:
            self._done.set()

    async def result(self) -> T:
        """Return the call's result, or raise its error. A cancelled reader may ask again."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]
