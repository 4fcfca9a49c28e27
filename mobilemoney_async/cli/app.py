"""Commands of `mobilemoney`: their names and summaries. A command's module is imported when the command runs.

A group reports every error of its commands, wrong usage included, in one line on standard error.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from mobilemoney_async._version import __version__
from mobilemoney_async.cli import failures

F = TypeVar("F", bound=Callable[..., None])

# Characters of a summary in a list of commands: all of them.
_WHOLE = 200
# Typer brings its own click, older versions use the installed one: the class is found through their common export.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
_PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,  # rich's help takes longer to show than all the rest
    "pretty_exceptions_show_locals": False,  # a local variable may be a secret
}


class LazyCommand(NamedTuple):
    """Command that is imported when it runs.

    The target is ``module:name`` below `mobilemoney_async.cli`: a function with options, or a `typer.Typer`. The list
    of commands shows the summary, which is the first sentence of the command's help, below the panel's heading.
    """

    name: str
    target: str
    summary: str
    panel: str

    def listed(self) -> TyperCommand:
        """Return the entry in the list of commands."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel, rich_markup_mode=None)

    def load(self) -> Any:
        """Import the command and return it."""
        module, _, name = self.target.partition(":")
        found = getattr(importlib.import_module(f"mobilemoney_async.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, **_PLAIN)
            return typer.main.get_command(_added(single, self.name, found))
        group = typer.main.get_command(found)
        group.name = self.name
        return group


class _Command(TyperCommand):
    """Command that refuses an option in the place of a value, as the groups do, and arguments beyond its own."""

    allow_extra_args = True  # click's refusal shows them, and one may be a secret

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _require_values(self, ctx, args)
        surplus = super().parse_args(ctx, args)
        if surplus and not ctx.resilient_parsing:
            raise _USAGE_ERROR(f"too many arguments: {len(surplus)} more than it takes", ctx)
        return surplus


def _require_values(command: Any, ctx: Any, args: Iterable[str]) -> None:
    """Refuse an option with no value, or with the next option as its value: ``--key $K --no-wait`` with an empty K."""
    options = [each for each in command.get_params(ctx) if each.param_type_name == "option"]
    names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    takers = {name for each in options if not (each.is_flag or each.count) for name in each.opts}
    words = iter(args)
    for word in words:
        # The options of a group end where the name of a command begins, and all end at --.
        if word == "--" or not (ctx.allow_interspersed_args or word.startswith("-")):
            return
        name, is_attached, attached = word.partition("=")
        if name not in takers:
            continue
        value = attached if is_attached else next(words, None)
        if value == "":
            raise _USAGE_ERROR(f"the value of {name} is empty", ctx)
        if value is not None and not is_attached and (value.startswith("--") or value in names):
            written = shlex.join([f"{name}={value}"])
            raise _USAGE_ERROR(f"{name} has no value, since {value} follows; if that is the value: {written}", ctx)


def command_group(*commands: LazyCommand, **options: Any) -> typer.Typer:
    """Return a group of commands, with these options of `typer.Typer`; `add_command` adds those of its own module."""
    return typer.Typer(cls=_group_class(commands), **(_PLAIN | {"add_completion": False} | options))


def add_command(group: typer.Typer, name: str) -> Callable[[F], F]:
    """Return a decorator that adds a function to a group as a command; its docstring is the help."""

    def decorate(function: F) -> F:
        _added(group, name, function)
        return function

    return decorate


def _added(group: typer.Typer, name: str, function: Callable[..., None]) -> typer.Typer:
    # Each paragraph on one line: the terminal's width breaks it.
    paragraphs = [" ".join(each.split()) for each in (inspect.getdoc(function) or "").split("\n\n")]
    group.command(name, cls=_Command, help="\n\n".join(paragraphs))(function)
    return group


def _group_class(commands: tuple[LazyCommand, ...]) -> type[TyperGroup]:
    by_name = {command.name: command for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands.update({name: command.listed() for name, command in by_name.items()})

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if not (args[0] in self.commands or args[0].startswith("-") or ctx.resilient_parsing):
                near = difflib.get_close_matches(args[0], self.commands)  # the word itself may be a secret
                said = f"; did you mean {' or '.join(near)}" if near else ""
                raise _USAGE_ERROR(f"No such command{said}", ctx)
            name, command, rest = super().resolve_command(ctx, args)
            lazy = by_name.get(name or "")
            return name, command if lazy is None else lazy.load(), rest

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            rows: dict[str, list[tuple[str, str]]] = {}
            for name, command in self.commands.items():
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                rows.setdefault(panel, []).append((name, command.get_short_help_str(_WHOLE)))
            for panel, listed in rows.items():
                with formatter.section(panel):
                    formatter.write_dl(listed)

        def parse_args(self, ctx: Any, args: list[str]) -> Any:
            if ctx.resilient_parsing:  # for completion, which shows no errors
                return super().parse_args(ctx, args)
            with _errors_in_one_line(ctx):
                _require_values(self, ctx, args)
                return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            with _errors_in_one_line(ctx):
                result = super().invoke(ctx)
                sys.stdout.flush()  # a full disk is an error of the command
                return result

    return LazyGroup


@contextmanager
def _errors_in_one_line(ctx: Any) -> Iterator[None]:
    """Turn an error that the user can act on into one line and an exit code."""
    try:
        yield
    except _USAGE_ERROR as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":
            raise
        path = _path(getattr(exc, "ctx", None) or ctx)
        hint = ""
        if type(exc).__name__ == "NoSuchOption":
            hint = "; an id or key that begins with - goes behind --" if path else "; options go after the command"
        text = " ".join(exc.format_message().split()).removesuffix(".")
        failures.say(path, f"{text}{hint}; see {failures.typed(path)} --help")
        raise typer.Exit(failures.ExitCode.USAGE) from exc
    except Exception as exc:
        if isinstance(failures.first_error(exc), BrokenPipeError):
            # The reader of a pipe has read enough. A command whose exit code reports a payment goes on without one.
            raise typer.Exit(failures.ExitCode.FINE) from exc
        ended = failures.conclude(_path(ctx), exc)
        if ended is None:
            raise
        raise ended from exc


def _path(ctx: Any) -> str:
    """Return the names of a command as the user types them after ``mobilemoney``."""
    names = [ctx.invoked_subcommand] if ctx.invoked_subcommand else []
    while ctx.parent is not None:
        names.append(ctx.info_name)
        ctx = ctx.parent
    return " ".join(reversed(names))


COMMANDS: tuple[LazyCommand, ...] = tuple(
    LazyCommand(name, target, summary, panel)
    for panel, commands in {
        "Payments": (
            ("collect", "create:collect", "Ask a customer to pay, and wait until the payment succeeds or fails."),
            ("disburse", "create:disburse", "Send money to a wallet, and wait until the payment succeeds or fails."),
            ("get", "transactions:get", "Show one transaction: by its id, the service's reference or the merchant's."),
            ("list", "transactions:list_transactions", "List transactions: as a table, CSV or JSON lines."),
            (
                "watch",
                "views.watch:watch",
                "Follow payments to their final states; without ids, watch the whole store.",
            ),
            ("payments", "payments:payments_app", "Payments in your store, and those with an unknown result."),
            ("payouts", "payouts:payouts_app", "Batches of payouts: one person proposes, another approves."),
            (
                "dashboard",
                "views.dashboard.command:dashboard",
                "Serve a read-only page of your store on this machine, until Ctrl-C.",
            ),
        ),
        "Account": (
            ("login", "account:login", "Log in, and keep the token until it expires."),
            ("logout", "account:logout", "Delete the token that login kept."),
            ("profile", "account:profile", "Show the user that the credentials belong to."),
            ("otp", "account:otp_app", "One-time passwords: request one, verify one."),
            (
                "accounts",
                "accounts:accounts_app",
                "Accounts of a platform's store: which one needs someone, and which may pay.",
            ),
            ("doctor", "doctor:doctor", "Check the configuration and name the fixes."),
        ),
        "Trying it out": (
            ("sandbox", "sandbox:sandbox_app", "The service on your own machine, with simulated money."),
            ("demo", "demo:demo", "Watch simulated payments from the request to their final states."),
        ),
    }.items()
    for name, target, summary in commands
)

app: typer.Typer = command_group(
    *COMMANDS,
    name="mobilemoney",
    help="Mobile-money payments from the command line: collect, disburse, look up, follow; a sandbox to try it in.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage or configuration, 3 unknown whether a payment exists, "
    "4 not final in time, 5 final without success, 130 interrupted.",
    no_args_is_help=True,
    add_completion=True,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"mobilemoney-async {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the options that come before a command."""
