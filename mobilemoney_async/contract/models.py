"""Answers of the service as values (contract, section 2).

Frozen, slotted, keyword-only. Money is `Decimal`, time is an aware UTC `datetime`. A field that the contract does not
know is ignored.

A field without a default is a *core field*: an answer whose core field cannot be read is refused. Every other field is
a *side field*: it is None where it is absent or cannot be read, and hides nothing. `contract.converter` reads answers
with such a field.

msgspec fills these classes straight from the wire: it runs ``__attrs_post_init__`` and validators, but not attrs
converters. That is why times are normalised there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.plain import ANSWERS, ERROR_ATTRIBUTES, SideFields, in_utc
from mobilemoney_async.contract.states import Network, TransactionStatus, TransactionType, is_final
from mobilemoney_async.text import id_repr, mask_phone_number, text_repr
from mobilemoney_async.values import Secret, is_id, refuse, require_bearer, require_identifier


@attrs.frozen(kw_only=True)
class Fees(Data):
    """Fees of a successful collection (contract, section 2.1), in TZS."""

    merchant_fee: Decimal | None = None
    customer_fee: Decimal | None = None
    total_fee: Decimal | None = None


@attrs.frozen(kw_only=True)
class Settlement(Data):
    """Settlement of a successful collection to the merchant (contract, section 2.1)."""

    net_amount: Decimal | None = None
    settled_at: datetime | None = None
    settlement_batch: str | None = None


@attrs.frozen(kw_only=True)
class Transaction(Data):
    """Collection or disbursement (contract, section 2.1).

    A field that can be None is None where the service does not show it, or shows something else in its place.

    Attributes:
        id: The transaction's id; the acknowledgement calls the same value ``transaction_id``.
        reference: The service's reference.
        type: Collection or disbursement.
        amount: Whole currency units.
        currency: ``TZS``.
        phone_number: The customer's or recipient's number.
        network: The mobile-money network.
        status: The state (section 3).
        created_at: The time at which the service took the request.
        external_id: The merchant's reference, where one was given.
        merchant_id: The owning merchant.
        completed_at: Present on a successful transaction.
        failed_at: Present on a failed transaction.
        failure_reason: Present on a failed transaction. The full list of values is not documented.
        fees: Present on a successful collection.
        settlement: Present on a successful collection.
    """

    id: str = attrs.field(repr=id_repr)
    reference: str | None = attrs.field(default=None, repr=id_repr)
    type: TransactionType
    amount: Decimal
    currency: str
    phone_number: str = attrs.field(repr=mask_phone_number)
    network: Network | None = None
    status: TransactionStatus
    created_at: datetime | None = None
    external_id: str | None = attrs.field(default=None, repr=text_repr)
    merchant_id: str | None = attrs.field(default=None, repr=id_repr)
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    failure_reason: str | None = attrs.field(default=None, repr=text_repr)
    fees: Fees | None = None
    settlement: Settlement | None = None

    def __attrs_post_init__(self) -> None:
        # One hook for the whole record, its settlement included: two would cost more of the cost of a page.
        if not self.amount.is_finite():
            raise ValueError("expected a finite decimal")
        if (at := self.created_at) is not None and at.tzinfo is not UTC:
            object.__setattr__(self, "created_at", in_utc(at))
        if (at := self.completed_at) is not None and at.tzinfo is not UTC:
            object.__setattr__(self, "completed_at", in_utc(at))
        if (at := self.failed_at) is not None and at.tzinfo is not UTC:
            object.__setattr__(self, "failed_at", in_utc(at))
        if (settlement := self.settlement) is not None and (at := settlement.settled_at) and at.tzinfo is not UTC:
            object.__setattr__(settlement, "settled_at", in_utc(at))

    @property
    def is_final(self) -> bool:
        """True if the state no longer changes (section 3). An unknown state is never final."""
        return is_final(self.type, self.status)

    @property
    def succeeded(self) -> bool:
        """True if the payment was made."""
        return self.status == TransactionStatus.SUCCESS


ERROR_ATTRIBUTES["transaction"] = Transaction | None


@attrs.frozen(kw_only=True)
class Acknowledgement(Data):
    """Answer to a create: the payment was accepted, not yet made (contract, section 2.2).

    Attributes:
        transaction_id: The new transaction's id; the transaction itself calls it ``id``.
        reference: The service's reference.
        amount: Echo of the request.
        currency: ``TZS``.
        phone_number: Echo of the request.
        status_code: The payment's first state, in spite of its name.
        status: ``success``: that the request was accepted. Not the payment's state.
        message: The service's text.
        idempotency_key: The key of the create, given or made here. It is not sent to the service.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    reference: str | None = attrs.field(default=None, repr=id_repr)
    amount: Decimal
    currency: str
    phone_number: str = attrs.field(repr=mask_phone_number)
    status_code: TransactionStatus
    status: str
    message: str | None = attrs.field(default=None, repr=text_repr)
    idempotency_key: str | None = None

    @property
    def id(self) -> str:
        """The transaction's id, under the name that the transaction gives it."""
        return self.transaction_id

    def __attrs_post_init__(self) -> None:
        if not is_id(self.transaction_id):
            # No id that could be looked up, or kept: the answer does not identify the payment.
            raise ValueError("expected an id")


