"""Reader of the transaction list as evidence: whole days of it, or the pages around one time (contract, section 4.4).

Rows that break the contract are kept apart, with as much as can be read of them; the other rows of their pages count.
"""

from __future__ import annotations

import logging
from datetime import date, datetime, timedelta

import attrs

from mobilemoney_async.calls.collaborators import AnswerFacts
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.endpoints import LIST_TRANSACTIONS, Priority, read_rows
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, Pagination, RowsAnswer, Transaction, UnreadableRow
from mobilemoney_async.errors import APIError
from mobilemoney_async.payments.ownership.evidence import Listing
from mobilemoney_async.payments.ownership.matching import ClockSample, read_sample
from mobilemoney_async.resources.page_choice import JoinedPages, TimeSearch, is_past_end

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_ROWS = attrs.evolve(LIST_TRANSACTIONS, read=read_rows)
# Requests of one full listing with all its attempts, and of one bisection.
_MOST_REQUESTS, _MOST_PROBES = 5_000, 60
_ATTEMPTS = 3
# Pages of new rows only, read before the rows with which a list began are shown again.
_MOST_NEW_PAGES = 5
# Age of a window that is looked for at the end first, where the newest rows come last.
_RECENT, _DAY = timedelta(minutes=10), timedelta(days=1)


def unhurried(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline without the deadline of a call: there may be a queue for hundreds of pages."""
    if pipeline.options.deadline is None:
        return pipeline
    return attrs.evolve(pipeline, options=attrs.evolve(pipeline.options, deadline=None))


class _PageReader:
    """Reader of single pages, which keeps their rows.

    Attributes:
        left: The number of requests that it may still make.
        rows: The transactions by their ids, each as it was last shown.
    """

    def __init__(self, pipeline: Pipeline, days: tuple[date, date | None], lane: Priority, *, left: int) -> None:
        self.left = left
        self.rows: dict[str, Transaction] = {}
        self._unreadable: dict[UnreadableRow, None] = {}
        self._dates: list[ClockSample] = []
        self._pipeline, self._days, self._lane = pipeline, days, lane
        self._began_at = pipeline.utcnow()
        self._query: dict[str, str | int] = {"limit": PAGE_SIZE_MAX, "from": days[0].isoformat()}
        if days[1] is not None and days[1] < self._began_at.date():
            self._query["to"] = days[1].isoformat()
        self._counts: Pagination  # of the latest page: the first one that is read is number 1

    async def read(self, number: int) -> PageAnswer:
        """Return a page, empty if the service refuses a number other than 1, as one beyond its last page may be.

        Raises:
            MobileMoneyError: The page could not be fetched.
        """
        self.left -= 1
        sent_at, facts, query = self._pipeline.utcnow(), AnswerFacts(), {**self._query, "page": number}
        try:
            answer = await self._pipeline.call(_ROWS, query=query, lane=self._lane, facts=facts)
        except APIError as exc:
            if not is_past_end(number, exc):
                raise
            return PageAnswer(transactions=(), pagination=self._counts)
        sample = read_sample(facts.date, began_at=sent_at, ended_at=self._pipeline.utcnow())
        if sample is not None:
            self._dates.append(sample)
        self._counts = answer.pagination
        self.rows.update((row.id, row) for row in answer.transactions)
        if isinstance(answer, RowsAnswer):
            self._unreadable.update(dict.fromkeys(answer.unreadable))
        return answer

    def listing(
        self,
        *,
        is_complete: bool = False,
        covered: tuple[datetime, datetime] | None = None,
        counted: int | None = None,
    ) -> Listing:
        """Return the listing."""
        return Listing(
            rows=tuple(self.rows.values()),
            unreadable=tuple(row for row in self._unreadable if row.id not in self.rows),
            dates=tuple(self._dates),
            began_at=self._began_at,
            ended_at=self._pipeline.utcnow(),
            first_day=self._days[0],
            last_day=self._days[1],
            is_complete=is_complete,
            covered=covered,
            counted=counted,
        )


@attrs.define(eq=False)
class Lister:
    """Reader of the transaction list of one client. It may be cancelled: it changes nothing."""

    _pipeline: Pipeline = attrs.field(converter=unhurried)

    async def complete(self, first_day: date, last_day: date | None = None, lane: Priority = Priority.BULK) -> Listing:
        """Read all transactions of some days, in two requests more than they have pages.

        Where a row may have been missed, since rows left or moved while they were read, the list is read again.

        Args:
            first_day: The first day. The service's time zone is undocumented: take a day to spare.
            last_day: The last day; None for all days up to the present.
            lane: The lane of the requests.

        Returns:
            The listing. It is not complete if a row may have been missed each time, if the service counts more rows
            than it shows or has shown one that it no longer shows, or if the list does not end.

        Raises:
            MobileMoneyError: A page could not be fetched.
        """
        reader = _PageReader(self._pipeline, (first_day, last_day), lane, left=_MOST_REQUESTS)
        seen: set[object] = set()
        counted: int | None = None
        for _ in range(_ATTEMPTS):
            pages = JoinedPages()
            # It also reads on behind a gap: the rows that it finds may be payments that are looked for.
            while not pages.is_over and reader.left > 0:
                pages.take(await reader.read(pages.page))
            counted = pages.counted
            is_whole = pages.is_whole and pages.rows.issuperset(reader.rows)
            if is_whole and (pages.is_plain or await self._begins_as_before(reader, pages)):
                return reader.listing(is_complete=True)
            if pages.rows == seen:  # another attempt would show the same
                break
            seen = pages.rows
        listing = reader.listing(counted=counted)
        logger.warning("%s", listing.shortfall)
        return listing

    async def _begins_as_before(self, reader: _PageReader, pages: JoinedPages) -> bool:
        """Return whether the list still begins as it did. If not, rows left, or it seemed to end while it was away."""
        for number in range(1, min(_MOST_NEW_PAGES, reader.left) + 1):
            begins = pages.begins_with(await reader.read(number))
            if begins is not None:
                return begins
        return False

    async def near(
        self,
        start: datetime,
        end: datetime,
        first_day: date | None = None,
        lane: Priority = Priority.LOOKUP,
    ) -> Listing:
        """Read the pages of one time in about log2(pages) + 4 requests, and in one or a few if it was just now.

        Args:
            start: The first moment, on the service's clock.
            end: The last one.
            first_day: As for `complete`, up to the present; None for the days around that time.
            lane: The lane of the requests.

        Returns:
            The listing: never complete, and with `covered` if it certainly shows all rows of that time. Only a list in
            the order of `created_at` can, either way, or one of few pages.

        Raises:
            MobileMoneyError: A page could not be fetched.
        """
        days = (first_day, None) if first_day else (shift(start, -_DAY).date(), shift(end, 2 * _DAY).date())
        reader = _PageReader(self._pipeline, days, lane, left=_MOST_PROBES)
        search = TimeSearch(start, end, is_recent=end > self._pipeline.utcnow() - _RECENT)
        while search.page is not None and reader.left > 0:
            search.take(await reader.read(search.page))
        return reader.listing(is_complete=search.is_whole, covered=(start, end) if search.is_covered else None)
