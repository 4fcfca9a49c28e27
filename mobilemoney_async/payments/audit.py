"""Audit of some days: the store against the service's transaction list (contract, section 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.database.schema import payments
from mobilemoney_async.errors import InvalidTransactionId, TransactionNotFound
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.audit_report import (
    AuditReport,
    Difference,
    DifferenceKind,
    compare,
    compare_one,
    difference,
    incomplete,
    totals_of,
    unresolved,
)
from mobilemoney_async.payments.evidence import Walk
from mobilemoney_async.payments.journal import Journal, to_record
from mobilemoney_async.payments.listing import Lister
from mobilemoney_async.payments.matching import Spellings, query_for
from mobilemoney_async.payments.queries import merchant_of, owners
from mobilemoney_async.payments.records import REUSABLE, PaymentRecord

_DAY = timedelta(days=1)
# Payments outside the times that the list shows which are looked up one by one.
_MOST_LOOKUPS = 50


async def audit(store: AccountStore, pipeline: Pipeline, from_date: date, to_date: date) -> AuditReport:
    """Compare the store with the service; see `Payments.audit`."""
    walk = await Lister(pipeline).complete(from_date, to_date, lane=Priority.BULK)
    start, end = (datetime.combine(each, time(), UTC) for each in (from_date, to_date + _DAY))

    def read(journal: Journal) -> tuple[Mapping[str, PaymentRecord], list[PaymentRecord], str | None]:
        owned = owners(journal, [row.id for row in walk.rows])
        return owned, _sent_between(journal, start, end), merchant_of(journal, walk.rows, owned)

    owned, sent, merchant_id = await store.read(read)
    shown = {row.id for row in walk.rows}
    missing = [each for each in sent if each.transaction_id is not None and each.transaction_id not in shown]
    found = [*incomplete(walk), *compare(walk.rows, owned, merchant_id), *map(unresolved, filter(_is_open, sent))]
    found += await _look_up(pipeline, missing, walk)
    return AuditReport(
        from_date=from_date,
        to_date=to_date,
        transactions=len(walk.rows),
        payments=len({each.key for each in (*owned.values(), *sent)}),
        differences=found,
        totals=totals_of(walk.rows),
    )


def _sent_between(journal: Journal, start: datetime, end: datetime) -> list[PaymentRecord]:
    """Return the payments that were sent in a time, and may exist."""
    columns, states = payments.c, [str(each) for each in REUSABLE]
    here = (columns.account == journal.account, columns.sent_at >= start, columns.sent_at < end)
    rows = journal.connection.execute(sa.select(payments).where(*here, columns.state.not_in(states)))
    return [to_record(row) for row in rows.all()]


def _is_open(record: PaymentRecord) -> bool:
    return record.is_unresolved


async def _look_up(pipeline: Pipeline, missing: Sequence[PaymentRecord], walk: Walk) -> list[Difference]:
    """Return the differences of payments whose transactions the list does not show.

    The list's days may begin at another hour than ours: at its edges, the transactions themselves are asked for.
    """
    times = [row.created_at for row in walk.rows]
    first, last = min(times, default=None), max(times, default=None)
    found: list[Difference] = []
    asked = 0
    for record in missing:
        said = f"the list does not show transaction {record.transaction_id} of payment {record.key!r}"
        is_inside = first is not None and last is not None and first <= query_for(record).sent_at <= last
        if is_inside and walk.is_complete:
            found.append(difference(DifferenceKind.MISSING, said, record))
        elif asked < _MOST_LOOKUPS:
            asked += 1
            identifiers = {"transaction_id": record.transaction_id or ""}
            try:
                row = (await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.BULK)).transaction
                found += compare_one(row, record, Spellings())
            except (TransactionNotFound, InvalidTransactionId):
                found.append(difference(DifferenceKind.MISSING, f"{said}, and the service does not know it", record))
        else:
            reason = f"{said}, at the edge of these days: it was not compared"
            found.append(difference(DifferenceKind.INCOMPLETE, reason, record))
    return found
