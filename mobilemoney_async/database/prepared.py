"""Statements that are compiled once for each dialect and set of parameters, and given to the driver as they are.

SQLAlchemy takes ten times as long around a statement as SQLite for it, and as long as psycopg. What nothing reads
before the commit is left for later, where creates that share a transaction have it executed together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.dialects.sqlite import pysqlite

Convert = Callable[[Any], Any]

_OF_DRIVER: Mapping[str, sa.Dialect] = {
    "psycopg": psycopg.dialect(),  # type: ignore[no-untyped-call]
    "pysqlite": pysqlite.dialect(paramstyle="named"),
}

_TRANSACTION = "mobilemoney_transaction"
"""Option of a connection: the `_Transaction`."""
# What lets SQLAlchemy handle an error of the driver: it has no public name for that. Without it, nothing goes past it.
_HANDLE = "_handle_dbapi_exception"
# PostgreSQL's number of the only type whose values SQLAlchemy reads by that: `float8`.
_FLOAT = 701


@attrs.frozen
class _Transaction:
    """Transaction of an engine of ours.

    Attributes:
        cursor: That of the driver for all statements, past SQLAlchemy; None where something listens to them there.
        pending: The statements that are left for later, and for each its parameters.
    """

    cursor: Any
    pending: dict[str, list[Mapping[str, Any]]] = attrs.field(factory=dict)


@attrs.frozen
class _Prepared:
    """Statement for parameters of some names.

    Attributes:
        text: For the driver.
        defaults: The values of all parameters.
        writers: By name, what converts some of them for the driver.
        columns: The names of those that it returns.
        readers: By place, what converts some of them from the driver.
    """

    text: str
    defaults: Mapping[str, Any]
    writers: Mapping[str, Convert]
    columns: Sequence[str]
    readers: Sequence[tuple[int, Convert]]

    def bind(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        given = {**self.defaults, **parameters}
        for name, write in self.writers.items():
            given[name] = write(given[name])
        # Members of enumerations are texts here, for which psycopg has another way.
        return {k: str.__str__(v) if isinstance(v, str) else v for k, v in given.items()}

    def read(self, row: Sequence[Any]) -> SimpleNamespace:
        values = list(row)
        for at, read in self.readers:
            values[at] = read(values[at])
        return SimpleNamespace(**dict(zip(self.columns, values, strict=True)))


def run(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> Any:
    """Execute a statement, and return its first row, with its columns as attributes; None if there is none."""
    transaction = _transaction(connection)
    if transaction is None:  # the merchant's own, or a mere look
        result = connection.execute(statement, parameters)
        found = result.mappings().first() if result.returns_rows else None
        return None if found is None else SimpleNamespace(**found)
    prepared = _prepare(statement, connection.dialect.driver, frozenset(parameters))
    given = prepared.bind(parameters)
    rows = _execute(connection, transaction.cursor, prepared.text, given, returns_rows=bool(prepared.columns))
    return prepared.read(rows[0]) if rows else None


def run_later(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> None:
    """Execute a statement before the commit, with all of its text in one round trip; until then nothing may read it."""
    transaction = _transaction(connection)
    if transaction is None:
        run(connection, statement, parameters)
    else:
        prepared = _prepare(statement, connection.dialect.driver, frozenset(parameters))
        transaction.pending.setdefault(prepared.text, []).append(prepared.bind(parameters))


def run_pending(connection: sa.Connection) -> None:
    """Execute the statements of `run_later`, in the order of the first one of each text."""
    transaction = _transaction(connection) or _Transaction(None)
    for text in list(transaction.pending):
        some = transaction.pending.pop(text)
        _execute(connection, transaction.cursor, text, some if len(some) > 1 else some[0])


@contextmanager
def collect_pending(connection: sa.Connection) -> Generator[None]:
    """Let the statements of `run` go past SQLAlchemy in a connection's only transaction, unless there is a listener.

    Those that it leaves for later are executed at the end of the block.
    """
    is_heard = connection.dispatch.before_cursor_execute or connection.dispatch.after_cursor_execute
    is_direct = hasattr(connection, _HANDLE) and not is_heard
    cursor = connection.connection.cursor() if is_direct else None
    connection.execution_options(**{_TRANSACTION: _Transaction(cursor)})
    yield
    run_pending(connection)


def _transaction(connection: sa.Connection) -> _Transaction | None:
    return connection.get_execution_options().get(_TRANSACTION)


def _execute(
    connection: sa.Connection, cursor: Any, text: str, given: Any, *, returns_rows: bool = False
) -> Sequence[Sequence[Any]]:
    """Execute a statement of the driver, for each set of parameters in a list, and return its rows."""
    if cursor is None:
        cursor = connection.exec_driver_sql(text, given)
        return cursor.fetchall() if returns_rows else ()
    try:
        (cursor.executemany if isinstance(given, list) else cursor.execute)(text, given)
        return cursor.fetchall() if returns_rows else ()
    except BaseException as exc:
        getattr(connection, _HANDLE)(exc, text, given, None, None)  # no cursor: it would close that
        raise


@functools.lru_cache(maxsize=128)
def _prepare(statement: Any, driver: str, names: frozenset[str]) -> _Prepared:
    dialect = _OF_DRIVER[driver]
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    kinds = {name: bind.type.dialect_impl(dialect) for bind, name in compiled.bind_names.items()}
    writers = {name: kind.bind_processor(dialect) for name, kind in kinds.items()}
    # What `returning` makes of a statement that was here keeps the columns of that one.
    columns = statement.exported_columns
    readers = [each.type.dialect_impl(dialect).result_processor(dialect, _FLOAT) for each in columns]
    filled = [each for each in statement.table.c if each.default is not None] if statement.is_insert else []
    return _Prepared(
        compiled.string,
        {**compiled.params, **{each.key: each.default.arg for each in filled if each.key in compiled.params}},
        {name: write for name, write in writers.items() if write is not None},
        columns.keys(),
        [(at, read) for at, read in enumerate(readers) if read is not None],
    )
