"""Overview of one account of a store, for the views that operators leave open: reads alone, and no request.

A dozen short statements, each by an index. The dearest one sums today's payments, of which the rate limit permits some
80,000; the others cost the same in a store of ten payments and of a million.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.leases import read_lease
from mobilemoney_async.database.schema import IS_NEW, budgets, changes, leases, payments
from mobilemoney_async.database.serialization import load
from mobilemoney_async.payments.outbox.outbox import count_queued
from mobilemoney_async.payments.outbox.pauses import find_pause
from mobilemoney_async.payments.ownership.surplus import find_unclaimed
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import IS_KEPT, IS_PENDING, needing_someone, same
from mobilemoney_async.payments.records.record import OPEN, PaymentRecord, PaymentState, UnclaimedTransaction
from mobilemoney_async.sharing.budget import find_usage

DAR_ES_SALAAM = timezone(timedelta(hours=3), "EAT")
"""The time zone of Tanzania, which knows no summer time. Days begin there, as they do for the readers."""

_MINUTE = timedelta(minutes=1)
_MINUTES = 60
# Of each list, the first so many.
_MOST, _OLDEST = 50, 10
# Final states over which the lag is taken.
_LAGS = 20
# The latest changes are looked for in twice as many each time, by a few around the first of them.
_FIRST_SPAN, _AROUND = 500, 100
# Numbers and times of changes have nearly the same order: a merchant's transaction that queues may be open for minutes.
_OUT_OF_ORDER = timedelta(minutes=10)

# Digits of an amount that SQLite sums apart from the others.
_LOW_DIGITS = 9

_columns, _change = payments.c, changes.c


@attrs.frozen(kw_only=True)
class DayTotal(Data):
    """Total of the payments of one type, state and status that were first recorded today.

    Attributes:
        type: Collection or disbursement.
        state: Their state in the store.
        status: Their transactions' state as last recorded, or None.
        count: Their number.
        amount: The sum of their amounts, TZS.
    """

    type: TransactionType
    state: PaymentState
    status: TransactionStatus | None
    count: int
    amount: Decimal


@attrs.frozen(kw_only=True)
class MinuteCount(Data):
    """Payments of one minute.

    Attributes:
        at: Its beginning.
        made: Those that the service acknowledged, or that were found in its list.
        succeeded: Those that ended as ``SUCCESS``.
        failed: Those that ended otherwise.
    """

    at: datetime
    made: int = 0
    succeeded: int = 0
    failed: int = 0


@attrs.frozen(kw_only=True)
class LimitUse(Data):
    """Use of the rate limit by all processes of a store.

    Attributes:
        used: Requests that it counts now.
        limit: Those that it permits in the same time, a minute unless a program has asked for another.
        per_minute: The rate.
    """

    used: int
    limit: int
    per_minute: float


@attrs.frozen(kw_only=True)
class Overview(Data):
    """Overview of the payments of one account.

    Attributes:
        at: Its time, by the clock of the store.
        grace: As of the store: how long the list may not show an existing payment, seconds.
        day_began_at: When today began in Tanzania.
        today: Today's payments, by type, state and status.
        minutes: The last 60 minutes, oldest first; the last one is not over.
        sending: Payments with a request on its way.
        pending: Payments that exist and are not final, of any day.
        oldest_pending: Those of them that were sent first, 10 at most.
        unknown: Payments that need attention: with an unknown result and no request on its way, with a final state that
            contradicts their record, or kept in the queue, by a limit say.
        needs_attention: Those of them that were sent first, 50 at most.
        unclaimed: Transactions that no payment claims and nobody has explained.
        unclaimed_first: The first of them, 50 at most.
        queued: Payments in the queue.
        kept: Those of them that are not sent as they are, and need attention: they are among the unknown, too.
        queue_done_at: The earliest time at which the last of them can have been sent, by the rate limit and their
            `not_before`, with a burst now; None if the queue is empty, no process sends it, or some are kept.
        has_poller: Whether a process follows the pending payments.
        has_dispatcher: Whether a process sends the queued payments.
        paused: Why nothing is sent from the queue, until someone resumes or for a while; None where it is sent.
        paused_until: When it goes on by itself; None if someone has to resume it.
        is_stopped: Whether new payments wait until the store has been compared with its service.
        lag: From the final state by the service's clock to its being recorded, seconds: the median of the latest ones
            within the hour; None if there are none. No less than 0, though the clocks may differ.
        requests: Use of the rate limit; None if that is not known, as where no process has shared its limit yet.
    """

    at: datetime
    grace: float
    day_began_at: datetime
    today: Sequence[DayTotal]
    minutes: Sequence[MinuteCount]
    sending: int
    pending: int
    oldest_pending: Sequence[PaymentRecord]
    unknown: int
    needs_attention: Sequence[PaymentRecord]
    unclaimed: int
    unclaimed_first: Sequence[UnclaimedTransaction]
    queued: int
    kept: int
    queue_done_at: datetime | None
    has_poller: bool
    has_dispatcher: bool
    paused: str | None
    paused_until: datetime | None
    is_stopped: bool
    lag: float | None
    requests: LimitUse | None


async def read_overview(store: AccountStore, now: datetime | None = None) -> Overview:
    """Return the overview of a store's account. Nothing is written, and no lease is taken; it may be cancelled.

    Args:
        store: Of the account.
        now: The time, aware UTC; None for that of the clock which all processes of the store share.

    Raises:
        StoreError: The database failed or cannot be reached.
    """

    def work(connection: sa.Connection, clock: Clock) -> Overview:
        shared = clock()  # first: on PostgreSQL it corrects the wall clock
        at = now or store.database.wall_clock.utcnow()
        return _read(Journal(connection, store.account), at, shared, store.grace)

    overview, _ = await store.database.timed(work, writes=False)
    return overview


def _read(journal: Journal, now: datetime, shared: float, grace: float) -> Overview:
    day_began_at = now.astimezone(DAR_ES_SALAAM).replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
    account = journal.find_account()
    recent = _recent(journal, 0 if account is None else account.feed_last, now)
    budget = journal.execute(sa.select(budgets.c.state).where(budgets.c.account == journal.account))
    usage = find_usage(budget.scalar_one_or_none(), shared)
    held = {row.name for row in journal.rows(leases) if read_lease(row).ends_at(shared) is not None}
    (queued, latest, _), pause = count_queued(journal), find_pause(journal)
    kept, done_at = journal.count(payments, IS_KEPT) if queued else 0, None
    if queued and not kept and "dispatcher" in held:
        per_minute, burst = (REQUESTS_PER_MINUTE, BURST) if usage is None else (usage[1].per_minute, usage[1].burst)
        done_at = max(now + max(0, queued - burst) * _MINUTE / per_minute, latest or now)
    sending = journal.count(payments, _columns.state == PaymentState.SENDING, _columns.stale_at > now)
    pending = journal.count(payments, IS_PENDING)
    kinds = needing_someone(now)
    unknown = sum(journal.count(payments, each) for each in kinds)
    first = [record for each in kinds if unknown for record in _oldest(journal, each, limit=_MOST)]
    unclaimed = find_unclaimed(journal, OPEN, now)
    return Overview(
        at=now,
        grace=grace,
        day_began_at=day_began_at,
        today=_today(journal, day_began_at),
        minutes=_minutes(journal, recent, now),
        sending=sending,
        pending=pending,
        oldest_pending=_oldest(journal, IS_PENDING, limit=_OLDEST) if pending else [],
        unknown=unknown,
        needs_attention=sorted(first, key=lambda each: (each.sent_at or each.created_at, each.key))[:_MOST],
        unclaimed=len(unclaimed),
        unclaimed_first=unclaimed[:_MOST],
        queued=queued,
        kept=kept,
        queue_done_at=done_at,
        has_poller="poller" in held,
        has_dispatcher="dispatcher" in held,
        paused=None if pause.is_over(now) else pause.reason,
        paused_until=None if pause.is_over(now) else pause.until,
        is_stopped=account is not None and (account.due_since or account.again_at) is not None,
        lag=_lag(journal, recent),
        requests=None
        if usage is None
        else LimitUse(used=usage[0].granted, limit=usage[0].limit, per_minute=usage[1].per_minute),
    )


# Open payments


def _oldest(journal: Journal, which: sa.ColumnElement[bool], *, limit: int) -> list[PaymentRecord]:
    # A payment of the queue may be recorded long before it is sent. No bare column: its index has the final ones, too.
    first = sa.func.coalesce(_columns.sent_at, _columns.created_at)
    return journal.records(which, order_by=[first, _columns.key], limit=limit)


# Today


@exactly
def _today(journal: Journal, since: datetime) -> list[DayTotal]:
    kind, run = (_columns.type, _columns.state, _columns.status), journal.execute
    rows = run(
        sa.select(*kind, sa.func.count().label("number"), *_sums(journal.dialect))
        .where(_columns.account == journal.account, _columns.created_at >= since)
        .group_by(*kind)
    )
    found = [
        DayTotal(
            type=TransactionType(row.type),
            state=PaymentState(row.state),
            status=None if row.status is None else TransactionStatus(row.status),
            count=row.number,
            amount=Decimal(row.high) * 10**_LOW_DIGITS + Decimal(row.low),
        )
        for row in rows
    ]
    order = list(PaymentState)
    return sorted(found, key=lambda total: (str(total.type), order.index(total.state), str(total.status or "")))


def _sums(dialect: str) -> Sequence[sa.Label[Any]]:
    """Return the sum of the amounts in two parts: amounts have 20 digits at most, and SQLite's integers 18."""
    if dialect == "postgresql":
        return (sa.literal(0).label("high"), sa.func.sum(sa.cast(_columns.amount, sa.Numeric)).label("low"))
    high = sa.func.substr(_columns.amount, 1, sa.func.max(sa.func.length(_columns.amount) - _LOW_DIGITS, 0))
    parts = {"high": high, "low": sa.func.substr(_columns.amount, -_LOW_DIGITS)}
    return [sa.func.sum(sa.cast(part, sa.Integer)).label(name) for name, part in parts.items()]


