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
    # Looked for rather than imported: what has to be found missing here, before anything is done, is loaded when it is
    # needed, and a list of commands needs no tables.
    if any(importlib.util.find_spec(name) is None for name in _EXTRA):
        print('mobilemoney: the command line needs an extra: pip install "mobilemoney-async[cli]"', file=sys.stderr)
        raise SystemExit(2)
    from mobilemoney_async.cli.app import app

    app(prog_name="mobilemoney")


def _open_streams() -> None:
    """Let nothing that is printed raise: a payment that was sent must not end in a traceback in place of its id.

    A stream that the caller has closed leads nowhere. A character that the encoding does not know is a question mark on
    a terminal, where columns keep their places, and escaped in a file or a pipe, where nothing may get lost.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the life of the program)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")
