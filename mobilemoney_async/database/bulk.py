"""Statements of several pieces of work that share a transaction, executed at once.

In a busy process a statement costs its round trip far more than its work. So what the pieces of a group read first is
read for all of them by one statement each, and what they write without reading it again is written by one statement
each, at the end. Such a statement gets its rows of values as one parameter, JSON, which both databases can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import attrs
import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import visitors

_OPTION = "mobilemoney_bulk"
_ROWS = "given"
_NUL = r"\u0000"

Values = Mapping[str, Any]
"""Parameters of a statement, by name."""

Ask = tuple["Statement", Values]
"""Statement that a piece of work executes first, with its parameters."""


@attrs.define(eq=False)
class Statement:
    """Statement for one row of values, or for many.

    Attributes:
        one: The statement for one row. Its bound parameters are the row: each has a type.
        by: The parameters that tell the answers to several rows apart; empty for one without an answer. What returns
            rows by itself, such as an INSERT, returns them as columns.
        place: Returns the values of these parameters in a row of values.
        place_of: Returns them in an answer.
    """

    one: Any
    by: tuple[str, ...] = ()
    place: Callable[[Values], Any] = attrs.field(init=False)
    place_of: Callable[[sa.Row[Any]], Any] = attrs.field(init=False)
    _many: dict[str, tuple[Any, Callable[[Sequence[Values]], str]]] = attrs.field(factory=dict, init=False)

    def execute(self, connection: sa.Connection, rows: Sequence[Values]) -> sa.CursorResult[Any]:
        """Execute it for many rows."""
        dialect = connection.dialect
        if dialect.name not in self._many:
            self._many[dialect.name] = self._make_many(dialect)
        statement, encode = self._many[dialect.name]
        return connection.execute(statement, {_ROWS: encode(rows)})

    @place.default
    def _make_place(self) -> Callable[[Values], Any]:
        return itemgetter(*self.by) if self.by else tuple

    @place_of.default
    def _make_place_of(self) -> Callable[[sa.Row[Any]], Any]:
        return attrgetter(*self.by) if self.by else tuple

    def _make_many(self, dialect: sa.Dialect) -> tuple[Any, Callable[[Sequence[Values]], str]]:
        types = {
            each.key: each.type
            for each in visitors.iterate(self.one)
            if isinstance(each, sa.BindParameter) and each.required
        }
        given = _given(dialect.name, types)
        statement: Any = over(self.one, given)
        if isinstance(statement, sa.Select):
            known = statement.selected_columns
            statement = statement.add_columns(*(given.c[name] for name in self.by if name not in known))
        processors = {name: each.dialect_impl(dialect).bind_processor(dialect) for name, each in types.items()}

        def encode(rows: Sequence[Values]) -> str:
            plain = [
                {name: row[name] if process is None else process(row[name]) for name, process in processors.items()}
                for row in rows
            ]
            text = msgspec.json.encode(plain).decode()
            if _NUL in text:
                raise ValueError("SQLite ends a text of JSON at its first NUL")  # each piece of work runs alone
            return text

        return statement, encode


def over(statement: Any, table: sa.FromClause) -> Any:
    """Return a statement with the columns of a table in place of the parameters of their names."""

    def replace(element: Any, **_: Any) -> Any:
        is_parameter = isinstance(element, sa.BindParameter) and element.key in table.c
        return table.c[element.key] if is_parameter else None

    return visitors.replacement_traverse(statement, {}, replace)


def _given(dialect: str, types: Mapping[str, sa.types.TypeEngine[Any]]) -> sa.FromClause:
    """Return the rows of values as a table."""
    if dialect == "postgresql":
        rows = sa.func.json_to_recordset(sa.cast(sa.bindparam(_ROWS, type_=sa.Text), postgresql.JSON))
        columns = (sa.column(name, each) for name, each in types.items())
        return rows.table_valued(*columns).render_derived(name=_ROWS, with_types=True)
    value = sa.func.json_each(sa.bindparam(_ROWS, type_=sa.Text)).table_valued("value").c.value
    fields = (
        sa.type_coerce(sa.func.json_extract(value, sa.text(f"'$.{name}'")), each).label(name)
        for name, each in types.items()
    )
    return sa.select(*fields).subquery(_ROWS)


class Bulk:
    """What the pieces of one transaction have asked for, and what they still have to write.

    Attributes:
        has_asked: Whether all have asked, so that their rows are locked.
        clock: The time of the database and that of the monotonic clock, read once after that, seconds; or None.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._answers: dict[tuple[Statement, Any], Any] = {}
        self._later: dict[Statement, dict[tuple[Any, ...], Values]] = {}
        self.has_asked: bool = False
        self.clock: tuple[float, float] | None = None
        connection.execution_options(**{_OPTION: self})

    def ask(self, asks: Iterable[Ask]) -> None:
        """Execute the first statements of all pieces, each of them once."""
        asked: dict[Statement, list[Values]] = {}
        for statement, values in asks:
            asked.setdefault(statement, []).append(values)
        for statement, rows in asked.items():
            found = {statement.place_of(row): row for row in statement.execute(self._connection, rows)}
            for values in rows:
                place = statement.place(values)
                self._answers[statement, place] = found.get(place)
        self.has_asked = True

    def answer(self, statement: Statement, values: Values) -> Any:
        """Return the row of a statement, or None; read now unless it was asked for, and has not been taken yet."""
        place = (statement, statement.place(values))
        if place in self._answers:
            return self._answers.pop(place)
        self.flush()
        return self._connection.execute(statement.one, values).one_or_none()

    def write(self, statement: Statement, row: tuple[Any, ...], values: Values) -> None:
        """Execute a statement that changes a row at the end, or before anything else changes or reads the same row."""
        statements = list(self._later)
        if statement in self._later and any(
            row in self._later[each] for each in statements[statements.index(statement) :]
        ):
            self.flush()  # else what comes later would be written sooner
        self._later.setdefault(statement, {})[row] = values

    def flush(self) -> None:
        """Write what is left to write."""
        later, self._later = self._later, {}
        for statement, rows in later.items():
            statement.execute(self._connection, list(rows.values()))


def bulk_of(connection: sa.Connection) -> Bulk | None:
    """Return the bulk of a transaction that several pieces of work share, or None."""
    found: Bulk | None = connection.get_execution_options().get(_OPTION)
    return found


def answer(connection: sa.Connection, statement: Statement, values: Values) -> Any:
    """Return the row of a statement, or None; see `Bulk.answer`."""
    bulk = bulk_of(connection)
    if bulk is not None:
        return bulk.answer(statement, values)
    return connection.execute(statement.one, values).one_or_none()


def write(connection: sa.Connection, statement: Statement, row: tuple[Any, ...], values: Values) -> None:
    """Execute a statement that changes a row and has no answer; see `Bulk.write`."""
    bulk = bulk_of(connection)
    if bulk is not None:
        bulk.write(statement, row, values)
    else:
        connection.execute(statement.one, values)
