"""Row of the login that all processes of a merchant share: its transitions, and its table.

The row holds the state of the login and a lease: a process that needs a token and finds none takes the lease and logs
in, the others come back for the token. Times are the store's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.logins import LoginPause, LoginState
from mobilemoney_async.database.clock import Holder, Lease
from mobilemoney_async.database.encryption import CLEAR, ENCRYPTED, TokenCipher
from mobilemoney_async.database.schema import lock_row, logins
from mobilemoney_async.database.serialization import dump, load
from mobilemoney_async.errors import MobileMoneyError, StoreError

Change: TypeAlias = Callable[[LoginState, float], LoginState]
"""Change of a login's state at a time of the store."""

# How far the store's clock may go back, seconds: PostgreSQL's is a wall clock, which is corrected now and then.
_SETBACK = 5.0
# Seconds after which the row of unused credentials is removed.
_FORGOTTEN_AFTER = 86_400.0


@attrs.frozen
class LoginRow:
    """State of the login of one account and its credentials, and the lease of the process that is logging in."""

    state: LoginState = attrs.field(factory=LoginState)
    lease: Lease = attrs.field(factory=Lease)

    def is_busy(self, me: str, now: float) -> bool:
        """Return whether another process is logging in."""
        return self.lease.ends_at(now) is not None and self.lease.holder != me

    def visited(
        self, me: str, now: float, *, ttl: float, refused: Change | None, may_log_in: bool
    ) -> tuple[LoginRow, bool]:
        """Return the row after a process came for a token, and whether it got the lease, to log in.

        Args:
            me: The process.
            now: The store's time.
            ttl: The length of a lease, seconds.
            refused: What the refusal of its token makes of the state.
            may_log_in: Whether the process would log in.
        """
        state = self.state if refused is None else refused(self.state, now)
        needs_login = state.fresh(now) is None and state.refusal(now) is None
        logs_in = may_log_in and needs_login and not self.is_busy(me, now)
        return LoginRow(state, self.lease.taken(Holder(me), now, ttl) if logs_in else self.lease), logs_in

    def kept(self, me: str, now: float, *, ttl: float) -> LoginRow:
        """Return the row after the process that logs in has renewed its lease."""
        return attrs.evolve(self, lease=self.lease.taken(Holder(me), now, ttl)) if self.lease.holder == me else self

    def finished(self, me: str, now: float, change: Change) -> LoginRow:
        """Return the row after a login has ended, well or not, as `change` says.

        A process that has lost the lease does not discard the token of its next holder.
        """
        if self.lease.holder != me and self.state.fresh(now) is not None:
            return self
        return LoginRow(change(self.state, now), self.lease.released(Holder(me)))


@attrs.frozen
class LoginTable:
    """Table of the logins of one account, as statements inside one transaction; `name` is of the credentials."""

    account: str
    name: str
    cipher: TokenCipher

    def lock(self, connection: sa.Connection) -> Any:
        """Return the row of these credentials, made if need be; no other process changes it until the commit.

        With a key, tokens in clear text are deleted, which a process without it has written.
        """
        if self.cipher.has_key:
            connection.execute(logins.delete().where(self._others, logins.c.token.startswith(CLEAR)))
        return lock_row(connection, logins, {"account": self.account, "credentials": self.name})

    def read(self, found: sa.Row[Any], now: float) -> LoginRow:
        """Return the contents of a row, without a token that cannot be read.

        SQLite's time is the clock of the host, which restarts with it: a row that was written later than now is
        forgotten.
        """
        if float(found.written) > now + _SETBACK:
            return LoginRow()
        pause = None
        if found.failure is not None:
            pause = LoginPause(load_failure(found.failure), float(found.paused_until), float(found.pause_length))
        state = LoginState(
            token=None if found.token is None else self.cipher.decrypt(found.token, self.name),
            renew_at=float(found.renew_from),  # SQLite keeps any text as a number
            expires_at=float(found.good_until),
            pause=pause,
            fresh_refused_at=float(found.refused_anew),
        )
        return LoginRow(state, Lease(holder=found.holder, until=float(found.held_until)))

    def write(self, connection: sa.Connection, row: LoginRow, now: float) -> None:
        """Write the row of these credentials, which is locked, at a time of the store."""
        state, pause, token = row.state, row.state.pause, row.state.token
        if token is not None and self.is_keyless(connection, now):
            token = None  # the process keeps it in memory
        values = {
            "token": None if token is None else self.cipher.encrypt(token, self.name),
            "renew_from": state.renew_at,
            "good_until": state.expires_at,
            "failure": None if pause is None else dump(pause.error),
            "paused_until": 0.0 if pause is None else pause.until,
            "pause_length": 0.0 if pause is None else pause.length,
            "refused_anew": state.fresh_refused_at,
            "holder": row.lease.holder,
            "held_until": row.lease.until,
            "written": now,
        }
        connection.execute(logins.update().where(self._own).values(values))
        forgotten = sa.and_(logins.c.written < now - _FORGOTTEN_AFTER, logins.c.good_until <= now)
        connection.execute(logins.delete().where(self._others, forgotten))

    def has_others(self, connection: sa.Connection, now: float) -> bool:
        """Return whether there is a token of this account under other credentials or another key."""
        found = (
            sa.select(logins.c.account)
            .where(self._others, logins.c.good_until > now, logins.c.token.is_not(None))
            .limit(1)
        )
        return connection.execute(found).first() is not None

    def is_keyless(self, connection: sa.Connection, now: float) -> bool:
        """Return whether this process has no key, and others have one: nothing is written in clear.

        Others of the account, or of any account, as on a platform: a host may be the only one that serves this one.
        """
        if self.cipher.has_key:
            return False
        are_here = sa.or_(self._others, logins.c.good_until > now)
        found = sa.select(logins.c.account).where(are_here, logins.c.token.startswith(ENCRYPTED)).limit(1)
        return connection.execute(found).first() is not None

    @property
    def _own(self) -> sa.ColumnElement[bool]:
        return sa.and_(logins.c.account == self.account, logins.c.credentials == self.name)

    @property
    def _others(self) -> sa.ColumnElement[bool]:
        return sa.and_(logins.c.account == self.account, logins.c.credentials != self.name)


def load_failure(text: str) -> MobileMoneyError:
    """Return the error of a failed login; a general one if a later release has written it."""
    try:
        return load(MobileMoneyError, text)
    except StoreError:
        return MobileMoneyError("the login failed in another process")
