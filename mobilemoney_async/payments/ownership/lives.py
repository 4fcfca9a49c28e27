"""Lives of a store, and the times that it has lost, in its tables; see `comparison`."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs
import sqlalchemy as sa

from mobilemoney_async.database.schema import lives, lost_times
from mobilemoney_async.payments.ownership.comparison import CONTACT, Lives, Span
from mobilemoney_async.payments.records.journal import Journal

# For how long lives are kept.
_KEPT = timedelta(days=30)


def go_on(journal: Journal, now: datetime) -> None:
    """Write that the latest life goes on, unless it has ended."""
    here = lives.c.account == journal.account
    latest = sa.select(sa.func.max(lives.c.began_at)).where(here).scalar_subquery()
    is_open = (lives.c.began_at == latest, lives.c.until.between(now - CONTACT, now))
    journal.execute(lives.update().where(here, *is_open).values(until=now))


def begin_life(journal: Journal, began_at: datetime, now: datetime) -> None:
    """Write that a life has begun, and forget those that ended a month ago, or that a wrong clock has written."""
    is_known = lives.c.until.between(now - _KEPT, now + CONTACT)
    journal.execute(lives.delete().where(lives.c.account == journal.account, ~is_known))
    journal.insert(lives, began_at=began_at, until=now)


def find_lives(journal: Journal, settled: timedelta) -> Lives:
    """Return the lives of an account; `settled` as of `Lives`."""
    rows = journal.execute(sa.select(lives.c.began_at, lives.c.until).where(lives.c.account == journal.account))
    return Lives(spans=[Span(row.began_at, row.until) for row in rows], settled=settled)


def find_lost_times(journal: Journal) -> list[Span]:
    """Return the times that the store has lost, on the service's clock."""
    rows = journal.execute(sa.select(lost_times).where(lost_times.c.account == journal.account))
    return [Span(row.start, row.end, row.went_backwards) for row in rows]


def add_lost_time(journal: Journal, lost: Span) -> None:
    """Write a time that the store has lost."""
    journal.insert(lost_times, **attrs.asdict(lost))
