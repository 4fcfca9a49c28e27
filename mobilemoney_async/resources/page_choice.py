"""Choice of the next page of a transaction list that shifts while it is read (contract, section 4.4). Pure.

The contract documents neither the order nor the freshness of the list. `FullListing` reads all of it, `PageSweep` only
as far as it finds known ids. `JoinedPages` and `TimeSearch` read it as evidence, where no count of the service is
believed.
"""

from __future__ import annotations

import math
from datetime import datetime
from itertools import pairwise

import attrs

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, RowsAnswer, Transaction, TransactionPage
from mobilemoney_async.errors import APIError, TransactionNotFound

_MOST_BARREN_PAGES = 100
# The same for a full listing as evidence, and for a bisection.
_PATIENCE, _PATIENCE_OF_SEARCH = 20, 3
# Pages of a list without an order that is read for one time.
_SHORT = 5
_NO_SUCH_PAGE = frozenset({400, 404, 416, 422})


def is_past_end(page: int, refusal: APIError) -> bool:
    """Return whether a page that the service refuses may be one beyond its last, which counts as an empty one."""
    is_plain = type(refusal) in {APIError, TransactionNotFound}
    return page != 1 and is_plain and refusal.status_code in _NO_SUCH_PAGE


class FullListing:
    """Page numbers of one listing of all rows, each chosen from the pages before it.

    Rows that arrive push older ones to later pages, or are appended at the end; rows that leave a filter pull older
    ones to earlier pages. So a row is known by its id. The listing keeps account of the positions whose rows have
    certainly been shown: all before `_covered`, and those of one page read beyond it. Where the list gets shorter by n
    rows, each row may have moved up by as many, so that the last n positions are uncertain again, and the listing goes
    back to the first uncertain one.

    A total may be out of date. So behind a full page, one more is read than the service counts.

    Attributes:
        page: The page to ask for next, or None at the end.
        shown: The number of rows that were shown.
        counted: The number of rows that the service counts, at its lowest; None where a page does not say.
    """

    def __init__(self) -> None:
        self.page: int | None = 1
        self.shown: int = 0
        self.counted: int | None = None
        self._size = 1
        self._seen: set[str] = set()
        self._covered = 0
        self._beyond = (0, 0)
        self._total: int | None = None
        self._arrived = 0
        self._repeated = 0
        self._read_again = 0
        self._barren = 0
        self._is_past_end = False
        self._claimed = 0  # by pages with rows after one without: the rows had not left

    def take(self, answer: TransactionPage) -> list[Transaction]:
        """Return the rows of the page asked for that were not shown before, and choose the next page."""
        fresh, length = [], len(answer.transactions) + len(answer.skipped)
        for row in answer.transactions:
            if row.id not in self._seen:
                self._seen.add(row.id)
                fresh.append(row)
        self.shown += len(fresh)
        self._repeated += len(answer.transactions) - len(fresh)
        self._barren = 0 if fresh else self._barren + 1
        total = answer.pagination.total_count
        if length and self._is_past_end:
            self._claimed = max(self._claimed, total)
        self._is_past_end |= not length
        if self._total is None:
            # Where there is a second page the first is full: its length is the page size, whatever limit we asked for.
            self._size = max(1, length)
        else:
            arrived, left = max(0, total - self._total), max(0, self._total - total)
            self._arrived += arrived
            self._beyond = (self._beyond[0] + arrived, self._beyond[1] - left)  # at whichever end they came or left
            self._covered = max(0, self._covered - left)
        assert self.page is not None
        # A total that is less than the page itself shows is none. A page without new rows may lie behind rows that have
        # left, or be the last one once more.
        least = (self.page - 1) * self._size + length if fresh else self.page > 1
        is_counted = answer.is_complete and total >= least
        if not is_counted:
            self.counted = None
        elif self.counted is not None or self._total is None:
            self.counted = total if self.counted is None else min(self.counted, total)
        self._total = total
        is_full = bool(fresh) and length >= answer.pagination.per_page
        last = answer.pagination.total_pages if is_counted and not is_full else math.inf
        self.page = self._next(self.page, length, last)
        return fresh

    @property
    def is_short(self) -> bool:
        """True if it has ended and fewer rows were shown than the service counts, or it does not say how many.

        It may lack rows that came while it was read: each has pushed another one, which was repeated.
        """
        counted, total = self.counted, self._total or 0
        return self.page is None and (
            counted is None or self.shown < max(counted, total - self._repeated, self._claimed)
        )

    def _next(self, page: int, length: int, pages: float) -> int | None:
        start, end = (page - 1) * self._size, page * self._size
        if start > self._covered:
            self._beyond = (start, start + length)
            following = self._covered // self._size + 1
            self._read_again += (page - following + 1) * self._size
            return following if self._barren <= _MOST_BARREN_PAGES else None
        self._covered = end
        if self._beyond[0] <= end:
            self._covered = max(end, self._beyond[1])
        following = self._covered // self._size + 1
        if not length or following > pages:
            return None
        # Rows repeat because others arrived before them. More repeats than that: the service repeats a page.
        explained = self._arrived + self._read_again
        if self._barren and (self._repeated > explained or self._barren > _MOST_BARREN_PAGES):
            return None
        return following


