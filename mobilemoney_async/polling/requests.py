"""Requests of the poller, sent in a slot that was reserved under the rate limit before the request was chosen.

The planner chooses only once the poller has its slot, since that may come ten seconds after the poller got in line.
"""

from __future__ import annotations

import logging

import anyio
import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, LIST_TRANSACTIONS, Priority, read_rows
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, RowsAnswer, Transaction
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.errors import StoreError
from mobilemoney_async.polling.scoring import Page, Request
from mobilemoney_async.polling.sharing import warn_of_store

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Pause after a failure of the store that keeps the limit, seconds.
_STORE_PAUSE = 1.0


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
        answer = read_rows(body)
        unreadable = answer.unreadable if isinstance(answer, RowsAnswer) else None
        if unreadable and not answer.transactions:
            raise DecodeError(unreadable[0].reason)
        if self._is_whole and unreadable is not None:
            logger.warning("a page can be read only in part; rows that cannot be read: %d", len(unreadable))
        self._is_whole = unreadable is None
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
        lane, now = Priority.POLL, anyio.current_time()
        if isinstance(request, Page):
            query = {"page": request.number, "limit": PAGE_SIZE_MAX}
            return await self._pipeline.call(self._list, query=query, lane=lane, granted_at=now)
        identifiers = {"transaction_id": request.transaction_id}
        found = await self._pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=lane, granted_at=now)
        return found.transaction
