"""Limits of new payments for a phone number and for a caller, in the memory of one process. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from mobilemoney_async.values import refuse, require_integer, require_seconds


class PromptLimits:
    """Limits of new payments, in memory: a number of payments in any span of seconds, or None for no limit.

    Each is for one of the names of a payment, in their order; a name that is None is not limited.
    """

    def __init__(self, **limits: tuple[int, float] | None) -> None:
        self._limits: list[tuple[int, float]] = []
        for argument, limit in limits.items():
            if limit is not None and (not isinstance(limit, tuple) or len(limit) != 2):
                raise refuse(argument, "a tuple of a number of payments and seconds, such as (3, 600), or None", limit)
            most, seconds = limit or (1, 0.0)
            span = require_seconds(argument, seconds, allow_zero=limit is None)
            self._limits.append((require_integer(argument, most, 1), span))
        # The payments of the longest span, oldest first: few, since sixty a minute are sent.
        self._taken: list[tuple[float, Sequence[str | None]]] = []

    def take(self, names: Sequence[str | None], now: float) -> float:
        """Take a place for a payment, unless a name of it has none; return the seconds until then, or 0.0."""
        longest, wait = max(seconds for _, seconds in self._limits), 0.0
        self._taken = [each for each in self._taken if each[0] > now - longest]
        for kind, (most, seconds) in enumerate(self._limits):
            times = [at for at, each in self._taken if each[kind] == names[kind] is not None and at > now - seconds]
            if len(times) >= most:
                wait = max(wait, times[-most] + seconds - now)
        if wait <= 0:
            self._taken.append((now, names))
        return wait

    def give_back(self, names: Sequence[str | None], at: float) -> None:
        """Give back the place that was taken at this time."""
        with suppress(ValueError):  # too long ago
            self._taken.remove((at, names))
