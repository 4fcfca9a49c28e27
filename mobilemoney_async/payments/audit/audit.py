"""Audit of some days: the store against the service's transaction list (contract, section 4.4).

The list is read first and the store afterwards, so that a transaction's payment is recorded by then, if not
always its answer. The service's days may begin at another hour than UTC's: nothing is concluded from what the list does
not show at the edges of its rows, unless that is more hours than time zones explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

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
from mobilemoney_async.payments.records.next_steps import NextStep
from mobilemoney_async.payments.records.queries import owners_of_rows
from mobilemoney_async.payments.records.record import REUSABLE, PaymentRecord, PaymentState
from mobilemoney_async.payments.records.unmatched import IS_OWNED

_columns, _HAS_WORD = payments.c, unmatched.c.explained_at.is_not(None)
_DAY = timedelta(days=1)
# Payments that the list does not show which are looked up one by one. Where there are more at an edge of the days, the
# pages around them are read first.
_MOST_LOOKUPS, _FEW = 50, 10
# The clocks may differ by as much.
_MARGIN = timedelta(minutes=10)
# Of the first or the last day at most, a service in another time zone shows so much in the list of a neighbour.
_ZONES = timedelta(hours=14)


async def audit(store: AccountStore, pipeline: Pipeline, from_date: date, to_date: date) -> AuditReport:
    """Compare the store with the service; see `Payments.audit`."""
    pipeline = unhurried(pipeline)
    listing = await Lister(pipeline).complete(from_date, to_date, lane=Priority.BULK)
    start, last = (datetime.combine(each, time(), UTC) for each in (from_date, to_date))
    now = pipeline.utcnow()

    def read(journal: Journal) -> AuditComparison:
        # Before the owners: of a payment that is recorded at this moment, one of the two shows the transaction.
        around = shift(start, -_DAY), shift(last, 2 * _DAY)
        open_ones = _sent_between(journal, *around, _columns.transaction_id.is_(None), also=PaymentState.RELEASED)
        owned = owners_of_rows(journal, listing.rows)
        return AuditComparison(
            rows=listing.rows,
            owned=owned,
            open_ones=open_ones,
            sent=_sent_between(journal, start, min(shift(last, _DAY), listing.began_at)),
            facts=read_row_facts(journal, listing.rows, owned, settled=timedelta(0)),
            is_sole_writer=store.sole_writer is not False,
            kept={(row.transaction_id, row.status) for row in journal.rows(unmatched, _HAS_WORD, IS_OWNED)},
            began_at=listing.began_at,
            now=now,
            grace=timedelta(seconds=store.grace),
        )

    comparison, account = await store.read(lambda journal: (read(journal), journal.find_account()))
    is_due = account is not None and account.due_since is not None
    missing = await _compare_missing(pipeline, listing, comparison)
    return AuditReport(
        from_date=from_date,
        to_date=to_date,
        transactions=len(comparison.own_rows),
        payments=len({each.key for each in (*comparison.owned.values(), *comparison.sent)}),
        differences=[*incomplete(listing, is_waited_for=is_due), *comparison.differences(), *missing],
        totals=totals_of(comparison.own_rows),
        unsettled=unsettled_of(comparison.own_rows),
        on_its_way=[row.id for row in comparison.on_its_way],
    )


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

    Some are looked up. Of the others, one is missing only between rows that are shown, in a list that was read as a
    whole.
    """
    inside, *edges = _divide(listing, comparison.sent)
    rows = await _read_edges(Lister(pipeline), edges)
    found: list[Difference] = []
    left, skipped, keys = _MOST_LOOKUPS, 0, {each.key for each in inside}
    for record in (*inside, *edges[0], *edges[1]):
        said = f"the list does not show transaction {record.transaction_id} of payment {record.key!r}"
        row = rows.get(record.transaction_id or "")
        if row is None and left > 0:
            left -= 1
            try:
                identifiers = {"transaction_id": record.transaction_id or ""}
                answer = await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.BULK)
                row = answer.transaction
            except (TransactionNotFound, InvalidTransactionId):
                found.append(difference(DifferenceKind.MISSING, f"{said}, and the service does not know it", record))
                continue
            except MobileMoneyError:
                left = 0  # the others are not looked up either
        if row is not None:
            found += comparison.compare(row, record)
        if record.key in keys:
            found.append(
                difference(DifferenceKind.MISSING, said + (", but the service knows it" if row else ""), record)
            )
        else:
            skipped += row is None
    if skipped:
        said = f"payments that the list does not show at the edges of these days, and that were not compared: {skipped}"
        found.append(difference(DifferenceKind.INCOMPLETE, said))
    gone = {each.key for each in found if each.kind is DifferenceKind.MISSING}
    return [*found, *_find_cut(listing, [[each for each in edge if each.key not in gone] for edge in edges])]


