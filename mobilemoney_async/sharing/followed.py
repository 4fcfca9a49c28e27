"""What the pollers of all processes follow, and what the service said of it: statements inside one transaction.

Whoever says something locks the row of the lease first. So the two numbers that it keeps grow in the order of the
commits, and who has read up to a number has missed nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.lease import Lease
from mobilemoney_async.database.schema import followed, leases, news, payments
from mobilemoney_async.database.serialization import dump_error, dump_transaction, load_error, load_transaction
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments import journal
from mobilemoney_async.polling.sharing import Followed, News, Told

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

_NAME = "poller"
_SOME = 500  # ids in one statement
# News is kept for as long as a process may be asleep and still read on where it was, days.
_KEPT = 7
# What is no longer followed has ended by any host's clock.
_LONG_AGO = timedelta(days=1)


@attrs.define(kw_only=True, eq=False)
class Standing:
    """The row of the lease: who holds it, and how much was said.

    Attributes:
        lease: Who holds it.
        followed: The number of the latest change in what is followed.
        told: The number of the latest news.
    """

    lease: Lease
    followed: int
    told: int


def look(connection: sa.Connection, account: str) -> Standing | None:
    """Return the row without locking it; None where there is none yet."""
    row = connection.execute(sa.select(leases).where(*_here(account))).one_or_none()
    return None if row is None else _standing(row)


def lock(connection: sa.Connection, account: str) -> Standing:
    """Lock the row, which makes everybody else wait, and return it."""
    statement = sa.select(leases).where(*_here(account)).with_for_update()
    row = connection.execute(statement).one_or_none()
    if row is None:
        connection.execute(_insert(connection, leases).values(account=account, name=_NAME).on_conflict_do_nothing())
        row = connection.execute(statement).one()
    return _standing(row)


def save(connection: sa.Connection, account: str, standing: Standing) -> None:
    """Write the row that was locked."""
    lease = standing.lease
    connection.execute(
        leases.update()
        .where(*_here(account))
        .values(
            holder=lease.holder,
            epoch=lease.epoch,
            until=lease.until,
            followed=standing.followed,
            told=standing.told,
        )
    )


def notify(connection: sa.Connection, channel: str, payload: str) -> None:
    """Tell those who listen that something was said, once this is committed. Only PostgreSQL can."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(channel, payload)))


def write_news(
    connection: sa.Connection, account: str, standing: Standing, said: Sequence[News], *, at: datetime, is_holder: bool
) -> None:
    """Write what the service said, and end what it ends.

    A final state is one whoever has seen it. Everything else is believed of the holder only: another poller's answer
    may be older than what is known.
    """
    said = [each for each in said if is_holder or (each.transaction is not None and each.transaction.is_final)]
    finals = [each.transaction for each in said if each.transaction is not None and each.transaction.is_final]
    known = _known(connection, account, [each.id for each in finals])
    rows = []
    for each in said:
        if each.transaction_id in known:
            continue
        standing.told += 1
        rows.append(
            {
                "account": account,
                "number": standing.told,
                "transaction_id": each.transaction_id,
                "is_final": each.transaction is not None and each.transaction.is_final,
                "transaction": None if each.transaction is None else dump_transaction(each.transaction),
                "error": None if each.error is None else dump_error(each.error),
                "lag": each.lag,
                "at": at,
            }
        )
    if rows:
        connection.execute(news.insert(), rows)
    for transaction in finals:
        contradiction = journal.record_seen(connection, account, transaction, source="poll", at=at)
        if contradiction is not None:
            logger.error("the service contradicts itself: %s", contradiction.message)
    for ids in _chunks([each.transaction_id for each in said if each.is_ending]):
        connection.execute(followed.delete().where(followed.c.account == account, followed.c.transaction_id.in_(ids)))


def read_news(
    connection: sa.Connection, account: str, *, after: int, wanted: Container[str], but_no_refusals_of: Container[str]
) -> list[News]:
    """Return the news after a number, of the payments that are wanted.

    Args:
        connection: Reading.
        account: Whose.
        after: The number.
        wanted: Transaction ids.
        but_no_refusals_of: What is tracked anew: an earlier refusal no longer counts.
    """
    rows = connection.execute(
        sa.select(news).where(news.c.account == account, news.c.number > after).order_by(news.c.number)
    )
    return [
        _news(row)
        for row in rows
        if row.transaction_id in wanted and not (row.error is not None and row.transaction_id in but_no_refusals_of)
    ]


