"""Types of columns that mean the same on both databases, and let them plan statements well."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa


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
        if value is None or value.tzinfo is not None:
            return value and value.astimezone(UTC)
        # A merchant's own connection may read times so: only those that it shows may be wrong, not what is queued.
        return value.replace(tzinfo=getattr(dialect, "zone_of_times", None) or UTC).astimezone(UTC)


class Word(sa.Text):
    """Text with few values, which are parts of statements.

    As parameters they would hide which partial index fits: SQLite plans such a statement again at each execution.
    """

    class Comparator(sa.Text.Comparator[str]):
        """Comparison with members of enumerations."""

        def operate(self, op: Any, *other: Any, **kwargs: Any) -> Any:
            """Return an operation whose words are parts of the statement."""
            return super().operate(op, *map(_in_place, other), **kwargs)

    comparator_factory: Any = Comparator


def _in_place(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [*map(_in_place, value)]
    return sa.literal_column(f"'{value}'", sa.Text) if isinstance(value, StrEnum) else value
