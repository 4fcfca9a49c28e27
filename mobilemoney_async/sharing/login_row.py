"""What the processes of a merchant know together of a login, and who of them makes the next one. Pure.

The state of the login and a lease: who needs a token and finds none takes the lease and logs in, the others come back
for the token. Times are the store's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime

import attrs

from mobilemoney_async.calls.logins import LoginState
from mobilemoney_async.database.lease import Lease
from mobilemoney_async.values import Secret

# How far the store's clock may go back, seconds: PostgreSQL's is a wall clock, which is set right now and then.
_SETBACK = 5.0


class Step(enum.Enum):
    """What a process is to do that came for a token."""

    USE = enum.auto()
    """There is one that need not be renewed."""
    FAIL = enum.auto()
    """A login failed, and its pause has not ended."""
    WAIT = enum.auto()
    """Another process is logging in."""
    LOG_IN = enum.auto()
    """It has the lease."""
    STAND_BACK = enum.auto()
    """Nobody is logging in, and it may not: its own connection failed a moment ago."""


@attrs.frozen
class LoginRow:
    """What the database keeps for one account and its credentials.

    Attributes:
        state: Of the login.
        lease: Of whoever is logging in.
    """

    state: LoginState = attrs.field(factory=LoginState)
    lease: Lease = attrs.field(factory=Lease)

    def believed(self, *, written: float, expires_at: datetime | None, now: float, wall: datetime | None) -> LoginRow:
        """Return what can be true of a row.

        SQLite's time is the clock of the host, which starts anew with it. What was written later than now belongs to
        an earlier start and is forgotten; what seems to fit is bounded by the wall clock.

        Args:
            written: When it was written, the store's time.
            expires_at: When the token ends by the wall clock of who wrote it.
            now: Now, the store's time.
            wall: The wall clock, or None where the store's time never starts anew.
        """
        if written > now + _SETBACK:
            return LoginRow()
        if wall is not None and expires_at is not None and expires_at <= wall:
            return attrs.evolve(self, state=attrs.evolve(self.state, token=None))
        return self

    def visited(
        self, me: str, now: float, *, ttl: float, refused: tuple[Secret, bool] | None, may_log_in: bool
    ) -> tuple[LoginRow, Step]:
        """Return the row after a process came for a token, and what that process is to do.

        Args:
            me: Who comes.
            now: Now.
            ttl: How long a lease lasts, seconds.
            refused: A token that the service refused, and whether it was a replacement of a refused one.
            may_log_in: Whether it would log in.
        """
        row = self
        if refused is not None:
            token, replacement = refused
            row = attrs.evolve(row, state=row.state.rejected(token, now, replacement=replacement))
        if row.state.fresh(now) is not None:
            return row, Step.USE
        if row.state.refusal(now) is not None:
            return row, Step.FAIL
        if row.lease.ends_at(now) is not None and row.lease.holder != me:
            return row, Step.WAIT
        if not may_log_in:
            return row, Step.STAND_BACK
        return attrs.evolve(row, lease=row.lease.taken(me, now, ttl)), Step.LOG_IN

    def kept(self, me: str, now: float, *, ttl: float) -> LoginRow:
        """Return the row after the process that logs in said that it is alive."""
        return attrs.evolve(self, lease=self.lease.taken(me, now, ttl)) if self.lease.holder == me else self

    def finished(self, me: str, now: float, change: Callable[[LoginState], LoginState]) -> LoginRow:
        """Return the row after a login has ended, well or not.

        Whoever lost the lease meanwhile does not throw away what its next holder got.

        Args:
            me: Who logged in.
            now: Now.
            change: What came of it.
        """
        if self.lease.holder != me and self.state.fresh(now) is not None:
            return self
        return LoginRow(change(self.state), self.lease.released(me))
