"""Audit of some days: the store against the service's transaction list (contract, section 4.4).

The list is read first and the store afterwards, so that a transaction's payment is recorded by then, if not
always its answer. The service's days may begin at another hour than UTC's, and its list may leave out the last one: it
is read with days to spare, and then shows each payment of the days.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.schema import WAS_REFUSED_SOFTLY, payments, unmatched
from mobilemoney_async.errors import InvalidTransactionId, MobileMoneyError, TransactionNotFound
from mobilemoney_async.payments.audit.report import (
    AuditComparison,
    AuditReport,
    Difference,
    DifferenceKind,
    difference,
    incomplete,
    totals_of,
    unsettled_of,
)
from mobilemoney_async.payments.ownership.evidence import Listing
from mobilemoney_async.payments.ownership.listing import Lister, unhurried
from mobilemoney_async.payments.ownership.matching import query_for
from mobilemoney_async.payments.ownership.searches import read_row_facts
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import owners_of_rows
from mobilemoney_async.payments.records.record import REUSABLE, PaymentRecord, PaymentState
from mobilemoney_async.payments.records.unmatched import IS_OWNED

_columns, _HAS_WORD = payments.c, unmatched.c.explained_at.is_not(None)
_DAY = timedelta(days=1)
# Payments that the list does not show which are looked up one by one.
_MOST_LOOKUPS = 50
# The clocks may differ by as much.
_MARGIN = timedelta(minutes=10)


async def audit(store: AccountStore, pipeline: Pipeline, from_date: date, to_date: date) -> AuditReport:
    """Compare the store with the service; see `Payments.audit`."""
    pipeline = unhurried(pipeline)
    start, end = datetime.combine(from_date, time(), UTC), shift(datetime.combine(to_date, time(), UTC), _DAY)
    around = shift(start, -_DAY), shift(end, _DAY)
    listing = await Lister(pipeline).complete(around[0].date(), around[1].date(), lane=Priority.BULK)
    now = pipeline.utcnow()

    def read(journal: Journal) -> AuditComparison:
        # Before the owners: of a payment that is recorded at this moment, one of the two shows the transaction.
        open_ones = _sent_between(journal, *around, _columns.transaction_id.is_(None), also=PaymentState.RELEASED)
        owned = owners_of_rows(journal, listing.rows)

        def is_of_days(row: Transaction) -> bool:
            sent_at = owned[row.id].sent_at if row.id in owned else None
            return _is_within(row.created_at or row.completed_at or row.failed_at or sent_at, start, end)

        rows = list(filter(is_of_days, listing.rows))
        return AuditComparison(
            rows=rows,
            owned=owned,
            open_ones=open_ones,
            sent=_sent_between(journal, start, min(end, listing.began_at)),
            facts=read_row_facts(journal, rows, owned, settled=timedelta(0)),
            is_sole_writer=store.sole_writer is not False,
            kept={(row.transaction_id, row.status) for row in journal.rows(unmatched, _HAS_WORD, IS_OWNED)},
            began_at=listing.began_at,
            now=now,
            grace=timedelta(seconds=store.grace),
        )

    comparison, account = await store.read(lambda journal: (read(journal), journal.find_account()))
    is_due = account is not None and account.due_since is not None
    missing = await _compare_missing(pipeline, listing, comparison)
    unreadable = tuple(each for each in listing.unreadable if _is_within(each.created_at, start, end))
    of_days = attrs.evolve(listing, unreadable=unreadable)
    owners = (comparison.owned[row.id] for row in comparison.rows if row.id in comparison.owned)
    return AuditReport(
        from_date=from_date,
        to_date=to_date,
        transactions=len(comparison.own_rows),
        payments=len({each.key for each in (*owners, *comparison.sent)}),
        differences=[*incomplete(of_days, is_waited_for=is_due), *comparison.differences(), *missing],
        totals=totals_of(comparison.own_rows),
        unsettled=unsettled_of(comparison.own_rows),
        on_its_way=[row.id for row in comparison.on_its_way],
    )


def _is_within(at: datetime | None, start: datetime, end: datetime) -> bool:
    """Return whether a time is in some days, as one that is not shown may be."""
    return at is None or start <= at < end


def _sent_between(
    journal: Journal, start: datetime, end: datetime, *where: sa.ColumnElement[bool], also: PaymentState | None = None
) -> list[PaymentRecord]:
    """Return the payments that were sent in a time, and may exist, and those in another state."""
    states = [str(each) for each in (*REUSABLE, PaymentState.CANCELLED) if each is not also]
    then = (_columns.sent_at >= start, _columns.sent_at < end)
    may_exist = sa.or_(_columns.state.not_in(states), WAS_REFUSED_SOFTLY)
    return journal.records(*then, *where, may_exist, order_by=[_columns.sent_at])


async def _compare_missing(pipeline: Pipeline, listing: Listing, comparison: AuditComparison) -> list[Difference]:
    """Return the differences of payments with transactions that the list does not show.

    Some are looked up. One that the service does not know is missing once the grace period is over. One that it knows
    is missing only between rows that are shown, in a list that was read as a whole: else the list may be late.
    """
    shown, unreadable = ({row.id for row in rows} for rows in (listing.rows, listing.unreadable))
    is_whole = listing.is_complete and not unreadable
    times = [row.created_at for row in listing.rows if row.created_at is not None] or [listing.began_at]
    first, last = shift(min(times), _MARGIN), shift(max(times), -_MARGIN)
    settled_at = shift(listing.began_at, -comparison.grace)
    found: list[Difference] = []
    left, skipped = _MOST_LOOKUPS, 0
    for record in comparison.sent:
        if record.transaction_id is None or record.transaction_id in shown:
            continue
        said = f"the list does not show transaction {record.transaction_id} of payment {record.key!r}"
        row: Transaction | None = None
        sent_at = query_for(record).sent_at
        if left > 0:
            left -= 1
            try:
                identifiers = {"transaction_id": record.transaction_id}
                answer = await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.BULK)
            except (TransactionNotFound, InvalidTransactionId):
                if sent_at < settled_at:  # a younger one may not be shown yet
                    said += ", and the service does not know it"
                    found.append(difference(DifferenceKind.MISSING, said, record))
                continue
            except MobileMoneyError:
                left = 0  # the others are not looked up either
            else:
                row = answer.transaction
                found += comparison.compare(row, record)
        if is_whole and first <= sent_at <= last:
            said += ", but the service knows it" if row else ""
            found.append(difference(DifferenceKind.MISSING, said, record))
        else:
            skipped += record.transaction_id not in unreadable and (row is None or sent_at < settled_at)
    if skipped:
        said = f"payments that the list does not show before or after its rows, or though it was not whole: {skipped}"
        found.append(difference(DifferenceKind.INCOMPLETE, said))
    return found
