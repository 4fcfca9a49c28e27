"""Statements of ours in a transaction of the merchant's own, on the connection that the merchant has.

A connection of SQLAlchemy runs them itself. For one of a driver, or of Django, they are compiled here, and their values
converted as SQLAlchemy does. Nothing is committed, rolled back or set on the merchant's connection.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect
from sqlalchemy.dialects.sqlite import pysqlite

from mobilemoney_async.database.schema import changes, history, payments
from mobilemoney_async.values import refuse

_ACCEPTS = (
    "a connection in a transaction of your own, to the store's database: a Connection or Session of SQLAlchemy (of an "
    "AsyncSession through run_sync), a connection of psycopg or sqlite3, or Django's"
)
_DIALECTS: Mapping[str, sa.Dialect] = {
    "sqlite": pysqlite.dialect(paramstyle="named"),
    "postgresql": psycopg_dialect.dialect(),  # type: ignore[no-untyped-call]
}
_TYPES = {each.name: each.type for table in (changes, history, payments) for each in table.columns}


def guest_connection(connection: Any, dialect: str) -> Any:
    """Return an object that executes statements of ours on a connection of the merchant's, in its transaction.

    Raises:
        InvalidRequest: It is none of those that are accepted, of another kind of database, or in no transaction.
    """
    session = getattr(connection, "connection", None)
    if isinstance(connection, sa.Connection):
        return _checked(connection, connection.dialect.name, connection.connection.dbapi_connection, dialect)
    if callable(session) and isinstance(found := session(), sa.Connection):
        return guest_connection(found, dialect)
    if hasattr(connection, "ensure_connection"):  # Django's, whose driver's connection is made when it is first used
        connection.ensure_connection()
        connection = connection.connection
    kind = "sqlite" if isinstance(connection, sqlite3.Connection) else "postgresql"
    if kind == "postgresql" and not _is_psycopg(connection):
        raise refuse("connection", _ACCEPTS, connection)
    return _checked(GuestConnection(connection, _DIALECTS[kind]), kind, connection, dialect)


def _is_psycopg(connection: Any) -> bool:
    try:
        import psycopg
    except ImportError:
        return False
    return isinstance(connection, psycopg.Connection)


def _checked(guest: Any, kind: str, driver: Any, dialect: str) -> Any:
    if kind != dialect:
        raise refuse("connection", f"one to the store's database, which is {dialect}, not {kind}")
    if kind == "sqlite":
        level, mode = driver.isolation_level, getattr(driver, "autocommit", sqlite3)
        commits_each = not driver.in_transaction and (mode is True or (level is None and mode is not False))
    else:
        commits_each = driver.autocommit and driver.info.transaction_status.name == "IDLE"
    if commits_each:
        raise refuse("connection", "in a transaction: this one commits each statement by itself")
    return guest


class GuestConnection:
    """Connection of a driver, with the part of SQLAlchemy's interface that `Journal` needs."""

    def __init__(self, driver: Any, dialect: sa.Dialect) -> None:
        self.dialect = dialect
        self._driver = driver

    def execute(self, statement: Any, parameters: Mapping[str, Any] | None = None) -> GuestResult:
        """Execute a statement with its parameters."""
        given = dict(parameters or {})
        text, defaults, processors = _compiled(statement, self.dialect, frozenset(given))
        values = {**defaults, **{name: value for name, value in given.items() if name in defaults}}
        converted = {name: _convert(processors.get(name), value) for name, value in values.items()}
        if self.dialect.name == "sqlite":
            cursor = self._driver.cursor()
            cursor.row_factory = None
        else:
            from psycopg.rows import tuple_row

            cursor = self._driver.cursor(row_factory=tuple_row)
        try:
            cursor.execute(text, converted)
            names = [each[0] for each in cursor.description or ()]
            rows = cursor.fetchall() if names else []
            return GuestResult(names, [self._read(names, row) for row in rows])
        finally:
            cursor.close()

    def _read(self, names: Sequence[str], row: Sequence[Any]) -> Sequence[Any]:
        return [
            value if (process := self._reader(name)) is None else process(value)
            for name, value in zip(names, row, strict=True)
        ]

    def _reader(self, name: str) -> Callable[[Any], Any] | None:
        kind = _TYPES.get(name)
        return None if kind is None else kind.dialect_impl(self.dialect).result_processor(self.dialect, None)


class GuestResult:
    """Rows of a statement."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._names, self._rows = names, rows

    def one_or_none(self) -> Any:
        """Return the only row, or None."""
        return SimpleNamespace(**dict(zip(self._names, self._rows[0], strict=True))) if self._rows else None

    def one(self) -> Any:
        """Return the only row."""
        (row,) = self._rows
        return SimpleNamespace(**dict(zip(self._names, row, strict=True)))


@functools.lru_cache(maxsize=64)
def _compiled(
    statement: Any, dialect: sa.Dialect, names: frozenset[str]
) -> tuple[str, Mapping[str, Any], Mapping[str, Callable[[Any], Any]]]:
    """Return the text of a statement, the defaults of its parameters, and their conversions."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    processors = {
        name: process
        for name, bind in compiled.binds.items()
        if (process := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None
    }
    return compiled.string, compiled.params, processors


def _convert(process: Callable[[Any], Any] | None, value: Any) -> Any:
    converted = value if process is None else process(value)
    return str(converted) if isinstance(converted, str) else converted  # enumerations too
