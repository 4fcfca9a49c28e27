"""Clock and leases that all processes of one database share. Pure.

Hosts' clocks may differ, and the end of a request or of a lease is judged from times that another host wrote. So if the
hosts share a database server its clock counts, and theirs only measure the time between two readings of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import attrs

SETBACK = 1.0
"""Seconds by which a time that another process has written may be ahead. Beyond that, the clock was set back since."""


class WallClock:
    """Host's clock, in seconds since 1970, corrected by readings of the database's."""

    def __init__(self, host: Callable[[], float]) -> None:
        self.host = host
        self._ahead = 0.0

    def utcnow(self) -> datetime:
        """Return the time of the database as estimated, or the host's before the first reading."""
        return datetime.fromtimestamp(self.host() + self._ahead, UTC)

    def seen(self, shown: float, *, after: float, before: float) -> None:
        """Note a reading of the database's clock, taken between two times of the host, seconds since 1970.

        A reading that took long bounds the difference loosely, and changes little.
        """
        self._ahead = min(max(self._ahead, shown - before), shown - after)


@attrs.frozen
class Holder:
    """Part of a process that may hold leases.

    Attributes:
        name: Its name, which no other one of its host has.
        host: Of a worker's part: the host with the claim that protects it. The next claim of the account ends
            its leases.
    """

    name: str
    host: str | None = None


@attrs.frozen(kw_only=True)
class Lease:
    """Lease of a task that only one of several processes may do.

    It is a row of the database, changed under its lock only. The epoch grows whenever the lease changes hands, so that
    a holder can tell whether it was the only one since it last looked.

    Attributes:
        holder: Name of its holder, or None.
        host: The holder's host, if it has one.
        epoch: The number of times that it has changed hands.
        until: When it ends unless it is renewed, seconds of the store's clock.
        written: When it was taken or renewed. A clock that shows less was set back, or restarted with its host.
    """

    holder: str | None = None
    host: str | None = None
    epoch: int = 0
    until: float = 0.0
    written: float = 0.0

    def ends_at(self, now: float) -> float | None:
        """Return when it ends; None if it is free, or if the clock was set back, so that its end must be asked for."""
        return None if self.holder is None or self.until <= now or self._is_ahead(now) else self.until

    def is_held_by(self, holder: Holder) -> bool:
        """Return whether a process had it last."""
        return (self.holder, self.host) == (holder.name, holder.host)

    def taken(self, by: Holder, now: float, ttl: float) -> Lease:
        """Return the lease after a process has asked for it for `ttl` seconds; it gets it if it was free or its own.

        After the clock was set back, another's is counted again: its holder counts its time by a clock of its own.
        """
        if self.is_held_by(by):
            return attrs.evolve(self, until=now + ttl, written=now)
        if self.holder is not None and self._is_ahead(now):
            return attrs.evolve(self, until=now + self.until - self.written, written=now)
        if self.ends_at(now) is not None:
            return self
        return Lease(holder=by.name, host=by.host, epoch=self.epoch + 1, until=now + ttl, written=now)

    def _is_ahead(self, now: float) -> bool:
        return self.written > now + SETBACK

    def released(self, by: Holder) -> Lease:
        """Return the lease after a process has given it back, if it had it."""
        return Lease(epoch=self.epoch) if self.is_held_by(by) else self
