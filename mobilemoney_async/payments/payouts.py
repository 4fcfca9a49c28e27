"""``client.payouts``: batches of disbursements that one person proposes and another approves.

Proposing checks and records, approving queues all lines in one transaction, and a dispatcher sends them. So each step
is done as a whole or not at all, and may be repeated after a crash.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import sqlalchemy as sa

from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import batch_lines, batches, payments
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.creates import payment_request
from mobilemoney_async.payments.journal import Journal, to_record
from mobilemoney_async.payments.outbox import QueueOptions, cancel, enqueue_all
from mobilemoney_async.payments.payout_batch import (
    PayoutBatch,
    PayoutLine,
    PayoutRow,
    Rows,
    default_key,
    digest,
    read_rows,
    write_report,
)
from mobilemoney_async.payments.queries import chunks
from mobilemoney_async.payments.records import PaymentRecord, PaymentRequest, PaymentState
from mobilemoney_async.values import require_name, require_text

PROPOSED, APPROVED, CANCELLED = "proposed", "approved", "cancelled"

_RECENT = timedelta(days=30)


class Payouts:
    """Batches of one account. Every method raises `StoreError` if the database fails or cannot be reached."""

    def __init__(self, store: AccountStore, utcnow: Callable[[], datetime]) -> None:
        self._store = store
        self._utcnow = utcnow

    async def propose(self, rows: Rows, *, name: str, by: str, local_numbers: bool = False) -> PayoutBatch:
        """Check a batch as a whole, and record it for someone else to approve. Nothing is sent.

        A line that names no key gets one from the content of the whole batch and its line: the same file, proposed
        twice, is paid once. To pay the same people the same amounts again next month, give it a column for the month.

        Args:
            rows: Text or open file of a CSV with the header ``phone_number,amount[,key][,…]``, or mappings with these
                keys. Other columns come back in the report.
            name: Of the batch, such as ``salaries 2026-11``, at most 200 characters.
            by: Your name.
            local_numbers: Whether numbers may be written without their country code (``0788 500 000``), as Tanzanian.

        Raises:
            InvalidRequest: An argument is invalid, or rows are: it names their lines.
        """
        title, proposer = require_name("name", name), require_name("by", by)
        read = read_rows(rows, local_numbers=local_numbers)
        content, now = digest(read), self._utcnow()
        batch: dict[str, Any] = {"account": self._store.account, "id": uuid.uuid4().hex[:12], "name": title}
        batch |= {"digest": content, "state": PROPOSED, "proposed_by": proposer, "proposed_at": now}

        def record(journal: Journal) -> PayoutBatch:
            journal.connection.execute(batches.insert(), batch)
            lines = [_line(batch, each, default_key(content, each)) for each in read]
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
            by: Your name: another one than the proposer's.
            digest: The one that you were shown with the batch.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch, it is cancelled, the digest is another one, or you have proposed it.
            IdempotencyConflict: A key was used for another payment; nothing was queued.
        """
        approver, shown = require_name("by", by), require_text("digest", digest)
        now = self._utcnow()

        def approve(journal: Journal) -> PayoutBatch:
            batch = _lock(journal, id)
            if batch.state == APPROVED:
                return _find(journal, batch.id, now)
            if batch.state != PROPOSED:
                raise _refused(f"batch {id!r} is {batch.state}")
            if approver.casefold() == batch.proposed_by.casefold():
                raise _refused(f"batch {id!r} was proposed by {batch.proposed_by}: someone else has to approve it")
            if shown != batch.digest:
                raise _refused(f"the digest is not that of batch {id!r}: look at it again")
            enqueue_all(journal, [_order(batch.id, line) for line in _lines(journal, batch.id)], now)
            _decide(journal, batch.id, APPROVED, approver, now)
            return _find(journal, batch.id, now)

        await self._store.database.open()
        return await self._store.write(approve)

    async def cancel(self, id: str, *, by: str) -> PayoutBatch:
        """Stop the lines of a batch that are not sent yet.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch.
        """
        person, now = require_name("by", by), self._utcnow()

        def stop(journal: Journal) -> PayoutBatch:
            batch = _lock(journal, id)
            for record in _records(journal, batch.id).values():
                if record.state is PaymentState.QUEUED:
                    cancel(journal, record.key, note=f"{person}: batch {id} was cancelled", at=now)
            if batch.state != CANCELLED:
                _decide(journal, batch.id, CANCELLED, person, now)
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
        """Return the batches that were proposed last, newest first."""
        now = self._utcnow()

        def latest(journal: Journal) -> list[PayoutBatch]:
            statement = sa.select(batches.c.id).where(batches.c.account == journal.account)
            ids = journal.connection.execute(statement.order_by(batches.c.proposed_at.desc()).limit(limit)).scalars()
            return [_find(journal, each, now) for each in list(ids)]

        return await self._store.read(latest)

    async def report(self, id: str, format: Literal["csv", "json"] | None = None) -> Any:
        """Return the lines of a batch with their payments, as `PayoutLine` or as the text of a file.

        Args:
            id: The batch.
            format: ``csv`` or ``json`` for the text of a file, with whole numbers; None for a list of `PayoutLine`.

        Raises:
            InvalidRequest: An argument is invalid.
            StoreError: There is no such batch.
        """
        name = require_name("id", id)

        def report(journal: Journal) -> list[PayoutLine]:
            return _report(journal, _row(journal, name))

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


def _lock(journal: Journal, id: str) -> sa.Row[Any]:
    """Return a batch, locked until the commit: two people may decide at once."""
    return _row(journal, require_name("id", id), lock=True)


