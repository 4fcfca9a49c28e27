"""Wait for new changes, of all readers of a database and an event loop together.

Waiting readers share one query, whatever their accounts: the first one asks every half second, or when PostgreSQL
notifies it, and wakes the others. When it leaves, another one goes on.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import RunVar

from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.listener import CHANGES, Listener
from mobilemoney_async.database.schema import accounts, changes
from mobilemoney_async.errors import StoreError
from mobilemoney_async.waiting import Leader, Waiter

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds between two queries for new changes: also where the database notifies this process, since a change in a
# merchant's own transaction comes without a notice.
_POLL = 0.5
# Seconds until the next attempt to listen.
_DEAF = 5.0
# Accounts that are named in the query; for more, all are read.
_MOST_NAMED = 500

_watches: RunVar[dict[Database, ChangeWatch]] = RunVar("mobilemoney_async_change_watches")


@attrs.define(eq=False)
class _Waiter(Waiter):
    """Reader that waits for changes of an account after a number."""

    account: str
    number: int


class ChangeWatch:
    """Wait of all readers of one database and event loop for new changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._leader = Leader[_Waiter]()
        self._stirred = anyio.Event()
        self._listener = Listener(database, CHANGES)
        self._deaf_until = -math.inf

    def stir(self) -> None:
        """Look for changes at once: this process has made one."""
        self._stirred.set()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    async def wait(self, account: str, number: int, *, until: float = math.inf) -> None:
        """Return once an account may have changes after a number, or at a time of the event loop.

        Raises:
            StoreError: The store failed.
        """
        waiter = _Waiter(account, number)
        with anyio.CancelScope(deadline=until):
            await self._leader.wait(waiter, lambda: self._lead(waiter))

    async def _lead(self, own: _Waiter) -> None:
        """Ask for all, until there is something for the caller."""
        while True:
            # From here on a change of this process is not missed: the query comes after it.
            self._stirred = anyio.Event()
            await self._look()
            if own.is_done:
                return
            with anyio.move_on_after(_POLL):
                async with anyio.create_task_group() as tasks:
                    if self._database.can_listen and anyio.current_time() >= self._deaf_until:
                        tasks.start_soon(self._listen)
                    await self._stirred.wait()
                    tasks.cancel_scope.cancel()

    async def _listen(self) -> None:
        """Look at once when the database notifies this process."""
        try:
            await self._listener.wait()
        except StoreError as exc:
            logger.debug("no notices of the database: %s", exc)
            self._deaf_until = anyio.current_time() + _DEAF
        else:
            self.stir()

    async def _look(self) -> None:
        """Wake the readers of the accounts that have new changes."""
        waiters = list(self._leader.waiting)
        names = {each.account for each in waiters}

        def look(connection: sa.Connection) -> tuple[set[str], dict[str, int]]:
            is_new = sa.select(changes.c.account).where(sa.text("number IS NULL")).distinct()
            last = sa.select(accounts.c.account, accounts.c.feed_last)
            if len(names) <= _MOST_NAMED:
                is_new = is_new.where(changes.c.account.in_(names))
                last = last.where(accounts.c.account.in_(names))
            run = connection.execute
            return set(run(is_new).scalars()), {row.account: row.feed_last for row in run(last)}

        new, last = await self._database.read(look)
        for each in waiters:
            if each.account in new or last.get(each.account, 0) > each.number:
                each.finish()


def watch(database: Database) -> ChangeWatch:
    """Return the watch of a database in this event loop."""
    try:
        watches = _watches.get()
    except LookupError:
        watches = {}
        _watches.set(watches)
    found = watches.get(database)
    if found is None:
        found = watches[database] = ChangeWatch(database)
    return found


def close_watch(database: Database) -> None:
    """Close what the readers of this event loop have opened, once no client is left."""
    with suppress(LookupError):
        found = _watches.get().pop(database, None)
        if found is not None:
            found.close()


def stir_readers(database: Database) -> None:
    """Make the readers of this event loop look for changes at once."""
    with suppress(LookupError):
        found = _watches.get().get(database)
        if found is not None:
            found.stir()
