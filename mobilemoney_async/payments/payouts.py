"""``client.payouts``: batches of disbursements that one person proposes and another approves.

Proposing checks and records, approving queues all lines in one transaction, and a dispatcher sends them. So each step
is done as a whole or not at all, and may be repeated after a crash.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, overload

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import batch_lines, batches, payments
from mobilemoney_async.database.serialization import load_amount
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.creates import payment_request
from mobilemoney_async.payments.journal import Journal, to_record
from mobilemoney_async.payments.outbox import QueueOptions, cancel_batch, enqueue_all
from mobilemoney_async.payments.payout_batch import PayoutBatch, PayoutLine, is_same_person, read_person, write_report
from mobilemoney_async.payments.payout_rows import PayoutRow, Rows, digest, keys_of, read_rows, total_of, warnings_of
from mobilemoney_async.payments.queries import chunks
from mobilemoney_async.payments.records import PaymentRecord, PaymentRequest, PaymentState
from mobilemoney_async.values import refuse, require_integer, require_name, require_text

PROPOSED, APPROVED, CANCELLED = "proposed", "approved", "cancelled"

_RECENT = timedelta(days=30)
# States of payments that may still be stopped: one that is on its way may come back.
_STOPPABLE = frozenset(map(str, (PaymentState.QUEUED, PaymentState.SENDING, PaymentState.NOT_SENT)))


@attrs.define(eq=False, slots=False)
class Payouts:
    """Batches of one account. Every method raises `StoreError` if the database fails or cannot be reached."""

    _store: AccountStore = attrs.field(repr=False)
    _utcnow: Callable[[], datetime] = attrs.field(repr=False)

    async def propose(
        self, rows: Rows, *, name: str, by: str, local_numbers: bool = False, columns: Mapping[str, str] | None = None
    ) -> PayoutBatch:
        """Check a batch as a whole, and record it for someone else to approve. Nothing is sent.

        A row that names no key gets one from the content of the whole batch and its number: the same content, proposed
        twice, is paid once. To pay the same people the same amounts again next month, give it a column for the month.

        Args:
            rows: Text, open file or path of a CSV in UTF-8 with the header ``phone_number,amount[,key][,…]``,
                separated by commas, semicolons or tabs; path, bytes or open file of an .xlsx (extra ``xlsx``) with this
                header; or mappings with these keys; 50,000 at most. Other columns come back in the report; ``type``
                and ``currency`` must be ``disbursement`` and ``TZS`` where they are given.
            name: Of the batch, such as ``salaries 2026-11``, at most 200 characters.
            by: Your name, at most 200 characters. Your program checks who you are.
            local_numbers: Whether numbers may be written without their country code (``0788 500 000``), as Tanzanian.
            columns: The file's names of our columns where they are others, such as ``{"amount": "Kiasi"}``.

        Raises:
            InvalidRequest: An argument is invalid, or rows are: it names their lines. Or the extra is missing.
        """
        title, proposer = require_name("name", name), read_person(by)
        read = read_rows(rows, local_numbers=local_numbers, columns=columns)
        content, now = digest(read), self._utcnow()
        batch: dict[str, Any] = {"account": self._store.account, "id": uuid.uuid4().hex[:12], "name": title}
        batch |= {"digest": content, "state": PROPOSED, "proposed_by": proposer, "proposed_at": now}
        batch |= {"lines": len(read), "total": f"{total_of(read):f}"}
        lines = [_line(batch, row, key) for row, key in zip(read, keys_of(content, read), strict=True)]

        def record(journal: Journal) -> PayoutBatch:
            journal.connection.execute(batches.insert(), batch)
            for some in chunks(lines, 1_000):
                journal.connection.execute(batch_lines.insert(), some)
            return _find(journal, batch["id"], now)

        await self._store.database.open()
        return await self._store.write(record)

    async def approve(self, id: str, *, by: str, digest: str) -> PayoutBatch:
        """Queue all lines of a batch, in one transaction. A dispatcher sends them: ``client.dispatcher()``.

        Approving it again changes nothing.

        Args:
            id: The batch.
            by: Your name: another one than the proposer's, by more than case, blanks, accents and punctuation.
            digest: The one that you were shown with the batch.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch, it is cancelled, the digest is another one, or you have proposed it.
            IdempotencyConflict: A key was used for another payment; nothing was queued.
        """
        approver, shown = read_person(by), require_text("digest", digest).strip()
        name, now = require_name("id", id), self._utcnow()

        def approve(journal: Journal) -> PayoutBatch:
            # All batches of this content wait for each other, since they have the same keys; in one order, against
            # deadlocks.
            alike = sa.select(batches).where(batches.c.account == journal.account, batches.c.digest == shown)
            locked = journal.connection.execute(alike.order_by(batches.c.id).with_for_update()).all()
            batch = next((each for each in locked if each.id == name), None) or _row(journal, name)
            if is_same_person(approver, batch.proposed_by):
                raise _refused(f"batch {id!r} was proposed by {batch.proposed_by}: someone else has to approve it")
            if shown != batch.digest:
                raise _refused(f"the digest is not that of batch {id!r}: look at it again")
            if batch.state == CANCELLED:
                raise _refused(f"batch {id!r} was cancelled by {batch.cancelled_by}")
            if batch.state == PROPOSED:
                orders = [_order(batch.id, line) for line in _lines(journal, batch.id)]
                enqueue_all(journal, orders, now, used=_payments(journal, batch.id))
                _change(journal, batch.id, state=APPROVED, approved_by=approver, approved_at=now)
            return attrs.evolve(_find(journal, batch.id, now), warnings=_warnings(_lines(journal, batch.id)))

        await self._store.database.open()
        return await self._store.write(approve)

    async def cancel(self, id: str, *, by: str) -> PayoutBatch:
        """Stop the lines of a batch that are not sent yet. Payments of other batches under the same keys go on.

        Cancelling it again changes nothing.

        Args:
            id: The batch.
            by: Your name; the proposer's and the approver's will do.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch, or all of it was sent.
        """
        person, name, now = read_person(by), require_name("id", id), self._utcnow()

        def stop(journal: Journal) -> PayoutBatch:
            batch = _row(journal, name, lock=True)  # two people may decide at once
            if batch.state == APPROVED and not _states(journal, batch.id).keys() & _STOPPABLE:
                raise _refused(f"all payments of batch {id!r} were sent")
            cancel_batch(journal, batch.id, note=f"{person}: batch {batch.id} was cancelled", at=now)
            if batch.state != CANCELLED:
                _change(journal, batch.id, state=CANCELLED, cancelled_by=person, cancelled_at=now)
            return _find(journal, batch.id, now)

        await self._store.database.open()
        return await self._store.write(stop)

    async def get(self, id: str) -> PayoutBatch:
        """Return a batch as it is now.

        Raises:
            InvalidRequest: The id is blank.
            StoreError: There is no such batch.
        """
        name, now = require_name("id", id), self._utcnow()
        return await self._store.read(lambda journal: _find(journal, name, now))

    async def list(self, *, limit: int = 100) -> list[PayoutBatch]:
        """Return the batches that were proposed last, newest first, without their duplicates and warnings.

        Raises:
            InvalidRequest: The limit is not at least 1.
        """
        most = require_integer("limit", limit, 1)

        def latest(journal: Journal) -> list[PayoutBatch]:
            statement = sa.select(batches).where(batches.c.account == journal.account)
            newest = statement.order_by(batches.c.proposed_at.desc(), batches.c.id).limit(most)
            return [_batch(journal, each) for each in journal.connection.execute(newest).all()]

        return await self._store.read(latest)

    @overload
    async def report(self, id: str) -> Sequence[PayoutLine]: ...

    @overload
    async def report(self, id: str, format: Literal["csv", "json"]) -> str: ...

    async def report(self, id: str, format: str | None = None) -> Sequence[PayoutLine] | str:
        """Return the lines of a batch with their payments, as `PayoutLine` or as the text of a file.

        Args:
            id: The batch.
            format: ``csv`` or ``json`` for the text of a file, with whole phone numbers; None for `PayoutLine`. In a
                CSV, a text that a spreadsheet would run as a formula gets an apostrophe in front.

        Raises:
            InvalidRequest: An argument is invalid.
            StoreError: There is no such batch.
        """
        name = require_name("id", id)
        if format not in {None, "csv", "json"}:
            raise refuse("format", "csv, json or None", format)

        def report(journal: Journal) -> Sequence[PayoutLine]:
            batch = _row(journal, name)
            found = {} if batch.approved_at is None else _payments(journal, batch.id)
            lines = _lines(journal, batch.id)
            warnings = _warnings(lines)
            return [_with_payment(each, found.get(each.key), batch, warnings.get(each.line)) for each in lines]

        lines = await self._store.read(report)
        return lines if format is None else write_report(lines, format)


def _order(batch: str, line: sa.Row[Any]) -> tuple[PaymentRequest, QueueOptions]:
    body = {"phone_number": line.phone_number, "amount": line.amount}
    request = payment_request(TransactionType.DISBURSEMENT, body, line.key)
    return request, QueueOptions(batch=batch, line=line.line)


def _line(batch: Mapping[str, Any], row: PayoutRow, key: str) -> dict[str, Any]:
    return {
        "account": batch["account"],
        "batch": batch["id"],
        "line": row.line,
        "key": key,
        "phone_number": row.phone_number,
        "amount": row.amount,
        "info": json.dumps(dict(row.info)) if row.info else None,
    }


def _refused(reason: str) -> StoreError:
    return StoreError(f"{reason}: nothing was changed", outcome="not_sent")


def _row(journal: Journal, id: str, *, lock: bool = False) -> sa.Row[Any]:
    statement = sa.select(batches).where(batches.c.account == journal.account, batches.c.id == id)
    row = journal.connection.execute(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise _refused(f"there is no batch {id!r}")
    return row


def _change(journal: Journal, id: str, **values: Any) -> None:
    here = (batches.c.account == journal.account, batches.c.id == id)
    journal.connection.execute(batches.update().where(*here).values(values))


def _lines(journal: Journal, id: str) -> Sequence[sa.Row[Any]]:
    statement = sa.select(batch_lines).where(batch_lines.c.account == journal.account, batch_lines.c.batch == id)
    return journal.connection.execute(statement.order_by(batch_lines.c.line)).all()


def _of_lines(statement: sa.Select[Any], account: str, id: str) -> sa.Select[Any]:
    """Join the lines of a batch with the payments under their keys; an earlier batch may have queued some.

    Lines without a payment stay, so that PostgreSQL begins with the lines whatever it knows of the tables: the other
    way round, it reads all lines again for each payment.
    """
    of_line = (batch_lines.c.account == payments.c.account) & (batch_lines.c.key == payments.c.key)
    both = batch_lines.outerjoin(payments, of_line)
    return statement.select_from(both).where(batch_lines.c.account == account, batch_lines.c.batch == id)


def _payments(journal: Journal, id: str) -> dict[str, sa.Row[Any]]:
    """Return the payments under the keys of a batch's lines, by key."""
    found = journal.connection.execute(_of_lines(sa.select(payments), journal.account, id))
    return {row.key: row for row in found if row.key is not None}


