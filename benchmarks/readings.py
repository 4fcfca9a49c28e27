"""Three readings of "60 requests per minute, short bursts of 10", as a service might count (contract, section 8).

Written from the contract and from nothing in the library. Each takes the times at which requests arrive, seconds in
ascending order, and returns how many of them it rejects; a rejected request is not counted against the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_LIMIT = 60
_MINUTE = 60.0
_BURST = 10
_PER_SECOND = 1.0
_PHASES = 240

# Grants are sums of floats: a request is not late by the rounding of its time.
_ROUNDING = 1e-6


def bucket(arrivals: Sequence[float]) -> int:
    """Count the rejections by a bucket of 10, refilled at one a second."""
    rejected, level, last = 0, float(_BURST), 0.0
    for now in arrivals:
        level = min(_BURST, level + (now - last) * _PER_SECOND)
        last = now
        if level >= 1 - _ROUNDING:
            level -= 1
        else:
            rejected += 1
    return rejected


def sliding_window(arrivals: Sequence[float]) -> int:
    """Count the rejections by "at most 60 in any 60 s"."""
    rejected, accepted = 0, deque[float]()
    for now in arrivals:
        while accepted and accepted[0] <= now - _MINUTE + _ROUNDING:
            accepted.popleft()
        if len(accepted) < _LIMIT:
            accepted.append(now)
        else:
            rejected += 1
    return rejected


def fixed_minutes(arrivals: Sequence[float]) -> int:
    """Count the rejections by "60 in each minute", for the worst start of the minute."""
    return max(_minutes_from(arrivals, _MINUTE * phase / _PHASES) for phase in range(_PHASES))


def _minutes_from(arrivals: Sequence[float], start: float) -> int:
    counts: dict[int, int] = {}
    for now in arrivals:
        minute = int((now - start + _MINUTE) // _MINUTE)
        counts[minute] = counts.get(minute, 0) + 1
    return sum(max(0, count - _LIMIT) for count in counts.values())
