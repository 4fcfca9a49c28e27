"""Journal of one account's payments: the statements inside one transaction of the database.

`records` decides how a payment may change; here its row is found, compared and written. Lists are in `queries`.

Critical section: each method runs inside one transaction. One that writes needs `AccountStore.write`: on SQLite that
transaction is the only writer, on PostgreSQL ``FOR UPDATE`` locks the row until the commit. Another process may change
any row that is not locked, also between two statements. The lock of a payment's row also numbers the entries of its
history: only its holder adds one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.database.prepared import run, run_later, run_pending
from mobilemoney_async.database.schema import accounts, batches, changes, insert_missing, lock_row, payments, unmatched
from mobilemoney_async.database.serialization import dump, load, shorten
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records import statements as sql
from mobilemoney_async.payments.records.reasons import PaymentCause
from mobilemoney_async.payments.records.record import (
    PaymentEvent,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
    move,
    stops_kind,
)
from mobilemoney_async.payments.records.rows import (
    ERASED_EXTRA,
    UNKNOWN_EXTRA,
    JournalEntry,
    as_kept,
    columns_of,
    detail_of,
    digest,
    new_number_key,
    problem_of,
    require_same,
    to_record,
)
from mobilemoney_async.text import mask_phone_number, redact

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_PAID = str(TransactionStatus.SUCCESS)
HAS_TURNED: tuple[str, str] = (PaymentCause.CHANGED.value, _PAID)
"""Cause and `about` of a payment that failed, and is shown as paid now."""


@attrs.define(eq=False)
class Journal:
    """Payments of one account, inside one transaction of the connection.

    Attributes:
        has_changes: Whether a change was recorded for the readers of the feed.
    """

    connection: sa.Connection
    account: str
    has_changes: bool = attrs.field(default=False, init=False)

    def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.CursorResult[Any]:
        """Execute a statement in the transaction."""
        return self.connection.execute(statement, parameters)

    @property
    def dialect(self) -> str:
        """Name of the kind of database."""
        return self.connection.dialect.name

    def insert(self, table: sa.Table, **values: Any) -> bool:
        """Insert a row of the account unless a unique index forbids it; return whether it was inserted."""
        row = {"account": self.account, **values}
        return run(self.connection, insert_missing(table, self.dialect), row) is not None

    def find_account(self) -> Any:
        """Return the account's row; None before its first payment."""
        return run(self.connection, sql.ACCOUNT, {"of_account": self.account})

    def lock_account(self) -> Any:
        """Return the account's row, made if need be, and locked until the commit."""
        return lock_row(self.connection, accounts, {"account": self.account})

    def change_account(self, **values: Any) -> None:
        """Change columns of the account's row, which is made if need be, and locked until the commit."""
        self.lock_account()
        self.change_locked_account(**values)

    def change_locked_account(self, **values: Any) -> None:
        """Change columns of the account's row, which `lock_account` has locked."""
        run(self.connection, sql.CHANGE_ACCOUNT, {"of_account": self.account, **values})

    def number_key(self) -> str:
        """Return the account's secret key of the digests of numbers, empty before its first payment."""
        row = self.find_account()
        return "" if row is None or row.number_key is None else str(row.number_key)

    def ensure_number_key(self) -> str:
        """Return the account's secret key of the digests of numbers, which is made if there is none."""
        if not (key := self.number_key() or self.lock_account().number_key):
            key = new_number_key()
            self.change_locked_account(number_key=key)
        return str(key)

    def row(self, key: str, *, lock: bool = False) -> Any:
        """Return the row of a key; locked until the commit, if asked for."""
        statement = sql.BY_KEY_LOCKED if lock else sql.BY_KEY
        return run(self.connection, statement, {"of_account": self.account, "of_key": key})

    def row_if_free(self, key: str) -> Any:
        """Return the row of a key, locked until the commit, or None if another transaction holds its lock."""
        return run(self.connection, sql.BY_KEY_IF_FREE, {"of_account": self.account, "of_key": key})

    def find(self, key: str, *, lock: bool = False) -> PaymentRecord | None:
        """Return the record of a key, without its history."""
        row = self.row(key, lock=lock)
        return None if row is None else to_record(row)

    def select(self, table: sa.FromClause, *columns: Any) -> sa.Select[Any]:
        """Return the statement for the account's rows of a table, all their columns or some."""
        return sa.select(*columns or (table,)).where(table.c.account == self.account)

    def rows(
        self, table: sa.Table, *where: Any, order_by: Sequence[Any] = (), limit: int | None = None
    ) -> Sequence[sa.Row[Any]]:
        """Return the account's rows that meet some conditions."""
        return self.execute(self.select(table).where(*where).order_by(*order_by).limit(limit)).all()

    def records(self, *where: Any, order_by: Sequence[Any] = (), limit: int | None = None) -> list[PaymentRecord]:
        """Return the payments that meet some conditions, without their histories."""
        return [to_record(row) for row in self.rows(payments, *where, order_by=order_by, limit=limit)]

    def count(self, table: sa.Table, *where: Any) -> int:
        """Return the number of the account's rows that meet some conditions."""
        return int(self.execute(self.select(table, sa.func.count()).where(*where)).scalar_one())

    def change_rows(self, table: sa.Table, *where: Any, **values: Any) -> int:
        """Change columns of the account's rows that meet some conditions, and return their number."""
        return self.execute(table.update().where(table.c.account == self.account, *where).values(values)).rowcount

    def delete_rows(self, table: sa.Table, *where: Any) -> int:
        """Delete the account's rows that meet some conditions, and return their number."""
        return self.execute(table.delete().where(table.c.account == self.account, *where)).rowcount

    def look_up(self, request: PaymentRequest) -> tuple[PaymentRecord | None, Acknowledgement | None]:
        """Return the record of a request's key, and the acknowledgement if the payment exists.

        Raises:
            IdempotencyConflict: The key was used for another payment.
        """
        row = self.row(request.key)
        if row is None:
            return None, None
        number = self._as_kept(row.phone_number, request.phone_number)
        has_extra = row.extra_digest in {request.extra_digest, UNKNOWN_EXTRA, ERASED_EXTRA}
        require_same(row, request.type, number, request.amount, has_extra=has_extra)
        record, text = to_record(row), row.acknowledgement
        return record, None if text is None else attrs.evolve(load(Acknowledgement, text), idempotency_key=row.key)

    def next_entry(self, key: str) -> int:
        """Return the number of the next entry of a payment's history, also of one without a record."""
        return int(run(self.connection, sql.NEXT_ENTRY, {"of_account": self.account, "of_key": key}).number)

    def was_taken_out(self, key: str, *, since: int) -> bool:
        """Return whether an entry of the history, from a number on, takes the payment out of the queue.

        Numbers tell before from after, whatever the clocks of the processes say.
        """
        names = {"of_account": self.account, "of_key": key, "of_number": since}
        return self.execute(sql.TAKEN_OUT, names).first() is not None

    def _as_kept(self, kept: str, number: str) -> str:
        """Return a number as a record shows it: erased, where its own is."""
        if not kept.startswith(ERASED):
            return number
        return f"{ERASED}{digest(self.number_key(), number)}"

    def find_duplicate(self, request: PaymentRequest) -> PaymentRecord | None:
        """Return the payment under another key that stops the kind of a payment, if there is one."""
        row = run(self.connection, sql.DUPLICATE, self.kind(request))
        return None if row is None else to_record(row)

    def kind(self, request: PaymentRequest) -> Mapping[str, str]:
        """Return the parameters of `CONFLICTS` for a payment."""
        return {
            "of_account": self.account,
            "of_type": str(request.type),
            "of_phone_number": request.phone_number,
            "of_amount": request.amount,
            "of_key": request.key,
        }

    def apply(self, entry: JournalEntry) -> PaymentRecord | StoreError:
        """Record an event as `save` does, and return the payment as it is then, or the error to raise."""
        failure = self.save(entry)
        if failure is not None:
            return failure
        record = self.find(entry.key)
        assert record is not None
        return record

    def save(self, entry: JournalEntry, *, is_last: bool = False) -> StoreError | None:
        """Record an event; if it contradicts the payment's state, note only that, and return the error to raise.

        A payment that was sent, and is not in the store any more, is such an error as well. `is_last` as for `record`.
        """
        named = entry.acknowledgement and entry.acknowledgement.transaction_id
        names = {"of_key": entry.key, "of_transaction": named}
        row = run(self.connection, sql.SAVED, {"of_account": self.account, **names})
        if row is None:
            said = f"the store has forgotten payment {entry.key!r} ({detail_of(entry)}), as after a restored backup"
            return StoreError(said, outcome="unknown")
        entry = as_kept(entry, row)
        state = PaymentState(row.state)
        target = move(state, entry.event)
        problem = problem_of(entry, row)
        is_own = entry.event is PaymentEvent.ACKNOWLEDGE
        if entry.acknowledgement is not None and row.transaction_id == named:
            self._confirm(entry, problem)
            return None
        if target is None or problem is not None:
            return self.contradict(entry, problem or f"is {state} already")
        if target is state and not is_own and entry.event is not PaymentEvent.LOSE:
            return None
        values, detail = self._columns(row, entry, target)
        change = (entry.event, target, values.get("status", row.status))
        if entry.event is PaymentEvent.ADOPT or (values["stops_kind"] and not row.stops_kind):
            failure, values = self._move(row, entry, values), {}
            if failure is not None:
                return failure
        if target is not state or is_own:
            is_last = is_last and entry.event is not PaymentEvent.REQUEUE  # its batch may be cancelled: see below
            more: dict[str, Any] = {"source": entry.source, "detail": detail, "values": values}
            self.record(row.key, *change, at=entry.at, is_last=is_last, **more)
        elif values:
            self.change(row.key, values)
        if entry.event is PaymentEvent.REQUEUE and self._is_batch_cancelled(row.batch):
            said = "its batch was cancelled meanwhile"
            return self.save(attrs.evolve(entry, event=PaymentEvent.CANCEL, source=Source.PERSON, detail=said))
        return None

    def _confirm(self, entry: JournalEntry, problem: str | None) -> None:
        """Note that our own acknowledgement names the transaction which the list has shown before."""
        answer = entry.acknowledgement
        if answer is not None and entry.event is PaymentEvent.ACKNOWLEDGE and problem is None:
            self.change(entry.key, {"is_adopted": False, "ended_at": entry.at, "acknowledgement": dump(answer)})

    def _columns(
        self, row: sa.Row[Any], entry: JournalEntry, target: PaymentState
    ) -> tuple[dict[str, Any], str | None]:
        """Return the columns that an event changes, and the words of the history for it."""
        values = columns_of(entry, row.ended_at, target) | {"stops_kind": stops_kind(target, row.type)}
        if entry.event is not PaymentEvent.ACKNOWLEDGE or row.transaction_id is None:
            return values, detail_of(entry)
        said = f"{detail_of(entry)}, in place of {row.transaction_id}, which was taken for it"
        return {**values, **self._give_back(row, entry)}, said

    def _give_back(self, row: sa.Row[Any], entry: JournalEntry) -> Mapping[str, Any]:
        """Let a transaction that was taken for a payment be unmatched, since its own acknowledgement names another.

        It is reported at once: observers of the list may remember it as owned.

        Returns:
            Columns of the payment that told of the transaction.
        """
        record, name, status = self.find(row.key), str(row.transaction_id), str(row.status)
        assert record is not None
        shown, number, key = record.transaction, record.phone_number, self.number_key()
        number_digest = number[len(ERASED) :] if number.startswith(ERASED) else digest(key, number) if key else None
        self.insert(
            unmatched,
            transaction_id=name,
            type=row.type,
            amount=row.amount,
            created_at=shown and shown.created_at,
            shown_number=mask_phone_number(number),
            number_digest=number_digest,
            status=status,
            fits_key=row.key,
            **dict.fromkeys(("first_seen_at", "due_at", "changed_at"), entry.at),
        )
        self.change_rows(unmatched, unmatched.c.transaction_id == name, told_at=entry.at)
        self.publish_unclaimed(name, status, at=entry.at)
        said = "payment %r of account %r was taken for transaction %s, which it is not: paid twice?"
        logger.error(said, row.key, self.account, name)
        is_shown_by_it = shown is not None and record.external_id == shown.external_id
        return {"transaction": None, "error": None, **({"external_id": None} if is_shown_by_it else {})}

    def repeated(self, row: sa.Row[Any]) -> str | None:
        """Return why a payment that a retry has made is never sent: one before it has moved money, or may."""
        key: str | None = row.previous_key
        while key is not None and (earlier := self.row(key)) is not None:
            if earlier.state == PaymentState.ACKNOWLEDGED or earlier.status == _PAID:
                return f"payment {row.key!r} repeats {key!r}, which was made after all"
            key = earlier.previous_key
        return None

    def _is_batch_cancelled(self, batch: str | None) -> bool:
        """Return whether a batch is cancelled; one that is being cancelled now is waited for, or waits for us."""
        here = (batches.c.account == self.account, batches.c.id == batch)
        state = sa.select(batches.c.state).where(*here).with_for_update(read=True)
        return batch is not None and self.execute(state).scalar_one_or_none() == "cancelled"

    def _move(self, row: sa.Row[Any], entry: JournalEntry, values: Mapping[str, Any]) -> StoreError | None:
        """Change a row that meets unique indexes, unless another has its transaction, or stops the kind of a doubt."""
        other = self.stop(row, values)
        if other is None:
            return None
        if entry.event is PaymentEvent.ADOPT:
            return self.contradict(entry, f"belongs to another payment ({other})")
        if entry.event is not PaymentEvent.DOUBT:  # it was absent, and others were allowed: that stays so
            self.change(entry.key, {**values, "stops_kind": False})
            return None
        said = f"payment {other!r} of the same kind is unidentified: nothing was sent; try again once that one is found"
        return StoreError(f"payment {entry.key!r} may exist, and {said}", outcome="not_sent")

    def stop(self, row: sa.Row[Any], values: Mapping[str, Any]) -> str | None:
        """Change a row so that it stops its kind or owns a transaction, or return the key of the payment that does."""
        try:
            with self.connection.begin_nested():
                self.change(row.key, values)
        except sa.exc.IntegrityError:
            number = values.get("phone_number", row.phone_number)
            kind = {"of_type": row.type, "of_phone_number": number, "of_amount": row.amount, "of_key": row.key}
            unique = sql.OWNER if "transaction_id" in values else sql.DUPLICATE_KEY
            names = {"of_account": self.account, "of_transaction": values.get("transaction_id"), **kind}
            other: str | None = self.execute(sa.select(unique), names).scalar_one()
            if other in {None, row.key}:
                raise  # refused for another reason, a trigger say
            return other
        return None

    def update(self, key: str, values: Mapping[str, Any]) -> Any:
        """Change a row and return it as it is then."""
        return run(self.connection, sql.UPDATE, {"of_account": self.account, "of_key": key, **values})

    def change(self, key: str, values: Mapping[str, Any]) -> None:
        """Change columns of a row."""
        run(self.connection, sql.CHANGE, {"of_account": self.account, "of_key": key, **values})

    def note(self, key: str, *, at: datetime, what: str, source: Source, detail: str | None) -> None:
        """Add an entry to a payment's history. The caller holds the lock of the payment's row, which numbers it."""
        run(self.connection, sql.NOTE, self._entry(key, what, at=at, source=source, detail=detail))

    def record(
        self,
        key: str,
        event: PaymentEvent,
        state: PaymentState,
        status: str | None = None,
        *,
        at: datetime,
        source: Source,
        detail: str | None,
        values: Mapping[str, Any] | None = None,
        is_last: bool = False,
    ) -> None:
        """Change columns of a payment, add the event to its history, as `note` does, and the change to the feed.

        If this `is_last`, nothing later in the transaction of one payment reads it: it may run with those of others.
        """
        execute = run_later if is_last else run
        if not is_last:
            run_pending(self.connection)  # an earlier entry of the history
        entry = self._entry(key, event.value, at=at, source=source, detail=detail)
        entry |= {"of_state": str(state), "of_status": status}
        if self.dialect == "postgresql":
            execute(self.connection, sql.CHANGE_AND_RECORD if values else sql.RECORD, {**entry, **(values or {})})
        else:
            if values:
                execute(self.connection, sql.CHANGE, {"of_account": self.account, "of_key": key, **values})
            execute(self.connection, sql.PUBLISH, entry)  # first: both take the next number of the history
            execute(self.connection, sql.NOTE, entry)
        self.has_changes = True

    def _entry(self, key: str, what: str, *, at: datetime, source: Source, detail: str | None) -> dict[str, Any]:
        said = {"what": what, "source": str(source), "detail": detail and shorten(detail)}
        return {"of_account": self.account, "of_key": key, "of_at": at, **said}

    def record_all(
        self,
        keys: Iterable[str],
        event: PaymentEvent,
        state: PaymentState,
        *,
        at: datetime,
        source: Source,
        detail: str,
    ) -> None:
        """Note and publish an event of many payments; the caller has changed their rows."""
        # Asked once, not for each payment as in `record`: PostgreSQL reads all changes of the account each time, if it
        # takes the table to be empty, as after the rollback of thousands.
        later = sql.LATER.where(changes.c.account == self.account, changes.c.at > at)
        times = {row.name: row.last for row in self.execute(later)}
        common = self._entry("", event.value, at=at, source=source, detail=detail)
        common |= {"of_state": str(state), "of_status": None}
        entries = [{**common, "of_key": key} for key in keys]
        changes_then = [{**each, "of_at": times.get(each["of_key"], at)} for each in entries]
        self.execute(sql.PUBLISH_AT, changes_then)
        self.execute(sql.NOTE, entries)
        self.has_changes = True

    def publish_unclaimed(self, transaction_id: str, status: str, *, at: datetime) -> None:
        """Add a transaction that no payment claims to the feed, unless it is there."""
        self.insert(changes, name=transaction_id, entry=0, status=shorten(status), at=at)
        self.has_changes = True

    def contradict(self, entry: JournalEntry, problem: str) -> StoreError:
        """Note in the history, with its reason, that an event contradicts the record; return the error for it."""
        subject = "it" if entry.acknowledgement is None else f"transaction {entry.acknowledgement.transaction_id}"
        message = f"{entry.event.value}: {subject} {problem}"
        reason = entry.detail if entry.acknowledgement is not None else detail_of(entry)
        if reason is not None:  # an operator's note goes into the error, and so to logs
            message += f" ({redact(reason) if entry.source is Source.PERSON else reason})"
        self.note(entry.key, at=entry.at, what="contradiction", source=entry.source, detail=message)
        return StoreError(f"payment {entry.key!r}: {message}", outcome="unknown")
