"""Readers of an account's changes: page by page, and as named consumers that keep their place in the store.

Critical section: one process of an account at a time reads as a consumer, under a lease of a minute. Changes are handed
out only while the reader has it for half of that time, and each page renews it. A handler that takes longer may lose
it: another process then gets the change too, and this one begins again where the store's place is.
"""

from __future__ import annotations

import logging
import math
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.database.clock import Holder
from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.leases import change_lease, new_holder
from mobilemoney_async.database.schema import Row
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import ChangeParked, Handler, emit
from mobilemoney_async.payments.feed.changes import (
    Feed,
    FeedEntry,
    cursor_at,
    find_feed,
    find_place,
    name_at,
    number_changes,
    number_of,
    prune_changes,
    read_changes,
)
from mobilemoney_async.payments.feed.consumers import MOST_TRIES, ConsumerTable, Delivery, forget_consumer
from mobilemoney_async.payments.feed.payment_change import PaymentChange
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.tasks import shielded

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

# Changes that are read at once.
_PAGE = 500
_LEASE = 60.0
# Seconds between two attempts to read as a consumer that another process is.
_RIVAL_PAUSE = 1.0
_PRUNE_EVERY = timedelta(minutes=1)
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
    _utcnow: Callable[[], datetime]
    _number: int = attrs.field(default=0, init=False)
    _page: deque[FeedEntry] = attrs.field(factory=deque, init=False)

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
                await prune(self._store, self._utcnow)
                if not self._is_endless:
                    raise StopAsyncIteration
                await self._store.wait_for_changes(self._number)
        if self._limit is not None:
            self._limit -= 1
        return self._page.popleft().change

    async def begin(self) -> None:
        """Begin here: the next change is one that is not recorded yet, unless a cursor says otherwise."""
        await self._read()

    def restart(self) -> None:
        """Forget the cursor, which is of another feed: the next change is one that is not recorded yet."""
        self._page.clear()
        self._after, self._is_from_now = None, True

    async def aclose(self) -> None:
        """End the iterator. It may be called again."""
        self._page.clear()
        self._limit = 0

    async def _read(self) -> None:
        """Read the next page. Its cursor is looked at each time: the store may have been restored since the last."""
        limit = _PAGE if self._limit is None else min(_PAGE, self._limit)

        def read(journal: Journal) -> tuple[int, str, list[FeedEntry]]:
            while True:
                feed = number_changes(journal)
                while self._after is None and self._is_from_now and feed.has_more:
                    feed = number_changes(journal)
                # The first page has no cursor: the next one does, also if the first is empty.
                place = self._after or cursor_at(journal, feed, feed.last if self._is_from_now else 0)
                after = find_place(journal, feed, place)
                page = read_changes(journal, feed, after=after, limit=limit)
                now = find_feed(journal)
                if now is not None and now.prunings == feed.prunings:  # else some may have gone before they were read
                    # An empty page has passed those that were pruned: nothing is to be read up to the last one.
                    return max(after, feed.last), page[-1].change.cursor if page else place, page

        self._number, self._after, page = await self._store.write(read)
        self._page.extend(page)


class ConsumerChanges:
    """Iterator over an account's changes for a named consumer; the store keeps its place.

    Another process that reads with the same name waits while this one goes on. Where this is left without `aclose`, the
    next iterator of the process goes on in its place: changes hold its reader, but not the iterator itself.
    """

    def __init__(self, store: AccountStore, name: str, **options: Any) -> None:
        self._new_reader = partial(ConsumerReader, store, name, **options)
        self._left, self._name = store.left_consumers, name
        self._take_place()

    def _take_place(self) -> None:
        me = self._left.pop(self._name, None) or uuid.uuid4().hex
        self._reader = self._new_reader(me=me)
        self._leave = weakref.finalize(self, self._left.__setitem__, self._name, me)
        self._leave.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PaymentChange:
        if not self._leave.alive:  # it is used again after an error
            self._take_place()
        try:
            return await self._reader.next()
        except anyio.get_cancelled_exc_class():
            await self._reader.aclose()
            raise
        except StoreError:
            self._leave()  # the error's traceback may keep this alive, and the next iterator waiting
            raise

    async def begin(self) -> None:
        """Make the consumer, if there is none: from here on it gets each change, whenever it is first read."""
        await self._reader.begin()

    async def aclose(self) -> None:
        """Let another process go on as this consumer at once, rather than in a minute. It may be called again."""
        if self._leave.alive or self._left.get(self._name) == self._reader.me:  # else its place is another iterator's
            await self._reader.aclose()


