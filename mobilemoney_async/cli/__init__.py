"""The command line: `mobilemoney …` (extra: cli)."""

from __future__ import annotations

import sys

_EXTRA = frozenset({"typer", "rich", "click"})


def main() -> None:
    """Run the command line; without the extra, say which one to install.

    Raises:
        SystemExit: Always, with the command's exit code; 2 where the extra is missing.
    """
    try:
        from mobilemoney_async.cli.app import app
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA:
            raise
        print('mobilemoney: the command line needs an extra: pip install "mobilemoney-async[cli]"', file=sys.stderr)
        raise SystemExit(2) from exc
    app()
