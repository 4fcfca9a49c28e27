"""The sandbox's clock: it follows the event loop's clock, so a virtual clock moves it, and it can be moved ahead."""

from datetime import UTC, datetime

import anyio
from anyio.lowlevel import RunVar


class Clock:
    """Seconds since the sandbox's start; they never go back.

    Inside an event loop they pass as `anyio.current_time()` does. Outside, time stands still at the last reading.

    Args:
        start: Aware time at second 0. None takes the present, and follows the computer's clock between event loops, so
            that `created_at` agrees with the caller's own idea of the time.

    Raises:
        ValueError: `start` is naive.
    """

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and start.tzinfo is None:
            raise ValueError("now must be an aware datetime")
        self.start: datetime = (start or datetime.now(UTC)).astimezone(UTC)
        self._follows_the_computer = start is None
        self._last = 0.0
        self._advanced = 0.0
        # What the clock of a loop read at second 0; each loop's clock starts anywhere.
        self._origin: RunVar[float] = RunVar("mobilemoney_async.sandbox.clock")
        self.seconds()  # if a loop runs already, time passes from now on, not from the first question

    def seconds(self) -> float:
        """Read the clock."""
        try:
            reading = anyio.current_time()
        except RuntimeError:  # anyio and sniffio each derive their "no event loop" error from it
            return self._last
        try:
            origin = self._origin.get()
        except LookupError:
            origin = reading - self._at_entry() + self._advanced
            self._origin.set(origin)
        self._last = max(self._last, reading - origin + self._advanced)
        return self._last

    def advance(self, seconds: float) -> None:
        """Move the clock ahead.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError("the clock cannot be moved back")
        now = self.seconds()
        self._advanced += seconds
        self._last = now + seconds

    def _at_entry(self) -> float:
        """Give the time at the first reading in an event loop."""
        if not self._follows_the_computer:
            return self._last
        elapsed = (datetime.now(UTC) - self.start).total_seconds()
        return max(self._last, elapsed + self._advanced)
