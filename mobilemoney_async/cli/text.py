"""What is printed: anybody's text, which is never taken for markup or for a terminal's commands, and JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs

from mobilemoney_async.values import Secret, mask_phone_number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

# What is piped is for programs that read lines: wide enough that hardly anything is folded.
_PIPED_WIDTH = 200


def visible(text: str) -> str:
    """Return a text with whatever is not printable escaped: it commands no terminal, and stays on its line."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def literal(text: str) -> Text:
    """Return a text for a table, which rich does not take for markup and a terminal not for commands."""
    from rich.text import Text

    return Text(visible(text))


def phone(phone_number: str, *, unmasked: bool) -> str:
    """Return a phone number as it is shown: masked, unless the person asked for it whole."""
    return visible(phone_number) if unmasked else mask_phone_number(phone_number)


def mask_email(address: str) -> str:
    """Return an e-mail address as it is shown: ``m…@example.com``."""
    name, at, host = address.rpartition("@")
    return visible(f"{name[:1]}…{at}{host}") if at else "…"


def plain(value: Any, *, unmasked: bool) -> Any:
    """Return a value as JSON: money and times as text, phone numbers masked, secrets and what is not known left out.

    Args:
        value: A value of the library (attrs), or plain JSON.
        unmasked: Whether phone numbers are shown whole.
    """
    if attrs.has(type(value)):
        return plain({field.name: getattr(value, field.name) for field in attrs.fields(type(value))}, unmasked=unmasked)
    if isinstance(value, dict):
        return {
            name: phone(inside, unmasked=unmasked)
            if name == "phone_number" and isinstance(inside, str)
            else plain(inside, unmasked=unmasked)
            for name, inside in value.items()
            if not isinstance(inside, Secret) and inside is not None and inside != ()
        }
    if isinstance(value, tuple | list):
        return [plain(each, unmasked=unmasked) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value) if isinstance(value, str) else value


def print_json(value: Any) -> None:
    """Print plain JSON, indented, in ASCII: whatever the terminal is."""
    print(json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    """Print plain JSON on one line, at once, in ASCII: for programs that read line by line."""
    print(json.dumps(value), flush=True)


def show(*things: RenderableType) -> None:
    """Print tables and texts of rich's, without trailing blanks; piped, without colours and on wide lines."""
    from rich.console import Console

    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(highlight=False, width=_PIPED_WIDTH if is_piped else None)
    with console.capture() as shown:
        console.print(*things, sep="\n")
    print("\n".join(line.rstrip() for line in shown.get().splitlines()), flush=True)
