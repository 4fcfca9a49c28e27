"""Payments that a command follows to their final states: for `collect`, `disburse`, `watch` and `demo`.

`follow` runs a poller and records each change in a `Watchlist`, which reports it to the command. A time-out or Ctrl-C
ends the following, not the payments.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import typer

from mobilemoney_async import errors
from mobilemoney_async.cli.failures import ExitCode, first_error, say
from mobilemoney_async.cli.output import counted, ignoring_closed_pipe, plain, print_json_line
from mobilemoney_async.cli.transactions import describe
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.events import AttemptEnded, Event, TokenRenewed
from mobilemoney_async.text import arguments, command_line, visible

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.polling.poller import Poller

# Ids named in one line, at most.
_MOST_NAMED = 10
# Refused requests in a row, of any kind, that no longer count as a passing fault.
_REFUSALS = 3
_NOT_PERMITTED = (errors.AuthenticationError, errors.PermissionDenied)
_REFUSED = {"AuthenticationError", "InvalidCredentials", "InvalidToken", "TokenExpired", "PermissionDenied"}


class ChangeKind(enum.StrEnum):
    """Kind of a change; its value is the name in JSON."""

    OPEN = "open"
    FINAL = "final"
    NOT_SHOWN = "not_shown"  # it may be too new: the search goes on for two minutes
    NOT_KNOWN = "not_known"


@attrs.frozen(kw_only=True)
class StatusChange:
    """Change of one payment: the transaction that the service showed, or the reason why it did not."""

    transaction_id: str
    kind: ChangeKind
    at: datetime
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None

    def describe(self, *, unmasked: bool) -> str:
        """Return the change in words."""
        if self.transaction is not None:
            return describe(self.transaction, unmasked=unmasked)
        if self.kind is ChangeKind.NOT_SHOWN:
            return "not shown so far; if it is not new, check the id and the profile"
        if isinstance(self.error, errors.StoreError):  # its final state contradicts the store
            return str(self.error)
        return "the service has no such transaction: check the id and the profile"


class Watchlist:
    """Followed payments, in the order of the output, with the latest change of each, which it reports."""

    def __init__(self, ids: Iterable[str], report: Callable[[StatusChange], object]) -> None:
        self._latest: dict[str, StatusChange | None] = dict.fromkeys(ids)
        self._open = dict.fromkeys(self._latest)
        self._ended = anyio.Event()
        self._report = report

    @property
    def latest(self) -> Mapping[str, StatusChange | None]:
        """The latest change of each payment, by id; None before the first."""
        return self._latest

    @property
    def open(self) -> list[str]:
        """Ids of the payments without a final state, in order."""
        return list(self._open)

    @property
    def unknown(self) -> list[str]:
        """Ids that the service does not know, in order."""
        return [each.transaction_id for each in self._latest.values() if each and each.kind is ChangeKind.NOT_KNOWN]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the following: first for unknown ids, then for open payments, then for failed ones."""
        if self.unknown:
            return ExitCode.ERROR
        if self._open:
            return ExitCode.NOT_FINAL
        seen = [each and each.transaction for each in self._latest.values()]
        return ExitCode.FINE if all(each and each.succeeded for each in seen) else ExitCode.NOT_SUCCESSFUL

    def add(self, transaction_id: str) -> None:
        """Add a payment that was created just now."""
        self._latest[transaction_id] = self._open[transaction_id] = None
        if self._ended.is_set():
            self._ended = anyio.Event()

    async def wait_until_ended(self) -> None:
        """Wait until no payment is open."""
        while self._open:
            await self._ended.wait()

    def record(self, transaction: Transaction) -> None:
        """Record a payment as the service showed it."""
        kind = ChangeKind.FINAL if transaction.is_final else ChangeKind.OPEN
        before = self._latest.get(transaction.id)
        if before is None or before.transaction is None or before.transaction.status != transaction.status:
            self._record(transaction.id, kind, transaction=transaction)

    def record_missing(self, transaction_id: str, kind: ChangeKind, error: MobileMoneyError) -> None:
        """Record that the service does not show a payment, so far or at all."""
        self._record(transaction_id, kind, error=error)

    def _record(self, transaction_id: str, kind: ChangeKind, **seen: Any) -> None:
        # No await in here: several tasks record, and none may see a change half done.
        if transaction_id not in self._open:
            return  # a final state does not change
        change = StatusChange(transaction_id=transaction_id, kind=kind, at=datetime.now(UTC), **seen)
        if kind in {ChangeKind.FINAL, ChangeKind.NOT_KNOWN}:
            del self._open[transaction_id]
            if not self._open:
                self._ended.set()
        self._latest[transaction_id] = change
        self._report(change)


def still_open(watchlist: Watchlist, flags: Sequence[str] = ()) -> list[str]:
    """Return lines about the open payments, and the command that goes on; none if all are final."""
    ids = watchlist.open
    if not ids:
        return []
    named = " ".join(ids[:_MOST_NAMED]) + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else "")
    count = f"{counted(len(ids), 'payment')} {'is' if len(ids) == 1 else 'are'}"
    again = command_line(*arguments("watch", *(ids if len(ids) <= _MOST_NAMED else ["ID..."]), options=flags))
    return [f"{count} still open, and may end without us: {named}", f"to go on following: {again}"]


