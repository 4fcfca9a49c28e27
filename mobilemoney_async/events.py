"""Events of a client, for metrics, traces and logs: ``AsyncClient(on_event=...)``.

Every event is a frozen value. None carries a secret, a phone number or a body; ids of transactions and idempotency keys
are there, since one searches for them. Durations are seconds on the event loop's clock.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal, TypeAlias

import attrs

from mobilemoney_async.tasks import callers_code
from mobilemoney_async.text import id_repr

logger: logging.Logger = logging.getLogger("mobilemoney_async")


@attrs.frozen(kw_only=True)
class AttemptEnded:
    """End of an attempt: one request was made, or was about to be.

    Attributes:
        method: The HTTP method.
        path: The path's template, below the base URL: ``/payment-service/transaction/{transaction_id}``. Of
            `AsyncClient.request` with a path of your own, each part that is not a plain word is ``{…}``.
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
    """Failed attempt that another one follows.

    Attributes:
        method: The HTTP method.
        path: The path's template, as in `AttemptEnded`.
        attempt: The number of the attempt that failed.
        delay: The shortest time before the next one, seconds; 0 for at once, as after a renewed token.
        error: The class of the error.
    """

    method: str
    path: str
    attempt: int
    delay: float
    error: str


@attrs.frozen(kw_only=True)
class LimiterWaited:
    """Wait of a request for the rate limit, a millisecond at least.

    Attributes:
        lane: ``PAYMENT``, ``LOOKUP``, ``POLL`` or ``BULK``.
        waited: Seconds.
    """

    lane: str
    waited: float


@attrs.frozen(kw_only=True)
class TokenRenewed:
    """Login of this client.

    Attributes:
        error: The class of the error where it failed, "cancelled" where it was; None where there is a token.
        duration: Seconds.
    """

    error: str | None
    duration: float


@attrs.frozen(kw_only=True)
class PaymentUnknown:
    """Create with an unknown result: `OutcomeUnknown` is raised.

    Attributes:
        idempotency_key: Of the create.
        sent_at: When it was sent.
        error: The class of the error's cause, or ``OutcomeUnknown`` where that is none of the library's.
    """

    idempotency_key: str
    sent_at: datetime
    error: str


@attrs.frozen(kw_only=True)
class TransactionUnclaimed:
    """New transaction in the service's list that no payment of the store claims.

    Attributes:
        transaction_id: The transaction's.
        type: ``collection`` or ``disbursement``.
        status: Its state.
        fits_key: The payment that it may be a second time, by its idempotency key; None if there is none.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    type: str
    status: str = attrs.field(repr=id_repr)
    fits_key: str | None


@attrs.frozen(kw_only=True)
class FinalStateChanged:
    """Final state of a payment that the service shows otherwise than before, against the contract. Told once.

    Attributes:
        transaction_id: The transaction's.
        idempotency_key: The payment's.
        type: ``collection`` or ``disbursement``.
        before: The final state that the store has kept.
        status: The final state that the service shows now.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    idempotency_key: str
    type: str
    before: str = attrs.field(repr=id_repr)
    status: str = attrs.field(repr=id_repr)


@attrs.frozen(kw_only=True)
class StoreBehind:
    """Store that has forgotten payments, as after a restored backup; those of their kinds are stopped.

    Attributes:
        transactions: The number of transactions that were found to be forgotten.
        since: None was made before, on the service's clock: some minutes before the newest payment that is known.
    """

    transactions: int
    since: datetime


@attrs.frozen(kw_only=True)
class AccountMismatch:
    """Host or credentials of another merchant than the account's, which are not used.

    Attributes:
        account: The store's account.
        reason: The difference.
    """

    account: str
    reason: str


@attrs.frozen(kw_only=True)
class MerchantSuspended:
    """Account that was suspended because a platform's function `auth` raised `NoSuchMerchant`. Told once, by one host.

    Attributes:
        account: The account.
        reason: The text of that error.
    """

    account: str
    reason: str


