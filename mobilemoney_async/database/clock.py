"""What time it is for all processes of one store, whose hosts' clocks may differ.

When a request must have ended, and how long ago that was, is decided from times that another host wrote down. So where
the hosts share a database server its clock rules, and theirs only tell the time between two looks at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import sqlalchemy as sa

_POSTGRESQL_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp())")


class WallClock:
    """The host's clock, put right by what was seen of the database's.

    Args:
        host: Returns the host's time, seconds since 1970.
    """

    def __init__(self, host: Callable[[], float] = time.time) -> None:
        self._host = host
        self._ahead = 0.0

    def utcnow(self) -> datetime:
        """Return the time of the database, as far as it was seen; else that of the host."""
        return datetime.fromtimestamp(self._host() + self._ahead, UTC)

    def look(self, connection: sa.Connection) -> float:
        """Return the time of PostgreSQL, seconds since 1970, and go by it from here on."""
        asked_at = self._host()
        shown = float(connection.execute(_POSTGRESQL_CLOCK).scalar_one())
        self.seen(shown, after=asked_at, before=self._host())
        return shown

    def seen(self, shown: float, *, after: float, before: float) -> None:
        """Note what the database's clock has shown. All are seconds since 1970.

        A look that took long bounds the difference loosely, and changes little.

        Args:
            shown: By the database.
            after: The time of the host when it was asked.
            before: The time of the host when it had answered.
        """
        self._ahead = min(max(self._ahead, shown - before), shown - after)
