"""Fallback decoder of answers that msgspec refuses: the only cattrs configuration.

It takes every ISO 8601 timestamp, where msgspec takes RFC 3339 only, and it names the place in the body that does not
fit. As strict as msgspec: no scalar is coerced, no number passes through a float. Imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from types import GenericAlias
from typing import Any, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn

from mobilemoney_async.contract.models import PageAnswer, RowsAnswer, Transaction, UnreadableRow
from mobilemoney_async.values import Secret

T = TypeVar("T")

_EXACT_AS_FLOAT = 2**53


class Mismatch(ValueError):
    """Value that does not fit the contract, at a path such as ``$.transaction.amount``."""

    def __init__(self, expected: str, path: str) -> None:
        super().__init__(f"{expected} at {path}")
        self.expected = expected
        self.path = path


def structure(plain: Any, cl: type[T]) -> T:
    """Return plain JSON values as a class.

    Raises:
        Mismatch: They do not fit.
    """
    try:
        return _CONVERTER.structure(plain, cl)
    except Exception as exc:  # noqa: BLE001 (any body must give a value or this error)
        # cattrs raises groups of errors; the first names the first place that broke.
        expected, _, path = cattrs.transform_error(exc, format_exception=_describe)[0].rpartition(" @ ")
        raise Mismatch(expected, path) from None  # the group quotes the body


def structure_rows(plain: Any) -> RowsAnswer:
    """Return plain JSON values as a page whose rows are read one by one, each as strictly as ever.

    Raises:
        Mismatch: The page itself does not fit: its array of rows, its pagination or its status.
    """
    rows = plain.get("transactions") if isinstance(plain, dict) else None
    page = structure({**plain, "transactions": []} if isinstance(rows, list) else plain, PageAnswer)
    readable, unreadable = list[Transaction](), list[UnreadableRow]()
    for row in rows or ():
        try:
            readable.append(structure(row, Transaction))
        except Mismatch:
            unreadable.append(UnreadableRow(id=_shown(row, "id"), created_at=_shown(row, "created_at")))
    return RowsAnswer(
        transactions=tuple(readable), unreadable=tuple(unreadable), pagination=page.pagination, status=page.status
    )


def _shown(row: Any, name: str) -> Any:
    """Return one field of a row that cannot be read, or None if it cannot be read either."""
    try:
        return getattr(structure({name: row[name]}, UnreadableRow), name)
    except (Mismatch, KeyError, TypeError, IndexError):
        return None


def _describe(exc: BaseException, expected: type | None) -> str:
    if isinstance(exc, KeyError):
        return "a required field is missing"
    return str(exc) if isinstance(exc, _WrongValue) else "unexpected value"


class _WrongValue(ValueError):
    """JSON value of another type than the contract's, or text that is no decimal or timestamp."""


def _is_tuple(cl: Any) -> bool:
    origin: Any = get_origin(cl)
    return origin is tuple


def _only(kind: type, expected: str, read: Callable[[Any, Any], T]) -> Callable[[Any, Any], T]:
    """Return a hook that reads values of one JSON type, and refuses all others."""

    def structure(value: Any, cl: Any) -> T:
        if not isinstance(value, kind):
            raise _WrongValue(expected)
        return read(value, cl)

    return structure


def _read_int(value: Any, _: Any) -> int:
    if type(value) is int:
        return value
    # As msgspec does: 100.0 is an integer in JSON, 1.9 is not, and 1e999999 would fill our memory.
    if isinstance(value, Decimal) and abs(value) <= _EXACT_AS_FLOAT and value == value.to_integral_value():
        return int(value)
    raise _WrongValue("expected int")


def _read_decimal(value: Any, _: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise _WrongValue("expected a decimal string")
    try:
        money = Decimal(value)
    except InvalidOperation:
        raise _WrongValue("expected a decimal string") from None
    if not money.is_finite():
        raise _WrongValue("expected a finite decimal")
    return money


def _read_datetime(value: str, _: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise _WrongValue("expected an ISO 8601 timestamp") from None


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter()

    def read_object(cl: type[T]) -> Callable[[Any, Any], T]:
        return _only(dict, "expected an object", make_dict_structure_fn(cl, converter))

    def read_rows(cl: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
        rows = GenericAlias(list, get_args(cl)[:1])
        read = converter.get_structure_hook(rows)
        return _only(list, "expected an array", lambda value, _: tuple(read(value, rows)))

    # cattrs itself takes anything that can be indexed for an object, and "" and {} for an empty array.
    converter.register_structure_hook_factory(attrs.has, read_object)
    converter.register_structure_hook_factory(_is_tuple, read_rows)
    # A hook for a class serves its subclasses: the string enums come to `str` too, so it calls their class.
    converter.register_structure_hook(str, _only(str, "expected str", lambda value, cl: cl(value)))
    converter.register_structure_hook(int, _read_int)
    converter.register_structure_hook(bool, _only(bool, "expected bool", lambda value, _: value))
    converter.register_structure_hook(Decimal, _read_decimal)
    converter.register_structure_hook(datetime, _only(str, "expected an ISO 8601 timestamp", _read_datetime))
    converter.register_structure_hook(Secret, _only(str, "expected str", lambda value, _: Secret(value)))
    return converter


_CONVERTER = _make_converter()
