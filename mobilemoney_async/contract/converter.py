"""Converters between values and plain JSON data: the only cattrs configuration. Imported when it is first needed.

`converter` writes and reads the data of users, of the store and of queues. `answers` reads the answers that msgspec
refuses: it takes every ISO 8601 timestamp, where msgspec takes RFC 3339 only, JSON integers as identifiers, and any
value in place of a side field, which is then None. As strict as msgspec otherwise: no scalar is coerced, and no number
passes through a float. An error names the place that does not fit.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from itertools import repeat
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import attrs
import cattrs
import msgspec
from cattrs.errors import IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from mobilemoney_async import errors
from mobilemoney_async.contract.plain import ANSWERS, ERROR_ATTRIBUTES, DecodeError, OddNumber, SideFields, in_utc, note
from mobilemoney_async.contract.states import OpenEnum
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.text import mask_phone_number, name_repr, shown_name, shown_note, shown_text, text_repr
from mobilemoney_async.values import Secret, can_encode, refuse

T = TypeVar("T")

_EXACT_AS_FLOAT = 2**53
_MONEY = re.compile(r"(?=[0-9.]{1,21}\Z)[0-9]{1,20}(?:\.[0-9]{1,19})?", re.ASCII)
# Texts of the service or of people, which a masked value redacts, unless the field's metadata says that it is ours.
_TEXTS = frozenset({"detail", "error", "external_id", "failure_reason", "info", "message", "note", "reason"})
_SHOWN: Mapping[Any, Callable[[str], str]] = {text_repr: shown_text, name_repr: shown_name}
# Text fields of answers in which a JSON integer is read as its decimal digits.
_IDENTIFIERS = frozenset(
    {"id", "external_id", "merchant_id", "phone_number", "reference", "settlement_batch", "transaction_id"}
)


class DataConverter(cattrs.Converter):
    """`cattrs.Converter` of this package's values, with this package's errors."""

    def structure(self, obj: Any, cl: type[T]) -> T:
        """Return plain JSON data as a class.

        Raises:
            InvalidRequest: It does not fit, or holds a masked phone number. The error names the place, such as
                ``$.amount``, and never shows the data.
        """
        try:
            return self.read(obj, cl)
        except DecodeError as exc:
            problem = str(exc)
        del obj  # this frame would keep it for as long as the error lives
        raise InvalidRequest(f"data must be that of {getattr(cl, '__name__', cl)}: {problem}", argument="data")

    def read(self, plain: Any, cl: type[T]) -> T:
        """Return plain JSON values as a class.

        Raises:
            DecodeError: They do not fit.
        """
        try:
            return super().structure(plain, cl)
        except Exception as exc:  # noqa: BLE001 (any body must give a value or this error)
            # cattrs raises groups of errors; the first names the first place that broke.
            expected, _, path = cattrs.transform_error(exc, format_exception=_describe)[0].rpartition(" @ ")
        # Outside, and without `plain`: the group and this frame would keep the body for as long as the error lives.
        del plain
        raise DecodeError(expected, path)


def _describe(exc: BaseException, expected: type | None) -> str:
    if isinstance(exc, KeyError):
        return "a required field is missing"
    return str(exc) if isinstance(exc, _WrongValue) else "unexpected value"


class _WrongValue(ValueError):
    """JSON value of another type than the contract's, or text that is no decimal or timestamp."""


def _only(kind: Any, expected: str, read: Callable[[Any, Any], T]) -> Callable[[Any, Any], T]:
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
    if isinstance(value, Decimal) and value.copy_abs() <= _EXACT_AS_FLOAT and value == value.to_integral_value():
        return int(value)
    raise _WrongValue("expected int")


