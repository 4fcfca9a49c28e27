"""Bulk lookup: many lookups side by side, and of known ids by pages of the list where pages show more of them."""

from __future__ import annotations

import logging
from collections import deque
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
    """Iterator that looks up ids side by side, and yields each `Lookup` as it arrives.

    A reader that stops asking stops the lookups: requests on their way end by themselves, and nothing more is sent.
    """

    def __init__(self, ids: Iterable[str], get: Callable[[str], Awaitable[Transaction]]) -> None:
        self._ids = deque(ids)
        self._get = get
        self._flying = 0
        self._arrived: deque[Lookup | Exception] = deque()
        self._arrival = anyio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lookup:
        await anyio.lowlevel.checkpoint()
        while not self._arrived:
            while self._ids and self._flying < BURST:
                self._flying += 1
                start_task(partial(self._look_up, self._ids.popleft()))
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
        self._ids.clear()
        await anyio.lowlevel.checkpoint()

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


class SweptBulkLookup:
    """Iterator that reads pages while they show more than lookups would, and looks up the ids that they do not show.

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
        self._sweep = PageSweep()
        self._pages: int | None = None
        self._found: deque[Lookup] = deque()
        self._rest: BulkLookup | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lookup:
        while self._rest is None and not self._found:
            if not self._sweep.worth(len(self._wanted), self._pages):
                self._rest = BulkLookup(self._wanted, self._get)
                break
            try:
                answer = await self._page(self._sweep.depth + 1)
            except InvalidRequest:
                raise  # the client was closed
            except MobileMoneyError as exc:
                logger.warning("the bulk lookup goes on by id after: %s", exc)
                self._rest = BulkLookup(self._wanted, self._get)
                break
            self._take(answer)
        if self._found:
            await anyio.lowlevel.checkpoint()
            return self._found.popleft()
        assert self._rest is not None
        return await anext(self._rest)

    async def aclose(self) -> None:
        """Send nothing more; requests on their way end by themselves."""
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