def write_followed(
    connection: sa.Connection,
    account: str,
    standing: Standing,
    told: Told,
    *,
    follower: str,
    at: datetime,
    ahead: timedelta,
) -> list[News]:
    """Write what a poller follows, and no longer follows.

    Args:
        connection: Writing.
        account: Whose.
        standing: The row that was locked.
        told: What the poller says.
        follower: The poller.
        at: Now, by the clock of its host.
        ahead: How far the store's clock is ahead of that one.

    Returns:
        The final states that are known already. These payments are not followed.
    """
    known = _known(connection, account, list(told.tracked))
    unknown = {number: each for number, each in told.tracked.items() if number not in known}
    if not (unknown or told.withdrawn or told.hinted):
        return list(known.values())
    standing.followed += 1
    number = standing.followed
    own = (followed.c.account == account, followed.c.follower == follower)
    for ids in _chunks(told.withdrawn):
        connection.execute(
            followed.update()
            .where(*own, followed.c.transaction_id.in_(ids))
            .values(number=number, until=at - _LONG_AGO)
        )
    for ids in _chunks(unknown):
        connection.execute(followed.delete().where(*own, followed.c.transaction_id.in_(ids)))
    if unknown:
        connection.execute(followed.insert(), [_row(account, each, number, ahead) for each in unknown.values()])
    for ids in _chunks(told.hinted):
        connection.execute(
            followed.update().where(*own, followed.c.transaction_id.in_(ids)).values(number=number, hinted=number)
        )
    return list(known.values())


def read_followed(connection: sa.Connection, account: str, *, after: int, ahead: timedelta) -> list[Followed]:
    """Return what has changed after a number in what is followed, in the order in which it was tracked.

    Args:
        connection: Reading.
        account: Whose.
        after: The number.
        ahead: How far the store's clock is ahead of this host's, which the times are to be of.
    """
    rows = connection.execute(
        sa.select(followed)
        .where(followed.c.account == account, followed.c.number > after)
        .order_by(followed.c.tracked_at, followed.c.transaction_id)
    )
    return [
        Followed(
            transaction_id=row.transaction_id,
            follower=row.follower,
            is_new=row.is_new,
            tracked_at=row.tracked_at - ahead,
            until=row.until - ahead,
            has_deadline=row.has_deadline,
            is_hinted=row.hinted > after,
        )
        for row in rows
    ]


def withdraw_all(connection: sa.Connection, account: str, standing: Standing, *, follower: str, at: datetime) -> None:
    """Let a poller follow nothing any more."""
    standing.followed += 1
    connection.execute(
        followed.update()
        .where(followed.c.account == account, followed.c.follower == follower)
        .values(number=standing.followed, until=at - _LONG_AGO)
    )


def tidy(connection: sa.Connection, account: str, *, at: datetime) -> None:
    """Delete what nobody follows any more, and news that everybody has had the time to read.

    For the holder, once it has read what has changed: `at` is by the store's clock.
    """
    connection.execute(followed.delete().where(followed.c.account == account, followed.c.until < at))
    connection.execute(news.delete().where(news.c.account == account, news.c.at < at - timedelta(days=_KEPT)))


def _known(connection: sa.Connection, account: str, transaction_ids: Collection[str]) -> dict[str, News]:
    """Return the final states that the store has, of some payments."""
    found: dict[str, News] = {}
    for ids in _chunks(transaction_ids):
        rows = connection.execute(
            sa.select(payments.c.transaction).where(
                payments.c.account == account, payments.c.transaction_id.in_(ids), payments.c.transaction.is_not(None)
            )
        )
        for row in rows:
            transaction = _readable(row.transaction)
            if transaction is not None and transaction.is_final:
                found[transaction.id] = News(transaction_id=transaction.id, transaction=transaction)
        rows = connection.execute(
            sa.select(news).where(news.c.account == account, news.c.transaction_id.in_(ids), news.c.is_final)
        )
        found |= {row.transaction_id: attrs.evolve(_news(row), lag=None) for row in rows}
    return found


def _readable(text: str) -> Transaction | None:
    try:
        return load_transaction(text)
    except StoreError:
        return None  # of a record of payments: whose state the service can tell again


def _news(row: sa.Row[Any]) -> News:
    return News(
        transaction_id=row.transaction_id,
        transaction=None if row.transaction is None else load_transaction(row.transaction),
        error=None if row.error is None else load_error(row.error),
        lag=row.lag,
    )


def _row(account: str, each: Followed, number: int, ahead: timedelta) -> dict[str, Any]:
    return {
        "account": account,
        "transaction_id": each.transaction_id,
        "follower": each.follower,
        "number": number,
        "hinted": 0,
        "is_new": each.is_new,
        "has_deadline": each.has_deadline,
        "tracked_at": each.tracked_at + ahead,
        "until": each.until + ahead,
    }


def _standing(row: sa.Row[Any]) -> Standing:
    lease = Lease(holder=row.holder, epoch=row.epoch, until=row.until)
    return Standing(lease=lease, followed=row.followed, told=row.told)


def _here(account: str) -> tuple[sa.ColumnElement[bool], ...]:
    return leases.c.account == account, leases.c.name == _NAME


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    everything = list(ids)
    for start in range(0, len(everything), _SOME):
        yield everything[start : start + _SOME]


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)
    from sqlalchemy.dialects.sqlite import insert as insert_into_sqlite

    return insert_into_sqlite(table)
