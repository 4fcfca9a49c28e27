"""Rate limiter of a process that shares its merchant's budget with others, through the store.

Owners of state: the row in the database owns the budget, and `budget.reserve` changes it; `Reservations` holds the
reserved slots of this process that are not used yet; lanes and timekeeper are those of `LaneQueue`.

Invariant: a slot is used by one request, within `_slack` of its time, or by none.

Critical section: only the timekeeper asks the database, so a process has at most one transaction under way, and none
while no request waits. During it other tasks may join and leave the queue, and call `hold`. Other processes wait for
the row's lock, which is held from the first statement to the commit.
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
from mobilemoney_async.database.prepared import run_later
from mobilemoney_async.database.schema import budgets, lock_row
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.sharing.budget import InLine, Limit, Reservation, ReservationRequest, reserve
from mobilemoney_async.tasks import loop_time
from mobilemoney_async.values import require_seconds

_ASK_AT_ONCE = -math.inf
_UPDATE = budgets.update().where(budgets.c.account == sa.bindparam("of")).values(state=sa.bindparam("state"))


def share_limiter(store: AccountStore, limiter: Limiter) -> Limiter:
    """Return the limiter of all processes of a store. One that is shared already, or a caller's own, stays as it is."""
    return SharedLimiter(limiter, store.database, store.account) if isinstance(limiter, RateLimiter) else limiter


