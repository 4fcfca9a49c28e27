"""Shared parts of all clients of one `SQLStore`: its database, locks, write-behind buffer, and the account's state.

The state is active, suspended or removed. It is in the store, so that every process obeys. A payment that begins reads
it in the statement that records the payment, as the version of the tables: so none begins once the state is committed,
whatever has waited for the rate limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database.change_watch import watches
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.schema import erasures
from mobilemoney_async.errors import AccountSuspended, StoreError
from mobilemoney_async.payments.records.account_status import AccountState, describe
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.records.statements import account_column
from mobilemoney_async.tasks import running_loop
from mobilemoney_async.text import arguments, command_line, printable, redact

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

_MOST_SEEN = 20_000

REQUEST_MARGIN = 5.0
"""Seconds for which a request may live beyond its attempt's time-out; see `RecordedAttempts.sending`."""

WHOLE_ACCOUNT = "account"
"""In place of a digest, in the list of erasures."""

STATE: sa.Label[Any] = account_column("state")
"""State of the account `of_account`, None if it is active, as a column of another statement."""


class KeyedLock:
    """Locks by name, in each event loop: creates under one key wait for each other, and so do those of one kind.

    A store may serve several loops, each in a thread of its own. To each other they are like other processes: the
    database alone decides between them.
    """

    def __init__(self) -> None:
        self._locks: dict[tuple[Hashable, Hashable], anyio.Lock] = {}

    @asynccontextmanager
    async def hold(self, name: Hashable) -> AsyncGenerator[None]:
        """Hold the lock of a name. Cancelling the wait gives up the place in line."""
        place = (running_loop(), name)
        # Taken, or waited for, before the next await: the lock passes from one task to the next without being free.
        # A free one is taken without a turn of the loop: the work under it waits for the database anyway.
        lock = self._locks.setdefault(place, anyio.Lock(fast_acquire=True))
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(place, None)

    def is_held(self, name: Hashable) -> bool:
        """Return whether this event loop holds the lock of a name."""
        return (running_loop(), name) in self._locks

    def held(self, *, but: Hashable | None = None) -> Collection[Hashable]:
        """Return the names that are held or waited for, in any event loop, except for `but`, which the caller holds."""
        here = running_loop()
        # A copy first, which is atomic: other threads add and remove names.
        return {name for loop, name in list(self._locks) if name != but or loop != here}