@attrs.define(eq=False)
class PageSweep:
    """Search for known ids from the newest rows towards the oldest, while pages find more of them than lookups would.

    A lookup finds one payment for sure. A page finds as many of the wanted ids as are on it, which is an estimate:
    as many as the latest pages, or, since all of them are somewhere, the average of the pages that are left.

    Attributes:
        depth: The number of pages between the newest rows and the next page.
    """

    depth: int = 0
    _counted: int | None = None  # the pages at first: a page that is shown again and again counts no others
    _found: float | None = None  # on the latest pages, on average
    _is_past_the_end: bool = False

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
        self._counted = self._counted or pages
        if self.depth >= pages:
            return 0.0
        is_beyond = self.depth >= self._counted
        expected = self._found if is_beyond else max(self._found, wanted / (pages - self.depth))
        return min(expected, float(wanted)) if expected > 1 else 0.0

    def took(self, wanted: int, found: int, rows: int) -> None:
        """Note how many of the `wanted` ids the page showed among its `rows`; a page without rows ends the search."""
        expected = min(float(wanted), PAGE_SIZE_MAX) if self._found is None else self._found
        self._found = (expected + found) / 2
        self._is_past_the_end = not rows
        self.depth += 1


class JoinedPages:
    """Pages of a list, read one after the other in ascending order, with rows that follow each other without a gap.

    Rows that arrive hide none: they push others to later pages, where those are shown once more. So the known rows of a
    page must come first on it, follow each other as before, and be followed by all that were known behind them, also at
    the end of the list. It is otherwise, or the total falls, where rows leave or move: one may then have been missed.
    A total never proves the end of the list. An empty page does, or the last page once more, by its own number. But one
    that is always higher than the rows, with those that were pushed and came again, counts a row that is hidden.

    Attributes:
        first: The number of the first page.
        page: The number of the next one.
        rows: The ids of the rows, and the unreadable rows.
        edges: The times of the first and of the last row that has one; None without such rows.
        pages: The number of pages that the service counts, at its highest.
        is_joined: Whether no row can have been missed.
        is_at_end: Whether the list ends here.
        is_over: Whether there is no next page: the list ends, or its pages show nothing new any more.
    """

    def __init__(self, first: int = 1, *, patience: int = _PATIENCE) -> None:
        self.first: int = first
        self.page: int = first
        self.rows: set[object] = set()
        self.edges: tuple[datetime, datetime] | None = None
        self.pages: int = 0
        self.is_joined: bool = True
        self.is_at_end: bool = False
        self.is_over: bool = False
        self._patience = patience  # with pages that show nothing new, though the service counts more
        self._total, self._fewest, self._is_counted = 0, math.inf, True
        self._pushed, self._hidden = 0, math.inf  # rows that came again; the fewest that a count has beyond all these
        self._places: dict[str, int] = {}  # the ids of the rows, with their order
        # The place up to which the pages have come: before the last one while rows arrive by the page.
        self._reached = 0
        self._begin: object = None  # of the last page
        self._barren = 0

    @property
    def is_whole(self) -> bool:
        """True if the list was read to its end, no row can have been missed, and no fewer came than it counts."""
        has_all = len(self.rows) >= self._fewest and self._hidden <= 0
        return self.is_joined and self.is_at_end and self._is_counted and has_all

    @property
    def counted(self) -> int | None:
        """The number of rows that the service counts, at its lowest; None where a page does not say."""
        return int(self._fewest) if self._is_counted and self._fewest < math.inf else None

    @property
    def is_short(self) -> bool:
        """True if, from the first page on, fewer rows came than the service counts."""
        return self.first == 1 and (len(self.rows) < (self.counted or 0) or self._hidden > 0)

    @property
    def is_plain(self) -> bool:
        """True if at most one page has rows, as many as the service counts."""
        return self.page <= self.first + 2 and len(self.rows) == self._total

    def take(self, answer: PageAnswer) -> None:
        """Add the next page."""
        total = answer.pagination.total_count
        self.is_joined &= total >= self._total
        self._total, self._fewest = total, min(self._fewest, total)
        self.pages = max(self.pages, answer.pagination.total_pages)
        self._is_counted &= answer.is_counted
        ids, unreadable = _ids(answer), answer.unreadable if isinstance(answer, RowsAnswer) else ()
        advances = not self.rows.issuperset(unreadable)
        times = _times(answer)
        if times:
            self.edges = (times[0] if self.edges is None else self.edges[0], times[-1])
        if ids:
            advances |= self._join(ids)
        shown = {*ids, *unreadable}
        self._pushed += len(shown & self.rows)
        self.rows |= shown
        self._hidden = min(self._hidden, total - len(self.rows) - self._pushed)
        begin: object = ids[:1] or unreadable[:1]
        self._barren = 0 if advances else self._barren + 1
        is_lost = self._barren >= self._patience
        if begin:
            is_repeated = begin == self._begin or (not advances and self._reached == len(self._places))
            self.is_at_end = is_repeated and self.page > max(self.pages, answer.pagination.current_page)
        else:
            self.is_at_end = self.page >= self.pages or is_lost
        self.is_over = self.is_at_end or is_lost
        self.is_joined &= not self.is_at_end or self._reached == len(self._places)
        self._begin = begin
        self.page += 1

    def _join(self, ids: list[str]) -> bool:
        """Add the rows of a page, and return whether it leads on: its last row is new."""
        known = [self._places[each] for each in ids if each in self._places]
        if known[:1] == [0] and self.page > self.pages:
            return False  # the first page in place of one beyond the end
        size = len(self._places)
        start = known[0] if known else size
        end, advances = start + len(known), ids[-1] not in self._places
        is_row = [self._places.get(each) for each in ids[: len(known)]] == [*range(start, end)]
        if not is_row or start > self._reached or (advances and end < size):
            self.is_joined = False
        for each in ids:
            self._places.setdefault(each, len(self._places))
        self._reached = len(self._places) if advances else end
        return advances

    def begins_with(self, answer: PageAnswer) -> bool | None:
        """Return whether the list still begins as it did, behind new rows; None if a page has only new ones."""
        ids = _ids(answer)
        known = [self._places[each] for each in ids if each in self._places]
        return None if ids and not known else bool(known) and known == [*range(len(known))]


