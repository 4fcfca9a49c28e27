"""What one process knows of orders, and those who watch them; for `backend`.

The store knows what became of every order; the board only spares it questions. Whoever puts something up rings then,
and a watcher takes hold of the bell before it looks: so no change falls between the two.
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

# How many orders are remembered at most; of others the store is asked again.
_REMEMBERED = 20_000
# Seconds between two looks at an order that nobody here follows, while somebody watches it.
_RECHECK = 2.0


@attrs.define(eq=False, weakref_slot=True)
class Bell:
    """Rings once, when something about an order has changed. Lives as long as somebody listens."""

    rung: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.frozen
class _Posted:
    """A status, until when it counts (monotonic seconds), and when its record was last changed, if it has one."""

    status: OrderStatus
    until: float
    changed_at: datetime | None = None


class Board:
    """How orders stand, as far as this process knows."""

    def __init__(self) -> None:
        self._posted: OrderedDict[str, _Posted] = OrderedDict()
        self._bells: weakref.WeakValueDictionary[str, Bell] = weakref.WeakValueDictionary()

    def post(self, status: OrderStatus, *, until: float = math.inf, changed_at: datetime | None = None) -> None:
        """Put up an order's status, and ring.

        Args:
            status: The status.
            until: Until when it counts, monotonic seconds. Infinite for a final one, and for an order that this process
                follows: each change is put up here.
            changed_at: When the record that shows it was last changed.
        """
        self._posted[status.order] = _Posted(status, until, changed_at)
        self._posted.move_to_end(status.order)
        while len(self._posted) > _REMEMBERED:
            self._posted.popitem(last=False)
        self.ring(status.order)

    def holds(self, order: str, now: float) -> OrderStatus | None:
        """Return how an order stands, or None where the store has to be asked."""
        posted = self._posted.get(order)
        return posted.status if posted is not None and now < posted.until else None

    def is_told(self, order: str) -> bool:
        """Return whether every change of an order is put up here by itself."""
        posted = self._posted.get(order)
        return posted is not None and posted.until == math.inf

    def final(self, order: str) -> OrderStatus | None:
        """Return how an order has ended, as far as is known here."""
        posted = self._posted.get(order)
        return posted.status if posted is not None and posted.status.is_final else None

    def is_outdated(self, order: str, changed_at: datetime) -> bool:
        """Return whether a newer record of the order than this one has been read: reads may overtake each other."""
        posted = self._posted.get(order)
        return posted is not None and posted.changed_at is not None and changed_at < posted.changed_at

    def expire(self, order: str) -> None:
        """Let the store be asked for an order's status again, unless that is final."""
        posted = self._posted.get(order)
        if posted is not None and not posted.status.is_final:
            self._posted[order] = attrs.evolve(posted, until=-math.inf)

    def latest(self, order: str) -> OrderStatus | None:
        """Return the status that was put up last, whether it still counts or not."""
        posted = self._posted.get(order)
        return None if posted is None else posted.status

    def bell(self, order: str) -> Bell:
        """Return what rings when the order changes next."""
        return self._bells.setdefault(order, Bell())

    def ring(self, order: str) -> None:
        """Let everybody know who waits for the order to change."""
        bell = self._bells.pop(order, None)
        if bell is not None:
            bell.rung.set()


class Watch:
    """Those who watch one order; a class, since nobody closes a generator that is left early.

    Args:
        order: Its name.
        heartbeat: After how many seconds the same status comes again.
        board: Rings when it changes.
        look: Returns how it stands, None where there is no payment. Its `StoreError` is waited out.
        is_told: Returns whether the board rings at every change of the order.
    """

    def __init__(
        self,
        order: str,
        heartbeat: float,
        *,
        board: Board,
        look: Callable[[str], Awaitable[OrderStatus | None]],
        is_told: Callable[[str], bool],
    ) -> None:
        self._order = order
        self._heartbeat = heartbeat
        self._board = board
        self._look = look
        self._is_told = is_told
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
        """Return what there is to say next."""
        until = anyio.current_time() + self._heartbeat
        while True:
            bell = self._board.bell(self._order)  # before the look
            try:
                status = await self._look(self._order)
            except StoreError:
                status = self._last or OrderStatus(order=self._order, state=OrderState.FINDING_OUT)
            now = anyio.current_time()
            if status is None or status != self._last or now >= until:
                return status
            with anyio.CancelScope(deadline=until if self._is_told(self._order) else min(until, now + _RECHECK)):
                await bell.rung.wait()