@attrs.define(eq=False)
class ConsumerReader:
    """Reader of the changes for a consumer.

    Attributes:
        me: The holder of its lease.
    """

    _store: AccountStore
    _name: str
    me: str
    _start: str | None = attrs.field(kw_only=True)
    _is_endless: bool = attrs.field(kw_only=True)
    _utcnow: Callable[[], datetime] = attrs.field(kw_only=True)
    _on_event: Handler | None = attrs.field(kw_only=True)
    _page: deque[FeedEntry] = attrs.field(factory=deque, init=False)
    # Payments that lag behind since this page was read.
    _held: set[str] = attrs.field(factory=set, init=False)
    _has_begun: bool = attrs.field(default=False, init=False)
    _delivery: Delivery | None = attrs.field(default=None, init=False)
    _leased_until: float = attrs.field(default=-math.inf, init=False)
    # The last fresh change that was handed out, and the first one that is neither done nor failed.
    _last: FeedEntry | None = attrs.field(default=None, init=False)
    _open: int | None = attrs.field(default=None, init=False)
    # Numbers of the changes on the page that come again: the try of each counts when its turn comes.
    _uncounted: set[int] = attrs.field(factory=set, init=False)
    # Changes that came again and are not done, with the number of the last fresh one before each.
    _again: dict[int, int] = attrs.field(factory=dict, init=False)

    async def begin(self) -> None:
        """Make the consumer, if there is none, whichever process may read."""
        now = self._utcnow()
        await self._store.write(lambda journal: self._find(ConsumerTable(journal, self._name), now))

    async def aclose(self) -> None:
        """Give the lease back, and let the changes that were handed out come again at once."""
        self._begin_again()
        await leave_consumers(self._store, self.me, is_closed=True)

    async def done(self, cursor: str) -> None:
        """Record that a change, and those handed out before it, are handled."""
        number, now, delivery = number_of(cursor), self._utcnow(), self._require_open()
        place = self._again.get(number, number)
        before = list(self._again)
        if number in self._again:
            again = before[: before.index(number) + 1]
        else:
            # A change may be done after all that had failed.
            again = [each for each in before if self._again[each] < number] + [number] * bool(self._held)

        await self._record(cursor, lambda table, _: table.done(place, again, now, upto=delivery.upto))
        for each in again:
            self._again.pop(each, None)
        if self._open is not None and self._open <= place:
            self._open_after(place)

    async def failed(self, change: PaymentChange, reason: str) -> None:
        """Record that a change could not be handled, so that it comes again."""
        number, now, delivery = number_of(change.cursor), self._utcnow(), self._require_open()
        is_next = number not in self._again and self._open == number

        def failed(table: ConsumerTable, name: str) -> bool:
            return table.failed(name, number, now, reason, upto=delivery.upto, is_next=is_next)

        async def record() -> None:
            if await self._record(change.cursor, failed):
                self._report(change)

        await shielded(record)  # once it is parked, a change is reported by this task or never
        self._again.pop(number, None)
        self._held.add(_name_of(change))
        if is_next:
            self._open_after(number)

    def _open_after(self, number: int) -> None:
        assert self._last is not None
        self._open = number + 1 if number < self._last.number else None

    def _require_open(self) -> Delivery:
        if self._delivery is None:
            said = f"consumer {self._name!r} was closed, or begins again: the change will be handed out again"
            raise StoreError(said, outcome="not_sent")
        return self._delivery

    def _begin_again(self) -> None:
        """Forget all changes that were read: they come again, from the place that the store keeps."""
        self._page.clear()
        self._again.clear()
        self._delivery = self._last = self._open = None

    async def next(self) -> PaymentChange:
        """Return the next change, or raise `StopAsyncIteration`."""
        await checkpoint()
        while True:
            while self._page:
                entry, now = self._page[0], self._utcnow()
                if entry.name in self._held:
                    self._page.popleft()
                elif entry.number not in self._uncounted and anyio.current_time() < self._leased_until - _LEASE / 2:
                    return self._hand_out(self._page.popleft())
                elif await self._leased(partial(ConsumerTable.try_again, number=entry.number, now=now)) is None:
                    self._begin_again()
                else:
                    self._uncounted.discard(entry.number)
            if not await self._take():
                await anyio.sleep(_RIVAL_PAUSE)
            elif not self._page and self._delivery is not None and self._delivery.is_end:
                await prune(self._store, self._utcnow)
                if not self._is_endless:
                    await self.aclose()
                    raise StopAsyncIteration
                await self._wait(self._delivery)

    def _hand_out(self, entry: FeedEntry) -> PaymentChange:
        assert self._delivery is not None
        if any(each is entry for each in self._delivery.again):
            self._again.pop(entry.number, None)
            self._again[entry.number] = 0 if self._last is None else self._last.number
        else:
            self._last, self._open = entry, entry.number if self._open is None else self._open
        return entry.change

    async def _wait(self, delivery: Delivery) -> None:
        until, next_at = self._leased_until - _LEASE / 2, delivery.next_at
        if next_at is not None:
            until = min(until, anyio.current_time() + max(0.0, (next_at - self._utcnow()).total_seconds()))
        await self._store.wait_for_changes(delivery.upto, until=until)

    async def _take(self) -> bool:
        """Read the next page; return False while another process has the lease."""
        now, delivery, last = self._utcnow(), self._delivery, self._last

        def take(table: ConsumerTable) -> Delivery:
            feed, row = self._find(table, now)
            after: int = row.number
            # Not on a store that was restored since the last page.
            if delivery is not None and (last is None or name_at(table.journal, last.change.cursor)):
                after = max(after, min(delivery.upto, feed.last))
            # The last change of another process may have ended it.
            tried = None if self._has_begun else row.tried
            return table.take(feed, row, now, after=after, limit=_PAGE, tried=tried, reader=self)

        taken = await self._leased(take)
        if taken is None:
            self._begin_again()
            return False
        self._delivery, self._has_begun = taken, True
        self._uncounted = {each.number for each in taken.again}
        self._held.clear()
        self._page.extend([*taken.again, *taken.fresh])
        for entry in taken.parked:
            self._report(entry.change)
        return True

    def _find(self, table: ConsumerTable, now: datetime) -> tuple[Feed, Row]:
        """Return the feed and the consumer's row, which is made at its first use."""
        feed = number_changes(table.journal)
        while self._start == "now" and feed.has_more:
            feed = number_changes(table.journal)
        # One that is forgotten meanwhile is not made again: it would begin behind the changes that it has not read.
        return feed, table.lock(feed, None if self._has_begun else self._start, now)

    async def _record(self, cursor: str, work: Callable[[ConsumerTable, str], T]) -> T:
        """Run work of `done` or `failed` about a change; if it fails, begin again at the place that the store keeps."""

        def run(table: ConsumerTable) -> T:
            if (name := name_at(table.journal, cursor)) is None:
                said = f"the store was restored: it does not have the change that consumer {self._name!r} had"
                raise StoreError(said, outcome="not_sent")
            return work(table, name)

        try:
            if anyio.current_time() < self._leased_until - _LEASE / 2:
                # Not on disk yet: after a power cut, the change comes again.
                return await self._store.database.write(lambda each: run(self._table(each)), durable=False)
            result = await self._leased(lambda table: (run(table),))
        except StoreError:
            self._begin_again()
            raise
        if result is None:
            self._begin_again()
            said = f"another process has taken over as consumer {self._name!r}: the change may be handled twice"
            raise StoreError(said, outcome="not_sent")
        return result[0]

    async def _leased(self, work: Callable[[ConsumerTable], T]) -> T | None:
        """Take or renew the lease, and run work in the same transaction; None if another process has the lease.

        Also None if one has had it since the page was read: that may be behind the place of the store.
        """
        name, account, began = _lease_name(self._name), self._store.account, anyio.current_time()
        options: dict[str, Any] = {"by": Holder(self.me), "ttl": _LEASE, "only_renew": self._delivery is not None}

        def run(connection: sa.Connection, clock: Clock) -> T | None:
            if not change_lease(connection, account, name, clock=clock, **options):
                return None
            return work(self._table(connection))

        # Noted before the lease is taken: this task may be cancelled, or leave the iterator without closing it.
        self._store.consuming[self.me] = self._name
        result, _ = await self._store.database.timed(run, durable=True)
        # Without the lease nothing is left to hand out: each caller begins again.
        self._leased_until = began + _LEASE
        return result

    def _table(self, connection: sa.Connection) -> ConsumerTable:
        return ConsumerTable(Journal(connection, self._store.account), self._name)

    def _report(self, change: PaymentChange) -> None:
        """Report a change that is handed out no more."""
        emit(self._on_event, ChangeParked(consumer=self._name, key=change.key, cursor=change.cursor))
        said = "consumer %r of account %r could not handle a change of %r %d times: parked"
        logger.error(said, self._name, self._store.account, _name_of(change), MOST_TRIES)


