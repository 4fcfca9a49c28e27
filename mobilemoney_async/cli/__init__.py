"""The command line: `mobilemoney …` (extra: cli)."""

from __future__ import annotations

import importlib.util
import sys

_EXTRA = ("typer", "rich")


def main() -> None:
    """Run the command line; without the extra, say which one to install.

    Raises:
        SystemExit: Always, with the command's exit code; 2 where the extra is missing.
    """
    # Looked for rather than imported: what has to be found missing here, before anything is done, is loaded when it is
    # needed, and a list of commands needs no tables.
    if any(importlib.util.find_spec(name) is None for name in _EXTRA):
        print('mobilemoney: the command line needs an extra: pip install "mobilemoney-async[cli]"', file=sys.stderr)
        raise SystemExit(2)
    from mobilemoney_async.cli.app import app

    app(prog_name="mobilemoney")
