"""Limit of new payments for a phone number or a caller, in the memory of one process. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

import attrs

from mobilemoney_async.values import refuse, require_integer, require_seconds


@attrs.define(eq=False)
class PromptLimit:
    """Limit of new payments for each name, such as a phone number: at most so many in any span of so many seconds."""

    most: int
    seconds: float
    # The payments in the last span, oldest first: few, since sixty a minute are sent.
    _taken: list[tuple[float, str]] = attrs.field(factory=list, init=False)

    def wait(self, name: str, now: float) -> float:
        """Return the seconds until a name has a place, 0.0 for at once."""
        self._taken = [place for place in self._taken if place[0] > now - self.seconds]
        times = [at for at, each in self._taken if each == name]
        return 0.0 if len(times) < self.most else max(0.0, times[-self.most] + self.seconds - now)

    def take(self, name: str, now: float) -> None:
        """Take a place for a name."""
        self._taken.append((now, name))

    def give_back(self, name: str, at: float) -> None:
        """Give back the place that was taken at this time."""
        with suppress(ValueError):  # too long ago
            self._taken.remove((at, name))


Place: TypeAlias = tuple[PromptLimit, str]
"""Place under a limit, by the name that needs it."""


def take_places(places: list[Place], now: float) -> float:
    """Take all places, or none if one is not free; return the seconds until all are, 0.0 if they were taken."""
    wait = max((limit.wait(name, now) for limit, name in places), default=0.0)
    for limit, name in places if wait == 0 else ():
        limit.take(name, now)
    return wait


def read_limit(argument: str, limit: tuple[int, float] | None) -> PromptLimit | None:
    """Return the limit of so many payments in so many seconds; None for none.

    Raises:
        InvalidRequest: It is no such pair.
    """
    if limit is None:
        return None
    if not isinstance(limit, tuple) or len(limit) != 2:
        raise refuse(argument, "a tuple of a number of payments and seconds, or None", limit)
    return PromptLimit(require_integer(argument, limit[0], 1), require_seconds(argument, limit[1]))
