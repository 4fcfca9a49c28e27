"""What `mobilemoney payments` shows: tables and JSON, and what to do about each state.

Keys, notes and errors are anybody's text: none of it is taken for markup or for a terminal's commands.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from mobilemoney_async.payments.records import PaymentRecord, PaymentState, is_stale
from mobilemoney_async.values import mask_phone_number

_PIPED_WIDTH = 200

_ADVICE = {
    PaymentState.UNKNOWN: "Nobody knows whether it exists: reconcile finds out. "
    "If you know that it does not, say so with confirm-absent.",
    PaymentState.ABSENT: "The service's list does not show it. "
    "If it shows nowhere else either, say so with confirm-absent; its key may then be used again.",
    PaymentState.NOT_SENT: "It never reached the service: its key may be used again.",
    PaymentState.REFUSED: "The service said no: its key may be used again once the reason is mended.",
    PaymentState.RELEASED: "A person has said that it does not exist: its key may be used again.",
    PaymentState.ACKNOWLEDGED: "It exists: follow it to its final state.",
    PaymentState.FINAL: "Nothing is left to do.",
}


def advice(record: PaymentRecord, now: datetime) -> str:
    """Return what to do about a payment."""
    if record.is_ambiguous:
        return (
            "It may be one of the transactions named as candidates. If one of them is, say so with identify; "
            "if none is, with confirm-absent."
        )
    if record.state is PaymentState.SENDING:
        if is_stale(record, now):
            return "Its sender seems to have died: reconcile finds out what became of it."
        return "It is on its way: wait."
    return _ADVICE[record.state]


def needs_attention(record: PaymentRecord, now: datetime) -> bool:
    """Return whether nobody knows what became of a payment, and waiting for its answer will not tell."""
    return record.is_unresolved and (record.state is not PaymentState.SENDING or is_stale(record, now))


def plain(value: Any, *, unmasked: bool) -> Any:
    """Return a record as JSON: money and times as text, what is not known left out."""
    if attrs.has(type(value)):
        fields = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
        if "phone_number" in fields:
            fields["phone_number"] = _number(fields["phone_number"], unmasked=unmasked)
        return {name: plain(inside, unmasked=unmasked) for name, inside in fields.items() if inside not in (None, ())}
    if isinstance(value, tuple):
        return [plain(each, unmasked=unmasked) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value) if isinstance(value, str) else value


def print_json(value: Any) -> None:
    """Print a value as JSON, in ASCII: whatever the terminal is."""
    print(json.dumps(value, indent=2))


def print_payments(records: Sequence[PaymentRecord], *, unmasked: bool) -> None:
    """Print a table of payments."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    # Keys and ids are for copying: folded where they must be, never cut.
    table.add_column("key", overflow="fold", min_width=8)
    table.add_column("type", no_wrap=True)
    table.add_column("TZS", no_wrap=True, justify="right")
    table.add_column("phone", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=12)
    table.add_column("sent, UTC", overflow="fold", min_width=10)
    table.add_column("transaction", overflow="fold", min_width=11)
    for record in records:
        table.add_row(
            _text(record.key),
            _text(str(record.type)),
            f"{record.amount:,f}",
            _number(record.phone_number, unmasked=unmasked),
            _state(record),
            _time(record.sent_at),
            _text(record.transaction_id or ""),
        )
    _print(table)


def print_payment(record: PaymentRecord, now: datetime, *, unmasked: bool) -> None:
    """Print everything that is known of one payment, its history and what to do."""
    facts = {
        "key": record.key,
        "type": str(record.type),
        "amount": f"{record.amount:,f} TZS",
        "phone number": _number(record.phone_number, unmasked=unmasked),
        "state": _state(record).plain,
        "attempts": str(record.attempt),
        "first recorded": _time(record.created_at),
        "last sent": _time(record.sent_at),
        "request ended": _time(record.ended_at),
        "transaction": (record.transaction_id or "") + (", found in the list" if record.is_adopted else ""),
        "reference": record.reference or "",
        "candidates": " ".join(record.candidates),
        "walks without it": str(record.walks or ""),
        "failure": (record.transaction.failure_reason or "") if record.transaction is not None else "",
        "error": record.error or "",
        "what to do": advice(record, now),
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(name, _text(value))
    _print(table)
    if record.history:
        happened = Table(box=None, pad_edge=False, padding=(0, 1))
        for name in ("at, UTC", "what", "source", "detail"):
            happened.add_column(name, overflow="fold")
        for entry in record.history:
            happened.add_row(_time(entry.at), entry.what, entry.source, _text(entry.detail or ""))
        _print("", happened)


def print_reconciled(
    looked_for: Sequence[PaymentRecord], left: Sequence[PaymentRecord], now: datetime, *, unmasked: bool
) -> None:
    """Print what became of the payments that were looked for, and what is left."""
    if not looked_for:
        _print("No payment is unknown.")
    else:
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        table.add_column("key", overflow="fold", min_width=8)
        table.add_column("payment", overflow="fold")
        table.add_column("became", overflow="fold")
        table.add_column("what to do", ratio=1)
        for record in looked_for:
            number = _number(record.phone_number, unmasked=unmasked)
            found = record.transaction_id or " ".join(record.candidates)
            table.add_row(
                _text(record.key),
                _text(f"{record.type} of {record.amount:,f} TZS, {number}"),
                _text(f"{_state(record).plain} {found}".rstrip()),
                _text(advice(record, now)),
            )
        _print(table)
    found_out = sum(not record.is_unresolved for record in looked_for)
    waiting = sum(needs_attention(record, now) for record in left)
    _print(f"{found_out} found out, {waiting} still unresolved, {len(left) - waiting} on their way.")


def print_warning() -> None:
    """Print what a person's word does, before it is given."""
    _print(
        "If you say that it does not exist, its key may be used again, and money is sent again when it is. "
        "If it exists after all, somebody pays twice."
    )


def _print(*things: RenderableType) -> None:
    # What is piped is for programs that read lines: wide enough that hardly anything is folded.
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(highlight=False, width=_PIPED_WIDTH if is_piped else None)
    with console.capture() as shown:
        console.print(*things, sep="\n")
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _state(record: PaymentRecord) -> Text:
    status = f" {record.status}" if record.status is not None else ""
    ambiguous = ", ambiguous" if record.is_ambiguous else ""
    return _text(f"{record.state}{status}{ambiguous}")


def _number(phone_number: str, *, unmasked: bool) -> str:
    return phone_number if unmasked else mask_phone_number(phone_number)


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _text(text: str) -> Text:
    return Text("".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text))
