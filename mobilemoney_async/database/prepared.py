"""Statements that are compiled once for each dialect and set of parameters, and executed by their text.

SQLAlchemy spends a third of a statement's time on finding what it has compiled, for each execution anew. That matters
for the statements of a create.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.dialects.sqlite import pysqlite

Convert = Callable[[Any], Any]

POSTGRESQL: sa.Dialect = psycopg.dialect()  # type: ignore[no-untyped-call]
SQLITE: sa.Dialect = pysqlite.dialect(paramstyle="named")
_OF_DRIVER = {"psycopg": POSTGRESQL, "pysqlite": SQLITE}


@attrs.frozen
class Prepared:
    """Compiled statement.

    Attributes:
        text: For the driver.
        defaults: The parameters that have a value of their own, or None.
        writers: How parameters are converted for the driver, where they have to be.
        readers: How the columns of its rows are converted.
    """

    text: str
    defaults: Mapping[str, Any]
    writers: Mapping[str, Convert]
    readers: Mapping[str, Convert]

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return all parameters as the driver takes them."""
        given = {name: parameters.get(name, default) for name, default in self.defaults.items()}
        return {name: _convert(self.writers.get(name), value) for name, value in given.items()}


@functools.lru_cache(maxsize=128)
def prepare(statement: Any, dialect: sa.Dialect, names: frozenset[str]) -> Prepared:
    """Return a statement, compiled for parameters of these names. Defaults of columns are not among them."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    writers = {
        name: process
        for name, bind in compiled.binds.items()
        if (process := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None
    }
    readers = {
        name: column.type.dialect_impl(dialect).result_processor(dialect, None) or _same
        for name, column in statement.exported_columns.items()
    }
    return Prepared(compiled.string, compiled.params, writers, readers)


def run(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> sa.CursorResult[Any]:
    """Execute a statement, prepared if this is a driver of ours; its rows are as the driver gives them."""
    dialect = _OF_DRIVER.get(connection.dialect.driver) if isinstance(connection, sa.Connection) else None
    if dialect is None:  # the merchant's own
        return connection.execute(statement, parameters)
    prepared = prepare(statement, dialect, frozenset(parameters))
    return connection.exec_driver_sql(prepared.text, prepared.values(parameters))


def _same(value: Any) -> Any:
    return value


def _convert(process: Convert | None, value: Any) -> Any:
    converted = value if process is None else process(value)
    return str(converted) if isinstance(converted, str) else converted  # enumerations too
