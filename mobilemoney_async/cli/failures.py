"""Failures of commands: exit codes, errors in one line with the next step, Ctrl-C.

`run` runs the work of every command. Errors before it, such as a bad configuration, reach `conclude` through the group
of commands (`app`).
"""

from __future__ import annotations

import enum
import logging
import math
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, starmap
from typing import TYPE_CHECKING, TextIO, TypeVar

import typer

from mobilemoney_async import errors
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.text import option, visible

if TYPE_CHECKING:
    from mobilemoney_async.configuration.settings import Settings

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

GIVEN: ContextVar[Mapping[str, str]] = ContextVar("GIVEN")
"""The options of the running command that choose the service and the store, by name, as far as they were given."""

OF_THE_SERVICE: frozenset[str] = frozenset({"reconcile", "identify", "recover", "audit", "restored", "rebind"})
"""Commands below `payments` that take the options of the service, too."""

# Between two equal lines of the log, seconds.
_SAME_LINE = 60.0

_COMMAND = re.compile(
    r"\bmobilemoney (?:(payments|payouts|accounts) ([a-z-]+)|collect|disburse|list|get|watch|doctor)\b"
)


class ExitCode(enum.IntEnum):
    """Exit codes of the commands."""

    FINE = 0
    ERROR = 1
    """An error: the service refused or could not be reached, or the user said no."""
    USAGE = 2
    """Wrong usage or configuration; nothing was sent."""
    UNRESOLVED = 3
    """Unknown whether a payment exists. Check before you send it again."""
    NOT_FINAL = 4
    """A payment was not final in time. It may still become final."""
    NOT_SUCCESSFUL = 5
    """A payment is final, and did not succeed."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""


class Refused(Exception):
    """Error of a command, with the next step, in one line for the user."""

    def __init__(self, text: str, exit_code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(text)
        self.exit_code: ExitCode = exit_code


class WrongUsage(Refused):
    """Error in the usage or the configuration, with the next step. Nothing was sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text, ExitCode.USAGE)


class _Interrupted(Exception):
    """Request of the user or the system to stop."""


_LOG_IN = "get a new token: mobilemoney login, or from its issuer"
_FIND_CAUSE = "run `mobilemoney doctor` to find the cause"

ADVICE: dict[type, str] = {
    errors.OutcomeUnknown: "do not send it again before you have looked: mobilemoney list shows whether it exists",
    errors.WaitTimeout: "it may still become final: look again with mobilemoney watch",
    errors.InvalidCredentials: "check e-mail and password; the service limits attempts, so do not guess",
    errors.AuthenticationError: _LOG_IN,
    errors.PermissionDenied: "ask the issuer of the credentials for the permission",
    errors.TransactionNotFound: "check the id and the profile; the service may show a new payment only after a moment",
    errors.InvalidTransactionId: "copy the id from the answer of collect or disburse, or from list",
    errors.RateLimitExceeded: "another program uses up this merchant's requests: wait a minute",
    errors.ServerError: "the service has a fault: try again later",
    errors.UnexpectedResponse: f"is this the service, with its version prefix? {_FIND_CAUSE}",
    errors.IdempotencyConflict: "see that payment with mobilemoney payments show; use another key for another payment",
    errors.DuplicateSuspected: "resolve the other payment first: mobilemoney payments reconcile, or unclaimed",
    errors.LimitExceeded: "pay less (or tomorrow, under a limit of a day), or change the profile's disbursement_limits",
    errors.TransportError: _FIND_CAUSE,
}
"""Next steps after an error of a class, or of its nearest base class; `advise` returns them."""
_EXIT_CODES: dict[type, ExitCode] = {
    errors.InvalidRequest: ExitCode.USAGE,
    errors.OutcomeUnknown: ExitCode.UNRESOLVED,
    errors.WaitTimeout: ExitCode.NOT_FINAL,
}


def copyable(text: str) -> str:
    """Return an advice whose commands have the options of the running command, unknown where it was written."""

    def complete(found: re.Match[str]) -> str:
        group, name = found.groups()
        unknown = set[str]() if group is None or name in OF_THE_SERVICE else {"base-url"}
        if group == "accounts":
            unknown = {"base-url", "account"}
        given = {name: value for name, value in GIVEN.get({}).items() if name not in unknown}
        return " ".join([found[0], *map(shlex.quote, chain.from_iterable(starmap(option, given.items())))])

    return _COMMAND.sub(complete, text)


def advise(exc: Exception, advice: Mapping[type, str] = ADVICE) -> str:
    """Return the next step after an error. A 429 without the service's code is not about the merchant's limit."""
    if isinstance(exc, errors.RateLimitExceeded) and not exc.is_certain:
        return "a gateway or proxy in front of the service limits requests: wait, or ask who runs this address"
    return next((advice[cls] for cls in type(exc).__mro__ if cls in advice), "")


