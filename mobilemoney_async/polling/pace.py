"""When the poller may ask next, so that it uses what others leave of the limit, evenly. Pure.

Asking whenever the limiter lets us would use up the burst and then the minute, and be followed by a pause in which
nothing can be seen: requests that come in bunches cost lag. So the pauses are as long as they would be if our share of
the minute were spread over it. The share is what others do not use, and is measured, not configured.
"""

from __future__ import annotations

import math
from collections import deque

from mobilemoney_async.calls.bucket import Usage

# Seconds. The limiter serves the poller's lane at about this interval at least, so nobody need wait for longer.
_LONGEST = 10.0
# Below so many seconds of history a minute's use is not told from it.
_SHORTEST_HISTORY = 10.0
# Requests a window that are left to others: they do not come as evenly as we do.
_RESERVE = 1
# Seconds in line after which the limit is surely exhausted.
_LONG_WAIT = 5.0


class Pace:
    """The poller's own part in the traffic.

    Args:
        min_interval: The shortest time between two requests, seconds.
    """

    __slots__ = ("_began", "_min_interval", "_own", "_sent_at", "_waited")

    def __init__(self, min_interval: float) -> None:
        self._min_interval = min_interval
        self._own: deque[float] = deque()
        self._began = math.inf
        self._sent_at = -math.inf
        self._waited = 0.0

    def may_send(self, now: float) -> bool:
        """Return whether the shortest interval has passed."""
        return now >= self._sent_at + self._min_interval

    def sent(self, now: float, waited: float) -> None:
        """Note that a request goes out.

        Args:
            now: Now.
            waited: How long it was in line, seconds.
        """
        self._sent_at = now
        self._waited = waited
        self._own.append(now)

    def queue_at(self, now: float, usage: Usage, *, is_urgent: bool) -> float:
        """Return when to get in line for the next request.

        Args:
            now: Now.
            usage: Of the limit.
            is_urgent: Whether to use the limit up rather than to spread its use.
        """
        if self._waited >= _LONG_WAIT:
            # Only who is in line is served, and it will take longer than any interval. Should it not, the caller gets
            # in line anew, so the wait is taken to be over.
            return self._sent_at
        if is_urgent:
            return self._sent_at + self._min_interval
        return self._sent_at + max(self._min_interval, self._interval(now, usage) - self._waited)

    def came_early(self) -> None:
        """Note that the line was shorter than the last time: the turn came before the interval had passed."""
        self._waited = 0.0

    def _interval(self, now: float, usage: Usage) -> float:
        while self._own and self._own[0] <= now - usage.window:
            self._own.popleft()
        others = max(0, usage.granted - len(self._own))
        self._began = min(self._began, now)
        history = max(_SHORTEST_HISTORY, usage.history, now - self._began)
        # As if what history there is went on for a whole window.
        others_later = others * usage.window / min(usage.window, history)
        spare = usage.limit - _RESERVE - others_later
        return min(_LONGEST, usage.window / spare) if spare > 0 else _LONGEST
