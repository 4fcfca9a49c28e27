"""`mobilemoney get` and `mobilemoney list`, and transactions as lines, tables and CSV. Nothing here moves money."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from mobilemoney_async.cli.clients import open_reader
from mobilemoney_async.cli.failures import ExitCode, Refused, run, say
from mobilemoney_async.cli.options import AsJSON, Service, Unmasked, with_service
from mobilemoney_async.cli.output import (
    literal,
    moment,
    money,
    new_table,
    phone,
    plain,
    print_json_line,
    reading,
    show,
    show_facts,
    visible,
)
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# The default of --limit.
_LIMIT = 100
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")

_CSV_FIELDS = (
    "id",
    "reference",
    "external_id",
    "type",
    "amount",
    "currency",
    "phone_number",
    "network",
    "status",
    "failure_reason",
    "created_at",
    "completed_at",
    "failed_at",
    "fees.merchant_fee",
    "fees.customer_fee",
    "fees.total_fee",
    "settlement.net_amount",
    "settlement.settled_at",
    "settlement.settlement_batch",
)
CSV_COLUMNS: tuple[str, ...] = tuple(field.rpartition(".")[2] for field in _CSV_FIELDS)
"""The header of the CSV: the contract's fields, with a column for each field of fees and settlement."""

# The first character of a spreadsheet's formula, in Latin and in full width.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
# A phone number, whole or masked, is no formula.
_NUMBER = re.compile(r"\+[0-9…]+", re.ASCII)

Status = Annotated[
    str | None,
    typer.Option(
        "--status", metavar="STATE", help=f"Only this state: {', '.join(TransactionStatus)}.", show_default=False
    ),
]
Type = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Only this type: collection or disbursement.", show_default=False),
]
FromDay = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="DAY",
        help="From this day on: YYYY-MM-DD, or today or yesterday of UTC.",
        show_default=False,
    ),
]
ToDay = Annotated[
    str | None,
    typer.Option("--to", metavar="DAY", help="To the end of this day, in the same form.", show_default=False),
]


@with_service()
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
    service: Service,
) -> None:
    """Show one transaction: by its id, the service's reference or the merchant's.

    Exit codes: 0 found, 1 an error or not found, 2 wrong usage.
    """
    given = [name for name in (transaction_id, reference, external_id) if name is not None]
    if len(given) != 1:
        raise Refused("give one of ID, --reference and --external-id", ExitCode.USAGE)
    if not given[0].strip():
        raise Refused("the id or reference is blank: copy it from list, or from collect's answer", ExitCode.USAGE)
    settings = service.settings()

    async def look_up() -> Transaction:
        async with open_reader(settings) as client:
            if transaction_id is not None:
                return await client.transactions.get(transaction_id)
            if reference is not None:
                return await client.transactions.get_by_reference(reference)
            return await client.transactions.get_by_external_id(external_id or "")

    transaction = run("get", look_up, settings=settings)
    if as_json:
        print_json_line(plain(transaction, unmasked=unmasked))
    else:
        print_transaction(transaction, unmasked=unmasked)


@with_service()
def list_transactions(
    *,
    status: Status = None,
    kind: Type = None,
    from_day: FromDay = None,
    to_day: ToDay = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many, the service's first; 0 for all.")] = _LIMIT,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header, for spreadsheets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each as a line of JSON, for programs.")] = False,
    unmasked: Unmasked = False,
    service: Service,
) -> None:
    """List transactions in the service's order: as a table, CSV or JSON lines.

    CSV and JSON lines are printed as pages arrive. A long list takes a second for each hundred. If it fails half way,
    the printed lines are correct but not all, and the exit code is not 0.

    Exit codes: 0 fine, 1 an error, 2 wrong usage.
    """
    if as_csv and as_json:
        raise Refused("give either --csv or --json", ExitCode.USAGE)
    state, wanted_type = _read_status(status), _read_type(kind)
    first, last = _read_day("--from", from_day), _read_day("--to", to_day)
    if first is not None and last is not None and first > last:
        raise Refused("--from must be no later than --to", ExitCode.USAGE)
    settings = service.settings()
    printer = _Printer(as_csv=as_csv, as_json=as_json, unmasked=unmasked)

    async def print_pages() -> None:
        async with open_reader(settings) as client:
            pager = client.transactions.list(
                status=state,
                type=wanted_type,
                from_date=first,
                to_date=last,
                limit=min(limit or PAGE_SIZE_MAX, PAGE_SIZE_MAX),
                max_items=limit or None,
            )
            with printer.progress():
                async for page in pager.pages():
                    printer.print_page(page.transactions, page.pagination.total_count)

    run("list", print_pages, settings=settings)
    printer.finish()


