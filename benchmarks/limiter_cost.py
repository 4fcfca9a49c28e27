"""Cost of the limiter itself: a queue of 10,000 drained, and a place that is free. CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import repeat

from aiolimiter import AsyncLimiter

from benchmarks.common import MICRO, Row, at_most, interleave, size
from mobilemoney_async import RateLimiter

_ROUNDS, _WAITERS, _FREE = size((9, 10_000, 20_000), (1, 100, 100))
_PER_SECOND = 10_000
_BURST = 10

Limiter = RateLimiter | AsyncLimiter


async def _drain(make: Callable[[], Limiter]) -> float:
    limiter = make()
    started = time.process_time()
    await asyncio.gather(*(limiter.acquire() for _ in range(_WAITERS)))
    return time.process_time() - started


async def _free_places(make: Callable[[], Limiter]) -> float:
    limiter = make()
    started = time.process_time()
    for _ in repeat(None, _FREE):
        await limiter.acquire()
    return (time.process_time() - started) / _FREE


def _ours() -> RateLimiter:
    return RateLimiter(60 * _PER_SECOND, _BURST, jitter=0)


def _theirs() -> AsyncLimiter:
    return AsyncLimiter(_BURST, _BURST / _PER_SECOND)


def run() -> list[Row]:
    """Compare with aiolimiter at the same rate and burst."""
    with asyncio.Runner() as runner:
        drained = interleave(
            {"ours": lambda: runner.run(_drain(_ours)), "theirs": lambda: runner.run(_drain(_theirs))}, _ROUNDS
        )
        free = interleave(
            {
                "ours": lambda: runner.run(_free_places(lambda: RateLimiter(60_000_000, 1_000_000))),
                "theirs": lambda: runner.run(_free_places(lambda: AsyncLimiter(1_000_000, 1))),
            },
            3 * _ROUNDS,
        )
    return [
        Row(
            "10,000 limiter waiters drained",
            f"{drained.cost('ours'):.3f} s",
            f"aiolimiter, {drained.cost('theirs'):.3f} s",
            "at most 0.55x",
            *at_most(drained.ratio("ours", "theirs"), 0.55),
        ),
        Row(
            "a free acquire",
            f"{free.cost('ours') * MICRO:.2f} µs",
            f"aiolimiter, {free.cost('theirs') * MICRO:.2f} µs",
            "at most 1.5x",
            *at_most(free.ratio("ours", "theirs"), 1.5),
        ),
    ]
