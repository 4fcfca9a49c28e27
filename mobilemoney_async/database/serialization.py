"""Serialization of transactions, acknowledgements and errors for the database: JSON, with money and times as text.

Read as strictly as an answer of the service, by the same reader. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import attrs

from mobilemoney_async import errors
from mobilemoney_async.contract.codec import DecodeError, reader
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.errors import MobileMoneyError, StoreError

T = TypeVar("T")

_read_transaction = reader(Transaction, is_own=True)
_read_acknowledgement = reader(Acknowledgement, is_own=True)
# Longer than any amount of an answer: the total of a batch is one too. An exponent would fill the memory.
_AMOUNT = re.compile(r"[0-9]{1,25}(?:\.[0-9]{1,20})?")
# Types of attributes that JSON can hold, beside None.
_PLAIN = (str, int, float)


def dump(value: Transaction | Acknowledgement) -> str:
    """Return a value as text. It holds a phone number."""
    # ASCII only: any text of the service, with lone surrogates too, fits into any database.
    return json.dumps(_plain(value), separators=(",", ":"))


def load_transaction(text: str) -> Transaction:
    """Return the transaction of a text; raise `StoreError` if it is none."""
    return _load(_read_transaction, text, "transaction")


def load_acknowledgement(text: str) -> Acknowledgement:
    """Return the acknowledgement of a text; raise `StoreError` if it is none."""
    return _load(_read_acknowledgement, text, "acknowledgement")


def load_amount(text: str) -> Decimal:
    """Return the amount of a text, digits with an optional fraction; raise `StoreError` if it is none."""
    if not isinstance(text, str) or not _AMOUNT.fullmatch(text):
        raise _unreadable("amount")
    return Decimal(text)


def dump_error(error: MobileMoneyError) -> str:
    """Return an error as text, so that another process raises the same. Errors carry no secret.

    The text has the error's class, its arguments and those attributes that JSON can hold; not its cause.
    """
    attributes = {name: value for name, value in vars(error).items() if value is None or isinstance(value, _PLAIN)}
    return json.dumps({"type": type(error).__name__, "args": [str(each) for each in error.args], **attributes})


def load_error(text: str) -> MobileMoneyError:
    """Return the error of a text; if this release does not know its class, as the base class.

    Raises:
        StoreError: The text is no error.
    """
    try:
        fields = json.loads(text)
        kind: Any = getattr(errors, fields.pop("type"), MobileMoneyError)
        if "args" not in fields:  # a refused lookup, as earlier versions wrote it
            error = kind(str(fields["message"]), status_code=int(fields["status_code"]), code=fields["code"])
        else:
            error = kind.__new__(kind)
            error.args = tuple(str(each) for each in fields.pop("args"))
            vars(error).update(fields.pop("attributes", {}), **fields)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise _unreadable("recorded error") from exc
    if not isinstance(error, MobileMoneyError):
        raise _unreadable("recorded error")
    return error


def _load(read: Callable[[bytes], T], text: str, kind: str) -> T:
    try:
        return read(text.encode())
    except (DecodeError, UnicodeEncodeError) as exc:
        raise _unreadable(kind) from exc


def _unreadable(kind: str) -> StoreError:
    return StoreError(f"the store holds a {kind} that cannot be read", outcome="not_sent")


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        fields = ((field.name, getattr(value, field.name)) for field in attrs.fields(type(value)))
        return {name: _plain(inside) for name, inside in fields if inside is not None}
    if isinstance(value, Decimal):
        return f"{value:f}"  # not `str`: 0.0000001 would be read no more, as 1E-7
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    # The value of an enum, also of one that its class does not list.
    return str(value) if isinstance(value, str) else value
