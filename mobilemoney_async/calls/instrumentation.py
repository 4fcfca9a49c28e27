"""Events of a client's calls. Imported only where the client has a handler for them."""

from __future__ import annotations

from mobilemoney_async.calls.bucket import SHORTEST_WAIT
from mobilemoney_async.contract.endpoints import Endpoint, Priority
from mobilemoney_async.errors import MobileMoneyError, OutcomeUnknown
from mobilemoney_async.events import (
    AttemptEnded,
    Handler,
    LimiterWaited,
    PaymentUnknown,
    RetryScheduled,
    TokenRenewed,
    emit,
)


class Instrumentation:
    """Source of the events of one client's calls.

    Args:
        on_event: The handler.
    """

    def __init__(self, on_event: Handler) -> None:
        self._on_event = on_event

    def waited(self, lane: Priority, seconds: float) -> None:
        """Report the time a request waited for the rate limit, seconds, unless it had not to wait."""
        if seconds >= SHORTEST_WAIT:
            emit(self._on_event, LimiterWaited(lane=lane.name, waited=seconds))

    def attempt_ended(
        self,
        endpoint: Endpoint[object],
        attempt: int,
        *,
        status_code: int | None,
        error: BaseException | None,
        duration: float,
    ) -> None:
        """Report the end of an attempt: an answer, an error, or the caller's cancellation."""
        known = error.outcome if isinstance(error, MobileMoneyError) else "cancelled"
        ended = AttemptEnded(
            method=endpoint.method,
            path=endpoint.shown,
            attempt=attempt,
            status_code=status_code,
            outcome="answered" if error is None else known,
            error=None if error is None else type(error).__name__,
            duration=duration,
        )
        emit(self._on_event, ended)

    def retry_scheduled(self, endpoint: Endpoint[object], attempt: int, error: MobileMoneyError, delay: float) -> None:
        """Report that another attempt follows a failed one, after a delay of seconds at least."""
        again = RetryScheduled(
            method=endpoint.method, path=endpoint.shown, attempt=attempt, delay=delay, error=type(error).__name__
        )
        emit(self._on_event, again)

    def payment_unknown(self, error: OutcomeUnknown) -> None:
        """Report a payment with an unknown result."""
        name = type(error.__cause__ if isinstance(error.__cause__, MobileMoneyError) else error).__name__
        emit(self._on_event, PaymentUnknown(idempotency_key=error.idempotency_key, sent_at=error.sent_at, error=name))

    def token_renewed(self, error: BaseException | None, duration: float) -> None:
        """Report a login, and whether it failed or was cancelled."""
        # Each event loop names its cancellation otherwise.
        name = None if error is None else type(error).__name__ if isinstance(error, Exception) else "cancelled"
        emit(self._on_event, TokenRenewed(error=name, duration=duration))