def finish(command: str, watchlist: Watchlist, flags: Sequence[str]) -> None:
    """Name the payments that are still open, and end the program with the exit code of the following."""
    for line in still_open(watchlist, flags):
        say(command, line)
    if watchlist.exit_code is not ExitCode.FINE:
        raise typer.Exit(watchlist.exit_code)


def print_change(change: StatusChange, *, as_json: bool, unmasked: bool) -> None:
    """Print a change on one line, at once, as long as someone reads it."""
    said = f"{change.transaction_id}  {change.describe(unmasked=unmasked)}"
    with ignoring_closed_pipe(said):
        if as_json:
            fields = attrs.asdict(change, recurse=False)
            line = {"event": fields.pop("kind"), **fields, "error": change.error and str(change.error)}
            print_json_line(plain(line, unmasked=unmasked))
        else:
            print(visible(said), flush=True)


class Refusals:
    """Detector of credentials that the service no longer accepts. Give it to the client as ``on_event``.

    The poller waits for faults to pass; refused credentials do not pass.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._many = anyio.Event()

    def __call__(self, event: Event) -> None:
        """Count an event of the client; a refused login counts as several."""
        if isinstance(event, TokenRenewed | AttemptEnded):
            count = _REFUSALS if isinstance(event, TokenRenewed) else self._in_a_row + 1
            self._in_a_row = count if event.error in _REFUSED else 0
            if self._in_a_row >= _REFUSALS:
                self._many.set()

    async def wait(self) -> None:
        """Wait for several refused requests in a row, and start the count again."""
        await self._many.wait()
        self._in_a_row, self._many = 0, anyio.Event()


async def follow(
    client: AsyncClient,
    watchlist: Watchlist,
    begin: Callable[[Poller], Awaitable[object]],
    *,
    refusals: Refusals,
    timeout: float | None = None,
    **options: Any,
) -> None:
    """Follow the payments of a watchlist until all are final or unknown to the service, or the time is up.

    Faults that pass are waited out. A cancelled call ends the following, not the payments.

    Args:
        client: Reports its events to `refusals`.
        watchlist: Records the changes.
        begin: Gives the payments to the poller; `look_up` for payments of any age.
        refusals: Of this client.
        timeout: For all payments, seconds, more than 0; None for no limit.
        options: Of `AsyncClient.poller`.

    Raises:
        AuthenticationError: The service does not accept the credentials.
        PermissionDenied: The credentials do not permit the lookup.
        MobileMoneyError: `begin` failed.
    """
    try:
        with anyio.move_on_after(math.inf if timeout is None else timeout):
            async with client.poller(**options) as poller, anyio.create_task_group() as group:
                group.start_soon(_watch_refusals, client, watchlist, refusals)
                group.start_soon(_record_outcomes, watchlist, poller)
                await begin(poller)
                await watchlist.wait_until_ended()
                group.cancel_scope.cancel()
    except ExceptionGroup as exc:
        raise first_error(exc) from exc


def look_up(client: AsyncClient, watchlist: Watchlist, *, is_recorded: bool) -> Callable[[Poller], Awaitable[object]]:
    """Return a function that looks up the payments of a watchlist, and gives those that are not final to the poller.

    With a store (`is_recorded`) it gives all to the poller, which saves final states there.
    """

    async def begin(poller: Poller) -> None:
        since = (datetime.now(UTC) - timedelta(days=1)).date()
        async for lookup in client.transactions.get_many(watchlist.open, since=since):
            transaction, error = lookup.transaction, lookup.error
            if isinstance(error, _NOT_PERMITTED):
                raise error
            if isinstance(error, errors.InvalidTransactionId):
                watchlist.record_missing(lookup.transaction_id, ChangeKind.NOT_KNOWN, error)
                continue
            is_final = transaction is not None and transaction.is_final
            if is_recorded or not is_final:
                poller.track(lookup.transaction_id)
            if transaction is not None and not (is_recorded and is_final):  # of which the poller reports the end
                watchlist.record(transaction)
            elif isinstance(error, errors.TransactionNotFound):
                watchlist.record_missing(lookup.transaction_id, ChangeKind.NOT_SHOWN, error)

    return begin


async def _record_outcomes(watchlist: Watchlist, poller: Poller) -> None:
    async for outcome in poller.outcomes(forever=True):
        if outcome.transaction is not None:
            watchlist.record(outcome.transaction)
        elif outcome.error is not None:
            watchlist.record_missing(outcome.transaction_id, ChangeKind.NOT_KNOWN, outcome.error)


async def _watch_refusals(client: AsyncClient, watchlist: Watchlist, refusals: Refusals) -> None:
    """Raise the service's error once it refuses request after request."""
    while True:
        await refusals.wait()
        try:
            for transaction_id in watchlist.open[:1]:
                watchlist.record(await client.transactions.get(transaction_id))
        except _NOT_PERMITTED:
            raise
        except MobileMoneyError:
            continue  # the poller goes on, and a real refusal comes again
