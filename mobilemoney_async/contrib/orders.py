"""Order statuses for a shop, from the record of a payment. Pure."""

from __future__ import annotations

import enum
from decimal import Decimal

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import CallOutcome, MobileMoneyError
from mobilemoney_async.payments.records import PaymentRecord, PaymentState


class OrderState(str, enum.Enum):
    """State of an order's payment, in the words of a shop."""

    SENDING = "sending"
    """The payment is queued, about to be sent, or on its way to the service."""
    PENDING = "pending"
    """The payment exists; the customer is asked, or the money is on its way."""
    FINDING_OUT = "finding_out"
    """The result is unknown: the payment may or may not exist. The order must not be paid again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    """The customer did not answer in time."""
    NOT_MADE = "not_made"
    """There is no payment, as far as is known: it was refused, or never sent.

    The order may be paid again under the same name, for which the library looks first where a refusal is not certain.
    """

    def __str__(self) -> str:
        return self.value


_FINAL = frozenset({OrderState.SUCCEEDED, OrderState.FAILED, OrderState.EXPIRED})


@attrs.frozen(kw_only=True)
class OrderStatus:
    """Status of an order's payment.

    Attributes:
        order: Its name, which is the payment's idempotency key.
        state: State of the payment.
        amount: Whole TZS, once recorded.
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
        return self.state in _FINAL

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
    PaymentState.NOT_SENT: OrderState.NOT_MADE,
    PaymentState.REFUSED: OrderState.NOT_MADE,
    PaymentState.RELEASED: OrderState.NOT_MADE,
    PaymentState.ACKNOWLEDGED: OrderState.PENDING,
}


def read_record(record: PaymentRecord) -> OrderStatus:
    """Return the order status of a record."""
    state = _STATES.get(record.state, OrderState.FINDING_OUT)
    status = OrderStatus(order=record.key, state=state, amount=record.amount, reference=record.reference)
    if record.state is PaymentState.CANCELLED:
        return attrs.evolve(status, state=OrderState.FAILED, reason=str(PaymentState.CANCELLED))
    return ended(status, record.transaction) if record.is_final and record.transaction is not None else status


def ended(status: OrderStatus, transaction: Transaction) -> OrderStatus:
    """Return an order's status after its transaction's final state."""
    if transaction.succeeded:
        return attrs.evolve(status, state=OrderState.SUCCEEDED)
    if transaction.status == TransactionStatus.TIMEOUT:
        return attrs.evolve(status, state=OrderState.EXPIRED)
    return attrs.evolve(status, state=OrderState.FAILED, reason=transaction.failure_reason or str(transaction.status))
