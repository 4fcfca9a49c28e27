"""Rate limiter: lanes of waiting requests over a bucket.

The bucket (or a store's reservations in its place) owns the times of the next places, the lanes own the waiting
requests. There is no background task: exactly one waiter, the *timekeeper*, sleeps until the next place and grants it
to the first in line. When its own turn comes, or it is cancelled, the last in line becomes the timekeeper, so that a
queue of thousands runs on one timer.

Invariant: while requests wait, there is exactly one timekeeper, and only it grants places: a place that is given back
goes to the bucket, since the service may have asked for a hold in between.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, Self, runtime_checkable

import anyio
import attrs

from mobilemoney_async.calls.bucket import Bucket, Places, Usage, patience
from mobilemoney_async.contract.endpoints import Priority
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.tasks import LoopClock, running_loop
from mobilemoney_async.values import refuse, require_integer, require_seconds

# Seconds, below the resolution of clocks and floats: a timer may ring this much early.
_TICK = 1e-9


@runtime_checkable
class Limiter(Protocol):
    """Rate limiter as calls, pages and the poller use it; `RateLimiter` documents the methods.

    Where many processes share the limit, `acquire` raises `StoreError` if the store fails; nothing is used up then.
    """

    def has_capacity(self) -> bool:
        """Return whether a request could go now without waiting."""

    def usage(self) -> Usage:
        """Return the recent use of the limit, by all processes."""

    def hold(self, seconds: float) -> None:
        """Grant nothing for a while, as the service asked."""

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, front_of_lane: bool = False) -> None:
        """Wait until a request may be sent."""


@attrs.define(eq=False)
class _Waiter:
    """Request in line."""

    since: float
    woken: anyio.Event  # it has a grant or an error, or becomes the timekeeper
    granted: bool = False
    error: Exception | None = None  # then it is in line no longer


@attrs.define(eq=False)
class _Lane:
    """Line of requests of one priority: after `patience` seconds without a turn, it is served before any other."""

    patience: float
    last_turn: float = float("-inf")
    waiters: OrderedDict[_Waiter, None] = attrs.field(factory=OrderedDict)

    def is_overdue(self, now: float) -> bool:
        """Return whether the first in a line that is not empty has waited long enough."""
        first = next(iter(self.waiters))
        return now >= max(first.since, self.last_turn) + self.patience


class LaneState(NamedTuple):
    """Requests that wait in one lane.

    Attributes:
        length: Their number, at least 1.
        since: When the first of them came, by the event loop's clock.
    """

    length: int
    since: float


async def _sleep(now: float, ready_at: float) -> None:
    await anyio.sleep(ready_at - now)


class OneLoop:
    """Guard of things for which only one event loop may wait at a time.

    A value that a task in one thread sets is not seen by a task in another thread: it would wait for ever.
    """

    __slots__ = ("_inside", "_loop")

    def __init__(self) -> None:
        self._loop: dict[None, object] = {}  # `setdefault` is atomic among threads
        self._inside = 0

    def enter(self, loop: object) -> None:
        """Begin to wait in an event loop.

        Raises:
            InvalidRequest: Another event loop waits.
        """
        if self._loop.setdefault(None, loop) is not loop:
            raise InvalidRequest(
                "client must be used in one event loop at a time, and it waits in another one: make a client in each "
                "thread, with a rate limiter and a login of its own; one store serves all of them",
                argument="client",
            )
        self._inside += 1

    def leave(self) -> None:
        """End a wait that `enter` began."""
        self._inside -= 1
        if not self._inside:
            self._loop.clear()


class LoopLock:
    """Lock that is held, and waited for, in one event loop at a time; entering it elsewhere raises `InvalidRequest`."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._loop = OneLoop()

    def locked(self) -> bool:
        """Return whether a task holds it."""
        return self._lock.locked()

    async def __aenter__(self) -> None:
        self._loop.enter(running_loop())
        try:
            await self._lock.acquire()
        except BaseException:
            self._loop.leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._loop.leave()


