"""`mobilemoney sandbox script`: the sandbox, with faults that strike as a file says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mobilemoney_async.cli.failures import ExitCode, Refused

_EXAMPLE = """\
# The first collection is accepted, and its answer is lost.
[[rule]]
fault = "lost"
processed = true
on = "POST c2b"

# One lookup in five comes 3 seconds late, and broken off.
[[rule]]
faults = [{ fault = "latency", seconds = 3 }, { fault = "truncated" }]
on = "GET transaction"
probability = 0.2
"""


def script(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The script, in TOML.", show_default=False)
    ] = None,
    *,
    list_faults: Annotated[
        bool, typer.Option("--list", help="Print the faults, what they take, and an example.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Print what the file says, and serve nothing.")] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="TCP port on loopback; 0 takes a free one.", show_default="8765"),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1000.0, help="Divides the sandbox's delays and multiplies its rate limit.", show_default="1.0"
        ),
    ] = None,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Let customers wait for you: approve payments on the phone page.")
    ] = False,
) -> None:
    """Serve the sandbox until Ctrl-C, with faults that strike as a file says.

    Each [[rule]] of the file names a fault, its parameters, and which requests it strikes: on, times and probability.
    A request meets the first rule that strikes it. --list shows them all.

    Exit codes: 0 fine, 1 an error, 2 wrong usage, or a file that is not what it should be.
    """
    if list_faults:
        _print_faults()
        return
    if file is None:
        raise Refused("give a FILE, or --list to see what it may say", ExitCode.USAGE)
    from mobilemoney_async.cli.script_file import ScriptFileError, play, read_script

    try:
        rules = read_script(file)
    except ScriptFileError as exc:
        raise Refused(str(exc), ExitCode.USAGE) from exc
    for number, rule in enumerate(rules, 1):
        print(f"rule {number}: {rule}", flush=True)
    if check:
        return
    from mobilemoney_async.cli.sandbox_command import run_sandbox

    # The options of `sandbox` may stand before the command or behind it.
    options: dict[str, Any] = dict(context.parent.params) if context.parent is not None else {}
    given = {"port": port, "speed": speed, "by_hand": by_hand or None}.items()
    options |= {name: value for name, value in given if value is not None}
    run_sandbox(**options, prepare=lambda sandbox: play(rules, sandbox))


def _print_faults() -> None:
    from mobilemoney_async.cli.script_file import KNOWN_FAULTS

    for fault in KNOWN_FAULTS.values():
        if not fault.is_switch:
            print(f"{fault.name}: {fault.meaning}")
            for parameter in fault.parameters.values():
                print(f"    {parameter}")
    print()
    print("The switches of the phone page, which take nothing:")
    for fault in KNOWN_FAULTS.values():
        if fault.is_switch:
            print(f"{fault.name}: {fault.meaning}")
    print()
    print("A rule may say beside its fault's parameters:")
    print('    on: a method, an endpoint or both, "POST c2b"; every request where it is left out')
    print("    times: a whole number, 1 or more; once where it and probability are left out")
    print("    probability: a number from 0 to 1; with it and without times it strikes without end")
    print()
    print(_EXAMPLE, end="")
