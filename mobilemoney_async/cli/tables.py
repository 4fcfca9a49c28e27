"""Tables for terminals of any width: no id, amount or word is ever broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

# rich is imported where it is used: most commands print no table.
if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as Grid
    from rich.text import Text

T = TypeVar("T")

_GAP = 2  # blanks between two columns


@attrs.frozen
class Column(Generic[T]):
    """Column of a table, with the function that returns its cell of a row.

    Attributes:
        min_width: Width to which a narrow terminal may fold longer cells, between words, characters; None for a column
            that is not folded.
        is_id: Whether the cells are ids or keys, which users copy: they are never folded. Where the table is too wide
            for the terminal, they have a line of their own above the other cells.
    """

    name: str
    cell: Callable[[T], str]
    min_width: int | None = None
    is_number: bool = attrs.field(default=False, kw_only=True)
    is_id: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen(eq=False)
class Table:
    """Table of printable texts, without lines; see `Column` for a narrow terminal.

    Columns that do not fit side by side stand in several lines: ids first, then as many columns in a line as fit.
    """

    columns: Sequence[Column[Any]]
    rows: Sequence[Sequence[str]]
    has_header: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines as rich prints them."""
        from rich.cells import cell_len
        from rich.padding import Padding

        lines = [[each.name for each in self.columns], *self.rows] if self.has_header else self.rows
        widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
        least = [self._least(at, [line[at] for line in lines]) for at in range(len(self.columns))]
        numbers, room = range(len(self.columns)), options.max_width
        if sum(width + _GAP for width in least) - _GAP <= room:
            yield self._grid(lines, numbers, widths, least, room)
            return
        ids = [at for at in numbers if self.columns[at].is_id]
        groups = self._groups([at for at in numbers if at not in ids], least, room - _GAP)
        for line in lines:
            if ids:
                yield whole((" " * _GAP).join(line[at] for at in ids if line[at]))
            for number, group in enumerate(groups):
                indent = _GAP if ids or number else 0
                if not any(line[at] for at in group):
                    continue
                if least[group[0]] > room - _GAP:  # it is the only one of its group
                    # A word is longer than the line: a terminal may fold it, and copies it whole.
                    for part in wrap(line[group[0]], room - _GAP, break_long_words=False, break_on_hyphens=False):
                        yield whole(" " * indent + part)
                else:
                    yield Padding(self._grid([line], group, widths, least, room - _GAP), (0, 0, 0, indent))

    def _least(self, at: int, cells: Sequence[str]) -> int:
        """Return the width to which a column may be folded: its name and each word stay whole."""
        from rich.cells import cell_len

        column, width = self.columns[at], max(map(cell_len, cells))
        if column.min_width is None:
            return width
        words = (cell_len(word) for cell in cells for word in cell.split())
        return min(width, max(column.min_width, cell_len(column.name), *words, 0))

    def _groups(self, numbers: Iterable[int], least: Sequence[int], room: int) -> Sequence[Sequence[int]]:
        """Return columns in groups that fit into one line each."""
        groups: list[list[int]] = []
        for at in numbers:
            if groups and sum(least[each] + _GAP for each in groups[-1]) + least[at] <= room:
                groups[-1].append(at)
            else:
                groups.append([at])
        return groups

    def _grid(
        self,
        lines: Iterable[Sequence[str]],
        numbers: Sequence[int],
        widths: Sequence[int],
        least: Sequence[int],
        room: int,
    ) -> Grid:
        """Return some columns of lines; the widest that may be folded are, until all fit."""
        from rich.table import Table as Grid
        from rich.text import Text

        fitting = {at: widths[at] for at in numbers}
        while sum(fitting.values()) + _GAP * (len(numbers) - 1) > room:
            foldable = [at for at in numbers if fitting[at] > least[at]]
            if not foldable:
                break
            fitting[max(foldable, key=lambda at: fitting[at])] -= 1
        grid = Grid.grid()
        for at, width in fitting.items():
            if at != numbers[0]:
                grid.add_column(width=_GAP)  # not by padding, which releases of rich count differently
            justify: Any = "right" if self.columns[at].is_number else "left"
            grid.add_column(justify=justify, width=width, overflow="fold")
        for line in lines:
            cells = [each for at in numbers for each in ("", Text(line[at]))]
            grid.add_row(*cells[1:])
        return grid


def whole(text: str) -> Text:
    """Return a text on one line, whatever the width."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")
