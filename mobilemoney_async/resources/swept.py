"""Many lookups for few requests: pages of the list first, and by id only what they do not show."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

import anyio.lowlevel

from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.resources.lookups import Lookup, Lookups
from mobilemoney_async.resources.sweep import Sweep

logger: logging.Logger = logging.getLogger("mobilemoney_async")


class SweptLookups:
    """Walks the pages for as long as that is worth it, and yields each wanted `Lookup` as it is found.

    State changes only once an answer has come, so that a cancelled reader may ask again.

    Args:
        ids: Distinct transaction ids.
        page: Fetches a page by its number.
        get: Looks one up.
    """

    def __init__(
        self,
        ids: Iterable[str],
        page: Callable[[int], Awaitable[TransactionPage]],
        get: Callable[[str], Awaitable[Transaction]],
    ) -> None:
        self._wanted = dict.fromkeys(ids)
        self._page = page
        self._get = get
        self._sweep = Sweep()
        self._pages: int | None = None
        self._found: deque[Lookup] = deque()
        self._rest: Lookups | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lookup:
        while self._rest is None and not self._found:
            if not self._sweep.worth(len(self._wanted), self._pages):
                self._rest = Lookups(self._wanted, self._get)
                break
            try:
                answer = await self._page(self._sweep.depth + 1)
            except InvalidRequest:
                raise  # the client was closed
            except MobileMoneyError as exc:
                logger.warning("looking many transactions up goes on by id after: %s", exc)
                self._rest = Lookups(self._wanted, self._get)
                break
            self._take(answer)
        if self._found:
            await anyio.lowlevel.checkpoint()
            return self._found.popleft()
        assert self._rest is not None
        return await anext(self._rest)

    async def aclose(self) -> None:
        """Send nothing more; what is on its way ends by itself."""
        self._wanted.clear()
        self._found.clear()
        if self._rest is not None:
            await self._rest.aclose()
        await anyio.lowlevel.checkpoint()

    def _take(self, answer: TransactionPage) -> None:
        wanted = len(self._wanted)
        for row in answer.transactions:
            if row.id in self._wanted:
                del self._wanted[row.id]
                self._found.append(Lookup(transaction_id=row.id, transaction=row))
        self._pages = answer.pagination.total_pages
        self._sweep.took(wanted, wanted - len(self._wanted), len(answer.transactions))
