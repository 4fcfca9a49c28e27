"""Lives of a store, and the payments that a listing is compared with: statements inside one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.column_types import UTCDateTime
from mobilemoney_async.database.prepared import run
from mobilemoney_async.database.schema import (
    IS_QUEUED,
    IS_UNIDENTIFIED,
    WAS_REFUSED_SOFTLY,
    accounts,
    insert_missing,
    lives,
    lost_times,
    payments,
)
from mobilemoney_async.payments.ownership.comparison import CONTACT, AccountFacts, Lives, RowFacts, Span
from mobilemoney_async.payments.ownership.evidence import Listing
from mobilemoney_async.payments.records.due import SEARCHABLE, comparable
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import find_all, merchant_of
from mobilemoney_async.payments.records.record import EXPLAINED, PaymentRecord
from mobilemoney_async.payments.records.statements import OF_ACCOUNT
from mobilemoney_async.payments.records.unmatched import lines_of
from mobilemoney_async.text import printable

_DAY = timedelta(days=1)
# Payments that a listing does not show: any of them forbids absence. At the edges of its days the service's time zone
# decides.
_MOST_HIDDEN, _ZONES = 100, timedelta(hours=14)

_columns = payments.c
BEFORE_ALL: datetime = datetime(2001, 1, 1, tzinfo=UTC)
"""Time before every payment: a store that knows of none may have forgotten all of them."""
_QUEUED_PAYOUTS = (_columns.type == str(TransactionType.DISBURSEMENT), IS_QUEUED)
# For how long lives are kept.
_KEPT = timedelta(days=30)
_known = lives.c.until.between(sa.bindparam("first"), sa.bindparam("last"))
_FORGET = lives.delete().where(lives.c.account == OF_ACCOUNT, ~_known)


def go_on(journal: Journal, now: datetime) -> None:
    """Write that the latest life goes on, unless it has ended, or a comparison is due."""
    latest = sa.select(sa.func.max(lives.c.began_at)).where(lives.c.account == journal.account).scalar_subquery()
    is_due = sa.exists().where(accounts.c.account == journal.account, accounts.c.due_since.is_not(None))
    is_open = (lives.c.began_at == latest, lives.c.until.between(now - CONTACT, now), ~is_due)
    journal.change_rows(lives, *is_open, until=now)


def begin_life(journal: Journal, began_at: datetime, now: datetime) -> None:
    """Write that a life has begun, and forget those that ended a month ago, or that a wrong clock has written."""
    run(journal.connection, _FORGET, {"of_account": journal.account, "first": now - _KEPT, "last": now + CONTACT})
    journal.insert(lives, began_at=began_at, until=now)


def note_restored(connection: sa.Connection, note: str, now: datetime, *, account: str | None = None) -> int:
    """Note someone's word that a backup was restored, about one account or all, and return their number.

    Each is compared with the service before it pays; see `Recovery.restored`. What an earlier word has left is over. No
    life lasts longer than the newest payment: a command since the restore may have lengthened it over the lost time, or
    begun one. Imported payments do not count: they may be of that time.
    """
    execute, columns = connection.execute, accounts.c
    pause_payouts(connection, account)

    def newest(table: sa.Table, *where: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
        here = (_columns.account == table.c.account, _columns.sent_at <= now, _columns.is_adopted.is_(False), *where)
        return sa.select(sa.func.max(_columns.sent_at)).where(*here).scalar_subquery()

    owned = newest(accounts, _columns.transaction_id.is_not(None))
    # Where a comparison is due already, as of then: collections may have gone on since.
    last = sa.func.coalesce(columns.known_until, owned, columns.first_record_at)
    known = sa.case((columns.first_record_at.is_(None), sa.literal(BEFORE_ALL, UTCDateTime)), else_=last)
    sent = sa.func.coalesce(newest(lives), lives.c.began_at)
    end = sa.case((sent > lives.c.began_at, sent), else_=lives.c.began_at)
    execute(lives.update().where(_is_of(account, lives), lives.c.until > sent).values(until=end))
    values = {"due_since": now, "known_until": known, "again_at": None, "went_backwards": True, "note": printable(note)}
    return execute(accounts.update().where(_is_of(account, accounts)).values(values)).rowcount


def pause_payouts(connection: sa.Connection, account: str | None) -> None:
    """Let queued disbursements of one account or all wait until someone resumes: which were cancelled is forgotten."""
    execute, columns = connection.execute, accounts.c
    # What is only queued has no row yet.
    queued = sa.select(_columns.account).distinct().where(_columns.account.not_in(sa.select(columns.account)))
    if names := execute(queued).scalars().all() if account is None else [account]:
        execute(insert_missing(accounts, connection.dialect.name), [{"account": each} for each in names])
    has_queued = sa.exists().where(_columns.account == columns.account, *_QUEUED_PAYOUTS)
    lasting = sa.case((columns.paused_until.is_(None), columns.paused))
    waits = {"payouts_wait": True, "paused": lasting, "paused_until": None}
    execute(accounts.update().where(_is_of(account, accounts), has_queued).values(waits))


@exactly
def queued_payouts(connection: sa.Connection, *, account: str | None = None) -> tuple[int, Decimal]:
    """Return the number and sum of the queued disbursements of one account or all."""
    queued = sa.select(_columns.amount).where(_is_of(account, payments), *_QUEUED_PAYOUTS)
    amounts = connection.execute(queued).scalars().all()
    return len(amounts), sum(map(Decimal, amounts), Decimal(0))


def _is_of(account: str | None, table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition of the rows of one account, or of all."""
    return sa.true() if account is None else table.c.account == account


