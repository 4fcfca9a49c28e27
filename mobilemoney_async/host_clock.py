"""Monotonic clock of the host, which is the same in every thread, also where a test freezes time.

freezegun replaces `time.monotonic`, for some callers: what a thread reads depends on how deep its stack is. A deadline
that the event loop computes and a thread compares must not come from two clocks.
"""

from __future__ import annotations

import sys
import time

if sys.platform == "win32":
    _CLOCKS = (time.monotonic,)  # in a tuple, where freezegun does not find it

    def monotonic() -> float:
        """Return the time of the clock, seconds."""
        return _CLOCKS[0]()

else:
    # The one that `time.monotonic` reads; macOS has a name of its own for it.
    _CLOCK: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)

    def monotonic() -> float:
        """Return the time of the clock, seconds."""
        return time.clock_gettime(_CLOCK)
