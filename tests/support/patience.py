"""How tests wait, on the real clock, for what is bound to happen."""

import inspect
import time
from collections.abc import Awaitable, Callable

import anyio

from tests.support.scale import longest

# Seconds: more than any machine needs, and less than pytest's `faulthandler_timeout`. It is no expectation of how long
# something takes, which no test has.
PATIENCE = longest(600.0)  # real time: the one limit


async def until(condition: Callable[[], object | Awaitable[object]], *, pause: float = 0.01) -> None:
    """Wait until something holds, which then stays so: what may pass is missed on a busy machine."""
    with anyio.fail_after(PATIENCE):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await anyio.sleep(pause)  # real time: this is the one place that waits so


def wait_until(condition: Callable[[], object], *, pause: float = 0.01) -> None:
    """Do the same in a thread."""
    end = time.monotonic() + PATIENCE  # real time: of its own limit
    while not condition():
        assert time.monotonic() < end, "it never came true"  # real time: of its own limit
        time.sleep(pause)  # real time: this is the one place that waits so
