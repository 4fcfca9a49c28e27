"""A run of the tests leaves no process behind, however it ends.

PostgreSQL makes itself a daemon, and many programs have a session of their own: no process group holds them all. But
each inherits the environment of what started it. So a run has a name there; a process outside of the run waits until
pytest has ended, and ends whatever has the name.

That process runs this file alone, without anything of the tests or of other packages: ``watchdog.py RUN PARENT``.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

# Not named as the library's own variables are, since many programs of the tests inherit none of those.
VARIABLE = "TESTS_OF_MOBILEMONEY_RUNS"
_PROCESSES = Path("/proc")
_TERMINATE_FOR = 2.0


def start() -> str:
    """Give the run a name, and let its processes end with this one, where Linux shows their environment."""
    run, command = secrets.token_hex(8), [sys.executable, "-I", "-S", __file__]
    outside = {name: value for name, value in os.environ.items() if name != VARIABLE}
    # A run within another is of both.
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {run}".strip()
    if not _PROCESSES.is_dir():
        return run
    null = subprocess.DEVNULL
    started = subprocess.Popen(
        [*command, run, str(os.getpid())],
        stdin=null,
        stdout=null,
        stderr=null,
        env=outside,
        start_new_session=True,  # what ends the group of the run does not end it
    )
    started.returncode = 0  # it ends after this process, which need not wait for it
    return run


def processes_of(run: str) -> set[int]:
    """Return the processes whose environment names the run, and their descendants: PostgreSQL's overwrite theirs."""
    children: dict[int, list[int]] = defaultdict(list)
    found = []
    for folder in _PROCESSES.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            status, variables = (folder / "stat").read_text("utf-8", "replace"), (folder / "environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        state, parent, *_ = status.rpartition(")")[2].split()
        if state != "Z":
            children[int(parent)].append(int(folder.name))
            if _names(run, variables):
                found.append(int(folder.name))
    processes: set[int] = set()
    while found:
        process = found.pop()
        if process not in processes:
            processes.add(process)
            found += children[process]
    return processes


def send(which: signal.Signals, processes: Iterable[int]) -> None:
    """Send a signal to processes, some of which may have ended."""
    for process in processes:
        try:
            os.kill(process, which)
        except ProcessLookupError:
            continue


def _names(run: str, variables: bytes) -> bool:
    found = re.search(rb"(?:^|\0)%s=([^\0]*)" % VARIABLE.encode(), variables)
    return found is not None and run.encode() in found[1].split()


def _watch(run: str, parent: str) -> None:
    while os.getppid() == int(parent):
        time.sleep(0.25)  # real time: no event tells a process that its parent has ended
    until = time.monotonic() + _TERMINATE_FOR  # real time: when kindness ends
    while left := processes_of(run):
        # First in the way that lets PostgreSQL give back its shared memory.
        is_kind = time.monotonic() < until  # real time: when kindness ends
        send(signal.SIGTERM if is_kind else signal.SIGKILL, left)
        send(signal.SIGCONT, left)
        time.sleep(0.25)  # real time: they may take any time to end


if __name__ == "__main__":
    _watch(*sys.argv[1:])
