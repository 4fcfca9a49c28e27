"""How much a run tests, by environment variables that `noxfile.py` sets.

| environment variable | unset | in other sessions |
|---|---|---|
| `MOBILEMONEY_TESTS_SOAK`: scale of the long tests | 0.25 | `soak` 1, `nightly` 4 |
| `MOBILEMONEY_TESTS_EXAMPLES`: examples of the property tests, times | 1 | `nightly` 30 |
| `MOBILEMONEY_TESTS_SEARCH`: draw new examples, and print how to repeat a failure | no | yes in `nightly` |
| `MOBILEMONEY_TESTS_LIMIT`: fail a quick test that is not quick (`tests/support/cost.py`) | no | yes in `fast` |

Most tests run on each loop, and many of them on each database. MOBILEMONEY_TESTS_PAIRS says on which:

| value | of a test that differs only in loop and database | of a slow test that has neither | in |
|---|---|---|---|
| unset | all | all | `soak`, `nightly` |
| `even` | asyncio with SQLite and trio with PostgreSQL, or one of two | about half | `fast`, `slow` |
| `odd` | those that `even` leaves out | those that `even` leaves out | `lowest`, `slow` |
| `one` | one | all | `httpx2` |
"""

import itertools
import operator
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_SOAK = float(os.environ.get("MOBILEMONEY_TESTS_SOAK", "0.25"))
_EXAMPLES = int(os.environ.get("MOBILEMONEY_TESTS_EXAMPLES", "1"))
_PAIR = {"anyio_backend": ("asyncio", "trio"), "store_url": ("sqlite", "postgresql")}


def soak(full: int) -> int:
    """Return how many orders, kills or customers a test marked `soak` takes, of so many at full scale."""
    return max(1, round(_SOAK * full))


def longest(usual: float) -> float:
    """Return a limit of time that long tests at several times their scale keep too."""
    return max(1.0, _SOAK) * usual


def examples(usual: int) -> int:
    """Return how many random examples a property test tries, of so many by default."""
    return _EXAMPLES * usual


def crossed(*values: Sequence[Any]) -> list[Any]:
    """Return all combinations of several arguments' values, of which the quick ones have each value at least once."""
    longest = max(map(len, values))
    quick = {tuple(number % len(each) for each in values) for number in range(longest)}
    places = itertools.product(*(range(len(each)) for each in values))
    return [
        pytest.param(*map(operator.getitem, values, place), marks=[] if place in quick else [pytest.mark.slow])
        for place in places
    ]


def left_to_other_runs(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that run elsewhere: repetitions on another loop or database, and half of the slow tests."""
    pairs = os.environ.get("MOBILEMONEY_TESTS_PAIRS")
    if pairs is None:
        return []
    groups = _alike(item for item in items if not item.get_closest_marker("once"))  # they have no second run
    return [item for group in groups for item in group if not _is_kept(item, group, pairs)]


def spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests in an order in which each worker's share, of equal pieces of the list, begins with long ones."""
    long = list(filter(_is_long, items))
    others = itertools.filterfalse(_is_long, items)
    ordered: list[pytest.Item] = []
    for number in range(workers):
        ordered += long[number::workers]
        ordered += itertools.islice(others, max(0, len(items) * (number + 1) // workers - len(ordered)))
    return ordered


def _is_long(item: pytest.Item) -> bool:
    """Tell whether a test is a long one, or one of programs and files that is slow."""
    return any(all(map(item.get_closest_marker, names)) for names in (["soak"], ["once", "slow"]))


def repetitions_of_costly_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests marked `costly` that differ from another one, a cheaper one, in loop and database alone."""
    groups = _alike(item for item in items if item.get_closest_marker("costly"))
    return [item for group in groups for item in group if item is not min(group, key=_costs)]


def _costs(item: pytest.Item) -> tuple[bool, str]:
    return "postgresql" in item.nodeid, item.nodeid


def _alike(items: Iterable[Any]) -> Iterable[list[Any]]:
    """Return tests in groups that differ in nothing but loop and database."""
    groups: dict[object, list[Any]] = defaultdict(list)
    for item in items:
        # By its name: pytest's indices count on where a value has no hash.
        spec = getattr(item, "callspec", None)
        parts = spec.id.split("-") if spec is not None else []
        for name, words in _PAIR.items():
            if spec is not None and name in spec.params and (found := [each for each in parts if each in words]):
                parts.remove(found[0])
        groups[item.nodeid.partition("[")[0], *parts].append(item)
    return groups.values()


def _is_kept(item: Any, group: list[Any], pairs: str) -> bool:
    chance = zlib.crc32(group[0].nodeid.encode())
    if pairs == "one":
        return item is group[chance % len(group)]
    if len(group) == 1:
        return item.get_closest_marker("slow") is None or chance % 2 == (pairs == "odd")
    if len(group) == 2:
        is_even = group.index(item) == chance % 2
    else:
        on = item.callspec.params
        is_even = (on["anyio_backend"], on["store_url"]) in {("asyncio", "sqlite"), ("trio", "postgresql")}
    return is_even == (pairs == "even")
