"""Wrong arguments, for tests that each is refused by its name."""

from collections.abc import Iterable
from typing import Any


def wrong(**values: Iterable[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return each value with the name of its argument: `wrong(limit=[0, "1"])` has two."""
    return [(name, {name: value}) for name, given in values.items() for value in given]
