"""Cache of order statuses in one process, with a signal for each change; for `backend`.

The store has every order's payment; the cache saves queries. A writer updates the cache first and sends the signal
second; a watcher takes the signal before it reads. So no change is missed between the two.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Self

import anyio
import attrs

from mobilemoney_async.contrib.orders import OrderState, OrderStatus
from mobilemoney_async.errors import StoreError

# Orders in the cache at most; others are read from the store again.
_REMEMBERED = 20_000
# Seconds between two reads of a watched order that this process does not track.
_RECHECK = 2.0


@attrs.define(eq=False, weakref_slot=True)
class Bell:
    """Signal of one change of an order. Kept as long as a watcher holds it."""

    rung: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.frozen
class _Posted:
    """A status, until when it counts (monotonic seconds), and when its record was last changed, if it has one."""

    status: OrderStatus
    until: float
    changed_at: datetime | None = None


class Board:
    """Cache of the latest order statuses, at most 20,000."""

    def __init__(self) -> None:
        self._posted: OrderedDict[str, _Posted] = OrderedDict()
        self._bells: weakref.WeakValueDictionary[str, Bell] = weakref.WeakValueDictionary()

    def post(self, status: OrderStatus, *, until: float = math.inf, changed_at: datetime | None = None) -> None:
        """Store an order's status and signal the change.

        Args:
            status: The status.
            until: Until when it counts, monotonic seconds. Infinite for a final one, and for an order that this process
                tracks: each of its changes arrives here.
            changed_at: When the record that shows it was last changed.
        """
        self._posted[status.order] = _Posted(status, until, changed_at)
        self._posted.move_to_end(status.order)
        while len(self._posted) > _REMEMBERED:
            self._posted.popitem(last=False)
        self.ring(status.order)

    def holds(self, order: str, now: float) -> OrderStatus | None:
        """Return an order's status, or None if the store has to be read."""
        posted = self._posted.get(order)
        return posted.status if posted is not None and now < posted.until else None

    def is_live(self, order: str) -> bool:
        """Return whether every change of an order arrives here by itself."""
        posted = self._posted.get(order)
        return posted is not None and posted.until == math.inf

    def final(self, order: str) -> OrderStatus | None:
        """Return an order's final status, or None if it has none yet, as far as this process knows."""
        posted = self._posted.get(order)
        return posted.status if posted is not None and posted.status.is_final else None

    def is_outdated(self, order: str, changed_at: datetime) -> bool:
        """Return whether a newer record of the order than this one has been read: reads may overtake each other."""
        posted = self._posted.get(order)
        return posted is not None and posted.changed_at is not None and changed_at < posted.changed_at

    def expire(self, order: str) -> None:
        """Make the next reader ask the store for an order's status, unless the status is final."""
        posted = self._posted.get(order)
        if posted is not None and not posted.status.is_final:
            self._posted[order] = attrs.evolve(posted, until=-math.inf)

    def latest(self, order: str) -> OrderStatus | None:
        """Return the status that was stored last, also if it has expired."""
        posted = self._posted.get(order)
        return None if posted is None else posted.status

    def bell(self, order: str) -> Bell:
        """Return the signal of the order's next change."""
        return self._bells.setdefault(order, Bell())

    def ring(self, order: str) -> None:
        """Wake all watchers of an order."""
        bell = self._bells.pop(order, None)
        if bell is not None:
            bell.rung.set()


class Watch:
    """Iterator over the statuses of one order.

    A class, since an async generator that its reader leaves early would stay open.

    Args:
        order: The order's name.
        heartbeat: Seconds after which the same status is returned again.
        board: The cache, which signals changes.
        read: Returns the status, None if there is no payment. After its `StoreError` the iterator tries again.
        is_live: Returns whether the cache signals every change of the order.
    """

    def __init__(
        self,
        order: str,
        heartbeat: float,
        *,
        board: Board,
        read: Callable[[str], Awaitable[OrderStatus | None]],
        is_live: Callable[[str], bool],
    ) -> None:
        self._order = order
        self._heartbeat = heartbeat
        self._board = board
        self._read = read
        self._is_live = is_live
        self._last: OrderStatus | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OrderStatus:
        if self._last is None or not self._last.is_settled:
            status = await self._next()
            if status is not None:
                self._last = status
                return status
        raise StopAsyncIteration

    async def _next(self) -> OrderStatus | None:
        """Wait for the next status to return."""
        until = anyio.current_time() + self._heartbeat
        while True:
            bell = self._board.bell(self._order)  # before the read, so that a change in between is not missed
            try:
                status = await self._read(self._order)
            except StoreError:
                status = self._last or OrderStatus(order=self._order, state=OrderState.FINDING_OUT)
            now = anyio.current_time()
            if status is None or status != self._last or now >= until:
                return status
            with anyio.CancelScope(deadline=until if self._is_live(self._order) else min(until, now + _RECHECK)):
                await bell.rung.wait()
