"""`mobilemoney sandbox` and its commands: their options. What they do stands in modules of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from mobilemoney_async.cli.lazy import LazyCommand, lazy_group

COMMANDS: tuple[LazyCommand, ...] = (
    LazyCommand("numbers", "sandbox_group:numbers", "Print the magic phone numbers and what they do."),
)

sandbox_app: typer.Typer = typer.Typer(
    cls=lazy_group(*COMMANDS),
    help="The service on your own machine, with simulated money.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
)

Speed = Annotated[
    float, typer.Option(min=0.01, max=1000.0, help="Divides the sandbox's delays and multiplies its rate limit.")
]


@sandbox_app.callback(invoke_without_command=True)
def sandbox(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on loopback; 0 takes a free one.")] = 8765,
    speed: Speed = 1.0,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Let customers wait for you: approve payments on the phone page.")
    ] = False,
) -> None:
    """Serve the sandbox and its phone page on loopback until Ctrl-C."""
    if context.invoked_subcommand is None:
        from mobilemoney_async.cli.sandbox_command import run_sandbox

        run_sandbox(port=port, speed=speed, by_hand=by_hand)


def numbers() -> None:
    """Print the magic phone numbers and what they do."""
    from mobilemoney_async.cli.sandbox_command import print_numbers

    print_numbers()