def _name_of(change: PaymentChange) -> str:
    return change.key or (change.transaction.transaction_id if change.transaction else "")


def _lease_name(consumer: str) -> str:
    return f"consumer:{consumer}"


async def prune(store: AccountStore, utcnow: Callable[[], datetime]) -> None:
    """Delete old changes, at most once a minute: called by a reader that has numbered and read them all."""
    now = utcnow()
    if store.pruned_at is not None and abs(now - store.pruned_at) < _PRUNE_EVERY:
        return
    store.pruned_at = now
    after: int | None = 0

    def work(journal: Journal, at: datetime) -> int | None:
        return prune_changes(journal, at - store.keep_changes, after or 0)

    while after is not None:
        after = await store.decide(work, utcnow)


async def forget_unread(store: AccountStore, consumer: str) -> None:
    """Delete a consumer as which nobody reads; raise `StoreError` if somebody does, or if there is none.

    Its reader would begin again, behind changes that it has not handled.
    """
    me = new_holder(None)

    def forget(connection: sa.Connection, clock: Clock) -> None:
        change = partial(change_lease, connection, store.account, _lease_name(consumer), by=me, clock=clock)
        if not change(ttl=_LEASE):
            said = f"a process reads as consumer {consumer!r}, or was killed a moment ago: end it, or wait a minute"
            raise StoreError(said, outcome="not_sent")
        change(ttl=None)
        if not forget_consumer(Journal(connection, store.account), consumer):
            raise StoreError(f"there is no consumer {consumer!r}", outcome="not_sent")

    await store.database.timed(forget, durable=True)


async def leave_consumers(store: AccountStore, *holders: str, is_closed: bool = False) -> None:
    """Give back the leases of readers, of all by default, so that others go on as their consumers at once.

    Unless they were closed, the first change that each has handed out comes again after a pause: its handler may have
    failed.
    """
    names = {me: store.consuming.pop(me) for me in holders or list(store.consuming) if me in store.consuming}

    def leave(connection: sa.Connection, clock: Clock) -> None:
        for me, name in names.items():
            had = change_lease(connection, store.account, _lease_name(name), by=Holder(me), ttl=None, clock=clock)
            if had and is_closed:
                ConsumerTable(Journal(connection, store.account), name).close()

    if names:
        await shielded(lambda: store.database.timed(leave), timeout=_SHIELD, ignored=StoreError)
