"""Fallback decoder of answers that msgspec refuses: the only cattrs configuration.

It takes every ISO 8601 timestamp, where msgspec takes RFC 3339 only, and it names the place in the body that does not
fit. As strict as msgspec: no scalar is coerced, no number passes through a float. Imported when it is first needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.errors import IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, RowsAnswer, Transaction, UnreadableRow
from mobilemoney_async.values import Secret

T = TypeVar("T")

_EXACT_AS_FLOAT = 2**53
_MONEY = re.compile(r"(?=[0-9.]{1,21}\Z)[0-9]{1,20}(?:\.[0-9]{1,19})?", re.ASCII)
# A page has 100; some lists show more, such as rows that they pin.
_MOST_ROWS = 2 * PAGE_SIZE_MAX
_TOO_MANY = f"expected at most {_MOST_ROWS} rows"


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
    # Outside, and without `plain`: the group and this frame would keep the body for as long as the error lives.
    del plain
    raise Mismatch(expected, path)


def structure_page(plain: Any) -> RowsAnswer:
    """Return plain JSON values as a page whose rows are read one by one, each as strictly as ever.

    Raises:
        Mismatch: The page itself does not fit: its array of rows, its pagination or its status.
    """
    rows = plain.get("transactions") if isinstance(plain, dict) else None
    page = structure({**plain, "transactions": []} if isinstance(rows, list) else plain, PageAnswer)
    readable, unreadable = structure_rows(rows or [])
    return RowsAnswer(transactions=readable, unreadable=unreadable, pagination=page.pagination, status=page.status)


def structure_rows(rows: list[Any]) -> tuple[tuple[Transaction, ...], tuple[UnreadableRow, ...]]:
    """Return the rows of a page that can be read, and the others.

    Raises:
        Mismatch: There are more than on any page.
    """
    if len(rows) > _MOST_ROWS:
        raise Mismatch(_TOO_MANY, "$.transactions")
    readable, unreadable = list[Transaction](), list[UnreadableRow]()
    for row in rows:
        try:
            readable.append(structure(row, Transaction))
        except Mismatch as exc:
            row_id, created_at = _shown(row, "id"), _shown(row, "created_at")
            unreadable.append(UnreadableRow(id=row_id, created_at=created_at, reason=f"{exc}"))
    return tuple(readable), tuple(unreadable)


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
    # A number that is no text reads as the text that it would be.
    text = str(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _MONEY.fullmatch(text):
        raise _WrongValue("expected a decimal string")
    return Decimal(text)


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
        row = get_args(cl)[0]
        read = converter.get_structure_hook(row)

        def read_until_error(value: list[Any], _: Any) -> tuple[Any, ...]:
            # Not cattrs' own: it goes on after an error, and keeps all of them.
            if len(value) > _MOST_ROWS:
                raise _WrongValue(_TOO_MANY)
            rows = []
            for index, each in enumerate(value):
                try:
                    rows.append(read(each, row))
                except Exception as exc:  # noqa: BLE001 (with its place for `structure`)
                    exc.add_note(IterableValidationNote("", index, row))
                    raise IterableValidationError("", [exc], cl) from None
            return tuple(rows)

        return _only(list, "expected an array", read_until_error)

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
