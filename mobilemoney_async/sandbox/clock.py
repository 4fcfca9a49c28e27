"""The sandbox's clock: it follows the event loop's clock, so a virtual clock moves it, and it can be moved ahead.

It has two hands. The service's time runs at a rate that can be changed, or is paused. Unscaled time runs as the event
loop's does, whatever the rate: the request limit and all else that a client measures by its own clock is counted there.
"""

import math
from datetime import UTC, datetime

import anyio
from anyio.lowlevel import RunVar

FASTEST = 1000.0
"""The highest rate."""


class Clock:
    """Clock of the sandbox: seconds since its start (aware UTC), which never go back.

    Inside an event loop they pass as `anyio.current_time()` does, the service's seconds `rate` times as fast. Outside,
    its last reading holds. Without a `start` it takes the present, and follows the computer's clock between event
    loops, so that `created_at` agrees with the caller's clock.
    """

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and start.tzinfo is None:
            raise ValueError("now must be an aware datetime")
        self.start: datetime = (start or datetime.now(UTC)).astimezone(UTC)
        self.rate: float = 1.0
        self._follows_the_computer = start is None
        self._last_unscaled = 0.0
        self._last = 0.0
        self._advanced = 0.0
        # The service's time is `rate` times the unscaled time, and this.
        self._offset = 0.0
        # The reading of a loop's clock at second 0; each loop's clock starts anywhere.
        self._origin: RunVar[float] = RunVar("mobilemoney_async.sandbox.clock")
        self.seconds()  # if a loop runs already, time passes from now on, not from the first reading

    def seconds(self) -> float:
        """Read the service's time."""
        self._last = max(self._last, self.unscaled_seconds() * self.rate + self._offset)
        return self._last

    def unscaled_seconds(self) -> float:
        """Read the time that the rate does not change."""
        try:
            reading = anyio.current_time()
        except RuntimeError:  # anyio and sniffio each derive their "no event loop" error from it
            return self._last_unscaled
        try:
            origin = self._origin.get()
        except LookupError:
            at = self._last_unscaled
            if self._follows_the_computer:
                at = max(at, (datetime.now(UTC) - self.start).total_seconds() + self._advanced)
            origin = reading - at + self._advanced
            self._origin.set(origin)
        self._last_unscaled = max(self._last_unscaled, reading - origin + self._advanced)
        return self._last_unscaled

    def run(self, rate: float) -> None:
        """Change the rate from this moment on; see `Sandbox.run_clock`."""
        if type(rate) not in (int, float) or not 0 <= rate <= FASTEST:  # NaN is in no range
            raise ValueError(f"rate must be a number from 0 (paused) to {FASTEST:g}")
        now = self.seconds()
        self.rate = float(rate)
        self._offset = now - self._last_unscaled * self.rate

    def advance(self, seconds: float) -> None:
        """Move both hands ahead; see `Sandbox.advance`."""
        if not 0 <= seconds < math.inf:
            raise ValueError("seconds must be a number, 0 or more: the clock cannot be moved back")
        now, unscaled = self.seconds(), self._last_unscaled
        self._advanced += seconds
        self._last, self._last_unscaled = now + seconds, unscaled + seconds
        self._offset += seconds * (1 - self.rate)

    def unscaled_until(self, at: float) -> float:
        """Return the unscaled seconds until the service's time is `at`; infinite while it is paused."""
        left = at - self.seconds()
        if left <= 0:
            return 0.0
        return left / self.rate if self.rate else math.inf
