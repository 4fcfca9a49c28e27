"""Readers of an account's changes: page by page, and as named consumers that keep their place in the store.

Critical section: one process of an account at a time reads as a consumer, under a lease of a minute. Each page and each
`done` renews it. A handler that takes longer may lose it: its `done` then fails, and the change was handed out twice.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Self, TypeVar

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.leases import change_lease
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import ChangeParked, Handler, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.changes import FeedEntry, find_place, number_changes, number_of, read_changes
from mobilemoney_async.payments.consumers import MOST_TRIES, ConsumerTable, Delivery
from mobilemoney_async.payments.feed_watch import watch
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.payment_change import PaymentChange

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

# Changes that are read at once.
_PAGE = 500
_LEASE = 60.0
# Seconds between two attempts to read as a consumer that another process is.
_RIVAL_PAUSE = 1.0
# Seconds for giving the lease back though the reader was cancelled.
_SHIELD = 5.0


@attrs.define(eq=False)
class ChangePages:
    """Iterator over an account's changes after a cursor. Its reader keeps the cursor."""

    _store: AccountStore
    _after: str | None
    _is_from_now: bool
    _limit: int | None
    _is_endless: bool
    _number: int | None = None
    _page: deque[FeedEntry] = attrs.field(factory=deque)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PaymentChange:
        if self._limit == 0:
            raise StopAsyncIteration
        if self._page:
            await checkpoint()
        while not self._page:
            await self._read()
            if not self._page:
                if not self._is_endless:
                    raise StopAsyncIteration
                assert self._number is not None
                await watch(self._store.database).wait(self._store.account, self._number)
        if self._limit is not None:
            self._limit -= 1
        return self._page.popleft().change

    async def begin(self) -> None:
        """Begin here: the next change is one that is not recorded yet, unless a cursor says otherwise."""
        await self._read()

    async def aclose(self) -> None:
        """End the iterator. It may be called again."""
        self._page.clear()
        self._limit = 0

    async def _read(self) -> None:
        limit = _PAGE if self._limit is None else min(_PAGE, self._limit)

        def read(journal: Journal) -> tuple[int, list[FeedEntry]]:
            feed = number_changes(journal)
            after = self._number
            if after is None:
                after = feed.last if self._is_from_now else 0
                after = after if self._after is None else find_place(journal, feed, self._after)
            return after, read_changes(journal, feed, after=after, limit=limit)

        after, page = await self._store.write(read)
        self._number = page[-1].number if page else after
        self._page.extend(page)


@attrs.define(eq=False)
class ConsumerChanges:
    """Iterator over an account's changes for a named consumer, whose place the store keeps.

    Another process that reads with the same name waits while this one goes on.
    """

    _store: AccountStore
    _name: str
    _start: str | None
    _is_endless: bool
    _utcnow: Callable[[], datetime]
    _on_event: Handler | None
    _me: str = attrs.field(factory=lambda: uuid.uuid4().hex, init=False)
    _page: deque[FeedEntry] = attrs.field(factory=deque, init=False)
    # Payments that lag behind since this page was read.
    _held: set[str] = attrs.field(factory=set, init=False)
    _delivery: Delivery | None = attrs.field(default=None, init=False)
    _leased_until: float = attrs.field(default=-math.inf, init=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PaymentChange:
        try:
            return await self._next()
        except anyio.get_cancelled_exc_class():
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Let another process go on as this consumer at once, rather than in a minute. It may be called again."""
        self._page.clear()
        self._delivery = None
        if self._leased_until > -math.inf:
            self._leased_until = -math.inf
            with anyio.move_on_after(_SHIELD, shield=True), suppress(StoreError):
                await self._leased(None, lambda table: table.close())

    async def done(self, cursor: str) -> None:
        """Record that a change, and those handed out before it, are handled."""
        number = number_of(cursor)

        delivery, now = self._require_open(), self._utcnow()

        def done(table: ConsumerTable) -> None:
            if number in delivery.retried:
                table.done_again(number, now, upto=delivery.upto)
            else:
                table.done(number)

        await self._record(done)

    async def failed(self, cursor: str, reason: str) -> None:
        """Record that a change could not be handled, so that it comes again."""
        number, delivery = number_of(cursor), self._require_open()
        entry = next(each for each in (*delivery.again, *delivery.fresh) if each.number == number)

        now = self._utcnow()

        def failed(table: ConsumerTable) -> bool:
            if number in delivery.retried:
                return table.failed_again(number, now, reason, upto=delivery.upto)
            table.hold(entry, now, reason)
            return False

        if await self._record(failed):
            self._report(entry.change)
        self._held.add(entry.name)

    def _require_open(self) -> Delivery:
        if self._delivery is None:
            said = f"the iterator of consumer {self._name!r} is closed: the change will be handed out again"
            raise StoreError(said, outcome="not_sent")
        return self._delivery

    async def _next(self) -> PaymentChange:
        while True:
            while self._page:
                entry = self._page.popleft()
                if entry.name not in self._held:
                    await checkpoint()
                    return entry.change
            if not await self._take():
                await anyio.sleep(_RIVAL_PAUSE)
            elif not self._page:
                if not self._is_endless:
                    await self.aclose()
                    raise StopAsyncIteration
                await self._wait()

    async def _wait(self) -> None:
        assert self._delivery is not None
        until, next_at = self._leased_until - _LEASE / 2, self._delivery.next_at
        if next_at is not None:
            until = min(until, anyio.current_time() + max(0.0, (next_at - self._utcnow()).total_seconds()))
        await watch(self._store.database).wait(self._store.account, self._delivery.upto, until=until)

    async def _take(self) -> bool:
        """Read the next page; return False while another process has the lease."""
        now, upto = self._utcnow(), 0 if self._delivery is None else self._delivery.upto

        def take(table: ConsumerTable) -> Delivery:
            feed = number_changes(table.journal)
            row = table.lock(feed, self._start, now)
            return table.take(feed, row, now, after=max(row.number, upto), limit=_PAGE, reader=self)

        delivery = await self._leased(_LEASE, take)
        if delivery is None:
            return False
        self._delivery, self._held = delivery, set()
        self._page.extend([*delivery.again, *delivery.fresh])
        for entry in delivery.parked:
            self._report(entry.change)
        return True

    async def _record(self, work: Callable[[ConsumerTable], T]) -> T:
        result = await self._leased(_LEASE, lambda table: (work(table),))
        if result is None:
            said = f"another process has taken over as consumer {self._name!r}: the change may be handled twice"
            raise StoreError(said, outcome="not_sent")
        return result[0]

    async def _leased(self, ttl: float | None, work: Callable[[ConsumerTable], T]) -> T | None:
        """Take, renew or give back the lease, and run work in the same transaction; None if another process has it."""
        name, account, began = f"consumer:{self._name}", self._store.account, anyio.current_time()

        def run(connection: sa.Connection, clock: Clock) -> T | None:
            if not change_lease(connection, account, name, by=self._me, ttl=ttl, clock=clock) and ttl is not None:
                return None
            return work(ConsumerTable(Journal(connection, account), self._name))

        result, _ = await self._store.database.timed(run, durable=True)
        if ttl is not None:
            self._leased_until = -math.inf if result is None else began + ttl
        return result

    def _report(self, change: PaymentChange) -> None:
        """Report a change that is handed out no more."""
        name = change.key or (change.transaction.transaction_id if change.transaction else "")
        emit(self._on_event, ChangeParked(consumer=self._name, key=change.key, cursor=change.cursor))
        logger.error("consumer %r could not handle a change of %r %d times: parked", self._name, name, MOST_TRIES)
