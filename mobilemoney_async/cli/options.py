"""Options and arguments that several commands have in common, prompts, and the question before money moves.

No secret is an option, since other users of the machine can read arguments. It comes from a prompt, the environment or
a file; see `settings`.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, TypeVar

import attrs
import typer

from mobilemoney_async.cli.failures import GIVEN, ExitCode, Refused, WrongUsage
from mobilemoney_async.configuration.profiles import holds_password
from mobilemoney_async.configuration.settings import Settings, load_settings, profile_names
from mobilemoney_async.text import option, visible
from mobilemoney_async.values import normalise_phone_number, require_seconds, tanzanian

T = TypeVar("T")
V = TypeVar("V")

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before real money moves: for scripts.")]
SkipQuestion = Annotated[bool, typer.Option("--yes", "-y", help="Skip the question.")]
Unmasked = Annotated[bool, typer.Option("--unmasked", help="Show whole phone numbers.")]
AllAccounts = Annotated[
    bool, typer.Option("--all-accounts", help="Of all accounts of the store that need someone, instead of one.")
]


def _refuse_password(url: str | None) -> str | None:
    if url is not None and holds_password(url):
        places = "MOBILEMONEY_STORE (or the password in PGPASSWORD or ~/.pgpass)"
        raise typer.BadParameter(f"a URL with a password belongs in {places}: other users can read arguments")
    return url


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the names that complete the value of an option in the shell."""
    return lambda incomplete: [each for each in names() if each.startswith(incomplete)]


_SERVICE_OPTIONS: dict[str, Any] = {
    "profile": typer.Option(
        metavar="NAME",
        autocompletion=completing(profile_names),
        help="The service and credentials: a profile of mobilemoney.toml, or sandbox. Or MOBILEMONEY_PROFILE.",
    ),
    "config": typer.Option(
        metavar="FILE",
        help="The file of profiles, instead of the first mobilemoney.toml. Or MOBILEMONEY_CONFIG.",
    ),
    "base_url": typer.Option(
        metavar="URL",
        help="The service, https://…/v1; credentials of another URL are not sent to it. Or MOBILEMONEY_BASE_URL.",
    ),
    "store": typer.Option(
        metavar="URL",
        callback=_refuse_password,
        help="The payments: sqlite:///payments.db or postgresql+psycopg://user@host/database. Or MOBILEMONEY_STORE.",
    ),
    "account": typer.Option(
        metavar="NAME", help="The account, in a store of several merchants.", show_default="the profile's, or default"
    ),
}


@attrs.frozen(kw_only=True)
class Service:
    """Options of a command that choose the service; None for an option that was not given.

    The store never has a password, which is refused as an argument.
    """

    profile: str | None = None
    config: str | None = None
    base_url: str | None = None
    store: str | None = attrs.field(default=None, repr=False)
    account: str | None = None

    def settings(self) -> Settings:
        """Return the settings from these options, the environment and the file; see `load_settings`."""
        return load_settings(self.profile, self.config, self.base_url, self.store, self.account)

    @property
    def given(self) -> dict[str, str]:
        """The options that were given, by name."""
        given = attrs.asdict(self, filter=lambda _, value: value is not None)
        return {name.replace("_", "-"): value for name, value in given.items()}

    @property
    def flags(self) -> list[str]:
        """The options as they were given, for the next command."""
        return [word for name, value in self.given.items() for word in option(name, value)]

    @property
    def store_flags(self) -> list[str]:
        """The options for a command that reads the store alone."""
        return attrs.evolve(self, base_url=None).flags


