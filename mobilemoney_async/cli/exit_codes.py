"""What the exit code of a command means."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a command's exit code means."""

    FINE = 0
    ERROR = 1
    """An error: the service refused, could not be reached, or a person said no."""
    USAGE = 2
    """Wrong usage or configuration; nothing was sent."""
    UNRESOLVED = 3
    """Nobody knows whether a payment exists. Do not send it again before somebody has looked."""
    NOT_FINAL = 4
    """A payment was not final in time. It may still become so."""
    NOT_SUCCESSFUL = 5
    """A payment is final, and did not succeed."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""
