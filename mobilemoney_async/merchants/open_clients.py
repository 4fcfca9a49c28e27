"""Clients that one process has open for many merchants, of which those idle for long are closed.

Owners of state: `_idle` and `_busy` hold those that are open, and `_connected` those of the idle ones that may have
connections. There is no background task: each use that ends closes what has become idle.

Critical sections: all changes of these three are made without an await in between. An account is taken out of `_idle`
before its connections are closed; used again during that, it is open at once, and only those not in use are closed.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from mobilemoney_async.client import ClientOwner
from mobilemoney_async.payments.store import SQLStore
from mobilemoney_async.tasks import loop_time

if TYPE_CHECKING:  # without the extra `store` there is none
    from mobilemoney_async.payments.records.account_store import AccountStore

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds for which the connections of an idle account stay open; no pool would use them after that.
_KEPT = 5.0
# Idle accounts that the beginning of a use looks at, and its end, at most.
_MOST_LOOKS = 10


@attrs.define(eq=False)
class Merchant:
    """Client of one account, with the number of its calls, pollers and dispatchers under way."""

    owner: ClientOwner
    store: SQLStore  # held, since a store names itself only as long as somebody uses it
    parts: AccountStore
    users: int = 0
    used_at: float = -math.inf

    @property
    def is_pinned(self) -> bool:
        """Whether the account reads as a consumer, or has answers that are not recorded yet."""
        left = self.parts.left_consumers.values()
        return bool(self.parts.unwritten) or any(me not in left for me in self.parts.consuming)


class OpenClients:
    """Open clients, of which the least recently used one that is idle is closed first.

    Args:
        most: The number that stays open; more are, where nothing else is idle.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: set[Merchant] = set()
        self._idle: OrderedDict[Merchant, None] = OrderedDict()  # the least recently used one first
        self._connected: OrderedDict[Merchant, None] = OrderedDict()  # in the order of `used_at`
        self.served: int = 0  # clients of workers, which do not count
        self._looks = 0  # at idle accounts in a row that are pinned
        self._has_warned = False
        self.is_closed: bool = False  # then a use that ends closes nothing

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy) - self.served

    def add(self, merchant: Merchant) -> None:
        """Add one that was just made, and is idle."""
        self._idle[merchant] = None

    def clear(self) -> None:
        """Forget all of them, which are closed."""
        for each in (self._busy, self._idle, self._connected):
            each.clear()

    @asynccontextmanager
    async def use(self, merchant: Merchant) -> AsyncGenerator[None]:
        """Keep a client open: entered by each call, poller and dispatcher."""
        merchant.users += 1
        if merchant.users == 1:
            self._busy.add(merchant)
            self._idle.pop(merchant, None)
            self._connected.pop(merchant, None)
            merchant.owner.reopen()
        try:
            await self.close_idle()
            yield
        finally:
            merchant.users -= 1
            if not merchant.users and not self.is_closed:
                merchant.used_at = loop_time()
                self._busy.discard(merchant)
                self._idle[merchant] = self._connected[merchant] = None
                await self.close_idle()

    async def close_idle(self) -> None:
        """Close connections that were idle for long, and clients beyond `max_open`, as far as nothing pins them.

        A few at a time: a payment waits for it.
        """
        # Shielded where it waits; without anything to close it does not wait.
        until = loop_time() - _KEPT
        for _ in range(_MOST_LOOKS):
            first = next(iter(self._connected), None)
            if first is None or first.used_at > until:
                break
            del self._connected[first]
            await first.owner.close_idle(keeps_store=True)
        for _ in range(_MOST_LOOKS):
            if not self._idle or len(self) <= self._most:
                break
            first = next(iter(self._idle))
            if first.is_pinned:
                self._idle.move_to_end(first)
                self._looks += 1
                continue
            self._looks = 0
            del self._idle[first]
            self._connected.pop(first, None)
            await first.owner.close_idle()
        is_exceeded = len(self) > self._most and self._looks >= len(self._idle)
        if is_exceeded and not self._has_warned:
            self._has_warned = True
            logger.warning("more than max_open=%d clients are open, since all of them are in use", self._most)
