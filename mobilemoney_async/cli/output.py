"""Output of the commands: escaped text, JSON, tables, progress on a terminal.

Ids, references, keys, notes and reasons are other people's text: none of it is read as markup or as a terminal command.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs

from mobilemoney_async.values import Secret, mask_phone_number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

# Programs read piped output by lines: wide enough that hardly any line is folded.
_PIPED_WIDTH = 200


def visible(text: str) -> str:
    """Return a text with unprintable characters escaped: it stays on its line and commands no terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def literal(text: str) -> Text:
    """Return a text for a table, without markup and terminal commands."""
    from rich.text import Text

    return Text(visible(text))


def phone(phone_number: str, *, unmasked: bool) -> str:
    """Return a phone number for output: masked, unless the user asked for whole numbers."""
    return visible(phone_number) if unmasked else mask_phone_number(phone_number)


def mask_email(address: str) -> str:
    """Return an e-mail address for output: ``m…@example.com``."""
    name, at, host = address.rpartition("@")
    return visible(f"{name[:1]}…{at}{host}") if at else "…"


def money(amount: Decimal) -> str:
    """Return an amount for output: ``15,000 TZS``."""
    return f"{amount:,f} TZS"


def moment(at: datetime | None) -> str:
    """Return a UTC time to the second, or nothing."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def plain(value: Any, *, unmasked: bool) -> Any:
    """Return a value as JSON data: money and times as text, phone numbers masked, without secrets and empty fields.

    Args:
        value: A value of the library (attrs), or plain JSON data.
        unmasked: Whether to show whole phone numbers.
    """
    if attrs.has(type(value)):
        value = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {
            name: _plain_field(name, inside, unmasked=unmasked)
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


def _plain_field(name: str, value: Any, *, unmasked: bool) -> Any:
    if name == "phone_number" and isinstance(value, str):
        return phone(value, unmasked=unmasked)
    return plain(value, unmasked=unmasked)


def print_json(value: Any) -> None:
    """Print JSON data, indented, in ASCII for any terminal."""
    print(json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    """Print JSON data on one line, at once, in ASCII: for programs that read line by line."""
    print(json.dumps(value), flush=True)


def new_table(**options: Any) -> Table:
    """Return a table without lines, whose columns are one blank apart."""
    from rich.table import Table

    return Table(**{"box": None, "pad_edge": False, "padding": (0, 1), **options})


def show(*things: RenderableType) -> None:
    """Print tables and texts without trailing blanks; piped, without colours and on wide lines."""
    from rich.console import Console

    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(highlight=False, width=_PIPED_WIDTH if is_piped else None)
    with console.capture() as shown:
        console.print(*things, sep="\n")
    print("\n".join(line.rstrip() for line in shown.get().splitlines()), flush=True)


def show_facts(facts: Mapping[str, str]) -> None:
    """Print names and values as two columns."""
    table = new_table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(literal(name), literal(value))
    show(table)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a text and the seconds so far on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with _progress(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()) as progress:
        progress.add_task(visible(text), total=None)
        yield


@contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """Show on standard error how much of a list has been read.

    Yields:
        A function that takes the number of transactions read so far, and of all.
    """
    from rich.progress import BarColumn, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} read"), BarColumn()
    with _progress(*columns) as progress:
        task = progress.add_task("", total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=max(done, total), visible=done < total, refresh=True)

        yield report


def _progress(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    # Only the moving line is on standard error: other output goes to its own stream.
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
