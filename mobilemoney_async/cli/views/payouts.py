"""Batches of payouts, their lines and their progress as the command line shows them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mobilemoney_async.cli import output
from mobilemoney_async.cli.failures import copyable, say
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.payments.payouts.batch import FAILED, WORDS, PayoutBatch, PayoutLine, word_of
from mobilemoney_async.text import name_lines, shown_name

if TYPE_CHECKING:
    from mobilemoney_async.payments.outbox.dispatcher import DispatcherStats

# Lines that are named one by one, of those that someone should look at: `payouts show` has all.
_MOST_NOTES = 20
# Seconds between two lines of the progress where there is no terminal.
_LINES = 60.0


def count_lines(batch: PayoutBatch) -> dict[str, int]:
    """Return the number of lines in each state, in words."""
    found = dict.fromkeys([*WORDS.values(), FAILED], 0)
    for state, number in batch.states.items():
        found[word_of(state)] += number
    return {word: number for word, number in found.items() if number}


def facts_of(batch: PayoutBatch) -> dict[str, str | None]:
    """Return the facts of a batch for its approver, to look at before the digest."""
    at = {"proposed": batch.proposed_at, "approved": batch.approved_at, "cancelled": batch.cancelled_at}
    by = {"proposed": batch.proposed_by, "approved": batch.approved_by, "cancelled": batch.cancelled_by}
    return {
        "batch": batch.id,
        "name": shown_name(batch.name),
        "retry of": batch.retry_of,
        "state": batch.state,
        "payouts": f"{batch.lines:,}",
        "total": _total(batch),
        "note": batch.repeats,
        "limit": batch.exceeds and f"cannot be approved now: {batch.exceeds}",
        "largest": "; ".join(_describe(each) for each in batch.largest),
        "never paid": _new_recipients(batch),
        **notes_of(batch.duplicates, batch.warnings, batch.left_out),
        "digest": batch.digest,
        **{what: by[what] and f"{output.moment(at[what])} UTC by {shown_name(by[what] or '')}" for what in at},
        "payments": _states(batch),
    }


def notes_of(
    duplicates: Mapping[int, str], warnings: Mapping[int, str], left_out: Mapping[int, str] | None = None
) -> dict[str, str]:
    """Return the warnings before an approval, by line: of many, the first ones and the numbers of the others."""
    noted = {line: [f"paid twice? {reason}"] for line, reason in duplicates.items()}
    for line, reason in warnings.items():
        noted.setdefault(line, []).append(reason)
    noted |= {line: [f"left out: {reason}"] for line, reason in (left_out or {}).items()}
    lines = sorted(noted)
    shown = {f"line {line}": copyable("; ".join(noted[line])) for line in lines[:_MOST_NOTES]}
    left = lines[_MOST_NOTES:]
    return shown | ({f"{len(left):,} more": f"{name_lines(left)}: see payouts show"} if left else {})


def _total(batch: PayoutBatch) -> str:
    total, last = output.money(batch.total), batch.last_total
    if last is None:
        return total
    change = batch.total - last
    by = "as much as" if not change else f"{abs(change):,f} TZS {'more' if change > 0 else 'less'} than"
    return f"{total}, {by} the last batch of this name"


def _describe(line: PayoutLine) -> str:
    return f"line {line.line}, {output.money(line.amount)} to {output.phone(line.phone_number, unmasked=False)}"


def _new_recipients(batch: PayoutBatch) -> str:
    lines = batch.new_recipients
    return f"all {batch.lines:,}" if len(lines) == batch.lines and lines else name_lines(lines) if lines else ""


def line_columns(notes: Mapping[int, str], *, unmasked: bool) -> Sequence[Column[PayoutLine]]:
    """Return the columns of a table of lines; `notes` are the warnings, by line."""

    def note(each: PayoutLine) -> str:
        some = notes.get(each.line), each.warning, output.said(each.reason, unmasked=unmasked)
        return copyable("; ".join(filter(None, some)))

    return (
        Column("line", lambda each: str(each.line), is_number=True),
        output.TZS,
        Column("phone", lambda each: output.phone(each.phone_number, unmasked=unmasked)),
        Column("state", lambda each: each.state),
        Column("note", note, min_width=12),
    )


def _states(batch: PayoutBatch) -> str:
    return ", ".join(f"{number:,} {word}" for word, number in count_lines(batch).items())


def batch_columns() -> tuple[Column[PayoutBatch], ...]:
    """Return the columns of a table of batches."""
    return (
        Column("batch", lambda each: each.id, is_id=True),
        Column("name", lambda each: shown_name(each.name), min_width=5),
        Column("payouts", lambda each: f"{each.lines:,}", is_number=True),
        Column("TZS", lambda each: f"{each.total:,f}", is_number=True),
        output.time_column("proposed, UTC", "proposed_at"),
        Column("state", lambda each: each.state if not each.states else f"{each.state}: {_states(each)}", min_width=9),
    )


def describe_progress(batch: PayoutBatch, stats: DispatcherStats) -> str:
    """Return how much of a batch is sent, and how it ended."""
    words = count_lines(batch)
    sent = batch.lines - words.get("queued", 0) - words.get("not sent", 0) - words.get("cancelled", 0)
    counts = [f"{words[each]:,} {each}" for each in ("paid", "failed", "refused", "unknown") if words.get(each)]
    if stats.paused is not None:
        counts.append(f"paused: {stats.paused}")
    elif words.get("queued") and stats.finishes_at is not None:
        counts.append(f"all sent by {stats.finishes_at:%Y-%m-%d %H:%M} UTC")
    return ", ".join([f"{sent:,} of {batch.lines:,} sent", *counts])


@contextmanager
def progress() -> Iterator[Callable[[str], object]]:
    """Show a line that changes on a terminal; otherwise print a changed line every minute on standard error."""
    if sys.stderr.isatty():
        with output.waiting("sending") as show:
            yield show
        return
    shown, shown_at = "", -_LINES

    def print_line(text: str) -> None:
        nonlocal shown, shown_at
        if text != shown and time.monotonic() >= shown_at + _LINES:
            shown, shown_at = text, time.monotonic()
            say("payouts", text)

    yield print_line
