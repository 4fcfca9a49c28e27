"""Statements that are compiled once for each dialect and set of parameters, and executed by their text.

For each execution SQLAlchemy looks for what it has compiled, which is a twentieth of the CPU of a create.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.dialects.sqlite import pysqlite

Convert = Callable[[Any], Any]

_OF_DRIVER: Mapping[str, sa.Dialect] = {
    "psycopg": psycopg.dialect(),  # type: ignore[no-untyped-call]
    "pysqlite": pysqlite.dialect(paramstyle="named"),
}


def run(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> sa.CursorResult[Any]:
    """Execute a statement, prepared if this is an engine of ours; its rows are as the driver gives them."""
    dialect = _OF_DRIVER.get(connection.dialect.driver)
    if dialect is None:  # the merchant's own
        return connection.execute(statement, parameters)
    text, defaults, writers = _prepare(statement, dialect, frozenset(parameters))
    given = {**defaults, **parameters}
    for name, write in writers.items():
        given[name] = write(given[name])
    # Members of enumerations are texts here, for which psycopg has another way.
    return connection.exec_driver_sql(text, {k: str(v) if isinstance(v, str) else v for k, v in given.items()})


@functools.lru_cache(maxsize=128)
def _prepare(
    statement: Any, dialect: sa.Dialect, names: frozenset[str]
) -> tuple[str, Mapping[str, Any], Mapping[str, Convert]]:
    """Return a statement's text for parameters of these names, the values of all parameters, and what converts some."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    kinds = {name: bind.type.dialect_impl(dialect) for bind, name in compiled.bind_names.items()}
    writers = {name: kind.bind_processor(dialect) for name, kind in kinds.items()}
    return compiled.string, compiled.params, {name: write for name, write in writers.items() if write is not None}
