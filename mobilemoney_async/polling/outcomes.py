"""Outcomes of tracked payments, for readers and for tasks that wait for one payment, and the poller's metrics.

Outcomes form a chain, each with a link to the next. A reader holds its latest link, and the chain holds the first link
that is unread. So outcomes that all readers have are freed by themselves, and unread ones wait for the next reader.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Literal, Self

import anyio
import anyio.lowlevel
import attrs

from mobilemoney_async.calls.bucket import SHORTEST_WAIT
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.events import (
    Event,
    Handler,
    PaymentFinal,
    PaymentFollowed,
    PaymentGivenUp,
    PollerAsked,
    PollerClosed,
    emit,
)
from mobilemoney_async.polling.scoring import Page, Request
from mobilemoney_async.polling.sharing import StatusUpdate
from mobilemoney_async.tasks import Signal
from mobilemoney_async.text import shown_text
from mobilemoney_async.values import refuse

UNREAD = 10_000
"""Outcomes that wait for a reader, or for a late `wait`, at most; beyond that the oldest are dropped."""
# Final states over which the lag is averaged.
_LAGS = 50
# Metrics that count.
_COUNTED = ("tracked", "final", "unresolved", "pages", "lookups", "faults")


@attrs.frozen(kw_only=True)
class Outcome(Data):
    """Result of one tracked payment.

    Attributes:
        transaction_id: The payment.
        transaction: In its final state, whichever that is: look at ``succeeded``. None if it was not reached.
        error: The reason for that: `WaitTimeout` with the transaction as last seen, `TransactionNotFound`,
            `InvalidTransactionId`, or `StoreError` if the final state is of another type, amount, number or merchant
            than the payment's record, which stays open. Otherwise None.
    """

    transaction_id: str
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None


@attrs.define(eq=False)
class _Link:
    """Place of one outcome, before and after it arrives."""

    number: int
    outcome: Outcome | None = None
    next: _Link | None = None


@attrs.define(eq=False)
class _OutcomeWaiter:
    """Event for the tasks that wait for one payment, and its outcome; None if the poller is closed before."""

    ended: anyio.Event = attrs.field(factory=anyio.Event)
    outcome: Outcome | None = None


class Outcomes:
    """All outcomes in their order, from the first unread one, and the latest 10,000 by payment."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._end = self._unread = _Link(0)
        self._changed = Signal()
        self._is_closed = False
        self._latest: OrderedDict[str, Outcome] = OrderedDict()
        self._waiters: dict[str, _OutcomeWaiter] = {}

    def latest(self, transaction_id: str) -> Outcome | None:
        """Return the outcome of a payment, if it came lately."""
        return self._latest.get(transaction_id)

    def forget(self, transaction_id: str) -> None:
        """Forget the outcome of a payment that is tracked again."""
        self._latest.pop(transaction_id, None)

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, for readers and for the tasks that wait for its payment."""
        self._latest[outcome.transaction_id] = outcome
        if len(self._latest) > UNREAD:
            self._latest.popitem(last=False)
        waiter = self._waiters.pop(outcome.transaction_id, None)
        if waiter is not None:
            waiter.outcome = outcome
            waiter.ended.set()
        link = self._end
        link.outcome = outcome
        self._end = link.next = _Link(link.number + 1)
        if self._end.number - self._unread.number > UNREAD and self._unread.next is not None:
            self._unread = self._unread.next
        self._changed.send()

    def close(self) -> None:
        """Release all waiting tasks, and end the readers once they have read everything."""
        self._is_closed = True
        for waiter in self._waiters.values():
            waiter.ended.set()
        self._changed.send()

    async def wait(self, transaction_id: str) -> Outcome:
        """Wait until a tracked payment ends; raise `InvalidRequest` if the poller is closed before.

        A cancelled task leaves the others waiting: their event stays until the payment ends.
        """
        # The payment may have ended, and been tracked again, before this task wakes: each event has its own outcome.
        waiter = self._waiters.setdefault(transaction_id, _OutcomeWaiter())
        await waiter.ended.wait()
        if waiter.outcome is None:
            raise refuse("poller", "open until the payment has ended")
        return waiter.outcome

    def read(self, *, forever: bool) -> AsyncIterator[Outcome]:
        """Return a reader, which begins with the first unread outcome."""
        return _Reader(self, self._unread, forever)

    async def after(self, link: _Link, *, forever: bool) -> _Link | None:
        """Wait for the outcome of a link, and return the next link; None if there will be none.

        A cancelled call changes nothing: the reader's position moves only after it returns.
        """
        while link.next is None:
            if self._is_closed or (self._is_idle() and not forever):
                return None
            # `add` may run before this task wakes, even several times: the loop looks again.
            await self._changed.wait()
        if link.next.number > self._unread.number:
            self._unread = link.next
        return link.next


@attrs.define(eq=False)
class _Reader:
    _outcomes: Outcomes
    _link: _Link
    _forever: bool

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        await anyio.lowlevel.checkpoint()
        after = await self._outcomes.after(self._link, forever=self._forever)
        if after is None:
            raise StopAsyncIteration
        outcome, self._link = self._link.outcome, after
        assert outcome is not None
        return outcome


@attrs.frozen(kw_only=True)
class PollerStats(Data):
    """Metrics of a poller.

    Attributes:
        tracked: Payments ever tracked.
        pending: Payments tracked now.
        final: Payments seen in their final state.
        unresolved: Payments that ended without one: given up, not found, malformed id.
        pages: Pages requested.
        lookups: Lookups by id.
        faults: Requests among them that failed for a reason that says nothing about a payment.
        mean_lag: The lag of the latest final states, an estimate in seconds; None before the first.
        next_request_in: Seconds until there is a request to make, 0 for now, None for never, or if another process
            makes the requests. The rate limit may make it later.
    """

    tracked: int
    pending: int
    final: int
    unresolved: int
    pages: int
    lookups: int
    faults: int
    mean_lag: float | None
    next_request_in: float | None

    @property
    def requests(self) -> int:
        """Requests in all."""
        return self.pages + self.lookups


@attrs.define(eq=False)
class Metrics:
    """Counters of one poller, and its events. `pending` returns the number of tracked payments."""

    _on_event: Handler | None
    _pending: Callable[[], int]
    _counts: Counter[str] = attrs.field(factory=Counter)  # by the names of `PollerStats`
    _lag: float | None = None
    _is_closed: bool = False

    def tracked(self, transaction_id: str) -> None:
        """Count a newly tracked payment."""
        self._counts["tracked"] += 1
        self._report(PaymentFollowed(transaction_id=transaction_id, pending=self._followed()))

    def sent(self, request: Request, waited: float) -> None:
        """Count a request, after so many seconds in line."""
        kind: Literal["page", "lookup"] = "page" if isinstance(request, Page) else "lookup"
        self._counts[f"{kind}s"] += 1
        waited = waited if waited >= SHORTEST_WAIT else 0.0
        self._report(PollerAsked(kind=kind, pending=self._followed(), waited=waited))

    def failed(self) -> None:
        """Count a request that failed for a reason that says nothing about a payment."""
        self._counts["faults"] += 1

    def ended(self, update: StatusUpdate) -> None:
        """Count the end of one tracking."""
        seen, pending = update.transaction, self._followed()
        if update.lag is not None:
            self._lag = update.lag if self._lag is None else self._lag + (update.lag - self._lag) / _LAGS
        if update.error is not None:
            self._counts["unresolved"] += 1
            error = type(update.error).__name__
            self._report(PaymentGivenUp(transaction_id=update.transaction_id, error=error, pending=pending))
        elif seen is not None:
            self._counts["final"] += 1
            kind, status = shown_text(str(seen.type)), str(seen.status)
            final = PaymentFinal(transaction_id=seen.id, type=kind, status=status, lag=update.lag, pending=pending)
            self._report(final)

    def closed(self) -> None:
        """Report the end of the poller."""
        self._report(PollerClosed(pending=self._pending()))
        self._is_closed = True

    def stats(self, *, next_request_in: float | None) -> PollerStats:
        """Return the counters."""
        counts = {name: self._counts[name] for name in _COUNTED}
        return PollerStats(pending=self._pending(), mean_lag=self._lag, next_request_in=next_request_in, **counts)

    def _followed(self) -> int:
        """Return the number for an event: 0 for an ending that comes while the poller is closed, which ends a gauge."""
        return 0 if self._is_closed else self._pending()

    def _report(self, event: Event) -> None:
        if self._on_event is not None:
            emit(self._on_event, event)
