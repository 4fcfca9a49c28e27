"""`mobilemoney watch` without ids: the whole store, on a screen that an operator leaves open all day.

The view reads the store every two seconds, or more slowly where that takes long, and keeps nothing but its last look.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from mobilemoney_async.cli import output
from mobilemoney_async.cli.failures import WrongUsage, copyable, say
from mobilemoney_async.cli.options import Service
from mobilemoney_async.cli.payments import command_lines
from mobilemoney_async.cli.stores import find_store, queue_warnings, require_tables, run_with_account
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records.next_steps import next_step, unclaimed_step
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState, UnclaimedTransaction
from mobilemoney_async.text import command_line, shown_text, visible

if TYPE_CHECKING:
    from mobilemoney_async.payments.records.account_store import AccountStore
    from mobilemoney_async.sharing.overview import DayTotal, Overview

# Seconds between two looks at least; and that a look may take of the time.
_PAUSE, _SHARE = 2.0, 0.05
# Seconds after which a look without an answer is an outage.
_SILENCE = 5.0
# Payments, and transactions, that are shown with a next step.
_MOST = 5
_BARS, _ASCII_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


def watch_store(service: Service, *, timeout: float | None, as_json: bool, unmasked: bool) -> None:
    """Show the whole store until Ctrl-C, or for `timeout` seconds."""
    try:
        settings = find_store(service)
    except WrongUsage as exc:
        raise WrongUsage(f"give an ID to follow, or a store to watch: {exc}") from None
    is_screen = not as_json and sys.stdout.isatty()

    async def work(store: AccountStore) -> None:
        from mobilemoney_async.sharing.overview import read_overview

        await require_tables(store)
        view = View(settings.account, unmasked, service)
        shown: AbstractContextManager[Callable[[], object]] = nullcontext(_Lines(view, as_json=as_json))
        with screen(view) if is_screen else shown as show, anyio.move_on_after(timeout or math.inf):
            await follow(store, view, read_overview, show)

    run_with_account("watch", work, settings)


class Watched(Protocol):
    """View of a store that is read again and again: the latest reading, and the failure of the store."""

    latest: Any
    problem: str | None
    asked_at: float


async def follow(
    store: AccountStore,
    view: Watched,
    read: Callable[[AccountStore], Awaitable[object]],
    show: Callable[[], object],
) -> None:
    """Read a store again and again, and show each reading."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_note_silence, view, show)
        while True:
            began_at = view.asked_at = anyio.current_time()
            try:
                view.latest, view.problem = await read(store), None
            except StoreError as exc:
                if view.latest is None:
                    raise
                view.problem = str(exc)
            view.asked_at = math.inf
            show()
            await anyio.sleep(max(_PAUSE, (anyio.current_time() - began_at) / _SHARE))


async def _note_silence(view: Watched, show: Callable[[], object]) -> None:
    """Say so while the store takes long, as a server does that stands still."""
    while True:
        await anyio.sleep(_PAUSE)
        silence = anyio.current_time() - view.asked_at
        if silence > _SILENCE:
            view.problem = f"no answer for {age(timedelta(seconds=silence))}"
            show()


