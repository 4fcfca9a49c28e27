"""Output of the commands: escaped text, JSON, tables, progress on a terminal.

Ids, references, keys, notes and reasons are other people's text: none of it is read as markup or as a terminal command.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from mobilemoney_async.cli.failures import say, silence
from mobilemoney_async.cli.tables import Column, Table, whole
from mobilemoney_async.text import mask_phone_number, shown_note, visible
from mobilemoney_async.values import Secret

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

T = TypeVar("T")

# Programs read piped output by lines: wide enough that hardly any line is folded.
_PIPED_WIDTH = 10_000
# Words with which a command begins.
_COMMAND = "mobilemoney "


def literal(text: str) -> Text:
    """Return a text for a table, without markup and terminal commands."""
    from rich.text import Text

    return Text(visible(text))


def command(line: str) -> Text:
    """Return a command line for the user to copy: on a line of its own, however narrow the terminal is."""
    return whole(visible(f"  {line}"))


def sentence(text: str) -> Text:
    """Return a text as `literal` does; one that holds a command of ours is not wrapped."""
    return whole(visible(text)) if _COMMAND in text else literal(text)


def phone(phone_number: str, *, unmasked: bool) -> str:
    """Return a phone number for output: masked, unless the user asked for whole numbers."""
    return visible(phone_number) if unmasked else mask_phone_number(phone_number)


def said(text: str | None, *, unmasked: bool) -> str:
    """Return a text of someone or of the service for output: redacted, unless the user asked for whole numbers.

    A mere id stays as it is, as in masked JSON.
    """
    return (text or "") if unmasked else shown_note(text or "")


def mask_email(address: str) -> str:
    """Return an e-mail address for output: ``m…@example.com``."""
    name, at, host = address.rpartition("@")
    return visible(f"{name[:1]}…{at}{host}") if at else "…"


def money(amount: Decimal | None) -> str:
    """Return an amount for output: ``15,000 TZS``, or ``? TZS`` for one that the service does not show."""
    return "? TZS" if amount is None else f"{amount:,f} TZS"


def counted(number: int, noun: str) -> str:
    """Return a number of things for output: ``1 payment``, ``1,200 payments``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def moment(at: datetime | None) -> str:
    """Return a UTC time to the second, or nothing."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def plain(value: Any, *, unmasked: bool) -> Any:
    """Return a value as JSON data: money and times as text, phone numbers masked, without secrets and empty fields."""
    from mobilemoney_async.contract.converter import converter, masked

    if isinstance(value, dict):
        return {
            name: phone(str(inside), unmasked=unmasked) if name == "phone_number" else plain(inside, unmasked=unmasked)
            for name, inside in value.items()
            if not isinstance(inside, Secret) and inside is not None and inside != ()
        }
    if isinstance(value, tuple | list):
        return [plain(each, unmasked=unmasked) for each in value]
    return (converter if unmasked else masked).unstructure(value)


def print_json(value: Any) -> None:
    """Print JSON data, indented, in ASCII for any terminal, as long as someone reads it."""
    with ignoring_closed_pipe():
        print(json.dumps(value, indent=2), flush=True)


def print_json_line(value: Any) -> None:
    """Print JSON data on one line, at once, in ASCII: for programs that read line by line."""
    print(json.dumps(value), flush=True)


@contextmanager
def ignoring_closed_pipe(said: str = "") -> Iterator[None]:
    """Go on without output once the reader of a pipe has left: the exit code still reports the result.

    With a text, go on after other failures to write, too (a full disk): standard error then has the failure and it.
    """
    try:
        yield
    except OSError as exc:
        silence(sys.stdout)
        if not isinstance(exc, BrokenPipeError):
            if not said:
                raise
            say("", f"the output cannot be written: {exc.strerror}; {said}")


TYPE: Column[Any] = Column("type", lambda each: str(each.type))
TZS: Column[Any] = Column("TZS", lambda each: f"{each.amount:,f}", is_number=True)


def payment_columns(*, unmasked: bool) -> tuple[Column[Any], ...]:
    """Return the columns for type, amount and phone number of payments or transactions."""
    return TYPE, TZS, Column("phone", lambda each: phone(each.phone_number, unmasked=unmasked))


def time_column(name: str, attribute: str) -> Column[Any]:
    """Return the column of a UTC time, which may be None."""
    return Column(name, lambda each: moment(getattr(each, attribute)), min_width=10)


def count_column(name: str) -> Column[Any]:
    """Return the column of a number that the rows have under its name."""
    return Column(name, lambda each: f"{getattr(each, name):,}", is_number=True)


def new_table(columns: Sequence[Column[T]], rows: Iterable[T], *, has_header: bool = True) -> Table:
    """Return a table of rows."""
    return table_of(columns, ([each.cell(row) for each in columns] for row in rows), has_header=has_header)


def print_table(columns: Sequence[Column[T]], rows: Iterable[T]) -> None:
    """Print a table of rows."""
    show(new_table(columns, rows))


def print_found(
    command: str,
    found: Sequence[T],
    columns: Sequence[Column[T]],
    nothing: str,
    *,
    as_json: bool,
    unmasked: bool = False,
) -> None:
    """Print rows as JSON or as a table; without any, the command says on standard error that there is nothing."""
    if as_json:
        print_json(plain(found, unmasked=unmasked))
    elif found:
        print_table(columns, found)
    else:
        say(command, nothing)


def table_of(columns: Sequence[Column[Any]], rows: Iterable[Sequence[str]], *, has_header: bool = True) -> Table:
    """Return a table of cells."""
    return Table(columns, [[*map(visible, row)] for row in rows], has_header)


def show(*things: RenderableType) -> None:
    """Print tables and texts without trailing blanks; piped, without colours and on wide lines."""
    from rich.console import Console, Group

    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(highlight=False, width=_PIPED_WIDTH if is_piped else None)
    with console.capture() as shown:
        # In a group: `print` would join texts into one that is wrapped, commands included.
        console.print(Group(*things), crop=False)
    with ignoring_closed_pipe():
        print("\n".join(line.rstrip() for line in shown.get().splitlines()), flush=True)


def show_facts(facts: Mapping[str, str | None]) -> None:
    """Print names and values as two columns, without the empty values. No word of them is broken."""
    shown = [(name, value) for name, value in facts.items() if value]
    width = max((len(name) for name, _ in shown), default=0)
    columns: tuple[Column[tuple[str, str]], ...] = (
        Column("", lambda fact: fact[0].ljust(width)),
        Column("", lambda fact: fact[1], min_width=1),
    )
    # Each in a table of its own: a digest that does not fit beside its name stands below it, and others stay. A fact
    # with a command is one line: a pasted command must be whole.
    show(
        *(
            sentence(f"{name.ljust(width)}  {value}")
            if _COMMAND in value
            else new_table(columns, [(name, value)], has_header=False)
            for name, value in shown
        )
    )


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], object]]:
    """Show a text and the seconds so far on standard error, if that is a terminal.

    Yields:
        A function that replaces the text.
    """
    if not sys.stderr.isatty():
        yield len  # no terminal, nothing to show
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    # Only the moving line is on standard error: other output goes to its own stream.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(visible(text), total=None)
        yield lambda text: progress.update(task, description=visible(text), refresh=True)
