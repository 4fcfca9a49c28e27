"""Cost of the import over a bare interpreter, CPU time of fresh processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import mobilemoney_async
from benchmarks.common import Figures, Row, at_most, interleave, size

_ROUNDS = size(25, 1)

# httpx imports its command line, with click, rich and pygments, if these are installed. That counts for neither side.
_NO_COMMAND_LINE = "import sys; sys.modules['click'] = None"
_STATEMENTS = {
    "bare": _NO_COMMAND_LINE,
    # Every program imports this name. The package imports a name only when it is used.
    "ours": f"{_NO_COMMAND_LINE}; from mobilemoney_async import AsyncClient",
    "httpx": f"{_NO_COMMAND_LINE}; import httpx",
    "stripe": f"{_NO_COMMAND_LINE}; import stripe",
    "openai": f"{_NO_COMMAND_LINE}; import openai",
}


def run() -> list[Row]:
    """Compare the import of the library with that of httpx, both over a bare interpreter."""
    figures = _measure()
    added = {name: 1000 * figures.difference(name, "bare") for name in _STATEMENTS}
    case, cost = "import, over bare Python", f"{added['ours']:.0f} ms"
    of_httpx = at_most(added["ours"] / added["httpx"], 1.5)
    return [
        Row(case, cost, f"httpx's own, {added['httpx']:.0f} ms", "at most 1.5x", *of_httpx),
        *(
            Row(case, cost, f"{name}, {added[name]:.0f} ms", "", f"{added['ours'] / added[name]:.2f}x")
            for name in ("stripe", "openai")
        ),
    ]


def _measure() -> Figures:
    with fresh_start() as environment:
        return interleave(
            {name: partial(fresh_process, text, environment) for name, text in _STATEMENTS.items()}, _ROUNDS
        )


@contextmanager
def fresh_start() -> Iterator[dict[str, str]]:
    """Yield the environment for the compared processes."""
    with TemporaryDirectory() as bytecode:
        yield {
            **os.environ,
            "PYTHONPATH": str(Path(mobilemoney_async.__file__).parents[1]),
            # The warm-up round compiles once, whatever bytecode the installation has and the environment allows.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": bytecode,
            "PYTHONSAFEPATH": "1",
        }


def fresh_process(statements: str, environment: Mapping[str, str]) -> float:
    """Return the cost of a fresh process that runs these statements, CPU seconds."""
    started = _children()
    subprocess.run([sys.executable, "-c", statements], check=True, env=environment, stdout=subprocess.DEVNULL)
    return _children() - started


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