def _decide(journal: Journal, id: str, state: str, by: str, at: datetime) -> None:
    here = (batches.c.account == journal.account, batches.c.id == id)
    values = {"state": state, "decided_by": by, "decided_at": at}
    journal.connection.execute(batches.update().where(*here).values(values))


def _lines(journal: Journal, id: str) -> Sequence[sa.Row[Any]]:
    statement = sa.select(batch_lines).where(batch_lines.c.account == journal.account, batch_lines.c.batch == id)
    return journal.connection.execute(statement.order_by(batch_lines.c.line)).all()


def _records(journal: Journal, id: str) -> dict[str, PaymentRecord]:
    """Return the payments of a batch's lines, by key. One may have been queued by an earlier batch."""
    here = (batch_lines.c.account == payments.c.account) & (batch_lines.c.key == payments.c.key)
    statement = sa.select(payments).join(batch_lines, here)
    rows = journal.connection.execute(
        statement.where(batch_lines.c.account == journal.account, batch_lines.c.batch == id)
    )
    return {row.key: to_record(row) for row in rows}


def _find(journal: Journal, id: str, now: datetime) -> PayoutBatch:
    row = _row(journal, id)
    lines = _lines(journal, id)
    states: Mapping[str, int] = {}
    duplicates: Mapping[int, str] = {}
    if row.state == PROPOSED:
        duplicates = _duplicates(journal, lines, now)
    else:
        states = _states(journal, row, len(lines))
    return PayoutBatch(
        id=row.id,
        name=row.name,
        digest=row.digest,
        state=row.state,
        proposed_by=row.proposed_by,
        proposed_at=row.proposed_at,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        lines=len(lines),
        total=sum((Decimal(each.amount) for each in lines), Decimal(0)),
        duplicates=duplicates,
        states=states,
    )


def _states(journal: Journal, batch: sa.Row[Any], lines: int) -> Mapping[str, int]:
    """Return the number of lines in each state, as of `PayoutLine.state`."""
    of_line = (batch_lines.c.account == payments.c.account) & (batch_lines.c.key == payments.c.key)
    here = (batch_lines.c.account == journal.account, batch_lines.c.batch == batch.id)
    kinds = sa.select(payments.c.state, payments.c.status, sa.func.count().label("number")).join(batch_lines, of_line)
    found: Counter[str] = Counter()
    for row in journal.connection.execute(kinds.where(*here).group_by(payments.c.state, payments.c.status)):
        found[row.status if row.state == PaymentState.FINAL else row.state] += row.number
    if found.total() < lines:
        found[batch.state] += lines - found.total()
    return found


def _duplicates(journal: Journal, lines: Sequence[sa.Row[Any]], now: datetime) -> Mapping[int, str]:
    """Return why lines look as if they were paid twice: by an earlier line, or a payment of the last thirty days."""
    found: dict[int, str] = {}
    first: dict[tuple[str, str], int] = {}
    recent = _recent(journal, {each.phone_number for each in lines}, now)
    for each in lines:
        kind = (each.phone_number, each.amount)
        earlier = first.setdefault(kind, each.line)
        if earlier != each.line:
            found[each.line] = f"line {earlier} pays the same amount to the same number"
        elif kind in recent:
            key, state, at = recent[kind]
            same = "this very payment" if key == each.key else f"payment {key!r} of the same amount to the same number"
            found[each.line] = f"{same} is {state} since {at:%Y-%m-%d}"
    return found


def _recent(
    journal: Journal, numbers: set[str], now: datetime
) -> Mapping[tuple[str, str], tuple[str, PaymentState, datetime]]:
    """Return the disbursements of the last thirty days to some numbers that were or may be made, by their kinds."""
    columns = payments.c
    unmade = [str(each) for each in (PaymentState.NOT_SENT, PaymentState.CANCELLED, PaymentState.RELEASED)]
    recent: dict[tuple[str, str], tuple[str, PaymentState, datetime]] = {}
    for some in chunks(sorted(numbers)):
        rows = journal.connection.execute(
            sa.select(columns.key, columns.phone_number, columns.amount, columns.state, columns.created_at).where(
                columns.account == journal.account,
                columns.phone_number.in_(some),
                columns.type == str(TransactionType.DISBURSEMENT),
                columns.created_at >= now - _RECENT,
                columns.state.not_in(unmade),
            )
        )
        recent |= {(row.phone_number, row.amount): (row.key, PaymentState(row.state), row.created_at) for row in rows}
    return recent


def _report(journal: Journal, batch: sa.Row[Any]) -> list[PayoutLine]:
    records = {} if batch.state == PROPOSED else _records(journal, batch.id)
    return [_with_payment(each, records.get(each.key), batch.state) for each in _lines(journal, batch.id)]


def _with_payment(line: sa.Row[Any], record: PaymentRecord | None, state: str) -> PayoutLine:
    transaction = None if record is None else record.transaction
    return PayoutLine(
        line=line.line,
        key=line.key,
        phone_number=line.phone_number,
        amount=Decimal(line.amount),
        state=state if record is None else str(record.state if transaction is None else transaction.status),
        transaction_id=None if record is None else record.transaction_id,
        fee=None if transaction is None or transaction.fees is None else transaction.fees.total_fee,
        reason=_reason(record),
        info={} if line.info is None else json.loads(line.info),
    )


def _reason(record: PaymentRecord | None) -> str | None:
    if record is None or record.transaction is not None:
        return None if record is None or record.transaction is None else record.transaction.failure_reason
    return record.reason or record.error
