"""One at a time, by name: in one event loop, creates under one key wait for each other, and so do twins.

A store may serve several loops, each in a thread of its own. They are to each other what other processes are: what one
of them sends, the others see in the database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Hashable
from contextlib import asynccontextmanager

import anyio
import attrs
from anyio.lowlevel import current_token


@attrs.define(eq=False)
class _Turn:
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    wanted_by: int = 0


class KeyedLock:
    """A lock for each name that somebody holds or waits for, in each event loop."""

    def __init__(self) -> None:
        self._turns: dict[tuple[Hashable, Hashable], _Turn] = {}

    @asynccontextmanager
    async def take(self, name: Hashable) -> AsyncGenerator[None]:
        """Hold the lock of a name. Cancelling the wait gives the place in line up."""
        place = (current_token(), name)
        turn = self._turns.setdefault(place, _Turn())
        turn.wanted_by += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted_by -= 1
            if not turn.wanted_by:
                del self._turns[place]

    def held(self, *, but: Hashable | None = None) -> Collection[Hashable]:
        """Return the names that somebody holds or waits for, in any event loop.

        Args:
            but: A name that does not count where it is held in this loop: the caller has it.
        """
        own = None if but is None else (current_token(), but)
        # Copied first, which no other thread can come between.
        return {place[1] for place in list(self._turns) if place != own}
