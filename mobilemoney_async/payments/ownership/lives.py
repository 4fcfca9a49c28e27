"""Lives of a store, and the times that it has lost, in its tables; see `comparison`."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from mobilemoney_async.database.schema import insert_missing, lives, lost_times
from mobilemoney_async.payments.ownership.comparison import CONTACT, Lives, Span

# For how long lives are kept.
_KEPT = timedelta(days=30)


def go_on(connection: sa.Connection, account: str, now: datetime) -> None:
    """Write that the latest life goes on, unless it has ended."""
    latest = sa.select(sa.func.max(lives.c.began_at)).where(lives.c.account == account).scalar_subquery()
    here = (lives.c.account == account, lives.c.began_at == latest, lives.c.until.between(now - CONTACT, now))
    connection.execute(lives.update().where(*here).values(until=now))


def begin_life(connection: sa.Connection, account: str, began_at: datetime, now: datetime) -> None:
    """Write that a life has begun, and forget those that ended a month ago."""
    connection.execute(lives.delete().where(lives.c.account == account, lives.c.until < now - _KEPT))
    new = {"account": account, "began_at": began_at, "until": now}
    connection.execute(insert_missing(lives, connection.dialect.name), new)


def find_lives(connection: sa.Connection, account: str, settled: timedelta) -> Lives:
    """Return the lives of an account; `settled` as of `Lives`."""
    rows = connection.execute(sa.select(lives.c.began_at, lives.c.until).where(lives.c.account == account))
    return Lives(spans=[Span(row.began_at, row.until) for row in rows], settled=settled)


def find_lost_times(connection: sa.Connection, account: str) -> list[Span]:
    """Return the times that the store has lost, on the service's clock."""
    columns = lost_times.c
    named = (columns.start, columns.end, columns.went_backwards)
    return [Span(*row) for row in connection.execute(sa.select(*named).where(columns.account == account))]


def add_lost_time(connection: sa.Connection, account: str, lost: Span) -> None:
    """Write a time that the store has lost."""
    values = {"account": account, "start": lost.start, "end": lost.end, "went_backwards": lost.went_backwards}
    connection.execute(insert_missing(lost_times, connection.dialect.name), values)
