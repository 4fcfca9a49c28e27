"""How the work on a text grows with its length."""

import time
from collections.abc import Callable


def is_linear(work: Callable[[int], object], small: int = 1_000) -> bool:
    """Return whether work on sixteen times the size takes some sixteen times the CPU time, not its square, 256 times.

    Args:
        work: From the size.
        small: The smaller size.
    """
    return _spent(work, 16 * small) < 100 * _spent(work, small)


def _spent(work: Callable[[int], object], size: int) -> int:
    """Return the CPU time of this thread, nanoseconds: the least of some tries."""
    took = []
    for _ in range(5):
        began = time.thread_time_ns()
        work(size)
        took.append(time.thread_time_ns() - began)
    return min(took)
