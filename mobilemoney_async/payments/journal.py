"""What is kept of payments, as statements inside one transaction. What they may become is decided in `records`.

Every function takes a connection that is in a transaction of its own kind: `Database.write` for what changes something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import IS_SHORT, history, payments
from mobilemoney_async.database.serialization import (
    dump_acknowledgement,
    dump_transaction,
    load_acknowledgement,
)
from mobilemoney_async.errors import DuplicateSuspected, IdempotencyConflict, StoreError
from mobilemoney_async.payments import rows
from mobilemoney_async.payments.records import (
    Event,
    HistoryEntry,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
    may_send,
    move,
)
from mobilemoney_async.values import valid_name

# Of a payment's errors and notes, characters.
_DETAIL = 500
# The columns that hold a payment's names, each with an index, and what has to be said to have that used.
_NAMES: Mapping[str, Sequence[Any]] = {
    "transaction_id": (),
    "key": (),
    **{kind: (short,) for kind, short in IS_SHORT.items()},
}


@attrs.frozen(kw_only=True)
class JournalEntry:
    """Something that happened to one attempt of a payment.

    Attributes:
        key: Whose.
        attempt: Which; None for whichever is the latest.
        event: What.
        source: Who says so.
        at: When.
        detail: For the history.
        acknowledgement: With `Event.ACKNOWLEDGE` and `Event.ADOPT`.
    """

    key: str
    attempt: int | None
    event: Event
    source: Source
    at: datetime
    detail: str | None = None
    acknowledgement: Acknowledgement | None = None


@attrs.frozen
class Contradiction:
    """A change that does not fit what is known. It is in the payment's history; nothing else was changed."""

    message: str

    def error(self) -> StoreError:
        """Return the error to raise."""
        return StoreError(self.message, outcome="unknown")


def find(connection: sa.Connection, account: str, key: str, *, lock: bool = False) -> PaymentRecord | None:
    """Return the record of a key, without its history."""
    row = rows.by_key(connection, account, key, lock=lock)
    return None if row is None else rows.read(row)


def look_up(
    connection: sa.Connection, account: str, order: PaymentRequest
) -> tuple[PaymentRecord | None, Acknowledgement | None]:
    """Return what is known of an order's key, and the acknowledgement where the payment exists.

    Raises:
        IdempotencyConflict: The key was used for something else.
    """
    row = rows.by_key(connection, account, order.key)
    if row is None:
        return None, None
    pairs = {
        "type": (row.type, str(order.type)),
        "phone number": (row.phone_number, order.phone_number),
        "amount": (row.amount, order.amount),
        "extra": (row.extra_digest, order.extra_digest),
    }
    others = [name for name, (kept, given) in pairs.items() if kept != given]
    if others:
        said = "the idempotency key was used for another payment: nothing was sent"
        raise IdempotencyConflict(f"{said}; that one has another {' and '.join(others)}")
    text = row.acknowledgement
    return rows.read(row), None if text is None else attrs.evolve(load_acknowledgement(text), idempotency_key=row.key)


def find_duplicate(connection: sa.Connection, account: str, order: PaymentRequest) -> PaymentRecord | None:
    """Return the unidentified payment of the same kind under another key, if there is one."""
    row = rows.twin(connection, account, order)
    return None if row is None else rows.read(row)


def begin(
    connection: sa.Connection,
    account: str,
    order: PaymentRequest,
    *,
    expected: int | None,
    sent_at: datetime,
    lives: float,
) -> int | None:
    """Record that an order is about to be sent.

    Args:
        connection: Writing.
        account: Whose.
        order: What.
        expected: The attempt of its record, which must still be one that may be sent again; None where there is none.
        sent_at: Now.
        lives: After how many seconds nothing of the request can be on its way.

    Returns:
        The number of this attempt, or None where another process was faster.

    Raises:
        DuplicateSuspected: A payment of the same kind is unidentified.
    """
    stale_at = sent_at + timedelta(seconds=lives)
    sending = {"state": PaymentState.SENDING, "sent_at": sent_at, "stale_at": stale_at, "changed_at": sent_at}
    if expected is None:
        made = _insert(connection, account, order, sending)
        attempt = 1
    else:
        made = _send_again(connection, account, order, expected, sending)
        attempt = expected + 1
    if made is None:
        # Looked at now, since the database has just refused it: a twin, or the key itself.
        twin = find_duplicate(connection, account, order)
        if twin is not None:
            raise duplicate(twin)
        return None
    note(connection, made, at=sent_at, what=Event.SEND.value, source=Source.ANSWER, detail=f"attempt {attempt}")
    return attempt


