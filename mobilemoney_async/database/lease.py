"""Who of several processes does what only one may do, and until when. Pure.

A lease is a row of the database, changed under its lock only. Its times are the store's: the one clock that all
processes read. The epoch grows whenever the lease changes hands, so that a holder can tell whether it was the only one
since it last looked.
"""

from __future__ import annotations

import attrs

LONGEST = 60.0
"""For how long a lease may be given, seconds."""


@attrs.frozen(kw_only=True)
class Lease:
    """Who has it.

    Attributes:
        holder: Who, or None for nobody.
        epoch: How often it has changed hands.
        until: When it ends unless it is renewed, seconds of the store's clock.
    """

    holder: str | None = None
    epoch: int = 0
    until: float = 0.0

    def ends_at(self, now: float) -> float | None:
        """Return when it ends, or None where nobody has it.

        An end that is further away than any lease lasts was written by another clock: the one of the host before it
        was started anew.
        """
        if self.holder is None or not now < self.until <= now + LONGEST:
            return None
        return self.until

    def taken(self, by: str, now: float, ttl: float) -> Lease:
        """Return the lease after somebody has asked for it, who has it now if it was free or already theirs.

        Args:
            by: Who asks.
            now: Now, the store's time.
            ttl: For how long, seconds, at most `LONGEST`.
        """
        if self.holder == by:
            return attrs.evolve(self, until=now + ttl)
        if self.ends_at(now) is not None:
            return self
        return Lease(holder=by, epoch=self.epoch + 1, until=now + ttl)

    def released(self, by: str) -> Lease:
        """Return the lease after somebody has given it back, if they had it."""
        return Lease(epoch=self.epoch) if self.holder == by else self
