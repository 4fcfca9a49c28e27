"""Finds out what became of unknown payments, by walking the service's transaction list (contract, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs

from mobilemoney_async.calls.pipeline import AnswerFacts, Pipeline
from mobilemoney_async.contract.endpoints import LIST_TRANSACTIONS, Priority
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Transaction, TransactionPage
from mobilemoney_async.errors import UnexpectedResponse
from mobilemoney_async.payments import journal, results, write_buffer
from mobilemoney_async.payments.late_matches import find_late_match
from mobilemoney_async.payments.matching import (
    ClockSample,
    DateRange,
    PaymentQuery,
    Skew,
    date_ranges,
    estimate_skew,
    judge,
    read_date,
)
from mobilemoney_async.payments.records import PaymentRecord, PaymentState
from mobilemoney_async.payments.store import SQLStore
from mobilemoney_async.resources.page_choice import FullListing

# Payments of ours nearest to an unknown one by whose timestamps the service's clock is told.
_WITNESSES = 5
# Pages. A list as short as this is not cut down to some days.
_SHORT = 5
# How often an unfinished walk is begun anew.
_WALKS = 3


@attrs.frozen(kw_only=True)
class _Walked:
    """A complete walk.

    Attributes:
        rows: Every transaction that it has shown.
        dates: What the Date headers of its answers say of the service's clock.
        began_at: On our clock.
        ended_at: On our clock.
    """

    rows: tuple[Transaction, ...]
    dates: tuple[ClockSample, ...]
    began_at: datetime
    ended_at: datetime


class Reconciler:
    """Finds out for one client.

    Args:
        store: Keeps the payments.
        pipeline: Makes the calls.
    """

    def __init__(self, store: SQLStore, pipeline: Pipeline) -> None:
        self._store = store
        self._pipeline = pipeline
        self._lock = anyio.Lock()
        self._looked_at: dict[str, float] = {}

    async def find_out(self, key: str) -> None:
        """Look for one unknown payment, and for those of the same days on the way.

        Of many tasks that ask at once, one walks, and serves the others too.

        Raises:
            StoreError: The store failed.
            MobileMoneyError: The list could not be walked; nothing was changed.
        """
        asked_at = anyio.current_time()
        async with self._lock:
            if self._looked_at.get(key, -math.inf) < asked_at:
                await self._reconcile(key, None)

    async def run(self, *, stale_after: float | None = None) -> list[PaymentRecord]:
        """Look for every unknown payment, and record what that says.

        Args:
            stale_after: As for `payments.reconcile`.

        Returns:
            The payments that were looked for, as they are now.

        Raises:
            StoreError: The store failed.
            MobileMoneyError: The list could not be walked; what was found on earlier days stays recorded.
        """
        async with self._lock:
            return await self._reconcile(None, stale_after)

    async def _reconcile(self, key: str | None, stale_after: float | None) -> list[PaymentRecord]:
        store = self._store
        await store._database.open()
        now = self._pipeline.utcnow()
        await write_buffer.flush(store, key=key)
        busy = store._turns.held(but=key)

        def begin(connection: Any) -> list[PaymentRecord]:
            results.mark_stale(connection, store.account, now, keep=busy, stale_after=stale_after)
            return journal.select(connection, store.account, states=(PaymentState.UNKNOWN, PaymentState.ABSENT))

        records = {record.key: record for record in await store._database.write(begin)}
        found: list[PaymentRecord] = []
        searches = {record.key: query_for(record) for record in records.values()}
        began = anyio.current_time()
        # A short list is walked as a whole, so that it does not matter what the service takes for a day.
        walked = await self._walk_once({}, most_pages=_SHORT) if searches else None
        if walked is not None:
            return await self._judge(walked, searches, list(records.values()), began)
        for span in date_ranges(searches):
            if key is None or key in span.searches:
                began = anyio.current_time()
                walked = await self._walk(span)
                found += await self._judge(walked, searches, [records[each] for each in span.searches], began)
        return found

    async def _judge(
        self, walked: _Walked, searches: Mapping[str, PaymentQuery], records: list[PaymentRecord], began: float
    ) -> list[PaymentRecord]:
        store = self._store

        def end(connection: Any) -> list[PaymentRecord]:
            claims = journal.claimed(connection, store.account, [row.id for row in walked.rows])
            free = [row for row in walked.rows if row.id not in claims]
            found = []
            for record in records:
                search = searches[record.key]
                skew = _skew(search, walked, claims)
                verdict = judge(search, free, skew)
                doubted = None
                if verdict.adopt is not None:
                    doubted = find_late_match(
                        connection, store.account, record.key, search=search, transaction=verdict.adopt, skew=skew
                    )
                found.append(
                    results.record_listing(
                        connection,
                        store.account,
                        record,
                        verdict,
                        doubted,
                        began_at=walked.began_at,
                        ended_at=walked.ended_at,
                        grace=store.grace,
                    )
                )
            return found

        found = await store._database.write(end)
        for record in records:
            self._looked_at[record.key] = began
        for record in found:
            if not record.is_unresolved:
                self._looked_at.pop(record.key, None)
        return found

    async def _walk(self, span: DateRange) -> _Walked:
        """Walk the days to their end.

        Raises:
            UnexpectedResponse: The list shows fewer transactions than it counts, again and again.
            MobileMoneyError: A page could not be had.
        """
        query: dict[str, str | int] = {"from": span.first.isoformat()}
        if span.last < self._pipeline.utcnow().date():
            query["to"] = span.last.isoformat()
        for _ in range(_WALKS):
            walked = await self._walk_once(query)
            if walked is not None:
                return walked
        raise UnexpectedResponse("the transaction list shows fewer transactions than it counts", status_code=200)

    async def _walk_once(self, query: dict[str, str | int], *, most_pages: float = math.inf) -> _Walked | None:
        walk, rows, dates = FullListing(), list[Transaction](), list[ClockSample]()
        began_at, fewest = self._pipeline.utcnow(), math.inf
        while walk.page is not None:
            sent_at = self._pipeline.utcnow()
            asked = {"limit": PAGE_SIZE_MAX, **query, "page": walk.page}
            facts = AnswerFacts()
            page = await self._pipeline.call(LIST_TRANSACTIONS, query=asked, lane=Priority.LOOKUP, facts=facts)
            dates += self._date(facts, sent_at)
            if page.pagination.total_pages > most_pages:
                return None
            fewest = min(fewest, page.pagination.total_count)
            rows += walk.take(TransactionPage(transactions=page.transactions, pagination=page.pagination))
        if len(rows) < fewest:
            return None
        return _Walked(rows=tuple(rows), dates=tuple(dates), began_at=began_at, ended_at=self._pipeline.utcnow())

    def _date(self, facts: AnswerFacts, sent_at: datetime) -> list[ClockSample]:
        """Return what an answer's Date header says, if it has one."""
        shown = None if facts.date is None else read_date(facts.date)
        if shown is None:
            return []
        return [ClockSample(shown=shown, began_at=sent_at, ended_at=self._pipeline.utcnow())]


