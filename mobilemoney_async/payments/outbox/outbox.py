"""Outbox: payments that are recorded in the merchant's own transaction, and sent later by a dispatcher.

Critical section: `enqueue` inserts one row into each of three tables, reads nothing else, and locks nothing but the
payment's own row, which is new unless the key was used. So on PostgreSQL the merchant's transaction may stay open for
minutes, while all other payments go on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.codec import Fields, encode
from mobilemoney_async.contract.states import TransactionType, require_type
from mobilemoney_async.database.column_types import UTCDateTime
from mobilemoney_async.database.prepared import run
from mobilemoney_async.database.schema import (
    FOUND_VERSION,
    IS_QUEUED,
    batches,
    changes,
    history,
    insert_missing,
    payments,
    require_known,
)
from mobilemoney_async.database.serialization import shorten
from mobilemoney_async.errors import (
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidRequest,
    LimitExceeded,
    MobileMoneyError,
    OutcomeUnknown,
    StoreError,
)
from mobilemoney_async.payments.creates.creates import payment_request
from mobilemoney_async.payments.records.account_store import STATE, require_active
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks
from mobilemoney_async.payments.records.reasons import TRIED, PaymentCause, Reason
from mobilemoney_async.payments.records.record import (
    PaymentEvent,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
    is_stale,
    move,
)
from mobilemoney_async.payments.records.rows import JournalEntry, reason_columns, request_columns, to_record
from mobilemoney_async.payments.records.statements import PAYMENTS
from mobilemoney_async.resources.creates import create_body
from mobilemoney_async.values import HiddenText, refuse, require_integer, require_key, require_moment

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_MOST_PRIORITY, _MOST_AT_ONCE = 1_000_000, 1_000

_columns = payments.c
_MADE = (*_columns, FOUND_VERSION.label("version"), STATE)
_FIRST_ENTRY, _FIRST_CHANGE = history.insert().inline(), changes.insert().inline()
_QUEUED = PAYMENTS.where(IS_QUEUED)
_COUNT = _QUEUED.with_only_columns(sa.func.count(), sa.func.max(_columns.not_before), sa.func.min(_columns.not_after))
_now = sa.bindparam("now", type_=UTCDateTime)
_kind = sa.tuple_(_columns.type, _columns.phone_number, _columns.amount)
_NEXT = (
    _QUEUED.where(_columns.type.in_(sa.bindparam("types", expanding=True)))
    .where(_kind.not_in(sa.bindparam("kinds", expanding=True)))
    .where(sa.or_(_columns.not_before.is_(None), _columns.not_before <= _now))
    .where(sa.or_(_columns.not_after.is_(None), _columns.not_after > _now))
    # One that was tried in vain stands behind those that were due before it is again.
    .order_by(_columns.priority.desc(), sa.func.coalesce(_columns.not_before, _columns.created_at), _columns.key)
    .limit(1)
)

Queued = tuple[PaymentRecord, str | None]
"""Payment in the queue, and its extra fields as JSON."""

Counted = tuple[int, datetime | None, datetime | None]
"""Number of queued payments, the latest `not_before` of them, and the earliest `not_after`."""


@attrs.frozen(kw_only=True)
class QueueOptions:
    """Options of a queued payment.

    Attributes:
        extra: The extra fields of its request, as JSON, or None.
        not_before: The time before which it is not sent, or None.
        not_after: The time from which it is not sent any more, or None.
        priority: Higher ones are sent first.
        batch: The batch that it is a line of, or None.
        line: The line, from 1, or None.
        previous_key: The payment that it is made in place of, as the retry of a batch, or None.
    """

    extra: str | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    priority: int = 0
    batch: str | None = None
    line: int | None = None
    previous_key: str | None = None


def read_order(
    *,
    type: object,
    phone_number: str,
    amount: int | Decimal | str,
    idempotency_key: str,
    extra: Fields | None,
    not_before: datetime | timedelta | None,
    not_after: datetime | timedelta | None,
    priority: int,
    now: datetime,
) -> tuple[PaymentRequest, QueueOptions]:
    """Return the payment that the arguments of an `enqueue` ask for, which has hidden number, amount and extra fields.

    Raises:
        InvalidRequest: An argument is invalid.
    """
    key = require_key("idempotency_key", idempotency_key)
    kind = require_type(type)
    begin, end = _read_time("not_before", not_before, now), _read_time("not_after", not_after, now)
    place = require_integer("priority", priority, -_MOST_PRIORITY, _MOST_PRIORITY)
    body = create_body(phone_number, amount, extra)
    text = None if extra is None or not extra.reveal() else HiddenText(encode("extra", extra).decode())
    return payment_request(kind, body, key), QueueOptions(extra=text, not_before=begin, not_after=end, priority=place)


def _read_time(argument: str, value: datetime | timedelta | None, now: datetime) -> datetime | None:
    if isinstance(value, timedelta):
        try:
            return now + value
        except OverflowError:
            raise refuse(argument, "less than some thousand years from now") from None
    accepted = "an aware datetime of UTC's years 1 to 9999, or a timedelta from now"
    return None if value is None else require_moment(argument, value, accepted)


def enqueue(journal: Journal, request: PaymentRequest, options: QueueOptions, at: datetime) -> PaymentRecord:
    """Record a payment that is to be sent, and return it; return the payment of the key if there is one.

    One that never reached the service, or was refused, is queued again.

    Raises:
        IdempotencyConflict: The key was used for another payment.
        AccountSuspended: The account begins no payment now.
        StoreError: Another release has changed the tables since this process began.
    """
    row = {**_row(journal.account, request, options, at), "of_account": journal.account}
    made = run(journal.connection, insert_missing(payments, journal.dialect, *_MADE), row)
    if made is not None:
        try:
            require_known(made.version)
            require_active(journal, made.account_state)
        except MobileMoneyError:  # the merchant's own transaction may go on after it
            journal.delete_rows(payments, _columns.key == request.key)
            raise
        _announce(journal, [request.key], at)
        return to_record(made)
    record, _ = journal.look_up(request)
    batch: str | None = None
    if record is not None and move(record.state, PaymentEvent.ENQUEUE) is not None:
        row = journal.row(record.key, lock=True)
        record, batch = to_record(row), row.batch
    assert record is not None  # rows are never deleted
    if move(record.state, PaymentEvent.ENQUEUE) is None:
        return record
    _require_active(journal)
    journal.apply(JournalEntry(record.key, record.attempt, PaymentEvent.ENQUEUE, source=Source.CALLER, at=at))
    # Whatever asks for it again, a payment stays the one that a retry has made in place of another, and a line of its
    # batch, which someone may still cancel.
    kept = {"previous_key"}
    if (
        options.batch is None
        and batch
        and journal.count(batches, batches.c.id == batch, batches.c.cancelled_at.is_(None))
    ):
        kept |= {"batch", "line"}
    again = attrs.asdict(options, filter=lambda field, _: field.name not in kept)
    return to_record(journal.update(record.key, {"phone_number": request.phone_number, **again}))


def _require_active(journal: Journal) -> None:
    state = journal.execute(sa.select(STATE), {"of_account": journal.account}).scalar_one()
    require_active(journal, state)


def enqueue_all(
    journal: Journal, orders: Sequence[tuple[PaymentRequest, QueueOptions]], at: datetime, *, used: Container[str]
) -> None:
    """Record thousands of payments that are to be sent, in a few statements; see `enqueue`.

    Payments are listed and sent by their times, and those of one time by their keys as text: so each is a microsecond
    after the one before it.

    There are payments under the keys that were `used`.

    Raises:
        StoreError: Another one is used at this very moment, which ends the whole transaction: nothing is queued.
    """
    _require_active(journal)
    new_ones = [order for order in orders if order[0].key not in used]
    times = (at + timedelta(microseconds=number) for number in range(len(new_ones)))
    for some in chunks(new_ones):
        new = [_row(journal.account, *order, next(times)) for order in some]
        try:
            journal.execute(payments.insert(), new)
        except sa.exc.IntegrityError as exc:
            if getattr(exc.orig, "sqlstate", None) != "23505":  # a trigger of the merchant's, say
                raise
            said = "another process uses one of these keys at this very moment: nothing was queued; try again"
            raise StoreError(said, outcome="not_sent") from None
        _announce(journal, [row["key"] for row in new], at)
    for request, options in orders:
        if request.key in used:
            enqueue(journal, request, options, at)


def _announce(journal: Journal, keys: Sequence[str], at: datetime) -> None:
    """Begin the history of new payments, and add their first changes to the feed.

    It reads nothing, unlike `Journal.record`: that could end a merchant's transaction that is serializable.
    """
    common = {"account": journal.account, "at": at}
    entry = {**common, "number": 1, "what": PaymentEvent.ENQUEUE.value, "source": str(Source.CALLER), "detail": None}
    change = {**common, "entry": 1, "state": str(PaymentState.QUEUED)}
    for statement, name, first in ((_FIRST_ENTRY, "key", entry), (_FIRST_CHANGE, "name", change)):
        rows: Any = [{**first, name: key} for key in keys]
        journal.execute(statement, rows if len(rows) > 1 else rows[0])
    journal.has_changes = True


def _row(account: str, request: PaymentRequest, options: QueueOptions, at: datetime) -> dict[str, Any]:
    return {
        **request_columns(account, request),
        "state": str(PaymentState.QUEUED),
        "attempt": 0,
        "created_at": at,
        "changed_at": at,
        **attrs.asdict(options),
    }


def cause_of_wait(error: MobileMoneyError, journal: Journal, now: datetime) -> PaymentCause:
    """Return why a payment waits that was not sent: for someone, or for the next try alone."""
    if isinstance(error, DuplicateSuspected):
        other = None if error.other_key is None else journal.find(error.other_key)
        is_brief = other is not None and other.state is PaymentState.SENDING and not is_stale(other, now)
        return PaymentCause.DELAYED if is_brief else PaymentCause.HELD
    needs_someone = isinstance(error, IdempotencyConflict | InvalidRequest | LimitExceeded | OutcomeUnknown)
    return PaymentCause.WAITS if needs_someone else PaymentCause.DELAYED


def postpone(
    journal: Journal, key: str, *, reason: Reason, at: datetime, until: datetime | None
) -> PaymentRecord | None:
    """Let a payment that is still queued wait until a time, for a reason that its record shows; else return None.

    Without a time it keeps its place in the queue: the dispatcher itself waits. A retry of a payment that has moved
    money after all leaves the queue. One that waits already goes on to do so: someone holds it, perhaps for longer.
    The reason has its time: only the next try takes it back.
    """
    row = journal.row(key, lock=True)
    if row is None or row.state != PaymentState.QUEUED:
        return None
    if (why := journal.repeated(row)) is not None:
        _take_out(journal, _columns.key == key, PaymentEvent.CANCEL, source=Source.ANSWER, note=why, at=at)
        journal.change(key, {"error": shorten(why)})
        return None
    record = to_record(row)
    if record.not_before is not None and record.not_before > at:
        return None
    # After a look in the list its reason counts: it says what a payment waits for that becomes unknown.
    is_known = record.looked_at is not None and record.cause not in {None, *TRIED}
    waits = {} if is_known else reason_columns(Reason(reason.cause, f"at {at:%Y-%m-%d %H:%M} UTC, {reason}"))
    return to_record(journal.update(key, {"not_before": record.not_before if until is None else until, **waits}))


def hold(journal: Journal, keys: Sequence[str], *, until: datetime) -> None:
    """Let payments that are still queued wait until a time, or for as long as they do anyway."""
    is_sooner = sa.or_(_columns.not_before.is_(None), _columns.not_before < until)
    for some in chunks(keys):
        journal.change_rows(payments, _columns.key.in_(some), IS_QUEUED, is_sooner, not_before=until)


def cancel(
    journal: Journal, key: str, *, note: str, at: datetime, event: PaymentEvent = PaymentEvent.CANCEL
) -> PaymentRecord | StoreError:
    """Take a payment out of the queue as `cancel_batch` does, and return it as it is now, or the error to raise.

    After `PaymentEvent.WITHDRAW` instead, its key may be used again.
    """
    record = journal.find(key, lock=True)
    if record is None:
        return StoreError(f"there is no payment {key!r}", outcome="not_sent")
    if record.state is not PaymentState.QUEUED:
        return StoreError(f"payment {key!r} is {record.state}, not queued: nothing was changed", outcome="not_sent")
    _take_out(journal, _columns.key == key, event, source=Source.PERSON, note=note, at=at)
    cancelled = journal.find(key)
    assert cancelled is not None
    return cancelled


def cancel_batch(journal: Journal, batch: str, *, note: str, at: datetime) -> None:
    """Take the payments of a batch out of the queue, in a few statements.

    One that was refused before without a code of the contract may exist: it is refused, as far as is known, again. One
    that was tried in vain, and provably not sent, is cancelled as if it never had been.
    """
    _take_out(journal, _columns.batch == batch, PaymentEvent.CANCEL, source=Source.PERSON, note=note, at=at)


def withdraw_late(journal: Journal, at: datetime) -> list[str]:
    """Take payments out of the queue whose `not_after` has passed, as `cancel` does, and return their keys.

    At most a thousand, and none whose row another process changes right now, which may be sending it.
    """
    late = journal.select(payments, _columns.key).where(IS_QUEUED, _columns.not_after <= at).limit(_MOST_AT_ONCE)
    keys = list(journal.execute(late.with_for_update(skip_locked=True)).scalars())
    note = "it was not sent before its not_after"
    _take_out(journal, _columns.key.in_(keys), PaymentEvent.WITHDRAW, source=Source.CALLER, note=note, at=at)
    return keys


def warn_late(keys: Sequence[str], whose: str) -> None:
    """Log the payments that were taken out of the queue since they were not sent in time."""
    if keys:
        said = "taken out of the queue%s, since they were not sent in time: %s"
        logger.warning(said, whose, ", ".join(map(repr, keys)))


def _take_out(
    journal: Journal, which: sa.ColumnElement[bool], event: PaymentEvent, *, source: Source, note: str, at: datetime
) -> None:
    queued, target = (_columns.account == journal.account, which, IS_QUEUED), move(PaymentState.QUEUED, event)
    assert target is not None
    for state, is_doubtful in ((PaymentState.REFUSED, True), (target, False)):
        doubt = (_columns.is_certain.is_(False),) if is_doubtful else ()
        values = {"state": str(state), "changed_at": at, "next_look_at": None, **reason_columns(None)}
        stopped = payments.update().where(*queued, *doubt).values(values).returning(_columns.key)
        keys = list(journal.execute(stopped).scalars())
        if keys:
            journal.record_all(keys, event, state, source=source, detail=note, at=at)


def next_queued(
    journal: Journal, now: datetime, *, types: Collection[TransactionType], kinds: Collection[tuple[str, str, str]]
) -> Queued | None:
    """Return the payment to send next, with its extra fields: by priority, then by when it was due.

    Of some types, and not of one of the kinds: type, phone number and amount.
    """
    given = {"now": now, "types": sorted(map(str, types)), "kinds": list(kinds)}
    row = journal.execute(_NEXT, {"of_account": journal.account, **given}).first()
    return None if row is None else (to_record(row), row.extra)


def count_queued(journal: Journal) -> Counted:
    """Return the number of queued payments, the latest `not_before` of them, and the earliest `not_after`."""
    row: Any = journal.execute(_COUNT, {"of_account": journal.account}).one()
    return row[0], row[1], row[2]