def _find(journal: Journal, id: str, now: datetime) -> PayoutBatch:
    row = _row(journal, id)
    if row.state != PROPOSED:
        return _batch(journal, row)
    lines = _lines(journal, id)
    return _batch(journal, row, duplicates=_duplicates(journal, id, lines, now), warnings=_warnings(lines))


def _warnings(lines: Iterable[sa.Row[Any]]) -> Mapping[int, str]:
    return warnings_of((each.line, each.phone_number) for each in lines)


def _batch(journal: Journal, row: sa.Row[Any], **noted: Mapping[int, str]) -> PayoutBatch:
    return PayoutBatch(
        id=row.id,
        name=row.name,
        digest=row.digest,
        state=row.state,
        proposed_by=row.proposed_by,
        proposed_at=row.proposed_at,
        approved_by=row.approved_by,
        approved_at=row.approved_at,
        cancelled_by=row.cancelled_by,
        cancelled_at=row.cancelled_at,
        lines=row.lines,
        total=load_amount(row.total),
        **noted,
        states={} if row.approved_at is None else _states(journal, row.id),
    )


def _states(journal: Journal, id: str) -> Mapping[str, int]:
    """Return the number of lines in each state, as of `PayoutLine.state`."""
    columns = payments.c
    kinds = _of_lines(sa.select(columns.state, columns.status, sa.func.count().label("number")), journal.account, id)
    found: Counter[str] = Counter()
    for row in journal.connection.execute(kinds.group_by(columns.state, columns.status)):
        if row.state is not None:
            found[_state(row)] += row.number
    return found


