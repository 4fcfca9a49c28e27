"""Bulk lookup: many lookups side by side, and of known ids by pages of the list where pages show more of them."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Self

import anyio
import attrs

from mobilemoney_async.contract.limits import BURST
from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.resources.page_choice import PageSweep
from mobilemoney_async.resources.prefetch import start_task

logger: logging.Logger = logging.getLogger("mobilemoney_async")


@attrs.frozen(kw_only=True)
class Lookup:
    """Result of one lookup: a transaction or an error.

    Attributes:
        transaction_id: The id that was looked up.
        transaction: The transaction, or None.
        error: The reason why there is none, or None.
    """

    transaction_id: str
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None


class BulkLookup:
    """Iterator that yields a `Lookup` for each id as it arrives.

    With `page`, it reads pages of the list first, as long as they show more than lookups would. The ids that are left
    are looked up side by side. State changes only once an answer has come, so that a cancelled reader may ask again. A
    reader that stops asking stops the lookups: requests on their way end by themselves, and nothing more is sent.

    Args:
        ids: Distinct transaction ids.
        get: Looks one up.
        page: Fetches a page by its number, or None.
    """

    def __init__(
        self,
        ids: Iterable[str],
        get: Callable[[str], Awaitable[Transaction]],
        page: Callable[[int], Awaitable[TransactionPage]] | None = None,
    ) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict.fromkeys(ids)
        self._get = get
        self._page = page
        self._sweep = PageSweep()
        self._pages: int | None = None
        self._flying = 0
        self._arrived: deque[Lookup | Exception] = deque()
        self._arrival = anyio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lookup:
        await anyio.lowlevel.checkpoint()
        while not self._arrived:
            if self._page is not None and self._sweep.worth(len(self._ids), self._pages):
                await self._read(self._page)
                continue
            self._page = None
            while self._ids and self._flying < BURST:
                transaction_id, _ = self._ids.popitem(last=False)
                self._flying += 1
                start_task(partial(self._look_up, transaction_id))
            if not self._flying:
                raise StopAsyncIteration
            self._arrival = anyio.Event()
            await self._arrival.wait()
        arrived = self._arrived.popleft()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    async def aclose(self) -> None:
        """Send nothing more; requests on their way end by themselves."""
        if self._page is not None:
            self._arrived.clear()
        self._ids.clear()
        await anyio.lowlevel.checkpoint()

    async def _read(self, page: Callable[[int], Awaitable[TransactionPage]]) -> None:
        try:
            answer = await page(self._sweep.depth + 1)
        except InvalidRequest:
            raise  # the client was closed
        except MobileMoneyError as exc:
            logger.warning("the bulk lookup goes on by id after: %s", exc)
            self._page = None
            return
        wanted = len(self._ids)
        for row in answer.transactions:
            if row.id in self._ids:
                del self._ids[row.id]
                self._arrived.append(Lookup(transaction_id=row.id, transaction=row))
        self._pages = answer.pagination.total_pages
        self._sweep.took(wanted, wanted - len(self._ids), len(answer.transactions))

    async def _look_up(self, transaction_id: str) -> None:
        try:
            transaction = await self._get(transaction_id)
            self._arrived.append(Lookup(transaction_id=transaction_id, transaction=transaction))
        except MobileMoneyError as exc:
            self._arrived.append(Lookup(transaction_id=transaction_id, error=exc))
        except Exception as exc:  # noqa: BLE001 (a caller's own token source may raise anything)
            self._arrived.append(exc)
        finally:
            self._flying -= 1
            self._arrival.set()
