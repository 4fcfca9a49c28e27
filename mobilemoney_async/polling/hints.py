"""How many hints are believed: anybody who knows a callback address can forge them. Pure."""

from __future__ import annotations

_BURST = 5.0
_PER_SECOND = 1.0


class HintAllowance:
    """Five hints at once, and one more a second."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._left = _BURST
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Use up one, if there is one left."""
        left = min(_BURST, self._left + (now - self._at) * _PER_SECOND)
        if left < 1:
            return False
        self._left, self._at = left - 1, now
        return True
