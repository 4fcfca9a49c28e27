"""Reading what a form of the page sent."""

from collections.abc import Mapping
from contextlib import aclosing
from urllib.parse import parse_qsl

import attrs
from starlette.requests import Request

MAX_BYTES = 20_000
_MAX_FIELDS = 20


@attrs.frozen
class Refused(Exception):
    """What a person asked for cannot be done.

    Args:
        notice: Says why, and what can be done.
        status: HTTP status.
        field: Name of the field that is wrong, None for none.
    """

    notice: str
    status: int = 422
    field: str | None = None


async def read(request: Request) -> Mapping[str, str]:
    """Read the fields of a form; of two with one name the last.

    Raises:
        Refused: The body is too long, or no form that a browser sends without files.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused("Send a form: application/x-www-form-urlencoded.", 415)
    body = b""
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > MAX_BYTES:
                raise Refused(f"A form has at most {MAX_BYTES:,} bytes.", 413)
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as exc:
        raise Refused("This is no form that the page sent.", 400) from exc
    return dict(fields)


def one_of(form: Mapping[str, str], field: str, *choices: str) -> str:
    """Give the value of a field that has a few.

    Raises:
        Refused: It has another, or there is no such field.
    """
    value = form.get(field)
    if value not in choices:
        raise Refused(f"{field} must be one of: {', '.join(choices)}.", field=field)
    return value


def number(form: Mapping[str, str], field: str) -> float:
    """Give the value of a field that is a number.

    Raises:
        Refused: It is none.
    """
    try:
        return float(form.get(field, ""))
    except ValueError:
        raise Refused(f"{field} must be a number.", field=field) from None
