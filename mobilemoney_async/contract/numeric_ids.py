"""Pages with JSON integers as identifiers: read by msgspec too, since the converter takes three times as long."""

from __future__ import annotations

from typing import Any

from mobilemoney_async.contract import models
from mobilemoney_async.contract.models import PageAnswer, Transaction

_CORE, _SIDE = str | int, str | int | None
_TYPES = {"id": _CORE, "phone_number": _CORE, "reference": _SIDE, "external_id": _SIDE, "merchant_id": _SIDE}


def _write_digits(row: Any) -> None:
    """Turn a row into a `Transaction`, whose identifiers are texts; refuse an integer that has a sign."""
    for name in _TYPES:
        value = getattr(row, name)
        if type(value) is int:
            if value < 0:
                raise ValueError("expected str")
            object.__setattr__(row, name, str(value))
    object.__setattr__(row, "__class__", Transaction)
    Transaction.__attrs_post_init__(row)


def _turn_into_page(page: Any) -> None:
    object.__setattr__(page, "__class__", PageAnswer)


def _like(cl: type[Any], annotations: dict[str, Any], finish: Any) -> Any:
    """Return a class of the same layout with other types for some fields, for msgspec, which reads annotations."""
    members = {"__slots__": (), "__annotations__": annotations, "__attrs_post_init__": finish}
    return type(cl.__name__, (cl,), {**members, "__module__": models.__name__})


_Row: Any = _like(Transaction, _TYPES, _write_digits)
NumericPage: Any = _like(PageAnswer, {"transactions": tuple[_Row, ...]}, _turn_into_page)
"""`PageAnswer` whose rows may have integers for identifiers. What it reads is a plain page of plain transactions."""
