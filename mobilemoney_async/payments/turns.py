"""One at a time, by name: inside one process, creates under one key wait for each other, and so do twins."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Hashable
from contextlib import asynccontextmanager

import anyio
import attrs


@attrs.define(eq=False)
class _Turn:
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    wanted_by: int = 0


class Turns:
    """A lock for each name that somebody holds or waits for."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}

    @asynccontextmanager
    async def take(self, name: Hashable) -> AsyncGenerator[None]:
        """Hold the lock of a name. Cancelling the wait gives the place in line up."""
        turn = self._turns.setdefault(name, _Turn())
        turn.wanted_by += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted_by -= 1
            if not turn.wanted_by:
                del self._turns[name]

    def held(self) -> Collection[Hashable]:
        """Return the names that somebody holds or waits for."""
        return list(self._turns)
