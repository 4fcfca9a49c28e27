"""Walking the transaction list, whose pages shift while it is walked (contract, section 4.4).

Neither the order nor the freshness of the list is documented. Rows that arrive push older ones to later pages, or are
appended at the end; rows that leave a filter pull older ones to earlier pages. So rows are told apart by id, and the
walk goes by what the latest page says of the whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

import anyio

from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.resources.ahead import Ahead

_MOST_BARREN_PAGES = 100

Fetch = Callable[[int], Awaitable[TransactionPage]]


class Walk:
    """Which page to ask for next, decided from the pages so far. Pure.

    It keeps account of the positions in the list whose rows have certainly been shown: all before `_covered`, and
    those of one page read beyond it. Where the list gets shorter by n rows, each row may have moved up by as many, so
    that the last n positions are uncertain again; the walk goes back to the first uncertain one.

    Attributes:
        page: The page to ask for next, or None where the walk has ended.
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
        self._walked_again = 0
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
            # Where there is a second page the first is full: so many rows the service gives, whatever we asked for.
            self._size = max(1, len(answer.transactions))
        else:
            self._arrived += max(0, total - self._total)
            self._doubt(max(0, self._total - total))
        self._total = total
        assert self.page is not None
        self.page = self._next(self.page, answer)
        return fresh

    def _doubt(self, rows_left: int) -> None:
        start, end = self._beyond
        self._beyond = (start, end - rows_left)
        self._covered = max(0, self._covered - rows_left)

    def _next(self, page: int, answer: TransactionPage) -> int | None:
        start, end = (page - 1) * self._size, page * self._size
        if start > self._covered:
            self._beyond = (start, start + len(answer.transactions))
            following = self._covered // self._size + 1
            self._walked_again += (page - following + 1) * self._size
            return following if self._barren <= _MOST_BARREN_PAGES else None
        self._covered = end
        if self._beyond[0] <= end:
            self._covered = max(end, self._beyond[1])
        following = self._covered // self._size + 1
        if not answer.transactions or following > answer.pagination.total_pages:
            return None
        # Rows repeat because others arrived before them. More repeats than that: the service repeats a page.
        explained = self._arrived + self._walked_again
        if self._barren and (self._repeated > explained or self._barren > _MOST_BARREN_PAGES):
            return None
        return following


class _Pages:
    """The pages of one walk.

    State changes only once a page has come, so that a cancelled one can be asked for again.
    """

    def __init__(self, fetch: Fetch, max_items: int | None, has_room: Callable[[], bool]) -> None:
        self._fetch = fetch
        self._walk = Walk()
        self._left = max_items
        self._has_room = has_room
        self._ahead: Ahead[TransactionPage] | None = None
        if max_items == 0:
            self._walk.page = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransactionPage:
        while self._walk.page is not None:
            answer = await self._get(self._walk.page)
            rows = self._take(answer)
            if rows:
                return TransactionPage(transactions=tuple(rows), pagination=answer.pagination)
        raise StopAsyncIteration

    async def _get(self, page: int) -> TransactionPage:
        if self._ahead is None:
            return await self._fetch(page)
        try:
            return await self._ahead.result()
        except Exception:
            self._ahead = None  # the next one who asks tries anew
            raise

    def _take(self, answer: TransactionPage) -> list[Transaction]:
        self._ahead = None
        rows = self._walk.take(answer)
        if self._left is not None:
            rows = rows[: self._left]
            self._left -= len(rows)
            if self._left == 0:
                self._walk.page = None
        return rows

    def look_ahead(self) -> None:
        """Begin to fetch the next page, if there is one and the limiter has room for it."""
        page = self._walk.page
        if page is not None and self._ahead is None and self._has_room():
            self._ahead = Ahead(lambda: self._fetch(page))


class _PagesAhead:
    """Pages, each with the next one on its way while the caller works."""

    def __init__(self, pages: _Pages) -> None:
        self._pages = pages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransactionPage:
        page = await anext(self._pages)
        self._pages.look_ahead()
        return page


class _Items:
    """Rows, one at a time. The next page is on its way once the caller has shown, by a second row, that it walks."""

    def __init__(self, pages: _Pages) -> None:
        self._pages = pages
        self._rows: tuple[Transaction, ...] = ()
        self._next = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Transaction:
        if self._next == len(self._rows):
            self._rows = (await anext(self._pages)).transactions
            self._next = 0
        else:
            if self._next == 1:
                self._pages.look_ahead()
            await anyio.lowlevel.checkpoint()  # which also lets the next page come nearer
        self._next += 1
        return self._rows[self._next - 1]


class TransactionPager:
    """The transaction list as one walk: ``async for transaction in pager``.

    Each transaction comes once, although rows arrive while the list is walked; in either order nothing is missed that
    was there when the walk began and stays in the list, also where others leave it, because their state no longer fits
    the `status` filter. Where some arrive and some leave between two pages, only the difference is known: a
    transaction may then pass the walk unseen.

    The next page is fetched while the caller works on this one, if the limiter has room. A page that failed or was
    cancelled is asked for again by asking the same iterator again. Each ``async for`` is a new walk.

    Raises, while it is walked: what `transactions.page` raises.
    """

    def __init__(self, fetch: Fetch, *, max_items: int | None, has_room: Callable[[], bool]) -> None:
        self._fetch = fetch
        self._max_items = max_items
        self._has_room = has_room

    def _walk(self) -> _Pages:
        return _Pages(self._fetch, self._max_items, self._has_room)

    def __aiter__(self) -> AsyncIterator[Transaction]:
        return _Items(self._walk())

    def pages(self) -> AsyncIterator[TransactionPage]:
        """Return the same walk a page at a time, each with only the transactions that are new to it, none empty."""
        return _PagesAhead(self._walk())

    async def collect(self) -> list[Transaction]:
        """Return all transactions of the walk as one list."""
        return [row async for page in self._walk() for row in page]
