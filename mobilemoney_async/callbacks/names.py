"""Names of payments in a callback's body. Pure, total over any bytes, and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Final
from urllib.parse import parse_qsl

from mobilemoney_async.values import can_encode

MAX_BODY: Final[int] = 65_536
"""Size of a body that is read, bytes."""
MAX_CANDIDATES: Final[int] = 100
"""Number of texts of one body that are taken for names of payments."""

# A name is as long as an idempotency key at most.
_NAME_LENGTH = 200
# The cost of one body: values looked at, JSON or forms within each other, fields of a form.
_NODES = 5_000
_DECODINGS = 3
_FIELDS = 200

_WORD = re.compile(r"[\w][\w.:\-]{2,198}[\w]")
_NAMES_A_PAYMENT = re.compile(r"id|ref|key|order|transaction|txn|payment", re.IGNORECASE)


def candidates(body: bytes) -> tuple[str, ...]:
    """Return the texts of a body that may be the names of payments, the likeliest first.

    Whole values of JSON and of forms, also within each other: those under fields such as ``id`` or ``reference``, then
    the others, then the words of the text.

    Args:
        body: Anything. Only its first `MAX_BODY` bytes are looked at.

    Returns:
        At most `MAX_CANDIDATES` different ones, of 1 to 200 characters each, all of which can be encoded.
    """
    text = body[:MAX_BODY].decode("utf-8-sig", errors="replace")
    values = list(_values(text))
    likely = {field for field in {field for field, _ in values} if _NAMES_A_PAYMENT.search(field, 0, _NAME_LENGTH)}
    values.sort(key=lambda found: found[0] not in likely)
    words = (match[0] for match in islice(_WORD.finditer(text), 2 * MAX_CANDIDATES))
    names = (name.strip() for name in chain((value for _, value in values), words))
    return tuple(islice(dict.fromkeys(filter(_is_usable, names)), MAX_CANDIDATES))


def _is_usable(name: str) -> bool:
    return 0 < len(name) <= _NAME_LENGTH and "\x00" not in name and can_encode(name)


def _values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the nearest field name (or "") and the value of each text in JSON or a form, `_NODES` at most."""
    todo: list[tuple[str, object, int]] = [("", text, _DECODINGS)]
    for _ in range(_NODES):
        if not todo:
            return
        field, value, decodings = todo.pop()
        match value:
            case dict():
                todo.extend((name, each, decodings) for name, each in islice(reversed(value.items()), _NODES))
            case list():
                todo.extend((field, each, decodings) for each in islice(reversed(value), _NODES))
            case str():
                yield field, value  # also where it happens to look like a form
                if decodings and (inner := _decode(value.strip())):
                    todo.append((field, inner, decodings - 1))


def _decode(text: str) -> object:
    """Return the JSON value or the form that a text holds, or None."""
    with suppress(ValueError, RecursionError):
        if text.startswith(("{", "[", '"')):
            # Numbers as they are written: an id may be one, and turning a long one into an int takes long.
            return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    with suppress(ValueError):
        if "=" in text and not any(each.isspace() for each in text):
            return dict(parse_qsl(text, max_num_fields=_FIELDS))
    return None
