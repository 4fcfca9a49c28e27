"""Notices of PostgreSQL to a process; SQLite has none.

Each event loop has one connection that listens, for all accounts. Readers that wait share it: the first one reads the
socket and wakes those whom a notice concerns; when it leaves, another one goes on.
"""

from __future__ import annotations

from typing import Any

import anyio
import attrs
from anyio.lowlevel import RunVar

from mobilemoney_async.cancellation import shielded
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.url import NEVER_IDLE
from mobilemoney_async.errors import StoreError
from mobilemoney_async.waiting import Leader, Waiter

CHANGES = "mobilemoney_changes"
"""Channel on which processes learn that there are new changes of payments."""

POLLERS = "mobilemoney_pollers"
"""Channel on which the pollers of an account learn of each other's messages; the topic is the account's."""

_LISTEN = f"LISTEN {CHANGES}; LISTEN {POLLERS}; {NEVER_IDLE}"

_connections: RunVar[dict[Database, _Connection]] = RunVar("mobilemoney_async_listeners")


@attrs.define(eq=False)
class Listener(Waiter):
    """Reader of the notices on a channel about a topic, the part of their text before a colon. For one task."""

    _database: Database
    _channel: str
    _topic: str = ""
    _connection: _Connection | None = attrs.field(default=None, init=False)
    _heard: set[str] = attrs.field(factory=set, init=False)
    _failure: StoreError | None = attrs.field(default=None, init=False)

    async def wait(self) -> set[str]:
        """Return the texts after the colon of the notices since the last time, after a wait if there was none.

        Each text is there once; after the connection has begun to listen there may be none, and notices that were
        missed before. Cancelling loses no notice.

        Raises:
            StoreError: The database cannot be listened to.
        """
        if self._connection is None:
            self._connection = _connection(self._database)
            self._connection.join(self, (self._channel, self._topic))
        connection = self._connection
        await connection.leader.wait(self, lambda: connection.read_for(self))
        self.is_done = False
        heard, failure, self._heard, self._failure = self._heard, self._failure, set(), None
        if failure is not None:
            raise failure
        return heard

    def close(self) -> None:
        """Stop listening; the last reader closes the connection. The next `wait` begins again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(self, (self._channel, self._topic))
            if not connection.readers:
                connection.close()
                _connections.get().pop(self._database, None)

    def hear(self, text: str | None) -> None:
        """Keep a notice, or that notices may have been missed (None), and wake the reader."""
        if text is not None:
            self._heard.add(text)
        self.finish()

    def fail(self, text: str) -> None:
        """Let the reader fail, unless there is a notice for it."""
        if not self.is_done:
            self._failure = StoreError(text, outcome="not_sent")
            self.finish()


@attrs.define(eq=False)
class _Connection:
    """Connection of an event loop that listens, and its readers by channel and topic; one that waits reads for all."""

    _database: Database
    readers: dict[tuple[str, str], set[Listener]] = attrs.field(factory=dict)
    leader: Leader[Listener] = attrs.field(factory=Leader)
    _driver: Any = None

    async def read_for(self, reader: Listener) -> None:
        """Read notices for all, until there is one for the caller."""
        try:
            wire = (await self._open()).pgconn
            while not reader.is_done:
                await anyio.wait_readable(wire.socket)
                self._read(wire)
        except Exception as exc:  # noqa: BLE001 (the driver's own, which may quote anything)
            self.close()
            text = str(exc) if isinstance(exc, StoreError) else f"the store cannot be heard: {type(exc).__name__}"
            for each in self.leader.waiting:
                each.fail(text)

    def join(self, reader: Listener, place: tuple[str, str]) -> None:
        """Add a reader, which has missed the notices until now."""
        self.readers.setdefault(place, set()).add(reader)
        if self._driver is not None:
            reader.hear(None)

    def leave(self, reader: Listener, place: tuple[str, str]) -> None:
        """Forget a reader."""
        self.readers[place].discard(reader)
        if not self.readers[place]:
            del self.readers[place]

    def close(self) -> None:
        """Close the connection. The next reader opens another one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    async def _open(self) -> Any:
        if self._driver is None:

            async def connect() -> None:
                self._driver = await self._database.open_driver(_LISTEN)

            await shielded(connect)  # a connection that is opened must not be lost; the database's time-outs bound it
            for readers in self.readers.values():
                for each in readers:
                    each.hear(None)
        return self._driver

    def _read(self, wire: Any) -> None:
        wire.consume_input()
        while (notice := wire.notifies()) is not None:
            topic, _, text = notice.extra.decode().rpartition(":")
            for each in self.readers.get((notice.relname.decode(), topic), ()):
                each.hear(text)


def _connection(database: Database) -> _Connection:
    """Return the connection of this event loop that listens to a database."""
    try:
        connections = _connections.get()
    except LookupError:
        connections = {}
        _connections.set(connections)
    if database not in connections:
        connections[database] = _Connection(database)
    return connections[database]
