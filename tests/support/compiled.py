"""What SQLAlchemy compiles, once for all stores: each test opens its own, and would compile every statement again."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache


class _Compiled(LRUCache[Any, Any]):
    """Statements by what they are and by the kind of their dialect, not by the dialect of one engine."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_kind(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_of_kind(key), value)


def _of_kind(key: Any) -> Any:
    dialect, *rest = key
    return (type(dialect), dialect.paramstyle, dialect._json_serializer, dialect._json_deserializer, *rest)


def share() -> None:
    """Let all engines of this process use what one of them has compiled."""
    compiled = _Compiled(5_000)
    sa.Engine._compiled_cache = property(lambda _: compiled, lambda *_: None)  # type: ignore[assignment]
