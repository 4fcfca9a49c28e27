"""The request limit of one merchant: "60 requests per minute, short bursts of 10" (`contract.md` section 8).

The contract's words have several readings. All are counted side by side over the accepted requests, and the choice
says which of them may reject. A rejected request counts in none.
"""

import collections

import attrs

from mobilemoney_async.sandbox.behaviour import RateLimitReading

PER_MINUTE = 60
BURST = 10

_TOLERANCE = 1e-6
"""Seconds. A request that is early by no more than rounding errors is not early."""


@attrs.frozen(kw_only=True)
class RateBudget:
    """What is left of one merchant's limit at one moment.

    Args:
        bucket_left: Requests that the bucket holds, 0 to `burst`; it fills steadily, so this is no whole number.
        window_used: Requests accepted within the last `window_seconds`; under the reading `"fixed"`, since that minute
            began.
        per_window: How many of them may be accepted.
        burst: How many the bucket holds when it is full.
        window_seconds: Real seconds: 60 divided by the sandbox's speed.
        next_in: Real seconds until a request is accepted; 0 if one would be now.
    """

    bucket_left: float
    window_used: int
    per_window: int
    burst: int
    window_seconds: float
    next_in: float


class RateLimit:
    """What one merchant has used up.

    Args:
        speed: The limit is this many times the documented one: the rate is multiplied and the minute divided by it.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self._rate = speed * PER_MINUTE / 60
        self._minute = 60 / speed
        self._tokens = float(BURST)
        self._counted_at = 0.0
        self._recent: collections.deque[float] = collections.deque(maxlen=PER_MINUTE)
        self._this_minute = (0, 0)

    def wait(self, reading: RateLimitReading | None, now: float) -> float:
        """Say how long a request that comes now is too early, seconds; 0 if it may pass."""
        waits = {
            "bucket": self._bucket_wait(now),
            "window": self._window_wait(now),
            "fixed": self._fixed_wait(now),
        }
        if reading is None:
            return 0.0
        longest = max(waits["bucket"], waits["window"]) if reading == "both" else waits[reading]
        return longest if longest > _TOLERANCE else 0.0

    def use(self, now: float) -> None:
        """Count one accepted request."""
        self._tokens = self._tokens_at(now) - 1
        self._counted_at = now
        self._recent.append(now)
        minute, used = self._this_minute
        index = self._minute_index(now)
        self._this_minute = (index, used + 1 if index == minute else 1)

    def budget(self, reading: RateLimitReading | None, now: float) -> RateBudget:
        """Say what is left now; the reading decides who may reject, and so `next_in`."""
        if reading == "fixed":
            minute, used = self._this_minute
            used = used if self._minute_index(now) == minute else 0
        else:
            used = sum(now - at < self._minute - _TOLERANCE for at in self._recent)
        return RateBudget(
            bucket_left=self._tokens_at(now),
            window_used=used,
            per_window=PER_MINUTE,
            burst=BURST,
            window_seconds=self._minute,
            next_in=self.wait(reading, now),
        )

    def _tokens_at(self, now: float) -> float:
        return min(BURST, self._tokens + (now - self._counted_at) * self._rate)

    def _minute_index(self, now: float) -> int:
        return int((now + _TOLERANCE) // self._minute)

    def _bucket_wait(self, now: float) -> float:
        return max(0.0, (1 - self._tokens_at(now)) / self._rate)

    def _window_wait(self, now: float) -> float:
        return self._recent[0] + self._minute - now if len(self._recent) == PER_MINUTE else 0.0

    def _fixed_wait(self, now: float) -> float:
        minute, used = self._this_minute
        if self._minute_index(now) != minute or used < PER_MINUTE:
            return 0.0
        return (minute + 1) * self._minute - now
