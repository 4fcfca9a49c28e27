"""Run the benchmarks: `python benchmarks/run.py [name ...]`, all of them by default.

They need the dependency group `bench` of pyproject.toml; `nox -s bench` installs it. They measure the installed
`mobilemoney_async`; without one, the one of this checkout.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

NAMES = (
    "decode",
    "one_call",
    "construct",
    "fifty_calls",
    "import_time",
    "cli_start",
    "limiter_cost",
    "limit_use",
    "store",
    "feed",
    "observer",
    "many_accounts",
    "creates",
    "worker",
)


def main() -> int:
    """Run the given benchmarks and print the table; return the exit code: 0, also if a target was missed."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and print a table.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--write", action="store_true", help="rewrite the table in benchmarks/README.md; runs all")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if arguments.write and arguments.names:
        parser.error("--write goes with a run of all benchmarks")

    # Last on the path, so that an installed wheel is preferred to the checkout.
    sys.path.append(str(Path(__file__).parents[1]))
    report = importlib.import_module("benchmarks.report")
    rows = []
    for name in arguments.names or NAMES:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    print(report.table(rows))
    if arguments.write:
        report.write(rows, "python benchmarks/run.py --write")
    return 0


if __name__ == "__main__":
    sys.exit(main())
