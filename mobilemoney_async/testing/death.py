"""Death of a program, for tests: one block ends as `kill -9` would end it, and a second block is the restart.

All work of a store passes through `database.threads`. From the death on, that of the dead program is refused there; and
no payment is sent before its store has recorded it. So the dead program may shut down in its own way, whatever its
framework, and no longer changes anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

import attrs

from mobilemoney_async.database import threads
from mobilemoney_async.errors import StoreError

T = TypeVar("T")


@attrs.define(eq=False)
class _Program:
    """Program of a test, and whether it is dead."""

    is_dead: bool = False


# Of the running task: it inherits the program of the task that has started it.
_program: ContextVar[_Program | None] = ContextVar("mobilemoney_async_program", default=None)


@contextmanager
def _refuse_the_dead() -> Iterator[bool]:
    program = _program.get()
    if program is not None and program.is_dead:
        raise StoreError("the test has killed this program", outcome="not_sent")
    yield False


threads.watch(_refuse_the_dead)


@asynccontextmanager
async def killed_at_end(program: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Open a program for a block, and end it with the block as `kill -9` would.

    At the end of the block the program's stores refuse to read and to write: from then on it records nothing, sends no
    payment, and settles none. Then it is closed as usual. A second block over the same database is the restart, which
    finds the remains of a crash: leases that lapse after a minute, requests without an answer. Use virtual time.

    If the block raises, the program is closed, and not killed.

    Args:
        program: Opens the program, in tasks that this one starts: a lifespan, a test server, a client with its
            `Backend`. It is not entered yet. Routes that still run are not stopped, so let them answer first.

    Yields:
        The value that the program's own context gives.

    Raises:
        BaseException: Any error of the block, and of the program before its death.
    """
    life = _Program()
    token = _program.set(life)
    try:
        async with program as opened:
            yield opened
            life.is_dead = True
    except Exception:
        if not life.is_dead:
            raise
        # A dead program reports nothing: here it could not close itself, as its store is away.
    finally:
        _program.reset(token)