# The last hour


def _recent(journal: Journal, last: int, now: datetime) -> sa.Subquery:
    """Return the changes of the last 60 minutes, as a part of other statements; the latest number is `last`."""
    since, here = _first_minute(now), _change.account == journal.account
    span, after = _FIRST_SPAN, last - _FIRST_SPAN
    while after > 0:
        around = (here, _change.number.between(after - _AROUND, after))
        latest = journal.execute(sa.select(sa.func.max(_change.at)).where(*around)).scalar_one()
        if latest is not None and latest < since - _OUT_OF_ORDER:
            break
        span, after = 2 * span, last - 2 * span
    kept = sa.select(*(_change[name] for name in ("account", "name", "entry", "state", "status", "at")))
    numbered = kept.where(here, _change.number > max(after, 0), _change.at >= since)
    return sa.union_all(numbered, kept.where(here, IS_NEW, _change.at >= since)).subquery()


def _first_minute(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0) - (_MINUTES - 1) * _MINUTE


def _minutes(journal: Journal, recent: sa.Subquery, now: datetime) -> list[MinuteCount]:
    first, columns = _first_minute(now), recent.c
    # Within an hour the minute on the clock tells them apart, in any time zone.
    kind = (sa.extract("minute", columns.at), columns.state, columns.status)
    rows = journal.execute(
        sa.select(sa.func.min(columns.at).label("first_at"), *kind[1:], sa.func.count().label("number"))
        .where(columns.state.in_([PaymentState.ACKNOWLEDGED, PaymentState.FINAL]))
        .group_by(*kind)
    )
    counts: list[dict[str, int]] = [{} for _ in range(_MINUTES)]
    for row in rows:
        place = (row.first_at - first) // _MINUTE
        if place < _MINUTES:  # another host's clock may be ahead
            is_made, has_succeeded = row.state == PaymentState.ACKNOWLEDGED, row.status == TransactionStatus.SUCCESS
            name = "made" if is_made else "succeeded" if has_succeeded else "failed"
            counts[place][name] = counts[place].get(name, 0) + row.number
    return [MinuteCount(at=first + place * _MINUTE, **count) for place, count in enumerate(counts)]


def _lag(journal: Journal, recent: sa.Subquery) -> float | None:
    columns = recent.c
    latest = (
        sa.select(columns.account, columns.name, columns.at)
        .where(columns.state == PaymentState.FINAL)
        .order_by(columns.at.desc())
        .limit(_LAGS)
        .subquery()
    )
    of_change = (_columns.account == same(latest.c.account), _columns.key == latest.c.name)
    rows = journal.execute(
        sa.select(latest.c.at, _columns.transaction).join_from(latest, payments, sa.and_(*of_change))
    )
    lags: list[float] = []
    for row in rows:
        final = None if row.transaction is None else load(Transaction, row.transaction)
        ended_at = None if final is None else final.completed_at or final.failed_at
        if ended_at is not None:
            lags.append((row.at - ended_at).total_seconds())
    return max(0.0, statistics.median(lags)) if lags else None