@attrs.frozen(kw_only=True)
class PaymentFollowed:
    """Payment that a poller follows from now on.

    Attributes:
        transaction_id: The payment's.
        pending: The number of payments that it follows, this one among them.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    pending: int


@attrs.frozen(kw_only=True)
class PollerAsked:
    """Request of a poller.

    Attributes:
        kind: ``page`` of the list, or ``lookup`` by id.
        pending: The number of payments that it follows, without those of other processes for which it asks too.
        waited: The time that the request waited for the rate limit, seconds; 0 for less than a millisecond.
    """

    kind: Literal["page", "lookup"]
    pending: int
    waited: float


@attrs.frozen(kw_only=True)
class PaymentFinal:
    """Final state of a payment, seen by a poller.

    Attributes:
        transaction_id: The payment's.
        type: ``collection`` or ``disbursement``.
        status: The final state.
        lag: The time from the final state to its being seen, an estimate in seconds, or None.
        pending: The number of payments that the poller still follows, without those that the same answer showed as
            final.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    type: str
    status: str = attrs.field(repr=id_repr)
    lag: float | None
    pending: int


@attrs.frozen(kw_only=True)
class PaymentGivenUp:
    """Payment that the poller gave up on before it was final. It may still succeed.

    Attributes:
        transaction_id: The payment's.
        error: The class of the error: ``WaitTimeout``, ``TransactionNotFound``, ``InvalidTransactionId``, or
            ``StoreError`` if the final state contradicts the payment's record.
        pending: The number of payments that the poller still follows.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    error: str
    pending: int


@attrs.frozen(kw_only=True)
class DispatcherPaused:
    """Dispatcher that has paused by itself.

    After many equal ends without money moving, the whole account goes on after ``resume()``. Where nothing can be
    sent, and after several unknown results in a row, it tries again after a while.

    Attributes:
        reason: The reason.
    """

    reason: str


@attrs.frozen(kw_only=True)
class ChangeParked:
    """Change of a payment that a consumer could not handle ten times. It is handed out no more.

    Attributes:
        consumer: The consumer's name.
        key: The payment's idempotency key; None for an unclaimed transaction.
        cursor: The change's place in the feed.
    """

    consumer: str
    key: str | None
    cursor: str


@attrs.frozen(kw_only=True)
class PollerClosed:
    """End of a poller, which follows nothing any more.

    Attributes:
        pending: The number of payments that it followed until then. Endings that come later have 0.
    """

    pending: int


@attrs.frozen(kw_only=True)
class AccountsCounted:
    """Number of the accounts of a platform that need someone: of `Merchants.overview`, and of a worker, 0 at its end.

    Its account, the first argument of ``Merchants(on_event=...)``, is the empty text: it is of all of them.

    Attributes:
        database: The store's database: its URL without the password. Those of several databases add up.
        accounts: The number of accounts in the store.
        needing: For each reason the number of accounts, 0 included; see ``AccountStatus.needs``.
    """

    database: str
    accounts: int
    needing: Mapping[str, int]


Event: TypeAlias = (
    AttemptEnded
    | RetryScheduled
    | LimiterWaited
    | TokenRenewed
    | PaymentUnknown
    | TransactionUnclaimed
    | FinalStateChanged
    | StoreBehind
    | AccountMismatch
    | MerchantSuspended
    | PaymentFollowed
    | PollerAsked
    | PaymentFinal
    | PaymentGivenUp
    | PollerClosed
    | ChangeParked
    | DispatcherPaused
    | AccountsCounted
)
"""Any event."""

Handler: TypeAlias = Callable[[Event], object]
"""Function of one event, called in the event loop, so it must be quick. Its errors are logged, and harm nothing."""


def emit(handler: Handler | None, event: Event) -> None:
    """Hand an event to a handler, if there is one."""
    if handler is None:
        return
    try:
        with callers_code():
            result = handler(event)
        if inspect.iscoroutine(result):
            result.close()  # else Python warns, too
            raise TypeError("it must be a plain function: nothing awaits an async one")
    except Exception:
        logger.exception("the handler of events failed")


def both(first: Handler, second: Handler) -> Handler:
    """Return a handler that hands each event to two: ``AsyncClient(on_event=both(metrics, log))``.

    An error of the first is logged, and the second is called all the same.
    """

    def handler(event: Event) -> None:
        emit(first, event)
        emit(second, event)

    return handler
