"""The rate limiter of a process that shares its merchant's budget with others, through the store.

Who owns what: the row in the database owns the budget, and `budget.reserve` changes it; `Reservations` holds what this
process has reserved and not used; lanes and timekeeper are those of `RateLimiter`. Only the timekeeper asks the
database, so a process has one reservation under way at most, and none while nobody waits.

Invariant: a slot is used by one request, within `_slack` of its time, or by none.
"""

from __future__ import annotations

import math
import os
import uuid
from collections import deque
from collections.abc import Callable

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from mobilemoney_async.calls.bucket import Bucket, Usage
from mobilemoney_async.calls.limiter import LaneQueue, Limiter, RateLimiter
from mobilemoney_async.contract.endpoints import Priority
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.schema import budgets
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.sharing.budget import InLine, Limit, Request, Reservation, reserve
from mobilemoney_async.values import require_seconds

_ASK_AT_ONCE = -math.inf


class Reservations:
    """The places that were reserved, in place of a bucket. Times are those of the event loop, where not said otherwise.

    Args:
        fleet: What all processes have used, at first.
        slack: How late a slot may be used, seconds.
        clock: Returns the time.
    """

    def __init__(self, fleet: Bucket, slack: float, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._slack = slack
        self._clock = clock
        self._offset = 0.0
        self._slots: deque[float] = deque()  # of the store's clock
        self._last = 0.0
        self.unused: list[float] = []  # of the store's clock
        self.held_until: float | None = None
        """The end of a hold that the store does not know yet."""

    def ready_at(self) -> float:
        """Return the time of the next slot, or infinity. What is too old to be used is put aside."""
        if self._slots:
            oldest = self._clock() - self._offset - self._slack
            while self._slots and self._slots[0] < oldest:
                self.unused.append(self._slots.popleft())
        return self._slots[0] + self._offset if self._slots else math.inf

    def fleet_ready_at(self) -> float:
        """Return when the next place of anybody is, as of the last reservation."""
        if self.held_until is not None:
            return math.inf
        return max(self._fleet.ready_at(), self._fleet.last_at()) + self._offset

    def take(self, now: float) -> None:
        """Use the next slot."""
        self._last = self._slots.popleft()

    def undo(self) -> None:
        """Take back the last `take`."""
        self._slots.appendleft(self._last)

    def hold(self, until: float) -> None:
        """Drop what was reserved, and remember to tell the store."""
        self._slots.clear()
        self.held_until = until if self.held_until is None else max(until, self.held_until)

    def usage(self, now: float) -> Usage:
        """Return how much all processes have used, as of the last reservation."""
        return self._fleet.usage(now - self._offset)

    def put(self, reservation: Reservation, offset: float) -> None:
        """Note a reservation; `offset` makes times of the store into times of the loop."""
        self._offset = offset
        self._fleet = reservation.bucket
        self._slots.extend(reservation.slots)


def share_limiter(store: AccountStore, limiter: Limiter) -> Limiter:
    """Return the limiter of all processes of a store. A limiter that is shared, or the caller's own, stays."""
    if not isinstance(limiter, RateLimiter):
        return limiter
    return SharedLimiter(limiter, store.database, store.account)


class SharedLimiter:
    """Paces the requests of one merchant from all processes that use one store, together under one limit.

    What `RateLimiter` promises, it promises of all of them, as far as the following goes:

    - A request costs a transaction, or a part of one: slots are reserved for all who wait, for a quarter of a second
      ahead. For so long a payment may wait behind what another process has reserved for a lower lane.
    - Among processes that wait in one lane each gets its turn.
    - A hold is told to the others with this process's next reservation, at once where somebody waits here; they learn
      of it with theirs, and may send what they have reserved.
    - What a process has reserved when it dies is not used: at most a quarter of a second of the limit.

    Args:
        limiter: The limit. Processes should agree on it. Where they do not, the stricter one is kept until nobody has
            used it for the length of its window.
        database: The store's.
        account: Whose budget it is.

    `acquire` raises `StoreError` where the store cannot be reached: nothing was sent. So does every other `acquire` of
    this process that is in line then; the next one asks the store again.
    """

    def __init__(self, limiter: RateLimiter, database: Database, account: str) -> None:
        self._database = database
        self._account = account
        # A slot is a time that was fixed before, where a bucket counts the request when it really goes. How late it may
        # be used comes on top of the jitter, which is about what happens on the way.
        self._slack = min(0.1, 0.05 * limiter.burst * 60 / limiter.per_minute)
        self._limit = Limit(
            per_minute=limiter.per_minute,
            burst=limiter.burst,
            window=limiter.window,
            jitter=limiter.jitter + self._slack,
        )
        self._slots = Reservations(self._limit.bucket(), self._slack, self._now)
        self._queue = LaneQueue(self._slots, limiter.per_minute, pause=self._pause)
        self._name = uuid.uuid4().hex[:12]
        self._ask_at = _ASK_AT_ONCE
        self._on_record: frozenset[Priority] = frozenset()
        self._is_asking = False
        self._is_outdated = False
        self._delay = 0.0

    def has_capacity(self) -> bool:
        """Return whether a request could go now without waiting, but for the store, as of the last reservation."""
        return not self._queue.length and min(self._slots.ready_at(), self._slots.fleet_ready_at()) <= self._now()

    def usage(self) -> Usage:
        """Return how much of the limit all processes have used of late, as of the last reservation."""
        return self._slots.usage(self._now())

    def hold(self, seconds: float) -> None:
        """Grant nothing for a while, in any process; see the class for when the others learn of it.

        Args:
            seconds: From now on, at least 0. A shorter hold does not end a longer one.

        Raises:
            InvalidRequest: `seconds` is out of its range.
        """
        self._slots.hold(self._now() + require_seconds("seconds", seconds, allow_zero=True))
        self._look_again()

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, ahead: bool = False) -> None:
        """Wait until a request may be sent.

        Args:
            priority: The lane.
            ahead: Whether to go to the head of the lane: for what those who wait there depend on.

        Raises:
            StoreError: The store failed, or cannot be reached; nothing was used up.
        """
        if self._queue.length and priority not in self._on_record:
            self._look_again()
        now = self._now()
        if not self._queue.take_free(now):
            await self._queue.wait(priority, now, ahead=ahead)

    def _now(self) -> float:
        return self._queue.now()

    def _look_again(self) -> None:
        """Ask the store as soon as there is no slot left: what it was told last has changed."""
        self._ask_at = _ASK_AT_ONCE
        self._is_outdated = True
        if self._queue.length and not self._is_asking and self._slots.ready_at() == math.inf:
            self._queue.look_again()

    async def _pause(self, now: float, ready_at: float) -> None:
        if ready_at < math.inf:
            await anyio.sleep(ready_at - now)
        elif self._ask_at > now:
            await anyio.sleep(self._ask_at - now)
        else:
            await checkpoint()  # whoever comes in the same moment is asked for too
            self._is_asking = True
            try:
                await self._ask()
            except StoreError as exc:
                self._fail(exc)
                raise
            finally:
                self._is_asking = False
            await checkpoint_if_cancelled()  # before a slot goes to one who left meanwhile

    async def _ask(self) -> None:
        request = self._request(self._now())
        self._is_outdated = False
        held_until = self._slots.held_until
        reservation, seen_at, offset = await self._reserve(request)
        # From here to the end nothing waits, so that no cancellation loses a slot.
        now = self._now()
        if self._slots.held_until != held_until:
            reservation = attrs.evolve(reservation, slots=())
        else:
            self._slots.held_until = None
        del self._slots.unused[: len(request.unused)]
        self._slots.put(reservation, offset)
        for priority, at in reservation.turns.items():
            self._queue.note_turn(priority, at + offset)
        # Slots are to lie so far ahead that they are not over when they are here.
        self._delay = max(0.0, now - (seen_at + offset) - self._slack / 2, 0.9 * self._delay)
        self._on_record = reservation.unserved
        again = reservation.ask_again_at
        self._ask_at = _ASK_AT_ONCE if again is None or self._is_outdated else again + offset

    async def _reserve(self, request: Request) -> tuple[Reservation, float, float]:
        """Return what the store gives, its time then, and what to add to its times to get those of the loop."""

        def work(connection: sa.Connection, clock: Clock) -> tuple[Reservation, float]:
            row = _locked_row(connection, self._account)
            now = clock()
            row, reservation = reserve(row, request, now)
            connection.execute(_UPDATE, {"of": self._account, "state": row})
            return reservation, now

        (reservation, seen_at), offset = await self._database.timed(work)
        return reservation, seen_at, offset

    def _request(self, now: float) -> Request:
        held_until = self._slots.held_until
        return Request(
            process=f"{self._name}-{os.getpid()}",
            limit=self._limit,
            waiting={priority: InLine(line.length, now - line.since) for priority, line in self._queue.lines().items()},
            delay=self._delay,
            hold=0.0 if held_until is None else max(0.0, held_until - now),
            unused=tuple(self._slots.unused),
        )

    def _fail(self, error: StoreError) -> None:
        """Let everybody in line have the error, each its own: the next in line would ask in vain, as long as this."""
        self._on_record = frozenset()
        self._queue.fail(error)


_OF_ACCOUNT = budgets.c.account == sa.bindparam("of")
_SELECT = sa.select(budgets.c.state).where(_OF_ACCOUNT).with_for_update()
_UPDATE = sa.update(budgets).where(_OF_ACCOUNT).values(state=sa.bindparam("state"))
_INSERT = sa.text("INSERT INTO mobilemoney_budgets (account, state) VALUES (:of, '') ON CONFLICT DO NOTHING")


def _locked_row(connection: sa.Connection, account: str) -> str | None:
    row = connection.execute(_SELECT, {"of": account}).scalar_one_or_none()
    if row is None:
        connection.execute(_INSERT, {"of": account})  # unless another process is doing it
        row = connection.execute(_SELECT, {"of": account}).scalar_one()
    return row or None
