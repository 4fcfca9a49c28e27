"""Statements of ours in a transaction of the merchant's own, on the connection that the merchant has.

A connection of SQLAlchemy runs them itself. For one of a driver, or of Django, an engine is made around it. Nothing is
committed, rolled back or set on the merchant's connection, and its errors pass as they are.
"""

from __future__ import annotations

import sqlite3
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect
from sqlalchemy.dialects.sqlite import pysqlite

from mobilemoney_async.database.engine import note_guest
from mobilemoney_async.errors import StoreError
from mobilemoney_async.values import refuse

_ACCEPTS = (
    "a connection in a transaction of your own, to the store's database: a Connection or Session of SQLAlchemy (of an "
    "AsyncConnection or AsyncSession through run_sync), a connection of psycopg or sqlite3, or Django's"
)
_SNAPSHOT = (
    "your transaction has read before another one wrote, and SQLite cannot let it write now: roll it back and run it "
    "again, and begin it with BEGIN IMMEDIATE (Django: transaction_mode)"
)
_NO_TABLES = (
    "your database lacks the store's tables, and nothing was queued: if it is the store's, a client makes them by its "
    "first use, and so does: mobilemoney payments list --store URL"
)
_OUR_TABLE = sa.text("SELECT 1 FROM sqlite_master WHERE name = 'mobilemoney_schema'")
_SQLITE_ERROR, _SQLITE_BUSY_SNAPSHOT, _UNDEFINED_TABLE = 1, 517, "42P01"


class _DateTime(sqlite.DATETIME):
    """Time in SQLite, where the converters that Django registers for all of sqlite3 may have read it already."""

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        """Return what reads a value."""
        read: Any = super().result_processor(dialect, coltype)
        return lambda value: value if isinstance(value, datetime) else read(value)


class _NoError(Exception):
    """Error that no driver raises: SQLAlchemy wraps only those of the driver that it knows."""


def _dialect(made: Any) -> sa.Dialect:
    made.driver, made.dbapi = "guest", SimpleNamespace(Error=_NoError)
    made.colspecs = {**made.colspecs, **({sa.DateTime: _DateTime} if made.name == "sqlite" else {})}
    dialect: sa.Dialect = made
    return dialect


_POSTGRESQL = _dialect(psycopg_dialect.dialect())  # type: ignore[no-untyped-call]
_SQLITE = _dialect(pysqlite.dialect(paramstyle="named"))
_DJANGO_SQLITE = _dialect(pysqlite.dialect(paramstyle="pyformat"))


@lru_cache(maxsize=8)
def _django_postgresql(zone: str | None) -> sa.Dialect:
    """Return a dialect for Django's connection, which has times without a zone where USE_TZ is False."""
    dialect: Any = _dialect(psycopg_dialect.dialect())  # type: ignore[no-untyped-call]
    dialect.zone_of_times = ZoneInfo(zone) if zone else None
    return cast("sa.Dialect", dialect)


_compiled: dict[Any, Any] = {}  # our few statements, for all connections


def guest_connection(connection: Any, dialect: str) -> Any:
    """Return an object that executes statements of ours on a connection of the merchant's, in its transaction.

    Raises:
        InvalidRequest: It is none of those that are accepted, of another kind of database, or in no transaction.
    """
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
        connection = connection.connection()
    guest, is_open = _admit(connection, dialect)
    if dialect == "sqlite":
        note_guest(is_open)
    return guest


def _admit(connection: Any, dialect: str) -> tuple[Any, Callable[[], bool]]:
    """Return the object that executes, and a function that returns whether the transaction of now is open."""
    psycopg = sys.modules.get("psycopg")
    if isinstance(connection, sa.Connection):
        _require_kind(connection.dialect.name, dialect)
        _require_readable(connection.connection.driver_connection)
        _require_transaction(_is_in_transaction(connection))
        known = weakref.ref(connection)
        return connection, lambda: (found := known()) is not None and not found.closed and found.in_transaction()
    if hasattr(connection, "ensure_connection"):  # Django's
        _require_kind(connection.vendor, dialect)
        _require_transaction(connection.in_atomic_block or not connection.get_autocommit())
        _require_readable(connection.connection)
        # Its own cursor, so that errors are Django's.
        kind = _DJANGO_SQLITE if dialect == "sqlite" else _django_postgresql(connection.timezone_name)
        return _connect(connection.cursor, kind), lambda: bool(connection.in_atomic_block)
    if isinstance(connection, sqlite3.Connection):
        _require_kind("sqlite", dialect)
        if connection.text_factory in (bytes, bytearray):
            raise refuse("connection", "one that reads text as str: its text_factory is another")
        _require_transaction(_begins_by_itself(connection))
        return _connect(partial(_open_plain, connection), _SQLITE), partial(_is_open, connection)
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        _require_kind("postgresql", dialect)
        _require_readable(connection)
        _require_transaction(not connection.autocommit or connection.info.transaction_status.name != "IDLE")
        return _connect(partial(_open_psycopg, psycopg, connection), _POSTGRESQL), bool
    raise refuse("connection", _ACCEPTS, type(connection))


