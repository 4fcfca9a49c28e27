"""`mobilemoney login` and `logout`: a token for the commands that follow, kept where its owner alone can read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobilemoney_async.cli.failures import run, say
from mobilemoney_async.cli.options import AsJSON, BaseURLOption, ConfigOption, ProfileOption

if TYPE_CHECKING:
    from datetime import datetime

    from mobilemoney_async.cli.logins import KeptLogin
    from mobilemoney_async.cli.settings import Settings
    from mobilemoney_async.contract.models import LoginResult
    from mobilemoney_async.values import Secret

_STANDARD_INPUT = Path("-")


def login(
    *,
    email: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Who logs in, if the profile does not say.", show_default=False),
    ] = None,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Holds the password; - for standard input. Else you are asked.", show_default=False
        ),
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Keep the token, or only try the login.")] = True,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    as_json: AsJSON = False,
) -> None:
    """Log in, and keep the token until it expires.

    The token is kept in a file of your own, for this profile and URL, and used by the commands that follow. The service
    lets it expire, within the hour by its documentation. The password is kept nowhere.

    The service limits login attempts without saying how: do not guess.
    """
    from mobilemoney_async.cli.logins import keep_login
    from mobilemoney_async.cli.settings import load_settings

    settings = load_settings(profile, config, base_url)
    address, password = _credentials(settings, email, password_file)
    result = run("login", lambda: _log_in(settings, address, password), settings=settings)
    kept = _to_keep(address, result)
    file = keep_login(settings, kept) if save else None
    _report(settings, result, kept.expires_at, file, address, as_json=as_json)


def logout(
    *,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
) -> None:
    """Forget the token that login kept.

    The service shows no way to end a token early: a copy of it works until it expires.
    """
    from mobilemoney_async.cli.logins import forget_login
    from mobilemoney_async.cli.settings import load_settings

    settings = load_settings(profile, config, base_url)
    if forget_login(settings):
        print(f"forgotten: the login of profile {settings.profile}")
    else:
        print(f"no login of profile {settings.profile} was kept")


def _credentials(settings: Settings, email: str | None, password_file: str | None) -> tuple[str, Secret]:
    """Return who logs in and with what; a password belongs to the address that it was configured with."""
    from mobilemoney_async.cli.profiles import read_secret_file
    from mobilemoney_async.cli.prompts import ask, ask_secret

    address = email or settings.email or ask("e-mail", "--email, or MOBILEMONEY_EMAIL")
    if password_file is not None and Path(password_file) != _STANDARD_INPUT:
        return address, read_secret_file(Path(password_file).expanduser())
    if password_file is None and settings.password is not None and address == settings.email:
        return address, settings.password
    return address, ask_secret("password", "--password-file, or MOBILEMONEY_PASSWORD with MOBILEMONEY_EMAIL")


async def _log_in(settings: Settings, email: str, password: Secret) -> LoginResult:
    from mobilemoney_async.calls.tokens import LoginAuth
    from mobilemoney_async.cli.settings import open_client

    # Without the store: its fleet has a login of its own, which this one must not disturb.
    async with open_client(settings, auth=LoginAuth(email, password), store=None) as client:
        return await client.users.login(email, password)


def _to_keep(email: str, result: LoginResult) -> KeptLogin:
    from datetime import UTC, datetime, timedelta

    from mobilemoney_async.cli.logins import KeptLogin
    from mobilemoney_async.values import require_bearer

    # No more than a year: what the service says is not trusted to be a date of this calendar.
    lifetime = timedelta(seconds=max(0, min(result.expires_in, 365 * 86_400)))
    token = require_bearer("access_token", result.access_token)
    return KeptLogin(email=email, token=token, expires_at=datetime.now(UTC) + lifetime)


def _report(
    settings: Settings,
    result: LoginResult,
    expires_at: datetime,
    file: Path | None,
    email: str,
    *,
    as_json: bool,
) -> None:
    from mobilemoney_async.cli.text import mask_email, print_json, visible

    until = f"{expires_at:%Y-%m-%d %H:%M:%S} UTC"
    if as_json:
        print_json(
            {
                "profile": settings.profile,
                "base_url": settings.base_url,
                "user_id": None if result.user is None else result.user.id,
                "email": mask_email(email),
                "expires_at": expires_at.isoformat(timespec="seconds"),
                "file": None if file is None else str(file),
            }
        )
    else:
        name = "" if result.user is None else f"{result.user.first_name} {result.user.last_name} "
        who = f"{name}<{mask_email(email)}>"
        print(visible(f"logged in at {settings.base_url} as {who}, until {until}"))
        print(visible(f"kept in {file}" if file is not None else "nothing was kept"))
    if file is not None and settings.token is not None:
        say(
            "login",
            f"profile {settings.profile} has a token of its own ({settings.sources['token']}), which wins over this "
            "login: take it away to use the login",
        )
