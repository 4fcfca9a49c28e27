"""`mobilemoney login`, `logout`, `profile` and `otp …`: the user of the credentials, and one-time passwords.

The service does not document its answers about users: commands show them with phone numbers masked, and without the
fields with names like a secret's.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mobilemoney_async.cli.app import add_command, command_group
from mobilemoney_async.cli.clients import KeptLogin, forget_login, keep_login, open_client
from mobilemoney_async.cli.failures import run, say
from mobilemoney_async.cli.options import AsJSON, Service, Unmasked, ask, require_phone_number, with_service
from mobilemoney_async.cli.output import mask_email, plain, print_json, show_facts
from mobilemoney_async.configuration.profiles import read_secret_file
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.redaction import names_secret, without_secrets
from mobilemoney_async.text import redact, shown_id, visible
from mobilemoney_async.values import Secret, require_bearer

if TYPE_CHECKING:
    from mobilemoney_async.contract.models import LoginResult
    from mobilemoney_async.resources.users import Users

_STANDARD_INPUT = Path("-")
# Seconds: the service's number is not trusted to be a date of this calendar.
_LONGEST_LOGIN = 365 * 86_400
# Beside what `names_secret` finds. A one-time password may be a "code".
_SECRET = re.compile("token|otp|pin$|code$|pass_?phrase", re.IGNORECASE)
# Fields with values of many digits that are no phone numbers.
_PLAIN = re.compile("(?:^|_)(?:id|at|date)$", re.IGNORECASE)

otp_app: typer.Typer = command_group(
    help="One-time passwords: request one, verify one.\n\n"
    "The service may require one for some operations; it does not document which.",
    no_args_is_help=True,
)

Phone = Annotated[
    str, typer.Argument(metavar="PHONE", help="In international format: +255681234567; blanks and hyphens are fine.")
]


@with_service("profile", "config", "base_url")
def login(
    *,
    email: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The user's e-mail, if the profile has none.")
    ] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Holds the password; - for standard input. Default: a prompt.")
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Keep the token, or only try the login.")] = True,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Log in, and keep the token until it expires.

    The token is kept in a file of your own, for this profile and URL, and the next commands use it. The service lets it
    expire, within the hour by its documentation. The password is not kept.

    The service limits login attempts and does not document how: do not guess.
    """
    settings = service.settings()
    address, password = _credentials(settings, email, password_file)
    result = run("login", lambda: _log_in(settings, address, password), settings=settings)
    lifetime = timedelta(seconds=max(0, min(result.expires_in, _LONGEST_LOGIN)))
    token = require_bearer("access_token", result.access_token)
    kept = KeptLogin(email=address, token=token, expires_at=datetime.now(UTC) + lifetime)
    file = keep_login(settings, kept) if save else None
    _print_login(settings, result, kept, file, as_json=as_json)


@with_service("profile", "config", "base_url")
def logout(*, service: Service) -> None:
    """Delete the token that login kept.

    The service has no way to end a token early: a copy of it works until it expires.
    """
    settings = service.settings()
    name = settings.profile
    print(f"deleted: the login of profile {name}" if forget_login(settings) else f"no login of profile {name} was kept")


@with_service("profile", "config", "base_url")
def profile(*, as_json: AsJSON = False, unmasked: Unmasked = False, service: Service) -> None:
    """Show the user that the credentials belong to.

    Sends one request, and so tests the credentials.
    """
    _show("profile", service.settings(), lambda users: users.profile(), as_json=as_json, unmasked=unmasked)


