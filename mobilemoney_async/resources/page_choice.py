"""Choice of the next page of a transaction list that shifts while it is read (contract, section 4.4). Pure.

The contract documents neither the order nor the freshness of the list. `FullListing` reads all of it, `PageSweep` only
as far as it finds known ids.
"""

from __future__ import annotations

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Transaction, TransactionPage

_MOST_BARREN_PAGES = 100


class FullListing:
    """Page numbers of one listing of all rows, each chosen from the pages before it.

    Rows that arrive push older ones to later pages, or are appended at the end; rows that leave a filter pull older
    ones to earlier pages. So a row is known by its id. The listing keeps account of the positions whose rows have
    certainly been shown: all before `_covered`, and those of one page read beyond it. Where the list gets shorter by n
    rows, each row may have moved up by as many, so that the last n positions are uncertain again, and the listing goes
    back to the first uncertain one.

    Attributes:
        page: The page to ask for next, or None at the end.
    """

    def __init__(self) -> None:
        self.page: int | None = 1
        self._size = 1
        self._seen: set[str] = set()
        self._covered = 0
        self._beyond = (0, 0)
        self._total: int | None = None
        self._arrived = 0
        self._repeated = 0
        self._read_again = 0
        self._barren = 0

    def take(self, answer: TransactionPage) -> list[Transaction]:
        """Return the rows of the page asked for that were not shown before, and choose the next page."""
        fresh = []
        for row in answer.transactions:
            if row.id not in self._seen:
                self._seen.add(row.id)
                fresh.append(row)
        self._repeated += len(answer.transactions) - len(fresh)
        self._barren = 0 if fresh else self._barren + 1
        total = answer.pagination.total_count
        if self._total is None:
            # Where there is a second page the first is full: its length is the page size, whatever limit we asked for.
            self._size = max(1, len(answer.transactions))
        else:
            self._arrived += max(0, total - self._total)
            left = max(0, self._total - total)
            self._beyond = (self._beyond[0], self._beyond[1] - left)
            self._covered = max(0, self._covered - left)
        self._total = total
        assert self.page is not None
        self.page = self._next(self.page, answer)
        return fresh

    def _next(self, page: int, answer: TransactionPage) -> int | None:
        start, end = (page - 1) * self._size, page * self._size
        if start > self._covered:
            self._beyond = (start, start + len(answer.transactions))
            following = self._covered // self._size + 1
            self._read_again += (page - following + 1) * self._size
            return following if self._barren <= _MOST_BARREN_PAGES else None
        self._covered = end
        if self._beyond[0] <= end:
            self._covered = max(end, self._beyond[1])
        following = self._covered // self._size + 1
        if not answer.transactions or following > answer.pagination.total_pages:
            return None
        # Rows repeat because others arrived before them. More repeats than that: the service repeats a page.
        explained = self._arrived + self._read_again
        if self._barren and (self._repeated > explained or self._barren > _MOST_BARREN_PAGES):
            return None
        return following


class PageSweep:
    """Search for known ids from the newest rows towards the oldest, while pages find more of them than lookups would.

    A lookup finds one payment for sure. A page finds as many of the wanted ids as are on it, which is an estimate:
    as many as the latest pages, or, since all of them are somewhere, the average of the pages that are left.

    Attributes:
        depth: The number of pages between the newest rows and the next page.
    """

    __slots__ = ("_found", "_is_past_the_end", "depth")

    def __init__(self) -> None:
        self.depth: int = 0
        self._found: float | None = None  # on the latest pages, on average
        self._is_past_the_end = False

    def worth(self, wanted: int, pages: int | None) -> float:
        """Return the number of wanted ids that the next page is expected to show; 0 where lookups are the better way.

        Args:
            wanted: The number of ids still looked for.
            pages: The number of pages of the list, None where that is unknown.
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
        """Note how many of the `wanted` ids the page showed among its `rows`; a page without rows ends the search."""
        expected = min(float(wanted), PAGE_SIZE_MAX) if self._found is None else self._found
        self._found = (expected + found) / 2
        self._is_past_the_end = not rows
        self.depth += 1
