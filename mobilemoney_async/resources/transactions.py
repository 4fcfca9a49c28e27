"""Looking at transactions: one, many, all, or one until it is final (contract, sections 4.3, 4.4 and 6)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from datetime import date
from functools import partial
from typing import Any, Self

import anyio
import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import (
    FIND_TRANSACTION,
    GET_TRANSACTION,
    LIST_TRANSACTIONS,
    Priority,
    read_rows,
)
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX, UNSEEN_GRACE, Schedule
from mobilemoney_async.contract.models import Acknowledgement, RowsAnswer, Transaction, TransactionPage, id_of
from mobilemoney_async.contract.states import TransactionStatus, TransactionType, require_type
from mobilemoney_async.errors import (
    APIError,
    MobileMoneyError,
    RateLimitExceeded,
    ServerError,
    TransactionNotFound,
    TransportError,
    UnexpectedResponse,
    WaitTimeout,
)
from mobilemoney_async.resources.bulk_lookup import BulkLookup, Lookup, Prefetch
from mobilemoney_async.resources.page_choice import FullListing, is_past_end
from mobilemoney_async.text import redact, shown_id
from mobilemoney_async.values import refuse, require_date, require_integer, require_seconds, require_text

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Of a full listing: one row that cannot be read must not end it.
_LIST_BY_ROWS = attrs.evolve(LIST_TRANSACTIONS, read=read_rows)

Fetch = Callable[[int], Awaitable[TransactionPage]]

_PASSING = (TransportError, UnexpectedResponse, ServerError, RateLimitExceeded)


@attrs.define(eq=False)
class _Pages:
    """Pages of one full listing.

    State changes only once a page has come, so that a cancelled one can be asked for again.
    """

    _fetch: Fetch
    _left: int | None  # rows that the caller still wants
    _has_room: Callable[[], bool]
    _prefetch: bool = False  # whether the next page is on its way while the caller works
    _listing: FullListing = attrs.field(factory=FullListing)
    _next: Prefetch[TransactionPage] | None = None
    _latest: TransactionPage | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransactionPage:
        while (page := self._page) is not None:
            answer = await self._get(page)
            rows = self._take(answer)
            is_short = self._left != 0 and self._listing.is_short
            if is_short:
                self._warn()
            if rows or is_short:
                if self._prefetch:
                    self.prefetch()
                is_complete = answer.is_complete and not is_short
                return attrs.evolve(answer, transactions=tuple(rows), is_complete=is_complete)
        raise StopAsyncIteration

    @property
    def _page(self) -> int | None:
        return None if self._left == 0 else self._listing.page

    def _warn(self) -> None:
        counted = "pages without a readable count" if self._listing.counted is None else f"{self._listing.counted:,}"
        logger.warning(
            "the list could not be read as a whole: the service counts %s, and has shown %s transactions",
            counted,
            f"{self._listing.shown:,}",
        )

    async def _get(self, page: int) -> TransactionPage:
        try:
            self._latest = await (self._fetch(page) if self._next is None else self._next.result())
        except APIError as exc:
            self._next = None  # the next reader asks again
            # One page more is asked for than the service counts.
            if self._latest is None or page <= self._latest.pagination.total_pages or not is_past_end(page, exc):
                raise
            self._latest = attrs.evolve(self._latest, transactions=(), skipped=())
        except Exception:
            self._next = None
            raise
        return self._latest

    def _take(self, answer: TransactionPage) -> list[Transaction]:
        self._next = None
        rows = self._listing.take(answer)[: self._left]
        if self._left is not None:
            self._left -= len(rows)
        return rows

    def prefetch(self) -> None:
        """Begin to fetch the next page, if there is one and the limiter has a free place for it."""
        page = self._page
        if page is not None and self._next is None and self._has_room():
            self._next = Prefetch(lambda: self._fetch(page))


@attrs.define(eq=False)
class _Items:
    """Iterator over rows. The next page is on its way once the caller has asked for a second row."""

    _pages: _Pages
    _rows: tuple[Transaction, ...] = ()
    _next: int = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Transaction:
        if self._next == len(self._rows):
            self._rows, self._next = (), 0
            while not self._rows:  # the last page may be empty
                self._rows = (await anext(self._pages)).transactions
        else:
            if self._next == 1:
                self._pages.prefetch()
            await anyio.lowlevel.checkpoint()  # which also lets the next page come nearer
        self._next += 1
        return self._rows[self._next - 1]


class TransactionPager:
    """Full listing of the transactions: ``async for transaction in pager``, or all as one list: ``await pager``.

    Each transaction comes once, although rows arrive while the list is read. In either order you get every transaction
    that was there when the listing began and stays in the list, also where others leave it because their state no
    longer fits the `status` filter. Where some arrive and some leave between two pages, only the difference is known: a
    transaction may then be missed.

    The next page is fetched while the caller works on this one, if the limiter has a free place. A page that failed or
    was cancelled is asked for again by asking the same iterator again. Each ``async for`` is a new listing.

    A row that breaks the contract is skipped, with its id and the reason in the log and in ``TransactionPage.skipped``:
    the listing is not complete then.

    A listing that ends before it has shown as many transactions as the service counts is not complete: the log has one
    WARNING with both numbers, and the last page has ``is_complete`` False.

    Iterating raises the errors of `transactions.page`.
    """

    def __init__(self, fetch: Fetch, *, max_items: int | None, has_room: Callable[[], bool]) -> None:
        self._start = partial(_Pages, fetch, max_items, has_room)

    def __aiter__(self) -> AsyncIterator[Transaction]:
        return _Items(self._start())

    def pages(self) -> AsyncIterator[TransactionPage]:
        """Return the same listing a page at a time: each has only its new transactions.

        None is empty, except the last page of a listing that is not complete.
        """
        return self._start(prefetch=True)

    def __await__(self) -> Generator[Any, Any, list[Transaction]]:
        """Return all transactions as one list, as `collect` does."""
        return self.collect().__await__()

    async def collect(self) -> list[Transaction]:
        """Return all transactions as one list."""
        return [row async for page in self._start() for row in page]


@attrs.define(eq=False, slots=False)
class Transactions:
    """Lookups and history. Nothing here moves money; every call may be cancelled and made again."""

    _pipeline: Pipeline = attrs.field(repr=False)

    async def get(self, transaction_id: str | Acknowledgement | Transaction) -> Transaction:
        """Look up a transaction by its id (contract, section 4.3).

        Args:
            transaction_id: The id, or the acknowledgement or transaction that has it.

        Raises:
            InvalidRequest: The id is blank, ``.`` or ``..``; nothing was sent.
            TransactionNotFound: No transaction has this id. One created a moment ago may not be shown yet.
            InvalidTransactionId: The service calls the id malformed.
            MobileMoneyError: The call failed otherwise; see `mobilemoney_async.errors`.
        """
        return await self._get(id_of("transaction_id", transaction_id), Priority.LOOKUP)

    async def get_by_reference(self, reference: str) -> Transaction:
        """Look up a transaction by the service's reference (contract, section 4.3).

        Raises:
            InvalidRequest: The reference is blank; nothing was sent.
            TransactionNotFound: No transaction has this reference.
            MobileMoneyError: The call failed otherwise.
        """
        query = {"reference": require_text("reference", reference)}
        return (await self._pipeline.call(FIND_TRANSACTION, query=query)).transaction

    async def get_by_external_id(self, external_id: str) -> Transaction:
        """Look up a transaction by the merchant's reference (contract, section 4.3).

        The contract does not show how a transaction gets one; see `extra` of ``create``.

        Raises:
            InvalidRequest: The external id is blank; nothing was sent.
            TransactionNotFound: No transaction has this external id.
            MobileMoneyError: The call failed otherwise.
        """
        query = {"external_id": require_text("external_id", external_id)}
        return (await self._pipeline.call(FIND_TRANSACTION, query=query)).transaction

    def get_many(
        self, ids: Iterable[str | Acknowledgement | Transaction], *, since: date | None = None
    ) -> AsyncIterator[Lookup]:
        """Look up many transactions side by side.

        Yields a `Lookup` for each distinct id as it arrives, in no particular order; an error is a value too. The
        lookups go in the lane for bulk work, so that they wait behind payments and single lookups.

        Args:
            ids: Transaction ids, or objects with one, as for `get`; all of them are checked before the first is sent.
            since: A day, as `from_date` of `page`, on or after which most of them were created. Pages of the history
                since that day are then read first, as long as they show more than lookups would, and only the rest
                is looked up: 600 transactions of today for some ten requests.

        Raises:
            InvalidRequest: `ids` is a single str, an id is blank, ``.`` or ``..``, or `since` is no plain date;
                nothing was sent.
        """
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise refuse("ids", "an iterable of ids, such as a list", ids)
        distinct = dict.fromkeys(id_of("ids", each) for each in ids)
        get = partial(self._get, lane=Priority.BULK)
        if since is None:
            return BulkLookup(distinct, get)
        require_date("since", since)
        filters = _check_filters(None, None, since, None, PAGE_SIZE_MAX)
        return BulkLookup(distinct, get, partial(self._page, filters=filters, lane=Priority.BULK))

    async def page(
        self,
        page: int = 1,
        *,
        status: TransactionStatus | str | None = None,
        type: TransactionType | str | None = None,
        from_date: date | None = None,
        to_date: date | None = None,
        limit: int = PAGE_SIZE_MAX,
    ) -> TransactionPage:
        """Return one page of the history (contract, section 4.4).

        Args:
            page: From 1.
            status: Only transactions in this state, in upper or lower case. Any other text is sent as it is, since
                states may be added, and logged as a WARNING.
            type: Only collections or disbursements.
            from_date: The first day, a ``date``; a ``datetime`` is refused rather than cut. The time zone is not
                documented; timestamps are UTC.
            to_date: The last day.
            limit: Transactions on a page, 1 to 100.

        Raises:
            InvalidRequest: An argument is invalid; nothing was sent.
            UnexpectedResponse: The page breaks the contract, be it in one row; `list` skips such rows.
            MobileMoneyError: The call failed; see `mobilemoney_async.errors`.
        """
        filters = _check_filters(status, type, from_date, to_date, limit)
        return await self._page(require_integer("page", page, 1), filters, Priority.LOOKUP)

    def list(
        self,
        *,
        status: TransactionStatus | str | None = None,
        type: TransactionType | str | None = None,
        from_date: date | None = None,
        to_date: date | None = None,
        limit: int = PAGE_SIZE_MAX,
        max_items: int | None = None,
    ) -> TransactionPager:
        """Return the whole history, page after page (contract, section 4.4).

        ``async for transaction in client.transactions.list(): ...``

        Args:
            status: As for `page`.
            type: As for `page`.
            from_date: As for `page`.
            to_date: As for `page`.
            limit: Transactions asked for at a time, 1 to 100.
            max_items: Stop after so many, at least 0.

        Raises:
            InvalidRequest: An argument is invalid; nothing was sent.
        """
        filters = _check_filters(status, type, from_date, to_date, limit)
        if max_items is not None:
            require_integer("max_items", max_items, 0)
        return TransactionPager(
            partial(self._page, filters=filters, lane=Priority.BULK),
            max_items=max_items,
            has_room=self._pipeline.limiter.has_capacity,
        )

    async def wait(
        self,
        transaction_id: str | Acknowledgement | Transaction,
        *,
        timeout: float | None = None,
        schedule: Schedule | None = None,
    ) -> Transaction:
        """Look at a transaction until it is final (contract, section 6).

        The first look is at once, the next after 1 s, then after pauses that grow by 1.5 up to 30 s. Passing faults
        (connection, 5xx, rate limit) are logged and waited out, and so is "not found" for the first two minutes, since
        the contract does not say how soon a new transaction can be looked up.

        Args:
            transaction_id: The acknowledgement, or the id.
            timeout: How long to wait in all, seconds, more than 0; None waits for as long as it takes.
            schedule: Other pauses.

        Returns:
            The transaction in its final state, whichever that is: look at ``succeeded``.

        Raises:
            InvalidRequest: An argument is invalid; nothing was sent.
            WaitTimeout: Not final in time; it may still become so. Carries the transaction as last seen.
            TransactionNotFound: Still not found after two minutes.
            APIError: The service refused otherwise.
        """
        transaction_id = id_of("transaction_id", transaction_id)
        patience = float("inf") if timeout is None else require_seconds("timeout", timeout)
        pauses = Schedule() if schedule is None else schedule
        if not isinstance(pauses, Schedule):
            raise refuse("schedule", "a Schedule", schedule)
        seen: Transaction | None = None
        trouble: MobileMoneyError | None = None
        unseen_until = anyio.current_time() + UNSEEN_GRACE
        look = 0
        with anyio.move_on_after(patience):
            while True:
                try:
                    seen = await self._get(transaction_id, Priority.POLL)
                    if seen.is_final:
                        return seen
                    trouble = None
                except TransactionNotFound as exc:
                    if seen is None and anyio.current_time() >= unseen_until:
                        raise
                    trouble = exc
                except _PASSING as exc:
                    logger.warning("waiting for a transaction goes on after: %s", exc)
                    trouble = exc
                except APIError as exc:
                    # A 404 without the contract's code may be a router's: it says nothing about the transaction.
                    if type(exc) is not APIError or exc.status_code != 404:
                        raise
                    logger.warning("waiting for a transaction goes on after: %s", exc)
                    trouble = exc
                await anyio.sleep(pauses.delay(look))
                look += 1
        state = "not seen" if seen is None else redact(seen.status)
        raise WaitTimeout(
            f"not final after {patience:g} s: {state}", transaction_id=transaction_id, transaction=seen
        ) from trouble

    async def _get(self, transaction_id: str, lane: Priority) -> Transaction:
        identifiers = {"transaction_id": transaction_id}
        return (await self._pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=lane)).transaction

    async def _page(self, page: int, filters: dict[str, str | int], lane: Priority) -> TransactionPage:
        endpoint = _LIST_BY_ROWS if lane is Priority.BULK else LIST_TRANSACTIONS
        answer = await self._pipeline.call(endpoint, query={"page": page, **filters}, lane=lane)
        unreadable = answer.unreadable if isinstance(answer, RowsAnswer) else ()
        skipped = tuple(f"{shown_id(row.id) if row.id else 'a row without an id'}: {row.reason}" for row in unreadable)
        for each in skipped:
            logger.warning("a transaction in the list is skipped: %s", each)
        return TransactionPage(
            transactions=answer.transactions,
            pagination=answer.pagination,
            skipped=skipped,
            is_complete=answer.is_counted,
        )


def _check_filters(
    status: TransactionStatus | str | None,
    type: TransactionType | str | None,
    from_date: date | None,
    to_date: date | None,
    limit: int,
) -> dict[str, str | int]:
    filters: dict[str, str | int] = {"limit": require_integer("limit", limit, 1, PAGE_SIZE_MAX)}
    if status is not None:
        filters["status"] = _read_status(status)
    if type is not None:
        filters["type"] = str(require_type(type))
    if from_date is not None:
        filters["from"] = require_date("from_date", from_date).isoformat()
    if to_date is not None:
        filters["to"] = require_date("to_date", to_date).isoformat()
    if from_date is not None and to_date is not None and from_date > to_date:
        raise refuse("from_date", f"no later than to_date, {to_date}, not {from_date}")
    return filters


def _read_status(status: str) -> str:
    """Return a state for the query: one of the contract's in any case, or another text as it is, with a warning."""
    text = str(TransactionStatus(require_text("status", status)))
    if text.upper() in TransactionStatus.__members__:
        return text.upper()
    known = ", ".join(TransactionStatus.__members__)
    logger.warning("status %r is none of the contract's (%s): the list may be empty", redact(text, 40), known)
    return text
