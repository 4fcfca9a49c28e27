"""Transactions, acknowledgements and refusals as text for the database: JSON, with money and times as text.

Read as strictly as an answer of the service, by the same reader. Pure.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs

from mobilemoney_async.contract.codec import DecodeError, reader
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.errors import (
    APIError,
    InvalidTransactionId,
    MobileMoneyError,
    StoreError,
    TransactionNotFound,
)

_read_transaction = reader(Transaction)
_read_acknowledgement = reader(Acknowledgement)
# The refusals that end the following of a payment.
_ENDINGS: dict[str, type[APIError]] = {kind.__name__: kind for kind in (TransactionNotFound, InvalidTransactionId)}


def dump_transaction(transaction: Transaction) -> str:
    """Return a transaction as text. It holds a phone number."""
    return _dump(transaction)


def load_transaction(text: str) -> Transaction:
    """Return the transaction that a text was made of.

    Raises:
        StoreError: It is not such a text.
    """
    try:
        return _read_transaction(text.encode())
    except (DecodeError, UnicodeEncodeError) as exc:
        raise _unreadable("transaction") from exc


def dump_acknowledgement(acknowledgement: Acknowledgement) -> str:
    """Return an acknowledgement as text. It holds a phone number."""
    return _dump(acknowledgement)


def load_acknowledgement(text: str) -> Acknowledgement:
    """Return the acknowledgement that a text was made of.

    Raises:
        StoreError: It is not such a text.
    """
    try:
        return _read_acknowledgement(text.encode())
    except (DecodeError, UnicodeEncodeError) as exc:
        raise _unreadable("acknowledgement") from exc


def dump_error(error: MobileMoneyError) -> str:
    """Return what the service said instead of a transaction, as text."""
    said: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, APIError):
        said |= {"message": error.message, "status_code": error.status_code, "code": error.code}
    return json.dumps(said)


def load_error(text: str) -> MobileMoneyError:
    """Return the error that a text was made of; of a class that is not expected here, as its base.

    Raises:
        StoreError: It is not such a text.
    """
    try:
        said = json.loads(text)
        kind = _ENDINGS.get(said["type"])
        if kind is None:
            return MobileMoneyError(str(said["message"]))
        return kind(str(said["message"]), status_code=int(said["status_code"]), code=said["code"])
    except (ValueError, TypeError, KeyError) as exc:
        raise _unreadable("refusal") from exc


def _unreadable(what: str) -> StoreError:
    return StoreError(f"the store holds a {what} that cannot be read", outcome="not_sent")


def _dump(value: Any) -> str:
    # ASCII only: whatever the service said, lone surrogates among it, goes into any database.
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        fields = ((field.name, getattr(value, field.name)) for field in attrs.fields(type(value)))
        return {name: _plain(inside) for name, inside in fields if inside is not None}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    # The value of an enum, also of one that its class does not list.
    return str(value) if isinstance(value, str) else value