def newest_owned(journal: Journal, until: datetime) -> datetime | None:
    """Return when the newest payment with a known transaction was sent, until a time, or None."""
    sent_at = _columns.sent_at
    here = (_columns.account == journal.account, sent_at <= until, _columns.transaction_id.is_not(None))
    newest = sa.select(sent_at).where(*here).order_by(sent_at.desc()).limit(1)
    return journal.execute(newest).scalar_one_or_none()


def newest_known(journal: Journal, facts: AccountFacts, until: datetime) -> datetime:
    """Return when the newest payment with a known transaction was sent, until a time, or as noted.

    Of an account without one, when its first payment began; where it has only queued ones, all of them may have been.
    """
    first = sa.select(sa.func.min(_columns.created_at)).where(_columns.account == journal.account)
    sent_at = facts.known_until or newest_owned(journal, until) or facts.first_record_at
    return max(sent_at or journal.execute(first).scalar_one() or until, BEFORE_ALL)


def find_lives(journal: Journal, settled: timedelta) -> Lives:
    """Return the lives of an account; `settled` as of `Lives`."""
    return Lives(spans=[Span(row.began_at, row.until) for row in journal.rows(lives)], settled=settled)


def searchable(journal: Journal, first: date, last: date) -> list[PaymentRecord]:
    """Return the payments of some days that a full listing of them may show, though no payment owns a transaction."""
    start, end = datetime.combine(first, time(), UTC), shift(datetime.combine(last, time(), UTC), _DAY)
    return [found for each in SEARCHABLE for found in journal.records(each, _columns.ended_at.between(start, end))]


def doubtful(journal: Journal, first: date) -> list[PaymentRecord]:
    """Return the payments that a transaction without an owner may be, in a listing from a day on.

    Those with an unknown result, on their way now included, and those refused softly in the days of the listing.
    """
    is_recent = _columns.ended_at >= shift(datetime.combine(first, time(), UTC), -_DAY)
    return [*journal.records(IS_UNIDENTIFIED), *journal.records(WAS_REFUSED_SOFTLY, is_recent)]


def hidden(journal: Journal, listing: Listing, grace: float) -> list[PaymentRecord]:
    """Return payments with a known transaction that a full listing should show and does not, a hundred at most."""
    if not listing.is_complete:
        return []
    first, last = (datetime.combine(day, time(), UTC) for day in (listing.first_day, listing.last_day or date.max))
    known = (
        _columns.account == journal.account,
        _columns.sent_at.between(shift(first, _ZONES), shift(last, -_ZONES)),
        *comparable(_columns),
        _columns.ended_at <= listing.began_at - timedelta(seconds=grace),
    )
    statement = sa.select(_columns.key, _columns.transaction_id).where(*known)
    shown = set(listing.ids)
    keys = [row.key for row in journal.execute(statement) if row.transaction_id not in shown]
    return find_all(journal, keys[:_MOST_HIDDEN])


def read_row_facts(
    journal: Journal, rows: Sequence[Transaction], owned: Mapping[str, PaymentRecord], *, settled: timedelta
) -> RowFacts:
    """Return the store's facts about rows and the payments that own some of them; `settled` as of `Lives`."""
    lines = lines_of(journal, [row.id for row in rows if row.id not in owned])
    return RowFacts(
        owned=owned,
        explained={name for name, line in lines.items() if line.shown.state == EXPLAINED},
        lost={name for name, line in lines.items() if line.shown.is_gap},
        lost_times=[Span(each.start, each.end, each.went_backwards) for each in journal.rows(lost_times)],
        lives=find_lives(journal, settled),
        merchant_id=merchant_of(journal, rows, owned),
    )