class LaneQueue:
    """Queue of the requests that wait for the rate limit, by lane, on one timer.

    Attributes:
        length: The number of requests in line, in all lanes.
        now: Returns the time; each run of trio has a clock of its own, and this one goes on.

    Args:
        places: The source of places.
        per_minute: Requests a minute, from which follows how long a lane goes without a turn.
        pause: Awaited by the timekeeper with the time now and the time of the next place; returns at that time or
            before it.
    """

    __slots__ = (
        "_alarm",
        "_clock",
        "_lanes",
        "_loop",
        "_pause",
        "_places",
        "_timekeeper",
        "length",
        "now",
    )

    def __init__(
        self, places: Places, per_minute: float, *, pause: Callable[[float, float], Awaitable[None]] = _sleep
    ) -> None:
        self.length: int = 0
        self._places = places
        self._pause = pause
        self._lanes = {priority: _Lane(seconds) for priority, seconds in patience(per_minute).items()}
        self._loop = OneLoop()
        self._timekeeper: _Waiter | None = None
        self._alarm: anyio.CancelScope | None = None
        self._clock = LoopClock()
        self.now: Callable[[], float] = self._clock.now

    def take_free(self, now: float) -> bool:
        """Take a place if one is free and nothing waits for it."""
        if self.length or self._places.ready_at() > now:
            return False
        self._places.take(now)
        return True

    def lines(self) -> dict[Priority, LaneState]:
        """Return the lanes in which requests wait."""
        return {
            priority: LaneState(len(lane.waiters), next(iter(lane.waiters)).since)
            for priority, lane in self._lanes.items()
            if lane.waiters
        }

    def note_turn(self, priority: Priority, at: float) -> None:
        """Note that a lane had a turn elsewhere, at a time of this loop."""
        lane = self._lanes[priority]
        lane.last_turn = max(lane.last_turn, at)

    def look_again(self) -> None:
        """Let the timekeeper ask again for the time of the next place, which has changed."""
        if self._alarm is not None:  # else nothing has waited yet
            self._alarm.cancel()

    def fail(self, error: Exception) -> None:
        """End the wait of all in line, each with its own copy of an error."""
        for lane in self._lanes.values():
            for waiter in lane.waiters:
                waiter.error = copy.copy(error)
                waiter.woken.set()
            lane.waiters.clear()
        self.length = 0

    async def wait(self, priority: Priority, now: float, *, front_of_lane: bool) -> None:
        """Wait for a place in a lane from `now` on, and take it. Cancelling gives it back.

        Raises the error given to `fail` while this one was in line, or raised by `pause` while it kept the time, and
        `InvalidRequest` while others wait in another event loop, or where there is no such lane.
        """
        assert self._clock.backend is not None  # since `now` was read
        lane = self._lane(priority)
        self._loop.enter(running_loop())
        # `anyio.Event()` would ask once more which library runs, and set the event up twice: felt in a long queue.
        waiter = _Waiter(now, self._clock.backend.create_event())
        lane.waiters[waiter] = None
        if front_of_lane:
            lane.waiters.move_to_end(waiter, last=False)
        self.length += 1
        if self._timekeeper is None:
            self._timekeeper = waiter
        try:
            while not waiter.granted:
                if waiter.error is not None:
                    raise waiter.error
                if waiter is self._timekeeper:
                    await self._keep_time(waiter)
                else:
                    await waiter.woken.wait()
        except BaseException:
            # Cancelled, or failed: no await from here to the end, so that no other task sees a place half returned.
            if waiter.granted:
                self._give_back()
            elif waiter.error is None:
                del lane.waiters[waiter]
                self.length -= 1
            raise
        finally:
            if waiter is self._timekeeper:
                self._appoint_timekeeper()
            self._loop.leave()

    def _lane(self, priority: Priority) -> _Lane:
        try:
            return self._lanes[priority]
        except KeyError:
            raise refuse("priority", "a Priority", priority) from None

    async def _keep_time(self, me: _Waiter) -> None:
        """Hand out grants as they fall due, until one is this waiter's own."""
        while not me.granted:
            # Other tasks cancel this scope, by `look_again` and `_give_back`, to have the time of the next place read
            # again. It has no deadline: a scope that ends by itself, thousands of times, costs more than the sleep.
            with anyio.CancelScope() as self._alarm:
                now = self.now()
                while not me.granted:
                    ready_at = self._places.ready_at()
                    if ready_at > now + _TICK:
                        await self._pause(now, ready_at)
                        now = self.now()
                        continue
                    # No await between taking the place and granting it: nothing can be cancelled in between.
                    granted_at = max(now, ready_at)
                    self._places.take(granted_at)
                    self._grant_to_next(granted_at)

    def _grant_to_next(self, now: float) -> None:
        waiting = [lane for lane in self._lanes.values() if lane.waiters]
        lane = waiting[0]
        if len(waiting) > 1:
            lane = next((each for each in waiting if each.is_overdue(now)), lane)
        waiter, _ = lane.waiters.popitem(last=False)
        self.length -= 1
        lane.last_turn = now
        waiter.granted = True
        waiter.woken.set()

    def _give_back(self) -> None:
        """Take back the place of a request that was cancelled before it could use it; the timekeeper looks again."""
        self._places.undo()
        assert self._alarm is not None  # there was a timekeeper: it gave the grant
        self._alarm.cancel()

    def _appoint_timekeeper(self) -> None:
        """Let the last in line keep the time: it is the one that stays longest."""
        lane = next((lane for lane in reversed(self._lanes.values()) if lane.waiters), None)
        self._timekeeper = None if lane is None else next(reversed(lane.waiters))
        if self._timekeeper is not None:
            self._timekeeper.woken.set()