@attrs.define(eq=False)
class View:
    """Latest overview of an account, as rich prints it: no id is broken, and nothing is wider than the terminal."""

    account: str
    unmasked: bool
    service: Service = attrs.field(factory=Service)
    latest: Overview | None = None
    problem: str | None = None
    asked_at: float = math.inf

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the parts; on a screen as many lines as that has, and the number of the others."""
        room = options.height
        if room is None:
            yield from self._parts(options)
            return
        lines = console.render_lines(Group(*self._parts(options)), options.update(height=None), pad=False)
        if len(lines) > room:
            left = f"… {len(lines) - room + 1} more lines: make the window taller"
            lines = [*lines[: room - 1], [Segment(left[: options.max_width])]]
        yield Segments([each for line in lines for each in (*line, Segment.line())])

    def _parts(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        found = self.latest
        if found is None:
            yield output.literal(
                ": ".join(filter(None, (f"account {self.account}, waiting for the store", self.problem)))
            )
            return
        yield output.literal(f"account {self.account}, {_clock(found.at)}")
        if self.problem is not None:
            yield output.literal(f"! the store does not answer, these are its last figures: {self.problem}")
        for warning in warnings(found):
            yield output.literal(f"! {warning}")
        yield Text()
        facts: tuple[Column[tuple[str, str]], ...] = (
            Column("", lambda fact: fact[0]),
            Column("", lambda fact: fact[1], min_width=1),
        )
        yield output.new_table(facts, _facts(found), has_header=False)
        yield from _bars(found, options)
        yield from self._attention(found)
        yield from self._unclaimed(found)
        if found.today:
            yield Text("\nfirst recorded today, since midnight in Tanzania")
            yield output.new_table(_TOTALS, found.today)

    def _attention(self, found: Overview) -> Iterator[RenderableType]:
        if not found.needs_attention:
            return
        columns: tuple[Column[PaymentRecord], ...] = (
            Column("key", lambda each: each.key, is_id=True),
            *output.payment_columns(unmasked=self.unmasked),
            Column("state", lambda each: str(each.state)),
            Column("for", lambda each: sent_for(each, found.at), is_number=True),
        )
        yield Text(f"\nneed you{_first(found.unknown, 'payments list --unresolved')}")
        shown, grace = found.needs_attention[:_MOST], timedelta(seconds=found.grace)
        yield output.new_table(columns, shown)
        advised = (f"{each.state}: {copyable(next_step(each, found.at, grace=grace).text)}" for each in shown)
        # Each different step once, and narrow: beside a table it would have no room.
        yield from (output.literal(f"→ {each}") for each in dict.fromkeys(advised))
        yield Text(f"the command lines: {command_line('payments', 'show', *self.service.store_flags)} KEY")

    def _unclaimed(self, found: Overview) -> Iterator[RenderableType]:
        if not found.unclaimed_first:
            return
        columns: tuple[Column[UnclaimedTransaction], ...] = (
            Column("transaction", lambda each: each.transaction_id, is_id=True),
            *output.payment_columns(unmasked=True),
            Column("paid twice?", lambda each: each.fits_key or "", is_id=True),
            Column("for", lambda each: age(found.at - each.first_seen_at), is_number=True),
        )
        yield Text(f"\nunclaimed{_first(found.unclaimed, 'payments unclaimed')}")
        shown = found.unclaimed_first[:_MOST]
        yield output.new_table(columns, shown)
        for each in shown:
            step = unclaimed_step(each)
            yield output.literal(f"→ {step.text}")
            yield from map(output.command, command_lines(step, self.service))


def shown_state(each: PaymentRecord | DayTotal) -> str:
    """Return the state of a payment, or of several: the service's, once it is known that they exist."""
    exists = each.state in {PaymentState.ACKNOWLEDGED, PaymentState.FINAL}
    return shown_text(str(each.status if exists and each.status is not None else each.state))


_TOTALS: tuple[Column[DayTotal], ...] = (
    output.TYPE,
    Column("state", shown_state, min_width=12),
    output.count_column("count"),
    output.TZS,
)


