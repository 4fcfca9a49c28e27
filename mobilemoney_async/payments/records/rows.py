"""Rows of payments, read as records, and the columns that a request, a reason and an entry of the journal change."""

from __future__ import annotations

import functools
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.serialization import dump, load, load_amount, shorten
from mobilemoney_async.errors import IdempotencyConflict, StoreError
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRecord, PaymentRequest, PaymentState, Source
from mobilemoney_async.text import is_code

logger: logging.Logger = logging.getLogger("mobilemoney_async")

UNKNOWN_EXTRA = "?"
"""Digest of the extra fields of a payment that was imported: the list does not show them."""

ERASED_EXTRA = "erased"
"""The same of a payment whose number was erased: of few words, which one could try."""

ERASED_TEXT = "erased"
"""In place of a number, or of a text that may name someone."""

ENDS_IN_ERROR: frozenset[PaymentEvent] = frozenset(
    {PaymentEvent.REFUSE, PaymentEvent.FAIL_UNSENT, PaymentEvent.REQUEUE, PaymentEvent.LOSE}
)
"""Events whose detail is the text of an error: it may be the service's, and name someone."""

T = TypeVar("T", Transaction, Acknowledgement)

# Columns that a record has as they are.
_AS_THEY_ARE = (
    *("key", "phone_number", "attempt", "created_at", "changed_at", "sent_at", "ended_at", "stale_at", "walks"),
    *("transaction_id", "reference", "external_id", "looked_at", "next_look_at", "not_before", "not_after", "priority"),
)


def new_number_key() -> str:
    """Return a secret key of an account's digests of numbers."""
    return secrets.token_hex(32)


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


@attrs.frozen
class JournalEntry:
    """Event of one attempt of a payment, the latest if `attempt` is None.

    Attributes:
        detail: For the history.
        acknowledgement: With `PaymentEvent.ACKNOWLEDGE` and `PaymentEvent.ADOPT`.
        is_certain: With `PaymentEvent.REFUSE`: whether the service refused with a code of contract section 7.
        code: With `PaymentEvent.REFUSE`: the service's code, or the HTTP status.
        named_id: With `PaymentEvent.LOSE`: the transaction that an acknowledgement named which does not fit.
        reason: With `PaymentEvent.DOUBT`: why it may exist; None if the payment's own reason says so.
    """

    key: str
    attempt: int | None
    event: PaymentEvent
    source: Source
    at: datetime
    detail: str | None = None
    acknowledgement: Acknowledgement | None = None
    is_certain: bool | None = None
    code: str | None = None
    named_id: str | None = None
    reason: Reason | None = None


def columns_of(entry: JournalEntry, ended_at: datetime | None, target: PaymentState) -> dict[str, Any]:
    """Return the columns that an event changes."""
    acknowledged = entry.acknowledgement
    values: dict[str, Any] = {"state": target, "changed_at": entry.at}
    if _is_certain(entry):
        values |= {"candidates": None, **reason_columns(None)}
    if ended_at is None or entry.event in {PaymentEvent.ACKNOWLEDGE, PaymentEvent.LOSE}:
        values["ended_at"] = entry.at
    if acknowledged is not None:
        values |= {
            "transaction_id": acknowledged.transaction_id,
            "reference": acknowledged.reference,
            "status": shorten(str(acknowledged.status_code)),
            "acknowledgement": dump(acknowledged),
            "named_id": None,
            "is_adopted": entry.event is PaymentEvent.ADOPT,
        }
    if entry.event in ENDS_IN_ERROR:
        values["error"] = entry.detail and shorten(entry.detail)
    if entry.event is not PaymentEvent.ENQUEUE:  # a queued payment keeps the facts about its last attempt
        values["is_certain"] = bool(entry.is_certain) if target is PaymentState.REFUSED else None
        values["code"] = entry.code and shorten(entry.code)
    if entry.event in {PaymentEvent.LOSE, PaymentEvent.CONFIRM_ABSENT}:
        # A listing that began before the request ended, or before someone's word, proves nothing.
        values |= {"walks": 0, "walked_at": None, "looked_at": None, "look_passed": None, "next_look_at": None}
    values |= {} if entry.reason is None else reason_columns(entry.reason)
    values |= {} if entry.named_id is None else {"named_id": entry.named_id}
    return values


def _is_certain(entry: JournalEntry) -> bool:
    """Return whether an event says for certain which transaction a payment is, or that it is none."""
    if entry.event is PaymentEvent.REFUSE:
        return bool(entry.is_certain)
    is_none = {PaymentEvent.FAIL_UNSENT, PaymentEvent.REQUEUE, PaymentEvent.CONFIRM_ABSENT}
    return entry.acknowledgement is not None or entry.event in is_none


def as_kept(entry: JournalEntry, row: sa.Row[Any]) -> JournalEntry:
    """Return an entry without what was erased from a payment's row meanwhile."""
    if not row.phone_number.startswith(ERASED):
        return entry
    answer = entry.acknowledgement and without_person(entry.acknowledgement)
    return attrs.evolve(
        entry, acknowledgement=answer, detail=ERASED_TEXT if entry.event in ENDS_IN_ERROR else entry.detail
    )


def without_person(value: T) -> T:
    """Return a value of the service without the number, and without the text that may name its owner."""
    texts: dict[str, Any] = {"phone_number": ERASED_TEXT}
    name = "failure_reason" if isinstance(value, Transaction) else "message"
    if not is_code(getattr(value, name) or ""):
        texts[name] = ERASED_TEXT
    return attrs.evolve(value, **texts)


def problem_of(entry: JournalEntry, row: sa.Row[Any]) -> str | None:
    """Return why an event cannot be one of a payment's row, other than by its state, or None."""
    if row.owner not in {None, row.key}:
        return f"belongs to another payment ({row.owner})"
    if entry.attempt not in {None, row.attempt}:
        return f"is of attempt {entry.attempt}, and attempt {row.attempt} is {row.state}"
    if entry.event is PaymentEvent.LOSE and entry.named_id is None and row.state == PaymentState.RELEASED:
        return f"is {row.state} already"
    if entry.event is PaymentEvent.ACKNOWLEDGE and row.transaction_id is not None and not row.is_adopted:
        return f"is {row.state} already"
    return None


def detail_of(entry: JournalEntry) -> str | None:
    """Return the history's words for an event: the transaction that an answer has named, and the reason."""
    named = entry.named_id if entry.acknowledgement is None else entry.acknowledgement.transaction_id
    return ": ".join(filter(None, [named, entry.detail])) or None
