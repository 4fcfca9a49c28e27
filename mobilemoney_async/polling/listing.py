"""What the pages so far say about the transaction list: its order, its length, how fast it grows. Pure.

The contract documents neither order nor freshness (section 4.4). What stays the same in either order is a row's
*ordinal*, its number counted from the oldest: rows are added, and none is taken away. So a row that was shown once can
be found again, and a new payment's ordinal can be told in advance from the length of the list.

Nothing here is relied on: a payment that is not where it should be is asked for by its id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, Transaction

# Seconds over which the growth of the list is averaged.
_MEMORY = 20.0
# The list is crowded where strangers fill a page in less than so many seconds.
_CROWDED = 60.0
# A page shows an order if so many of its rows, half a page apart, are in it.
_ORDERLY = 0.75


class Listing:
    """The list as it is known.

    Attributes:
        is_known: Whether any page has been seen.
        newest_first: The order; newest first until shown otherwise.
        page_size: Rows on a full page.
        growth: Rows a second that are added, by us and by others.
    """

    __slots__ = ("_counted_at", "_own", "_strangers", "_total", "growth", "is_known", "newest_first", "page_size")

    def __init__(self) -> None:
        self.is_known: bool = False
        self.newest_first: bool = True
        self.page_size: int = PAGE_SIZE_MAX
        self.growth: float = 0.0
        self._total = 0
        self._counted_at = 0.0
        self._own = 0
        self._strangers = 0.0  # rows a second that others add

    @property
    def has_strangers(self) -> bool:
        """Whether others add rows, so that places can be told only roughly."""
        return self._strangers > 0.05  # rows a second

    @property
    def is_crowded(self) -> bool:
        """Whether others add rows so fast that the newest page leaves out many that are open."""
        return self._strangers * _CROWDED > self.page_size

    def add_own(self, now: float) -> float:
        """Count a payment that was just created, and return its ordinal."""
        self._own += 1
        return self.length(now)

    def length(self, now: float) -> float:
        """Return the number of rows there should be now."""
        return self._total + self._own + self._strangers * max(0.0, now - self._counted_at)

    def page_of(self, ordinal: float, now: float) -> int:
        """Return the number of the page that should show an ordinal."""
        if self.newest_first:
            return int(max(0.0, self.length(now) - ordinal) // self.page_size) + 1
        return max(1, math.ceil(ordinal / self.page_size))

    def window(self, page: int, now: float) -> tuple[float, float]:
        """Return the ordinals that a page should show: from above the first to the second."""
        if not self.newest_first:
            return (page - 1) * self.page_size, page * self.page_size
        length = self.length(now)
        return length - page * self.page_size, math.inf if page == 1 else length - (page - 1) * self.page_size

    def pages(self, now: float) -> int:
        """Return the number of pages there should be now, at least 1."""
        return max(1, math.ceil(self.length(now) / self.page_size))

    def head(self, depth: int, now: float) -> int:
        """Return the number of the page so many pages away from the newest rows, 0 for theirs."""
        return depth + 1 if self.newest_first else max(1, self.pages(now) - depth)

    def observe(self, page: int, answer: PageAnswer, now: float) -> list[float]:
        """Learn from a page, and return the ordinals of its rows.

        Args:
            page: Its number.
            answer: What the service showed.
            now: When, monotonic seconds.
        """
        rows = answer.transactions
        if 0 < answer.pagination.per_page <= PAGE_SIZE_MAX:
            self.page_size = max(len(rows), answer.pagination.per_page)
        newest_first = _is_newest_first(rows)
        if newest_first is not None:
            self.newest_first = newest_first
        before = (page - 1) * self.page_size
        total = self._count(page, answer)
        if self.is_known:
            elapsed = now - self._counted_at
            if elapsed > 0:
                rate = max(0.0, (total - self._total - self._own) / elapsed)
                share = -math.expm1(-elapsed / _MEMORY)
                self._strangers += (rate - self._strangers) * share
                self.growth += (max(0.0, (total - self._total) / elapsed) - self.growth) * share
        self.is_known = True
        self._total, self._own, self._counted_at = total, 0, now
        if self.newest_first:
            return [float(total - before - index) for index in range(len(rows))]
        return [float(before + index + 1) for index in range(len(rows))]

    def _count(self, page: int, answer: PageAnswer) -> int:
        """Return how many rows there are: what the service says, or, if its own page says otherwise, what is known."""
        rows, claimed = len(answer.transactions), answer.pagination.total_count
        is_full = rows >= self.page_size
        pages = answer.pagination.total_pages if is_full else 0
        least = (page - 1) * self.page_size + rows if rows else 0
        if pages > page:
            least = max(least, (pages - 1) * self.page_size + 1)
        if claimed >= least:
            return claimed
        return max(least + (is_full and pages <= page), self._total + self._own)


def _is_newest_first(rows: Sequence[Transaction]) -> bool | None:
    """Return the order of rows, None where they have none: a few may be out of order, as where a list is by endings."""
    half = len(rows) // 2
    pairs = [
        (first.created_at, second.created_at) for first, second in zip(rows, rows[len(rows) - half :], strict=False)
    ]
    newer = sum(first > second for first, second in pairs)
    older = sum(first < second for first, second in pairs)
    if max(newer, older) < _ORDERLY * (newer + older) or newer == older:
        return None
    return newer > older
