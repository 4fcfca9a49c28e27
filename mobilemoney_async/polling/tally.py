"""What a poller counts, and tells those who listen to events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from mobilemoney_async.events import (
    Handler,
    PaymentFinal,
    PaymentFollowed,
    PaymentGivenUp,
    PollerAsked,
    PollerClosed,
    emit,
)
from mobilemoney_async.polling.scoring import Page, Request
from mobilemoney_async.polling.sharing import News
from mobilemoney_async.polling.stats import PollerStats

# Of how many endings the lag is averaged.
_LAGS = 50


class Tally:
    """The numbers of one poller.

    Args:
        on_event: Is told, where there is one.
        pending: Returns how many payments are followed.
    """

    def __init__(self, on_event: Handler | None, pending: Callable[[], int]) -> None:
        self._on_event = on_event
        self._pending = pending
        self._tracked = self._final = self._unresolved = self._pages = self._lookups = self._faults = 0
        self._lag: float | None = None

    def tracked(self, transaction_id: str) -> None:
        """Count a payment that is followed from now on."""
        self._tracked += 1
        if self._on_event is not None:
            emit(self._on_event, PaymentFollowed(transaction_id=transaction_id, pending=self._pending()))

    def asked(self, request: Request, waited: float) -> None:
        """Tell what was decided to be asked, after so many seconds in line."""
        if self._on_event is not None:
            kind: Literal["page", "lookup"] = "page" if isinstance(request, Page) else "lookup"
            emit(self._on_event, PollerAsked(kind=kind, pending=self._pending(), waited=waited))

    def sent(self, request: Request) -> None:
        """Count a request."""
        if isinstance(request, Page):
            self._pages += 1
        else:
            self._lookups += 1

    def failed(self) -> None:
        """Count a request that failed for a reason that says nothing about a payment."""
        self._faults += 1

    def ended(self, ending: News) -> None:
        """Count a payment that is followed no longer."""
        if ending.error is None:
            self._final += 1
        else:
            self._unresolved += 1
        if ending.lag is not None:
            self._lag = ending.lag if self._lag is None else self._lag + (ending.lag - self._lag) / _LAGS
        if self._on_event is None:
            return
        seen, pending = ending.transaction, self._pending()
        if ending.error is not None:
            error = type(ending.error).__name__
            emit(self._on_event, PaymentGivenUp(transaction_id=ending.transaction_id, error=error, pending=pending))
        elif seen is not None:
            final = PaymentFinal(
                transaction_id=seen.id, type=str(seen.type), status=str(seen.status), lag=ending.lag, pending=pending
            )
            emit(self._on_event, final)

    def closed(self) -> None:
        """Tell that nothing is followed any more."""
        if self._on_event is not None:
            emit(self._on_event, PollerClosed(pending=self._pending()))

    def stats(self, *, next_request_in: float | None) -> PollerStats:
        """Return the numbers as a value."""
        return PollerStats(
            tracked=self._tracked,
            pending=self._pending(),
            final=self._final,
            unresolved=self._unresolved,
            pages=self._pages,
            lookups=self._lookups,
            faults=self._faults,
            mean_lag=self._lag,
            next_request_in=next_request_in,
        )
