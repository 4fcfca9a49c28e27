"""Commands that are imported when they are run: until then only their names and a line about each are known.

Their errors are one line on standard error, wrong usage included.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mobilemoney_async.cli import failures

# Letters of a line about a command: all of it.
_WHOLE = 200
# Typer brings its own click, older ones use the one beside them: the class is found through what both export.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


class LazyCommand:
    """A command that is not imported yet.

    Args:
        name: As it is typed.
        target: ``module:name`` below `mobilemoney_async.cli`: a function with options, or a `typer.Typer`.
        summary: What the list of commands says of it.
        panel: The heading that it stands under there.
    """

    def __init__(self, name: str, target: str, summary: str, panel: str | None = None) -> None:
        self.name: str = name
        self.summary: str = summary
        self._target = target
        self._panel = panel

    def listed(self) -> TyperCommand:
        """Return what stands in the list of commands."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self._panel, rich_markup_mode=None)

    def load(self) -> Any:
        """Import the command and return it."""
        module, _, name = self._target.partition(":")
        found = getattr(importlib.import_module(f"mobilemoney_async.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            group = typer.main.get_command(found)
            group.name = self.name
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_show_locals=False)
        single.command(self.name, help=_unwrapped(found))(found)
        return typer.main.get_command(single)


def lazy_group(*commands: LazyCommand) -> type[TyperGroup]:
    """Return the class of a group (``typer.Typer(cls=...)``) that has these commands."""
    by_name = {command.name: command for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands.update({name: command.listed() for name, command in by_name.items()})

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
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
            with _one_line(ctx):
                return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            with _one_line(ctx):
                return super().invoke(ctx)

    return LazyGroup


@contextmanager
def _one_line(ctx: Any) -> Iterator[None]:
    """Turn an error that a person can do something about into one line and an exit code."""
    try:
        yield
    except _USAGE_ERROR as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":
            raise
        path = _path(getattr(exc, "ctx", None) or ctx)
        hint = "" if path or type(exc).__name__ != "NoSuchOption" else "; options stand behind the command"
        failures.say(path, f"{_sentence(exc)}{hint}; see {failures.spoken(path)} --help")
        raise typer.Exit(failures.ExitCode.USAGE) from exc
    except Exception as exc:
        ended = failures.conclude(_path(ctx), exc)
        if ended is None:
            raise
        raise ended from exc


def _path(ctx: Any) -> str:
    """Return the names of a command as they are typed after ``mobilemoney``."""
    names = [ctx.invoked_subcommand] if ctx.invoked_subcommand else []
    while ctx.parent is not None:
        names.append(ctx.info_name)
        ctx = ctx.parent
    return " ".join(reversed(names))


def _sentence(exc: Any) -> str:
    text = " ".join(str(exc.format_message()).split())
    return text.removesuffix(".")


def _unwrapped(function: Any) -> str:
    """Return a docstring with each paragraph on one line: the terminal's width breaks it."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
