"""Tables of the store, and migrations of older databases.

Every table carries the account, so that several merchants may share a database. Times are aware UTC. Amounts are text:
SQLite has no decimals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from mobilemoney_async.database.serialization import load_transaction
from mobilemoney_async.errors import StoreError
from mobilemoney_async.values import valid_name

VERSION = 2
"""Version of the tables below. A database of a newer version is refused."""

METADATA: sa.MetaData = sa.MetaData()

_SOME = 1_000  # rows held in memory at once while they are brought forward

_ADVISORY_LOCK = 0x6D6F6D6F  # "momo": one process at a time makes or migrates the tables


class UTCDateTime(sa.types.TypeDecorator[datetime]):
    """Aware UTC datetime, also in SQLite, which knows no time zones."""

    impl: sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]] = sa.DateTime(timezone=True)
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the value for the database."""
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the value of the database."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # only an INTEGER counts up by itself there

_version = sa.Table("mobilemoney_schema", METADATA, sa.Column("version", sa.Integer, nullable=False))

# Conditions of partial indexes. The queries of `payments.journal` have the same text, without which SQLite would not
# use the indexes.
_UNIDENTIFIED = sa.text("state IN ('SENDING', 'UNKNOWN', 'ABSENT')")
_RELEASED = sa.text("(attempt > 1 OR state = 'RELEASED')")