def _state(row: sa.Row[Any]) -> str:
    return str(row.status if row.state == PaymentState.FINAL else row.state)


def _duplicates(journal: Journal, id: str, lines: Sequence[sa.Row[Any]], now: datetime) -> Mapping[int, str]:
    """Return why lines look as if they were paid twice: by an earlier line, or a payment of the last thirty days."""
    used = _payments(journal, id)
    found: dict[int, str] = {}
    first: dict[tuple[str, ...], int] = {}
    recent = _recent(journal, {each.phone_number for each in lines}, now)
    for each in lines:
        kind, own = (each.phone_number, each.amount), used.get(each.key)
        earlier, other = first.setdefault(kind, each.line), recent.get(kind)
        namesake = first.setdefault((each.phone_number,), each.line)
        if own is not None and (own.type, own.phone_number, own.amount) != (TransactionType.DISBURSEMENT, *kind):
            found[each.line] = f"key {each.key!r} is that of another payment: the batch cannot be approved"
        elif own is not None:
            is_over = (
                own.state in {PaymentState.CANCELLED, PaymentState.FINAL} and own.status != TransactionStatus.SUCCESS
            )
            said = "it is not made again; other content, or another key, is" if is_over else "it is made once"
            found[each.line] = f"this very payment is {_state(own)} since {own.changed_at:%Y-%m-%d}: {said}"
        elif earlier != each.line:
            found[each.line] = f"line {earlier} pays the same amount to the same number"
        elif other is not None:
            said = f"payment {other.key!r} of the same amount to the same number"
            found[each.line] = f"{said} is {_state(other)} since {other.changed_at:%Y-%m-%d}"
        elif namesake != each.line:
            found[each.line] = f"line {namesake} pays another amount to the same number"
    return found


