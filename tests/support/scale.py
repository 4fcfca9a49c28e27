"""How much a run tests, by environment variables that `noxfile.py` sets.

| environment variable | unset | `nox -s soak`, `nox -s laws` | `nox -t nightly` |
|---|---|---|---|
| `MOBILEMONEY_TESTS_SOAK`: scale of the long tests | 0.25 | 1 | 4 |
| `MOBILEMONEY_TESTS_EXAMPLES`: random examples of the property tests | 1 | 15 | 30 |

Most tests run on each loop, and many of them on each database: on the lowest Python in all combinations. The other runs
look for what another Python or dependency changes: there each test runs, and all of them together run on each loop and
each database, but not each on all. MOBILEMONEY_TESTS_PAIRS says on which:

| value | of a test that differs only in loop and database | in |
|---|---|---|
| unset | all | `nox` |
| `even` | asyncio with SQLite and trio with PostgreSQL, of the four; both loops, where that is all | `tests_lowest` |
| `odd` | the other two of the four; both loops, where that is all | `coverage` |
| `one` | one | the Pythons between |
"""

import os
import zlib
from collections import defaultdict
from typing import Any

import pytest

_SOAK = float(os.environ.get("MOBILEMONEY_TESTS_SOAK", "0.25"))
_EXAMPLES = int(os.environ.get("MOBILEMONEY_TESTS_EXAMPLES", "1"))
_PAIR = {"anyio_backend", "store_url"}


def soak(full: int) -> int:
    """Return how many orders, kills or customers a test marked `soak` takes, of so many at full scale."""
    return max(1, round(_SOAK * full))


def examples(usual: int) -> int:
    """Return how many random examples a property test tries, of so many by default."""
    return _EXAMPLES * usual


def left_to_other_runs(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that differ from one which runs in nothing but loop and database, and run elsewhere."""
    pairs = os.environ.get("MOBILEMONEY_TESTS_PAIRS")
    if pairs is None:
        return []
    alike: dict[object, list[Any]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            # By identity: the values of a parameter are the same objects in each combination.
            others = sorted((name, id(value)) for name, value in item.callspec.params.items() if name not in _PAIR)
            alike[item.nodeid.partition("[")[0], *others].append(item)
    return [item for group in alike.values() for item in group if not _is_kept(item, group, pairs)]


def _is_kept(item: Any, group: list[Any], pairs: str) -> bool:
    if pairs == "one":
        return item is group[zlib.crc32(group[0].nodeid.encode()) % len(group)]
    if len(group) != 4:
        return True
    on = item.callspec.params
    is_even = (on["anyio_backend"], on["store_url"]) in {("asyncio", "sqlite"), ("trio", "postgresql")}
    return is_even == (pairs == "even")
