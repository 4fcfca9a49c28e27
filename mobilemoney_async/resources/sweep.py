"""Looking for known ids in the pages of the list, for as long as pages find more than lookups would. Pure.

A lookup finds one payment for sure. A page finds as many of the wanted as are on it, which is not known beforehand:
either like the latest pages, or, since all of them are somewhere, like the average of the pages that are left.
"""

from __future__ import annotations

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX


class Sweep:
    """One walk from the newest rows towards the oldest.

    Attributes:
        depth: How many pages away from the newest rows the next page is.
    """

    __slots__ = ("_found", "_is_past_the_end", "depth")

    def __init__(self) -> None:
        self.depth: int = 0
        self._found: float | None = None  # on the latest pages, on average
        self._is_past_the_end = False

    def worth(self, wanted: int, pages: int | None) -> float:
        """Return how many of the wanted the next page is expected to show; 0 where lookups are the better way.

        Args:
            wanted: How many ids are still looked for.
            pages: How many pages the list has, None where that is unknown.
        """
        if self._is_past_the_end or wanted <= 1:
            return 0.0
        if self._found is None or pages is None:
            return min(float(wanted), PAGE_SIZE_MAX)
        if self.depth >= pages:
            return 0.0
        expected = max(self._found, wanted / (pages - self.depth))
        return min(expected, float(wanted)) if expected > 1 else 0.0

    def took(self, wanted: int, found: int, rows: int) -> None:
        """Note what the page showed.

        Args:
            wanted: How many were looked for.
            found: How many of them it showed.
            rows: How many rows it showed in all; none ends the walk.
        """
        expected = min(float(wanted), PAGE_SIZE_MAX) if self._found is None else self._found
        self._found = (expected + found) / 2
        self._is_past_the_end = not rows
        self.depth += 1
