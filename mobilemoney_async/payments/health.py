"""Health of a store, seen without changing it: no tables are made, and none are migrated."""

from __future__ import annotations

from datetime import datetime

import attrs
import sqlalchemy as sa

from mobilemoney_async.database import schema
from mobilemoney_async.payments.journal import IS_UNIDENTIFIED
from mobilemoney_async.payments.records import PaymentState
from mobilemoney_async.payments.store import SQLStore, account_store


@attrs.frozen(kw_only=True)
class StoreHealth:
    """Health of a store.

    Attributes:
        version: Of its tables; None if there are none yet.
        known_version: That of the tables that this release makes and reads.
        cannot_write: Why nothing can be written, or None if it can.
        unresolved: Payments of the account with an unknown result, except for requests still on their way.
        clear_tokens: Login tokens of the account that are stored in clear text.
    """

    version: int | None
    known_version: int = schema.VERSION
    cannot_write: str | None = None
    unresolved: int = 0
    clear_tokens: int = 0


async def examine(store: SQLStore, now: datetime) -> StoreHealth:
    """Return the health of a store. A database that does not exist is not made.

    Raises:
        StoreError: The database failed, or cannot be reached.
    """
    database = account_store(store).database
    if database.file is not None and not database.file.exists():
        return StoreHealth(version=None)
    return await database.peek(lambda connection: _look(connection, store.account, now))


def _look(connection: sa.Connection, account: str, now: datetime) -> StoreHealth:
    if not sa.inspect(connection).has_table("mobilemoney_schema"):
        return StoreHealth(version=None)
    version = int(connection.execute(sa.text("SELECT version FROM mobilemoney_schema")).scalar_one())
    unresolved = clear = 0
    if version <= schema.VERSION:
        # These columns are as old as the tables.
        table = schema.payments
        waiting = (table.c.state == PaymentState.SENDING.value) & (table.c.stale_at > now)
        lost = (table.c.account == account) & IS_UNIDENTIFIED & ~waiting
        unresolved = connection.execute(sa.select(sa.func.count()).select_from(table).where(lost)).scalar_one()
        logins = schema.logins
        in_clear = (logins.c.account == account) & logins.c.token.like("clear:%")
        clear = connection.execute(sa.select(sa.func.count()).select_from(logins).where(in_clear)).scalar_one()
    return StoreHealth(
        version=version, cannot_write=_try_to_write(connection), unresolved=unresolved, clear_tokens=clear
    )


def _try_to_write(connection: sa.Connection) -> str | None:
    try:
        connection.execute(sa.text("UPDATE mobilemoney_schema SET version = version"))
    except sa.exc.SQLAlchemyError as exc:
        return type(getattr(exc, "orig", None) or exc).__name__
    return None
