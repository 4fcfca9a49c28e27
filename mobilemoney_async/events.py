"""What a client tells while it works: ``AsyncClient(on_event=...)``. For metrics, traces and logs.

Every event is a frozen value. None carries a secret, a phone number or a body; ids of transactions and idempotency keys
are there, since they are what one looks for. Durations are seconds on the event loop's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeAlias

import attrs

logger: logging.Logger = logging.getLogger("mobilemoney_async")


@attrs.frozen(kw_only=True)
class AttemptEnded:
    """One request was made, or was about to be.

    Attributes:
        method: The HTTP method.
        path: The path's template, below the base URL: ``/payment-service/transaction/{transaction_id}``. Of
            `AsyncClient.request`, whose path may hold anything, each part that is not a plain word is ``{…}``.
        attempt: Its number within the call, from 1.
        status_code: The HTTP status, or None where no answer came.
        outcome: ``answered``; ``refused`` by the service; ``not_sent``, provably; ``unknown``: sent, without a usable
            answer; or ``cancelled`` by the caller.
        error: The class of the error, or None.
        duration: Seconds.
    """

    method: str
    path: str
    attempt: int
    status_code: int | None
    outcome: Literal["answered", "refused", "not_sent", "unknown", "cancelled"]
    error: str | None
    duration: float


@attrs.frozen(kw_only=True)
class RetryScheduled:
    """An attempt failed and another one follows.

    Attributes:
        method: The HTTP method.
        path: The path's template, as in `AttemptEnded`.
        attempt: The number of the attempt that failed.
        delay: After how many seconds at least; 0 for at once, as after a renewed token.
        error: The class of the error.
    """

    method: str
    path: str
    attempt: int
    delay: float
    error: str


@attrs.frozen(kw_only=True)
class LimiterWaited:
    """A request had to wait for its place under the rate limit.

    Attributes:
        lane: ``PAYMENT``, ``LOOKUP``, ``POLL`` or ``BULK``.
        waited: Seconds.
    """

    lane: str
    waited: float


@attrs.frozen(kw_only=True)
class TokenRenewed:
    """A login was made, by this client.

    Attributes:
        error: The class of the error where it failed, or was cancelled; None where there is a token.
        duration: Seconds.
    """

    error: str | None
    duration: float


@attrs.frozen(kw_only=True)
class PaymentUnknown:
    """A call that moves money ended without anybody knowing whether it did: `OutcomeUnknown` is raised.

    Attributes:
        idempotency_key: Of the create.
        sent_at: When it was sent.
        error: The class of what went wrong.
    """

    idempotency_key: str
    sent_at: datetime
    error: str


@attrs.frozen(kw_only=True)
class PaymentFollowed:
    """A poller follows a payment from now on.

    Attributes:
        transaction_id: Which.
        pending: How many payments it follows, this one among them.
    """

    transaction_id: str
    pending: int


@attrs.frozen(kw_only=True)
class PollerAsked:
    """A poller decided what to ask.

    Attributes:
        kind: ``page`` of the list, or ``lookup`` by id.
        pending: How many payments it follows; not those of other processes for which it asks too.
        waited: How long it was in line for its place under the rate limit, seconds.
    """

    kind: Literal["page", "lookup"]
    pending: int
    waited: float


@attrs.frozen(kw_only=True)
class PaymentFinal:
    """A poller saw a payment's final state.

    Attributes:
        transaction_id: Which.
        type: ``collection`` or ``disbursement``.
        status: The final state.
        lag: How late it was seen, an estimate in seconds, or None.
        pending: How many payments the poller still follows; those that the same answer showed as final are left out.
    """

    transaction_id: str
    type: str
    status: str
    lag: float | None
    pending: int


@attrs.frozen(kw_only=True)
class PaymentGivenUp:
    """A poller follows a payment no longer, without having seen its final state. The payment may still succeed.

    Attributes:
        transaction_id: Which.
        error: The class of the error: ``WaitTimeout``, ``TransactionNotFound`` or ``InvalidTransactionId``.
        pending: How many payments the poller still follows.
    """

    transaction_id: str
    error: str
    pending: int


@attrs.frozen(kw_only=True)
class PollerClosed:
    """A poller was closed, and follows nothing any more.

    Attributes:
        pending: How many payments it followed until then.
    """

    pending: int


Event: TypeAlias = (
    AttemptEnded
    | RetryScheduled
    | LimiterWaited
    | TokenRenewed
    | PaymentUnknown
    | PaymentFollowed
    | PollerAsked
    | PaymentFinal
    | PaymentGivenUp
    | PollerClosed
)
"""Any of them."""

Handler: TypeAlias = Callable[[Event], object]
"""Is called for each event, in the event loop, so it must be quick. What it raises is logged, and harms nothing."""


def emit(handler: Handler | None, event: Event) -> None:
    """Hand an event to a handler, if there is one."""
    if handler is None:
        return
    try:
        handler(event)
    except Exception:
        logger.exception("the handler of events failed")


def both(first: Handler, second: Handler) -> Handler:
    """Return a handler that hands each event to two: ``AsyncClient(on_event=both(metrics, log))``.

    What the first raises is logged, and keeps nothing from the second.
    """

    def handler(event: Event) -> None:
        emit(first, event)
        emit(second, event)

    return handler
