"""The commands and their options. What they do stands in modules of their own."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from mobilemoney_async._version import __version__
from mobilemoney_async.cli.demo import run_demo
from mobilemoney_async.cli.payments_command import payments_app
from mobilemoney_async.cli.sandbox_command import print_numbers, run_sandbox
from mobilemoney_async.errors import MobileMoneyError

# Tracebacks with locals could show what must not be shown; errors are one line here anyway.
app: typer.Typer = typer.Typer(
    name="mobilemoney",
    help="Mobile-money payments: a sandbox of the service, a demonstration of the client, and a look into its store.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
sandbox_app: typer.Typer = typer.Typer(help="The service on your own machine, with simulated money.")
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(payments_app, name="payments")

Speed = Annotated[
    float, typer.Option(min=0.01, max=1000.0, help="Divides the sandbox's delays and multiplies its rate limit.")
]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mobilemoney-async {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def demo(
    speed: Speed = 20.0,
    payments: Annotated[int, typer.Option(min=30, max=10_000, help="How many payments are made and followed.")] = 30,
) -> None:
    """Watch payments from the prompt to their final states, against a sandbox on this machine. Takes some 20 s."""
    try:
        anyio.run(run_demo, speed, payments, backend="asyncio")
    except (ImportError, MobileMoneyError) as exc:
        typer.echo(f"mobilemoney demo: {exc}", err=True)
        raise typer.Exit(1) from exc


@sandbox_app.callback(invoke_without_command=True)
def sandbox(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on loopback; 0 takes a free one.")] = 8765,
    speed: Speed = 1.0,
) -> None:
    """Serve the sandbox on loopback until Ctrl-C."""
    if context.invoked_subcommand is None:
        run_sandbox(port=port, speed=speed)


@sandbox_app.command()
def numbers() -> None:
    """Print the magic phone numbers and what they do."""
    print_numbers()
