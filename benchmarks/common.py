"""Measuring fairly on a shared machine: contestants take turns, and are compared within each turn.

A round measures every contestant once. A ratio is the median of the rounds' own ratios. So if other work slows the
machine down for a while, it slows both sides. Every cost is in seconds for one operation.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

MICRO = 1e6
ROOT = Path(__file__).parents[1]
SMALL = "MOBILEMONEY_BENCH_SMALL" in os.environ
"""Whether each benchmark runs at its smallest size."""

EARLIER = "79ee875"
"""The commit whose package some benchmarks run in turn with this one: before the simpler group commit."""

T = TypeVar("T")

Contestant = Callable[[], float]
"""Contestant: does its work once and returns the cost of one operation."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        case: Name of the measurement.
        value: What was measured.
        against: Name of the comparison, with its value.
        target: The ratio to reach, or the value where there is no ratio; empty for a line that only informs.
        ratio: Of the value and that of the comparison, or their difference.
        reached: True if the target was reached; None without one.
    """

    case: str
    value: str
    against: str = ""
    target: str = ""
    ratio: str = ""
    reached: bool | None = None


def size(full: T, least: T) -> T:
    """Return the size of a benchmark."""
    return least if SMALL else full


@dataclass(frozen=True, slots=True)
class Figures:
    """The costs of some contestants, by name, each a list over the same rounds."""

    rounds: Mapping[str, list[float]]

    def cost(self, name: str) -> float:
        """Return the median cost."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the cost of one contestant, divided by the cost of another."""
        pairs = zip(self.rounds[name], self.rounds[other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def difference(self, name: str, other: str) -> float:
        """Return the cost of one contestant, less the cost of another, seconds."""
        pairs = zip(self.rounds[name], self.rounds[other], strict=True)
        return statistics.median(mine - theirs for mine, theirs in pairs)


def interleave(contestants: Mapping[str, Contestant], rounds: int) -> Figures:
    """Measure the contestants in turn: A B C, C B A, A B C, …; a first round warms up (if full) and is not counted.

    Args:
        contestants: By name.
        rounds: How many to count.
    """
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    # The objects of the imports are no contestant's cost: keep them out of the collector's passes.
    gc.collect()
    gc.freeze()
    try:
        for number in range(size(0, 1), rounds + 1):
            for name in list(contestants)[:: 1 if number % 2 else -1]:
                gc.collect()
                cost = contestants[name]()
                if number:
                    figures[name].append(cost)
    finally:
        gc.unfreeze()
    return Figures(figures)


def repeated(work: Callable[[], object], number: int, clock: Clock = time.process_time) -> Contestant:
    """Return a contestant that runs one operation many times."""

    def measure() -> float:
        started = clock()
        for _ in repeat(None, number):
            work()
        return (clock() - started) / number

    return measure


def repeated_async(
    runner: asyncio.Runner,
    work: Callable[[], Awaitable[Any]],
    number: int,
    *,
    at_once: int = 1,
    clock: Clock = time.process_time,
) -> Contestant:
    """Return a contestant that awaits one operation many times, some of them at once.

    Args:
        runner: The event loop that all contestants of a benchmark share.
        work: One operation.
        number: How many of them, a multiple of `at_once`.
        at_once: How many side by side.
        clock: The CPU time of this process, or the time of day.
    """

    async def one_after_another() -> None:
        for _ in repeat(None, number // at_once):
            await work()

    async def measure() -> float:
        started = clock()
        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
        return (clock() - started) / number

    return lambda: runner.run(measure())


@contextmanager
def event_loop() -> Iterator[tuple[asyncio.Runner, AsyncExitStack]]:
    """Yield an event loop for all contestants of a benchmark, and a stack that closes their clients at the end."""
    with asyncio.Runner() as runner:
        closing = AsyncExitStack()
        try:
            yield runner, closing
        finally:
            runner.run(closing.aclose())


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the checkout, whose package comes last on the path, as in `run.py`."""
    program = f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-P", "-c", program, *arguments]


def in_process(module: str, *arguments: str, package: str = "") -> Any:
    """Run a module in a process of its own, and return what it prints as JSON.

    Args:
        module: Its name.
        arguments: Those of the process.
        package: A folder with another `mobilemoney_async`, which takes the place of this one.
    """
    command = module_command(module, *arguments)
    env = {**os.environ, "PYTHONPATH": package} if package else None
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=1800, env=env).stdout)


def earlier_package(folder: str) -> str | None:
    """Put the package of commit `EARLIER` into a folder, and return it; None if this is no clone with its history."""
    archive = subprocess.run(
        ["git", "archive", EARLIER, "mobilemoney_async"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        return None
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


def at_most(ratio: float, limit: float) -> tuple[str, bool]:
    """Return a ratio as text for the table, and whether it is small enough."""
    return f"{ratio:.{2 if ratio >= 0.1 else 3}f}x", ratio <= limit


def at_least(ratio: float, limit: float) -> tuple[str, bool]:
    """Return a ratio as text for the table, and whether it is large enough."""
    return f"{ratio:.{2 if ratio < 10 else 1}f}x", ratio >= limit


def plain_url(url: str) -> str:
    """Return the URL of a PostgreSQL database as psycopg takes it."""
    import sqlalchemy as sa

    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def connect(url: str, *, autocommit: bool = False) -> Any:
    """Open a session of a PostgreSQL database, without the store's own settings."""
    import psycopg

    return psycopg.connect(plain_url(url), autocommit=autocommit)


def ask(url: str, query: str) -> Any:
    """Return the first value that a PostgreSQL database answers to a query."""
    with closing(connect(url)) as connection:
        return (connection.execute(query).fetchone() or [None])[0]


def sync(url: str) -> None:
    """Let a PostgreSQL server of the tests write its commits to the disk."""
    with closing(connect(url, autocommit=True)) as connection:
        connection.execute("ALTER SYSTEM SET fsync = on")
        connection.execute("SELECT pg_reload_conf()")
