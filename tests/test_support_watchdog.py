"""What a run of the tests leaves behind."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import stalls, watchdog
from tests.support.patience import wait_until
from tests.support.processes import ROOT


@pytest.mark.once
@pytest.mark.slow  # it starts pytest, a worker of it and a server
def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    """`kill -9` of pytest ends its workers, a PostgreSQL server and a program that ignores SIGTERM."""
    said = tmp_path / "said"
    options = ("-q", "-n", "1", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *options, f"{ROOT}/tests/left_behind.py"]
    environment = {**os.environ, "LEFT_BEHIND": str(said)}
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
    try:
        wait_until(lambda: run.poll() is not None or (said.exists() and said.read_text().endswith("\n")))
        assert run.poll() is None, (tmp_path / "log").read_text()
    finally:
        run.kill()
        run.wait()
    processes = said.read_text().split()
    assert len(processes) == 3
    wait_until(lambda: not any(map(_is_running, processes)))


@pytest.mark.slow
@pytest.mark.once
def test_a_command_that_is_stopped_at_random_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as it would without, and its exit code is told."""
    monkeypatch.setenv(watchdog.VARIABLE, os.environ[watchdog.VARIABLE])
    monkeypatch.setattr(stalls, "_CHANCE", 1.0)
    code = "import sys, time; time.sleep(0.3); sys.exit(3)"
    assert stalls.run([sys.executable, "-S", "-c", code], random.Random(1)) == 3


def _is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