class RateLimiter:
    """Rate limiter of one merchant's requests, so that no reading of the service's limit rejects them.

    Grants a place only where a token bucket of `burst` refilled at the rate *and* a sliding window both allow it
    (contract, section 8). One limiter may serve any number of clients of the same merchant on one event loop.

    Lanes are served in the order of `Priority`, first come first served inside a lane. No lane starves: a lookup or
    a poll gets a turn about every 10 s (the contract's recommended polling rate) under saturating payments, bulk
    work every 30 s, beyond pauses that the limit itself forces.

    Attributes:
        per_minute: As given.
        burst: As given.
        window: As given.
        jitter: As given, or the default.

    Args:
        per_minute: Requests a minute, more than 0.
        burst: Requests that may go at once, at least 1.
        window: Length of the sliding window, seconds, more than 0. At most ``per_minute * window / 60`` requests go
            in any such time. A sandbox that runs at twenty times the speed has a window of 3 s.
        jitter: The most by which one request may take longer to the service than another, seconds. Kept as a distance
            between requests, so that requests which catch up with each other are not rejected. By default 5 % of the
            time in which the bucket fills, at most 0.5.

    Raises:
        InvalidRequest: A value is out of its range.
    """

    def __init__(
        self,
        per_minute: float = REQUESTS_PER_MINUTE,
        burst: int = BURST,
        *,
        window: float = 60.0,
        jitter: float | None = None,
    ) -> None:
        is_number = isinstance(per_minute, int | float) and not isinstance(per_minute, bool)
        if not is_number or not 0 < per_minute <= sys.float_info.max:
            raise refuse("per_minute", "a number of requests more than 0", per_minute)
        require_integer("burst", burst, 1)
        require_seconds("window", window)
        interval = 60 / per_minute
        if jitter is None:
            jitter = min(0.5, 0.05 * burst * interval)
        require_seconds("jitter", jitter, allow_zero=True)
        self.per_minute: float = per_minute
        self.burst: int = burst
        self.window: float = window
        self.jitter: float = jitter
        self._bucket = Bucket(per_minute=per_minute, burst=burst, window=window, jitter=jitter)
        self._queue = LaneQueue(self._bucket, per_minute)

    def has_capacity(self) -> bool:
        """Return whether a request could go now without waiting. Call it inside the event loop."""
        return not self._queue.length and self._bucket.ready_at() <= self._queue.now()

    def usage(self) -> Usage:
        """Return the recent use of the limit, by all its clients. Call it inside the event loop."""
        return self._bucket.usage(self._queue.now())

    def hold(self, seconds: float) -> None:
        """Grant nothing for a while, as the service asked; afterwards go on at the steady rate, without a burst.

        Args:
            seconds: From now on, at least 0. A shorter hold does not end a longer one.

        Raises:
            InvalidRequest: `seconds` is out of its range.
        """
        self._bucket.hold(self._queue.now() + require_seconds("seconds", seconds, allow_zero=True))

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, front_of_lane: bool = False) -> None:
        """Wait until a request may be sent.

        A free place is taken without yielding to the event loop, which can happen `burst` times in a row only.
        Cancelling gives the place back and uses nothing up.

        Args:
            priority: The lane.
            front_of_lane: Whether to go to the head of the lane: for a request that those in line depend on.

        Raises:
            InvalidRequest: Requests wait in another event loop, or `priority` is not one.
        """
        now = self._queue.now()
        if not self._queue.take_free(now):
            await self._queue.wait(priority, now, front_of_lane=front_of_lane)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        return None
