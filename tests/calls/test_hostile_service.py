"""The law of hostile answers: a value or one of our errors, in time, in little memory, with a harmless text."""

import json

import pytest

from tests.calls.ways import WAYS
from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.scale import soak
from tests.support.warm import warm

pytestmark = pytest.mark.soak

# Each way on one loop, by turns; at full scale on both. aiohttp has asyncio alone.
LOOPS = {way: ("asyncio",) if way == "aiohttp" else ("asyncio", "trio") for way in WAYS}
PAIRS = [
    (loop, way)
    for number, (way, loops) in enumerate(LOOPS.items())
    for loop in (loops if soak(2) == 2 else [loops[number % len(loops)]])
]


@pytest.mark.parametrize(("loop", "way"), PAIRS)
def test_any_answer_ends_well(loop: str, way: str) -> None:
    """Any status, shape, framing, compression and size: the program says what it tries, and what the law is."""
    count = 0 if soak(4) == 1 else soak(1_500)
    program = "from tests.calls.hostile_service import start; start()"
    done = warm("tests.calls.hostile_service", "trio", "aiohttp").run(
        program, way, loop, str(count), "14", seconds=PATIENCE, env=environment()
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    *broken, tried = done.stdout.splitlines()
    assert int(tried) > 120
    assert not broken, f"{len(broken)} of {tried} cases break the law: {json.dumps(broken[:5])}"
