"""Run the benchmarks: `python benchmarks/run.py [name ...]`, all of them by default.

They need the dependency group `bench` of pyproject.toml; `nox -s bench` installs it. They measure the installed
`mobilemoney_async`; without one, the one of this checkout. Each row is in results.json as soon as it is measured, and
the table of README.md is made from that. MOBILEMONEY_BENCH_SMALL=1 shows that they run, and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # last, so that an installed wheel is preferred to the checkout

from benchmarks import report
from benchmarks.common import SMALL, Row

# By name, the code below mobilemoney_async that it measures.
BENCHMARKS = {
    "decode": ("contract",),
    "one_call": ("client.py", "calls", "contract", "resources"),
    "construct": ("client.py", "calls"),
    "fifty_calls": ("client.py", "calls", "contract", "resources"),
    "import_time": ("__init__.py", "client.py", "errors.py", "values.py", "calls", "contract", "resources"),
    "cli_start": ("cli",),
    "limiter_cost": ("calls/bucket.py", "calls/limiter.py"),
    "limit_use": ("calls/bucket.py", "calls/limiter.py"),
    "store": ("calls", "database", "payments", "sharing"),
    "feed": ("database", "payments"),
    "observer": ("database", "payments", "polling"),
    "many_accounts": ("merchants", "calls", "database", "payments", "sharing"),
    "creates": ("merchants", "calls", "database", "payments", "sharing"),
    "worker": ("merchants", "database", "payments", "polling", "sharing"),
    "false_alarms": ("payments",),
}


def main() -> int:
    """Run benchmarks; return the exit code: 1 if one failed, but 0 if a target was missed."""
    parser = argparse.ArgumentParser(description="Run the benchmarks; README.md has their table.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or BENCHMARKS
    if unknown := sorted({*names} - {*BENCHMARKS}):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    code = {name: tuple(f"mobilemoney_async/{path}" for path in paths) for name, paths in BENCHMARKS.items()}
    stored = report.load()
    results = {name: stored.get(name, []) for name in BENCHMARKS}
    has_failed = False
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        for rows in attempt(name, [row for row in results[name] if not _is_failure(name, row)]):
            results[name] = rows
            if not SMALL:
                report.save(results)
        has_failed |= any(_is_failure(name, row) for row in results[name])
        if not SMALL:
            report.show(results, code)
    return int(has_failed)


def attempt(name: str, earlier: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Run one benchmark; after each of its rows, yield those so far and what is left of an earlier run.

    A failure is a row, too: whatever it is, the other benchmarks go on.
    """
    rows: list[dict[str, Any]] = []
    try:
        for row in importlib.import_module(f"benchmarks.{name}").run():
            print(f"  {row.case}: {row.value} {row.ratio}".rstrip(), flush=True)
            rows.append(report.entry(row))
            yield [*rows, *earlier[len(rows) :]]
        yield rows
    except Exception as exc:  # noqa: BLE001 (the traceback is printed)
        traceback.print_exc()
        why = f"{type(exc).__name__}: {exc.name}" if isinstance(exc, ImportError) else type(exc).__name__
        yield [*rows, report.entry(Row(f"{name} failed", why, reached=False)), *earlier[len(rows) :]]


def _is_failure(name: str, row: dict[str, Any]) -> bool:
    return bool(row["case"] == f"{name} failed")


if __name__ == "__main__":
    sys.exit(main())