def _times(answer: PageAnswer) -> list[datetime]:
    return [row.created_at for row in answer.transactions if row.created_at is not None]


def _ids(answer: PageAnswer) -> list[str]:
    return list(dict.fromkeys(row.id for row in answer.transactions))


class TimeSearch:
    """Bisection of a list by `created_at`, for the pages around a window of time on the service's clock.

    The order is learned from the pages. In that order, the search finds the last page that begins before the window,
    and reads on from there until a page ends behind it: forwards only, since rows that arrive then come twice, and none
    is hidden. It begins with the service's number of pages; if pages show more, it goes on in growing steps.

    Attributes:
        page: The page to ask for next, or None at the end.
        is_covered: Whether the pages certainly show all rows of the window. At an end of the list, they do
            unless that counts more rows than it has shown.
    """

    def __init__(self, start: datetime, end: datetime, *, is_recent: bool) -> None:
        self.page: int | None = 1
        self.is_covered: bool = False
        self._start, self._end = start, end
        self._is_recent = is_recent  # the window is at the end of a list with the newest rows last
        # The last page that begins before the window, and those behind it.
        self._pages = JoinedPages(patience=_PATIENCE_OF_SEARCH)
        # A page that begins in or behind the window, or the first that the service does not count.
        self._limit: int | None = None
        self._step = 1
        self._back = 0  # the step back from the limit, if the window is near the end of the list
        self._total = 0
        self._begins: dict[int, datetime] = {}
        self._rises = self._falls = False

    @property
    def is_whole(self) -> bool:
        """True if all rows of the list are on the only page that it has."""
        return self._pages.first == 1 and self._pages.is_whole and self._pages.is_plain

    def take(self, answer: PageAnswer) -> None:
        """Take the page asked for, and choose the next one."""
        assert self.page is not None
        number, total = self.page, answer.pagination.total_count
        begin = next(iter(_times(answer)), None)
        self._learn_order(number, answer)
        if number == self._pages.page:
            self._pages.take(answer)
        elif begin is not None and self._is_before(begin):
            self._pages = JoinedPages(number, patience=_PATIENCE_OF_SEARCH)
            self._pages.take(answer)
        else:
            self._limit = number
        if number == 1:
            self._limit = max(1, answer.pagination.total_pages) + 1
            self._back = int(self._is_recent and self._rises)
        # Where rows have left, any page may hide one.
        self.page = None if total < self._total or self._is_hopeless() else self._choose()
        self._total = total

    def _is_hopeless(self) -> bool:
        """Return whether these pages can show nothing for certain."""
        pages = self._pages
        if (pages.is_over and not pages.is_at_end) or not pages.is_joined or pages.edges is None:
            return True
        if self._rises and self._falls:
            return pages.first > 1 or pages.pages > _SHORT  # a short list is read as a whole, and needs no order
        return pages.first > 1 and not self._is_before(pages.edges[0])

    def _choose(self) -> int | None:
        pages, is_unordered = self._pages, self._rises and self._falls
        assert pages.edges is not None
        last = pages.page - 1
        is_behind = self._is_behind(pages.edges[1]) and not is_unordered
        if pages.is_at_end or is_behind:
            self.is_covered = is_behind or not pages.is_short
            return None
        if is_unordered or not self._is_before(pages.edges[1]) or pages.page == self._limit:
            return pages.page
        if self._limit is None or self._limit <= last:
            self._limit, self._step = None, 2 * self._step
            return last + self._step // 2
        middle = (last + self._limit) // 2
        back, self._back = self._back, 2 * self._back
        return max(middle, self._limit - back) if back else middle

    def _learn_order(self, number: int, answer: PageAnswer) -> None:
        times = _times(answer)
        if times:
            self._begins[number] = times[0]
        for line in (times, [self._begins[each] for each in sorted(self._begins)]):
            self._rises |= any(one < other for one, other in pairwise(line))
            self._falls |= any(one > other for one, other in pairwise(line))

    @property
    def _is_ascending(self) -> bool:
        """True if the oldest rows come first; where all are of one time, as if the window came behind them."""
        edges = self._pages.edges
        return self._rises or (not self._falls and edges is not None and edges[0] < self._start)

    def _is_before(self, at: datetime) -> bool:
        return at < self._start if self._is_ascending else at > self._end

    def _is_behind(self, at: datetime) -> bool:
        return at > self._end if self._is_ascending else at < self._start
