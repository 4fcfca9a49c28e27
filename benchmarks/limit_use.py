"""Use of the limit under saturation, and the requests that a service would reject, in virtual time."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence

import anyio
import anyio.lowlevel
from aiolimiter import AsyncLimiter

from benchmarks.common import Row, size
from benchmarks.readings import bucket, fixed_minutes, sliding_window
from mobilemoney_async import RateLimiter
from mobilemoney_async.testing import run_virtual

_DURATION = 600.0
_HOUR, _WORKERS, _JITTERED_RUNS = size((3600.0, 100, 20), (_DURATION, 2, 1))
_JITTER = 0.25

# More than this is always rejected by the sliding window: 60 in each of the ten minutes.
_ALLOWED = 600

_READINGS = {"bucket": bucket, "sliding window": sliding_window, "fixed minutes": fixed_minutes}

Limiter = RateLimiter | AsyncLimiter


async def _saturate(make: Callable[[], Limiter]) -> list[float]:
    """Return the times of the grants in an hour, seconds, while a hundred workers always wanted to send."""
    limiter = make()
    started = anyio.current_time()
    grants: list[float] = []

    async def work() -> None:
        while True:
            await limiter.acquire()
            grants.append(anyio.current_time() - started)
            await anyio.lowlevel.checkpoint()

    with anyio.move_on_after(_HOUR):
        async with anyio.create_task_group() as tasks:
            for _ in range(_WORKERS):
                tasks.start_soon(work)
    return [at for at in grants if at < _HOUR]


def _arrivals(grants: Sequence[float], seed: int) -> list[float]:
    """Return the times at which requests reach the service, each after a random delay."""
    chance = random.Random(seed)
    return sorted(at + chance.uniform(0, _JITTER) for at in grants)


def _rejections(grants: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the rejections by each reading without jitter, and on average over many runs with jitter."""
    exact = [float(reading(grants)) for reading in _READINGS.values()]
    jittered = [[reading(_arrivals(grants, seed)) for reading in _READINGS.values()] for seed in range(_JITTERED_RUNS)]
    return exact, [statistics.mean(column) for column in zip(*jittered, strict=True)]


def _in_words(rejected: Sequence[float], digits: int) -> str:
    return ", ".join(f"{reading} {count:.{digits}f}" for reading, count in zip(_READINGS, rejected, strict=True))


def run() -> Iterator[Row]:
    """Count grants and rejections, ours and aiolimiter's."""
    hour = run_virtual(_saturate, RateLimiter)
    grants = [at for at in hour if at < _DURATION]
    use, steady = len(grants) / _ALLOWED, len(hour) / _ALLOWED * _DURATION / _HOUR
    exact, shaken = _rejections(hour)
    limit, least, readings = "60 a minute", "at least 99 %", "every reading"
    yield Row("use of the limit, 10 min of saturation", f"{use:.1%}", limit, least, reached=use >= 0.99)
    yield Row("the same over an hour", f"{steady:.1%}", limit, least, reached=steady >= 0.99)
    yield Row("rejected in that hour", _in_words(exact, 0), readings, "0", reached=not any(exact))
    yield Row("the same with 0 to 250 ms of jitter", _in_words(shaken, 1), readings, "0", reached=not any(shaken))
    yield from _theirs(10, 10)
    yield from _theirs(60, 60)


def _theirs(burst: int, period: float) -> Iterator[Row]:
    name = f"aiolimiter({burst}, {period:g})"
    grants = [at for at in run_virtual(_saturate, lambda: AsyncLimiter(burst, period)) if at < _DURATION]
    exact, shaken = _rejections(grants)
    yield Row(f"10 min of {name}", f"{len(grants) / _ALLOWED:.1%}", "60 a minute")
    yield Row(f"rejected of {name}", _in_words(exact, 0), "every reading")
    yield Row(f"rejected of {name} with jitter", _in_words(shaken, 1), "every reading")
