"""`mobilemoney watch`: follow payments to their final states, or watch a whole store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from mobilemoney_async.cli import following
from mobilemoney_async.cli.clients import open_reader
from mobilemoney_async.cli.failures import WrongUsage, run, say
from mobilemoney_async.cli.following import Refusals, StatusChange, Watchlist
from mobilemoney_async.cli.options import AllAccounts, Service, Unmasked, check_timeout, with_service
from mobilemoney_async.cli.output import table_of
from mobilemoney_async.cli.tables import Table
from mobilemoney_async.cli.transactions import columns
from mobilemoney_async.cli.views.overview import watch_store
from mobilemoney_async.cli.views.watch_accounts import watch_accounts

_STDIN = "-"
# Lines below the table, for its header, the summary and the prompt.
_SPARE_LINES = 5
_HINT = "; Ctrl-C ends the watching, not the payments"

_IDS = (
    "Transaction ids; - reads them from standard input: one a line, or the JSON lines of list. None: the whole store."
)
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help=_IDS)]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after so long.", show_default="no limit")]
AsLines = Annotated[bool, typer.Option("--json", help="Print each change as a line of JSON, for programs.")]


@with_service()
def watch(
    ids: Ids = None,
    *,
    timeout: Timeout = None,
    as_json: AsLines = False,
    unmasked: Unmasked = False,
    all_accounts: AllAccounts = False,
    service: Service,
) -> None:
    """Follow payments to their final states; without ids, watch the whole store.

    Shows a table on a terminal, else a line for each change. Ctrl-C and --timeout end the watching, not the payments,
    and name those that are still open.

    The view of a store shows what is pending, unknown, unclaimed and queued, the last hour, today's sums and the rate
    limit, and may be left open all day. It needs no service, and writes nothing. With --all-accounts it shows the
    accounts that need someone, and why.

    Exit codes: 0 all succeeded, 5 some are final without success, 4 some were not final in time, 1 an error, or the
    service has no such transaction, 2 wrong usage, 130 Ctrl-C.
    """
    check_timeout(timeout)
    if all_accounts:
        if ids or service.account is not None:
            raise WrongUsage("--all-accounts goes without ids and --account")
        watch_accounts(service, timeout=timeout, as_json=as_json)
        return
    if not ids:
        watch_store(service, timeout=timeout, as_json=as_json, unmasked=unmasked)
        return
    wanted = _read_ids(ids, iter(sys.stdin.readline, ""))
    settings = service.settings()
    if not wanted:
        say("watch", "no ids, nothing to watch")
        return
    is_table = not as_json and sys.stdout.isatty()

    def report(change: StatusChange) -> None:
        if not is_table:  # the table reads the watchlist
            following.print_change(change, as_json=as_json, unmasked=unmasked)

    watchlist, refusals = Watchlist(wanted, report), Refusals()

    async def work() -> None:
        async with open_reader(settings, on_event=refusals) as client:
            view = live_table(watchlist, unmasked=unmasked, hint=_HINT) if is_table else nullcontext()
            with view:
                begin = following.look_up(client, watchlist, is_recorded=settings.store is not None)
                await following.follow(client, watchlist, begin, refusals=refusals, timeout=timeout)

    run("watch", work, open_work=lambda: following.still_open(watchlist, service.flags), settings=settings)
    following.finish("watch", watchlist, service.flags)


@contextmanager
def live_table(watchlist: Watchlist, *, unmasked: bool = False, hint: str = "") -> Iterator[None]:
    """Show a table of a watchlist on a terminal, which changes with it; its last state stays on the screen."""
    console = Console(highlight=False)

    def render() -> RenderableType:
        room = max(1, console.height - _SPARE_LINES)
        count, left = len(watchlist.latest), len(watchlist.open)
        hidden = f", {count - room} rows hidden" if count > room else ""
        return Group(_table(watchlist, room, unmasked), Text(f"\n{count - left} of {count} ended{hidden}{hint}"))

    try:
        with Live(console=console, transient=True, get_renderable=render):
            yield
    finally:
        console.print(_table(watchlist, len(watchlist.latest), unmasked))


def _table(watchlist: Watchlist, room: int, unmasked: bool) -> Table:
    rows, is_open = list(watchlist.latest.items()), set(watchlist.open)
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: row[0] not in is_open)[:room]
    wanted, cells = columns(unmasked=unmasked), []
    for transaction_id, change in rows:
        if change is not None and change.transaction is not None:
            cells.append([each.cell(change.transaction) for each in wanted])
        else:
            state = "not seen yet" if change is None else change.describe(unmasked=unmasked)
            cells.append([transaction_id, "", "", "", state])
    return table_of(wanted, cells)


def _read_ids(arguments: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Return the ids of the arguments, with those of standard input in place of ``-``."""
    ids: list[str] = []
    for argument in arguments:
        if argument == _STDIN:
            ids += filter(None, map(_read_line, map(str.strip, lines)))
        else:
            ids.append(argument)
    for each in ids:
        if not each.strip() or each in {".", ".."}:
            raise WrongUsage("ID must be a transaction's id: copy it from list, or from collect's answer")
    return ids


def _read_line(line: str) -> str | None:
    """Return the id in a line of standard input: the line itself, or the id in a line of JSON of ours, if any."""
    if not line.startswith("{"):
        return line
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = {}
    for name in ("transaction_id", "id"):
        if isinstance(found.get(name), str):
            return str(found[name])
    if "event" in found:
        return None  # a payment that had no transaction yet
    raise WrongUsage("standard input must be ids, one a line, or lines of JSON with an id")