def apply(connection: sa.Connection, account: str, change: JournalEntry) -> PaymentRecord | Contradiction:
    """Record a change, if it fits what is known.

    Raises:
        KeyError: There is no such payment.
    """
    row = rows.by_key(connection, account, change.key, lock=True)
    if row is None:
        raise KeyError(change.key)
    record = rows.read(row)
    acknowledged = change.acknowledgement
    if acknowledged is not None and record.transaction_id == acknowledged.transaction_id:
        return record
    target = move(record.state, change.event)
    if change.attempt is not None and change.attempt != record.attempt:
        target = None
    claimed_by = None if acknowledged is None else rows.owner(connection, account, acknowledged.transaction_id)
    if target is None or claimed_by is not None:
        known = f"transaction {acknowledged.transaction_id}" if acknowledged is not None else "it"
        because = f"belongs to another payment ({claimed_by})" if claimed_by else f"is {record.state} already"
        return _contradict(connection, row.id, change, f"{change.event.value}: {known} {because}")
    if target is record.state and change.event is not Event.LOSE:
        return record
    changed = rows.update(connection, row.id, _changes(record, change, target))
    detail = change.detail
    if acknowledged is not None:
        detail = acknowledged.transaction_id if detail is None else f"{acknowledged.transaction_id}: {detail}"
    if target is not record.state:
        note(connection, row.id, at=change.at, what=change.event.value, source=change.source, detail=detail)
    return rows.read(changed)


def record_seen(
    connection: sa.Connection, account: str, transaction: Transaction, *, source: str, at: datetime
) -> Contradiction | None:
    """Record the state in which a transaction was seen, if it belongs to a payment.

    Returns:
        What contradicts, if something does.
    """
    row = rows.by_transaction(connection, account, transaction.id, lock=True)
    if row is None:
        return None
    change = JournalEntry(
        key=row.key,
        attempt=row.attempt,
        event=Event.FINISH,
        source=Source(source),
        at=at,
        detail=str(transaction.status),
    )
    if row.state == PaymentState.FINAL:
        if row.status == str(transaction.status):
            return None
        return _contradict(connection, row.id, change, f"was {row.status} for ever, and is {transaction.status}")
    values: dict[str, Any] = {"status": str(transaction.status)}
    if transaction.is_final:
        values |= {"state": PaymentState.FINAL, "changed_at": at, "transaction": dump_transaction(transaction)}
        values["external_id"] = row.external_id or valid_name(transaction.external_id)
        note(connection, row.id, at=at, what=Event.FINISH.value, source=change.source, detail=change.detail)
    elif row.status == values["status"]:
        return None
    rows.update(connection, row.id, values)
    return None


def pending_ids(connection: sa.Connection, account: str) -> list[tuple[str, datetime]]:
    """Return the transactions of payments that exist and are not final, oldest first, and when they were sent."""
    statement = (
        sa.select(payments.c.transaction_id, payments.c.sent_at)
        .where(payments.c.account == account, payments.c.state == PaymentState.ACKNOWLEDGED)
        .order_by(payments.c.created_at, payments.c.id)
    )
    return [(row.transaction_id, row.sent_at) for row in connection.execute(statement)]


def claimed(connection: sa.Connection, account: str, transaction_ids: Sequence[str]) -> Mapping[str, PaymentRecord]:
    """Return the payments that own these transactions."""
    found: dict[str, PaymentRecord] = {}
    for start in range(0, len(transaction_ids), 500):
        some = transaction_ids[start : start + 500]
        statement = sa.select(payments).where(payments.c.account == account, payments.c.transaction_id.in_(some))
        found |= {row.transaction_id: rows.read(row) for row in connection.execute(statement)}
    return found


def select(
    connection: sa.Connection,
    account: str,
    *,
    states: Iterable[PaymentState] | None = None,
    type: TransactionType | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    newest_first: bool = False,
) -> list[PaymentRecord]:
    """Return payments, oldest first or newest first."""
    where = [payments.c.account == account]
    if type is not None:
        where.append(payments.c.type == str(type))
    if since is not None:
        where.append(payments.c.created_at >= since)
    chosen = sa.select(payments).where(*where)
    wanted = None if states is None else sorted({str(state) for state in states})
    if wanted == []:
        return []
    columns: Any = payments.c
    statement: Any = chosen
    if wanted is not None:
        # A part for each state, all of them in the order of one index: for IN, SQLite may walk a million to find fifty.
        statement = sa.union_all(*(chosen.where(payments.c.state == state) for state in wanted))
        columns = statement.selected_columns
    order = [columns.created_at, columns.id]
    statement = statement.order_by(*(each.desc() if newest_first else each for each in order)).limit(limit)
    return [rows.read(row) for row in connection.execute(statement)]


