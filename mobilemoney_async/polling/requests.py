"""Requests of the poller, sent in a slot that was reserved under the rate limit before the request was chosen.

The planner chooses only once the poller has its slot, since that may come ten seconds after the poller got in line.
"""

from __future__ import annotations

import logging

import anyio
import attrs

from mobilemoney_async.calls.bucket import Usage
from mobilemoney_async.calls.limiter import Limiter
from mobilemoney_async.calls.pipeline import FRESH, Pipeline
from mobilemoney_async.contract.codec import parse_page
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, LIST_TRANSACTIONS, Priority
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, Transaction
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.errors import StoreError
from mobilemoney_async.polling.scoring import Page, Request
from mobilemoney_async.polling.sharing import warn_of_store

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Pause after a failure of the store that keeps the limit, seconds.
_STORE_PAUSE = 1.0


@attrs.define
class ReservedSlot:
    """Limiter for one call in the lane `Priority.POLL` with a slot that was acquired just now.

    The pipeline acquires a slot itself. Its first `acquire` takes the reserved one; everything else is the limiter's.
    """

    _limiter: Limiter
    _is_used: bool = False
    _granted_at: float = attrs.field(factory=anyio.current_time)

    def has_capacity(self) -> bool:
        """Return the limiter's answer."""
        return self._limiter.has_capacity()

    def usage(self) -> Usage:
        """Return the use of the limit."""
        return self._limiter.usage()

    def hold(self, seconds: float) -> None:
        """Hold the limiter."""
        self._limiter.hold(seconds)

    async def acquire(self, priority: Priority = Priority.LOOKUP, *, ahead: bool = False) -> None:
        """Take the reserved slot the first time, if it is fresh; otherwise a slot of the limiter."""
        if priority is Priority.POLL and not self._is_used:
            self._is_used = True
            if anyio.current_time() <= self._granted_at + FRESH:
                return
            ahead = True  # a login came first: used now, the slot would come on top of those granted since
        # Otherwise a login, or a replay after one.
        await self._limiter.acquire(priority, ahead=ahead)


@attrs.define
class PageReader:
    """Reader of pages, also of those of which a part breaks the contract.

    For `transactions.page()` such a page is an error. For the poller it shows less: one row that cannot be read, or a
    missing count, must not hide a hundred others for as long as they are listed. Each row is read as strictly as ever.
    The poller looks up the payments that are not shown, as always. The log has one warning until a page is whole.
    """

    _is_whole: bool = True

    def __call__(self, body: bytes) -> PageAnswer:
        """Return the readable part of a page.

        Raises:
            DecodeError: It has rows and none can be read, or it is no page.
        """
        try:
            answer = LIST_TRANSACTIONS.read(body)
        except DecodeError as exc:
            answer = _readable(body, exc)
            if self._is_whole:
                logger.warning("a page can be read only in part: %s", exc)
            self._is_whole = False
        else:
            self._is_whole = True
        return answer


class Requester:
    """Sender of the poller's requests, each once: the planner decides on the next step after a fault."""

    def __init__(self, pipeline: Pipeline) -> None:
        once = attrs.evolve(pipeline.options, deadline=None, retry=attrs.evolve(pipeline.options.retry, max_attempts=1))
        self._pipeline = attrs.evolve(pipeline, options=once)
        self._list = attrs.evolve(LIST_TRANSACTIONS, read=PageReader())
        self._store_fails = False

    async def reserve(self) -> bool:
        """Wait for a slot under the limit; return False, after a pause, if the store that keeps the limit fails.

        A cancelled call gives the slot back.
        """
        try:
            await self._pipeline.limiter.acquire(Priority.POLL)
        except StoreError as exc:
            if not self._store_fails:
                warn_of_store("the poller waits for the store", exc)
            self._store_fails = True
            await anyio.sleep(_STORE_PAUSE)
            return False
        self._store_fails = False
        return True

    async def send(self, request: Request) -> PageAnswer | Transaction:
        """Send a request in the slot that was reserved last; return the page, or the row of a lookup.

        Raises:
            MobileMoneyError: The service refused it, or it failed.
        """
        pipeline = attrs.evolve(self._pipeline, limiter=ReservedSlot(self._pipeline.limiter))
        if isinstance(request, Page):
            query = {"page": request.number, "limit": PAGE_SIZE_MAX}
            return await pipeline.call(self._list, query=query, lane=Priority.POLL)
        identifiers = {"transaction_id": request.transaction_id}
        found = await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.POLL)
        return found.transaction


def _readable(body: bytes, broken: DecodeError) -> PageAnswer:
    """Return the rows that can be read, and the counts that are there."""
    # Imported here: answers that need it are rare, and cattrs takes a third of the import.
    from mobilemoney_async.contract.rows import structure_page

    try:
        answer = structure_page(parse_page(body))
    except DecodeError:
        raise broken from None
    if answer.unreadable and not answer.transactions:
        raise broken
    return answer
