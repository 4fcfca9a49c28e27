"""Limit of new payments for a phone number or a caller, in the memory of one process. Pure."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from mobilemoney_async.values import refuse, require_integer, require_seconds


@attrs.define(eq=False)
class PromptLimit:
    """Limit of new payments for each name, such as a phone number: at most so many in any span of so many seconds."""

    most: int
    seconds: float
    # The times of each name, its newest last; the names by their newest time.
    _taken: dict[str, list[float]] = attrs.field(factory=dict, init=False)

    def wait(self, name: str, now: float) -> float:
        """Return the seconds until a name has a place, 0.0 for at once."""
        recent = self._recent(name, now)
        return 0.0 if len(recent) < self.most else max(0.0, recent[-self.most] + self.seconds - now)

    def take(self, name: str, now: float) -> None:
        """Take a place for a name, and forget the names that have not taken one for so long."""
        recent = self._recent(name, now)
        self._taken.pop(name, None)
        self._taken[name] = [*recent, now]
        while not self._recent(first := next(iter(self._taken)), now):
            del self._taken[first]

    def give_back(self, name: str, at: float) -> None:
        """Give back the place that was taken at this time."""
        if at in (times := self._taken.get(name, [])):
            times.remove(at)

    def _recent(self, name: str, now: float) -> list[float]:
        return [at for at in self._taken.get(name, ()) if at > now - self.seconds]


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
    most, seconds = limit
    return PromptLimit(require_integer(argument, most, 1), require_seconds(argument, seconds))