def explain(exc: Exception, settings: Settings | None = None) -> tuple[str, ExitCode]:
    """Return a `MobileMoneyError` or an `OSError` with the next step, as one line, and the exit code."""
    if isinstance(exc, OSError) and not isinstance(exc, MobileMoneyError):
        return _explain_file(exc)
    text = str(exc)
    advice = advise(exc)
    exit_code = next((_EXIT_CODES[cls] for cls in type(exc).__mro__ if cls in _EXIT_CODES), ExitCode.ERROR)
    if isinstance(exc, errors.StoreError) and not advice and exc.is_database:
        advice = _FIND_CAUSE
    if settings is not None:
        text, advice = _name_service(exc, settings, text, advice)
    return copyable(f"{text}; {advice}" if advice else text), exit_code


def _name_service(exc: Exception, settings: Settings, text: str, advice: str) -> tuple[str, str]:
    if advice == _LOG_IN:
        return text, advice.replace("mobilemoney login", settings.login_command)
    if not isinstance(exc, errors.TransportError):
        return text, advice
    if settings.is_built_in and exc.outcome == "not_sent":
        advice = "no sandbox runs there: start one with mobilemoney sandbox, or name a service (--profile)"
    return text if exc.peer is not None else f"{settings.base_url}: {text}", advice


def _explain_file(exc: OSError) -> tuple[str, ExitCode]:
    file = f"{exc.filename}: " if exc.filename else ""
    # Only files that the user named can be missing: those of the configuration. They are searched for from here on.
    exit_code = ExitCode.USAGE if isinstance(exc, FileNotFoundError) else ExitCode.ERROR
    if exit_code is ExitCode.USAGE and not file:
        return "the working directory no longer exists: change to another one", exit_code
    return f"{file}{exc.strerror or type(exc).__name__}", exit_code


def first_error(exc: BaseException) -> BaseException:
    """Return the first error of a group of errors, or the error itself."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def conclude(command: str, exc: BaseException, settings: Settings | None = None) -> typer.Exit | None:
    """Print an error, or the first of a group, in one line, and return the end of the command.

    Returns:
        None, with nothing printed, for a fault of this program, and where the reader of a pipe has left.
    """
    cause = first_error(exc)
    if isinstance(cause, Refused):
        say(command, str(cause))
        return typer.Exit(cause.exit_code)
    if isinstance(cause, BrokenPipeError) or not isinstance(cause, MobileMoneyError | OSError):
        return None
    text, exit_code = explain(cause, settings)
    say(command, text)
    return typer.Exit(exit_code)


def say(command: str, text: str) -> bool:
    """Print one line on standard error, ``mobilemoney COMMAND: text``; return whether that can be written."""
    try:
        typer.echo(f"{typed(command)}: {visible(' '.join(text.split()))}", err=True)
    except OSError:  # a full disk, or a pipe that nobody reads: the exit code still reports the result
        silence(sys.stderr)
        return False
    return True


def silence(stream: TextIO) -> None:
    """Discard output from now on: by its file descriptor, so that what is buffered does not fail at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def typed(command: str) -> str:
    """Return a command as the user types it; without a name, the program itself."""
    return f"mobilemoney {command}".rstrip()


class _LogLines(logging.Handler):
    """Log handler that hands on each line, equal ones once a minute."""

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__(logging.INFO)
        self._say = say
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.created - self._said.get(text, -math.inf) > _SAME_LINE:
            self._said[text] = record.created
            self._say(text)


@contextmanager
def printing_log(say: Callable[[str], object]) -> Iterator[None]:
    """Print the library's warnings."""
    logger, handler = logging.getLogger("mobilemoney_async"), _LogLines(say)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def run(
    command: str,
    work: Callable[[], Awaitable[T]],
    *,
    open_work: Callable[[], Iterable[str]] | None = None,
    settings: Settings | None = None,
) -> T:
    """Run the work of a command, and end the program if it fails.

    Ctrl-C and SIGTERM cancel the work, which cleans up; a second one ends the program at once. After it, a line is
    printed for each payment that is still open, from `open_work`.
    """
    import anyio

    try:
        with printing_log(lambda text: say(command, copyable(text))):
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
    if isinstance(exc, BaseExceptionGroup):  # of a second Ctrl-C, while tasks were still cleaning up
        return exc.subgroup(KeyboardInterrupt) is not None
    return isinstance(exc, _Interrupted | KeyboardInterrupt)


async def _interruptible(work: Callable[[], Awaitable[T]]) -> T:
    import asyncio

    import anyio

    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return await work()
    loop = asyncio.get_running_loop()
    interrupts: list[int] = []
    scope = anyio.CancelScope()

    def interrupt(number: int) -> None:
        # In the event loop, between two steps of the work: the work meets the cancellation at its next await.
        interrupts.append(number)
        # The next signal has its usual effect. The loop keeps its handlers until the end, and so the descriptor by
        # which a signal wakes it: without that, one that comes right before the loop waits is seen too late.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        scope.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        with scope:
            # Work that ends before it meets the cancellation keeps its result.
            return await work()
    except Exception as exc:
        if interrupts:
            raise _Interrupted from exc
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    raise _Interrupted
