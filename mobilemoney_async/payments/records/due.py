"""Payments that are due to be looked for in the service's list.

One predicate decides that, from a payment's state, cause, next look and the payments that it can be compared with now.
The query that finds payments (`due`), the reader that chooses the pages (`Due.in_whole_days`) and the workers of many
accounts (`accounts_with_work`) all ask it. An unknown payment is due:

- at its time, `next_look_at`, which the latest look has set;
- before that, once another payment settles that it lacked to be compared with, or turns out to own its candidate.

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
from mobilemoney_async.payments.records.statements import OF_ACCOUNT, OF_KEY

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


class DueWork(enum.IntFlag):
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
    given = {**_times(now, grace), "of_account": journal.account, "of_key": key}
    statements = (_DUE,) if key is None else (_DUE, _ASKED_FOR)
    rows = {row.key: row for statement in statements for row in journal.execute(statement, given)}
    found = (Due(to_record(row), bool(row.is_due), bool(row.in_whole_days)) for row in rows.values())
    return sorted(found, key=lambda each: (each.record.created_at, each.record.key))


def accounts_with_work(connection: sa.Connection, now: datetime, grace: float) -> dict[str, DueWork]:
    """Return the accounts of a database in which work is due, and which; none of those that are suspended.

    Queued, unidentified and softly refused payments have small indexes of their own. Of the others, each account costs
    a look at its place in an index, however many payments it has.
    """
    soon = now + _SOON
    is_lost = sa.and_(_columns.state == PaymentState.SENDING, _columns.stale_at <= now)
    unidentified = sa.and_(IS_UNIDENTIFIED, sa.or_(is_lost, _UNKNOWN, _ABSENT))
    at_once = sa.or_(_columns.not_before.is_(None), _columns.not_before <= soon, _columns.not_after <= soon)
    wanted = [
        (DueWork.RECONCILE, unidentified),
        (DueWork.RECONCILE, _REFUSED),
        (DueWork.DISPATCH, sa.and_(IS_QUEUED, at_once)),
    ]
    selects = [(work, sa.select(_columns.account).where(each).distinct()) for work, each in wanted]
    for work, each in ((DueWork.FOLLOW, IS_PENDING), (DueWork.RECONCILE, _RELEASED)):
        # A scalar, which no database turns into a join with a million payments.
        first = sa.select(_columns.state).where(_columns.account == accounts.c.account, each).limit(1)
        selects.append((work, sa.select(accounts.c.account).where(first.scalar_subquery().is_not(None))))
    found, times = dict[str, DueWork](), _times(now, grace)
    for work, statement in selects:
        for account in connection.execute(statement, times).scalars():
            found[account] = found.get(account, DueWork(0)) | work
    inactive = sa.select(accounts.c.account, accounts.c.state).where(accounts.c.state.is_not(None))
    late = sa.select(_columns.account).where(IS_QUEUED, _columns.not_after <= now).distinct()
    states = {row.account: row.state for row in connection.execute(inactive)}
    # A late payment leaves the queue, of a removed account too.
    is_late = set(connection.execute(late.where(_columns.account.in_(states))).scalars()) if states else set[str]()
    for account in states.keys() & found.keys():
        keeps = DueWork(0) if states[account] == AccountState.SUSPENDED else DueWork.FOLLOW | DueWork.RECONCILE
        found[account] &= keeps | (DueWork.DISPATCH if account in is_late else DueWork(0))
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


def _times(now: datetime, grace: float) -> dict[str, datetime]:
    """Return the times of the conditions."""
    half = timedelta(seconds=grace / 2)
    ago = {"settled_at": 2 * half, "half_ago": half, "a_day_ago": _SEARCHED, "a_week_ago": _COMPARED}
    ago |= {"two_weeks_ago": 2 * _COMPARED, "a_month_ago": _REMEMBERED}
    return {"now": now, **{name: now - span for name, span in ago.items()}}


def _time(name: str) -> sa.BindParameter[datetime]:
    return sa.bindparam(name, type_=_columns.sent_at.type)


def _has_what_it_lacked() -> sa.ColumnElement[bool]:
    """Return the condition of an unknown payment that can be compared with others now: it lacked one before.

    The earlier one was unknown itself. A payment of the last week has no later one that is too far away. Or one of its
    candidates was acknowledged as another payment of its kind since the latest look.
    """
    known = (_other.account == _columns.account, _other.type == _columns.type, *comparable(_other))
    is_later = (_other.sent_at >= _columns.ended_at, _other.ended_at <= _time("settled_at"))
    is_earlier = (
        _other.sent_at.between(_time("two_weeks_ago"), _columns.sent_at),
        _other.ended_at <= _columns.sent_at,
        _other.changed_at > sa.func.coalesce(_columns.looked_at, _columns.ended_at),
    )
    alike = [getattr(_other, name) == _columns[name] for name in ("account", "phone_number", "type", "amount")]
    return sa.and_(
        _columns.sent_at >= _time("a_week_ago"),
        # Listings that are to count are some time apart.
        sa.or_(_columns.walks == 0, _columns.walked_at <= _time("half_ago")),
        sa.or_(
            sa.and_(_columns.cause == PaymentCause.NO_LATER, sa.exists().where(*known, *is_later)),
            sa.and_(
                _columns.cause.in_((PaymentCause.NO_EARLIER, PaymentCause.TOO_OLD)),
                sa.exists().where(*known, *is_earlier),
            ),
            sa.and_(
                _columns.cause.in_((PaymentCause.CANDIDATES, PaymentCause.RIVAL)),
                sa.exists().where(*alike, _columns.candidates.contains('"' + _other.transaction_id + '"')),
            ),
        ),
    )


def _is_listed_whole() -> sa.ColumnElement[bool]:
    """Return the condition of a payment that is looked for in whole days, if it is due.

    An unknown one has been looked for near its send before, after the grace period.
    """
    lacks_nothing = sa.func.coalesce(_columns.cause, "").not_in(sorted(LACKS))
    is_worth_it = sa.and_(_IS_TIME, sa.or_(_columns.walks < LISTINGS, lacks_nothing))
    return sa.or_(
        _columns.state.not_in((PaymentState.UNKNOWN, PaymentState.ABSENT)),
        sa.and_(
            _columns.state == PaymentState.UNKNOWN,
            _columns.walks > 0,
            sa.or_(is_worth_it, _has_what_it_lacked()),
        ),
    )


def _selected(*where: Any) -> sa.Select[Any]:
    is_due = sa.or_(*_CONDITIONS).label("is_due")
    statement = sa.select(payments, is_due, _is_listed_whole().label("in_whole_days"))
    return statement.where(_columns.account == OF_ACCOUNT, *where)


_IS_TIME = sa.or_(_columns.next_look_at.is_(None), _columns.next_look_at <= _time("now"))
_IS_ASKED_FOR = _columns.next_look_at.between(_time("a_day_ago"), _time("now"))
_IS_NEW_REFUSAL = sa.and_(_columns.ended_at <= _time("settled_at"), _columns.walks == 0, _IS_TIME)
_IS_NEW_RELEASE = sa.and_(_columns.changed_at >= _time("a_day_ago"), _columns.looked_at.is_(None), _IS_TIME)

# The conditions of `due`, of which each has an index.
_CONDITIONS = _UNKNOWN, _ABSENT, _REFUSED, _RELEASED = (
    sa.and_(_columns.state == PaymentState.UNKNOWN, sa.or_(_IS_TIME, _has_what_it_lacked())),
    sa.and_(_columns.state == PaymentState.ABSENT, _columns.ended_at >= _time("a_week_ago"), _IS_TIME),
    sa.and_(WAS_REFUSED_SOFTLY, _columns.ended_at >= _time("a_month_ago"), sa.or_(_IS_NEW_REFUSAL, _IS_ASKED_FOR)),
    sa.and_(_columns.state == PaymentState.RELEASED, sa.or_(_IS_NEW_RELEASE, _IS_ASKED_FOR)),
)
_DUE = sa.union_all(*map(_selected, _CONDITIONS))
_ASKED_FOR = _selected(_columns.key == OF_KEY, sa.or_(*SEARCHABLE))
