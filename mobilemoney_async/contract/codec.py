"""Codec between bytes and values.

msgspec decodes straight into the attrs classes. Bodies that it refuses go through the converter, which takes more
timestamps, reads side fields that do not fit as None, and names the place of a core field that does not fit; of a page
only the fields that msgspec refuses, where that is enough. No scalar is coerced, no number passes through a float.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import attrs
import msgspec

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, TransactionAnswer
from mobilemoney_async.contract.plain import ANSWERS, DecodeError, OddNumber, note
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, refuse

T = TypeVar("T")

JSONObject = dict[str, Any]
"""A JSON object of an undocumented shape; its fractional numbers are `Decimal`."""


def _decode_by_converter(body: bytes, cl: type[T], *, is_own: bool = False) -> T:
    # Here, since answers that need it are rare and cattrs takes a third of the import.
    from mobilemoney_async.contract.converter import answers

    plain = parse_page(body) if attrs.has(cl) and not is_own else parse_json(body, is_own=is_own)
    return answers.read(plain, cl)


def _read_field_by_field(body: bytes) -> Any:
    """Return a page of which msgspec refuses some fields in many rows, or None: four times as fast as the converter."""
    with suppress(DecodeError):
        plain = parse_json(body)
        if not _is_long(plain):
            from mobilemoney_async.contract.rows import repair_page

            if (read := repair_page(plain)) is not None:
                page, repaired = read
                _note_missing(page, repaired)
                return page
    return None


def _make_custom(cl: type[Any], value: Any) -> Any:
    if cl is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError("expected str")  # by which msgspec refuses the body


def _read_fraction(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:
        raise ValueError("expected a number with a smaller exponent") from None  # as above


_PLAIN = msgspec.json.Decoder(float_hook=_read_fraction)
# A page of 100 transactions has 50 kB, and 2,000 values. Some lists show more rows, such as those that they pin.
_SMALL, _MOST_VALUES, _MOST_ROWS = 200_000, 20_000, 2 * PAGE_SIZE_MAX
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Two patterns, each of which `re` looks for by the text that it begins with: 60 µs for a page of 100 instead of 250.
_ODD_MONEY = [
    re.compile(name + rb'"\s*+:(?!\s*+"[0-9]{1,16}+(?:\.[0-9]{1,3}+)?"|\s*+null)') for name in (b"amount", b"_fee")
]
# The name of a field may be written so, and a NUL can be.
_ESCAPED = re.compile(rb"\\u00(?:00|[5-7])")
_EMPTY_TEXT = b'""'


def reader(cl: type[T], *, is_own: bool = False) -> Callable[[bytes], T]:
    """Return a function that reads a body into a class, or raises `DecodeError`.

    With `is_own` it reads texts of our own, which may be longer than the answers that they were made of.
    """

    @functools.cache  # made when it is first needed: few programs read every kind of answer
    def decoder() -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(cl, dec_hook=_make_custom, float_hook=_read_fraction)

    may_hold_money = attrs.has(cl)

    def read(body: bytes) -> T:
        if not is_own:
            body = body.removeprefix(_BYTE_ORDER_MARK)
            _check_size(body)
        if not may_hold_money or not _has_odd_text(body, is_own=is_own):
            with suppress(*_UNREADABLE):
                answer = decoder().decode(body)
                _note_missing(answer)
                return answer
            page: T | None = _read_field_by_field(body) if cl is PageAnswer and not is_own else None
            if page is not None:
                return page
        return _decode_by_converter(body, cl, is_own=is_own)

    return read


def _note_missing(answer: object, noted: Collection[str] = ()) -> None:
    """Note the fields that the transactions of an answer lack. For msgspec, which takes null without a word."""
    match answer:
        case PageAnswer(transactions=rows):
            pass
        case TransactionAnswer(transaction=row):
            rows = (row,)
        case _:
            return
    for row in rows:
        if row.created_at is None or row.reference is None or row.network is None:
            _note_none(row, noted)
        fees, settled = row.fees, row.settlement
        if fees and (fees.total_fee is None or fees.merchant_fee is None or fees.customer_fee is None):
            _note_none(fees, noted)
        if settled and (settled.settled_at is None or settled.net_amount is None or settled.settlement_batch is None):
            _note_none(settled, noted)


def _note_none(value: object, noted: Collection[str]) -> None:
    for name in ANSWERS[type(value)].shown:
        if name not in noted and getattr(value, name) is None:
            note(type(value).__name__, name, None)


def parse_json(body: bytes, *, is_own: bool = False) -> Any:
    """Return a body as plain Python values, fractions as `Decimal`.

    Raises:
        DecodeError: It is not JSON.
    """
    if not is_own:
        body = body.removeprefix(_BYTE_ORDER_MARK)
        _check_size(body)
    with suppress(*_UNREADABLE):
        return _PLAIN.decode(body)
    # Outside: the decoder's error may hold the body.
    raise DecodeError("not JSON")


def _parse_odd_json(body: bytes) -> Any:
    """Return a body that msgspec refuses, such as for a lone surrogate or for the size of a number, as plain values.

    Raises:
        DecodeError: It is not JSON.
    """
    _check_size(body)
    with suppress(ValueError, RecursionError):
        return json.loads(body.decode(), parse_int=_read_integer, parse_float=_read_any, parse_constant=_refuse)
    raise DecodeError("not JSON")


def _read_integer(digits: str) -> int | OddNumber:
    try:
        return int(digits)
    except ValueError:  # more than 4,300 digits
        return OddNumber(digits)


def _read_any(digits: str) -> Decimal | OddNumber:
    try:
        return Decimal(digits)
    except InvalidOperation:
        return OddNumber(digits)


def _refuse(_: str) -> None:
    raise ValueError("not JSON")


def parse_page(body: bytes) -> Any:
    """Return a body as plain Python values for the converter, which is slow.

    Raises:
        DecodeError: It is not JSON, or it has more rows than any page.
    """
    try:
        plain = parse_json(body)
    except DecodeError:
        plain = _parse_odd_json(body.removeprefix(_BYTE_ORDER_MARK))
    if _is_long(plain):
        del plain  # the frame would keep it for as long as the error lives
        raise DecodeError(f"expected at most {_MOST_ROWS} rows", "$.transactions")
    return plain


def _is_long(plain: Any) -> bool:
    rows = plain.get("transactions") if isinstance(plain, dict) else None
    return isinstance(rows, list) and len(rows) > _MOST_ROWS


def _check_size(body: bytes) -> None:
    """Refuse a body of more values than any answer of the contract has: each may take a hundred times its text."""
    if len(body) > _SMALL and sum(map(body.count, (b"{", b"[", b","))) > _MOST_VALUES:
        raise DecodeError("too many values")


def _has_odd_text(body: bytes, *, is_own: bool) -> bool:
    """Return whether a body may hold a text that msgspec takes and the converter refuses.

    It is an amount of more than digits, all of which `Decimal` would read; or a side field with an empty text or a NUL.
    """
    if not is_own and body.rfind(_EMPTY_TEXT) >= 0:  # twice as fast as `in`
        return True
    return any(odd.search(body) for odd in _ODD_MONEY) or (b"\\" in body and _ESCAPED.search(body) is not None)


class Fields:
    """Fields of a request that show nothing of themselves, not even inside mappings.

    Args:
        fields: A mapping, or anything that a caller gave for one.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Any) -> None:
        self._fields = fields

    @classmethod
    def of(cls, fields: Any) -> Fields:
        """Return fields as they are, or as `Fields`."""
        return fields if isinstance(fields, Fields) else cls(fields)

    def reveal(self) -> Any:
        """Return the mapping. Keep it out of variables."""
        return self._fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]


