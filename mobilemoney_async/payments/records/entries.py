"""Entries of a payment's journal, and the columns of its row that each changes. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.database.serialization import dump, shorten
from mobilemoney_async.payments.records.reasons import Reason
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentState, Source
from mobilemoney_async.payments.records.rows import reason_columns


@attrs.frozen
class JournalEntry:
    """Event of one attempt of a payment, the latest if `attempt` is None.

    Attributes:
        detail: For the history.
        acknowledgement: With `PaymentEvent.ACKNOWLEDGE` and `PaymentEvent.ADOPT`.
        is_certain: With `PaymentEvent.REFUSE`: whether the service refused with a code of contract section 7.
        code: With `PaymentEvent.REFUSE`: the service's code, or the HTTP status.
        candidates: With `PaymentEvent.DOUBT`: transactions that it may be.
        named_id: With `PaymentEvent.LOSE`: the transaction that an acknowledgement named which does not fit.
        reason: With `PaymentEvent.DOUBT`: why it may exist; None if the payment's own reason says so.
    """

    key: str
    attempt: int | None
    event: PaymentEvent
    source: Source
    at: datetime
    detail: str | None = None
    acknowledgement: Acknowledgement | None = None
    is_certain: bool | None = None
    code: str | None = None
    candidates: tuple[str, ...] = ()
    named_id: str | None = None
    reason: Reason | None = None


def columns_of(entry: JournalEntry, ended_at: datetime | None, target: PaymentState) -> dict[str, Any]:
    """Return the columns that an event changes."""
    acknowledged = entry.acknowledgement
    values: dict[str, Any] = {"state": target, "changed_at": entry.at}
    if _is_certain(entry):
        values |= {"candidates": None, **reason_columns(None)}
    if ended_at is None or entry.event in {PaymentEvent.ACKNOWLEDGE, PaymentEvent.LOSE}:
        values["ended_at"] = entry.at
    if acknowledged is not None:
        values |= {
            "transaction_id": acknowledged.transaction_id,
            "reference": acknowledged.reference,
            "status": shorten(str(acknowledged.status_code)),
            "acknowledgement": dump(acknowledged),
            "named_id": None,
            "is_adopted": entry.event is PaymentEvent.ADOPT,
        }
    if entry.event in {PaymentEvent.REFUSE, PaymentEvent.FAIL_UNSENT, PaymentEvent.PUT_BACK, PaymentEvent.LOSE}:
        values["error"] = entry.detail and shorten(entry.detail)
    if entry.event is not PaymentEvent.ENQUEUE:  # a queued payment keeps the facts about its last attempt
        values["is_certain"] = bool(entry.is_certain) if target is PaymentState.REFUSED else None
        values["code"] = entry.code and shorten(entry.code)
    if entry.event is PaymentEvent.LOSE:
        # A listing that began before the request ended proves nothing.
        values |= {"walks": 0, "walked_at": None, "looked_at": None, "look_passed": None, "next_look_at": None}
    if entry.event is PaymentEvent.CONFIRM_ABSENT:
        values |= {"looked_at": None, "look_passed": None, "next_look_at": None}
    values |= {} if entry.reason is None else reason_columns(entry.reason)
    values |= {} if entry.named_id is None else {"named_id": entry.named_id}
    if entry.candidates:
        values["candidates"] = json.dumps(entry.candidates)
    return values


def _is_certain(entry: JournalEntry) -> bool:
    """Return whether an event says for certain which transaction a payment is, or that it is none."""
    if entry.event is PaymentEvent.REFUSE:
        return bool(entry.is_certain)
    is_none = {PaymentEvent.FAIL_UNSENT, PaymentEvent.PUT_BACK, PaymentEvent.CONFIRM_ABSENT}
    return entry.acknowledgement is not None or entry.event in is_none


def as_kept(entry: JournalEntry, row: sa.Row[Any]) -> JournalEntry:
    """Return an entry without the number that was erased from a payment's row meanwhile."""
    if entry.acknowledgement is None or not row.phone_number.startswith(ERASED):
        return entry
    return attrs.evolve(entry, acknowledgement=attrs.evolve(entry.acknowledgement, phone_number="erased"))


def acknowledged_columns(entry: JournalEntry) -> dict[str, Any]:
    """Return the columns that our own acknowledgement changes where the list has shown its transaction before."""
    assert entry.acknowledgement is not None
    return {"is_adopted": False, "ended_at": entry.at, "acknowledgement": dump(entry.acknowledgement)}


def problem_of(entry: JournalEntry, row: sa.Row[Any]) -> str | None:
    """Return why an event cannot be one of a payment's row, other than by its state, or None."""
    if row.owner not in {None, row.key}:
        return f"belongs to another payment ({row.owner})"
    if entry.attempt not in {None, row.attempt}:
        return f"is of attempt {entry.attempt}, and attempt {row.attempt} is {row.state}"
    if entry.event is PaymentEvent.LOSE and entry.named_id is None and row.state == PaymentState.RELEASED:
        return f"is {row.state} already"
    if entry.event is PaymentEvent.ACKNOWLEDGE and row.transaction_id is not None and not row.is_adopted:
        return f"is {row.state} already"
    return None


def detail_of(entry: JournalEntry) -> str | None:
    """Return the history's words for an event: the transaction that an answer has named, and the reason."""
    named = entry.named_id if entry.acknowledgement is None else entry.acknowledgement.transaction_id
    return ": ".join(filter(None, [named, entry.detail])) or None
