"""Order statuses for a shop, from the records of payments, and limits of new payments. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal

import attrs

from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import CallOutcome, MobileMoneyError
from mobilemoney_async.payments.records import PaymentRecord, PaymentState
from mobilemoney_async.values import refuse, require_integer, require_seconds


class OrderState(enum.StrEnum):
    """State of an order's payment, in the words of a shop."""

    SENDING = "sending"
    """The payment is queued, or on its way to the service."""
    PENDING = "pending"
    """The payment exists; the customer is asked, or the money is on its way."""
    FINDING_OUT = "finding_out"
    """The payment may or may not exist. The order must not be paid again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    """The customer did not answer in time."""
    NOT_MADE = "not_made"
    """There is no payment, as far as is known. The order may be paid again under the same name: where a refusal is not
    certain, the library looks first."""


@attrs.frozen(kw_only=True)
class OrderStatus:
    """Status of an order's payment.

    Attributes:
        order: Its name, which is the payment's idempotency key.
        state: State of the payment.
        amount: Whole TZS.
        reference: The service's reference, once known: for questions to the service.
        reason: Reason of the failure, in the service's words, or None; ``CANCELLED`` if it was never sent.
    """

    order: str
    state: OrderState
    amount: Decimal | None = None
    reference: str | None = None
    reason: str | None = None

    @property
    def is_final(self) -> bool:
        """True if the state no longer changes."""
        return self.state in {OrderState.SUCCEEDED, OrderState.FAILED, OrderState.EXPIRED}

    @property
    def is_settled(self) -> bool:
        """True if the state is final, or if there is no payment."""
        return self.is_final or self.state is OrderState.NOT_MADE


class TooManyOrders(MobileMoneyError):
    """Error: more creates wait for the rate limit than the backend allows. Nothing was sent; try again later."""

    outcome: CallOutcome = "not_sent"


class TooManyPrompts(TooManyOrders):
    """Error: too many new payments were asked of one phone number, or by one caller. Nothing was sent.

    Attributes:
        retry_after: Seconds until there is room again.
    """

    def __init__(self, message: str, *, retry_after: float, idempotency_key: str | None = None) -> None:
        super().__init__(message, idempotency_key=idempotency_key)
        self.retry_after = retry_after


_STATES = {
    PaymentState.QUEUED: OrderState.SENDING,
    PaymentState.SENDING: OrderState.SENDING,
    PaymentState.CANCELLED: OrderState.FAILED,
    PaymentState.NOT_SENT: OrderState.NOT_MADE,
    PaymentState.REFUSED: OrderState.NOT_MADE,
    PaymentState.RELEASED: OrderState.NOT_MADE,
    PaymentState.ACKNOWLEDGED: OrderState.PENDING,
}


def read_record(record: PaymentRecord) -> OrderStatus:
    """Return the order status of a record."""
    state, reason = _STATES.get(record.state, OrderState.FINDING_OUT), None
    if record.is_final and record.transaction is not None:
        status = record.transaction.status
        state = OrderState.EXPIRED if status == TransactionStatus.TIMEOUT else OrderState.FAILED
        state = OrderState.SUCCEEDED if record.transaction.succeeded else state
        reason = record.transaction.failure_reason or str(status)
    elif state is OrderState.FAILED:
        reason = str(record.state)
    shown = reason if state is OrderState.FAILED else None
    return OrderStatus(order=record.key, state=state, amount=record.amount, reference=record.reference, reason=shown)


class PromptLimits:
    """Limits of new payments, in memory: a number of payments in any span of seconds, or None for no limit.

    Each is for one of the names of a payment, in their order; a name that is None is not limited.
    """

    def __init__(self, **limits: tuple[int, float] | None) -> None:
        self._limits: list[tuple[int, float]] = []
        for argument, limit in limits.items():
            if limit is not None and (not isinstance(limit, tuple) or len(limit) != 2):
                raise refuse(argument, "a tuple of a number of payments and seconds, or None", limit)
            most, seconds = limit or (1, 0.0)
            span = require_seconds(argument, seconds, allow_zero=limit is None)
            self._limits.append((require_integer(argument, most, 1), span))
        # The payments of the longest span, oldest first: few, since sixty a minute are sent.
        self._taken: list[tuple[float, Sequence[str | None]]] = []

    def take(self, names: Sequence[str | None], now: float) -> float:
        """Take a place for a payment, unless a name of it has none; return the seconds until then, or 0.0."""
        longest, wait = max(seconds for _, seconds in self._limits), 0.0
        self._taken = [each for each in self._taken if each[0] > now - longest]
        for kind, (most, seconds) in enumerate(self._limits):
            times = [at for at, each in self._taken if each[kind] == names[kind] is not None and at > now - seconds]
            if len(times) >= most:
                wait = max(wait, times[-most] + seconds - now)
        if wait <= 0:
            self._taken.append((now, names))
        return wait

    def give_back(self, names: Sequence[str | None], at: float) -> None:
        """Give back the place that was taken at this time."""
        with suppress(ValueError):  # too long ago
            self._taken.remove((at, names))
