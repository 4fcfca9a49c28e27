"""Tables of the store.

Every key begins with the account, so that many merchants may share a database. Times are aware UTC. Amounts are text:
SQLite has no decimals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from mobilemoney_async.database.column_types import UTCDateTime, Word
from mobilemoney_async.database.prepared import run
from mobilemoney_async.errors import StoreError

VERSION = 15
"""Version of the tables below. A database of another version is refused.

Until the first release, a change of the tables raises it, and no database is migrated.
"""

_ADVISORY_LOCK = 0x6D6F6D6F  # "momo"

METADATA: sa.MetaData = sa.MetaData()

Row: TypeAlias = sa.Row[Any]
"""Row of a table, or of the result of a statement."""


def _columns(kind: Any, *names: str, **options: Any) -> Iterator[sa.Column[Any]]:
    """Return columns of one type."""
    return (sa.Column(name, kind, **options) for name in names)


_texts, _times = partial(_columns, sa.Text), partial(_columns, UTCDateTime)


def _key(name: str, kind: Any = sa.Text) -> sa.Column[Any]:
    """Return a column of a primary key, with values that are never given by the database."""
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _index(
    name: str, *columns: str | sa.TextClause, unique: bool = False, where: sa.TextClause | None = None
) -> sa.Index:
    """Return an index of an account's rows, or of those that a condition chooses."""
    return sa.Index(name, "account", *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _account_table(name: str, *parts: Any, **options: Any) -> sa.Table:
    """Return a table with a key that begins with the account. The names of its indexes begin with its own."""
    full_name = f"mobilemoney_{name}"
    for each in parts:
        if isinstance(each, sa.Index):
            each.name = sa.quoted_name(f"{full_name}_{each.name}", quote=None)
    return sa.Table(full_name, METADATA, _key("account"), *parts, **options)


# One row: the version of the tables, and the address of the service that the store's workers serve.
stores: sa.Table = sa.Table(
    "mobilemoney_schema",
    METADATA,
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("service", sa.Text),
)

FOUND_VERSION: sa.ScalarSelect[int] = sa.select(stores.c.version).scalar_subquery()
"""Version of the database, as a column of another statement."""

# Conditions of partial indexes. Queries use the same ones: SQLite uses an index only for the same text.
IS_UNIDENTIFIED: sa.TextClause = sa.text("state IN ('SENDING', 'UNKNOWN', 'ABSENT')")
"""The payment may exist, as an unknown transaction: `payments.records.record.UNIDENTIFIED`."""

STOPS_KIND: sa.TextClause = sa.text("stops_kind")
"""No other payment of the kind may be sent: `payments.records.record.stops_kind`."""

WAS_REFUSED_SOFTLY: sa.TextClause = sa.text("(state IN ('REFUSED', 'QUEUED') AND NOT is_certain)")
"""The payment was refused without a code of the contract, and may exist after all."""

# No bare column: SQLite would rather look through all final payments, by the index on states.
IS_CONTRADICTED: sa.TextClause = sa.text("(state || '' IN ('ACKNOWLEDGED', 'FINAL') AND cause IS NOT NULL)")
"""The payment has a transaction that contradicts it, or a final state that has changed: see `record_seen`."""

IS_QUEUED: sa.TextClause = sa.text("state = 'QUEUED'")
"""The payment waits in the queue."""

IS_NEW: sa.TextClause = sa.text("number IS NULL")
"""The change has no number yet."""

payments: sa.Table = _account_table(
    "payment_records",
    _key("key"),
    *_texts("type", "phone_number", "amount", "extra_digest", nullable=False),
    sa.Column("state", Word, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    *_times("created_at", "changed_at", nullable=False),
    *_times("sent_at", "stale_at", "ended_at"),
    *_texts("transaction_id", "reference", "status", "transaction", "acknowledgement"),
    *_columns(sa.Boolean, "is_adopted", "stops_kind", nullable=False, default=False),
    sa.Column("walks", sa.Integer, nullable=False, default=0),
    *_times("walked_at"),
    # The candidates that the latest look has found, as JSON. A query of `unmatched` would not find them all: it lacks
    # young rows, each row where ``sole_writer=False``, and the service's clock and spellings as that look knew them.
    # The nonce of the latest attempt is random, so that after a broken commit its process recognises its own row.
    *_texts("candidates", "error", "external_id", "nonce"),
    # The transaction that our own acknowledgement named, where that does not fit: until another payment owns it, or
    # someone explains it.
    *_texts("named_id"),
    # Of a refusal: whether its code is one of contract section 7. None in the other states.
    sa.Column("is_certain", sa.Boolean),
    # Of an attempt that failed: the service's code, or the HTTP status.
    *_texts("code"),
    # Why it is open, and what that is about; the last complete listing that did not show it, and whether that showed
    # the payments around it; the time before which no other listing is worth its requests.
    sa.Column("cause", Word),
    *_texts("about"),
    *_times("looked_at"),
    sa.Column("look_passed", sa.Boolean),
    *_times("next_look_at"),
    # Of a queued payment: when and in which order it is sent, its extra fields as JSON, and its place in a batch.
    *_times("not_before", "not_after"),
    sa.Column("priority", sa.Integer, nullable=False, default=0),
    *_texts("extra", "batch"),
    sa.Column("line", sa.Integer),
    # The payment that a retry has made in its place, and the one in whose place it was made: `payments.payouts.retry`.
    *_texts("next_key", "previous_key"),
    # A transaction of the service belongs to one record.
    _index("transaction", "transaction_id", unique=True),
    # At most one payment of a kind that stops the others, and all that have no known transaction.
    _index("stopping", "type", "phone_number", "amount", unique=True, where=STOPS_KIND),
    _index("unidentified", "type", "phone_number", "amount", where=IS_UNIDENTIFIED),
    _index("kind", "phone_number", "type", "amount"),
    # Of a million, the first or the latest few, in a state or since a time, without sorting the rest.
    _index("created", "created_at", "key"),
    _index("sent", "sent_at", where=sa.text("sent_at IS NOT NULL")),
    _index("state", "state", "created_at", "key"),
    # In the order of the queue.
    _index("queue", sa.text("priority DESC"), sa.text("coalesce(not_before, created_at)"), "key", where=IS_QUEUED),
    _index("refused", "ended_at", where=WAS_REFUSED_SOFTLY),
    _index("named", "named_id", where=sa.text("named_id IS NOT NULL")),
    _index("contradicted", "created_at", where=IS_CONTRADICTED),
    # For the names that a callback or a customer may quote. A text of any length would not go into PostgreSQL's index.
    *(_index(each, each, where=sa.text(f"length({each}) <= 200")) for each in ("reference", "external_id")),
)

# The entries of a payment are numbered from 1, under the lock of the payment's row.
history: sa.Table = _account_table(
    "payment_history",
    _key("key"),
    _key("number", sa.Integer),
    *_times("at", nullable=False),
    *_texts("what", "source", nullable=False),
    *_texts("detail"),
    sqlite_with_rowid=False,
)

# Changes of payments' states, for readers. `entry` is that of the payment's history, or 0 for an unclaimed transaction,
# whose id is the name. A reader numbers them once they are committed: see `payments.feed.changes`.
changes: sa.Table = _account_table(
    "changes",
    _key("name"),
    _key("entry", sa.Integer),
    *_texts("state", "status"),
    *_times("at", nullable=False),
    sa.Column("number", sa.BigInteger),
    _index("number", "number", unique=True),
    _index("new", "at", where=IS_NEW),
)

# Readers of an account's changes, and the number up to which each is done. `tried` is the first change that was handed
# out last time.
consumers: sa.Table = _account_table(
    "consumers",
    _key("name"),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("tried", sa.BigInteger),
    *_times("used_at", nullable=False),
)

# Changes that a consumer could not handle. One with `next_at` holds back its payment, `name`; one without is parked.
retries: sa.Table = _account_table(
    "retries",
    _key("consumer"),
    _key("number", sa.BigInteger),
    *_texts("name", nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    *_times("next_at"),
    *_texts("error"),
)

# Batches of payouts that one person proposes and another approves, and their lines. `parent` is the batch that a retry
# pays again, and `previous_key` the payment that a line of a retry replaces. `info` has the other columns, as JSON.
batches: sa.Table = _account_table(
    "batches",
    _key("id"),
    *_texts("name", "digest", "state", "total", "proposed_by", nullable=False),
    sa.Column("lines", sa.Integer, nullable=False),
    *_times("proposed_at", nullable=False),
    *_texts("approved_by", "cancelled_by"),
    *_times("approved_at", "cancelled_at"),
    *_texts("parent"),
    _index("proposed", "proposed_at"),
    _index("parent", "parent"),
)

batch_lines: sa.Table = _account_table(
    "batch_lines",
    _key("batch"),
    _key("line", sa.Integer),
    *_texts("key", "phone_number", "amount", nullable=False),
    *_texts("info", "previous_key"),
)

# Transactions of the service that no payment owned when a list showed them, until a payment owns them or someone
# explains them. `created_at` is the service's time; `number_digest` is a keyed digest of the phone number,
# `shown_number` shows some digits. `due_at` is the time from which nothing of ours can be on its way that it may
# be; at `told_at` it was reported. `fits_key` is the payment that it may be a second time; `is_lost` marks one of a
# time that the store has forgotten, `went_backwards` that the store itself has shown so; `is_foreign` one that was made
# while the store was in contact, and that none of its payments fits.
unmatched: sa.Table = _account_table(
    "unmatched",
    _key("transaction_id"),
    *_texts("type", "amount", "shown_number", "status", nullable=False),
    *_times("created_at"),
    *_texts("number_digest", "fits_key"),
    *_times("first_seen_at", "due_at", "changed_at", nullable=False),
    *_times("told_at"),
    *_columns(sa.Boolean, "is_lost", "went_backwards", "is_foreign", nullable=False, default=False),
    *_times("explained_at"),
    *_texts("note", "explained_by"),
    _index("seen", "first_seen_at"),
    _index("kind", "number_digest", "type", "amount"),
)

# Lives of a store: the times in which its processes have written without a pause of five minutes.
lives: sa.Table = _account_table(
    "lives",
    _key("began_at", UTCDateTime),
    *_times("until", nullable=False),
)

# Times of the service's clock that a store has forgotten: what it made then, and no payment owns, may be the store's.
lost_times: sa.Table = _account_table(
    "lost_times",
    *_times("start", "end", primary_key=True),
    sa.Column("went_backwards", sa.Boolean, nullable=False),
)

# The merchant of an account, and the comparison of the store with the service. One is due since `due_since`, when the
# newest payment was of `known_until`, and is repeated from `again_at` on; `went_backwards` says that the store itself
# has shown that it lost payments. Until `others_until` other systems count as paying too. `timeline` is PostgreSQL's;
# `number_key` is the secret of the digests in `unmatched`. The columns `feed…` are of its changes: their epoch, the
# last number given, the highest one that was pruned, and how often some were.
accounts: sa.Table = _account_table(
    "accounts",
    *_texts("merchant_id", "host", "credentials"),
    *_times("first_record_at", "due_since", "known_until", "again_at", "lost_at", "others_until"),
    sa.Column("went_backwards", sa.Boolean),
    sa.Column("timeline", sa.Integer),
    # Why nothing is sent from the queue, and until when: without a time until someone resumes, as was done last at.
    *_texts("paused"),
    *_times("paused_until", "resumed_at"),
    sa.Column("payouts_wait", sa.Boolean),  # queued ones, as a backup was restored, until someone resumes them
    # SUSPENDED or REMOVED; None for an account that pays. See `payments.records.account_store`.
    *_texts("state", "state_note"),
    *_times("state_at"),
    # The last failure of a worker that served it, and its time.
    *_texts("error"),
    *_times("error_at"),
    *_texts("note", "number_key", "feed_epoch"),
    *_columns(
        sa.BigInteger, "feed_last", "feed_pruned", "feed_prunings", nullable=False, default=0, server_default="0"
    ),
)

# Numbers, by their digests, and whole accounts that were erased: a restored backup has them again.
erasures: sa.Table = _account_table(
    "erasures",
    _key("digest"),
    *_times("at", nullable=False),
)

# Leases: tasks that one process of an account does at a time. `until` is a time of the store's clock, and `written`
# that of the last renewal; `host` is of a holder that a worker's claim of the account protects. In the poller's row two
# numbers count its messages, under the row's lock: so a reader knows how far it has read.
leases: sa.Table = _account_table(
    "leases",
    _key("name"),
    *_texts("holder", "host"),
    sa.Column("epoch", sa.Integer, nullable=False, default=0),
    *_columns(sa.Double, "until", "written", nullable=False, default=0.0),
    *_columns(sa.BigInteger, "subscription_number", "message_number", nullable=False, default=0),
)

# Hosts of a platform that take accounts, until a time of the store's clock; and when each looked for work last.
hosts: sa.Table = sa.Table(
    "mobilemoney_hosts",
    METADATA,
    _key("host"),
    *_columns(sa.Double, "until", "looked_at", nullable=False, default=0.0),
)

# Accounts in which a worker has something to do: which work, and the host that serves the account until a time.
account_claims: sa.Table = _account_table(
    "account_claims",
    *_texts("host"),
    sa.Column("until", sa.Double, nullable=False, default=0.0),
    sa.Column("work", sa.Integer, nullable=False),
)

# Payments that each poller, the follower, tracks, and the messages to it: `message_number` is that of the latest one,
# which has the payment's state or the error that ends its tracking. Those that have ended are kept until they have
# arrived, or until their time `until`.
subscriptions: sa.Table = _account_table(
    "subscriptions",
    *_texts("transaction_id", "follower", primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    *_columns(sa.Boolean, "is_new", "has_deadline", "is_hinted", nullable=False),
    *_times("tracked_at", "until", nullable=False),
    sa.Column("message_number", sa.BigInteger, nullable=False, default=0),
    sa.Column("has_ended", sa.Boolean, nullable=False, default=False),
    *_texts("transaction", "error"),
    sa.Column("lag", sa.Double),
    _index("number", "number"),
    _index("follower", "follower", "message_number"),
)

budgets: sa.Table = _account_table(
    "budgets",
    *_texts("state", nullable=False),
)

# The logins of all processes. `credentials` names an e-mail address and a password without showing them. Numbers are
# times of the store's clock, `pause_length` is seconds.
logins: sa.Table = _account_table(
    "logins",
    _key("credentials"),
    *_texts("token", "failure", "holder"),
    *_columns(sa.Double, "renew_from", "good_until", "refused_anew", nullable=False, default=-math.inf),
    *_columns(sa.Double, "paused_until", "pause_length", "held_until", "written", nullable=False, default=0.0),
)


for _table in METADATA.tables.values():
    # In one order in every process: which of several equal plans SQLite takes depends on it.
    _table.indexes = sa.util.OrderedSet(sorted(_table.indexes, key=lambda index: str(index.name), reverse=True))


def lock_row(connection: sa.Connection, table: sa.Table, key: Mapping[str, str], **new: Any) -> Any:
    """Return the row of a primary key, locked until the commit; if there is none it is made, of `new` and defaults."""
    found = run(connection, _locked(table), key)
    if found is None:
        found = run(connection, insert_missing(table, connection.dialect.name, *table.c), {**key, **new})
    return found or run(connection, _locked(table), key)  # two processes were here at once


@functools.cache
def insert_missing(table: sa.Table, dialect: str, *columns: Any) -> Any:
    """Return the statement that inserts a row, and gives some columns, unless a unique index forbids it.

    Without columns it gives the primary key.
    """
    # Both databases know this clause, SQLAlchemy only as two.
    insert = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    return insert.on_conflict_do_nothing().returning(*(columns or table.primary_key))


@functools.cache
def _locked(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table).where(*(each == sa.bindparam(each.name) for each in table.primary_key)).with_for_update()


def is_among(connection: sa.Connection, column: sa.Column[str], names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return a condition for the rows of some names.

    One array on PostgreSQL: its driver takes longer to read hundreds of parameters than the server for the statement.
    """
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal([*names], postgresql.ARRAY(sa.Text)))
    return column.in_(names)


def require_known(found: int) -> None:
    """Raise `StoreError` if a database is of another version than this code knows."""
    if found == VERSION:
        return
    if not isinstance(found, int) or found < 1:  # an edited one: SQLite keeps any text as a number
        said = "the database does not show the version of its tables: restore mobilemoney_schema from a backup"
    elif found > VERSION:
        said = f"the database has tables of version {found}, this release knows {VERSION}: update mobilemoney-async"
    else:
        said = (
            f"the database has tables of version {found}, this release knows {VERSION}: settle its payments with the "
            "version of mobilemoney-async that made them, then use a new database"
        )
    raise StoreError(said, outcome="not_sent")


def find_version(connection: sa.Connection) -> int | None:
    """Return the version of a database's tables, or 0 if it shows none; None if it has no tables yet."""
    if not sa.inspect(connection).has_table(stores.name):
        return None
    return connection.execute(sa.select(stores.c.version)).scalar_one_or_none() or 0


def make_tables(connection: sa.Connection) -> bool:
    """Make the tables unless the database has them; return False if another process makes them at this moment.

    Critical section: one process at a time, in one transaction that does nothing else. SQLite keeps the others out by
    the write lock, PostgreSQL by an advisory lock.

    Raises:
        StoreError: The database is of another version.
    """
    if connection.dialect.name == "postgresql":
        is_alone = connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_ADVISORY_LOCK))).scalar_one()
        if not is_alone:
            return False
    found = find_version(connection)  # only now: another process may have made them before
    if found is not None:
        require_known(found)
        return True
    # A table of ours without a version is of unknown origin: the whole transaction fails.
    METADATA.create_all(connection, checkfirst=False)
    connection.execute(stores.insert().values(version=VERSION))
    return True
