"""CPU time of `mobilemoney --help` in fresh processes, beside the import of its libraries."""

from __future__ import annotations

from functools import partial

from benchmarks.common import Row, at_most, interleave, size
from benchmarks.import_time import fresh_process, fresh_start

_ROUNDS = size(15, 1)
_RUN = "import sys; sys.argv[1:] = {arguments!r}; from mobilemoney_async.cli import main; main()"
_STATEMENTS = {
    "bare": "import typer, rich",
    "help": _RUN.format(arguments=["--help"]),
    "version": _RUN.format(arguments=["--version"]),
    "numbers": _RUN.format(arguments=["sandbox", "numbers"]),
}


def run() -> list[Row]:
    """Compare the start of the command line with the bare import of typer and rich."""
    with fresh_start() as environment:
        figures = interleave(
            {name: partial(fresh_process, text, environment) for name, text in _STATEMENTS.items()}, _ROUNDS
        )
    against = f"python -c 'import typer, rich', {1000 * figures.cost('bare'):.0f} ms"

    def row(name: str, command: str, limit: float | None = None) -> Row:
        ratio = figures.ratio(name, "bare")
        cost = f"{1000 * figures.cost(name):.0f} ms"
        if limit is None:
            return Row(command, cost, against, "", f"{ratio:.2f}x")
        return Row(command, cost, against, f"at most {limit:g}x", *at_most(ratio, limit))

    return [
        row("help", "mobilemoney --help", 2.5),
        row("version", "mobilemoney --version"),
        row("numbers", "mobilemoney sandbox numbers"),
    ]
