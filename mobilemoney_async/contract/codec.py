"""Codec between bytes and values.

msgspec decodes straight into the attrs classes. Bodies that it refuses go through the converter, which takes more
timestamps and names the place that does not fit. No scalar is coerced, no number passes through a float.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import attrs
import msgspec

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, refuse

T = TypeVar("T")

JSONObject = dict[str, Any]
"""A JSON object of an undocumented shape; its fractional numbers are `Decimal`."""


def _decode_by_converter(body: bytes, cl: type[T], *, is_own: bool = False) -> T:
    # Here, since answers that need it are rare and cattrs takes a third of the import.
    from mobilemoney_async.contract.converter import answers

    return answers.read(parse_json(body, is_own=True) if is_own else parse_page(body), cl)


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

# Two patterns, each of which `re` looks for by the text that it begins with: 60 µs for a page of 100 instead of 250.
_ODD_MONEY = [
    re.compile(name + rb'"\s*+:(?!\s*+"[0-9]{1,16}+(?:\.[0-9]{1,3}+)?"|\s*+null)') for name in (b"amount", b"_fee")
]
_ESCAPED = re.compile(rb"\\u00[5-7]")  # the name of a field may be written so


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
            _check_size(body)
        if not may_hold_money or not _has_odd_money(body):
            with suppress(*_UNREADABLE):
                return decoder().decode(body)
        return _decode_by_converter(body, cl, is_own=is_own)

    return read


def parse_json(body: bytes, *, is_own: bool = False) -> Any:
    """Return a body as plain Python values, fractions as `Decimal`.

    Raises:
        DecodeError: It is not JSON.
    """
    if not is_own:
        _check_size(body)
    with suppress(*_UNREADABLE):
        return _PLAIN.decode(body)
    # Outside: the decoder's error may hold the body.
    raise DecodeError("not JSON")


def parse_page(body: bytes) -> Any:
    """Return a body as plain Python values for the converter, which is slow.

    Raises:
        DecodeError: It is not JSON, or it has more rows than any page.
    """
    plain = parse_json(body)
    rows = plain.get("transactions") if isinstance(plain, dict) else None
    if isinstance(rows, list) and len(rows) > _MOST_ROWS:
        del plain, rows  # the frame would keep them for as long as the error lives
        raise DecodeError(f"expected at most {_MOST_ROWS} rows", "$.transactions")
    return plain


def _check_size(body: bytes) -> None:
    """Refuse a body of more values than any answer of the contract has: each may take a hundred times its text."""
    if len(body) > _SMALL and sum(map(body.count, (b"{", b"[", b","))) > _MOST_VALUES:
        raise DecodeError("too many values")


def _has_odd_money(body: bytes) -> bool:
    """Return whether a field of money may hold more than digits, all of which `Decimal` would read."""
    return any(odd.search(body) for odd in _ODD_MONEY) or (b"\\" in body and _ESCAPED.search(body) is not None)


class Content(bytes):
    """A request body that does not show itself: it may hold a password or a phone number."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


def encode(argument: str, body: dict[str, Any]) -> Content:
    """Return a request body of plain JSON values and secrets as JSON.

    Raises:
        InvalidRequest: It holds a float, which may be money, or a value that JSON does not have; names `argument`.
    """
    _check_plain(argument, body)
    try:
        return Content(msgspec.json.encode(body, enc_hook=_reveal))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError, UnicodeEncodeError) as exc:
        raise refuse(argument, "plain JSON values with str keys") from exc


def _reveal(value: Any) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError("not JSON")


def _check_plain(argument: str, value: Any, depth: int = 0) -> None:
    """Refuse floats, and values that JSON does not have, also those that msgspec would convert."""
    if isinstance(value, float):
        raise InvalidRequest(
            f"{argument} must not hold a float, since it may be money: send a str or an int", argument=argument
        )
    if depth > 64:
        raise refuse(argument, "plain JSON values, nested 64 deep at most")
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    elif value is None or isinstance(value, str | int | Decimal | Secret):
        return
    else:
        raise refuse(argument, "plain JSON values with str keys")
    for item in inside:
        _check_plain(argument, item, depth + 1)
