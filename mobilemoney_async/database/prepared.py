"""Statements that are compiled once for each dialect and set of parameters, and executed by their text.

For each execution SQLAlchemy looks for what it has compiled, which is a twentieth of the CPU of a create. What nothing
reads before the commit is left for later, where creates that share a transaction have it executed together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.dialects.sqlite import pysqlite

Convert = Callable[[Any], Any]

_OF_DRIVER: Mapping[str, sa.Dialect] = {
    "psycopg": psycopg.dialect(),  # type: ignore[no-untyped-call]
    "pysqlite": pysqlite.dialect(paramstyle="named"),
}

_PENDING = "mobilemoney_pending"
"""Option of a transaction's connection: the statements that it has left for later, and for each its parameters."""


def run(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> sa.CursorResult[Any]:
    """Execute a statement, prepared if this is an engine of ours; its rows are as the driver gives them."""
    if connection.dialect.driver not in _OF_DRIVER:  # the merchant's own
        return connection.execute(statement, parameters)
    return connection.exec_driver_sql(*_bind(connection, statement, parameters))


def run_later(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> None:
    """Execute a statement before the commit, with all of its text in one round trip; until then nothing may read it."""
    pending = connection.get_execution_options().get(_PENDING)
    if pending is None:  # the merchant's own
        run(connection, statement, parameters)
    else:
        text, given = _bind(connection, statement, parameters)
        pending.setdefault(text, []).append(given)


def run_pending(connection: sa.Connection) -> None:
    """Execute the statements of `run_later`, in the order of the first one of each text."""
    pending = connection.get_execution_options().get(_PENDING, {})
    for text in list(pending):
        some = pending.pop(text)
        connection.exec_driver_sql(text, some if len(some) > 1 else some[0])


@contextmanager
def collect_pending(connection: sa.Connection) -> Generator[None]:
    """Let a connection's only transaction leave statements for later, which are executed at the end of the block."""
    connection.execution_options(**{_PENDING: {}})
    yield
    run_pending(connection)


def _bind(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    dialect = _OF_DRIVER[connection.dialect.driver]
    text, defaults, writers = _prepare(statement, dialect, frozenset(parameters))
    given = {**defaults, **parameters}
    for name, write in writers.items():
        given[name] = write(given[name])
    # Members of enumerations are texts here, for which psycopg has another way.
    return text, {k: str(v) if isinstance(v, str) else v for k, v in given.items()}


@functools.lru_cache(maxsize=128)
def _prepare(
    statement: Any, dialect: sa.Dialect, names: frozenset[str]
) -> tuple[str, Mapping[str, Any], Mapping[str, Convert]]:
    """Return a statement's text for parameters of these names, the values of all parameters, and what converts some."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    kinds = {name: bind.type.dialect_impl(dialect) for bind, name in compiled.bind_names.items()}
    writers = {name: kind.bind_processor(dialect) for name, kind in kinds.items()}
    return compiled.string, compiled.params, {name: write for name, write in writers.items() if write is not None}
