"""Notices of PostgreSQL to a process; SQLite has none."""

from __future__ import annotations

import logging
import math
from typing import Any

import anyio

from mobilemoney_async.database.engine import Database
from mobilemoney_async.errors import StoreError

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds until the next attempt to listen.
_DEAF = 5.0


class Listener:
    """Connection of its own that listens to a channel. Used by one task at a time."""

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._driver: Any = None
        self._deaf_until = -math.inf if database.dialect == "postgresql" else math.inf

    async def wait(self, stirred: anyio.Event, *, poll: float) -> None:
        """Return after a notice, when the event is set, or after so many seconds."""
        if self._driver is None and anyio.current_time() >= self._deaf_until:
            await self._open()
        with anyio.move_on_after(poll):
            async with anyio.create_task_group() as tasks:
                if self._driver is not None:
                    tasks.start_soon(self._hear, stirred)
                await stirred.wait()
                tasks.cancel_scope.cancel()

    def close(self) -> None:
        """Close the connection. The next `wait` opens another one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    async def _open(self) -> None:
        try:
            self._driver = await self._database.open_driver(f"LISTEN {self._channel}")
        except StoreError as exc:
            self._deaf_until = anyio.current_time() + _DEAF
            logger.debug("no notices of the database: %s", exc)

    async def _hear(self, stirred: anyio.Event) -> None:
        try:
            await anyio.wait_readable(self._driver.pgconn.socket)
            self._driver.pgconn.consume_input()
            while self._driver.pgconn.notifies() is not None:
                pass
        except Exception as exc:  # noqa: BLE001 (the driver's own, which may quote anything)
            logger.debug("no notices of the database: %s", type(exc).__name__)
            self._deaf_until = anyio.current_time() + _DEAF
            self.close()
        stirred.set()
