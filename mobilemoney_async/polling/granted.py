"""A call whose place under the rate limit is taken before it is chosen.

The pipeline takes the place itself. The poller chooses what to ask only once it has the place, since its turn may come
ten seconds after it asked for it. So the call gets this in place of the limiter: its first place is there already.
"""

from __future__ import annotations

import anyio

from mobilemoney_async.calls.bucket import Usage
from mobilemoney_async.calls.limiter import Limiter
from mobilemoney_async.calls.pipeline import FRESH
from mobilemoney_async.contract.endpoints import Priority


class _Granted:
    """The limiter behind it, but for one place in the poller's lane."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._is_used = False
        self._granted_at = anyio.current_time()

    def has_capacity(self) -> bool:
        return self._limiter.has_capacity()

    def usage(self) -> Usage:
        return self._limiter.usage()

    def hold(self, seconds: float) -> None:
        self._limiter.hold(seconds)

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, ahead: bool = False) -> None:
        if priority is Priority.POLL and not self._is_used:
            self._is_used = True
            if anyio.current_time() <= self._granted_at + FRESH:
                return
            ahead = True  # a login came first: used now, the place would come on top of those granted since
        # Otherwise a login, or a replay after one.
        await self._limiter.acquire(priority, ahead=ahead)


def granted(limiter: Limiter) -> Limiter:
    """Return the limiter for one call in the lane `Priority.POLL` for which a place was acquired just now."""
    return _Granted(limiter)
