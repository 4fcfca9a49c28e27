"""The command line: `mobilemoney …` (extra: cli)."""

from __future__ import annotations

import importlib.util
import io
import os
import sys

_EXTRA = ("typer", "rich")


def main() -> None:
    """Run the command line; without the extra, say which one to install.

    Raises:
        SystemExit: Always, with the command's exit code; 2 where the extra is missing.
    """
    _open_streams()
    # A missing extra is reported before any work. It is not imported here: the list of commands needs no rich tables.
    if any(importlib.util.find_spec(name) is None for name in _EXTRA):
        print('mobilemoney: the command line needs an extra: pip install "mobilemoney-async[cli]"', file=sys.stderr)
        raise SystemExit(2)
    from mobilemoney_async.cli.app import app
    from mobilemoney_async.cli.failures import silence

    try:
        app(prog_name="mobilemoney")
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            silence(sys.stdout)


def _open_streams() -> None:
    """Make output safe: after a payment was sent, printing its id must not end in a traceback.

    A closed stream is replaced by an empty one. A character that the encoding lacks becomes a question mark on a
    terminal, which keeps the columns, and is escaped in files and pipes, which lose nothing.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the life of the program)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")