def find_named(
    connection: sa.Connection, account: str, names: Sequence[str], *, states: Iterable[PaymentState] | None, most: int
) -> list[PaymentRecord]:
    """Return payments that go by one of some names, oldest first: `most` for each kind of name at most."""
    where = [payments.c.account == account]
    if states is not None:
        # No bare column: for a hundred names, SQLite would rather walk the index on states, however many have them.
        where.append((payments.c.state + "").in_(sorted({str(state) for state in states})))
    parts = [
        sa.select(payments).where(*where, payments.c[kind].in_(names), *short).limit(most).subquery().select()
        for kind, short in _NAMES.items()
    ]
    found = {row.id: row for row in connection.execute(sa.union_all(*parts))}
    return [rows.read(row) for row in sorted(found.values(), key=lambda row: (row.created_at, row.id))]


def find_with_history(connection: sa.Connection, account: str, key: str) -> PaymentRecord | None:
    """Return the record of a key with everything that happened to it."""
    row = rows.by_key(connection, account, key)
    if row is None:
        return None
    entries = connection.execute(
        sa.select(history.c.at, history.c.what, history.c.source, history.c.detail)
        .where(history.c.payment_id == row.id)
        .order_by(history.c.id)
    )
    return attrs.evolve(rows.read(row), history=tuple(HistoryEntry(**entry._mapping) for entry in entries))


def duplicate(twin: PaymentRecord) -> DuplicateSuspected:
    """Return the error for an order whose twin is unidentified."""
    what = "is on its way" if twin.state is PaymentState.SENDING else f"is {twin.state}"
    return DuplicateSuspected(
        f"a {twin.type} of the same amount for the same phone number {what} under the key {twin.key!r}: "
        "nothing was sent; this one may go once that one is found out or confirmed absent",
        other_key=twin.key,
    )


def _changes(record: PaymentRecord, change: JournalEntry, target: PaymentState) -> dict[str, Any]:
    """Return what a change that fits makes of a row."""
    acknowledged = change.acknowledgement
    values: dict[str, Any] = {"state": target, "changed_at": change.at}
    if record.ended_at is None or change.event in {Event.ACKNOWLEDGE, Event.LOSE}:
        values["ended_at"] = change.at
    if acknowledged is not None:
        values |= {
            "transaction_id": acknowledged.transaction_id,
            "reference": acknowledged.reference,
            "status": str(acknowledged.status_code),
            "acknowledgement": dump_acknowledgement(acknowledged),
            "candidates": None,
            "is_adopted": change.event is Event.ADOPT,
        }
    if change.event in {Event.REFUSE, Event.FAIL_UNSENT, Event.LOSE}:
        values["error"] = _cut(change.detail)
    if change.event is Event.LOSE:
        values |= {"walks": 0, "walked_at": None}  # what missed it before its request ended proves nothing
    return values


def _insert(connection: sa.Connection, account: str, order: PaymentRequest, sending: Mapping[str, Any]) -> int | None:
    values = {
        "account": account,
        "key": order.key,
        "type": str(order.type),
        "phone_number": order.phone_number,
        "amount": order.amount,
        "extra_digest": order.extra_digest,
        "external_id": order.external_id,
        "attempt": 1,
        "walks": 0,
        "created_at": sending["sent_at"],
        **sending,
    }
    return rows.insert(connection, values)


def _send_again(
    connection: sa.Connection, account: str, order: PaymentRequest, expected: int, sending: Mapping[str, Any]
) -> int | None:
    row = rows.by_key(connection, account, order.key, lock=True)
    assert row is not None
    # Whether an absent one suffices is the caller's; that it still is one, and unseen, is looked at under the lock.
    if row.attempt != expected or not may_send(rows.read(row), absent_suffices=True):
        return None
    values = {**sending, "attempt": expected + 1, "walks": 0, "walked_at": None, "candidates": None}
    values |= {"ended_at": None, "error": None}
    try:
        with connection.begin_nested():
            rows.update(connection, row.id, values)
    except sa.exc.IntegrityError:
        return None  # a twin
    made: int = row.id
    return made


def _contradict(connection: sa.Connection, payment_id: int, change: JournalEntry, message: str) -> Contradiction:
    note(connection, payment_id, at=change.at, what="contradiction", source=change.source, detail=message)
    return Contradiction(f"payment {change.key!r}: {message}")


def note(
    connection: sa.Connection, payment_id: int, *, at: datetime, what: str, source: Source, detail: str | None
) -> None:
    """Add an entry to a payment's history."""
    entry = {"payment_id": payment_id, "at": at, "what": what, "source": str(source), "detail": _cut(detail)}
    rows.note(connection, entry)


def _cut(detail: str | None) -> str | None:
    # A NUL or a lone surrogate in what the service said must not keep the rest from being recorded.
    return None if detail is None else detail[:_DETAIL].replace("\0", "").encode(errors="replace").decode()
