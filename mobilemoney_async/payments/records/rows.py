"""Rows of payments, read as records, and the columns of a request and of a reason."""

from __future__ import annotations

import functools
import hmac
import json
import logging
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.serialization import load, load_amount, shorten
from mobilemoney_async.errors import IdempotencyConflict, StoreError
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentRequest, PaymentState

logger: logging.Logger = logging.getLogger("mobilemoney_async")

UNKNOWN_EXTRA = "?"
"""Digest of the extra fields of a payment that was imported: the list does not show them."""

ERASED_EXTRA = "erased"
"""The same of a payment whose number was erased: of few words, which one could try."""

# Columns that a record has as they are.
_AS_THEY_ARE = (
    *("key", "phone_number", "attempt", "created_at", "changed_at", "sent_at", "ended_at", "stale_at", "walks"),
    *("transaction_id", "reference", "external_id", "looked_at", "next_look_at", "not_before", "not_after", "priority"),
)


def digest(key: str, phone_number: str) -> str:
    """Return the digest of a number, ``+`` and digits, under the key of its account."""
    return hmac.digest(key.encode(), phone_number.encode(), "sha256").hex()


def require_same(
    kept: sa.Row[Any] | PaymentRecord, type: str, phone_number: str, amount: str, *, has_extra: bool = True
) -> None:
    """Raise `IdempotencyConflict` if the row or record of a key is another payment than is asked for now.

    A number that was erased agrees with each that is not given as its digest.
    """
    is_unknown = kept.phone_number.startswith(ERASED) and not phone_number.startswith(ERASED)
    agrees = {
        "type": str(kept.type) == str(type),
        "phone number": is_unknown or kept.phone_number == phone_number,
        "amount": Decimal(kept.amount) == Decimal(amount),
        "extra": has_extra,
    }
    others = [name for name, is_same in agrees.items() if not is_same]
    if others:
        said = "the idempotency key was used for another payment: nothing was sent"
        raise IdempotencyConflict(f"{said}; that one has another {' and '.join(others)}", idempotency_key=kept.key)


def request_columns(account: str, request: PaymentRequest) -> dict[str, Any]:
    """Return the columns of a new row that hold the request."""
    return {
        "account": account,
        "key": request.key,
        "type": str(request.type),
        "phone_number": request.phone_number,
        "amount": request.amount,
        "extra_digest": request.extra_digest,
        "external_id": request.external_id,
    }


def to_record(row: sa.Row[Any]) -> PaymentRecord:
    """Return the record that a row holds, without its history.

    One with an unreadable transaction shows that as its error, and the log has it once.

    Raises:
        StoreError: The row cannot be read.
    """
    try:
        return _read(row)
    except (ValueError, ArithmeticError, TypeError, StoreError):
        # Not as the cause: it may quote the row.
        raise StoreError(f"the store cannot read its payment {row.key!r}", outcome="not_sent") from None


@functools.lru_cache(maxsize=1_000)
def _warn(account: str, key: str, error: str) -> None:
    logger.error("payment %r of account %r: %s", key, account, error)


def _read(row: sa.Row[Any]) -> PaymentRecord:
    transaction, error = None, row.error
    if row.transaction is not None:
        try:
            transaction = load(Transaction, row.transaction)
        except StoreError as exc:
            error = str(exc)
            _warn(row.account, row.key, error)
    reason = None if row.cause is None else Reason(PaymentCause(row.cause), row.about)
    return PaymentRecord(
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        type=TransactionType(row.type),
        amount=load_amount(row.amount),
        state=PaymentState(row.state),
        status=None if row.status is None else TransactionStatus(row.status),
        transaction=transaction,
        candidates=_candidates(row),
        is_adopted=bool(row.is_adopted),
        has_extra=row.extra_digest not in {"", UNKNOWN_EXTRA, ERASED_EXTRA},
        is_certain=row.is_certain is None or bool(row.is_certain),
        cause=None if reason is None else reason.cause,
        reason=None if reason is None else str(reason),
        is_controlled=bool(row.look_passed),
        error=error,
    )


def _candidates(row: sa.Row[Any]) -> tuple[str, ...]:
    found = [] if row.candidates is None else json.loads(row.candidates)
    return tuple(dict.fromkeys([*found, *filter(None, [row.named_id])]))


def reason_columns(reason: Reason | None) -> Mapping[str, str | None]:
    """Return the columns that hold a payment's reason, or that it has none."""
    if reason is None:
        return {"cause": None, "about": None}
    return {"cause": reason.cause.value, "about": reason.about and shorten(reason.about)}
