"""`mobilemoney get` and `mobilemoney list`, and transactions as lines, tables and CSV. Nothing here moves money."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.clients import open_reader
from mobilemoney_async.cli.failures import WrongUsage, run, say
from mobilemoney_async.cli.options import AsJSON, Service, Unmasked, check, completing, with_service
from mobilemoney_async.cli.output import moment, money, phone, plain
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType, require_type
from mobilemoney_async.text import csv_cell, shown_text, visible
from mobilemoney_async.values import require_text

# The default of --limit.
_LIMIT = 100

CSV_HEADER = (
    "id,reference,external_id,type,amount,currency,phone_number,network,status,failure_reason,created_at,completed_at,"
    "failed_at,merchant_fee,customer_fee,total_fee,net_amount,settled_at,settlement_batch"
)
"""The first line of the CSV: the contract's fields, with a column for each field of fees and settlement."""

_STATES, _TYPES = completing(lambda: TransactionStatus), completing(lambda: TransactionType)
Status = Annotated[
    str | None,
    typer.Option(
        "--status", metavar="STATE", autocompletion=_STATES, help=f"Only this state: {', '.join(TransactionStatus)}."
    ),
]
Type = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", autocompletion=_TYPES, help="Only this type: collection or disbursement."),
]
DAYS = "YYYY-MM-DD, today or yesterday of UTC"
FromDay = Annotated[str | None, typer.Option("--from", metavar="DAY", help=f"From this day on: {DAYS}.")]
ToDay = Annotated[str | None, typer.Option("--to", metavar="DAY", help="To the end of this day, in the same form.")]


@with_service()
def get(
    transaction_id: Annotated[str | None, typer.Argument(metavar="ID", help="The transaction's id.")] = None,
    *,
    reference: Annotated[str | None, typer.Option(metavar="REFERENCE", help="The service's reference instead.")] = None,
    external_id: Annotated[str | None, typer.Option(metavar="ID", help="The merchant's reference instead.")] = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    service: Service,
) -> None:
    """Show one transaction: by its id, the service's reference or the merchant's.

    Exit codes: 0 found, 1 an error or not found, 2 wrong usage.
    """
    given = [name for name in (transaction_id, reference, external_id) if name is not None]
    if len(given) != 1:
        raise WrongUsage("give one of ID, --reference and --external-id")
    if not given[0].strip():
        raise WrongUsage("the id or reference is blank: copy it from list, or from collect's answer")
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
        output.print_json_line(plain(transaction, unmasked=unmasked))
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
    """List transactions: as a table, CSV or JSON lines.

    The order is the service's, which it does not document. CSV and JSON lines are printed as pages arrive. A long list
    takes a second for each hundred. If it fails half way, the printed lines are correct but not all, and the exit code
    is not 0.

    Exit codes: 0 fine, 1 an error, 2 wrong usage.
    """
    if as_csv and as_json:
        raise WrongUsage("give either --csv or --json")
    filters = _read_filters(status, kind, from_day, to_day)
    settings = service.settings()
    rows: list[Transaction] = []
    printed = total = 0
    print_one = _line_printer(as_csv=as_csv, as_json=as_json, unmasked=unmasked) or rows.append
    # A terminal that shows the lines themselves needs no count of them.
    shows_lines = (as_csv or as_json) and sys.stdout.isatty()

    async def print_pages() -> None:
        nonlocal printed, total
        async with open_reader(settings) as client:
            pager = client.transactions.list(
                **filters, limit=min(limit or PAGE_SIZE_MAX, PAGE_SIZE_MAX), max_items=limit or None
            )
            with nullcontext(len) if shows_lines else output.waiting("reading") as report:
                async for page in pager.pages():
                    printed, total = printed + len(page.transactions), page.pagination.total_count
                    for transaction in page.transactions:
                        print_one(transaction)
                    sys.stdout.flush()
                    report(f"{printed:,} of {total:,} read")

    run("list", print_pages, settings=settings)
    if rows:
        output.print_table((*columns(unmasked=unmasked), output.time_column("created, UTC", "created_at")), rows)
    if not printed:
        say("list", "no such transactions")
    elif limit and total > printed:
        say("list", f"these are {printed:,} of {total:,}; --limit 0 shows all")