@add_command(otp_app, "request")
@with_service("profile", "config", "base_url")
def request_otp(
    phone_number: Phone,
    *,
    purpose: Annotated[
        str, typer.Option(metavar="TEXT", help="Its purpose; the default is the only documented value.")
    ] = "transaction_verification",
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Have a one-time password sent to a phone."""
    settings = service.settings()
    number = require_phone_number(phone_number, settings)
    _show("otp request", settings, lambda users: users.request_otp(number, purpose), as_json=as_json)


@add_command(otp_app, "verify")
@with_service("profile", "config", "base_url")
def verify_otp(phone_number: Phone, *, as_json: AsJSON = False, service: Service) -> None:
    """Verify a one-time password from a hidden prompt or standard input."""
    settings = service.settings()
    number = require_phone_number(phone_number, settings)  # before the user types the code
    code = Secret(ask("one-time password", "give it on standard input", is_hidden=True))
    _show("otp verify", settings, lambda users: users.verify_otp(number, code), as_json=as_json)


def _credentials(settings: Settings, email: str | None, password_file: str | None) -> tuple[str, Secret]:
    """Return e-mail and password; a configured password goes with its own e-mail only."""
    address = email or settings.email or ask("e-mail", "--email, or MOBILEMONEY_EMAIL")
    if password_file is not None and Path(password_file) != _STANDARD_INPUT:
        return address, read_secret_file(Path(password_file).expanduser())
    if password_file is None and settings.password is not None and address == settings.email:
        return address, settings.password
    otherwise = "--password-file, or MOBILEMONEY_PASSWORD with MOBILEMONEY_EMAIL"
    return address, Secret(ask("password", otherwise, is_hidden=True))


async def _log_in(settings: Settings, email: str, password: Secret) -> LoginResult:
    from mobilemoney_async.calls.tokens import LoginAuth

    # Without the store: its processes share a login of their own, which this one must not replace.
    async with open_client(settings, auth=LoginAuth(email, password), store=None) as client:
        return await client.users.login(email, password)


def _print_login(settings: Settings, result: LoginResult, kept: KeptLogin, file: Path | None, *, as_json: bool) -> None:
    user = result.user
    if as_json:
        print_json(
            {
                "profile": settings.profile,
                "base_url": settings.base_url,
                "user_id": user and user.id,
                "email": mask_email(kept.email),
                "expires_at": kept.expires_at.isoformat(timespec="seconds"),
                "file": file and str(file),
            }
        )
    else:
        names = () if user is None else (user.first_name, user.last_name)
        name = "".join(f"{each} " for each in names if each)
        until = f"{kept.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        print(visible(f"logged in at {settings.base_url} as {name}<{mask_email(kept.email)}>, until {until}"))
        print(visible(f"kept in {file}" if file is not None else "the token was not kept"))
    if file is not None and settings.token is not None:
        wins = f"has a token of its own ({settings.sources['token']}), which wins over this login"
        say("login", f"profile {settings.profile} {wins}: remove it to use the login")


def _show(
    command: str,
    settings: Settings,
    call: Callable[[Users], Awaitable[dict[str, Any]]],
    *,
    as_json: bool,
    unmasked: bool = False,
) -> None:
    """Print the service's answer to a call."""

    async def work() -> dict[str, Any]:
        async with open_client(settings) as client:
            return await call(client.users)

    answer = run(command, work, settings=settings)
    shown = plain(_without_secrets(answer, unmasked=unmasked), unmasked=unmasked)
    if as_json:
        print_json(shown)
    elif facts := dict(_facts(shown)):
        show_facts(facts)
    else:
        print("done; the service's answer is empty")


def _without_secrets(value: Any, *, unmasked: bool, name: str = "") -> Any:
    """Return an undocumented answer without secrets, and with its phone numbers masked."""
    if isinstance(value, dict):
        shown = {each: inside for each, inside in value.items() if not _SECRET.search(each) and not names_secret(each)}
        return {
            _shown(each, unmasked=unmasked): _without_secrets(inside, unmasked=unmasked, name=each)
            for each, inside in shown.items()
        }
    if isinstance(value, list):
        return [_without_secrets(each, unmasked=unmasked, name=name) for each in value]
    if value is None or isinstance(value, bool):
        return value
    shown_value = _shown(str(value), unmasked=unmasked, name=name)
    return value if shown_value == str(value) else shown_value


def _shown(text: str, *, unmasked: bool, name: str = "") -> str:
    """Return a text or a number of an undocumented answer, with care."""
    if unmasked:
        return without_secrets(text)
    return shown_id(text) if _PLAIN.search(name) else redact(text)


def _facts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield each value of an answer with its path: ``user.email``."""
    if isinstance(value, list):
        value = dict(enumerate(value, start=1))
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _facts(inside, (*path, str(key)))
    else:
        yield ".".join(path), str(value).lower() if isinstance(value, bool) else str(value)