@attrs.define(kw_only=True)
class _Printer:
    """Printer of a list: CSV and JSON lines page by page, a table at the end.

    Attributes:
        as_csv: Whether to print CSV.
        as_json: Whether to print JSON lines.
        unmasked: Whether to show whole phone numbers.
    """

    as_csv: bool
    as_json: bool
    unmasked: bool
    _rows: list[Transaction] = attrs.field(factory=list, init=False)
    _printed: int = attrs.field(default=0, init=False)
    _total: int = attrs.field(default=0, init=False)
    _report: Callable[[int, int], object] | None = attrs.field(default=None, init=False)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress on standard error, if that is a terminal which does not show the lines themselves."""
        if self.as_csv:
            _print_row(CSV_COLUMNS)
        shows_lines = (self.as_csv or self.as_json) and sys.stdout.isatty()
        if shows_lines or not sys.stderr.isatty():
            yield
            return
        with reading() as self._report:
            yield

    def print_page(self, transactions: tuple[Transaction, ...], total: int) -> None:
        """Print a page, or keep it for the table.

        Args:
            transactions: The page.
            total: The number of all transactions, as the service says.
        """
        self._total = total
        self._printed += len(transactions)
        if self.as_csv:
            for transaction in transactions:
                _print_row(csv_cells(transaction, unmasked=self.unmasked))
            sys.stdout.flush()
        elif self.as_json:
            for transaction in transactions:
                print_json_line(plain(transaction, unmasked=self.unmasked))
        else:
            self._rows += transactions
        if self._report is not None:
            self._report(self._printed, total)

    def finish(self) -> None:
        """Print the table, and say whether there are more."""
        if self._rows:
            print_transactions(self._rows, unmasked=self.unmasked)
        if not self._printed:
            say("list", "no such transactions")
        elif self._total > self._printed:
            say("list", f"these are {self._printed:,} of {self._total:,}; --limit 0 shows all")


def _read_status(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.strip():
        raise Refused(f"--status must be a state: {', '.join(TransactionStatus)}", ExitCode.USAGE)
    status = TransactionStatus(text.strip().upper())
    if not status.is_known:
        # The service may have added it. Without the warning, a typing error would look like an empty list.
        say("list", f"{status} is not a state of the contract ({', '.join(TransactionStatus)}); it is sent as it is")
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
        # ISO 8601 has more forms of a day; this is the contract's.
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass  # not a day of the calendar
    raise Refused(f"{option} must be a day: YYYY-MM-DD, today or yesterday", ExitCode.USAGE)


def describe(transaction: Transaction, *, unmasked: bool) -> str:
    """Return a transaction in a few words: ``collection of 15,000 TZS, +25568…567: SUCCESS``."""
    number = phone(transaction.phone_number, unmasked=unmasked)
    return visible(f"{transaction.type} of {money(transaction.amount)}, {number}: {state_of(transaction)}")


def state_of(transaction: Transaction) -> str:
    """Return the state, with the reason of a failure."""
    return f"{transaction.status} {transaction.failure_reason or ''}".rstrip()


def short_table() -> Table:
    """Return a table with the columns of `short_row`."""
    table = new_table()
    # Long ids are folded, never cut, since users copy them. The whole table fits into 80 columns.
    table.add_column("transaction", overflow="fold", min_width=8)
    table.add_column("type", no_wrap=True)
    table.add_column("TZS", no_wrap=True, justify="right")
    table.add_column("phone", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=7)
    return table


def short_row(transaction: Transaction, *, unmasked: bool) -> list[RenderableType]:
    """Return the cells of a transaction in a table."""
    return [
        literal(transaction.id),
        literal(str(transaction.type)),
        f"{transaction.amount:,f}",
        literal(phone(transaction.phone_number, unmasked=unmasked)),
        literal(state_of(transaction)),
    ]


def print_transactions(transactions: Sequence[Transaction], *, unmasked: bool) -> None:
    """Print a table of transactions."""
    table = short_table()
    table.add_column("created, UTC", overflow="fold", min_width=8)
    for transaction in transactions:
        table.add_row(*short_row(transaction, unmasked=unmasked), moment(transaction.created_at))
    show(table)


def print_transaction(transaction: Transaction, *, unmasked: bool) -> None:
    """Print all fields of one transaction."""
    fees, settlement = transaction.fees, transaction.settlement
    facts = {
        "transaction": transaction.id,
        "state": state_of(transaction),
        "type": str(transaction.type),
        "amount": money(transaction.amount),
        "phone number": phone(transaction.phone_number, unmasked=unmasked),
        "network": str(transaction.network),
        "reference": transaction.reference,
        "external id": transaction.external_id or "",
        "merchant": transaction.merchant_id or "",
        "created, UTC": moment(transaction.created_at),
        "completed, UTC": moment(transaction.completed_at),
        "failed, UTC": moment(transaction.failed_at),
    }
    if fees is not None:
        shares = f"merchant {fees.merchant_fee:,f}, customer {fees.customer_fee:,f}"
        facts["fees"] = f"{money(fees.total_fee)}: {shares}"
    if settlement is not None:
        batch = f"{moment(settlement.settled_at)}, {settlement.settlement_batch}"
        facts["settled"] = f"{money(settlement.net_amount)} at {batch}"
    show_facts({name: value for name, value in facts.items() if value})


def csv_cells(transaction: Transaction, *, unmasked: bool) -> list[str]:
    """Return the cells of one line: plain digits, times in ISO 8601, unknown fields empty, no cell a formula."""
    transaction = attrs.evolve(transaction, phone_number=phone(transaction.phone_number, unmasked=unmasked))
    cells = []
    for field in _CSV_FIELDS:
        value: object = transaction
        for name in field.split("."):
            value = getattr(value, name, None)
        cells.append(_cell(value))
    return cells


def _print_row(cells: Iterable[str]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerow(cells)


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    # Line breaks and other unprintable characters are escaped: a transaction stays on its line.
    text = "" if value is None else visible(str(value))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