def _find_cut(listing: Listing, edges: Sequence[Sequence[PaymentRecord]]) -> Iterable[Difference]:
    """Return the difference of a list that hides more of its days than a time zone does: `to` may exclude its day."""
    first, last = (
        datetime.combine(each or listing.first_day, time(), UTC) for each in (listing.first_day, listing.last_day)
    )
    times = [row.created_at for row in listing.rows if row.created_at is not None]
    is_empty, times = not times, times or [listing.began_at]  # then all are before, and one zone explains one edge
    before, after = ([query_for(each).sent_at for each in edge] for edge in edges)
    before = [each for each in before if each < shift(min(times), -_MARGIN)]
    after = [each for each in after if each > shift(max(times), _MARGIN)]
    ends = min(shift(last, _DAY), listing.began_at)
    hidden = max(before, default=first) - first, ends - min(before if is_empty else after, default=ends)
    if listing.is_complete and not listing.unreadable and (min if is_empty else max)(hidden) > _ZONES:
        said = "the list hides payments at the edges of these days, over more hours than time zones explain"
        days = (f"{shift(first, -_DAY):%Y-%m-%d}", "--to", f"{shift(last, _DAY):%Y-%m-%d}")
        advice = "the service may leave out the first or the last day: audit a day more on each side"
        step = NextStep(advice, (("payments", "audit", "--from", *days),))
        yield difference(DifferenceKind.INCOMPLETE, f"{said}: {sum(map(len, edges))}", step=step)


def _divide(listing: Listing, sent: Sequence[PaymentRecord]) -> tuple[list[PaymentRecord], ...]:
    """Return the payments that a listing does not show: those between its rows, those before, and those after them."""
    shown = {row.id for row in listing.rows}
    missing = [each for each in sent if each.transaction_id is not None and each.transaction_id not in shown]
    times = sorted(row.created_at for row in listing.rows if row.created_at is not None)
    first, last = (
        (shift(times[0], _MARGIN), shift(times[-1], -_MARGIN)) if times else (listing.began_at, listing.began_at)
    )
    is_whole = listing.is_complete and not listing.unreadable
    parts: tuple[list[PaymentRecord], ...] = [], [], []
    for each in missing:
        at = query_for(each).sent_at
        parts[1 if at < first else 2 if at > last or not is_whole else 0].append(each)
    return parts


async def _read_edges(lister: Lister, edges: Sequence[Sequence[PaymentRecord]]) -> Mapping[str, Transaction]:
    """Return the rows around payments at an edge of the days, where there are many: the neighbouring days show them."""
    rows: dict[str, Transaction] = {}
    for edge in edges:
        if len(edge) > _FEW:
            sent = sorted(query_for(each).sent_at for each in edge)
            start, end = shift(sent[0], -_MARGIN), shift(sent[-1], _MARGIN)
            rows |= {row.id: row for row in (await lister.near(start, end, lane=Priority.BULK)).rows}
    return rows
