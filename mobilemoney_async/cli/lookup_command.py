"""`mobilemoney get` and `mobilemoney list`: look at transactions. Nothing here moves money."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import typer

from mobilemoney_async.cli import transactions_report as report
from mobilemoney_async.cli.failures import ExitCode, Refused, run, say
from mobilemoney_async.cli.options import (
    AccountOption,
    AsJSON,
    BaseURLOption,
    ConfigOption,
    ProfileOption,
    StoreOption,
    Unmasked,
)
from mobilemoney_async.cli.service import Service, open_to_look
from mobilemoney_async.cli.text import plain, print_json_line
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType

# How many transactions are listed where nobody says.
_MANY = 100


def get(
    transaction_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The transaction's id.", show_default=False)
    ] = None,
    *,
    reference: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="The service's reference instead.", show_default=False)
    ] = None,
    external_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The merchant's reference instead.", show_default=False)
    ] = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    store: StoreOption = None,
    account: AccountOption = None,
) -> None:
    """Show one transaction: by its id, the service's reference or the merchant's.

    Exit codes: 0 found, 1 an error or not found, 2 wrong usage.
    """
    service = Service(profile=profile, config=config, base_url=base_url, store=store, account=account)
    given = [name for name in (transaction_id, reference, external_id) if name is not None]
    if len(given) != 1:
        raise Refused("give one of ID, --reference and --external-id", ExitCode.USAGE)
    if not given[0].strip():
        raise Refused("the id or reference is blank: copy it from list, or from collect's answer", ExitCode.USAGE)
    settings = service.settings()

    async def look() -> Transaction:
        async with open_to_look(settings) as client:
            if transaction_id is not None:
                return await client.transactions.get(transaction_id)
            if reference is not None:
                return await client.transactions.get_by_reference(reference)
            return await client.transactions.get_by_external_id(external_id or "")

    transaction = run("get", look, settings=settings)
    if as_json:
        print_json_line(plain(transaction, unmasked=unmasked))
    else:
        report.print_transaction(transaction, unmasked=unmasked)


def list_transactions(
    *,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATE", help=f"Only these: {', '.join(TransactionStatus)}.", show_default=False),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="Only these: collection or disbursement.", show_default=False),
    ] = None,
    from_day: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DAY",
            help="From this day on: YYYY-MM-DD, or today or yesterday of UTC.",
            show_default=False,
        ),
    ] = None,
    to_day: Annotated[
        str | None,
        typer.Option("--to", metavar="DAY", help="To the end of this day, written alike.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many at most, the service's first; 0 for all.")] = _MANY,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header, for spreadsheets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each, for programs.")] = False,
    unmasked: Unmasked = False,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    store: StoreOption = None,
    account: AccountOption = None,
) -> None:
    """List transactions, in the service's order, as they come: a table, CSV or JSON lines.

    A long list takes a second for each hundred. Where it fails half way, what was printed stands, and the exit code
    is not 0.

    Exit codes: 0 fine, 1 an error, 2 wrong usage.
    """
    service = Service(profile=profile, config=config, base_url=base_url, store=store, account=account)
    if as_csv and as_json:
        raise Refused("give either --csv or --json", ExitCode.USAGE)
    state, wanted_type = _read_status(status), _read_type(kind)
    first, last = _read_day("--from", from_day), _read_day("--to", to_day)
    if first is not None and last is not None and first > last:
        raise Refused("--from must be no later than --to", ExitCode.USAGE)
    settings = service.settings()
    printer = _Printer(as_csv=as_csv, as_json=as_json, unmasked=unmasked)

    async def walk() -> None:
        async with open_to_look(settings) as client:
            pager = client.transactions.list(
                status=state,
                type=wanted_type,
                from_date=first,
                to_date=last,
                limit=min(limit or PAGE_SIZE_MAX, PAGE_SIZE_MAX),
                max_items=limit or None,
            )
            with printer.shown():
                async for page in pager.pages():
                    printer.take(page.transactions, page.pagination.total_count)

    run("list", walk, settings=settings)
    printer.finish()


class _Printer:
    """Prints transactions as they come, or at the end where they make a table; shows how far a long list is."""

    def __init__(self, *, as_csv: bool, as_json: bool, unmasked: bool) -> None:
        self._as_csv = as_csv
        self._as_json = as_json
        self._unmasked = unmasked
        self._rows: list[Transaction] = []
        self._printed = 0
        self._total = 0
        self._report: Callable[[int, int], object] = _no_progress

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress on standard error, where somebody sees it and lines are not progress enough."""
        if self._as_csv:
            report.print_csv_header()
        streams = self._as_csv or self._as_json
        if not sys.stderr.isatty() or (streams and sys.stdout.isatty()):
            yield
            return
        from mobilemoney_async.cli.live import reading

        with reading() as self._report:
            yield

    def take(self, transactions: tuple[Transaction, ...], total: int) -> None:
        """Print a page, or keep it for the table.

        Args:
            transactions: The page.
            total: How many there are in all, as the service says.
        """
        self._total = total
        self._printed += len(transactions)
        if self._as_csv:
            report.print_csv(transactions, unmasked=self._unmasked)
        elif self._as_json:
            for transaction in transactions:
                print_json_line(plain(transaction, unmasked=self._unmasked))
        else:
            self._rows += transactions
        self._report(self._printed, total)

    def finish(self) -> None:
        """Print the table, and say whether there is more."""
        if self._rows:
            report.print_transactions(self._rows, unmasked=self._unmasked)
        if not self._printed:
            say("list", "no such transactions")
        elif self._total > self._printed:
            say("list", f"these are {self._printed:,} of {self._total:,}; --limit 0 shows all")


def _no_progress(done: int, total: int) -> None:
    """Show nothing."""


def _read_status(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.strip():
        raise Refused(f"--status must be a state: {', '.join(TransactionStatus)}", ExitCode.USAGE)
    status = TransactionStatus(text.strip().upper())
    if not status.is_known:
        # The service may have added it; a mistyped one would find nothing without a word.
        say("list", f"{status} is not a state of the contract: {', '.join(TransactionStatus)}")
    return str(status)


def _read_type(text: str | None) -> str | None:
    if text is None:
        return None
    known = TransactionType(text.strip().lower())
    if not known.is_known:
        raise Refused("--type must be collection or disbursement", ExitCode.USAGE)
    return str(known)


def _read_day(option: str, text: str | None) -> date | None:
    if text is None:
        return None
    today = datetime.now(UTC).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    if text in named:
        return named[text]
    try:
        # Of the forms that ISO 8601 has for a day, the contract's.
        if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return date.fromisoformat(text)
    except ValueError:
        pass  # a day that the calendar does not have
    raise Refused(f"{option} must be a day: YYYY-MM-DD, today or yesterday", ExitCode.USAGE)