def id_of(argument: str, payment: str | Acknowledgement | Transaction) -> str:
    """Return the transaction id of an argument that is one, or has one, or raise `InvalidRequest`."""
    found = payment.id if isinstance(payment, Acknowledgement | Transaction) else payment
    if not isinstance(found, str):
        raise refuse(argument, "a transaction id, an Acknowledgement or a Transaction", type(payment))
    return require_identifier(argument, found)


@attrs.frozen(kw_only=True)
class User(Data):
    """User that logged in (contract, section 2.3). The values of `user_type` and `kyc_status` are not documented."""

    id: int | None = None
    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    user_type: str | None = None
    kyc_status: str | None = None


@attrs.frozen(kw_only=True)
class LoginResult(Data):
    """Answer to a login (contract, section 2.3).

    Attributes:
        access_token: The bearer token.
        token_type: ``Bearer``.
        expires_in: The token's lifetime, seconds.
        user: The user that logged in.
        success: True.
    """

    access_token: Secret
    expires_in: int
    token_type: str = "Bearer"  # noqa: S105 (the name of a scheme)
    user: User | None = None
    success: bool = True

    def __attrs_post_init__(self) -> None:
        require_bearer("access_token", self.access_token)


@attrs.frozen(kw_only=True)
class Pagination(Data):
    """Position of a page in the list (contract, section 2.4)."""

    current_page: int
    total_pages: int
    total_count: int
    per_page: int


@attrs.frozen(kw_only=True)
class TransactionPage(Data):
    """Page of the transaction list (contract, section 4.4). Iterates over its transactions.

    Attributes:
        transactions: The rows.
        pagination: The position of the page in the list.
        skipped: For each row that breaks the contract, its id and the reason; only in full listings.
        is_complete: False on the last page of a full listing that ended before it had shown as many transactions as the
            service counts. That page may be empty. False on each page with counts that cannot be read.
    """

    transactions: tuple[Transaction, ...]
    pagination: Pagination
    skipped: tuple[str, ...] = ()
    is_complete: bool = True

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self.transactions)

    def __len__(self) -> int:
        return len(self.transactions)


@attrs.frozen(kw_only=True)
class TransactionAnswer:
    """Body around one transaction (contract, section 4.3)."""

    transaction: Transaction
    status: str = "success"
    success: bool = True


@attrs.frozen(kw_only=True)
class PageAnswer:
    """Body around one page (contract, section 4.4)."""

    transactions: tuple[Transaction, ...]
    pagination: Pagination
    status: str = "success"
    success: bool = True

    @property
    def is_counted(self) -> bool:
        """True if the page says how long the list is. Counts that cannot be read are -1."""
        return self.pagination.total_count >= 0 and self.pagination.total_pages >= 0


ANSWERS |= {
    TransactionAnswer: SideFields(),
    PageAnswer: SideFields(),
    Transaction: SideFields(("reference", "network", "created_at")),
    Fees: SideFields(("merchant_fee", "customer_fee", "total_fee")),
    Settlement: SideFields(("net_amount", "settled_at", "settlement_batch")),
    LoginResult: SideFields(),
    User: SideFields(("id", "email")),
    # It names a payment by its id alone. In place of the other fields, it has values that no payment has.
    Acknowledgement: SideFields(
        ("reference", "amount", "currency", "phone_number", "status_code", "status"),
        {
            "amount": Decimal(0),
            "currency": "",
            "phone_number": "",
            "status_code": TransactionStatus(""),
            "status": "",
        },
    ),
}


@attrs.frozen(kw_only=True)
class UnreadableRow:
    """Row of the list that breaks the contract, with its id and its time if these can be read.

    Attributes:
        reason: The first place that breaks it, such as ``expected str at $.reference``.
    """

    id: str | None = None
    created_at: datetime | None = None
    reason: str = attrs.field(default="", eq=False)

    def __attrs_post_init__(self) -> None:
        if self.created_at is not None and self.created_at.tzinfo is not UTC:
            object.__setattr__(self, "created_at", in_utc(self.created_at))


@attrs.frozen(kw_only=True)
class RowsAnswer(PageAnswer):
    """Body around one page of which some rows may break the contract (section 4.4): those are kept apart."""

    unreadable: tuple[UnreadableRow, ...] = ()
