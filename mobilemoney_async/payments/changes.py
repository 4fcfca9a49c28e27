"""Changes of payments, in the order that readers get: the statements inside one transaction.

A change is recorded in the transaction that makes it, without a number. Whoever reads next numbers the changes that are
committed by then, in a transaction of its own under the lock of the account's row. So a number is given after the
commit, no reader ever passes a change that commits later, and an open transaction holds up no other payment.

The changes of one payment keep their order: each is committed before the next begins, under the lock of the payment's
row, and its time is never before the previous one's.

Critical section: from the lock in `number_changes` to the commit, which is durable, no other process numbers changes of
the account. Nobody who writes a payment waits for that lock.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.database.schema import (
    accounts,
    changes,
    consumers,
    lock_row,
    payments,
)
from mobilemoney_async.errors import InvalidCursor
from mobilemoney_async.payments.journal import Journal, to_record
from mobilemoney_async.payments.payment_change import ChangeReader, PaymentChange
from mobilemoney_async.payments.queries import chunks
from mobilemoney_async.payments.records import (
    PaymentRecord,
    PaymentState,
    UnclaimedTransaction,
)
from mobilemoney_async.payments.unclaimed import find_unclaimed

# Changes that are numbered in one transaction.
_AT_ONCE = 5_000
_CURSOR = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})-([0-9a-f]{8})")

# States of payments whose changes are never pruned.
_OPEN = [
    str(each)
    for each in (
        PaymentState.QUEUED,
        PaymentState.SENDING,
        PaymentState.UNKNOWN,
        PaymentState.ABSENT,
        PaymentState.ACKNOWLEDGED,
    )
]

_columns = changes.c
_here = _columns.account == sa.bindparam("of_account")
_IS_NEW = sa.text("number IS NULL")
_NEW = (
    sa.select(_columns.name, _columns.entry)
    .where(_here, _IS_NEW)
    .order_by(_columns.at, _columns.name, _columns.entry)
    .limit(_AT_ONCE)
)
_NUMBER = (
    changes.update()
    .where(_here, _columns.name == sa.bindparam("of_name"), _columns.entry == sa.bindparam("of_entry"))
    .values(number=sa.bindparam("of_number"))
)
_OWN_ROW = accounts.update().where(accounts.c.account == sa.bindparam("of_account"))
_FEED = sa.select(accounts.c.feed_epoch, accounts.c.feed_last, accounts.c.feed_pruned).where(
    accounts.c.account == sa.bindparam("of_account")
)
_of_change = (_columns.state.label("changed_to"), _columns.status.label("status_then"), _columns.at.label("changed_on"))
_ROWS = (
    sa.select(_columns.number, _columns.name, _columns.entry, *_of_change, payments)
    .outerjoin(
        payments,
        sa.and_(payments.c.account == _columns.account, payments.c.key == _columns.name, _columns.entry > 0),
    )
    .where(_here)
    .order_by(_columns.number)
)
_AFTER = _ROWS.where(_columns.number > sa.bindparam("of_number")).limit(sa.bindparam("of_limit"))


@attrs.frozen
class Feed:
    """State of an account's feed: its epoch, the last number given, and the highest one that was pruned."""

    epoch: str
    last: int
    pruned: int


def new_epoch() -> str:
    """Return a new epoch for a feed: cursors of other epochs are refused."""
    return secrets.token_hex(4)


def number_changes(journal: Journal) -> Feed:
    """Give numbers to the changes that are committed by now, 5,000 at most, and return the feed's state."""
    run, here = journal.connection.execute, {"of_account": journal.account}
    row: Any = run(_FEED, here).one_or_none()
    if row is not None and row.feed_epoch is not None and run(_NEW.limit(1), here).first() is None:
        return Feed(row.feed_epoch, row.feed_last, row.feed_pruned)
    row = lock_row(journal.connection, accounts, {"account": journal.account})
    # Those that another process has numbered, while this one waited for the lock, are no longer new.
    new = run(_NEW, here).all()
    numbered = enumerate(new, row.feed_last + 1)
    values = [{**here, "of_name": each.name, "of_entry": each.entry, "of_number": number} for number, each in numbered]
    if values:
        run(_NUMBER, values)
    feed = Feed(row.feed_epoch or new_epoch(), row.feed_last + len(new), row.feed_pruned)
    run(_OWN_ROW, {**here, "feed_epoch": feed.epoch, "feed_last": feed.last})
    return feed


@attrs.frozen
class FeedEntry:
    """Change with its number, and the name of its payment or unclaimed transaction."""

    number: int
    name: str
    change: PaymentChange


