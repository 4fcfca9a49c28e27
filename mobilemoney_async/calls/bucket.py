"""Rate limit as arithmetic, under every reading of "60 a minute, bursts of 10" (contract, section 8). Pure.

Two readings are kept at once, and a request is granted only where both allow it:

- a bucket of `burst` tokens, refilled at the rate;
- at most `limit` requests in any `window` seconds, which covers fixed minutes too.

The service counts a request when it arrives, not when we send it. An earlier request may have taken up to `jitter`
seconds longer than the next one, so that both look closer together from there; each reading keeps that distance.

Invariant: with s the times of the grants and T the seconds per token, for every j
    s[j] >= s[j - limit] + window + jitter            (the window)
    s[j] >= tat[j - burst] + jitter                   (the bucket)
where tat[i] = max(s[i], tat[i - 1]) + T is when the service's bucket has made up for grant i.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mobilemoney_async.contract.endpoints import Priority
from mobilemoney_async.contract.limits import POLLING_INTERVAL

# Seconds. What took less was not the wait for the limit, but the asking.
SHORTEST_WAIT = 0.001
# Seconds. A service may count both ends of its window, and its clock rounds as ours does.
_ROUNDING = 1e-6


class Usage(NamedTuple):
    """Recent use of the limit.

    Attributes:
        granted: Requests in the window that ends now.
        limit: Requests that may be made in any window.
        window: Its length, seconds.
        history: The time since the first of those requests, seconds; 0 where there was none.
    """

    granted: int
    limit: int
    window: float
    history: float


def patience(per_minute: float) -> dict[Priority, float]:
    """Return for each lane the seconds without a turn after which it is served before any other.

    A turn comes one interval after it fell due at the latest. On a very slow limiter the lower lanes may take a tenth
    of the turns.
    """
    interval = 60 / per_minute
    seconds = max(POLLING_INTERVAL, 10 * interval) - interval
    return {
        Priority.PAYMENT: float("inf"),
        Priority.LOOKUP: seconds,
        Priority.POLL: seconds,
        Priority.BULK: 3 * seconds,
    }


class Past(NamedTuple):
    """State of a bucket, in a form that can be stored."""

    grants: Sequence[float]  # the last requests, oldest first
    made_up: Sequence[float]  # for the last of them, when the service's bucket has made up for each
    held_until: float  # the end of the last hold, or minus infinity
    taken: int  # grants since the bucket was last emptied, at most a burst


class Places(Protocol):
    """Source of a queue's places, as `Bucket`: that, or reservations in a bucket that other processes use too."""

    def ready_at(self) -> float:
        """Return the time from which the next request may go; a time in the past means now."""

    def take(self, now: float) -> None:
        """Count a request that goes now; `ready_at` must allow it."""

    def undo(self) -> None:
        """Take back the last `take`, for a request that did not go."""


class Bucket:
    """Token bucket and sliding window in one. Times are monotonic seconds."""

    def __init__(self, *, per_minute: float, burst: int, window: float, jitter: float) -> None:
        self._limit = max(1, int(per_minute * window / 60 + 1e-9))
        self._burst = min(burst, self._limit)
        self._seconds_per_token = 60 / per_minute
        self._window = window
        self._jitter = jitter + _ROUNDING
        self._grants: deque[float] = deque(maxlen=self._limit)
        self._made_up: deque[float] = deque(maxlen=self._burst)
        self._held_until = float("-inf")
        self._taken = 0  # since it was last emptied

    def ready_at(self) -> float:
        """Return the time from which the next request may go; a time in the past means now."""
        ready = self._held_until
        if len(self._made_up) == self._burst:
            ready = max(ready, self._made_up[0] + self._jitter)
        if len(self._grants) == self._limit:
            ready = max(ready, self._grants[0] + self._window + self._jitter)
        return ready

    def last_at(self) -> float:
        """Return the time of the last take that counts, or minus infinity."""
        return self._grants[-1] if self._grants else float("-inf")

    def usage(self, now: float) -> Usage:
        """Return the recent use of the limit."""
        window = self._window + self._jitter
        recent = [at for at in self._grants if at > now - window]
        return Usage(
            granted=len(recent),
            limit=self._limit,
            window=window,
            history=now - recent[0] if recent else 0.0,
        )

    def take(self, now: float) -> None:
        """Count a request that goes now; `ready_at` must allow it."""
        made_up = now if not self._made_up or now > self._made_up[-1] else self._made_up[-1]
        self._made_up.append(made_up + self._seconds_per_token)
        self._grants.append(now)
        self._taken += 1

    def undo(self) -> None:
        """Take back the last `take`, for a request that did not go.

        The entries that the last take pushed out of the queues are not needed back: their bounds were met already.
        """
        self._grants.pop()
        if self._taken:
            self._taken -= 1
            self._made_up.pop()

    def hold(self, until: float) -> None:
        """Grant nothing before a time, and take the service's bucket to be empty then, as its answer says."""
        if until <= self._held_until:
            return
        self._held_until = until
        self._taken = 0
        known = [float("-inf")] * (self._burst - len(self._made_up)) + list(self._made_up)
        emptied_at = until - self._jitter
        self._made_up.extend(max(at, emptied_at + self._seconds_per_token * token) for token, at in enumerate(known))

    def dump(self) -> Past:
        """Return the state from which a bucket of the same limit can go on."""
        return Past(
            grants=tuple(self._grants),
            made_up=tuple(self._made_up),
            held_until=self._held_until,
            taken=min(self._taken, self._burst),
        )

    def load(self, past: Past) -> None:
        """Go on, as a new bucket, from the state of one of the same limit."""
        self._grants.extend(past.grants)
        self._made_up.extend(past.made_up)
        self._held_until = past.held_until
        self._taken = past.taken