def _recent(journal: Journal, numbers: set[str], now: datetime) -> Mapping[tuple[str, str], sa.Row[Any]]:
    """Return the latest disbursement of the last thirty days of each kind to some numbers that was or may be made."""
    columns = payments.c
    names = (columns.key, columns.phone_number, columns.amount, columns.state, columns.status, columns.changed_at)
    unmade = [str(each) for each in (PaymentState.NOT_SENT, PaymentState.CANCELLED, PaymentState.RELEASED)]
    has_failed = (columns.state == str(PaymentState.FINAL)) & (columns.status != str(TransactionStatus.SUCCESS))
    was_refused = (columns.state == str(PaymentState.REFUSED)) & columns.is_certain
    recent: dict[tuple[str, str], sa.Row[Any]] = {}
    for some in chunks(sorted(numbers)):
        rows = journal.connection.execute(
            sa.select(*names)
            .where(
                columns.account == journal.account,
                columns.phone_number.in_(some),
                columns.type == str(TransactionType.DISBURSEMENT),
                columns.created_at >= now - _RECENT,
                columns.state.not_in(unmade),
                ~has_failed | columns.status.is_(None),
                ~was_refused | columns.is_certain.is_(None),
            )
            .order_by(columns.created_at)
        )
        recent |= {(row.phone_number, row.amount): row for row in rows}
    return recent


def _with_payment(line: sa.Row[Any], row: sa.Row[Any] | None, batch: sa.Row[Any], warning: str | None) -> PayoutLine:
    record = None if row is None else to_record(row)
    transaction = None if record is None else record.transaction
    return PayoutLine(
        line=line.line,
        key=line.key,
        phone_number=line.phone_number,
        amount=load_amount(line.amount),
        state=batch.state if row is None else _state(row),
        transaction_id=None if record is None else record.transaction_id,
        fee=None if transaction is None or transaction.fees is None else transaction.fees.total_fee,
        reason=None if row is None or record is None else _reason(row, record, batch.id),
        warning=warning,
        info={} if line.info is None else dict(json.loads(line.info)),
    )


def _reason(row: sa.Row[Any], record: PaymentRecord, batch: str) -> str | None:
    other = None if row.batch == batch else f"of batch {row.batch}" if row.batch else "made before this batch"
    why = record.reason or record.error if record.transaction is None else record.transaction.failure_reason
    return "; ".join(filter(None, (other, why))) or None
