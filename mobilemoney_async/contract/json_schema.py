"""JSON Schema of the values' data, and pydantic's way to it. Imported when pydantic asks; so is pydantic's core."""

from __future__ import annotations

import enum
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from mobilemoney_async.contract.converter import converter
from mobilemoney_async.contract.plain import ERROR_ATTRIBUTES
from mobilemoney_async.contract.states import OpenEnum, open_schema
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.text import mask_phone_number
from mobilemoney_async.values import Secret

Schema = dict[str, Any]

_PHONE_NUMBER = "+255681234567"
_SIMPLE: dict[Any, Schema] = {
    Any: {},
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    Secret: {"type": "string", "writeOnly": True},
    Decimal: {"type": "string", "pattern": r"^[0-9]{1,20}(\.[0-9]{1,19})?$", "examples": ["15000"]},
    datetime: {"type": "string", "format": "date-time", "examples": ["2026-01-31T08:30:00Z"]},
    date: {"type": "string", "format": "date", "examples": ["2026-01-31"]},
}
_DESCRIBED = re.compile(r"^ {4}(\w+): (.+?)(?=^ {4}\w|\Z)", re.MULTILINE | re.DOTALL)


def object_schema(cl: Any, *, is_written: bool = False) -> Schema:
    """Return the JSON Schema of a value's data.

    Args:
        cl: The class, of attrs.
        is_written: For data that `to_dict` writes: it has no secrets.
    """
    summary, _, rest = (inspect.getdoc(cl) or "").partition("\n")
    said = {name: " ".join(text.split()) for name, text in _DESCRIBED.findall(rest)}
    fields = {each.name: each for each in attrs.fields(attrs.resolve_types(cl)) if not each.name.startswith("_")}
    if is_written:
        fields = {name: each for name, each in fields.items() if each.type is not Secret}
    properties = {}
    for name, each in fields.items():
        shown = {"examples": [_PHONE_NUMBER, mask_phone_number(_PHONE_NUMBER)]} if name == "phone_number" else {}
        about = {"description": said[name]} if name in said else {}
        properties[name] = {**_schema(each.type), **shown, **about}
    required = [name for name, each in fields.items() if each.default is attrs.NOTHING]
    return {"type": "object", "title": cl.__name__, "description": summary, "properties": properties} | (
        {"required": required} if required else {}
    )


def _schema(kind: Any) -> Schema:
    """Return the JSON Schema of a field's type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _SIMPLE:
        found = _SIMPLE[kind]
    elif origin in {Union, types.UnionType}:
        found = {"anyOf": [_schema(each) for each in args]}
    elif origin is Literal:
        found = {"enum": list(args)}
    elif origin in {tuple, list, Sequence}:
        found = {"type": "array", "items": _schema(args[0])}
    elif origin in {dict, Mapping}:
        found = {"type": "object", "additionalProperties": _schema(args[1])}
    elif issubclass(kind, OpenEnum):
        found = open_schema(kind)
    elif issubclass(kind, enum.Enum):
        found = {"type": "string", "enum": [each.value for each in kind]}
    elif issubclass(kind, MobileMoneyError):
        found = _error_schema()
    else:
        found = object_schema(kind)
    return found


def _error_schema() -> Schema:
    attributes = {name: _schema(kind) for name, kind in ERROR_ATTRIBUTES.items()}
    own = {"type": {"type": "string", "examples": ["TransactionNotFound"]}, "args": _schema(tuple[str, ...])}
    return {"type": "object", "title": "Error", "properties": {**own, **attributes}, "required": list(own)}


def core_schema(cl: Any) -> Any:
    """Return pydantic's schema of a value: it reads values and their data, and writes the data, masked by default."""
    from pydantic_core import PydanticCustomError, to_jsonable_python
    from pydantic_core import core_schema as core

    def read(value: Any) -> Any:
        try:
            return value if isinstance(value, cl) else converter.structure(value, cl)
        except InvalidRequest as exc:
            text: Any = f"{exc}"
            raise PydanticCustomError("invalid_data", text) from None

    def write(value: Any, info: Any) -> dict[str, Any]:
        is_whole = isinstance(info.context, Mapping) and info.context.get("mask") is False
        # What is left out may be what nobody else shall see: pydantic leaves this to the function.
        data: dict[str, Any] = to_jsonable_python(
            value.to_dict(mask=not is_whole), include=info.include, exclude=info.exclude
        )
        return data

    return core.no_info_plain_validator_function(
        read,
        ref=f"{cl.__module__}.{cl.__qualname__}:{id(cl)}",
        serialization=core.plain_serializer_function_ser_schema(write, info_arg=True),
    )
