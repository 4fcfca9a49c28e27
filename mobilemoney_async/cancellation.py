"""Sections that no cancellation interrupts, and cancellations of others' tasks that interrupt nothing."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import TypeVar

import anyio

T = TypeVar("T")


@contextmanager
def callers_code() -> Iterator[None]:
    """Run a function of the caller's, which may wait for a task or a future that somebody else cancels.

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
