"""What is shown of transactions: a line, a table, everything about one, and CSV.

Ids, references and reasons are the service's text, that is anybody's: none of it is taken for markup, for a terminal's
commands, or for a spreadsheet's formula.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal

from rich.console import RenderableType
from rich.table import Table

from mobilemoney_async.cli.board import NEWS_IN_WORDS, Change
from mobilemoney_async.cli.text import literal, phone, plain, print_json_line, show, visible
from mobilemoney_async.contract.models import Transaction

CSV_COLUMNS: tuple[str, ...] = (
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
    "merchant_fee",
    "customer_fee",
    "total_fee",
    "net_amount",
    "settled_at",
    "settlement_batch",
)
"""The header of the CSV; as in the contract, with fees and settlement spread out."""

# What makes a spreadsheet take a cell for a formula, in the width of Latin and of Chinese type.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
# A phone number, whole or masked, is none: there is nothing in it to work out.
_NUMBER = re.compile(r"\+[0-9…]+", re.ASCII)


def describe(transaction: Transaction, *, unmasked: bool) -> str:
    """Return a transaction in a few words: ``collection of 15,000 TZS, +25568…567: SUCCESS``."""
    number = phone(transaction.phone_number, unmasked=unmasked)
    return visible(f"{transaction.type} of {money(transaction.amount)}, {number}: {state(transaction)}")


def money(amount: Decimal) -> str:
    """Return an amount for people: ``15,000 TZS``."""
    return f"{amount:,f} TZS"


def state(transaction: Transaction) -> str:
    """Return the state, with the reason of a failure."""
    return f"{transaction.status} {transaction.failure_reason or ''}".rstrip()


def moment(at: datetime | None) -> str:
    """Return a time of UTC, to the second."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def short_table() -> Table:
    """Return a table with the columns of `short_row`."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    # Folded where they must be, never cut: ids are for copying. All of it fits on 80 columns.
    table.add_column("transaction", overflow="fold", min_width=10)
    table.add_column("type", no_wrap=True)
    table.add_column("TZS", no_wrap=True, justify="right")
    table.add_column("phone", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=12)
    return table


def short_row(transaction: Transaction, *, unmasked: bool) -> list[RenderableType]:
    """Return what a table shows of a transaction."""
    return [
        literal(transaction.id),
        literal(str(transaction.type)),
        f"{transaction.amount:,f}",
        literal(phone(transaction.phone_number, unmasked=unmasked)),
        literal(state(transaction)),
    ]


def print_transactions(transactions: Sequence[Transaction], *, unmasked: bool) -> None:
    """Print a table of transactions."""
    table = short_table()
    table.add_column("created, UTC", overflow="fold", min_width=10)
    for transaction in transactions:
        table.add_row(*short_row(transaction, unmasked=unmasked), moment(transaction.created_at))
    show(table)


def print_transaction(transaction: Transaction, *, unmasked: bool) -> None:
    """Print everything about one transaction."""
    fees, settlement = transaction.fees, transaction.settlement
    facts = {
        "transaction": transaction.id,
        "state": state(transaction),
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
        "fees": ""
        if fees is None
        else f"{money(fees.total_fee)}: merchant {fees.merchant_fee:,f}, customer {fees.customer_fee:,f}",
        "settled": ""
        if settlement is None
        else f"{money(settlement.net_amount)} at {moment(settlement.settled_at)}, {settlement.settlement_batch}",
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(name, literal(value))
    show(table)


def print_change(change: Change, *, as_json: bool, unmasked: bool) -> None:
    """Print a change on one line, at once."""
    if as_json:
        line = {
            "event": str(change.news),
            "at": change.at,
            "transaction_id": change.transaction_id,
            "transaction": change.transaction,
            "error": None if change.error is None else str(change.error),
        }
        print_json_line(plain(line, unmasked=unmasked))
    elif change.transaction is not None:
        print(f"{visible(change.transaction_id)}  {describe(change.transaction, unmasked=unmasked)}", flush=True)
    else:
        print(f"{visible(change.transaction_id)}  {NEWS_IN_WORDS[change.news]}", flush=True)


def print_csv_header() -> None:
    """Print the names of the columns."""
    _print_row(CSV_COLUMNS)


def print_csv(transactions: Iterable[Transaction], *, unmasked: bool) -> None:
    """Print a line for each transaction: amounts as plain digits, times in ISO 8601, what is not known empty."""
    for transaction in transactions:
        _print_row(csv_cells(transaction, unmasked=unmasked))
    sys.stdout.flush()


def csv_cells(transaction: Transaction, *, unmasked: bool) -> list[str]:
    """Return the cells of one line, none of which a spreadsheet takes for a formula."""
    fees, settlement = transaction.fees, transaction.settlement
    return [
        _text(transaction.id),
        _text(transaction.reference),
        _text(transaction.external_id),
        _text(str(transaction.type)),
        _amount(transaction.amount),
        _text(transaction.currency),
        _text(phone(transaction.phone_number, unmasked=unmasked)),
        _text(str(transaction.network)),
        _text(str(transaction.status)),
        _text(transaction.failure_reason),
        _at(transaction.created_at),
        _at(transaction.completed_at),
        _at(transaction.failed_at),
        *(("", "", "") if fees is None else map(_amount, (fees.merchant_fee, fees.customer_fee, fees.total_fee))),
        *(
            ("", "", "")
            if settlement is None
            else (_amount(settlement.net_amount), _at(settlement.settled_at), _text(settlement.settlement_batch))
        ),
    ]


def _print_row(cells: Iterable[str]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerow(cells)


def _text(text: str | None) -> str:
    # Also what is no printable text is escaped, so that a transaction stays on its line.
    text = visible(text or "")
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _amount(amount: Decimal) -> str:
    return f"{amount:f}"


def _at(at: datetime | None) -> str:
    return "" if at is None else at.isoformat()