def with_service(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the parameter ``service`` of a command by these options, or by all."""
    chosen = names or tuple(_SERVICE_OPTIONS)
    option = inspect.Parameter.KEYWORD_ONLY
    types = {name: Annotated[str | None, _SERVICE_OPTIONS[name]] for name in chosen}
    added = [inspect.Parameter(name, option, default=None, annotation=types[name]) for name in chosen]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            service = Service(**{name: given.pop(name) for name in chosen})
            token = GIVEN.set(service.given)
            try:
                command(service=service, **given)
            finally:
                GIVEN.reset(token)

        signature = inspect.signature(command, eval_str=True)
        parameters = [each for each in signature.parameters.values() if each.name != "service"] + added
        # Typer reads the options off the signature, and the types off the annotations.
        vars(run)["__signature__"] = signature.replace(parameters=parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def require_service(settings: Settings) -> Settings:
    """Return the settings, or raise `Refused` if the user named no service, and the sandbox is only the default.

    A store holds the payments of one service. Another service would not show them, and a key of the sandbox's payments
    would never be paid at the real service.
    """
    if not settings.is_chosen:
        variables = "MOBILEMONEY_BASE_URL and MOBILEMONEY_TOKEN"
        raise WrongUsage(f"no service is named: give --profile (sandbox, for example), or set {variables}")
    return settings


def check(convert: Callable[[V], T], value: V, accepted: str) -> T:
    """Return the value of an argument; the error names the accepted values, and does not repeat the value.

    Raises:
        Refused: The conversion raised a `ValueError`.
    """
    try:
        return convert(value)
    except ValueError:
        raise WrongUsage(accepted) from None


def require_phone_number(text: str, settings: Settings, name: str = "PHONE") -> str:
    """Return a phone number in its normal form, by the profile's `local_numbers`, or raise `Refused`."""
    if settings.local_numbers:
        accepted = f"{name} must be a Tanzanian mobile number, such as 0788 500 000 or +255788500000"
        return check(tanzanian, text, accepted)
    return check(normalise_phone_number, text, f"{name} must be + and 8 to 15 digits, such as +255681234567")


def read_phone_number(text: str | None, settings: Settings) -> str | None:
    """Return the number of an option ``--phone`` as `require_phone_number` does; None if it was not given."""
    return None if text is None else require_phone_number(text, settings)


def check_timeout(timeout: float | None) -> None:
    """Raise `Refused` if the option ``--timeout`` is not a number of seconds."""
    if timeout is not None:
        check(partial(require_seconds, "timeout"), timeout, "--timeout must be a number of seconds, more than 0")


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a prompt as Ctrl-C does; else a hidden one leaves a terminal that does not show what is typed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ask(name: str, otherwise: str, *, is_hidden: bool = False) -> str:
    """Return a line that the user types, or a line of standard input if that is no terminal.

    Raises:
        Refused: The line is blank, and the error names the other ways to give the value; or Ctrl-C or SIGTERM came.
    """
    if sys.stdin.isatty():
        try:
            with _interrupted_by_sigterm():
                answer = str(typer.prompt(name.capitalize(), hide_input=is_hidden, err=True))
        except typer.Abort:
            raise Refused("interrupted", ExitCode.INTERRUPTED) from None
    else:
        # Blanks stay: a password may end with one.
        answer = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not answer.strip():
        raise WrongUsage(f"no {name} was given; {otherwise}")
    return answer


def confirm_money(settings: Settings, text: str, *, yes: bool = False) -> None:
    """Ask before real money moves, as the text says; do nothing with a profile of simulated money, and after ``--yes``.

    Raises:
        Refused: The user said no, or there is no terminal. Nothing was sent.
    """
    if not settings.is_production or yes:
        return
    if not sys.stdin.isatty():
        text = f"profile {settings.profile} moves real money, and there is no terminal to ask on"
        raise WrongUsage(f"{text}; nothing was sent: give --yes")
    typer.echo(visible(f"This moves real money: {text}"), err=True)
    typer.echo(visible(f"profile {settings.profile}, {settings.base_url}"), err=True)
    require_yes("Go on?", otherwise="nothing was sent")


def require_yes(question: str, *, otherwise: str) -> None:
    """Ask a question, and raise `Refused` with the result without a yes, unless the user says yes."""
    try:
        with _interrupted_by_sigterm():
            is_agreed = typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)  # the line of the question has not ended
        if sys.stdin.isatty():
            raise Refused(f"interrupted; {otherwise}", ExitCode.INTERRUPTED) from None
        raise Refused(f"no answer; {otherwise}; --yes skips the question") from None
    if not is_agreed:
        raise Refused(otherwise)
