"""`mobilemoney profile` and `mobilemoney otp …`: the user behind the credentials, and one-time passwords.

The service does not document what it answers here: it is shown as it is, with phone numbers masked and whatever is
named like a secret left out.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mobilemoney_async.cli.failures import require_phone_number, run
from mobilemoney_async.cli.lazy import lazy_group
from mobilemoney_async.cli.options import AsJSON, BaseURLOption, ConfigOption, ProfileOption, Unmasked

if TYPE_CHECKING:
    from mobilemoney_async.cli.settings import Settings
    from mobilemoney_async.resources.users import Users

_PHONE_NUMBER = re.compile(r"\+[0-9][0-9 -]{6,}[0-9]")
_SECRET = re.compile("password|token|secret|otp|pin$|code$", re.IGNORECASE)

otp_app: typer.Typer = typer.Typer(
    cls=lazy_group(),
    help="One-time passwords: request one, verify one.\n\n"
    "Some operations of the service may ask for one; which, it does not document.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
)

Phone = Annotated[
    str,
    typer.Argument(
        metavar="PHONE", help="In international format: +255681234567; blanks and hyphens are fine.", show_default=False
    ),
]


def profile(
    *,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
) -> None:
    """Show the user behind the credentials.

    This also tries whether the credentials work. Sends one request.
    """
    from mobilemoney_async.cli.settings import load_settings

    answer = _ask("profile", load_settings(profile, config, base_url), lambda users: users.profile())
    _print_answer(answer, as_json=as_json, unmasked=unmasked)


@otp_app.command("request")
def request_otp(
    phone_number: Phone,
    *,
    purpose: Annotated[
        str, typer.Option(metavar="TEXT", help="What it is for; the default is the one value that is documented.")
    ] = "transaction_verification",
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    as_json: AsJSON = False,
) -> None:
    """Have a one-time password sent to a phone."""
    from mobilemoney_async.cli.settings import load_settings

    settings = load_settings(profile, config, base_url)
    number = require_phone_number(phone_number)
    answer = _ask("otp request", settings, lambda users: users.request_otp(number, purpose))
    _print_answer(answer, as_json=as_json, unmasked=False)


@otp_app.command("verify")
def verify_otp(
    phone_number: Phone,
    *,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    as_json: AsJSON = False,
) -> None:
    """Verify a one-time password, for which you are asked; or give it on standard input."""
    from mobilemoney_async.cli.prompts import ask_secret
    from mobilemoney_async.cli.settings import load_settings

    settings = load_settings(profile, config, base_url)
    number = require_phone_number(phone_number)  # before the person types the code
    code = ask_secret("one-time password", "give it on standard input")
    answer = _ask("otp verify", settings, lambda users: users.verify_otp(number, code))
    _print_answer(answer, as_json=as_json, unmasked=False)


def _ask(command: str, settings: Settings, call: Callable[[Users], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    from mobilemoney_async.cli.settings import open_client

    async def ask() -> dict[str, Any]:
        async with open_client(settings) as client:
            return await call(client.users)

    return run(command, ask, settings=settings)


def _print_answer(answer: dict[str, Any], *, as_json: bool, unmasked: bool) -> None:
    from mobilemoney_async.cli.text import literal, plain, print_json, show

    shown = plain(_discreet(answer, unmasked=unmasked), unmasked=unmasked)
    if as_json:
        print_json(shown)
        return
    rows = list(_rows(shown))
    if not rows:
        print("done; the service said nothing")
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(literal(name), literal(value))
    show(table)


def _discreet(value: Any, *, unmasked: bool) -> Any:
    """Return an undocumented answer without what is named like a secret, its phone numbers masked."""
    from mobilemoney_async.values import mask_phone_number

    if isinstance(value, dict):
        return {
            name: _discreet(inside, unmasked=unmasked) for name, inside in value.items() if not _SECRET.search(name)
        }
    if isinstance(value, list):
        return [_discreet(each, unmasked=unmasked) for each in value]
    if isinstance(value, str) and not unmasked:
        return _PHONE_NUMBER.sub(lambda found: mask_phone_number(found[0]), value)
    return value


def _rows(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value of an answer with its path: ``user.email``."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _rows(inside, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, inside in enumerate(value, start=1):
            yield from _rows(inside, f"{name}.{number}")
    else:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)
