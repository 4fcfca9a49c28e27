"""Wait for new changes, of all readers of a database and an event loop together.

Waiting readers share one query, whatever their accounts: the first one asks every half second, or when PostgreSQL
notifies it, and wakes the others. When it leaves, another one goes on.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.group import Leader, Waiter
from mobilemoney_async.database.schema import IS_NEW, accounts, changes, is_among
from mobilemoney_async.database.threads import clock_stands_still
from mobilemoney_async.errors import StoreError
from mobilemoney_async.tasks import PerLoop, shielded, task_group

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds between two queries for new changes: also where the database notifies this process, since a change in a
# merchant's own transaction comes without a notice, and so does one at the server that has taken over from this one's.
_POLL = 0.5
# Seconds until the next attempt to listen.
_RELISTEN_DELAY = 5.0


@attrs.define(eq=False)
class _ChangeReader(Waiter):
    """Reader that waits for changes of an account after a number."""

    account: str
    number: int


@attrs.define(eq=False)
class ChangeWatch:
    """Wait of all readers of one database and event loop for new changes."""

    _leader: Leader[_ChangeReader] = attrs.field(factory=Leader)
    _notified: anyio.Event = attrs.field(factory=anyio.Event)
    _driver: Any = None  # its connection that listens
    _relisten_at: float = -math.inf

    def notify(self) -> None:
        """Look for changes at once: this process has made one."""
        self._notified.set()

    def close(self) -> None:
        """Stop listening. The next reader begins again."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    async def wait(self, database: Database, account: str, number: int, *, until: float = math.inf) -> None:
        """Return once an account may have changes after a number, or at a time of the event loop.

        Raises:
            StoreError: The store failed.
        """
        waiter = _ChangeReader(account, number)
        with anyio.CancelScope(deadline=until):
            await self._leader.wait(waiter, lambda: self._lead(database, waiter))

    async def _lead(self, database: Database, own: _ChangeReader) -> None:
        """Ask for all, until there is something for the caller."""
        await database.open()  # the first use shows whether a pooler is between, through which none can listen
        async with task_group() as tasks:
            # A virtual clock would wait for the silent socket, and jumps to the next query anyway.
            if database.can_listen and not clock_stands_still():
                tasks.start_soon(self._listen, database)
            # From here on a change of this process is not missed: the query comes after it.
            self._notified = anyio.Event()
            while True:
                await self._look(database)
                if own.is_done:
                    break
                try:
                    with anyio.move_on_after(_POLL):
                        await self._notified.wait()
                finally:  # as above; and one that was waited for would keep its event loop
                    self._notified = anyio.Event()
            tasks.cancel_scope.cancel()

    async def _listen(self, database: Database) -> None:
        """Look at once when the database notifies this process, or has begun to: it has missed the notices before."""
        while True:
            await anyio.sleep_until(self._relisten_at)
            try:
                if self._driver is None:
                    await shielded(lambda: self._connect(database))  # the time-outs bound it
                else:
                    await anyio.wait_readable(self._driver.pgconn.socket)
                    self._read(self._driver.pgconn)
            except Exception as exc:  # noqa: BLE001 (the driver's own, which may quote anything)
                self.close()
                said = exc if isinstance(exc, StoreError) else type(exc).__name__
                logger.debug("no notices of the database: %s", said)
                self._relisten_at = anyio.current_time() + _RELISTEN_DELAY
            else:
                self.notify()

    async def _connect(self, database: Database) -> None:
        """Open the connection that listens: it must not be lost."""
        self._driver = await database.open_listener()

    def _read(self, wire: Any) -> None:
        """Take the notices: they say no more than that there is something new."""
        wire.consume_input()
        while wire.notifies() is not None:
            pass

    async def _look(self, database: Database) -> None:
        """Wake the readers of the accounts that have new changes."""
        waiters = list(self._leader.waiting)
        names = {each.account for each in waiters}

        def look(connection: sa.Connection) -> tuple[set[str], dict[str, int]]:
            run, of_change, of_account = connection.execute, changes.c.account, accounts.c.account
            is_new = sa.select(of_change).where(IS_NEW, is_among(connection, of_change, names))
            last = sa.select(of_account, accounts.c.feed_last).where(is_among(connection, of_account, names))
            return set(run(is_new.distinct()).scalars()), {row.account: row.feed_last for row in run(last)}

        new, last = await database.read(look)
        for each in waiters:
            if each.account in new or last.get(each.account, 0) > each.number:
                each.finish()


watches: PerLoop[ChangeWatch] = PerLoop(ChangeWatch)
"""Watch of each database in this event loop."""
