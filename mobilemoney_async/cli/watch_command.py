"""`mobilemoney watch`: follow payments to their final states."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from mobilemoney_async.cli.board import Board, Change, exit_code, still_open
from mobilemoney_async.cli.failures import ExitCode, Refused, run, say
from mobilemoney_async.cli.following import Refusals, follow, saying_warnings
from mobilemoney_async.cli.options import (
    AccountOption,
    BaseURLOption,
    ConfigOption,
    ProfileOption,
    StoreOption,
    Unmasked,
)
from mobilemoney_async.cli.service import Service, open_to_look
from mobilemoney_async.cli.transactions_report import print_change
from mobilemoney_async.values import require_seconds

_STDIN = "-"


def watch(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Transaction ids; - reads them from standard input: one a line, or the JSON lines of list.",
            show_default=False,
        ),
    ],
    *,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Leave off after so long.", show_default="as long as it takes"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each change, for programs.")
    ] = False,
    unmasked: Unmasked = False,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    store: StoreOption = None,
    account: AccountOption = None,
) -> None:
    """Follow payments to their final states: a table on a terminal, else a line for each change.

    Ctrl-C and --timeout end the watching, not the payments, and say which are still open.

    Exit codes: 0 all succeeded, 5 some ended otherwise, 4 some were not final in time, 1 an error, or the service does
    not know an id, 2 wrong usage, 130 Ctrl-C.
    """
    service = Service(profile=profile, config=config, base_url=base_url, store=store, account=account)
    check_timeout(timeout)
    wanted = _read_ids(ids, iter(sys.stdin.readline, ""))
    settings = service.settings()
    if not wanted:
        say("watch", "no ids, so nothing to watch")
        return
    view = _View(wanted, as_json=as_json, unmasked=unmasked)
    refusals = Refusals()

    async def work() -> None:
        async with open_to_look(settings, on_event=refusals) as client:
            with view.shown(), saying_warnings("watch"):
                is_recorded = settings.store is not None
                await follow(client, view.board, refusals=refusals, is_recorded=is_recorded, timeout=timeout)

    def open_work() -> list[str]:
        return still_open(view.board, service.flags)

    run("watch", work, open_work=open_work, settings=settings)
    for line in open_work():
        say("watch", line)
    code = exit_code(view.board)
    if code is not ExitCode.FINE:
        raise typer.Exit(code)


def check_timeout(timeout: float | None) -> None:
    """Refuse a time-out that is none.

    Raises:
        Refused: It is.
    """
    try:
        if timeout is not None:
            require_seconds("timeout", timeout)
    except ValueError:
        raise Refused("--timeout must be a number of seconds, more than 0", ExitCode.USAGE) from None


class _View:
    """What the person sees of the board."""

    def __init__(self, ids: Iterable[str], *, as_json: bool, unmasked: bool) -> None:
        self._as_json = as_json
        self._unmasked = unmasked
        self._is_table = not as_json and sys.stdout.isatty()
        self.board = Board(ids, self._tell)

    def shown(self) -> AbstractContextManager[object]:
        """Show a table that moves, where there is a terminal to show it on."""
        if not self._is_table:
            return nullcontext()
        from mobilemoney_async.cli.live import LiveTable

        return LiveTable(self.board, unmasked=self._unmasked)

    def _tell(self, change: Change) -> None:
        if not self._is_table:  # which looks at the board by itself
            print_change(change, as_json=self._as_json, unmasked=self._unmasked)


def _read_ids(arguments: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Return the ids of the arguments, with those of standard input in the place of ``-``.

    Raises:
        Refused: One is none.
    """
    ids: list[str] = []
    for argument in arguments:
        if argument == _STDIN:
            ids += filter(None, map(_read_line, map(str.strip, lines)))
        else:
            ids.append(argument)
    for each in ids:
        if not each.strip() or each in {".", ".."}:
            raise Refused("ID must be a transaction's id: copy it from list, or from collect's answer", ExitCode.USAGE)
    return ids


def _read_line(line: str) -> str | None:
    """Return the id of a line of standard input: the line itself, or that of a line of JSON that we printed, if any."""
    if not line.startswith("{"):
        return line
    try:
        found = json.loads(line)
    except ValueError:
        found = {}
    for name in ("transaction_id", "id"):
        if isinstance(found.get(name), str):
            return str(found[name])
    if "event" in found:
        return None  # of a payment that had no transaction yet
    raise Refused("standard input must be ids, one a line, or lines of JSON with an id", ExitCode.USAGE)
