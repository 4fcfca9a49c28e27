"""What was found out about unknown payments, as statements inside one transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import payments
from mobilemoney_async.payments import rows
from mobilemoney_async.payments.journal import Contradiction, JournalEntry, apply, find, note, record_seen
from mobilemoney_async.payments.late_matches import ReleasedAttempt
from mobilemoney_async.payments.matching import Verdict
from mobilemoney_async.payments.records import WALKS, Event, PaymentRecord, PaymentState, Source

logger: logging.Logger = logging.getLogger("mobilemoney_async")


def mark_stale(
    connection: sa.Connection, account: str, now: datetime, *, keep: Iterable[Any], stale_after: float | None
) -> None:
    """Count payments whose sender must have died as unknown.

    Args:
        connection: Writing.
        account: Whose.
        now: Now.
        keep: Keys that are being sent by this process.
        stale_after: How long after its send a payment counts as unknown, seconds; None for when it must have ended.
    """
    where = [payments.c.account == account, payments.c.state == PaymentState.SENDING]
    if stale_after is None:
        where.append(payments.c.stale_at <= now)
    else:
        where.append(payments.c.sent_at <= now - timedelta(seconds=stale_after))
    kept = set(keep)
    for row in connection.execute(sa.select(payments).where(*where).with_for_update()).all():
        if row.key in kept:
            continue
        lost = JournalEntry(
            key=row.key,
            attempt=row.attempt,
            event=Event.LOSE,
            source=Source.RECONCILE,
            at=now if row.stale_at is None else min(now, row.stale_at),
            detail="the process that sent it did not say what became of it",
        )
        apply(connection, account, lost)


def record_listing(
    connection: sa.Connection,
    account: str,
    record: PaymentRecord,
    verdict: Verdict,
    doubted: ReleasedAttempt | None,
    *,
    began_at: datetime,
    ended_at: datetime,
    grace: float,
) -> PaymentRecord:
    """Record what a complete walk said of an unknown payment, unless that has changed since.

    Args:
        connection: Writing.
        account: Whose.
        record: As it was before the walk.
        verdict: What the walk says.
        doubted: The attempt of another payment that the transaction to be adopted may be: then a person decides.
        began_at: When the walk began.
        ended_at: When it was complete.
        grace: How long after the end of a request a walk may still miss it, seconds.
    """
    row = rows.by_key(connection, account, record.key, lock=True)
    assert row is not None  # rows are never deleted
    current = rows.read(row)
    if current.attempt != record.attempt or current.state not in {PaymentState.UNKNOWN, PaymentState.ABSENT}:
        return current
    if doubted is not None:
        verdict = _doubt(connection, current, verdict, doubted, at=ended_at)
    if verdict.adopt is not None:
        adopted = adopt(connection, account, current, verdict.adopt, source=Source.RECONCILE, at=ended_at)
        return current if isinstance(adopted, Contradiction) else adopted
    values: dict[str, Any] = {}
    if verdict.candidates:
        if verdict.candidates != current.candidates:
            values = {
                "candidates": json.dumps(verdict.candidates),
                "walks": 0,
                "walked_at": None,
                "changed_at": ended_at,
            }
            note(
                connection,
                row.id,
                at=ended_at,
                what="ambiguous",
                source=Source.RECONCILE,
                detail=" ".join(verdict.candidates),
            )
    elif _counts(current, row.walked_at, began_at, grace):
        values = {"candidates": None, "walks": current.walks + 1, "walked_at": ended_at, "changed_at": ended_at}
    elif current.candidates:
        values = {"candidates": None}
    if values:
        rows.update(connection, row.id, values)
    if values.get("walks", 0) >= WALKS and current.state is PaymentState.UNKNOWN:
        miss = JournalEntry(
            key=record.key,
            attempt=record.attempt,
            event=Event.MISS,
            source=Source.RECONCILE,
            at=ended_at,
            detail="two complete walks have not shown it",
        )
        apply(connection, account, miss)
    updated = find(connection, account, record.key)
    assert updated is not None
    return updated


def _doubt(
    connection: sa.Connection, record: PaymentRecord, verdict: Verdict, doubted: ReleasedAttempt, *, at: datetime
) -> Verdict:
    """Return the verdict without its adoption, which another payment may contest; tell that one's history once."""
    if verdict.adopt is None:
        return verdict
    transaction_id = verdict.adopt.id
    verdict = Verdict(candidates=(transaction_id,))
    if verdict.candidates == record.candidates:
        return verdict
    logger.error("payment %r may have been paid twice: transaction %s", doubted.key, transaction_id)
    detail = f"transaction {transaction_id} may be attempt {doubted.number}, which was called absent: paid twice?"
    note(connection, doubted.payment_id, at=at, what="contradiction", source=Source.RECONCILE, detail=detail)
    return verdict


def adopt(
    connection: sa.Connection,
    account: str,
    record: PaymentRecord,
    transaction: Transaction,
    *,
    source: Source,
    at: datetime,
    note: str | None = None,
) -> PaymentRecord | Contradiction:
    """Record which transaction an unknown payment is, and its state.

    Args:
        connection: Writing.
        account: Whose.
        record: The payment, in the attempt that is meant.
        transaction: Which it is.
        source: Who says so.
        at: When.
        note: Why.
    """
    first = TransactionStatus.PENDING if record.type == TransactionType.COLLECTION else TransactionStatus.PROCESSING
    acknowledgement = Acknowledgement(
        transaction_id=transaction.id,
        reference=transaction.reference,
        amount=record.amount,
        currency=transaction.currency,
        phone_number=record.phone_number,
        status_code=first,
        status="success",
    )
    adopted = apply(
        connection,
        account,
        JournalEntry(
            key=record.key,
            attempt=record.attempt,
            event=Event.ADOPT,
            source=source,
            at=at,
            detail=note,
            acknowledgement=acknowledgement,
        ),
    )
    if not isinstance(adopted, Contradiction):
        record_seen(connection, account, transaction, source=source, at=at)
        adopted = find(connection, account, record.key) or adopted
    return adopted


def _counts(record: PaymentRecord, walked_at: datetime | None, began_at: datetime, grace: float) -> bool:
    """Return whether a walk that began then says something of the payment's absence."""
    if record.ended_at is None or began_at < record.ended_at + timedelta(seconds=grace):
        return False
    return walked_at is None or began_at >= walked_at
