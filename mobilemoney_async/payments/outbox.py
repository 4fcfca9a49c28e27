"""Outbox: payments that are recorded in the merchant's own transaction, and sent later by a dispatcher.

Critical section: `enqueue` inserts into three tables and locks nothing but the payment's own row, which is new unless
the key was used. So on PostgreSQL the merchant's transaction may stay open for minutes, while all other payments go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.codec import encode
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import history, insert_missing, payments
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.creates import payment_request
from mobilemoney_async.payments.journal import Journal, JournalEntry, to_record
from mobilemoney_async.payments.queries import chunks
from mobilemoney_async.payments.records import (
    PaymentEvent,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
    move,
)
from mobilemoney_async.resources.creates import create_body
from mobilemoney_async.values import refuse, require_integer, require_name

_MOST_PRIORITY = 1_000_000

_columns = payments.c


@attrs.frozen(kw_only=True)
class QueueOptions:
    """Options of a queued payment.

    Attributes:
        extra: The extra fields of its request, as JSON, or None.
        not_before: The time before which it is not sent, or None.
        priority: Higher ones are sent first.
        batch: The batch that it is a line of, or None.
        line: The line, from 1, or None.
    """

    extra: str | None = None
    not_before: datetime | None = None
    priority: int = 0
    batch: str | None = None
    line: int | None = None


def read_order(
    *,
    type: object,
    phone_number: str,
    amount: int | Decimal | str,
    idempotency_key: str,
    extra: Mapping[str, Any] | None,
    not_before: object,
    priority: int,
) -> tuple[PaymentRequest, QueueOptions]:
    """Return the payment that the arguments of an `enqueue` ask for.

    Raises:
        InvalidRequest: An argument is invalid.
    """
    key = require_name("idempotency_key", idempotency_key)
    kind = next((each for each in TransactionType if type == each), None)
    if kind is None:
        raise refuse("type", "collection or disbursement")
    if not_before is not None and (not isinstance(not_before, datetime) or not_before.tzinfo is None):
        raise refuse("not_before", "an aware datetime", not_before)
    place = require_integer("priority", priority, -_MOST_PRIORITY)
    if place > _MOST_PRIORITY:
        raise refuse("priority", f"at most {_MOST_PRIORITY:,}", priority)
    body = create_body(phone_number, amount, extra)
    text = None if not extra else encode("extra", dict(extra)).decode()
    return payment_request(kind, body, key), QueueOptions(extra=text, not_before=not_before, priority=place)


def enqueue(journal: Journal, request: PaymentRequest, options: QueueOptions, at: datetime) -> PaymentRecord:
    """Record a payment that is to be sent, and return it; return the payment of the key if there is one.

    One that never reached the service, or was refused, is queued again.

    Raises:
        IdempotencyConflict: The key was used for another payment.
    """
    values = _row(journal.account, request, options, at)
    made = journal.connection.execute(insert_missing(payments, journal.connection.dialect.name), values)
    if made.one_or_none() is not None:
        journal.note(request.key, at=at, what=PaymentEvent.ENQUEUE.value, source=Source.CALLER, detail=None)
        journal.publish(request.key, PaymentState.QUEUED, None, at=at)
        row = journal.row(request.key)
        assert row is not None
        return to_record(row)
    record, _ = journal.look_up(request)
    assert record is not None  # rows are never deleted
    if move(record.state, PaymentEvent.ENQUEUE) is None:
        return record
    queued = queue_again(journal, record, at=at)
    if isinstance(queued, StoreError):
        return record  # it was changed at the same moment
    return to_record(journal.update(record.key, attrs.asdict(options)))


def enqueue_all(journal: Journal, orders: Sequence[tuple[PaymentRequest, QueueOptions]], at: datetime) -> None:
    """Record thousands of payments that are to be sent, in a few statements; see `enqueue`."""
    for some in chunks(orders):
        here = (_columns.account == journal.account, _columns.key.in_([request.key for request, _ in some]))
        known = set(journal.connection.execute(sa.select(_columns.key).where(*here)).scalars())
        new = [_row(journal.account, *order, at) for order in some if order[0].key not in known]
        if new:
            # A key that is used at this very moment ends the whole transaction: nothing is queued.
            journal.connection.execute(payments.insert(), new)
            of_each = [{"account": journal.account, "key": row["key"], "number": 1, "at": at} for row in new]
            said = {"what": PaymentEvent.ENQUEUE.value, "source": str(Source.CALLER), "detail": None}
            journal.connection.execute(history.insert(), [each | said for each in of_each])
            journal.publish_new([row["key"] for row in new], PaymentState.QUEUED, at=at)
        for request, options in some:
            if request.key in known:
                enqueue(journal, request, options, at)


def _row(account: str, request: PaymentRequest, options: QueueOptions, at: datetime) -> dict[str, Any]:
    return {
        "account": account,
        "key": request.key,
        "type": str(request.type),
        "phone_number": request.phone_number,
        "amount": request.amount,
        "extra_digest": request.extra_digest,
        "external_id": request.external_id,
        "state": str(PaymentState.QUEUED),
        "attempt": 0,
        "is_adopted": False,
        "walks": 0,
        "created_at": at,
        "changed_at": at,
        **attrs.asdict(options),
    }


def queue_again(
    journal: Journal, record: PaymentRecord, *, at: datetime, reason: str | None = None, pause: float = 0.0
) -> PaymentRecord | StoreError:
    """Queue a payment again that was not sent or was refused; a dispatcher takes it after so many seconds."""
    source = Source.CALLER if reason is None else Source.ANSWER
    entry = JournalEntry(record.key, record.attempt, PaymentEvent.ENQUEUE, source=source, at=at, detail=reason)
    queued = journal.apply(entry)
    return (
        queued if isinstance(queued, StoreError) else postpone(journal, record.key, at=at, reason=reason, pause=pause)
    )


def postpone(journal: Journal, key: str, *, at: datetime, reason: str | None, pause: float) -> PaymentRecord:
    """Let a queued payment wait for so many seconds, for a reason that its record shows."""
    values = {"reason": reason, "next_look_at": at + timedelta(seconds=pause) if pause else None}
    return to_record(journal.update(key, values))


def cancel(journal: Journal, key: str, *, note: str, at: datetime) -> PaymentRecord | StoreError:
    """Take a payment out of the queue, and return it as it is now, or the error to raise."""
    record = journal.find(key, lock=True)
    if record is None:
        return StoreError(f"there is no payment {key!r}", outcome="not_sent")
    if record.state is not PaymentState.QUEUED:
        return StoreError(f"payment {key!r} is {record.state}, not queued: nothing was changed", outcome="not_sent")
    if record.attempt:
        # Refused before, perhaps not for certain: its key is no proof that nothing was made.
        said = "was sent before: it can be left, but not cancelled"
        return StoreError(f"payment {key!r} {said}", outcome="not_sent")
    return journal.apply(JournalEntry(key, 0, PaymentEvent.CANCEL, source=Source.PERSON, at=at, detail=note))


def next_queued(journal: Journal, now: datetime, *, limit: int) -> list[tuple[PaymentRecord, str | None]]:
    """Return the payments to send next, with their extra fields: by priority, then age."""
    is_due = (sa.or_(column.is_(None), column <= now) for column in (_columns.not_before, _columns.next_look_at))
    statement = (
        sa.select(payments)
        .where(_columns.account == journal.account, sa.text("state = 'QUEUED'"), *is_due)
        .order_by(_columns.priority.desc(), _columns.created_at, _columns.key)
        .limit(limit)
    )
    return [(to_record(row), row.extra) for row in journal.connection.execute(statement)]


def count_queued(journal: Journal) -> int:
    """Return the number of queued payments."""
    statement = sa.select(sa.func.count()).where(_columns.account == journal.account, sa.text("state = 'QUEUED'"))
    count: Any = journal.connection.execute(statement.select_from(payments)).scalar_one()
    return int(count)
