"""How long to ask nothing after faults in a row. Pure."""

from __future__ import annotations

_FIRST = 1.0


class Rest:
    """A pause that doubles with each fault, and ends with the first answer.

    Attributes:
        until: When it ends, monotonic seconds.

    Args:
        longest: Seconds.
    """

    __slots__ = ("_began", "_longest", "_next", "until")

    def __init__(self, *, longest: float) -> None:
        self.until: float = float("-inf")
        self._began = float("-inf")
        self._longest = longest
        self._next = _FIRST

    @property
    def is_on(self) -> bool:
        """Whether the latest answer was a fault."""
        return self.until > float("-inf")

    def extend(self, now: float, asked_at: float) -> None:
        """Begin a pause, longer than the one before, unless the request that failed was made before that began."""
        if asked_at < self._began:
            return
        self._began = now
        self.until = now + self._next
        self._next = min(self._longest, 2 * self._next)

    def clear(self) -> None:
        """End it."""
        self.until = float("-inf")
        self._next = _FIRST
