"""The rate limit as arithmetic: what every reading of "60 a minute, bursts of 10" allows (contract, section 8).

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

import attrs

# Seconds. A service may count both ends of its window, and its clock rounds as ours does.
_ROUNDING = 1e-6


@attrs.frozen(kw_only=True)
class Usage:
    """How much of the limit has been used of late.

    Attributes:
        granted: Requests in the window that ends now.
        limit: Requests that may be made in any window.
        window: Its length, seconds.
        history: How long ago the first of those requests was, seconds; 0 where there was none.
    """

    granted: int
    limit: int
    window: float
    history: float


class Bucket:
    """When the next request may go. Times are monotonic seconds."""

    __slots__ = ("_emptied", "_grants", "_held_until", "_jitter", "_made_up", "_seconds_per_token", "_window")

    def __init__(self, *, per_minute: float, burst: int, window: float, jitter: float) -> None:
        limit = max(1, int(per_minute * window / 60 + 1e-9))
        self._seconds_per_token = 60 / per_minute
        self._window = window
        self._jitter = jitter + _ROUNDING
        self._grants: deque[float] = deque(maxlen=limit)
        self._made_up: deque[float] = deque(maxlen=min(burst, limit))
        self._held_until = float("-inf")
        self._emptied = False  # since the last take

    def ready_at(self) -> float:
        """Return from when on the next request may go; a time in the past means now."""
        ready = self._held_until
        if len(self._made_up) == self._made_up.maxlen:
            ready = max(ready, self._made_up[0] + self._jitter)
        if len(self._grants) == self._grants.maxlen:
            ready = max(ready, self._grants[0] + self._window + self._jitter)
        return ready

    def usage(self, now: float) -> Usage:
        """Return how much of the limit has been used."""
        window = self._window + self._jitter
        recent = [at for at in self._grants if at > now - window]
        return Usage(
            granted=len(recent),
            limit=self._grants.maxlen or 1,
            window=window,
            history=now - recent[0] if recent else 0.0,
        )

    def take(self, now: float) -> None:
        """Count a request that goes now; `ready_at` must have said that it may."""
        made_up = now if not self._made_up or now > self._made_up[-1] else self._made_up[-1]
        self._made_up.append(made_up + self._seconds_per_token)
        self._grants.append(now)
        self._emptied = False

    def undo(self) -> None:
        """Take back the last `take`, for a request that did not go.

        What the last take pushed out of the queues is not needed back: it held already when the take was allowed.
        """
        self._grants.pop()
        if not self._emptied:
            self._made_up.pop()

    def hold(self, until: float) -> None:
        """Grant nothing before a time, and take the service's bucket to be empty then: it has just said so."""
        if until <= self._held_until:
            return
        self._held_until = until
        self._emptied = True
        burst = self._made_up.maxlen or 1
        emptied = [until - self._jitter + self._seconds_per_token * token for token in range(burst)]
        known = [0.0] * (burst - len(self._made_up)) + list(self._made_up)
        self._made_up.clear()
        self._made_up.extend(max(pair) for pair in zip(emptied, known, strict=True))
