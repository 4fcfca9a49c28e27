"""The texts of a callback's body that may be the names of payments. Pure: total over any bytes, and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

from mobilemoney_async.values import can_encode

MAX_BODY: Final[int] = 65_536
"""Bytes of a body that is still read."""
MAX_CANDIDATES: Final[int] = 100
"""How many texts of one body are taken for names of payments."""

# A name is as long as an idempotency key at most.
_NAME_LENGTH = 200
# What reading one body may cost: values looked at, JSON or forms within each other, fields of a form.
_NODES = 5_000
_DECODINGS = 3
_FIELDS = 200

_WORD = re.compile(r"[\w][\w.:\-]{2,198}[\w]")
_NAMES_A_PAYMENT = re.compile(r"id|ref|key|order|transaction|txn|payment", re.IGNORECASE)


def candidates(body: bytes) -> tuple[str, ...]:
    """Return the texts of a body that may be the names of payments, the likeliest first.

    Whole values of JSON and of forms, those under telling field names first, then words of the text. JSON may hold
    JSON, and so may forms.

    Args:
        body: Anything. Only its first `MAX_BODY` bytes are looked at.

    Returns:
        At most `MAX_CANDIDATES` different ones, of 1 to 200 characters each, all of which can be encoded.
    """
    text = body[:MAX_BODY].decode("utf-8-sig", errors="replace")
    likely: list[str] = []
    others: list[str] = []
    for field, value in _values(text):
        (likely if field is not None and _NAMES_A_PAYMENT.search(field) else others).append(value)
    found: dict[str, None] = {}
    for name in (*likely, *others, *(match[0] for match in _first(_WORD.finditer(text), 2 * MAX_CANDIDATES))):
        name = name.strip()  # noqa: PLW2901
        if 0 < len(name) <= _NAME_LENGTH and "\x00" not in name and can_encode(name):
            found[name] = None
            if len(found) == MAX_CANDIDATES:
                break
    return tuple(found)


def _values(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the values in a text with the nearest field name, `_NODES` at most."""
    todo: list[tuple[str | None, object, int]] = [(None, text, _DECODINGS)]
    for _ in range(_NODES):
        if not todo:
            return
        field, value, decodings = todo.pop()
        match value:
            case dict():
                todo.extend((name, each, decodings) for name, each in _first(reversed(value.items()), _NODES))
            case list():
                todo.extend((field, each, decodings) for each in _first(reversed(value), _NODES))
            case str():
                yield field, value  # also where it happens to look like a form
                inner = _decode(value) if decodings else None
                if inner is not None:
                    todo.append((field, inner, decodings - 1))


def _decode(text: str) -> dict[str, Any] | list[Any] | str | None:
    """Return what a text encodes: a JSON value or a form. None where it is plain text."""
    stripped = text.strip()
    if stripped[:1] in {"{", "[", '"'}:
        try:
            # Numbers as they are written: an id may be one, and turning a long one into an int takes long.
            value = json.loads(stripped, parse_int=str, parse_float=str, parse_constant=str)
        except (ValueError, RecursionError):
            pass  # no JSON, though it begins so: perhaps a form, else plain text
        else:
            return value if isinstance(value, dict | list | str) else None
    if "=" in stripped and not any(each.isspace() for each in stripped):
        try:
            return dict(parse_qsl(stripped, max_num_fields=_FIELDS)) or None
        except ValueError:
            return None
    return None


def _first(items: Iterable[Any], number: int) -> Iterator[Any]:
    for item, _ in zip(items, range(number), strict=False):
        yield item
