"""Tables on terminals of any width: ids stay whole, and lines fit."""

import io
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mobilemoney_async import PayoutBatch
from mobilemoney_async.cli.output import new_table, show, show_facts
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.cli.views.payouts import batch_columns, facts_of
from tests.support.fakes import NOON

COLUMNS: tuple[Column[Any], ...] = (
    Column("transaction", itemgetter(0), is_id=True),
    Column("TZS", itemgetter(1), is_number=True),
    Column("state", itemgetter(2), min_width=16),
    Column("made, UTC", itemgetter(3), min_width=10),
)
IDS = st.text("abcdef0123456789_", min_size=12, max_size=30)
TIMES = st.sampled_from(["", "2026-11-22 14:15:56", "2026-11-22 14:15:57", "2026-11-23 00:00:00"])
ROWS = st.lists(st.tuples(IDS, st.just("15,000"), st.text("no money ", max_size=60), TIMES), min_size=1, max_size=8)


def render(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True, highlight=False)
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
    """Below what the columns need, ids stand above the other cells."""
    rows = [
        ("txn_0203a1dbcd530f8015af", "15,000", "SUCCESS", "2026-11-22 14:15:56"),
        ("txn_54eafb6cd97c443f79c6", "9,000", "FAILED no money", "2026-11-22 14:15:57"),
    ]
    assert render(rows, 50) == [
        "transaction",
        "     TZS  state            made, UTC",
        "txn_0203a1dbcd530f8015af",
        "  15,000  SUCCESS          2026-11-22 14:15:56",
        "txn_54eafb6cd97c443f79c6",
        "   9,000  FAILED no money  2026-11-22 14:15:57",
    ]


WORDS = st.text("abc,019-", min_size=1, max_size=30)
ANY_COLUMNS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=14), st.none() | st.integers(1, 20), st.booleans()),
    min_size=1,
    max_size=7,
)


@pytest.mark.costly("runs lines of cli/tables.py that no quick test runs")
@given(st.data(), ANY_COLUMNS, st.integers(20, 100))
def test_no_amount_word_or_header_is_broken(data: st.DataObject, drawn: Any, width: int) -> None:
    """At any width and with any columns: what does not fit stands below, and lines fit unless one word does not."""
    texts = st.lists(WORDS, max_size=5).map(" ".join)
    rows = data.draw(st.lists(st.tuples(*[texts for _ in drawn]), min_size=1, max_size=4))
    columns = [Column[Any](name, itemgetter(at), least, is_id=is_id) for at, (name, least, is_id) in enumerate(drawn)]
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True, highlight=False)
    console.print(new_table(columns, rows), crop=False)
    shown: Any = console.file
    lines = shown.getvalue().splitlines()
    words = Counter(
        word for row in [tuple(name for name, _, _ in drawn), *rows] for cell in row for word in cell.split()
    )
    assert Counter(word for line in lines for word in line.split()) == words
    for line in lines:
        assert len(line.rstrip()) <= width or len(line.split()) == 1 or any(is_id for _, _, is_id in drawn)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_tables_and_facts_of_batches_keep_their_amounts_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where 3,480,000 does not fit, its column moves below; a digest that does not fit stands below its name."""
    monkeypatch.setenv("COLUMNS", str(width))
    batch = PayoutBatch(
        id="364ea7f92561",
        name="salaries of November 2026",
        digest="e9897cea31b3035f8e6089c1a31455b64336de62a6399e67fbee23e6b149bf2f",
        state="approved",
        proposed_by="Asha",
        proposed_at=NOON,
        lines=12_000,
        total=Decimal(3_480_000_000),
        states={"SUCCESS": 11_000, "FAILED": 900, "UNKNOWN": 100},
    )
    show(new_table(batch_columns(), [batch]))
    show_facts(facts_of(batch))
    shown = capsys.readouterr().out
    whole = {"364ea7f92561", "3,480,000,000", batch.digest, "proposed,", "payouts", "12,000"}
    assert whole <= {*shown.split()} and "3,480,000,000 TZS" in shown
    assert all(len(line) <= width or batch.digest in line for line in shown.splitlines())
