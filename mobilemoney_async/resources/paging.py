"""Iterators over the transaction list (contract, section 4.4); `page_choice` chooses the pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

import anyio

from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.resources.page_choice import FullListing
from mobilemoney_async.resources.prefetch import Prefetch

Fetch = Callable[[int], Awaitable[TransactionPage]]


class _Pages:
    """Pages of one full listing.

    State changes only once a page has come, so that a cancelled one can be asked for again.
    """

    def __init__(self, fetch: Fetch, max_items: int | None, has_room: Callable[[], bool]) -> None:
        self._fetch = fetch
        self._listing = FullListing()
        self._left = max_items
        self._has_room = has_room
        self._next: Prefetch[TransactionPage] | None = None
        if max_items == 0:
            self._listing.page = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransactionPage:
        while self._listing.page is not None:
            answer = await self._get(self._listing.page)
            rows = self._take(answer)
            if rows:
                return TransactionPage(transactions=tuple(rows), pagination=answer.pagination)
        raise StopAsyncIteration

    async def _get(self, page: int) -> TransactionPage:
        if self._next is None:
            return await self._fetch(page)
        try:
            return await self._next.result()
        except Exception:
            self._next = None  # the next reader asks again
            raise

    def _take(self, answer: TransactionPage) -> list[Transaction]:
        self._next = None
        rows = self._listing.take(answer)
        if self._left is not None:
            rows = rows[: self._left]
            self._left -= len(rows)
            if self._left == 0:
                self._listing.page = None
        return rows

    def prefetch(self) -> None:
        """Begin to fetch the next page, if there is one and the limiter has a free place for it."""
        page = self._listing.page
        if page is not None and self._next is None and self._has_room():
            self._next = Prefetch(lambda: self._fetch(page))


class _PrefetchedPages:
    """Iterator over pages, each with the next one on its way while the caller works."""

    def __init__(self, pages: _Pages) -> None:
        self._pages = pages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransactionPage:
        page = await anext(self._pages)
        self._pages.prefetch()
        return page


class _Items:
    """Iterator over rows. The next page is on its way once the caller has asked for a second row."""

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
                self._pages.prefetch()
            await anyio.lowlevel.checkpoint()  # which also lets the next page come nearer
        self._next += 1
        return self._rows[self._next - 1]


class TransactionPager:
    """Full listing of the transactions: ``async for transaction in pager``.

    Each transaction comes once, although rows arrive while the list is read. In either order you get every transaction
    that was there when the listing began and stays in the list, also where others leave it because their state no
    longer fits the `status` filter. Where some arrive and some leave between two pages, only the difference is known: a
    transaction may then be missed.

    The next page is fetched while the caller works on this one, if the limiter has a free place. A page that failed or
    was cancelled is asked for again by asking the same iterator again. Each ``async for`` is a new listing.

    Iterating raises the errors of `transactions.page`.
    """

    def __init__(self, fetch: Fetch, *, max_items: int | None, has_room: Callable[[], bool]) -> None:
        self._fetch = fetch
        self._max_items = max_items
        self._has_room = has_room

    def _start(self) -> _Pages:
        return _Pages(self._fetch, self._max_items, self._has_room)

    def __aiter__(self) -> AsyncIterator[Transaction]:
        return _Items(self._start())

    def pages(self) -> AsyncIterator[TransactionPage]:
        """Return the same listing a page at a time: each has only its new transactions, and none is empty."""
        return _PrefetchedPages(self._start())

    async def collect(self) -> list[Transaction]:
        """Return all transactions as one list."""
        return [row async for page in self._start() for row in page]