class Reservations:
    """Reserved slots, in place of a bucket: each may be used `slack` seconds late, at most.

    Times are those of the event loop, unless stated otherwise. `fleet` is the bucket of all processes.
    """

    def __init__(self, fleet: Bucket, slack: float, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._slack = slack
        self._clock = clock
        self._offset = 0.0
        self._slots: deque[float] = deque()  # of the store's clock
        self._last = 0.0
        self.held_until: float | None = None
        """The end of a hold that is not in the store yet, or None."""

    def ready_at(self) -> float:
        """Return the time of the next slot, or infinity. Slots that are too old to be used are lost."""
        while self._slots and self._slots[0] < self._clock() - self._offset - self._slack:
            self._slots.popleft()
        return self._slots[0] + self._offset if self._slots else math.inf

    def fleet_ready_at(self) -> float:
        """Return the time of the next place of any process, as of the last reservation."""
        if self.held_until is not None:
            return math.inf
        return max(self._fleet.ready_at(), self._fleet.last_at()) + self._offset

    def take(self, now: float) -> None:
        """Use the next slot."""
        self._last = self._slots.popleft()

    def undo(self) -> None:
        """Take back the last `take`; in a hold that slot is lost, as those that were not used yet."""
        if self.held_until is None:
            self._slots.appendleft(self._last)

    def hold(self, until: float) -> None:
        """Drop the reserved slots, and keep the hold for the store."""
        self._slots.clear()
        self.held_until = until if self.held_until is None else max(until, self.held_until)

    def usage(self, now: float) -> Usage:
        """Return the part of the limit that all processes have used, as of the last reservation."""
        return self._fleet.usage(now - self._offset)

    def put(self, reservation: Reservation, offset: float) -> None:
        """Add a reservation. Adding `offset` to a time of the store gives one of the queue."""
        self._offset = offset
        self._fleet = reservation.bucket
        self._slots.extend(reservation.slots)


class SharedLimiter:
    """Rate limiter of one merchant for all processes that use one store, together under one limit.

    It makes the promises of `RateLimiter` for all of them, with these differences:

    - A request costs a transaction, or a part of one: slots are reserved for all requests in line, for a quarter of a
      second ahead. For so long a payment may wait behind slots that another process has reserved for a lower lane.
    - Among processes that wait in one lane each gets its turn.
    - A hold reaches the store with this process's next reservation, at once if a request waits here; the others get it
      with theirs, and may use the slots that they have reserved.
    - Slots that a process has reserved, and does not use since it dies or its calls leave, are lost: those that were
      free at once, and those of a quarter of a second.

    Processes should agree on the limit. If they do not, the stricter one is kept until no process has used it for the
    length of its window.

    `acquire` raises `StoreError` if the store cannot be reached: nothing was sent. So does every other `acquire` of
    this process that is in line then; the next one asks the store again.
    """

    def __init__(self, limiter: RateLimiter, database: Database, account: str) -> None:
        self._database = database
        self._account = account
        # A slot is a time fixed in advance, while a bucket counts the request when it is really sent. The permitted
        # delay comes on top of the jitter, which covers the way to the service.
        self._slack = min(0.25, 0.05 * limiter.burst * 60 / limiter.per_minute)
        self.per_minute: float = limiter.per_minute
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
        self._delay = self._last_delay = 0.0

    def has_capacity(self) -> bool:
        """Return whether a request could go now, waiting for the store only, as of the last reservation."""
        return not self._queue.length and min(self._slots.ready_at(), self._slots.fleet_ready_at()) <= self._now()

    def usage(self) -> Usage:
        """Return the part of the limit that all processes have used of late, as of the last reservation."""
        return self._slots.usage(self._now())

    def hold(self, seconds: float) -> None:
        """Grant nothing for a while, in any process: see `Limiter.hold`, and the class for when others notice."""
        self._slots.hold(self._now() + require_seconds("seconds", seconds, allow_zero=True))
        self._look_again()

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, front_of_lane: bool = False) -> None:
        """Wait until a request may be sent; see `Limiter.acquire`."""
        if self._queue.length and priority not in self._on_record:
            self._look_again()
        now = self._now()
        if not self._queue.take_free(now):
            await self._queue.wait(priority, now, front_of_lane=front_of_lane)

    def _now(self) -> float:
        return self._queue.now()

    def _look_again(self) -> None:
        """Ask the store as soon as there is no slot left: the last request is outdated."""
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
            await checkpoint()  # requests that come in the same moment are included
            self._is_asking = True
            try:
                await self._ask()
            except StoreError as exc:
                # For all in line: the next one would wait for the store just as long.
                self._on_record = frozenset()
                self._queue.fail(exc)
                raise
            finally:
                self._is_asking = False
            await checkpoint_if_cancelled()  # before a slot goes to a request that has left

    async def _ask(self) -> None:
        now, held_until = self._now(), self._slots.held_until
        request = ReservationRequest(
            process=f"{self._name}-{os.getpid()}",
            limit=self._limit,
            waiting={priority: InLine(line.length, now - line.since) for priority, line in self._queue.lines().items()},
            delay=self._delay,
            hold=0.0 if held_until is None else max(0.0, held_until - now),
        )
        self._is_outdated = False
        reservation, seen_at, offset = await self._reserve(request)
        # No await from here to the end: a cancellation cannot lose a slot.
        now = self._now()
        if self._slots.held_until != held_until:
            # A hold came during the transaction: these slots are before its end.
            reservation = attrs.evolve(reservation, slots=())
        else:
            self._slots.held_until = None
        self._slots.put(reservation, offset)
        for priority, at in reservation.turns.items():
            self._queue.note_turn(priority, at + offset)
        # Slots must be so far ahead that they are still to come when this process has them. One that was stopped for a
        # minute, once, must not wait for another minute: two reservations in a row show that the store is slow.
        delay, last = now - (seen_at + offset) - self._slack / 2, self._last_delay
        self._delay, self._last_delay = max(0.0, min(delay, last), 0.5 * self._delay), delay
        self._on_record = reservation.unserved
        again = reservation.ask_again_at
        self._ask_at = _ASK_AT_ONCE if again is None or self._is_outdated else again + offset

    async def _reserve(self, request: ReservationRequest) -> tuple[Reservation, float, float]:
        """Return the reservation, the store's time, and the seconds to add to that to get the queue's."""

        def work(connection: sa.Connection, clock: Clock) -> tuple[Reservation, float]:
            row = lock_row(connection, budgets, {"account": self._account}, state="")
            # From here to the commit no other process of the account reserves.
            now = clock()
            state, reservation = reserve(row.state or None, request, now)
            run_later(connection, _UPDATE, {"of": self._account, "state": state})
            return reservation, now

        (reservation, seen_at), offset = await self._database.timed(work, share_key=(self._account,))
        return reservation, seen_at, offset + self._now() - loop_time()
