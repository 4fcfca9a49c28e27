"""Reconciler of unknown payments with the service's transaction list (contract, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date

import anyio

from mobilemoney_async.calls.pipeline import AnswerFacts, Pipeline
from mobilemoney_async.contract.endpoints import LIST_TRANSACTIONS, Priority
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.errors import UnexpectedResponse
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.evidence import Control, Evidence, Walk
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.matching import (
    ClockSample,
    DateRange,
    PaymentQuery,
    date_ranges,
    query_for,
    read_date,
)
from mobilemoney_async.payments.queries import owners, select
from mobilemoney_async.payments.reconciliation import find_rival, mark_stale, record_listing
from mobilemoney_async.payments.records import PaymentRecord, PaymentState
from mobilemoney_async.resources.page_choice import FullListing

# Pages of a list that is read as a whole, without a range of days.
_SHORT = 5
# Attempts to read a full listing.
_LISTINGS = 3


class Reconciler:
    """Reconciler of one client."""

    def __init__(self, store: AccountStore, pipeline: Pipeline) -> None:
        self._store = store
        self._pipeline = pipeline
        # Held while the list is read and judged. A task that waits for it may find its payment judged by then.
        self._lock = anyio.Lock()
        self._looked_at: dict[str, float] = {}

    async def look_for(self, key: str) -> None:
        """Look for one unknown payment, and for those of the same days on the way.

        Of many tasks that ask at once, one reads the list, and serves the others too.

        Raises:
            StoreError: The store failed.
            MobileMoneyError: The list could not be read; nothing was changed.
        """
        asked_at = anyio.current_time()
        async with self._lock:
            if self._looked_at.get(key, -math.inf) < asked_at:
                await self._reconcile(key, None)

    async def run(self, *, stale_after: float | None = None) -> list[PaymentRecord]:
        """Look for every unknown payment, and record the results; see `Payments.reconcile`."""
        async with self._lock:
            return await self._reconcile(None, stale_after)

    async def _reconcile(self, key: str | None, stale_after: float | None) -> list[PaymentRecord]:
        await self._store.database.open()
        now = self._pipeline.utcnow()
        await self._store.flush(key=key)
        busy = self._store.locks.held(but=key)

        def begin(journal: Journal) -> list[PaymentRecord]:
            mark_stale(journal, now, busy=busy, stale_after=stale_after)
            return select(journal, states=(PaymentState.UNKNOWN, PaymentState.ABSENT))

        records = {record.key: record for record in await self._store.write(begin)}
        if not records:
            return []
        # No transaction is open while the list is read: other processes may change any of these payments.
        queries = {record.key: query_for(record) for record in records.values()}
        began = anyio.current_time()
        # A short list is read as a whole, so that the service's idea of a day does not matter.
        listing = await self._list_once({}, most_pages=_SHORT)
        if listing is not None:
            return await self._judge(listing, queries, records, began)
        found: list[PaymentRecord] = []
        for days in date_ranges(queries):
            if key is None or key in days.queries:
                began = anyio.current_time()
                listing = await self._list(days)
                found += await self._judge(listing, queries, {each: records[each] for each in days.queries}, began)
        return found

    async def _judge(
        self,
        listing: Walk,
        queries: Mapping[str, PaymentQuery],
        records: Mapping[str, PaymentRecord],
        began: float,
    ) -> list[PaymentRecord]:
        """Record the results of a full listing for some payments, in one transaction."""

        def judge_all(journal: Journal) -> list[PaymentRecord]:
            owned = owners(journal, [row.id for row in listing.rows])
            evidence = Evidence(walk=listing, owned=owned, searches=queries, grace=self._store.grace)
            found = []
            for key, record in records.items():
                verdict, rival = evidence.judge(key, Control(passed=True)), None
                if verdict.adopt is not None:
                    rival = find_rival(
                        journal, key, verdict.adopt, query=queries[key], skew=evidence.skew(queries[key])
                    )
                found.append(
                    record_listing(
                        journal,
                        record,
                        verdict,
                        rival,
                        began_at=listing.began_at,
                        ended_at=listing.ended_at,
                        grace=self._store.grace,
                    )
                )
            return found

        found = await self._store.write(judge_all)
        self._looked_at |= dict.fromkeys(records, began)
        for record in found:
            if not record.is_unresolved:
                self._looked_at.pop(record.key, None)
        return found

    async def _list(self, days: DateRange) -> Walk:
        """Read all transactions of some days.

        Raises:
            UnexpectedResponse: The list shows fewer transactions than it counts, again and again.
            MobileMoneyError: A page could not be fetched.
        """
        query: dict[str, str | int] = {"from": days.first.isoformat()}
        if days.last < self._pipeline.utcnow().date():
            query["to"] = days.last.isoformat()
        for _ in range(_LISTINGS):
            listing = await self._list_once(query)
            if listing is not None:
                return listing
        raise UnexpectedResponse("the transaction list shows fewer transactions than it counts", status_code=200)

    async def _list_once(self, query: dict[str, str | int], *, most_pages: float = math.inf) -> Walk | None:
        """Return a full listing, or None if the list is too long or shows fewer transactions than it counts."""
        pages, rows, dates = FullListing(), list[Transaction](), list[ClockSample]()
        began_at, fewest = self._pipeline.utcnow(), math.inf
        while pages.page is not None:
            sent_at = self._pipeline.utcnow()
            asked = {"limit": PAGE_SIZE_MAX, **query, "page": pages.page}
            facts = AnswerFacts()
            page = await self._pipeline.call(LIST_TRANSACTIONS, query=asked, lane=Priority.LOOKUP, facts=facts)
            shown = None if facts.date is None else read_date(facts.date)
            if shown is not None:
                dates.append(ClockSample(shown=shown, began_at=sent_at, ended_at=self._pipeline.utcnow()))
            if page.pagination.total_pages > most_pages:
                return None
            fewest = min(fewest, page.pagination.total_count)
            rows += pages.take(TransactionPage(transactions=page.transactions, pagination=page.pagination))
        if len(rows) < fewest:
            return None
        return Walk(
            rows=tuple(rows),
            dates=tuple(dates),
            began_at=began_at,
            ended_at=self._pipeline.utcnow(),
            first_day=date.min,
            is_complete=True,
        )
