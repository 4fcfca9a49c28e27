"""Serialization of values and errors for the database: their data as JSON text, read as strictly as an answer. Pure."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from mobilemoney_async.contract.codec import reader
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.errors import MobileMoneyError, StoreError

T = TypeVar("T", bound=Data | MobileMoneyError | dict[str, Any])

# ASCII only: any text of the service fits into any database.
_encode = json.JSONEncoder(separators=(",", ":")).encode
# The longest error or note, characters.
_LONGEST = 500
# Longer than any amount of an answer: the total of a batch is one too. An exponent would fill the memory.
_AMOUNT = re.compile(r"[0-9]{1,25}(?:\.[0-9]{1,20})?")


def dump(value: Data | MobileMoneyError) -> str:
    """Return a value as text, with its phone number; or an error, so that another process raises the same.

    Errors carry no secret, and lose their cause.
    """
    # Here: cattrs takes a third of the package's import.
    from mobilemoney_async.contract.converter import converter

    return _encode(converter.unstructure(value))


def load(cl: type[T], text: str) -> T:
    """Return the value or error of a text; an error of a class that this release does not know as the base class.

    Raises:
        StoreError: The text is none of the class.
    """
    kept: Any = cl  # a key of the cache
    try:
        value: T = _reader(kept)(text.encode())
    except (DecodeError, UnicodeEncodeError) as exc:
        kind = "recorded error" if cl is MobileMoneyError else cl.__name__.lower()
        raise _unreadable(kind) from exc
    return value


def load_amount(text: str) -> Decimal:
    """Return the amount of a text, digits with an optional fraction; raise `StoreError` if it is none."""
    if not isinstance(text, str) or not _AMOUNT.fullmatch(text):
        raise _unreadable("amount")
    return Decimal(text)


def shorten(text: str) -> str:
    """Return the beginning of a text, as any database can hold it.

    A NUL or a lone surrogate in a text of the service must not keep the rest from being recorded.
    """
    return text[:_LONGEST].replace("\0", "").encode(errors="replace").decode()


def _unreadable(kind: str) -> StoreError:
    return StoreError(f"the store holds a {kind} that cannot be read", outcome="not_sent")


@functools.cache
def _reader(cl: type[Any]) -> Callable[[bytes], Any]:
    return reader(cl, is_own=True)
