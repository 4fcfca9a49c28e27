"""Payments that are due to be looked for in the service's list.

One predicate decides that, from a payment's state, cause, next look and the payments that it can be compared with now.
The query that finds payments (`due`), the reader that chooses the pages (`Due.in_whole_days`) and the workers of many
accounts (`accounts_with_work`) all ask it. An unknown payment is due:

- at its time, `next_look_at`, which the latest look has set;
- before that, once another payment settles that it lacked to be compared with.

Only a listing of whole days shows that a payment is absent, and costs the most. So it is the second look after the
grace period, and any later one that can be compared with payments from before and after. Others read the pages near the
send.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.database.schema import IS_QUEUED, IS_UNIDENTIFIED, WAS_REFUSED_SOFTLY, accounts, payments
from mobilemoney_async.payments.records.account_status import AccountState
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import IS_PENDING
from mobilemoney_async.payments.records.reasons import LACKS, PaymentCause
from mobilemoney_async.payments.records.record import LISTINGS, PaymentRecord, PaymentState
from mobilemoney_async.payments.records.rows import UNKNOWN_EXTRA, to_record

# For how long a payment is looked for that was confirmed absent, or that a create has asked for; and one that was
# refused without a code of the contract: every process may be down, or the list unreadable, for days.
_SEARCHED, _REMEMBERED = timedelta(days=1), timedelta(days=30)
# Queued payments that are due so soon are work already: a dispatcher is not worth stopping for a minute.
_SOON = timedelta(minutes=1)
# Payments on each side that a listing is compared with, and how far away they may be.
_NEAREST, _COMPARED = 5, timedelta(days=7)

_columns, _other = payments.c, payments.alias().c
SEARCHABLE: Sequence[sa.ColumnElement[bool] | sa.TextClause] = (
    *(_columns.state == state for state in (PaymentState.UNKNOWN, PaymentState.ABSENT, PaymentState.RELEASED)),
    WAS_REFUSED_SOFTLY,
)
"""Payments without a known transaction that the list may show, each with an index."""


@attrs.frozen
class Due:
    """Payment that is looked for now.

    Attributes:
        record: The payment.
        is_due: Whether it is due; if not, a create has asked for it.
        in_whole_days: Whether a listing of whole days is worth its requests.
    """

    record: PaymentRecord
    is_due: bool
    in_whole_days: bool


class Work(enum.IntFlag):
    """Work that is due in an account: payments to follow, to look for in the list, and to send from the queue."""

    FOLLOW = 1
    RECONCILE = 2
    DISPATCH = 4


def due(journal: Journal, now: datetime, *, key: str | None, grace: float) -> list[Due]:
    """Return the payments to look for in the service's list: those that are due, and that of `key`.

    Unknown ones; absent ones of the last week; those refused without a code of the contract in the last month, once
    after the grace period; those confirmed absent in the last day, once; and either of these two that a create has
    asked for within a day, without a result.
    """
    here, conditions = _columns.account == journal.account, _conditions(now, grace)
    is_due = sa.or_(*conditions).label("is_due")
    statement = sa.select(payments, is_due, _is_listed_whole(now, grace).label("in_whole_days")).where(here)
    parts = [statement.where(each) for each in conditions]
    if key is not None:
        parts.append(statement.where(_columns.key == key, sa.or_(*SEARCHABLE)))
    rows = {row.key: row for part in parts for row in journal.execute(part)}
    found = (Due(to_record(row), bool(row.is_due), bool(row.in_whole_days)) for row in rows.values())
    return sorted(found, key=lambda each: (each.record.created_at, each.record.key))


def accounts_with_work(connection: sa.Connection, now: datetime, grace: float) -> dict[str, Work]:
    """Return the accounts of a database in which work is due, and which; none of those that are suspended.

    Queued, unidentified and softly refused payments have small indexes of their own. Of the others, each account costs
    a look at its place in an index, however many payments it has.
    """
    soon = now + _SOON
    is_lost = sa.and_(_columns.state == PaymentState.SENDING, _columns.stale_at <= now)
    unknown, absent, refused, released = _conditions(now, grace)
    unidentified = sa.and_(IS_UNIDENTIFIED, sa.or_(is_lost, unknown, absent))
    at_once = sa.or_(_columns.not_before.is_(None), _columns.not_before <= soon, _columns.not_after <= soon)
    wanted = [(Work.RECONCILE, unidentified), (Work.RECONCILE, refused), (Work.DISPATCH, sa.and_(IS_QUEUED, at_once))]
    selects = [(work, sa.select(_columns.account).where(each).distinct()) for work, each in wanted]
    for work, each in ((Work.FOLLOW, IS_PENDING), (Work.RECONCILE, released)):
        # A scalar, which no database turns into a join with a million payments.
        first = sa.select(_columns.state).where(_columns.account == accounts.c.account, each).limit(1)
        selects.append((work, sa.select(accounts.c.account).where(first.scalar_subquery().is_not(None))))
    found: dict[str, Work] = {}
    for work, statement in selects:
        for account in connection.execute(statement).scalars():
            found[account] = found.get(account, Work(0)) | work
    inactive = sa.select(accounts.c.account, accounts.c.state).where(accounts.c.state.is_not(None))
    late = sa.select(_columns.account).where(IS_QUEUED, _columns.not_after <= now).distinct()
    states = {row.account: row.state for row in connection.execute(inactive)}
    # A late payment leaves the queue, of a removed account too.
    is_late = set(connection.execute(late.where(_columns.account.in_(states))).scalars()) if states else set[str]()
    for account in states.keys() & found.keys():
        keeps = Work(0) if states[account] == AccountState.SUSPENDED else Work.FOLLOW | Work.RECONCILE
        found[account] &= keeps | (Work.DISPATCH if account in is_late else Work(0))
    return {account: work for account, work in found.items() if work}


def neighbours(
    journal: Journal, record: PaymentRecord, *, settled_at: datetime, most: int = _NEAREST
) -> list[PaymentRecord]:
    """Return the nearest payments that a listing can be compared with for a payment, a few on each side.

    They are of its type, and their requests had ended by `settled_at`.
    """
    assert record.sent_at is not None
    at, ended_at = record.sent_at, record.ended_at or record.sent_at
    known = (_columns.type == str(record.type), *comparable(_columns))
    sides = (
        (_columns.sent_at.between(at - _COMPARED, at), _columns.ended_at <= at, _columns.sent_at.desc()),
        (_columns.sent_at.between(ended_at, at + _COMPARED), _columns.ended_at <= settled_at, _columns.sent_at),
    )
    return [
        found
        for near, has_ended, order in sides
        for found in journal.records(*known, near, has_ended, order_by=[order], limit=most)
    ]


def comparable(columns: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions of a payment with the transaction of a request at a known time.

    An imported one shows only the service's clock.
    """
    return columns.transaction_id.is_not(None), columns.attempt == 1, columns.extra_digest != UNKNOWN_EXTRA