def query_for(record: PaymentRecord) -> PaymentQuery:
    """Return what to look for in the list, of a payment that was sent."""
    assert record.sent_at is not None
    return PaymentQuery(
        type=record.type,
        phone_number=record.phone_number,
        amount=f"{record.amount:f}",
        sent_at=record.sent_at,
        ended_at=record.sent_at if record.ended_at is None else record.ended_at,
    )


def _skew(search: PaymentQuery, walked: _Walked, claims: Mapping[str, PaymentRecord]) -> Skew | None:
    """Return how far the service's clock was ahead when a payment was sent.

    The timestamps of our own payments say it best, since they are what is compared; the nearest ones say it for that
    time. Where there are none, the Date headers say it for now.
    """
    witnesses: list[tuple[timedelta, ClockSample]] = []
    for row in walked.rows:
        record = claims.get(row.id)
        # An adopted payment was found by this very clock; it cannot vouch for it.
        if record is None or record.is_adopted or record.sent_at is None or record.ended_at is None:
            continue
        seen = ClockSample(shown=row.created_at, began_at=record.sent_at, ended_at=record.ended_at)
        witnesses.append((abs(record.sent_at - search.sent_at), seen))
    witnesses.sort(key=lambda pair: pair[0])
    nearest = [seen for _, seen in witnesses[:_WITNESSES]]
    return estimate_skew(nearest or walked.dates)
