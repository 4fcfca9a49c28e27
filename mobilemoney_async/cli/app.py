"""The commands: their names, what each is in a line, and where it stands. A command is imported when it is run."""

from __future__ import annotations

from typing import Annotated

import typer

from mobilemoney_async._version import __version__
from mobilemoney_async.cli.lazy import LazyCommand, lazy_group

_PAYMENTS, _ACCOUNT, _TRYING = "Payments", "Account", "Trying it out"

COMMANDS: tuple[LazyCommand, ...] = (
    LazyCommand(
        "collect",
        "create_command:collect",
        "Ask a customer to pay, and follow the payment until it is made or not.",
        _PAYMENTS,
    ),
    LazyCommand(
        "disburse",
        "create_command:disburse",
        "Send money to a wallet, and follow the payment until it has arrived or not.",
        _PAYMENTS,
    ),
    LazyCommand(
        "get",
        "lookup_command:get",
        "Show one transaction: by its id, the service's reference or the merchant's.",
        _PAYMENTS,
    ),
    LazyCommand(
        "list",
        "lookup_command:list_transactions",
        "List transactions, in the service's order, as they come: a table, CSV or JSON lines.",
        _PAYMENTS,
    ),
    LazyCommand(
        "watch",
        "watch_command:watch",
        "Follow payments to their final states: a table on a terminal, else a line for each change.",
        _PAYMENTS,
    ),
    LazyCommand(
        "payments",
        "payments_command:payments_app",
        "The payments of a store: what became of each, and what nobody knows.",
        _PAYMENTS,
    ),
    LazyCommand("login", "login_command:login", "Log in, and keep the token until it expires.", _ACCOUNT),
    LazyCommand("logout", "login_command:logout", "Forget the token that login kept.", _ACCOUNT),
    LazyCommand("profile", "users_command:profile", "Show the user behind the credentials.", _ACCOUNT),
    LazyCommand("otp", "users_command:otp_app", "One-time passwords: request one, verify one.", _ACCOUNT),
    LazyCommand("doctor", "doctor_command:doctor", "Check the configuration, and say what to mend.", _ACCOUNT),
    LazyCommand(
        "sandbox", "sandbox_group:sandbox_app", "The service on your own machine, with simulated money.", _TRYING
    ),
    LazyCommand("demo", "demo_command:demo", "Watch payments from the prompt to their final states.", _TRYING),
)

# Tracebacks with locals could show what must not be shown; errors are one line here anyway.
app: typer.Typer = typer.Typer(
    name="mobilemoney",
    cls=lazy_group(*COMMANDS),
    help="Mobile-money payments from the command line: collect, disburse, look up, follow; a sandbox to try it in.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage or configuration, 3 nobody knows whether a payment exists, "
    "4 not final in time, 5 final without success, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich's takes longer than all the rest
    pretty_exceptions_show_locals=False,
)


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