def read_changes(
    journal: Journal, feed: Feed, *, after: int, limit: int, reader: ChangeReader | None = None
) -> list[FeedEntry]:
    """Return the changes after a number, oldest first."""
    parameters = {"of_account": journal.account, "of_number": after, "of_limit": limit}
    return _entries(journal, feed, journal.connection.execute(_AFTER, parameters), reader)


def read_some(
    journal: Journal, feed: Feed, numbers: Sequence[int], *, reader: ChangeReader | None = None
) -> list[FeedEntry]:
    """Return some changes, oldest first. Those that were pruned are missing."""
    found: list[FeedEntry] = []
    for some in chunks(sorted(numbers)):
        rows = journal.connection.execute(_ROWS.where(_columns.number.in_(some)), {"of_account": journal.account})
        found += _entries(journal, feed, rows, reader)
    return found


def _entries(journal: Journal, feed: Feed, rows: Iterable[Any], reader: ChangeReader | None) -> list[FeedEntry]:
    found = list(rows)
    others = _find_others(journal, [row.name for row in found if not row.entry])
    records: dict[str, PaymentRecord] = {}  # the changes of a payment often come together
    entries: list[FeedEntry] = []
    for row in found:
        record, other = records.get(row.name), None
        if not row.entry:
            record, other = None, others.get(row.name)
        elif record is None:
            record = records[row.name] = to_record(row)
        change = PaymentChange(
            cursor=f"{feed.epoch}-{row.number}-{_check(row.name, row.entry)}",
            key=row.name if row.entry else None,
            state=PaymentState(row.changed_to) if row.entry else None,
            status=None if row.status_then is None else TransactionStatus(row.status_then),
            at=row.changed_on,
            record=record,
            transaction=other,
            reader=reader,
        )
        entries.append(FeedEntry(row.number, row.name, change))
    return entries


def _find_others(journal: Journal, ids: Sequence[str]) -> dict[str, UnclaimedTransaction]:
    found = [each for some in chunks(ids) for each in find_unclaimed(journal, None, *some)]
    return {each.transaction_id: each for each in found}


def prune_changes(journal: Journal, until: datetime) -> None:
    """Delete changes before a time that every consumer is done with, 5,000 at most; those of open payments stay."""
    here = _columns.account == journal.account
    done = sa.select(sa.func.min(consumers.c.number)).where(consumers.c.account == journal.account).scalar_subquery()
    is_open = sa.exists().where(
        payments.c.account == journal.account, payments.c.key == _columns.name, payments.c.state.in_(_OPEN)
    )
    is_read = sa.or_(_columns.number.is_(None), done.is_(None), _columns.number <= done)
    old = (
        sa.select(_columns.name, _columns.entry, _columns.number)
        .where(here, _columns.at < until, is_read, ~sa.and_(_columns.entry > 0, is_open))
        .order_by(_columns.at)
        .limit(_AT_ONCE)
    )
    rows = journal.connection.execute(old).all()
    for some in chunks(rows):
        pairs = sa.tuple_(_columns.name, _columns.entry).in_([(row.name, row.entry) for row in some])
        journal.connection.execute(changes.delete().where(here, pairs))
    numbers = [row.number for row in rows if row.number is not None]
    if numbers:
        highest = accounts.update().where(accounts.c.account == journal.account, accounts.c.feed_pruned < max(numbers))
        journal.connection.execute(highest.values(feed_pruned=max(numbers)))


# Cursors


def _check(name: str, entry: int) -> str:
    """Return the part of a cursor by which a restored store is found: it has other changes at its numbers."""
    return hashlib.sha256(f"{entry} {name}".encode(errors="replace")).hexdigest()[:8]


def find_place(journal: Journal, feed: Feed, cursor: str) -> int:
    """Return the number that a cursor stands for.

    Raises:
        InvalidCursor: The feed cannot go on from there without skipping changes.
    """
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise _invalid("is none of this library's")
    epoch, number, check = parts[1], int(parts[2]), parts[3]
    if epoch != feed.epoch:
        raise _invalid("is of another store, or of this one before it was restored")
    if number > feed.last:
        raise _invalid("is ahead of the feed: the store has lost changes that were read")
    if number < feed.pruned:
        raise _invalid("is behind the changes that are kept")
    row = journal.connection.execute(
        sa.select(_columns.name, _columns.entry).where(_here, _columns.number == number),
        {"of_account": journal.account},
    ).one_or_none()
    if row is not None and check != _check(row.name, row.entry):
        raise _invalid("is of this store before it was restored: another change has its number now")
    return number


def number_of(cursor: str) -> int:
    """Return the number in a cursor of our own."""
    return int(cursor.split("-")[1])


def _invalid(reason: str) -> InvalidCursor:
    advice = "nothing was skipped; compare your books with payments.list(), and begin again with after=None"
    return InvalidCursor(f"the cursor {reason}: {advice}", outcome="not_sent")
