"""How commands end: exit codes, errors in one line that says what to do next, Ctrl-C, and the question before money.

Every command is run by `run`. What is refused before that, by a bad configuration say, gets its line from the group of
commands (`lazy`).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import typer

from mobilemoney_async.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from mobilemoney_async.cli.settings import Settings

__all__ = ["ExitCode", "Refused", "conclude", "confirm_money", "run", "say", "spoken"]

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Refused(Exception):
    """What a person is told in place of a result.

    Args:
        text: What happened, and what to do next, in one line.
        exit_code: With which the command ends.
    """

    def __init__(self, text: str, exit_code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(text)
        self.exit_code: ExitCode = exit_code


class _Interrupted(Exception):
    """The person, or the system, asked the command to stop."""


def run(
    command: str,
    work: Callable[[], Awaitable[T]],
    *,
    open_work: Callable[[], Iterable[str]] | None = None,
    settings: Settings | None = None,
) -> T:
    """Run the work of a command, and end the program where it fails.

    Ctrl-C and SIGTERM cancel the work, which cleans up; a second one ends the program at once.

    Args:
        command: Its name, for the line on standard error.
        work: What it does.
        open_work: Called after an interrupt: returns a line for each thing that is still open, and how to go on.
        settings: Of the service that is talked to, for better advice.

    Raises:
        typer.Exit: It failed; the reason and what to do next stand on standard error, in one line.
    """
    import anyio

    try:
        return anyio.run(_interruptible, work, backend="asyncio")
    except BaseException as exc:
        if _is_interrupt(exc):
            say(command, "interrupted")
            for line in open_work() if open_work is not None else ():
                say(command, line)
            raise typer.Exit(ExitCode.INTERRUPTED) from exc
        ended = conclude(command, exc, settings)
        if ended is None:
            raise
        raise ended from exc


def _is_interrupt(exc: BaseException) -> bool:
    if isinstance(exc, BaseExceptionGroup):  # of a second Ctrl-C, where tasks were still cleaning up
        return exc.subgroup(KeyboardInterrupt) is not None
    return isinstance(exc, _Interrupted | KeyboardInterrupt)


def conclude(command: str, exc: BaseException, settings: Settings | None = None) -> typer.Exit | None:
    """Say in one line what an error means to the person, and return how the command ends.

    Args:
        command: Its name, for the line.
        exc: What happened.
        settings: Of the service that is talked to, for better advice.

    Returns:
        None, with nothing said, where it is a fault of this program, or the reader of a pipe has left.
    """
    from mobilemoney_async.errors import MobileMoneyError

    cause = exc
    while isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, Refused):
        say(command, str(cause))
        return typer.Exit(cause.exit_code)
    if isinstance(cause, BrokenPipeError) or not isinstance(cause, MobileMoneyError | OSError):
        return None
    from mobilemoney_async.cli.advice import explain

    text, exit_code = explain(cause, settings)
    say(command, text)
    return typer.Exit(exit_code)


def say(command: str, text: str) -> None:
    """Print one line on standard error: ``mobilemoney COMMAND: text``."""
    from mobilemoney_async.cli.text import visible

    typer.echo(f"{spoken(command)}: {visible(' '.join(text.split()))}", err=True)


def spoken(command: str) -> str:
    """Return a command as it is typed; without a name, the program itself."""
    return f"mobilemoney {command}".rstrip()


def require_service(settings: Settings) -> Settings:
    """Return the settings, unless nobody named a service.

    A store holds the payments of one service. Looked for at another they would be taken for absent, and a key of the
    sandbox's payments would never be paid at the real one.

    Raises:
        Refused: The sandbox is only what is left.
    """
    if not settings.is_chosen:
        raise Refused(
            "nothing says which service: --profile (sandbox, say), or MOBILEMONEY_BASE_URL and MOBILEMONEY_TOKEN",
            ExitCode.USAGE,
        )
    return settings


def require_phone_number(text: str) -> str:
    """Return a phone number that a person typed, in its normal form.

    Raises:
        Refused: It is none; says what one looks like, and does not repeat it.
    """
    from mobilemoney_async.values import normalise_phone_number

    try:
        return normalise_phone_number(text)
    except ValueError:
        raise Refused("PHONE must be + and 8 to 15 digits, such as +255681234567", ExitCode.USAGE) from None


def confirm_money(settings: Settings, text: str, *, yes: bool = False) -> None:
    """Ask before real money moves; with a profile that moves none, do nothing.

    Args:
        settings: Say whether it is real money, and whose.
        text: What would be done, without a whole phone number: ``collect 5,000 TZS from +25568…567``.
        yes: The person has agreed beforehand.

    Raises:
        Refused: The person said no, or nobody is there to be asked. Nothing was sent.
    """
    if not settings.is_production or yes:
        return
    if not sys.stdin.isatty():
        raise Refused(
            f"profile {settings.profile} moves real money, and nobody is there to be asked; nothing was sent: "
            "give --yes",
            ExitCode.USAGE,
        )
    from mobilemoney_async.cli.text import visible

    typer.echo(visible(f"This moves real money: {text}"), err=True)
    typer.echo(visible(f"profile {settings.profile}, {settings.base_url}"), err=True)
    require_yes("Go on?", otherwise="nothing was sent")


def require_yes(question: str, *, otherwise: str) -> None:
    """Ask, and go on only after a yes.

    Args:
        question: What is asked.
        otherwise: What a person is told who says no, or nothing.

    Raises:
        Refused: Nobody said yes.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)  # the question stands on a line that has not ended
        if sys.stdin.isatty():
            raise Refused(f"interrupted; {otherwise}", ExitCode.INTERRUPTED) from None
        raise Refused(f"nobody answered; {otherwise}; --yes agrees beforehand") from None
    if not agreed:
        raise Refused(otherwise)


async def _interruptible(work: Callable[[], Awaitable[T]]) -> T:
    import asyncio

    import anyio

    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return await work()
    loop = asyncio.get_running_loop()
    interrupts: list[int] = []
    scope = anyio.CancelScope()

    def forget_signals() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def interrupt(number: int) -> None:
        interrupts.append(number)
        forget_signals()  # so that the next one does what it does everywhere
        scope.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        with scope:
            # What was done when the signal came is told, rather than thrown away.
            return await work()
    except Exception as exc:
        if interrupts:
            raise _Interrupted from exc
        raise
    finally:
        forget_signals()
    raise _Interrupted
