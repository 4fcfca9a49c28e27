"""A program on a terminal of its own, as a person sees and answers it."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.commands import COMMANDS, MOBILEMONEY
from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.warm import Program, warm

# The terminal becomes that of a session of the program's own, where getpass asks.
TERMINAL = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)"


class Terminal:
    """What a program shows on its terminal, and what a person types there."""

    def __init__(self, process: Program, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._shown = b""
        self._read = 0

    @property
    def text(self) -> str:
        """Everything shown up to now, the terminal's control sequences included."""
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        """Wait until something is shown after what was waited for before."""
        wanted, until = text.encode(), time.monotonic() + PATIENCE  # real time: of its own limit
        while (found := self._shown.find(wanted, self._read)) < 0:
            if time.monotonic() > until or not self._more():  # real time: of its own limit
                raise AssertionError(f"never shown: {text!r}; shown was {self.text!r}")
        self._read = found + len(wanted)

    def type(self, text: str) -> None:
        """Type something; a line break sends it."""
        os.write(self._descriptor, text.encode())

    def interrupt(self, name: str = "SIGINT") -> None:
        """Press Ctrl-C, or send another signal."""
        self.process.signal(signal.Signals[name])

    def end(self) -> int:
        """Wait for the end of the program and return its exit code."""
        until = time.monotonic() + PATIENCE  # real time: of its own limit
        while self._more():
            if time.monotonic() > until:  # real time: of its own limit
                raise AssertionError(f"it did not end; shown was {self.text!r}")
        return self.process.wait(PATIENCE)

    def _more(self) -> bool:
        """Read what is there; return whether there may be more."""
        if not select.select([self._descriptor], [], [], 1.0)[0]:
            return True
        try:
            read = os.read(self._descriptor, 65_536)
        except OSError:  # Linux's way of saying that nobody holds the other end
            return False
        self._shown += read
        return bool(read)


@contextmanager
def terminal(
    *arguments: str, env: Mapping[str, str] | None = None, program: str = f"{TERMINAL}; {MOBILEMONEY}", width: int = 100
) -> Iterator[Terminal]:
    """Run `mobilemoney` on a terminal of 40 lines, and end it with the context.

    Args:
        arguments: Of the command.
        env: Variables beside those of this process; none of ours is inherited.
        program: Python statements, `TERMINAL` the first of them.
        width: Columns.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = environment(**{"TERM": "xterm", **(env or {})})
    process = warm(*COMMANDS).start(program, *arguments, streams=(theirs, theirs, theirs), env=env)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.close()
        os.close(ours)
