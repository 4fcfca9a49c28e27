"""`mobilemoney watch --all-accounts`: the accounts that need someone, on a screen that is left open all day."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import attrs
from rich.console import Console, ConsoleOptions, RenderableType

from mobilemoney_async.cli import output
from mobilemoney_async.cli.accounts import ACCOUNT_COLUMNS, because, read_all
from mobilemoney_async.cli.failures import say
from mobilemoney_async.cli.options import Service
from mobilemoney_async.cli.stores import find_store, run_with_account
from mobilemoney_async.cli.views.overview import follow, screen
from mobilemoney_async.payments.records.account_status import AccountStatus
from mobilemoney_async.text import visible

if TYPE_CHECKING:
    from mobilemoney_async.payments.records.account_store import AccountStore


def watch_accounts(service: Service, *, timeout: float | None, as_json: bool) -> None:
    """Show the accounts of a store that need someone until Ctrl-C, or for `timeout` seconds."""

    async def work(store: AccountStore) -> None:
        view = AccountsView()
        is_screen = not as_json and sys.stdout.isatty()
        shown: AbstractContextManager[Callable[[], object]] = nullcontext(_AccountLines(view, as_json=as_json))
        with screen(view) if is_screen else shown as show, anyio.move_on_after(timeout or math.inf):
            await follow(store, view, read_all, show)

    run_with_account("watch", work, find_store(service))


@attrs.define(eq=False)
class AccountsView:
    """Latest list of the accounts that need someone, as rich prints it."""

    latest: Sequence[AccountStatus] | None = None
    problem: str | None = None
    asked_at: float = math.inf

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the parts."""
        if self.problem is not None:
            yield output.literal(f"! the store does not answer: {self.problem}")
        if self.latest is not None:
            yield output.literal(f"accounts that need someone: {len(self.latest):,}, {datetime.now(UTC):%H:%M:%S} UTC")
            if self.latest:
                yield output.new_table(ACCOUNT_COLUMNS, self.latest)


class _AccountLines:
    """Printer where there is no terminal: a line for each account with other needs than before."""

    def __init__(self, view: AccountsView, *, as_json: bool) -> None:
        self._view, self._as_json = view, as_json
        self._known: dict[str, AccountStatus] | None = None
        self._is_away = False

    def __call__(self) -> None:
        if (self._view.problem is not None) != self._is_away:
            self._is_away = self._view.problem is not None
            say("watch", f"the store does not answer: {self._view.problem}" if self._is_away else "the store is back")
        if self._view.latest is None:
            return
        found, known = {each.account: each for each in self._view.latest}, self._known or {}
        for account in [each for each in known if each not in found]:
            self._print(attrs.evolve(known[account], needs=()))
        for account, status in found.items():
            if account not in known or known[account].needs != status.needs:
                self._print(status)
        if self._known is None and not found and not self._as_json:
            print("no account needs anyone", flush=True)
        self._known = found

    def _print(self, status: AccountStatus) -> None:
        if self._as_json:
            output.print_json_line(
                output.plain(status, unmasked=False) | {"needs": [str(each) for each in status.needs]}
            )
            return
        said = ", ".join(status.needs) or "needs nobody any more"
        why = f" ({reason})" if status.needs and (reason := because(status)) else ""
        print(visible(f"{datetime.now(UTC):%H:%M:%S} UTC  {status.account}: {said}{why}"), flush=True)