def _read_float(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _WrongValue("expected a number")
    return float(value)


def _read_decimal(value: Any, _: Any) -> Decimal:
    # A number that is no text reads as the text that it would be.
    text = str(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _MONEY.fullmatch(text):
        raise _WrongValue("expected a decimal string")
    return Decimal(text)


def _read_identifier(value: Any, _: Any) -> str:
    digits = value.text if isinstance(value, OddNumber) else str(value) if type(value) is int else value
    if not isinstance(digits, str) or not (isinstance(value, str) or digits.isdigit()):
        raise _WrongValue("expected str")
    if "\0" in digits or not can_encode(digits):  # which no request, or no database, can name
        raise _WrongValue("expected str without NUL and lone surrogates")
    return digits


def _read_encodable(value: str, cl: Any) -> Any:
    if not can_encode(value):  # which the store could write, and not read
        raise _WrongValue("expected str without lone surrogates")
    return cl(value)


def _side_field(
    cl: Any, field: attrs.Attribute[Any], kind: Any, read: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Return a hook that reads a side field, and takes a value that cannot be read for one that is not there."""
    side: SideFields = ANSWERS[cl]
    otherwise = side.otherwise.get(field.name, field.default)
    may_be_null = otherwise is None and field.name not in side.shown

    def structure(value: Any, _: Any) -> Any:
        if value is None and may_be_null:
            return None
        if value is not None and not (isinstance(value, str) and _is_empty(value)):
            try:
                return read(value, kind)
            except Exception:  # noqa: BLE001, S110 (of whatever kind; its text may show the value)
                pass
        note(cl.__name__, field.name, value)
        return otherwise

    return structure


def _is_empty(text: str) -> bool:
    """Return whether a text is empty, or cannot be kept in any database."""
    return not text or "\0" in text or not can_encode(text)


def _read_whole_number(value: str, _: Any) -> str:
    if "…" in value:
        raise _WrongValue("a masked phone number")
    return value


def _read_datetime(value: str, _: Any) -> datetime:
    try:
        with suppress(msgspec.ValidationError):  # a time of msgspec's is the same here, to the microsecond
            return in_utc(msgspec.convert(value, datetime))
        return in_utc(datetime.fromisoformat(value))
    except ValueError:
        raise _WrongValue("expected an ISO 8601 timestamp") from None


def _read_date(value: str, _: Any) -> date:
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise _WrongValue("expected an ISO 8601 date") from None


def _is_array(cl: Any) -> bool:
    return get_origin(cl) in {list, tuple, Sequence}


def _is_error(cl: Any) -> bool:
    return isinstance(cl, type) and issubclass(cl, MobileMoneyError)


def _is_mapping(cl: Any) -> bool:
    return get_origin(cl) in {dict, Mapping}


def _fields(cl: Any) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields of a class with their types, which are texts until then."""
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(attrs.resolve_types(get_origin(cl) or cl))
    return fields


def _read_at(index: object, read: Callable[[Any, Any], T], value: Any, kind: Any) -> T:
    """Read a value inside another one; its error says where it is; cattrs' own way goes on, and keeps all errors."""
    try:
        return read(value, kind)
    except Exception as exc:  # noqa: BLE001 (with its place for `DataConverter.read`)
        exc.add_note(IterableValidationNote("", index, kind))  # type: ignore[arg-type]
        raise IterableValidationError("", [exc], kind) from None


def _read_array(cl: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Sequence[Any]]:
    kinds = get_args(cl)
    is_fixed = get_origin(cl) is tuple and kinds[1:] != (...,)  # a type for each place
    readers = [(converter.get_structure_hook(each), each) for each in (kinds if is_fixed else kinds[:1])]
    kind: Any = list if get_origin(cl) is list else tuple

    def read_rows(value: Sequence[Any], _: Any) -> Sequence[Any]:
        if is_fixed and len(value) != len(kinds):
            raise _WrongValue(f"expected {len(kinds)} values")
        places = zip(value, readers if is_fixed else repeat(readers[0]), strict=is_fixed)
        rows: Sequence[Any] = kind(_read_at(at, read, each, row) for at, (each, (read, row)) in enumerate(places))
        return rows

    return _only(list | tuple, "expected an array", read_rows)


def _read_mapping(cl: Any, converter: cattrs.Converter) -> Callable[[Any, Any], dict[Any, Any]]:
    name_kind, kind = get_args(cl)
    read = converter.get_structure_hook(kind)

    def read_items(value: Mapping[str, Any], _: Any) -> dict[Any, Any]:
        # Names are texts in JSON.
        return {name_kind(name): _read_at(name, read, inside, kind) for name, inside in value.items()}

    return _only(Mapping, "expected an object", read_items)


def _read_error(cl: Any, converter: cattrs.Converter) -> Callable[[Any, Any], MobileMoneyError]:
    def read(fields: Mapping[str, Any], name: str, kind: Any) -> Any:
        return _read_at(name, converter.get_structure_hook(kind), fields[name], kind)

    def read_fields(fields: Mapping[str, Any], _: Any) -> MobileMoneyError:
        error: MobileMoneyError
        # The base class, if a later release has written it.
        kind: Any = getattr(errors, read(fields, "type", str), MobileMoneyError)
        if not (_is_error(kind) and issubclass(kind, cl)):
            raise _WrongValue(f"expected {cl.__name__}")
        error = kind.__new__(kind)
        error.args = read(fields, "args", tuple[str, ...])
        for name in ERROR_ATTRIBUTES.keys() & fields.keys():
            vars(error)[name] = read(fields, name, ERROR_ATTRIBUTES[name])
        for name, parameter in inspect.signature(kind).parameters.items():
            if name != "message" and not hasattr(error, name):
                if parameter.default is parameter.empty:
                    raise KeyError(name)
                vars(error)[name] = parameter.default
        if isinstance(error, errors.APIError):
            vars(error).setdefault("message", "")
        return error

    return _only(Mapping, "expected an error", read_fields)


def _write_error(error: MobileMoneyError, converter: cattrs.Converter, shown: Callable[[str], str]) -> dict[str, Any]:
    """Return the class of an error, its arguments, and its attributes that have a value; not its cause."""
    own = {"outcome": error.outcome, **vars(error)}
    attributes = {name: own[name] for name in ERROR_ATTRIBUTES if own.get(name) is not None}
    for name in {"message", "excerpt", "problem", "advice"} & attributes.keys():
        attributes[name] = shown(attributes[name])
    args = [shown(str(each)) for each in error.args]
    return {"type": type(error).__name__, "args": args, **converter.unstructure(attributes)}


def _redacted(value: Any) -> Any:
    """Return texts of the service or of people without phone numbers and secrets. Other ids stay as they are."""
    if isinstance(value, Mapping):
        return {name: _redacted(inside) for name, inside in value.items()}
    return shown_note(value) if isinstance(value, str) else value


def _write_time(value: datetime) -> str:
    return in_utc(value).isoformat().replace("+00:00", "Z")


def _refuse_secret(_: Secret) -> None:
    raise refuse("data", "without secrets: pass the text itself, by reveal(), where it must travel")


def _make_writer(*, mask: bool) -> DataConverter:
    writer = DataConverter(unstruct_collection_overrides={Sequence: list})

    def write_object(cl: type[T], writer: cattrs.Converter) -> Callable[[T], dict[str, Any]]:
        overrides: dict[str, Any] = {}
        for each in _fields(cl):
            hook = None
            if mask and each.repr is mask_phone_number:
                hook = mask_phone_number
            elif mask and each.name in _TEXTS and each.type in {str, str | None} | {Mapping[str, str]}:
                hook = None if each.metadata.get("is_ours") else _redacted
            elif mask:
                hook = _SHOWN.get(each.repr)  # of an optional one, None is left out
            is_omitted = each.name.startswith("_") or each.type is Secret
            is_optional = each.default is None or each.default == () or isinstance(each.default, attrs.Factory)  # type: ignore[arg-type]
            overrides[each.name] = override(omit=is_omitted, omit_if_default=is_optional, unstruct_hook=hook)
        return make_dict_unstructure_fn(cl, writer, **overrides)

    def write_mapping(_: Any, writer: cattrs.Converter) -> Callable[[Mapping[Any, Any]], dict[str, Any]]:
        return lambda value: {str(name): writer.unstructure(inside) for name, inside in value.items()}

    def write_error(_: Any, writer: cattrs.Converter) -> Callable[[MobileMoneyError], dict[str, Any]]:
        return lambda error: _write_error(error, writer, _redacted if mask else str)

    writer.register_unstructure_hook_factory(attrs.has, write_object)
    writer.register_unstructure_hook_factory(_is_mapping, write_mapping)
    # Plain texts, of the string enums too: a hook for a class serves its subclasses.
    writer.register_unstructure_hook(str, str)
    if mask:
        writer.register_unstructure_hook(OpenEnum, lambda value: value.value if value.is_known else shown_text(value))
    # Not `str`: 0.0000001 would be read no more, as 1E-7.
    writer.register_unstructure_hook(Decimal, lambda value: f"{value:f}")
    writer.register_unstructure_hook(date, date.isoformat)
    writer.register_unstructure_hook(datetime, _write_time)
    writer.register_unstructure_hook(Secret, _refuse_secret)
    writer.register_unstructure_hook_factory(_is_error, write_error)
    return writer


def _answer_hook(cl: Any, field: attrs.Attribute[Any], converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return the hook that reads one field of an answer."""
    is_core = field.default is attrs.NOTHING and field.name not in ANSWERS[cl].otherwise
    # A side field's hook takes null itself: cattrs would look for the hook of `X` in each value of `X | None`.
    kind = field.type if is_core or not isinstance(field.type, UnionType) else get_args(field.type)[0]
    is_identifier = field.name in _IDENTIFIERS and kind is str
    read: Any = _read_identifier if is_identifier else converter.get_structure_hook(kind)
    return read if is_core else _side_field(cl, field, kind, read)


def _add_readers(made: DataConverter, *, is_answer: bool) -> DataConverter:
    def read_object(cl: type[T], converter: cattrs.Converter) -> Callable[[Any, Any], T]:
        # cattrs itself takes anything that can be indexed for an object, and "" and {} for an empty array.
        overrides: dict[str, Any] = {}
        for each in _fields(cl):
            if each.name.startswith("_"):
                overrides[each.name] = override(omit=True)
            elif is_answer and cl in ANSWERS:
                overrides[each.name] = override(struct_hook=_answer_hook(cl, each, converter))
            elif each.repr is mask_phone_number and not is_answer:
                overrides[each.name] = override(struct_hook=_only(str, "expected str", _read_whole_number))
        read = make_dict_structure_fn(cl, converter, **overrides)
        if is_answer and cl in ANSWERS:
            missing = dict.fromkeys(ANSWERS[cl].shown)
            return _only(Mapping, "expected an object", lambda value, _: read({**missing, **value}, cl))
        return _only(Mapping, "expected an object", read)

    made.register_structure_hook_factory(attrs.has, read_object)
    made.register_structure_hook_factory(_is_array, _read_array)
    made.register_structure_hook_factory(_is_mapping, _read_mapping)
    made.register_structure_hook_factory(_is_error, _read_error)
    # A hook for a class serves its subclasses: the string enums come to `str` too, so it calls their class.
    read_text = _read_encodable if is_answer else lambda value, cl: cl(value)
    made.register_structure_hook(str, _only(str, "expected str", read_text))
    made.register_structure_hook(int, _read_int)
    made.register_structure_hook(float, _read_float)
    made.register_structure_hook(bool, _only(bool, "expected bool", lambda value, _: value))
    made.register_structure_hook(Decimal, _read_decimal)
    made.register_structure_hook(date, _only(str, "expected an ISO 8601 date", _read_date))
    made.register_structure_hook(datetime, _only(str, "expected an ISO 8601 timestamp", _read_datetime))
    made.register_structure_hook(Secret, _only(str, "expected str", lambda value, _: Secret(value)))
    return made


converter: DataConverter = _add_readers(_make_writer(mask=False), is_answer=False)
"""A `cattrs.Converter` of all values of this library.

``converter.unstructure(value)`` is plain JSON data in the contract's spelling, and ``converter.structure(data,
Transaction)`` gives an equal value back. ``list[Transaction]``, ``MobileMoneyError`` and attrs classes of your own are
types for it too. Hooks of your own belong to a ``converter.copy()``.
"""

masked: DataConverter = _make_writer(mask=True)
"""Writes values with masked phone numbers and redacted texts; reads nothing."""

answers: DataConverter = _add_readers(DataConverter(), is_answer=True)
"""Reads answers of the service, which may mask phone numbers too, and what the store keeps of them; writes nothing."""


def field_reader(cl: Any, name: str) -> Callable[[Any], Any]:
    """Return a function that reads one field of an answer as `answers` does, or raises `ValueError`."""
    field = next(each for each in _fields(cl) if each.name == name)
    hook = _answer_hook(cl, field, answers)
    return lambda value: hook(value, field.type)
