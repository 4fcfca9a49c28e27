"""Tables for terminals of any width: no id is ever broken, and a date stands where it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

# rich is imported where it is used: most commands print no table.
if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as Grid

T = TypeVar("T")

_GAP = 2  # blanks between two columns


@attrs.frozen
class Column(Generic[T]):
    """Column of a table, with the function that returns its cell of a row.

    Attributes:
        min_width: Width to which a narrow terminal may fold longer cells, characters; None for a column that is not
            folded.
        is_id: Whether the cells are ids or keys, which users copy: they are never folded. Where the table is too wide
            for the terminal, they have a line of their own above the other cells.
        is_time: Whether the cells are those of `moment`: a terminal shows the date where it changes.
    """

    name: str
    cell: Callable[[T], str]
    min_width: int | None = None
    is_number: bool = attrs.field(default=False, kw_only=True)
    is_id: bool = attrs.field(default=False, kw_only=True)
    is_time: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen(eq=False)
class Table:
    """Table of printable texts, without lines; see `Column` for what a narrow terminal makes of it."""

    columns: Sequence[Column[Any]]
    rows: Sequence[Sequence[str]]
    has_header: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines as rich prints them."""
        from rich.cells import cell_len
        from rich.padding import Padding
        from rich.text import Text

        lines = [[*row] for row in self.rows]
        if console.is_terminal:
            self._shorten_times(lines)
        if self.has_header:
            lines.insert(0, [each.name for each in self.columns])
        widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
        numbers = range(len(self.columns))
        ids = [at for at in numbers if self.columns[at].is_id]
        if not ids or sum(self._least(at, widths) + _GAP for at in numbers) - _GAP <= options.max_width:
            yield self._grid(lines, numbers, widths, options.max_width)
            return
        others = [at for at in numbers if at not in ids]
        for line in lines:
            yield Text((" " * _GAP).join(line[at] for at in ids if line[at]), no_wrap=True, overflow="ignore")
            yield Padding(self._grid([line], others, widths, options.max_width - _GAP), (0, 0, 0, _GAP))

    def _shorten_times(self, rows: list[list[str]]) -> None:
        for at in (number for number, each in enumerate(self.columns) if each.is_time):
            shown = ""
            for row in rows:
                date, _, time = row[at].partition(" ")
                row[at] = time if date == shown else row[at]
                shown = date

    def _least(self, at: int, widths: Sequence[int]) -> int:
        """Return the width to which a column may be folded."""
        folded = self.columns[at].min_width
        return widths[at] if folded is None else min(folded, widths[at])

    def _grid(self, lines: Iterable[Sequence[str]], numbers: Sequence[int], widths: Sequence[int], room: int) -> Grid:
        """Return some columns of lines; the widest that may be folded are, until all fit."""
        from rich.table import Table as Grid
        from rich.text import Text

        fitting = {at: widths[at] for at in numbers}
        while sum(fitting.values()) + _GAP * (len(numbers) - 1) > room:
            foldable = [at for at in numbers if fitting[at] > self._least(at, widths)]
            if not foldable:
                break
            fitting[max(foldable, key=lambda at: fitting[at])] -= 1
        grid = Grid.grid()
        for at, width in fitting.items():
            if at != numbers[0]:
                grid.add_column(width=_GAP)  # not by padding, which releases of rich count differently
            justify: Any = "right" if self.columns[at].is_number or self.columns[at].is_time else "left"
            grid.add_column(justify=justify, width=width, overflow="fold")
        for line in lines:
            cells = [each for at in numbers for each in ("", Text(line[at]))]
            grid.add_row(*cells[1:])
        return grid
