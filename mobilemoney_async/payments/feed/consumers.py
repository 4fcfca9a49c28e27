"""Consumers of an account's changes: the statements inside one transaction, under the lock of the consumer's row.

A consumer is done with all changes up to its number, except for those of the payments that lag behind: of each the
first change that could not be handled has a row in `retries`, and its later ones wait: a payment has one row that
waits. A change that was handed out ten times in vain is parked, and its payment goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.data import Data
from mobilemoney_async.database.schema import Row, changes, consumers, retries
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.feed.changes import Feed, FeedEntry, read_changes, read_some
from mobilemoney_async.payments.feed.payment_change import ChangeReader
from mobilemoney_async.payments.records.journal import Journal

MOST_TRIES = 10
"""Times that a change is handed out before it is parked."""

_WAITS = retries.c.next_at.is_not(None)
_LONGEST_PAUSE = timedelta(minutes=5)
# A consumer's last use is noted this often.
_NOTED = timedelta(minutes=1)


@attrs.frozen
class Delivery:
    """Changes that a consumer hands out.

    Attributes:
        again: Those that could not be handled before.
        fresh: New ones, without those of payments that lag behind.
        upto: The number of the last change that was looked at.
        parked: Those that are parked from now on, of payments that lag behind.
        next_at: When the next one is handed out again, or None.
        is_end: Whether there were no more changes.
    """

    again: list[FeedEntry]
    fresh: list[FeedEntry]
    upto: int
    parked: list[FeedEntry]
    next_at: datetime | None
    is_end: bool


@attrs.frozen(kw_only=True)
class ParkedChange(Data):
    """Change that a consumer could not handle ten times.

    Attributes:
        name: The payment's idempotency key, or the id of an unclaimed transaction.
        number: Its number in the feed.
        error: The last error, redacted.
    """

    name: str
    number: int
    error: str | None


@attrs.frozen(kw_only=True)
class ConsumerState(Data):
    """Place of a consumer in the feed.

    Attributes:
        name: Its name.
        behind: The changes between its place and the end of the feed.
        lagging: The payments with changes that wait for one that could not be handled yet.
        parked: The changes that are handed out no more.
        used_at: When it was last used, to the minute.
    """

    name: str
    behind: int
    lagging: tuple[str, ...] = ()
    parked: tuple[ParkedChange, ...] = ()
    used_at: datetime


@attrs.frozen
class ConsumerTable:
    """Rows of one consumer, inside one transaction of the journal."""

    journal: Journal
    name: str

    def lock(self, feed: Feed, start: str | None, now: datetime) -> Row:
        """Return the consumer's row, locked until the commit; make it at its first use.

        Raises:
            StoreError: There is no such consumer, and no `start` to make it with.
        """
        statement = self.journal.select(consumers).where(consumers.c.name == self.name).with_for_update()
        row = self.journal.execute(statement).one_or_none()
        if row is not None:
            return row
        if start is None:
            advice = "at its first use say where it begins, start='oldest' or start='now'"
            raise StoreError(f"there is no consumer {self.name!r}: {advice}", outcome="not_sent")
        # Changes are not pruned while this lock is held.
        self.journal.lock_account()
        number = 0 if start == "oldest" else feed.last
        self.journal.insert(consumers, name=self.name, used_at=now, number=number)
        return self.journal.execute(statement).one()

    def take(
        self,
        feed: Feed,
        row: Row,
        now: datetime,
        *,
        after: int,
        limit: int,
        tried: int | None = None,
        reader: ChangeReader | None = None,
    ) -> Delivery:
        """Hand changes out, new ones after a number.

        The change that another reader has `tried` first, if it is not done, comes again after a pause: its handler may
        have ended the process.
        """
        held = self._retries(sa.or_(_WAITS, retries.c.number > after))
        lagging = {each.name: each for each in held if each.next_at is not None}
        firsts: dict[str, int] = {name: each.number for name, each in lagging.items()}
        done_with = {each.number for each in held if each.next_at is None}
        page = read_changes(self.journal, feed, after=after, limit=limit, reader=reader)
        upto = page[-1].number if page else max(after, feed.last)
        is_end = len(page) < limit and not feed.has_more
        page = [each for each in page if each.number not in done_with]
        # A reader that ended left them open, and noted a later change of the same payment as failed.
        open_before = {each.name: each for each in reversed(page) if each.number < firsts.get(each.name, 0)}
        for each in open_before.values():
            self._hold(each.name, each.number, now, "its reader ended before it was done")
        due = [each for each in lagging.values() if each.next_at <= now and each.name not in open_before]
        parked = [each for each in due if each.tries >= MOST_TRIES]
        for spent in parked:
            self._park(spent, now, upto=upto)
        again = read_some(self.journal, feed, [each.number for each in due if each.tries < MOST_TRIES], reader=reader)
        fresh = [each for each in page if each.name not in lagging]
        if after == row.number:
            if fresh and fresh[0].number == tried:
                self._hold(fresh[0].name, tried, now, "the process that handled it ended before it was done")
                fresh = [each for each in fresh if each.name != fresh[0].name]
            # Those before the first new one are held back, each with its payment.
            self._pass(fresh[0].number - 1 if fresh else upto)
        first = fresh[0].number if fresh else row.tried
        if first != row.tried or row.used_at < now - _NOTED:
            self._change_own(tried=first, used_at=now)
        # Those that are due are handed out first, and one whose change is gone never.
        earliest = self._of_own(sa.func.min(retries.c.next_at)).where(retries.c.next_at > now)
        return Delivery(
            # One at which each reader ends does not go before the others every time.
            again=sorted(again, key=lambda each: lagging[each.name].next_at),
            fresh=fresh,
            upto=upto,
            parked=read_some(self.journal, feed, [each.number for each in parked]),
            next_at=self.journal.execute(earliest).scalar_one(),
            is_end=is_end and not parked,  # behind one that is parked, the payment's next change is due at once
        )

    def try_again(self, number: int, now: datetime) -> bool:
        """Count a try of a change that comes again, which begins now: a reader may end before others have theirs."""
        for row in self._retries(retries.c.number == number, _WAITS):
            self._change(number, tries=row.tries + 1, next_at=now + pause(row.tries + 1))
        return True

    def done(self, number: int, again: Collection[int], now: datetime, *, upto: int) -> None:
        """Note that all fresh changes up to a number are handled, or held back, and some that came again."""
        self._pass(number)
        for row in self._retries(retries.c.number.in_(again)) if again else ():
            self._forget(row.number)
            if row.next_at is not None:  # else its payment has gone on already
                self._go_on(row, now, upto=upto)

    def close(self) -> None:
        """Note that the reader has ended by itself, whatever it has left."""
        self._change_own(tried=None)

    def failed(self, name: str, number: int, now: datetime, error: str, *, upto: int, is_next: bool) -> bool:
        """Note that a change failed, and hold back its payment; return whether it is parked now.

        Args:
            name: The payment, or unclaimed transaction.
            number: The change.
            now: The time.
            error: The reason.
            upto: The number of the last change that was looked at.
            is_next: Whether all changes before it are handled, or held back.
        """
        row = next(iter(self._retries(retries.c.number == number)), None)
        if row is None:
            self._hold(name, number, now, error)
            if is_next:
                self._pass(number)
            return False
        self._change(number, error=error)
        if row.tries < MOST_TRIES or row.next_at is None:
            return False
        self._park(row, now, upto=upto)
        return True

    def _pass(self, number: int) -> None:
        self._change_own(consumers.c.number < number, number=number)

    def _hold(self, name: str, number: int, now: datetime, error: str) -> None:
        """Hold back a payment at a change, unless an earlier one holds it back already."""
        for first in self._retries(retries.c.name == name, _WAITS):
            if first.number < number:
                return
            self._forget(first.number)
        self._wait(name, number, tries=1, next_at=now + pause(1), error=error)

    def _wait(self, name: str, number: int, **values: Any) -> None:
        self.journal.insert(retries, consumer=self.name, name=name, number=number, **values)

    def _forget(self, number: int) -> None:
        self.journal.delete_rows(retries, retries.c.consumer == self.name, retries.c.number == number)

    def _park(self, row: Row, now: datetime, *, upto: int) -> None:
        self._change(row.number, next_at=None)
        self._go_on(row, now, upto=upto)

    def _go_on(self, row: Row, now: datetime, *, upto: int) -> None:
        """Hand out the next change of a payment that lags behind, of those that were passed: up to a number."""
        columns = changes.c
        is_parked = self._of_own().where(retries.c.number == columns.number).exists()
        passed = (columns.name == row.name, columns.number > row.number, columns.number <= upto, ~is_parked)
        following = self.journal.select(changes, sa.func.min(columns.number)).where(*passed)
        number = self.journal.execute(following).scalar_one()
        if number is not None:
            self._wait(row.name, number, tries=0, next_at=now)

    def _retries(self, *where: Any) -> Sequence[Row]:
        return self.journal.rows(retries, retries.c.consumer == self.name, *where)

    def _of_own(self, *columns: Any) -> sa.Select[Any]:
        return self.journal.select(retries, *columns).where(retries.c.consumer == self.name)

    def _change(self, number: int, **values: Any) -> None:
        self.journal.change_rows(retries, retries.c.consumer == self.name, retries.c.number == number, **values)

    def _change_own(self, *where: Any, **values: Any) -> None:
        self.journal.change_rows(consumers, consumers.c.name == self.name, *where, **values)


def list_consumers(journal: Journal, feed: Feed) -> list[ConsumerState]:
    """Return the consumers of an account with their places."""
    held = journal.rows(retries, order_by=[retries.c.number])
    return [
        ConsumerState(
            name=row.name,
            behind=feed.last - row.number,
            lagging=tuple(each.name for each in held if each.consumer == row.name and each.next_at is not None),
            parked=tuple(
                ParkedChange(name=each.name, number=each.number, error=each.error)
                for each in held
                if each.consumer == row.name and each.next_at is None
            ),
            used_at=row.used_at,
        )
        for row in journal.rows(consumers, order_by=[consumers.c.name])
    ]


def forget_consumer(journal: Journal, name: str) -> bool:
    """Delete a consumer and its place; return whether there was one."""
    journal.delete_rows(retries, retries.c.consumer == name)
    return bool(journal.delete_rows(consumers, consumers.c.name == name))


def pause(tries: int) -> timedelta:
    """Return the time until a change is handed out again: 2 s, 4 s, and so on to five minutes."""
    return min(_LONGEST_PAUSE, timedelta(seconds=2.0**tries))
