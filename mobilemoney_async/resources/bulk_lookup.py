"""Calls beside a reader: many lookups side by side, and pages that are fetched before they are asked for.

A plain ``async for`` over an iterator gives it no scope to own tasks in, and a task group held open across ``yield``
corrupts the scopes of both event loops. So such a task is bound to its work instead: it makes one call, which ends by
itself (every call is bounded by its time-outs), keeps the result, and never raises. Only a reader that asks starts
another one, also in place of a page that the program has cancelled with all of its tasks.
"""

from __future__ import annotations

import contextvars
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Generic, Self, TypeVar

import anyio
import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.limits import BURST
from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError, TransportError
from mobilemoney_async.resources.page_choice import PageSweep
from mobilemoney_async.tasks import Signal, running_loop

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

_running: set[object] = set()


@attrs.frozen(kw_only=True)
class Lookup(Data):
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
        self._flying: set[str] = set()
        self._arrived: deque[Lookup | Exception] = deque()
        self._arrival = Signal()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lookup:
        await anyio.lowlevel.checkpoint()
        while not self._arrived:
            if self._page is not None and self._sweep.worth(len(self._ids), self._pages):
                await self._read(self._page)
                continue
            self._page = None
            while self._ids and len(self._flying) < BURST:
                transaction_id, _ = self._ids.popitem(last=False)
                self._flying.add(transaction_id)
                _start_task(partial(self._look_up, transaction_id), partial(self._ended, transaction_id))
            if not self._flying:
                raise StopAsyncIteration
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
        arrived: Lookup | Exception
        try:
            arrived = Lookup(transaction_id=transaction_id, transaction=await self._get(transaction_id))
        except MobileMoneyError as exc:
            arrived = Lookup(transaction_id=transaction_id, error=exc)
        except Exception as exc:  # noqa: BLE001 (a caller's own token source may raise anything)
            arrived = exc
        self._flying.remove(transaction_id)
        self._arrived.append(arrived)
        self._arrival.send()

    def _ended(self, transaction_id: str) -> None:
        if transaction_id in self._flying:  # cancelled, perhaps before it began
            self._flying.remove(transaction_id)
            error = TransportError("the program has cancelled the task of this lookup")
            self._arrived.append(Lookup(transaction_id=transaction_id, error=error))
            self._arrival.send()


class Prefetch(Generic[T]):
    """Call that has begun before its result is asked for."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._done = anyio.Event()
        self._value: list[T] = []
        self._error: Exception | None = None
        _start_task(self._run, self._done.set)

    async def _run(self) -> None:
        try:
            self._value.append(await self._call())
        except Exception as exc:  # noqa: BLE001 (kept for the reader, which may never ask)
            self._error = exc

    async def result(self) -> T:
        """Return the call's result, or raise its error. A cancelled reader may ask again."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value[0] if self._value else await self._call()


def _start_task(work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
    """Start a coroutine that ends by itself and raises nothing but cancellation, on the running event loop.

    `ended` is called at its end, also where it was cancelled before it began.
    """
    loop: Any = running_loop()
    if hasattr(loop, "create_task"):
        task = loop.create_task(work())
        _running.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(_running.discard)
        task.add_done_callback(lambda _: ended())
    else:
        import trio

        async def run() -> None:
            try:
                await work()
            finally:
                ended()

        trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
