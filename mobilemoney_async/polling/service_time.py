"""How old payments are by the service's own clock, whatever ours shows, and what ids are usually tracked. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mobilemoney_async.contract.models import Transaction

# Ids are taken for new ones after so many in a row that were at most so many seconds old when they were tracked.
_IN_A_ROW = 5
_NEW = 2.0


class ServiceTime:
    """The service's clock, as far as its rows tell: none is of its future.

    So it is at least as late as the newest row that was seen, and what is told of ages is at least. Where payments are
    made all the time that is right to a few seconds; where none are, a payment seems younger than it is, and is asked
    about as one that is new to us.
    """

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead = -math.inf  # of the monotonic clock, seconds

    def saw(self, rows: Iterable[Transaction], now: float) -> None:
        """Note rows that the service has just shown."""
        newest = max((row.created_at.timestamp() for row in rows), default=-math.inf)
        self._ahead = max(self._ahead, newest - now)

    def age(self, row: Transaction, now: float) -> float:
        """Return how old the payment of a row is at least, seconds. Some row has to be seen first."""
        return max(0.0, now + self._ahead - row.created_at.timestamp())


class Habit:
    """Whether a merchant tracks payments by their ids as soon as they are created, rather than later."""

    __slots__ = ("_in_a_row", "_new")

    def __init__(self) -> None:
        self._new = 0
        self._in_a_row = _IN_A_ROW

    def saw(self, age: float) -> None:
        """Note how old a payment was, at least, when it was tracked by its id, seconds."""
        self._new = self._new + 1 if age <= _NEW else 0

    def missed(self) -> None:
        """Note that an id that was taken for new is not at the end of the list."""
        self._new = min(self._new, _IN_A_ROW)
        self._in_a_row *= 2

    @property
    def is_new(self) -> bool:
        """Whether the next id is likely that of a new payment."""
        return self._new >= _IN_A_ROW

    @property
    def is_listed(self) -> bool:
        """Whether it is also expected at the end of the list: after twice as many each time that one was not there."""
        return self._new >= self._in_a_row