def _read_filters(status: str | None, kind: str | None, from_day: str | None, to_day: str | None) -> dict[str, Any]:
    first, last = read_day("--from", from_day), read_day("--to", to_day)
    if first is not None and last is not None and first > last:
        raise WrongUsage("--from must be no later than --to")
    if status is not None:
        accepted = f"--status must be a state: {', '.join(TransactionStatus)}"
        status = check(partial(require_text, "status"), status.strip(), accepted)
    if kind is not None:
        kind = check(require_type, kind.strip(), "--type must be collection or disbursement")
    return {"status": status, "type": kind, "from_date": first, "to_date": last}


def _line_printer(*, as_csv: bool, as_json: bool, unmasked: bool) -> Callable[[Transaction], None] | None:
    """Return a function that prints a transaction at once; None for a table, which is printed at the end."""
    if as_csv:
        print(CSV_HEADER)
        writer = csv.writer(sys.stdout, lineterminator="\n")
        return lambda each: writer.writerow(_csv_cells(each, unmasked=unmasked))
    if as_json:
        return lambda each: output.print_json_line(plain(each, unmasked=unmasked))
    return None


def read_day(option: str, text: str | None) -> date | None:
    """Return the day that an option names, or raise `WrongUsage`."""
    if text is None:
        return None
    today = datetime.now(UTC).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        return named.get(text) or datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise WrongUsage(f"{option} must be a day: YYYY-MM-DD, today or yesterday") from None


def describe(transaction: Transaction, *, unmasked: bool) -> str:
    """Return a transaction in a few words: ``collection of 15,000 TZS, +25568…567: SUCCESS``."""
    number = phone(transaction.phone_number, unmasked=unmasked)
    return visible(f"{shown_text(transaction.type)} of {money(transaction.amount)}, {number}: {state_of(transaction)}")


def state_of(transaction: Transaction) -> str:
    """Return the state, with the reason of a failure."""
    return f"{shown_text(transaction.status)} {shown_text(transaction.failure_reason or '')}".rstrip()


def columns(*, unmasked: bool) -> tuple[Column[Transaction], ...]:
    """Return the columns of a table of transactions."""
    return (
        Column("transaction", lambda each: each.id, is_id=True),
        *output.payment_columns(unmasked=unmasked),
        Column("state", state_of, min_width=16),
    )


def print_transaction(transaction: Transaction, *, unmasked: bool) -> None:
    """Print all fields of one transaction."""
    fees, settlement = transaction.fees, transaction.settlement
    facts: dict[str, str | None] = {
        "transaction": transaction.id,
        "state": state_of(transaction),
        "type": str(transaction.type),
        "amount": money(transaction.amount),
        "phone number": phone(transaction.phone_number, unmasked=unmasked),
        "network": transaction.network and str(transaction.network),
        "reference": transaction.reference,
        "external id": transaction.external_id,
        "merchant": transaction.merchant_id,
        "created, UTC": moment(transaction.created_at),
        "completed, UTC": moment(transaction.completed_at),
        "failed, UTC": moment(transaction.failed_at),
    }
    if fees is not None:
        shares = f"merchant {_shown(fees.merchant_fee)}, customer {_shown(fees.customer_fee)}"
        facts["fees"] = f"{money(fees.total_fee)}: {shares}"
    if settlement is not None:
        batch = f"{moment(settlement.settled_at) or '?'}, {settlement.settlement_batch or '?'}"
        facts["settled"] = f"{money(settlement.net_amount)} at {batch}"
    output.show_facts(facts)


def _shown(amount: Decimal | None) -> str:
    return "?" if amount is None else f"{amount:,f}"


def _csv_cells(transaction: Transaction, *, unmasked: bool) -> list[str]:
    """Return the cells of one line: the values of the JSON, unknown fields empty, no cell a formula."""
    values = plain(transaction, unmasked=unmasked)
    values |= values.get("fees", {}) | values.get("settlement", {})
    return [csv_cell(str(values.get(name, ""))) for name in CSV_HEADER.split(",")]
