"""Changes of payments, in the order that readers get: the statements inside one transaction.

A change is recorded in the transaction that makes it, without a number. The next reader numbers the changes that are
committed by then, in a transaction of its own under the lock of the account's row. So a number is given after the
commit, no reader ever passes a change that commits later, and an open transaction holds up no other payment.

The changes of one payment keep their order: each is committed before the next begins, under the lock of the payment's
row, and its time is never before the previous one's.

Critical section: from the lock in `number_changes` to the commit, which is durable, no other process numbers changes of
the account. No writer of a payment waits for that lock.
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
    IS_NEW,
    accounts,
    changes,
    consumers,
    payments,
    retries,
)
from mobilemoney_async.errors import InvalidCursor
from mobilemoney_async.payments.feed.payment_change import ChangeReader, PaymentChange
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks, same
from mobilemoney_async.payments.records.record import (
    CLOSED,
    PaymentRecord,
    PaymentState,
)
from mobilemoney_async.payments.records.rows import to_record
from mobilemoney_async.payments.records.unmatched import lines_of

# Changes that are numbered in one transaction.
_AT_ONCE = 5_000
_CURSOR = re.compile(
    r"(?P<epoch>[0-9a-f]{8})-(?P<number>[0-9]{1,18})-(?P<prunings>[0-9]{1,18})(?P<check>-[0-9a-f]{8})?"
)

_columns = changes.c
_here = _columns.account == sa.bindparam("of_account")
_AT_NUMBER = sa.select(_columns.name, _columns.entry, _columns.at).where(
    _here, _columns.number == sa.bindparam("of_number")
)
_NEW = sa.select(_columns.name).where(_here, IS_NEW).limit(1)
_order = (_columns.at, _columns.name, _columns.entry)
_place = (sa.func.row_number().over(order_by=_order) + sa.bindparam("of_last", type_=sa.BigInteger)).label("place")
_key = tuple(changes.primary_key)
_placed = sa.select(*_key, _place).where(_here, IS_NEW).order_by(*_order).limit(_AT_ONCE).subquery()
_is_placed = (_columns.name == _placed.c.name, _columns.entry == _placed.c.entry)
_NUMBER = (
    changes.update().where(_columns.account == same(_placed.c.account), *_is_placed).values(number=_placed.c.place)
)
_PAGE = sa.select(changes).where(_here)


def _with_payments(page: sa.Select[Any]) -> sa.Select[Any]:
    """Return some changes with their payments: the page is found first, so its payments alone are read."""
    change = page.subquery()
    of_change = (
        change.c.state.label("changed_to"),
        change.c.status.label("status_then"),
        change.c.at.label("changed_on"),
    )
    of_payment = (payments.c.account == same(change.c.account), payments.c.key == change.c.name, change.c.entry > 0)
    return (
        sa.select(change.c.number, change.c.name, change.c.entry, *of_change, payments)
        .outerjoin(payments, sa.and_(*of_payment))
        .order_by(change.c.number)
    )


_AFTER = _with_payments(
    _PAGE.where(_columns.number > sa.bindparam("of_number")).order_by(_columns.number).limit(sa.bindparam("of_limit"))
)


@attrs.frozen
class Feed:
    """State of an account's feed.

    Attributes:
        epoch: Names the feed: cursors of another one are refused.
        last: The last number given.
        pruned: The highest number that was pruned.
        prunings: How often changes were pruned.
        has_more: Whether there may be more changes without a number.
    """

    epoch: str
    last: int
    pruned: int
    prunings: int
    has_more: bool = False


def new_epoch() -> str:
    """Return a new epoch for a feed: cursors of other epochs are refused."""
    return secrets.token_hex(4)


def number_changes(journal: Journal) -> Feed:
    """Give numbers to the changes that are committed by now, 5,000 at most, and return the feed's state."""
    run, here = journal.execute, {"of_account": journal.account}
    feed = find_feed(journal)
    if feed is not None and run(_NEW, here).first() is None:
        return feed
    row = journal.lock_account()
    # Those that another process has numbered, while this one waited for the lock, are no longer new.
    count = run(_NUMBER, {**here, "of_last": row.feed_last}).rowcount
    epoch, last = row.feed_epoch or new_epoch(), row.feed_last + count
    journal.change_rows(accounts, feed_epoch=epoch, feed_last=last)
    return Feed(epoch, last, row.feed_pruned, row.feed_prunings, has_more=count == _AT_ONCE)


def find_feed(journal: Journal) -> Feed | None:
    """Return the state of the feed, or None before its first use."""
    row = journal.find_account()
    if row is None or row.feed_epoch is None:
        return None
    return Feed(row.feed_epoch, row.feed_last, row.feed_pruned, row.feed_prunings)


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
    return _entries(journal, feed, journal.execute(_AFTER, parameters), reader)


def read_some(
    journal: Journal, feed: Feed, numbers: Sequence[int], *, reader: ChangeReader | None = None
) -> list[FeedEntry]:
    """Return some changes, oldest first. Those that were pruned are missing."""
    found: list[FeedEntry] = []
    for some in chunks(sorted(numbers)):
        page = _with_payments(_PAGE.where(_columns.number.in_(some)))
        rows = journal.execute(page, {"of_account": journal.account})
        found += _entries(journal, feed, rows, reader)
    return found


