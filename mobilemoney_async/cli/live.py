"""What moves on a terminal: a line while something is waited for, a table of what is followed, progress of a walk.

Nothing here is used where the output is piped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from mobilemoney_async.cli.board import NEWS_IN_WORDS, Board, Change
from mobilemoney_async.cli.text import visible
from mobilemoney_async.cli.transactions_report import short_row, short_table

# Lines that the table leaves free, for its header, the summary and the prompt.
_SPARE_LINES = 5


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error, where that is a terminal, what is waited for and since when.

    Yields:
        A function that shows another text.
    """
    if not sys.stderr.isatty():
        yield _show_nothing
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    # Only what moves is on standard error: what is printed meanwhile goes where it belongs.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(visible(text), total=None)
        yield lambda new: progress.update(task, description=visible(new))


@contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """Show on standard error how far a walk over the list is.

    Yields:
        A function that takes how many transactions were read, of how many.
    """
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} read"), BarColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("", total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=max(done, total), visible=done < total, refresh=True)

        yield report


class LiveTable:
    """A table of the payments on a board that changes as they do; on leaving, it stays as it was last.

    Args:
        board: What is followed.
        unmasked: Whether phone numbers are shown whole.
    """

    def __init__(self, board: Board, *, unmasked: bool) -> None:
        self._board = board
        self._unmasked = unmasked
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()
        self._console.print(self._table(len(self._board.latest)))

    def _render(self) -> RenderableType:
        room = max(1, self._console.height - _SPARE_LINES)
        return Group(self._table(room), self._summary(room))

    def _table(self, room: int) -> RenderableType:
        table = short_table()
        for transaction_id, change in self._chosen(room):
            if change is None or change.transaction is None:
                said = "not seen yet" if change is None else NEWS_IN_WORDS[change.news]
                table.add_row(Text(visible(transaction_id)), "", "", "", said)
            else:
                table.add_row(*short_row(change.transaction, unmasked=self._unmasked))
        return table

    def _chosen(self, room: int) -> list[tuple[str, Change | None]]:
        """Return what there is room for: all in their order, or else what is open first."""
        latest = self._board.latest
        if len(latest) <= room:
            return list(latest.items())
        is_open = set(self._board.open)
        return sorted(latest.items(), key=lambda row: row[0] not in is_open)[:room]

    def _summary(self, room: int) -> Text:
        count, left = len(self._board.latest), len(self._board.open)
        hidden = f", {count - room} rows hidden" if count > room else ""
        return Text(f"\n{count - left} of {count} ended{hidden}; Ctrl-C ends the watching, not the payments")


def _show_nothing(text: str) -> None:
    """Show nothing."""
