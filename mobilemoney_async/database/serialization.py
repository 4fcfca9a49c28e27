"""Serialization of transactions, acknowledgements and errors for the database: JSON, with money and times as text.

Read as strictly as an answer of the service, by the same reader. Pure.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs

from mobilemoney_async import errors
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
# Types of attributes that JSON can hold, beside None.
_PLAIN = (str, int, float)
# The refusals after which a poller gives a payment up.
_REFUSALS: dict[str, type[APIError]] = {kind.__name__: kind for kind in (TransactionNotFound, InvalidTransactionId)}


def dump_transaction(transaction: Transaction) -> str:
    """Return a transaction as text. It holds a phone number."""
    return _dump(transaction)


def load_transaction(text: str) -> Transaction:
    """Return the transaction of a text.

    Raises:
        StoreError: The text is no transaction.
    """
    try:
        return _read_transaction(text.encode())
    except (DecodeError, UnicodeEncodeError) as exc:
        raise _unreadable("transaction") from exc


def dump_acknowledgement(acknowledgement: Acknowledgement) -> str:
    """Return an acknowledgement as text. It holds a phone number."""
    return _dump(acknowledgement)


def load_acknowledgement(text: str) -> Acknowledgement:
    """Return the acknowledgement of a text.

    Raises:
        StoreError: The text is no acknowledgement.
    """
    try:
        return _read_acknowledgement(text.encode())
    except (DecodeError, UnicodeEncodeError) as exc:
        raise _unreadable("acknowledgement") from exc


def dump_error(error: MobileMoneyError) -> str:
    """Return the service's refusal of a lookup as text."""
    fields: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, APIError):
        fields |= {"message": error.message, "status_code": error.status_code, "code": error.code}
    return json.dumps(fields)


def load_error(text: str) -> MobileMoneyError:
    """Return the error of a text; if its class is not expected here, as the base class.

    Raises:
        StoreError: The text is no error.
    """
    try:
        fields = json.loads(text)
        kind = _REFUSALS.get(fields["type"])
        if kind is None:
            return MobileMoneyError(str(fields["message"]))
        return kind(str(fields["message"]), status_code=int(fields["status_code"]), code=fields["code"])
    except (ValueError, TypeError, KeyError) as exc:
        raise _unreadable("refusal") from exc


def dump_login_error(error: MobileMoneyError) -> str:
    """Return the error of a login as text, so that another process raises the same. Errors carry no secret.

    The text has the error's class, its arguments and those attributes that JSON can hold; not its cause.
    """
    attributes = {name: value for name, value in vars(error).items() if value is None or isinstance(value, _PLAIN)}
    args = [str(each) for each in error.args]
    return json.dumps({"type": type(error).__name__, "args": args, "attributes": attributes})


def load_login_error(text: str) -> MobileMoneyError:
    """Return the error of a text; a general one if its class or the text is unknown to this release."""
    unknown = MobileMoneyError("the login failed in another process")
    try:
        fields = json.loads(text)
        kind = getattr(errors, fields["type"])
        error: MobileMoneyError = kind.__new__(kind)
        error.args = tuple(str(each) for each in fields["args"])
        vars(error).update(fields["attributes"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return unknown
    return error if isinstance(error, MobileMoneyError) else unknown


def _unreadable(kind: str) -> StoreError:
    return StoreError(f"the store holds a {kind} that cannot be read", outcome="not_sent")


def _dump(value: Any) -> str:
    # ASCII only: any text of the service, with lone surrogates too, fits into any database.
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
