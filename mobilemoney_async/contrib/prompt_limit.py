"""Limits of new payments for a phone number and for a caller, in the memory of one process. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from mobilemoney_async.values import refuse, require_integer, require_seconds

Names: TypeAlias = tuple[str, str | None]
"""Phone number and caller of a payment; None for a caller that is unknown, and is not limited."""


class PromptLimits:
    """Limits of new payments for each phone number and each caller: at most so many in any span of so many seconds.

    Args:
        per_number: So many in so many seconds, or None for no limit.
        per_caller: The same.

    Raises:
        InvalidRequest: One of them is no such pair.
    """

    def __init__(self, *, per_number: tuple[int, float] | None, per_caller: tuple[int, float] | None) -> None:
        self._limits = [_read("per_number", per_number), _read("per_caller", per_caller)]
        # The payments of the longest span, oldest first: few, since sixty a minute are sent.
        self._taken: list[tuple[float, Names]] = []

    def take(self, names: Names, now: float) -> float:
        """Take a place for a payment, unless its number or caller has none; return the seconds until then, or 0.0."""
        longest, wait = max(seconds for _, seconds in self._limits), 0.0
        self._taken = [each for each in self._taken if each[0] > now - longest]
        for kind, (most, seconds) in enumerate(self._limits):
            times = [at for at, each in self._taken if each[kind] == names[kind] is not None and at > now - seconds]
            if 0 < most <= len(times):
                wait = max(wait, times[-most] + seconds - now)
        if wait <= 0:
            self._taken.append((now, names))
        return wait

    def give_back(self, names: Names, at: float) -> None:
        """Give back the place that was taken at this time."""
        with suppress(ValueError):  # too long ago
            self._taken.remove((at, names))


def _read(argument: str, limit: tuple[int, float] | None) -> tuple[int, float]:
    if limit is None:
        return 0, 0.0
    if not isinstance(limit, tuple) or len(limit) != 2:
        raise refuse(argument, "a tuple of a number of payments and seconds, or None", limit)
    return require_integer(argument, limit[0], 1), require_seconds(argument, limit[1])
