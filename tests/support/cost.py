"""The limit of the fast lane: a test takes at most 0.1 s of processor time.

That is two loops of calibration on the machine where the limit was chosen. A test fails when it takes more than three
times as much, by loops that are timed right then in the same process: a slow or busy machine fails nothing. A test that
needs more is marked `slow`, or `costly` with the reason that keeps it in the lane.
"""

import importlib
import os
import time

import pytest

LIMIT = 0.1
_LOOPS = 2.0
_TOLERANCE = 3.0
_added = 0.0
# What many tests import first: the import is not the cost of the test that happens to come first.
_FRAMEWORKS = (
    "aiohttp",
    "fastapi",
    "opentelemetry.sdk.metrics",
    "psycopg",
    "pydantic",
    "rich.console",
    "sqlalchemy.ext.asyncio",
    "starlette.testclient",
    "typer.testing",
    "uvicorn",
)


def import_frameworks() -> None:
    """Import the libraries whose import would exceed the limit."""
    for name in _FRAMEWORKS:
        importlib.import_module(name)


def add(seconds: float) -> None:
    """Count the processor seconds of a process that is no child of this one, but belongs to its test."""
    global _added  # noqa: PLW0603 (of this process, as the processor's time is)
    _added += seconds


def spent() -> float:
    """Return the processor seconds that this process, its children that have ended and those added have taken."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _added


def check(item: pytest.Item, seconds: float) -> None:
    """Fail a test of the fast lane that took more than the limit."""
    if any(map(item.get_closest_marker, ("slow", "costly"))):
        return
    if seconds > LIMIT and seconds > _TOLERANCE * (limit := _LOOPS * max(_loop() for _ in range(3))):
        pytest.fail(
            f"the test took {seconds:.2f} s of processor time, more than {_TOLERANCE:.0f} times its limit, which is "
            f"{limit:.2f} s here: make it cheaper, or mark it `slow`",
            pytrace=False,
        )


def _loop() -> float:
    """Return the processor seconds of one loop of calibration."""
    start, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return time.process_time() - start