@attrs.define(eq=False)
class AccountStore:
    """Database, locks and write-behind buffer of one account, made once for each `SQLStore`.

    The write-behind buffer keeps journal entries that could not be written because the database was away. They are
    written before anything is decided about their payments.

    Attributes:
        grace: Seconds after a request in which the service's list may not show its payment.
        cipher: Encrypts the login token.
        resend_absent_collections: Whether an absent collection may be sent again without confirmation.
        sole_writer: Whether all payments of the merchant are in this store; None if that is not known.
        keep_changes: For how long changes of payments that have ended are kept.
        newest: When the newest payment that this process knows of was sent.
        due_since: Since when this process knows that the store is to be compared with its service, or None.
        seen: Transactions that this process has seen lately, by id; see `payments.unclaimed`.
        compared: Final states of transactions that were compared with the store, by id, each with when it is compared
            again, or None.
        clock_offset: How far the service's clock is ahead, as the last listing with payments of ours showed.
        pruned_at: When old changes were last deleted from the feed.
        locks: Held by idempotency key, and by kind of payment, while a payment is made or changed.
        consuming: Consumers as which this process reads, by the holders of their leases.
        left_consumers: Holders of the leases of iterators that were left, by consumer.
        clients: Open clients of this account.
    """

    database: Database
    account: str
    grace: float
    cipher: TokenCipher
    resend_absent_collections: bool
    sole_writer: bool | None = None
    keep_changes: timedelta = timedelta(days=90)
    newest: datetime | None = attrs.field(default=None, init=False)
    due_since: datetime | None = attrs.field(default=None, init=False)
    seen: dict[str, Any] = attrs.field(factory=dict, init=False)
    compared: dict[str, tuple[str, datetime | None]] = attrs.field(factory=dict, init=False)
    clock_offset: timedelta = attrs.field(default=timedelta(0), init=False)
    pruned_at: datetime | None = attrs.field(default=None, init=False)
    locks: KeyedLock = attrs.field(factory=KeyedLock, init=False)
    consuming: dict[str, str] = attrs.field(factory=dict, init=False)
    left_consumers: dict[str, str] = attrs.field(factory=dict, init=False)
    _unwritten: dict[str, JournalEntry] = attrs.field(factory=dict, init=False)
    clients: int = attrs.field(default=0, init=False)

    def remember(self, transaction_id: str, fact: object = True) -> None:
        """Remember a fact about a transaction, by default that a payment has acknowledged it.

        Where there are too many, all are forgotten: the next page of the list asks the database for them.
        """
        if len(self.seen) >= _MOST_SEEN:
            self.seen.clear()
        self.seen[transaction_id] = fact

    def forget_settled(self) -> None:
        """Forget the owners of rows, since the store has gone back to an earlier time; first sightings stay."""
        sightings = {name: known for name, known in list(self.seen.items()) if not isinstance(known, bool | str)}
        self.seen.clear()
        self.seen.update(sightings)
        self.compared.clear()

    async def read(self, work: Callable[[Journal], T], *, share_key: str | None = None) -> T:
        """Run work that changes nothing in one transaction, and return its result; see `Database.read`."""
        return await self.database.read(
            lambda connection: work(Journal(connection, self.account)), share_key=self._place(share_key)
        )

    async def write(
        self,
        work: Callable[[Journal], T],
        *,
        on_commit: Callable[[T], object] | None = None,
        share_key: str | None = None,
        high_priority: bool = False,
    ) -> T:
        """Run work in one transaction, and return its result once that is durable; see `Database.write`.

        `share_key` is the key of the only payment that short work changes, or empty if it changes only the account's
        own row; it may then share a transaction.
        """
        has_changes = False

        def run(connection: Any) -> T:
            nonlocal has_changes
            journal = Journal(connection, self.account)
            result = work(journal)
            has_changes = journal.has_changes
            return result

        def end(result: T) -> bool:
            if on_commit is not None:
                on_commit(result)
            return has_changes

        result = await self.database.write(
            run, on_commit=end, share_key=self._place(share_key), high_priority=high_priority
        )
        if has_changes:
            watches.of(self.database).notify()
        return result

    async def wait_for_changes(self, number: int, *, until: float = math.inf) -> None:
        """Return once there may be changes after a number, or at a time of the event loop."""
        await watches.of(self.database).wait(self.database, self.account, number, until=until)

    async def decide(
        self, work: Callable[[Journal, datetime], T | StoreError], utcnow: Callable[[], datetime] | None = None
    ) -> T:
        """Write a decision that cannot be taken back, at the time of `Database.time_of_transaction`.

        An error that the work returns, rather than raises, is raised once what it has noted is committed. `utcnow` is
        the wall clock; None for that of the store.
        """
        time_of = self.database.time_of_transaction(utcnow or self.database.wall_clock.utcnow)
        decided = await self.write(lambda journal: work(journal, time_of(journal.connection)))
        if isinstance(decided, StoreError):
            raise decided
        return decided

    async def decide_about(
        self, key: str, work: Callable[[Journal, datetime], T | StoreError], utcnow: Callable[[], datetime]
    ) -> T:
        """Decide about a payment while no create of this event loop is under way for its key.

        Other processes are kept off by the row's lock inside the work, which looks at the state once more.
        """
        async with self.locks.hold(key):
            await self.flush(key=key)
            return await self.decide(work, utcnow)

    async def change_state(
        self, state: AccountState, note: str | None, utcnow: Callable[[], datetime] | None, *, by_machine: bool = False
    ) -> bool:
        """Change the state of the account, for all processes, and return whether it was another one; see `decide`.

        A machine changes no one's decision.
        """
        value = None if state is AccountState.ACTIVE else str(state)

        def change(journal: Journal, at: datetime) -> bool:
            if state is not AccountState.REMOVED and journal.rows(erasures, erasures.c.digest == WHOLE_ACCOUNT):
                # Processes that knew its secret key may compare with that still.
                said = f"account {self.account!r} was erased: its merchant needs another account"
                raise StoreError(said, outcome="not_sent")
            before = journal.lock_account().state
            if before == value or (by_machine and before is not None):
                return False
            journal.change_account(state=value, state_note=None if note is None else printable(note), state_at=at)
            return True

        return await self.decide(change, utcnow)

    def _place(self, key: str | None) -> Sequence[str]:
        return () if key is None else (self.account, key)

    def note_newest(self, sent_at: datetime) -> None:
        """Remember when a payment was sent, to notice a store that has lost it. Called in any thread."""
        if self.newest is None or sent_at > self.newest:
            self.newest = sent_at

    def settles_after(self, timeout: float) -> timedelta:
        """Return for how long after its first sighting a transaction may be that of a request of `timeout` seconds.

        The list may show it `grace` seconds after its end.
        """
        return timedelta(seconds=self.grace + timeout + REQUEST_MARGIN)

    def attach(self) -> None:
        """Count one more client."""
        self.clients += 1
        self.database.clients += 1

    def detach(self) -> None:
        """Count one client less. The last one of all accounts closes the idle connections."""
        self.clients -= 1
        self.database.clients -= 1
        if not self.database.clients:
            watches.of(self.database).close()
            self.database.close()

    # The write-behind buffer

    @property
    def unwritten(self) -> Collection[str]:
        """Keys of the payments with an entry in the buffer."""
        return self._unwritten.keys()

    def keep(self, entry: JournalEntry) -> None:
        """Keep an entry until it is written; it replaces an earlier one of the same payment."""
        self._unwritten[entry.key] = entry

    def is_kept(self, entry: JournalEntry) -> bool:
        """Return whether an entry is still to be written."""
        return self._unwritten.get(entry.key) is entry

    async def save(self, entry: JournalEntry) -> None:
        """Write an entry, and remove it from the buffer.

        Raises:
            StoreError: The database failed, and the entry is kept; or the entry contradicts the payment's state.
        """

        def work(journal: Journal) -> StoreError | None:
            return journal.save(entry, is_last=True)

        written = await self.write(work, share_key=entry.key, high_priority=True)
        # Another task may have replaced it during the write.
        if self.is_kept(entry):
            del self._unwritten[entry.key]
        if written is not None:
            raise written

    async def flush(self, *, key: str | None = None) -> None:
        """Write the buffer, except for entries that other tasks are about to write; the caller holds the lock of `key`.

        Raises:
            StoreError: The database failed. With `key`, only for the entry of that key: those of others stay.
        """
        if not self._unwritten:
            return
        busy = self.locks.held(but=key)
        entries = [each for each in list(self._unwritten.values()) if each.key not in busy]  # a copy, as in `held`
        for entry in sorted(entries, key=lambda each: each.key != key):
            try:
                await self.save(entry)
            except StoreError:
                if not self.is_kept(entry):
                    logger.exception("a late journal entry contradicts the store")
                elif key in {None, entry.key}:
                    raise
                else:
                    # Not in the way of the others for ever: the database may refuse this one alone.
                    self._unwritten[entry.key] = self._unwritten.pop(entry.key)
                    break


# The state of the account


def require_active(journal: Journal, state: str | None) -> None:
    """Raise `AccountSuspended` unless the state of the account is None."""
    if state is not None:
        row = journal.find_account()
        raise suspended(journal.account, state, None if row is None else row.state_note)


def suspended(account: str, state: str, note: str | None) -> AccountSuspended:
    """Return the error for a payment of an account that is not active."""
    said = f"account {account!r} is {describe(state, note)}; nothing was sent{resumed_by(account, state)}"
    return AccountSuspended(said, state=state, note=None if note is None else redact(note))


def resumed_by(account: str, state: str) -> str:
    """Return what lets an account pay again, to end a sentence; nothing for one that was removed, and may be erased."""
    if state != AccountState.SUSPENDED:
        return ""
    return f"; it pays again after {command_line(*arguments('accounts', 'resume', account))}"