class Content(bytes):
    """A request body that does not show itself: it may hold a password or a phone number."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


def encode(argument: str, body: dict[str, Any] | Fields) -> Content:
    """Return a request body of plain JSON values and secrets as JSON.

    Raises:
        InvalidRequest: It holds a float, which may be money, or a value that JSON does not have; names `argument`.
    """
    fields = Fields.of(body)
    del body
    refusal = _refusal(argument, fields.reveal())
    if refusal is None:
        with suppress(TypeError, ValueError, RecursionError, msgspec.MsgspecError, UnicodeEncodeError):
            return Content(msgspec.json.encode(fields.reveal(), enc_hook=_reveal))
        refusal = refuse(argument, "plain JSON values with str keys")
    # Only here: no other frame of the error holds a part of the body.
    raise refusal


def _reveal(value: Any) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, str):  # of a class of its own, such as `PhoneNumber`
        return str.__str__(value)
    raise TypeError("not JSON")


def _refusal(argument: str, value: Any, depth: int = 0) -> InvalidRequest | None:
    """Return the error for a float, or for a value that JSON does not have, also one that msgspec would convert."""
    if isinstance(value, float):
        return InvalidRequest(
            f"{argument} must not hold a float, since it may be money: send a str or an int", argument=argument
        )
    if isinstance(value, Decimal) and not value.is_finite():
        return refuse(argument, "plain JSON values, which NaN and Infinity are not")
    if depth > 64:
        return refuse(argument, "plain JSON values, nested 64 deep at most")
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    elif value is None or isinstance(value, str | int | Decimal | Secret):
        return None
    else:
        return refuse(argument, "plain JSON values with str keys")
    refusals = (_refusal(argument, item, depth + 1) for item in inside)
    return next(filter(None, refusals), None)
