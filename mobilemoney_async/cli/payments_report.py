"""What `mobilemoney payments` shows: tables, and what to do about each state.

Keys, notes and errors are anybody's text: none of it is taken for markup or for a terminal's commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from mobilemoney_async.cli.text import literal, phone, show
from mobilemoney_async.payments.records import PaymentRecord, PaymentState, is_stale

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
            literal(record.key),
            literal(str(record.type)),
            f"{record.amount:,f}",
            phone(record.phone_number, unmasked=unmasked),
            _state(record),
            _time(record.sent_at),
            literal(record.transaction_id or ""),
        )
    show(table)


def print_payment(record: PaymentRecord, now: datetime, *, unmasked: bool) -> None:
    """Print everything that is known of one payment, its history and what to do."""
    facts = {
        "key": record.key,
        "type": str(record.type),
        "amount": f"{record.amount:,f} TZS",
        "phone number": phone(record.phone_number, unmasked=unmasked),
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
            table.add_row(name, literal(value))
    show(table)
    if record.history:
        happened = Table(box=None, pad_edge=False, padding=(0, 1))
        for name in ("at, UTC", "what", "source", "detail"):
            happened.add_column(name, overflow="fold")
        for entry in record.history:
            happened.add_row(_time(entry.at), entry.what, entry.source, literal(entry.detail or ""))
        show("", happened)


def print_reconciled(
    looked_for: Sequence[PaymentRecord], left: Sequence[PaymentRecord], now: datetime, *, unmasked: bool
) -> None:
    """Print what became of the payments that were looked for, and what is left."""
    if not looked_for:
        show("No payment is unknown.")
    else:
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        table.add_column("key", overflow="fold", min_width=8)
        table.add_column("payment", overflow="fold")
        table.add_column("became", overflow="fold")
        table.add_column("what to do", ratio=1)
        for record in looked_for:
            number = phone(record.phone_number, unmasked=unmasked)
            found = record.transaction_id or " ".join(record.candidates)
            table.add_row(
                literal(record.key),
                literal(f"{record.type} of {record.amount:,f} TZS, {number}"),
                literal(f"{_state(record).plain} {found}".rstrip()),
                literal(advice(record, now)),
            )
        show(table)
    found_out = sum(not record.is_unresolved for record in looked_for)
    waiting = sum(needs_attention(record, now) for record in left)
    show(f"{found_out} found out, {waiting} still unresolved, {len(left) - waiting} on their way.")


def print_warning() -> None:
    """Print what a person's word does, before it is given."""
    show(
        "If you say that it does not exist, its key may be used again, and money is sent again when it is. "
        "If it exists after all, somebody pays twice."
    )


def _state(record: PaymentRecord) -> Text:
    status = f" {record.status}" if record.status is not None else ""
    ambiguous = ", ambiguous" if record.is_ambiguous else ""
    return literal(f"{record.state}{status}{ambiguous}")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
