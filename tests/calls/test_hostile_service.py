"""The law of hostile answers: a value or one of our errors, in time, in little memory, with a harmless text."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.calls.hostile_service import WAYS
from tests.support.processes import environment, module_command
from tests.support.scale import soak

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory per case is measured on Linux"),
]


@pytest.mark.untraced
@pytest.mark.parametrize("way", WAYS)
def test_any_answer_ends_well(way: str) -> None:
    """Any status, shape, framing, compression and size: the program says what it tries, and what the law is."""
    count = 30 if soak(4) == 1 else soak(2_000)
    command = module_command("tests.calls.hostile_service", way, str(count), "14")
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment())
    assert done.returncode == 0, done.stderr[-2_000:]
    *broken, tried = done.stdout.splitlines()
    assert int(tried) > 140
    assert not broken, f"{len(broken)} of {tried} cases break the law: {json.dumps(broken[:5])}"
