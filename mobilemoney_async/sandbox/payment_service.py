"""Payment endpoints: collections, disbursements, inquiry and history (`contract.md` sections 4.1 to 4.4)."""

import re
from datetime import date
from typing import Literal

from mobilemoney_async.sandbox import magic
from mobilemoney_async.sandbox.endpoints import Call
from mobilemoney_async.sandbox.messages import RefusedError, Reply, answer, payment_error
from mobilemoney_async.sandbox.payments import PaymentBook
from mobilemoney_async.sandbox.states import Kind, Payment

MAX_PAGE_SIZE = 100

_AMOUNT = re.compile(r"[1-9][0-9]{0,14}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MESSAGES = {
    Kind.COLLECTION: "Payment request sent to the customer",
    Kind.DISBURSEMENT: "Disbursement is being processed",
}


class PaymentService:
    """Handlers of the payment endpoints.

    Attributes:
        by_hand: True if collections from ordinary numbers wait for an operator, until their prompts expire.
    """

    def __init__(self, book: PaymentBook, *, speed: float) -> None:
        self.by_hand: bool = False
        self._book = book
        self._speed = speed

    def create(self, kind: Kind, call: Call) -> Reply:
        """POST /payment-service/airtel/c2b and b2c."""
        phone_number = call.phone_number(payment_error)
        amount = call.text("amount", payment_error)
        if not _AMOUNT.fullmatch(amount):
            raise RefusedError(
                payment_error(400, "INVALID_AMOUNT", "amount must be a positive whole number as a string")
            )
        # Not in the contract's request fields; accepted because the record has it and a lookup by it is documented.
        external_id = call.text("external_id", payment_error) if call.body.get("external_id") is not None else None
        row = magic.find(phone_number, kind)
        ordinary = magic.BY_HAND if self.by_hand and kind is Kind.COLLECTION else magic.ORDINARY
        payment = self._book.create(
            kind,
            merchant_id=call.owner.merchant_id,
            phone_number=phone_number,
            amount=amount,
            external_id=external_id,
            plan=row.plan if row else ordinary,
            now=call.now,
        )
        return answer(
            status="success",
            message=_MESSAGES[kind],
            transaction_id=payment.id,
            reference=payment.reference,
            amount=amount,
            currency="TZS",
            phone_number=phone_number,
            status_code=payment.status,
        )

    def by_id(self, call: Call) -> Reply:
        """GET /payment-service/transaction/{transaction_id}."""
        transaction_id = call.parameters["transaction_id"]
        if not re.fullmatch(call.choices.transaction_id_pattern, transaction_id):
            status = call.choices.status_invalid_transaction_id
            raise RefusedError(payment_error(status, "INVALID_TRANSACTION_ID", "The transaction id is malformed"))
        return self._found(call, self._book.payments.get(transaction_id))

    def lookup(self, call: Call) -> Reply:
        """GET /payment-service/transaction with `reference` or `external_id`; `reference` wins if both are sent."""
        if call.query.get("reference"):
            return self._found(call, self._book.by_reference(call.query["reference"]))
        if call.query.get("external_id"):
            return self._found(call, self._book.by_external_id(call.owner.merchant_id, call.query["external_id"]))
        raise RefusedError(payment_error(400, "INVALID_REQUEST", "Send reference or external_id"))

    def list(self, call: Call) -> Reply:
        """GET /payment-service/transactions."""
        page = _positive(call, "page", 1)
        limit = _positive(call, "limit", call.choices.default_page_size)
        if limit > MAX_PAGE_SIZE:
            if call.choices.oversized_limit == "refuse":
                raise _invalid("limit", f"at most {MAX_PAGE_SIZE}")
            limit = MAX_PAGE_SIZE
        first, last = _day(call, "from", date.min), _day(call, "to", date.max)
        rows = [row for row in self._book.owned_by(call.owner.merchant_id) if self._is_listed(call, row, first, last)]
        if call.choices.list_order == "newest-first":
            rows.reverse()
        shown = rows[(page - 1) * limit : page * limit]
        return answer(
            status="success",
            transactions=[self._book.record(row) for row in shown],
            pagination={
                "current_page": page,
                "total_pages": -(-len(rows) // limit),
                "total_count": len(rows),
                "per_page": limit,
            },
        )

    def _found(self, call: Call, payment: Payment | None) -> Reply:
        owner, lag = call.owner.merchant_id, call.choices.lookup_lag
        if payment is None or payment.merchant_id != owner or not self._is_visible(call, payment, lag):
            raise RefusedError(payment_error(404, "TRANSACTION_NOT_FOUND", "No transaction matches"))
        return answer(status="success", transaction=self._book.record(payment))

    def _is_visible(self, call: Call, payment: Payment, lag: float) -> bool:
        return call.now >= max(payment.visible_at, payment.created_at + lag / self._speed)

    def _is_listed(self, call: Call, payment: Payment, first: date, last: date) -> bool:
        if not self._is_visible(call, payment, call.choices.list_lag):
            return False
        if call.query.get("status", payment.status) != payment.status:
            return False
        if call.query.get("type", payment.kind) != payment.kind:
            return False
        return first <= self._book.datetime_at(payment.created_at).date() <= last


def _invalid(parameter: str, expected: str) -> RefusedError:
    return RefusedError(payment_error(400, "INVALID_PARAMETER", f"{parameter} must be {expected}"))


def _positive(call: Call, parameter: Literal["page", "limit"], default: int) -> int:
    text = call.query.get(parameter)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise _invalid(parameter, "a positive integer")
    return int(text)


def _day(call: Call, parameter: Literal["from", "to"], default: date) -> date:
    text = call.query.get(parameter)
    if text is None:
        return default
    try:
        # fromisoformat() alone would also take week dates and the basic format.
        return date.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError as exc:
        raise _invalid(parameter, "a date YYYY-MM-DD") from exc