payments: sa.Table = sa.Table(
    "mobilemoney_payments",
    METADATA,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("phone_number", sa.Text, nullable=False),
    sa.Column("amount", sa.Text, nullable=False),
    sa.Column("extra_digest", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("created_at", UTCDateTime, nullable=False),
    sa.Column("changed_at", UTCDateTime, nullable=False),
    sa.Column("sent_at", UTCDateTime),
    sa.Column("stale_at", UTCDateTime),
    sa.Column("ended_at", UTCDateTime),
    sa.Column("transaction_id", sa.Text),
    sa.Column("reference", sa.Text),
    sa.Column("status", sa.Text),
    sa.Column("transaction", sa.Text),
    sa.Column("acknowledgement", sa.Text),
    sa.Column("is_adopted", sa.Boolean, nullable=False, default=False),
    sa.Column("walks", sa.Integer, nullable=False, default=0),
    sa.Column("walked_at", UTCDateTime),
    sa.Column("candidates", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("external_id", sa.Text),
    sa.UniqueConstraint("account", "key", name="mobilemoney_payments_key"),
    # A transaction of the service belongs to one record.
    sa.Index("mobilemoney_payments_transaction", "account", "transaction_id", unique=True),
    # At most one payment of a kind without a known transaction.
    sa.Index(
        "mobilemoney_payments_unidentified",
        "account",
        "type",
        "phone_number",
        "amount",
        unique=True,
        sqlite_where=_UNIDENTIFIED,
        postgresql_where=_UNIDENTIFIED,
    ),
    # Of a million, the first or the latest few, in a state or since a time, without sorting the rest.
    sa.Index("mobilemoney_payments_created", "account", "created_at", "id"),
    sa.Index("mobilemoney_payments_state", "account", "state", "created_at", "id"),
    sa.Index(
        "mobilemoney_payments_released",
        "account",
        "phone_number",
        "type",
        "amount",
        sqlite_where=_RELEASED,
        postgresql_where=_RELEASED,
    ),
    # For the names that a callback or a customer may quote. A text of any length would not go into PostgreSQL's index.
    *(
        sa.Index(f"mobilemoney_payments_{name}", "account", name, sqlite_where=short, postgresql_where=short)
        for name, short in ((each, sa.text(f"length({each}) <= 200")) for each in ("reference", "external_id"))
    ),
)

history: sa.Table = sa.Table(
    "mobilemoney_history",
    METADATA,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("payment_id", sa.ForeignKey("mobilemoney_payments.id"), nullable=False, index=True),
    sa.Column("at", UTCDateTime, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("detail", sa.Text),
)

# The lease of the shared poller. Two numbers count its messages, under this row's lock: so a reader knows how far it
# has read. `until` is a time of the store's clock.
leases: sa.Table = sa.Table(
    "mobilemoney_leases",
    METADATA,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text),
    sa.Column("epoch", sa.Integer, nullable=False, default=0),
    sa.Column("until", sa.Double, nullable=False, default=0.0),
    sa.Column("followed", sa.BigInteger, nullable=False, default=0),
    sa.Column("told", sa.BigInteger, nullable=False, default=0),
)

followed: sa.Table = sa.Table(
    "mobilemoney_followed",
    METADATA,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("transaction_id", sa.Text, primary_key=True),
    sa.Column("follower", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("hinted", sa.BigInteger, nullable=False, default=0),
    sa.Column("is_new", sa.Boolean, nullable=False),
    sa.Column("has_deadline", sa.Boolean, nullable=False),
    sa.Column("tracked_at", UTCDateTime, nullable=False),
    sa.Column("until", UTCDateTime, nullable=False),
    sa.Index("mobilemoney_followed_number", "account", "number"),
    sa.Index("mobilemoney_followed_follower", "account", "follower"),
)

news: sa.Table = sa.Table(
    "mobilemoney_news",
    METADATA,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("transaction_id", sa.Text, nullable=False),
    sa.Column("is_final", sa.Boolean, nullable=False),
    sa.Column("transaction", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("lag", sa.Double),
    sa.Column("at", UTCDateTime, nullable=False),
    sa.Index("mobilemoney_news_transaction", "account", "transaction_id"),
    sa.Index("mobilemoney_news_at", "account", "at"),
)

budgets: sa.Table = sa.Table(
    "mobilemoney_budgets",
    METADATA,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
)

# The logins of all processes. `credentials` names an e-mail address and a password without showing them. Numbers are
# times of the store's clock, `pause_length` is seconds.
logins: sa.Table = sa.Table(
    "mobilemoney_logins",
    METADATA,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("credentials", sa.Text, primary_key=True),
    sa.Column("token", sa.Text),
    sa.Column("expires_at", UTCDateTime),
    sa.Column("renew_from", sa.Double),
    sa.Column("good_until", sa.Double),
    sa.Column("failure", sa.Text),
    sa.Column("paused_until", sa.Double),
    sa.Column("pause_length", sa.Double),
    sa.Column("refused_anew", sa.Double),
    sa.Column("holder", sa.Text),
    sa.Column("held_until", sa.Double),
    sa.Column("written", sa.Double, nullable=False),
)


def lock_row(connection: sa.Connection, table: sa.Table, key: Mapping[str, str], **new: Any) -> sa.Row[Any]:
    """Return the row of a primary key, locked until the commit; if there is none it is made, of `new` and defaults."""
    found = connection.execute(_locked(table), key).one_or_none()
    if found is None:
        # Two processes may come here at once.
        connection.execute(insert_missing(table, connection.dialect.name), {**key, **new})
        found = connection.execute(_locked(table), key).one()
    return found


@functools.cache
def insert_missing(table: sa.Table, dialect: str) -> Any:
    """Return the statement that inserts a row, and gives its primary key, unless a unique index forbids it."""
    # Both databases know this clause, SQLAlchemy only as two.
    insert = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    return insert.on_conflict_do_nothing().returning(*table.primary_key)


@functools.cache
def _locked(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table).where(*(each == sa.bindparam(each.name) for each in table.primary_key)).with_for_update()


Migration: TypeAlias = Callable[[sa.Connection], Any]


def _give_names(connection: sa.Connection) -> None:
    """Migrate to version 2: payments have the external ids of final transactions, and are found by their names."""
    connection.execute(sa.text("ALTER TABLE mobilemoney_payments ADD COLUMN external_id TEXT"))
    shown = sa.select(payments.c.id, payments.c.transaction).where(payments.c.transaction.like('%"external_id":%'))
    named = payments.update().where(payments.c.id == sa.bindparam("of_id"))
    rows = connection.execute(shown.order_by(payments.c.id).limit(_SOME)).all()
    while rows:
        connection.execute(named, [{"of_id": row.id, "external_id": _external_id(row.transaction)} for row in rows])
        later = shown.where(payments.c.id > rows[-1].id).order_by(payments.c.id).limit(_SOME)
        rows = connection.execute(later).all()
    for index in payments.indexes:
        if str(index.name).rpartition("_")[2] in {"released", "reference", "id"}:
            index.create(connection)


def _external_id(transaction: str) -> str | None:
    try:
        return valid_name(load_transaction(transaction).external_id)
    except StoreError:
        return None  # unreadable before, too


_MIGRATIONS: Sequence[Migration] = (_give_names,)
"""The first makes version 2 of version 1, and so on."""


def prepare(
    connection: sa.Connection, *, version: int = VERSION, migrations: Sequence[Migration] = _MIGRATIONS
) -> None:
    """Make the tables, or migrate those of an older version by one migration for each. Runs in its own transaction.

    Raises:
        StoreError: The database is of a newer version than this code knows.
    """
    # One process at a time until the commit: on SQLite by its write lock, on PostgreSQL by an advisory lock.
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    if not sa.inspect(connection).has_table(_version.name):
        METADATA.create_all(connection)
        connection.execute(_version.insert().values(version=version))
        return
    found = connection.execute(sa.select(_version.c.version)).scalar_one()
    if found > version:
        raise StoreError(
            f"the database has tables of version {found}, this release knows up to {version}: update mobilemoney-async",
            outcome="not_sent",
        )
    if found < version and connection.dialect.name == "postgresql":
        # It takes time in proportion to the payments: the time-out of other statements would end it each time.
        connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    for migrate in migrations[found - 1 : version - 1]:
        migrate(connection)
    if found < version:
        connection.execute(_version.update().values(version=version))
