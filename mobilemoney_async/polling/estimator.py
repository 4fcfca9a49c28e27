"""Chance of a payment to end, by its age: learned from the payments that did (their hazard rate). Pure.

Ages are sorted into bins that grow by a constant factor, since a second matters early and a minute matters late. Each
bin has two sums: the payments that ended in it, and the seconds that payments were open in it. Their quotient is the
chance to end per second. Before anything is learned, the advised pauses stand in: they grow with the age, as if the
chance to end fell with it.
"""

from __future__ import annotations

import math

_FACTOR = 1.1
_LOG_FACTOR = math.log(_FACTOR)
_BINS = 140
# Bins count from here, seconds: everything earlier is one bin.
_SHIFT = 1.0
# The prior counts like so many payments per bin.
_PRIOR_WEIGHT = 0.5
_PRIOR_SHIFT = 5.0
# Old endings fade: half of the weight is in the latest seven hundred.
_FADE = 0.999
# So many endings show roughly when endings are unlikely.
_ENOUGH = 10


def _bin(age: float) -> int:
    return min(_BINS - 1, int(math.log(max(0.0, age) + _SHIFT) / _LOG_FACTOR))


_EDGES = [_FACTOR**number - _SHIFT for number in range(_BINS + 1)]


class Estimator:
    """Incoming chance to end, by age in seconds."""

    __slots__ = ("_cumulative", "_ended", "_endings", "_is_stale", "_open")

    def __init__(self) -> None:
        self._ended = [0.0] * _BINS
        self._open = [0.0] * _BINS
        self._cumulative = [0.0] * (_BINS + 1)
        self._is_stale = True
        self._endings = 0

    @property
    def is_learned(self) -> bool:
        """Whether enough endings have been seen to know when they are unlikely."""
        return self._endings >= _ENOUGH

    def saw_open(self, start: float, end: float) -> None:
        """Learn that a payment was open from one age to another."""
        if end <= start:
            return
        first, last = _bin(start), _bin(end)
        if first == last:
            self._open[first] += end - start
        else:
            for number in range(first, last + 1):
                self._open[number] += min(end, _EDGES[number + 1]) - max(start, _EDGES[number])
        self._is_stale = True

    def saw_end(self, start: float, end: float) -> None:
        """Learn that a payment that was open at one age had ended at another.

        The moment in between is unknown, so the ending counts for each bin by the chance learned so far. That sharpens
        by itself: where endings agree on a moment, the others follow.
        """
        self._endings += 1
        self._ended = [count * _FADE for count in self._ended]
        self._open = [seconds * _FADE for seconds in self._open]
        left = 1.0
        total = self.chance(start, end)
        age = start
        for number in range(_bin(start), _bin(end) + 1):
            after = min(end, _EDGES[number + 1])
            share = self.chance(start, after) / total if total > 0 else 1.0
            ended = left - (1 - share) if number < _bin(end) else left
            self._ended[number] += ended
            self._open[number] += (left - ended / 2) * max(0.0, after - age)
            left -= ended
            age = after
        self._is_stale = True

    def chance(self, start: float, end: float) -> float:
        """Return the chance that a payment that was open at one age has ended at another, 0 to 1."""
        if end <= start:
            return 0.0
        if self._is_stale:
            self._sum_up()
        return -math.expm1(self._up_to(start) - self._up_to(end))

    def _up_to(self, age: float) -> float:
        number = _bin(age)
        low, high = _EDGES[number], _EDGES[number + 1]
        share = min(1.0, max(0.0, (age - low) / (high - low)))
        return self._cumulative[number] * (1 - share) + self._cumulative[number + 1] * share

    def _sum_up(self) -> None:
        total = 0.0
        for number in range(_BINS):
            low, high = _EDGES[number], _EDGES[number + 1]
            prior_seconds = _PRIOR_WEIGHT * ((low + high) / 2 + _PRIOR_SHIFT)
            rate = (self._ended[number] + _PRIOR_WEIGHT) / (self._open[number] + prior_seconds)
            total += rate * (high - low)
            self._cumulative[number + 1] = total
        self._is_stale = False