def _conditions(now: datetime, grace: float) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of `due`, of which each has an index: unknown, absent, softly refused, released."""
    a_day_ago, settled_at, is_time = now - _SEARCHED, now - timedelta(seconds=grace), _is_time(now)
    is_asked_for = _columns.next_look_at.between(a_day_ago, now)
    is_new_refusal = sa.and_(_columns.ended_at <= settled_at, _columns.walks == 0, is_time)
    is_new_release = sa.and_(_columns.changed_at >= a_day_ago, _columns.looked_at.is_(None), is_time)
    return [
        sa.and_(_columns.state == PaymentState.UNKNOWN, sa.or_(is_time, _has_what_it_lacked(now, grace))),
        sa.and_(_columns.state == PaymentState.ABSENT, _columns.ended_at >= now - _COMPARED, is_time),
        sa.and_(WAS_REFUSED_SOFTLY, _columns.ended_at >= now - _REMEMBERED, sa.or_(is_new_refusal, is_asked_for)),
        sa.and_(_columns.state == PaymentState.RELEASED, sa.or_(is_new_release, is_asked_for)),
    ]


def _is_time(now: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(_columns.next_look_at.is_(None), _columns.next_look_at <= now)


def _has_what_it_lacked(now: datetime, grace: float) -> sa.ColumnElement[bool]:
    """Return the condition of an unknown payment that can be compared with others now: it lacked one before.

    The earlier one was unknown itself. A payment of the last week has no later one that is too far away.
    """
    settled_at, half = now - timedelta(seconds=grace), timedelta(seconds=grace / 2)
    known = (_other.account == _columns.account, _other.type == _columns.type, *comparable(_other))
    is_later = (_other.sent_at >= _columns.ended_at, _other.ended_at <= settled_at)
    is_earlier = (
        _other.sent_at.between(now - 2 * _COMPARED, _columns.sent_at),
        _other.ended_at <= _columns.sent_at,
        _other.changed_at > sa.func.coalesce(_columns.looked_at, _columns.ended_at),
    )
    return sa.and_(
        _columns.sent_at >= now - _COMPARED,
        # Listings that are to count are some time apart.
        sa.or_(_columns.walks == 0, _columns.walked_at <= now - half),
        sa.or_(
            sa.and_(_columns.cause == PaymentCause.NO_LATER, sa.exists().where(*known, *is_later)),
            sa.and_(
                _columns.cause.in_((PaymentCause.NO_EARLIER, PaymentCause.TOO_OLD)),
                sa.exists().where(*known, *is_earlier),
            ),
        ),
    )


def _is_listed_whole(now: datetime, grace: float) -> sa.ColumnElement[bool]:
    """Return the condition of a payment that is looked for in whole days, if it is due.

    An unknown one has been looked for near its send before, after the grace period.
    """
    lacks_nothing = sa.func.coalesce(_columns.cause, "").not_in(LACKS)
    is_worth_it = sa.and_(_is_time(now), sa.or_(_columns.walks < LISTINGS, lacks_nothing))
    is_worth_it = sa.or_(is_worth_it, _has_what_it_lacked(now, grace))
    return sa.or_(
        _columns.state.not_in((PaymentState.UNKNOWN, PaymentState.ABSENT)),
        sa.and_(_columns.state == PaymentState.UNKNOWN, _columns.walks > 0, is_worth_it),
    )
