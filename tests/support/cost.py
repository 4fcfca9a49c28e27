"""The limit of the fast lane: a test takes at most 0.1 s of processor time.

That is two loops of calibration on the machine where the limit was chosen. A test fails when it takes more than six
times as much, by loops that are timed right then in the same process: a slow or busy machine fails nothing. It slows
tests, which use much memory, up to twice as much as the loops, which use none. A test that needs more is marked `slow`,
or `costly` with the reason that keeps it in the lane.
"""

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

LIMIT = 0.1
_LOOPS = 2.0
_TOLERANCE = 6.0
_added = _collected = _collecting_since = 0.0


@given(st.integers() | st.text())
def prepare_properties(_: object) -> None:
    """Let Hypothesis read all modules for constants, which is not the cost of the property that is tried first."""


def add(seconds: float) -> None:
    """Count the processor seconds of a process that is no child of this one, but belongs to its test."""
    global _added  # noqa: PLW0603 (of this process, as the processor's time is)
    _added += seconds


def spent() -> float:
    """Return the processor seconds that this process, its children that have ended and those added have taken.

    Without collections of garbage: they are of all that earlier tests have left.
    """
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _added - _collected


def _note_collection(phase: str, info: dict[str, int]) -> None:
    """Count the time of a collection at its end: another thread may ask for the sum in the middle of one."""
    global _collected, _collecting_since  # noqa: PLW0603 (of this process)
    if phase == "start":
        _collecting_since = time.process_time()
    else:
        _collected += time.process_time() - _collecting_since


gc.callbacks.append(_note_collection)


@contextmanager
def limited(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the fast lane that takes more than the limit.

    A test during which something is imported is not judged: the import is not its own cost, but of whichever is first.
    """
    before, modules = spent(), len(sys.modules)
    yield
    seconds = spent() - before
    if len(sys.modules) > modules or any(map(item.get_closest_marker, ("slow", "costly"))):
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
