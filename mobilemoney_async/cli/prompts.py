"""Asking for what is secret: on a terminal without an echo, else from standard input. Never from an argument."""

from __future__ import annotations

import sys

import typer

from mobilemoney_async.cli.failures import ExitCode, Refused
from mobilemoney_async.values import Secret


def ask(what: str, otherwise: str) -> str:
    """Return a line that a person types, or of standard input where that is no terminal.

    Args:
        what: What is asked for.
        otherwise: How else it can be given, where nobody answers.

    Raises:
        Refused: There is none, or the person broke off.
    """
    return _ask(what, otherwise, is_hidden=False)


def ask_secret(what: str, otherwise: str) -> Secret:
    """Return as a secret what a person types without an echo, or a line of standard input.

    Args:
        what: What is asked for.
        otherwise: How else it can be given, where nobody answers.

    Raises:
        Refused: There is none, or the person broke off.
    """
    return Secret(_ask(what, otherwise, is_hidden=True))


def _ask(what: str, otherwise: str, *, is_hidden: bool) -> str:
    if sys.stdin.isatty():
        try:
            answer = str(typer.prompt(what.capitalize(), hide_input=is_hidden, err=True))
        except typer.Abort:
            raise Refused("interrupted", ExitCode.INTERRUPTED) from None
    else:
        # Not stripped of blanks: a password may end with one.
        answer = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not answer.strip():
        raise Refused(f"no {what} was given; {otherwise}", ExitCode.USAGE)
    return answer
