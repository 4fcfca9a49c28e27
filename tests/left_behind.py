"""A test that `test_support_watchdog` kills: it holds a database's server, and a worker, and waits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.databases import postgres

WORKER = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


def test_it_is_killed() -> None:
    command = [sys.executable, "-S", "-c", WORKER]
    with postgres() as server, subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        Path(os.environ["LEFT_BEHIND"]).write_text(f"{os.getpid()} {server.pid} {worker.pid}\n")
        signal.pause()