def _entries(journal: Journal, feed: Feed, rows: Iterable[Any], reader: ChangeReader | None) -> list[FeedEntry]:
    found = list(rows)
    others = lines_of(journal, (row.name for row in found if not row.entry))
    records: dict[str, PaymentRecord] = {}  # the changes of a payment often come together
    entries: list[FeedEntry] = []
    for row in found:
        number, name, entry, state, status, at = row[:6]  # attributes of rows are slow
        record, other = records.get(name), None
        if not entry:
            record, other = None, others.get(name)
        elif record is None and row.key is not None:  # else its payment was moved away
            record = records[name] = to_record(row)
        change = PaymentChange(
            cursor=_cursor(feed, number, _check(name, entry, at)),
            key=name if entry else None,
            state=PaymentState(state) if entry else None,
            status=None if status is None else TransactionStatus(status),
            at=at,
            record=record,
            transaction=None if other is None else other.shown,
            reader=reader,
        )
        entries.append(FeedEntry(number, name, change))
    return entries


def prune_changes(journal: Journal, until: datetime, after: int = 0) -> int | None:
    """Look at the next 5,000 changes after a number, and delete those of payments that ended before a time.

    A payment that was moved away has ended. Kept are those that a consumer is not done with, and those of a payment
    that has a change to be handed out again.

    Returns:
        The number to go on behind, or None at the end.
    """
    run, times = journal.execute, journal.select(changes, _columns.at).limit(1)
    numbered = times.where(_columns.number > after).order_by(_columns.number)
    new = times.where(IS_NEW).order_by(_columns.at)
    oldest = [at for each in (numbered, new) if (at := run(each).scalar()) is not None]
    if not oldest or min(oldest) >= until:
        return None  # as most times: by two looks at an index
    # From here on no consumer is made that would begin at changes which are deleted.
    journal.lock_account()
    feed = number_changes(journal)
    done: int | None = run(journal.select(consumers, sa.func.min(consumers.c.number))).scalar_one()
    upto = feed.last if done is None else done
    page = journal.select(changes, _columns.number, _columns.at).order_by(_columns.number).limit(_AT_ONCE)
    rows = run(page.where(_columns.number > after, _columns.number <= upto)).all()
    if not rows:
        return None
    goes_on = sa.or_(payments.c.state.not_in(CLOSED), payments.c.changed_at >= until)
    lags = _columns.name.in_(journal.select(retries, retries.c.name).where(retries.c.next_at.is_not(None)))
    of_change = (payments.c.account == same(_columns.account), payments.c.key == _columns.name)
    stays = sa.exists().where(*of_change, goes_on)
    in_page = _columns.number.between(rows[0].number, rows[-1].number)
    here = _columns.account == journal.account
    is_old = (_columns.at < until, ~stays, ~lags)
    gone = run(changes.delete().where(here, in_page, *is_old).returning(_columns.number)).scalars().all()
    if gone:
        journal.change_account(feed_pruned=max(feed.pruned, *gone), feed_prunings=feed.prunings + 1)
    is_end = rows[-1].at >= until or (len(rows) < _AT_ONCE and not feed.has_more)
    return None if is_end else rows[-1].number


# Cursors


def _check(name: str, entry: int, at: datetime) -> str:
    """Return the part of a cursor by which a restored store is found: it has other changes at its numbers."""
    return hashlib.sha256(f"{entry} {at.isoformat()} {name}".encode(errors="replace")).hexdigest()[:8]


def _cursor(feed: Feed, number: int, *check: str) -> str:
    return "-".join((feed.epoch, str(number), str(feed.prunings), *check))


def cursor_at(journal: Journal, feed: Feed, number: int) -> str:
    """Return the cursor for a number: without a check where no change is kept there."""
    row = _find(journal, number)
    return _cursor(feed, number, *(() if row is None else (_check(row.name, row.entry, row.at),)))


def find_place(journal: Journal, feed: Feed, cursor: str) -> int:
    """Return the number that a cursor stands for.

    Raises:
        InvalidCursor: The feed cannot go on from there without skipping changes.
    """
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise _invalid("is none of this library's")
    number = int(parts["number"])
    if parts["epoch"] != feed.epoch:
        raise _invalid("is of another store, or of this one before it was restored")
    if number > feed.last:
        raise _invalid("is ahead of the feed: the store has lost changes that were read")
    # Below the highest number that was pruned are the changes of payments that were open for long. A later pruning may
    # have deleted some of those, and leaves that number as it is: so the prunings are counted.
    if number < feed.pruned and int(parts["prunings"]) != feed.prunings:
        raise _invalid("is behind the changes that are kept")
    is_other = parts["check"] is not None and name_at(journal, cursor) is None
    if is_other and (number > feed.pruned or _find(journal, number) is not None):
        raise _invalid("is of this store before it was restored: another change has its number now")
    return number


def name_at(journal: Journal, cursor: str) -> str | None:
    """Return the name of the change of a cursor of our own, or None if the store does not have it."""
    row = _find(journal, number_of(cursor))
    is_same = row is not None and cursor.endswith(_check(row.name, row.entry, row.at))
    return row.name if is_same else None


def _find(journal: Journal, number: int) -> Any:
    here = {"of_account": journal.account, "of_number": number}
    return journal.execute(_AT_NUMBER, here).one_or_none()


def number_of(cursor: str) -> int:
    """Return the number in a cursor of our own."""
    return int(cursor.split("-")[1])


def _invalid(reason: str) -> InvalidCursor:
    advice = "nothing was skipped; compare your books with payments.list(), and begin again with after=None"
    return InvalidCursor(f"the cursor {reason}: {advice}", outcome="not_sent")
