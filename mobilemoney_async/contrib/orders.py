"""Order statuses for a shop, from the records of payments. Pure."""

from __future__ import annotations

import enum
from decimal import Decimal

import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import APIError, CallOutcome, MobileMoneyError
from mobilemoney_async.payments.records.reasons import PaymentCause
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState
from mobilemoney_async.text import shown_text, text_repr

__all__ = ["OrderState", "OrderStatus", "TooManyOrders", "TooManyPrompts", "read_record"]


class OrderState(enum.StrEnum):
    """State of an order's payment, in the words of a shop."""

    SENDING = "sending"
    """The payment is queued, or on its way to the service."""
    PENDING = "pending"
    """The payment exists; the customer is asked, or the money is on its way."""
    FINDING_OUT = "finding_out"
    """The payment, or an earlier one that it waits for, may or may not exist. The order must not be paid again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    """The customer did not answer in time."""
    NOT_MADE = "not_made"
    """There is no payment, as far as is known. The order may be paid again under the same name: where a refusal is not
    certain, the library looks first."""


@attrs.frozen(kw_only=True)
class OrderStatus(Data):
    """Status of an order's payment.

    Attributes:
        order: Its name, which is the payment's idempotency key.
        state: State of the payment.
        amount: Whole TZS.
        reference: The service's reference, once known: for questions to the service.
        reason: Reason of the failure, in the service's words, redacted; ``CANCELLED`` if it was taken out of the queue,
            ``TOO_LATE`` if it was not made because it had waited for too long; or None.
    """

    order: str
    state: OrderState
    amount: Decimal | None = None
    reference: str | None = None
    reason: str | None = attrs.field(default=None, repr=text_repr)

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


def is_unmade(error: MobileMoneyError) -> bool:
    """Return whether an error proves that the request behind it made no payment."""
    is_refused = isinstance(error, APIError) and error.outcome == "refused" and error.is_certain
    return is_refused or error.outcome == "not_sent"


_STATES = {
    PaymentState.QUEUED: OrderState.SENDING,
    PaymentState.SENDING: OrderState.SENDING,
    PaymentState.CANCELLED: OrderState.FAILED,
    PaymentState.NOT_SENT: OrderState.NOT_MADE,
    PaymentState.REFUSED: OrderState.NOT_MADE,
    PaymentState.RELEASED: OrderState.NOT_MADE,
    PaymentState.ACKNOWLEDGED: OrderState.PENDING,
}
_FINAL_STATES = {TransactionStatus.SUCCESS: OrderState.SUCCEEDED, TransactionStatus.TIMEOUT: OrderState.EXPIRED}


def read_record(record: PaymentRecord) -> OrderStatus:
    """Return the order status of a record."""
    state, reason, transaction = _STATES.get(record.state, OrderState.FINDING_OUT), None, record.transaction
    if record.is_contradicted:
        state = OrderState.FINDING_OUT  # paid or not: an operator has to decide
    elif record.is_final and transaction is not None:
        state = _FINAL_STATES.get(transaction.status, OrderState.FAILED)
        if state is OrderState.FAILED:
            reason = shown_text(str(transaction.failure_reason or transaction.status))
    elif record.state is PaymentState.QUEUED and record.cause is PaymentCause.HELD:
        state = OrderState.FINDING_OUT  # perhaps until someone decides
    elif record.state is PaymentState.CANCELLED:
        reason = "CANCELLED"
    elif record.is_late:
        reason = "TOO_LATE"
    return OrderStatus(order=record.key, state=state, amount=record.amount, reference=record.reference, reason=reason)
