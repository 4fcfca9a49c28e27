"""The options that many commands take. Importing this imports neither the client nor rich's tables.

What is secret is no option: other users of the machine can read arguments. It comes from a prompt, the environment or
a file; see `settings`.
"""

from __future__ import annotations

from typing import Annotated

import typer


def refuse_password(url: str | None) -> str | None:
    """Return the URL of a store, or refuse one that shows a password to the whole machine."""
    from mobilemoney_async.cli.profiles import holds_password

    if url is not None and holds_password(url):
        raise typer.BadParameter(
            "a URL with a password belongs in MOBILEMONEY_STORE (or the password in PGPASSWORD or ~/.pgpass): "
            "other users of this machine can read arguments"
        )
    return url


def _profiles(incomplete: str) -> list[str]:
    from mobilemoney_async.cli.settings import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        autocompletion=_profiles,
        help="Which service and credentials: a profile of mobilemoney.toml, or sandbox. Or MOBILEMONEY_PROFILE.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The file with the profiles, if not the mobilemoney.toml that is found. Or MOBILEMONEY_CONFIG.",
        show_default=False,
    ),
]
BaseURLOption = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="The service with its version prefix, https://…/v1; credentials of another URL are not sent to it. "
        "Or MOBILEMONEY_BASE_URL.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        callback=refuse_password,
        help="Where payments are remembered: sqlite:///payments.db or postgresql+psycopg://user@host/database. "
        "Or MOBILEMONEY_STORE.",
        show_default=False,
    ),
]
AccountOption = Annotated[
    str | None,
    typer.Option(
        "--account",
        metavar="NAME",
        help="Whose payments, where merchants share a store.",
        show_default="the profile's, or default",
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before real money moves: for scripts.")]
Unmasked = Annotated[bool, typer.Option("--unmasked", help="Show phone numbers whole.")]
