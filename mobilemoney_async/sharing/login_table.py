"""The table of logins, as statements inside one transaction. What a row means is decided in `login_row`."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.logins import NEVER, LoginState, Pause
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.failures import dump_login_error, load_login_error
from mobilemoney_async.database.lease import Lease
from mobilemoney_async.database.schema import logins
from mobilemoney_async.sharing.login_row import LoginRow

# Seconds after which the row of credentials that nobody uses is removed.
_FORGOTTEN_AFTER = 86_400.0


@attrs.frozen
class LoginTable:
    """The rows of one account.

    Attributes:
        account: Whose.
        name: Of the credentials, by `TokenCipher.name`.
        sealing: Hides the token.
    """

    account: str
    name: str
    sealing: TokenCipher

    def lock(self, connection: sa.Connection) -> sa.Row[tuple[object, ...]]:
        """Return the row of these credentials, made if need be; nobody else changes it in this transaction."""
        chosen = sa.select(logins).where(self._mine).with_for_update()
        found = connection.execute(chosen).one_or_none()
        if found is None:
            # Two processes may come here at once.
            connection.execute(_INSERT, {"account": self.account, "credentials": self.name})
            found = connection.execute(chosen).one()
        return found

    def read(self, found: sa.Row[tuple[object, ...]], now: float, wall: datetime | None) -> tuple[LoginRow, bool]:
        """Return what a row says, and whether its token can be read.

        Args:
            found: The row.
            now: Now, the store's time.
            wall: As for `LoginRow.believed`.
        """
        token = None if found.token is None else self.sealing.open(found.token, self.name)
        pause = None
        if found.failure is not None:
            pause = Pause(load_login_error(found.failure), _time(found.paused_until), found.pause_length or 0.0)
        state = LoginState(
            token=token,
            renew_at=_time(found.renew_from),
            expires_at=_time(found.good_until),
            pause=pause,
            refused_anew_at=_time(found.refused_anew),
        )
        row = LoginRow(state, Lease(holder=found.holder, until=found.held_until or 0.0))
        row = row.believed(written=found.written, expires_at=found.expires_at, now=now, wall=wall)
        return row, found.token is None or token is not None

    def write(self, connection: sa.Connection, row: LoginRow, now: float, wall: datetime) -> None:
        """Write the row of these credentials, which is locked.

        Args:
            connection: In the transaction of `lock`.
            row: What to write.
            now: Now, the store's time.
            wall: Now, by the wall clock.
        """
        state, pause, token = row.state, row.state.pause, row.state.token
        values = {
            "token": None if token is None else self.sealing.seal(token, self.name),
            "expires_at": None if token is None else wall + timedelta(seconds=max(0.0, state.expires_at - now)),
            "renew_from": _number(state.renew_at),
            "good_until": _number(state.expires_at),
            "failure": None if pause is None else dump_login_error(pause.error),
            "paused_until": None if pause is None else pause.until,
            "pause_length": None if pause is None else pause.length,
            "refused_anew": _number(state.refused_anew_at),
            "holder": row.lease.holder,
            "held_until": row.lease.until,
            "written": now,
        }
        connection.execute(logins.update().where(self._mine).values(values))
        forgotten = sa.and_(logins.c.written < now - _FORGOTTEN_AFTER, ~self._good(now))
        connection.execute(logins.delete().where(self._others, forgotten))

    def has_others(self, connection: sa.Connection, now: float) -> bool:
        """Return whether there is a token of this account under other credentials or another key."""
        found = sa.select(logins.c.account).where(self._others, self._good(now), logins.c.token.is_not(None)).limit(1)
        return connection.execute(found).first() is not None

    @property
    def _mine(self) -> sa.ColumnElement[bool]:
        return sa.and_(logins.c.account == self.account, logins.c.credentials == self.name)

    @property
    def _others(self) -> sa.ColumnElement[bool]:
        return sa.and_(logins.c.account == self.account, logins.c.credentials != self.name)

    def _good(self, now: float) -> sa.ColumnElement[bool]:
        return sa.func.coalesce(logins.c.good_until, 0.0) > now


# Both databases know it, SQLAlchemy only as two.
_INSERT = sa.text(
    "INSERT INTO mobilemoney_logins (account, credentials, written) VALUES (:account, :credentials, 0)"
    " ON CONFLICT DO NOTHING"
)


def _time(value: float | None) -> float:
    return NEVER if value is None else value


def _number(value: float) -> float | None:
    return None if value == NEVER else value
