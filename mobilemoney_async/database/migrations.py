"""Migrations of a store's tables to the version that this release knows.

Critical section: one process at a time makes or migrates the tables, in one transaction. On SQLite it is kept alone by
the write lock, on PostgreSQL by an advisory lock and by exclusive locks of the payments' tables. So no process of an
older release writes in between; afterwards the tables have other names, and its statements fail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.schema import (
    METADATA,
    VERSION,
    accounts,
    batch_lines,
    batches,
    changes,
    consumers,
    find_version,
    followed,
    history,
    payments,
    require_known,
    retries,
    save_version,
    sightings,
    unclaimed,
)
from mobilemoney_async.database.serialization import load
from mobilemoney_async.errors import StoreError
from mobilemoney_async.values import valid_name

logger: logging.Logger = logging.getLogger("mobilemoney_async.migrations")
"""A logger of its own: the command line shows its progress."""

_ADVISORY_LOCK = 0x6D6F6D6F  # "momo"
# Payments moved by one statement, and rows held in memory at once.
_CHUNK, _SOME = 10_000, 1_000
# Payments and seconds between two lines of the log.
_LOGGED_ROWS, _LOGGED_SECONDS = 100_000, 5.0

Migration: TypeAlias = Callable[[sa.Connection], Any]


class TablesBusy(Exception):
    """Tables that another process makes, migrates or uses at the moment."""


_NEW_COLUMNS = {
    *("is_certain", "reason", "looked_at", "look_passed", "next_look_at"),
    *("not_before", "not_after", "priority", "extra", "batch", "line"),
}
_KEPT_COLUMNS = [each.name for each in payments.columns if each.name not in _NEW_COLUMNS]
OLD_PAYMENTS: sa.TableClause = sa.table(
    "mobilemoney_payments", sa.column("id"), *(sa.column(name, payments.columns[name].type) for name in _KEPT_COLUMNS)
)
"""Payments of versions 1 and 2."""
_old_history = sa.table("mobilemoney_history", *map(sa.column, ["id", "payment_id", "at", "what", "source", "detail"]))

# Codes of contract section 7 that refuse a create for certain, as an error of version 2 begins.
_CERTAIN = ("RATE_LIMIT_EXCEEDED", "invalid_credentials", "invalid_token", "token_expired", "insufficient_permissions")


def prepare(
    connection: sa.Connection, *, version: int = VERSION, migrations: Sequence[Migration] | None = None
) -> None:
    """Make the tables, or migrate those of an older version by one migration for each. Runs in its own transaction.

    Raises:
        StoreError: The database is of a newer version than this code knows.
        TablesBusy: Another process makes or migrates the tables.
    """
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql and not connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_ADVISORY_LOCK))).scalar():
        raise TablesBusy
    # Only now: another process may have migrated them before.
    found = find_version(connection)
    if found is None:
        METADATA.create_all(connection)
        save_version(connection, version)
        return
    require_known(found, version)
    if found == version:
        return
    if is_postgresql:
        # Statements of the merchant's that come later wait behind this lock: so it waits for 2 s only, and is asked for
        # again. The migration takes time in proportion to the payments: a time-out would end it each time.
        for setting in ("lock_timeout = '2s'", "statement_timeout = 0"):
            connection.execute(sa.text(f"SET LOCAL {setting}"))
        names = ", ".join(each.name for each in ((OLD_PAYMENTS, _old_history) if found < 3 else (payments, history)))
        connection.execute(sa.text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
    for migrate in (MIGRATIONS if migrations is None else migrations)[found - 1 : version - 1]:
        migrate(connection)
    save_version(connection, version)


def _name_payments(connection: sa.Connection) -> None:
    """Migrate to version 2: payments have the external ids of final transactions."""
    connection.execute(sa.text("ALTER TABLE mobilemoney_payments ADD COLUMN external_id TEXT"))
    old = OLD_PAYMENTS.c
    shown = sa.select(old.id, old.transaction).where(old.transaction.like('%"external_id":%'))
    named = OLD_PAYMENTS.update().where(old.id == sa.bindparam("of_id"))
    rows = connection.execute(shown.order_by(old.id).limit(_SOME)).all()
    while rows:
        values = [{"of_id": row.id, "external_id": _external_id(row.transaction)} for row in rows]
        connection.execute(named.values(external_id=sa.bindparam("external_id")), values)
        rows = connection.execute(shown.where(old.id > rows[-1].id).order_by(old.id).limit(_SOME)).all()


def _external_id(transaction: str) -> str | None:
    try:
        return valid_name(load(Transaction, transaction).external_id)
    except StoreError:
        return None  # unreadable before, too


def _key_by_account(connection: sa.Connection) -> None:
    """Migrate to version 3: keys begin with the account; there are evidence, an outbox, batches and a feed of changes.

    Older payments have no changes in the feed. Pollers of the older release cannot go on, and what they followed goes.
    """
    for table in (payments, history):
        connection.execute(sa.schema.CreateTable(table))
    for name in (followed.name, "mobilemoney_news"):
        connection.execute(sa.text(f"DROP TABLE {name}"))
    for table in (unclaimed, sightings, accounts, followed, changes, consumers, retries, batches, batch_lines):
        table.create(connection)
    _move(connection)
    # Made of sorted rows, an index costs a fraction of what it costs row by row.
    for index in sorted(payments.indexes, key=lambda each: str(each.name)):
        index.create(connection)
    first = sa.select(payments.c.account, sa.func.min(payments.c.created_at)).group_by(payments.c.account)
    connection.execute(accounts.insert().from_select(["account", "first_record_at"], first))
    for name in (_old_history.name, OLD_PAYMENTS.name):
        connection.execute(sa.text(f"DROP TABLE {name}"))
    if connection.dialect.name == "postgresql":
        # Its planner knows nothing of new tables.
        connection.execute(sa.text(f"ANALYZE {payments.name}, {history.name}"))


def _bound_the_queue(connection: sa.Connection) -> None:
    """Migrate to version 4: a queued payment may have a time from which it is not sent any more."""
    column = payments.c.not_after
    # Tables that were made of version 2 by this release have it.
    if column.name not in {each["name"] for each in sa.inspect(connection).get_columns(payments.name)}:
        kind = column.type.compile(connection.dialect)
        connection.execute(sa.text(f"ALTER TABLE {payments.name} ADD COLUMN {column.name} {kind}"))


def _move(connection: sa.Connection) -> None:
    """Copy the payments and their histories of version 2, in chunks, and log the progress."""
    old = OLD_PAYMENTS.c
    total = connection.execute(sa.select(sa.func.count()).select_from(OLD_PAYMENTS)).scalar_one()
    if total:
        said = "migrating the store's tables to version %d; payments: %d; other processes wait"
        logger.warning(said, VERSION, total)
    # In the order of the new keys: in any other one, SQLite would write most of the new tables once for each chunk.
    key, after = sa.tuple_(old.account, old.key), sa.tuple_(sa.bindparam("after_account"), sa.bindparam("after_key"))
    keys = sa.select(old.account, old.key).where(key > after).order_by(old.account, old.key).limit(_CHUNK)
    copies = _copies(key > after, key <= sa.tuple_(sa.bindparam("last_account"), sa.bindparam("last_key")))
    done = logged = 0
    logged_at = time.monotonic()
    last = {"after_account": "", "after_key": ""}
    while chunk := connection.execute(keys, last).all():
        upto = {"last_account": chunk[-1].account, "last_key": chunk[-1].key}
        for copy in copies:
            connection.execute(copy, {**last, **upto})
        done, last = done + len(chunk), {"after_account": chunk[-1].account, "after_key": chunk[-1].key}
        if done - logged >= _LOGGED_ROWS or time.monotonic() - logged_at >= _LOGGED_SECONDS:
            logged, logged_at = done, time.monotonic()
            logger.info("migrated %d of %d payments", done, total)


def _copies(*in_chunk: sa.ColumnElement[bool]) -> Sequence[sa.Insert]:
    """Return the statements that copy some payments of version 2, and their histories."""
    old, entries = OLD_PAYMENTS.c, _old_history.c
    kept = [old[name] for name in _KEPT_COLUMNS]
    begins = [f"{code} (HTTP " for code in _CERTAIN]
    code = sa.or_(*(sa.func.substr(old.error, 1, len(each)) == each for each in begins))
    is_certain: Any = sa.case((old.state == "REFUSED", sa.func.coalesce(code, sa.false())))
    of_payments = sa.select(*kept, is_certain, sa.literal_column("0")).where(*in_chunk).order_by(old.account, old.key)
    number = sa.func.row_number().over(partition_by=entries.payment_id, order_by=entries.id)
    of_history = (
        sa.select(old.account, old.key, number, entries.at, entries.what, entries.source, entries.detail)
        .join_from(OLD_PAYMENTS, _old_history, entries.payment_id == old.id)
        .where(*in_chunk)
        .order_by(old.account, old.key)
    )
    return (
        payments.insert().from_select([*_KEPT_COLUMNS, "is_certain", "priority"], of_payments, include_defaults=False),
        history.insert().from_select([*history.columns.keys()], of_history),
    )


MIGRATIONS: Sequence[Migration] = (_name_payments, _key_by_account, _bound_the_queue)
"""The first makes version 2 of version 1, and so on."""