def _connect(open_cursor: Callable[[], Any], dialect: sa.Dialect) -> sa.Connection:
    """Return a connection of SQLAlchemy's that opens cursors, and does nothing else."""
    pool = sa.StaticPool(lambda: SimpleNamespace(cursor=open_cursor), reset_on_return=None)  # type: ignore[arg-type]
    engine = sa.Engine(pool, dialect, sa.URL.create(dialect.name))
    return engine.connect().execution_options(compiled_cache=_compiled)


def _require_kind(kind: str, dialect: str) -> None:
    if kind != dialect:
        raise refuse("connection", f"one to the store's database, which is {dialect}, not {kind}")


def _require_readable(driver: Any) -> None:
    """Refuse a session of PostgreSQL whose answers the driver cannot read: once it is asked, the payment is queued.

    Or reads later: in a pipeline, an error comes after whoever enqueues was told that the payment is queued.
    """
    info = getattr(driver, "info", None)
    if getattr(info, "pipeline_status", 0):
        raise refuse("connection", "in no pipeline: end that first")
    if getattr(info, "encoding", None) == "ascii":
        raise refuse("connection", "one that reads text as str: its client_encoding is SQL_ASCII")
    if info is not None and not (info.parameter_status("DateStyle") or "ISO").startswith("ISO"):
        raise refuse("connection", "one that reads times: its DateStyle is not ISO")


def _require_transaction(is_in_one: bool) -> None:
    if not is_in_one:
        raise refuse("connection", "in a transaction: this one commits each statement by itself")


def _is_in_transaction(connection: sa.Connection) -> bool:
    """Return whether SQLAlchemy's connection is in a transaction, after it has begun one as its next statement does."""
    begun = None if connection.in_transaction() else connection.begin()
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        is_in_one = _begins_by_itself(driver)
    else:
        is_in_one = not getattr(connection.connection.dbapi_connection, "autocommit", False)
    if begun is not None and not is_in_one:
        begun.rollback()
    return is_in_one


def _begins_by_itself(driver: Any) -> bool:
    """Return whether SQLite's connection is in a transaction, or begins one by its next statement that writes."""
    mode = getattr(driver, "autocommit", None)  # True, False or, as before Python 3.12, by the level of isolation
    return bool(driver.in_transaction) or mode is False or (mode is not True and driver.isolation_level is not None)


def _open_plain(connection: sqlite3.Connection) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _open_psycopg(psycopg: Any, connection: Any) -> Any:
    """Open a cursor of the plain class, whatever the connection's own cursors and rows are."""
    cursor = psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)
    cursor.adapters.register_loader("timestamptz", psycopg.types.datetime.TimestamptzLoader)
    return cursor


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False


@contextmanager
def explained(guest: sa.Connection) -> Iterator[None]:
    """Add a note to an error of SQLite's that says too little; it passes unchanged, as others of the driver do.

    Raises:
        StoreError: The database has no tables of ours.
    """
    try:
        yield
    except Exception as exc:
        causes = (exc, getattr(exc, "orig", None), exc.__cause__)
        # The same by each driver's name: sqlite3's, psycopg's, psycopg2's; and pg8000's, as a key.
        codes = {getattr(each, name, None) for each in causes for name in ("sqlite_errorcode", "sqlstate", "pgcode")}
        codes.update(said.get("C") for each in causes for said in getattr(each, "args", ()) if isinstance(said, dict))
        if _SQLITE_BUSY_SNAPSHOT in codes:
            exc.add_note(_SNAPSHOT)
        # The error of SQLite has a code for many faults.
        if _UNDEFINED_TABLE in codes or (_SQLITE_ERROR in codes and guest.execute(_OUR_TABLE).first() is None):
            raise StoreError(_NO_TABLES, outcome="not_sent") from exc
        raise