@contextmanager
def screen(view: Any) -> Iterator[Callable[[], object]]:
    """Show a view on the whole terminal; its last state stays there in the end."""
    console = Console(highlight=False)
    try:
        # Drawn when it changes only, and on a screen of its own, so that a resized window is drawn again as a whole.
        with Live(view, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            yield live.refresh
    finally:
        if view.latest is not None:
            output.show(view)


class _Lines:
    """Printer of a view where there is no terminal: a line for each change."""

    def __init__(self, view: View, *, as_json: bool) -> None:
        self._view = view
        self._as_json = as_json
        self._last: Any = None
        self._is_away = False
        self._known = frozenset[str]()
        self._warned = frozenset[str]()

    def __call__(self) -> None:
        found = self._view.latest
        if found is None:
            return
        if (self._view.problem is not None) != self._is_away:
            self._is_away = self._view.problem is not None
            say("watch", f"the store does not answer: {self._view.problem}" if self._is_away else "the store is back")
        key = _compared(found)
        if key == self._last:
            return
        self._last = key
        # A closed pipe ends the view: its reader has seen enough.
        if self._as_json:
            output.print_json_line(output.plain(found, unmasked=self._view.unmasked))
        else:
            facts = "  ".join(f"{name}: {said}" for name, said in _facts(found))
            print(visible(f"{_clock(found.at)}  {facts}"), flush=True)
            self._print_new(found)

    def _print_new(self, found: Overview) -> None:
        """Print why payments do not go on, and the next steps for payments that need attention, where that is new."""
        warned = list(warnings(found))
        for warning in warned:
            if warning not in self._warned:
                print(f"  {visible(f'! {warning}')}", flush=True)
        self._warned = frozenset(warned)
        for record in found.needs_attention:
            if record.key not in self._known:
                step = next_step(record, found.at, grace=timedelta(seconds=found.grace))
                said = f"{record.key}: {record.state}. {copyable(step.text)}"
                lines = [said, *command_lines(step, self._view.service)]
                print("\n".join(f"  {visible(line)}" for line in lines), flush=True)
        self._known = frozenset(record.key for record in found.needs_attention)


def _compared(found: Overview) -> Any:
    """Return the facts that make a new line: not the clock, and not those that change with each request."""
    return attrs.evolve(
        found, at=found.day_began_at, minutes=(), sending=0, lag=None, requests=None, queue_done_at=None
    )


def warnings(found: Overview) -> Iterator[str]:
    """Yield the changes that an operator has to make so that payments go on."""
    if found.pending and not found.has_poller:
        yield "no process follows the pending payments"
    yield from queue_warnings(found)
    if found.is_stopped:
        yield "new payments may wait: the store has to be compared with its service first"


def _facts(found: Overview) -> list[tuple[str, str]]:
    oldest = f", the oldest for {sent_for(found.oldest_pending[0], found.at)}" if found.oldest_pending else ""
    last, done = found.minutes[-2], ""
    if found.queue_done_at is not None:
        done = f", done in {age(found.queue_done_at - found.at)} at the earliest"
    made, succeeded, failed = (
        sum(getattr(each, name) for each in found.minutes) for name in ("made", "succeeded", "failed")
    )
    limit = "not known" if found.requests is None else f"{found.requests.used} of {found.requests.limit} requests used"
    return [
        ("pending", f"{found.pending:,}{oldest}"),
        ("need you", f"{found.unknown:,}"),
        ("unclaimed", f"{found.unclaimed:,}"),
        ("queued", f"{found.queued:,}{done}"),
        ("last full minute", f"{last.made:,} made, {last.succeeded:,} succeeded, {last.failed:,} failed"),
        ("last hour", f"{made:,} made, {succeeded:,} succeeded, {failed:,} failed"),
        ("lag", "not known" if found.lag is None else f"{found.lag:.0f} s"),
        ("limit", limit),
    ]


def _bars(found: Overview, options: ConsoleOptions) -> Iterator[RenderableType]:
    """Yield the payments that ended in each of the last minutes as bars: those of one hour, or as many as fit."""
    counts = [each.succeeded + each.failed for each in found.minutes][-options.max_width :]
    bars, most = _ASCII_BARS if options.ascii_only else _BARS, max(counts)
    if most:
        yield Text(f"\nended in each of the last {len(counts)} minutes, {most:,} at most")
        yield Text("".join(bars[-(-count * (len(bars) - 1) // most)] for count in counts), no_wrap=True)


def _first(count: int, command: str) -> str:
    return "" if count <= _MOST else f", the first {_MOST} of {count:,}; all: {copyable(f'mobilemoney {command}')}"


def sent_for(record: PaymentRecord, now: datetime) -> str:
    """Return how long ago a payment was sent last: one of the queue may have been recorded long before."""
    return age(now - (record.sent_at or record.created_at))


def age(span: timedelta) -> str:
    """Return a time span in one or two units, the largest: ``45 s``, ``12 min``, ``3 h 5 min``, ``2 d 4 h``."""
    seconds = max(0, round(span.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    hours, days = minutes // 60, minutes // 1440
    if hours == 0:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days == 0 else f"{days} d {hours % 24} h"


def _clock(at: datetime) -> str:
    """Return a time as it is in Tanzania and in UTC, in which all other commands show it."""
    from mobilemoney_async.sharing.overview import DAR_ES_SALAAM

    local = at.astimezone(DAR_ES_SALAAM)
    return f"{local:%Y-%m-%d %H:%M:%S} in Tanzania, {at:%H:%M} UTC"
