"""Tables on terminals of any width: ids stay whole, lines fit, and a date stands where it changes."""

import io
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mobilemoney_async.cli.output import new_table
from mobilemoney_async.cli.tables import Column

COLUMNS: tuple[Column[Any], ...] = (
    Column("transaction", itemgetter(0), is_id=True),
    Column("TZS", itemgetter(1), is_number=True),
    Column("state", itemgetter(2), min_width=16),
    Column("made, UTC", itemgetter(3), min_width=10, is_time=True),
)
IDS = st.text("abcdef0123456789_", min_size=12, max_size=30)
TIMES = st.sampled_from(["", "2026-11-22 14:15:56", "2026-11-22 14:15:57", "2026-11-23 00:00:00"])
ROWS = st.lists(st.tuples(IDS, st.just("15,000"), st.text("no money ", max_size=60), TIMES), min_size=1, max_size=8)


def render(rows: Sequence[tuple[str, ...]], width: int, *, is_terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, no_color=True, highlight=False)
    console.print(new_table(COLUMNS, rows), crop=False)
    shown: Any = console.file
    return [line.rstrip() for line in shown.getvalue().splitlines()]


@pytest.mark.costly("runs lines of cli/tables.py that no quick test runs")
@given(ROWS, st.integers(50, 120))
def test_an_id_is_never_broken_and_every_line_fits(rows: list[tuple[str, ...]], width: int) -> None:
    """Copying an id is what the table is for, in a terminal of 60 columns too."""
    lines = render(rows, width)
    assert [each[0] for each in rows] == [line.split()[0] for line in lines if line[:1].strip()][1:]
    assert max(map(len, lines)) <= width


def test_a_narrow_terminal_shows_two_lines_for_each_row() -> None:
    """Below what the columns need, ids stand above the other cells; a date is folded where it changes."""
    rows = [
        ("txn_0203a1dbcd530f8015af", "15,000", "SUCCESS", "2026-11-22 14:15:56"),
        ("txn_54eafb6cd97c443f79c6", "9,000", "FAILED no money", "2026-11-22 14:15:57"),
    ]
    assert render(rows, 50) == [
        "transaction",
        "     TZS  state                      made, UTC",
        "txn_0203a1dbcd530f8015af",
        "  15,000  SUCCESS          2026-11-22 14:15:56",
        "txn_54eafb6cd97c443f79c6",
        "   9,000  FAILED no money             14:15:57",
    ]


def test_programs_get_every_date() -> None:
    """What is piped has the whole time in each line."""
    rows = [("t-1", "1", "SUCCESS", "2026-11-22 14:15:56"), ("t-2", "1", "SUCCESS", "2026-11-22 14:15:57")]
    assert sum("2026-11-22" in line for line in render(rows, 200, is_terminal=False)) == 2
    assert sum("2026-11-22" in line for line in render(rows, 200)) == 1
