"""Client, store and credentials of a command, from its settings; and the logins that `mobilemoney login` keeps.

A kept login is a file for one profile and URL, which only its owner can read, from its first moment. It holds a token
that the service lets expire within the hour, and no password.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from mobilemoney_async.calls.tokens import Login, LoginAuth, TokenAuth, TokenSource
from mobilemoney_async.configuration.profiles import invalid, state_folder
from mobilemoney_async.configuration.settings import Settings, is_loopback
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.store import SQLStore

_SQLITE_FILE = re.compile(r"sqlite(?:\+pysqlite)?:///([^?]+)(?:\?.*)?")
# A token that expires sooner may expire on its way to the service.
_MARGIN = timedelta(seconds=30)
_FOR_EVER = 36_500  # days


@attrs.frozen(kw_only=True)
class KeptLogin:
    """Login in a file; the token expires at a UTC time of this machine's clock."""

    email: str
    token: Secret
    expires_at: datetime


class KeptFirst:
    """Credentials that use a kept login until the service refuses it, and then log in: logins are limited."""

    def __init__(self, kept: Secret, login: LoginAuth) -> None:
        self._kept: Secret | None = kept
        self._login = login

    def __repr__(self) -> str:
        return "KeptFirst(…)"

    async def token(self, login: Login) -> Secret:
        """Return the kept token, or that of the login."""
        return self._kept if self._kept is not None else await self._login.token(login)

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Drop the kept token, or report the rejection to the login."""
        if token == self._kept:
            self._kept = None
        else:
            self._login.rejected(token, replacement=replacement)

    def suspected(self, token: Secret) -> None:
        """Drop the kept token, or leave it to the login."""
        if token == self._kept:
            self._kept = None
        else:
            self._login.suspected(token)


def open_client(settings: Settings, **options: Any) -> AsyncClient:
    """Return a client of the service, with its store if there is one; options win over settings. The caller closes it.

    Raises:
        InvalidRequest: There are no credentials, or a setting is not accepted.
    """
    from mobilemoney_async.client import AsyncClient

    if "auth" not in options:
        options["auth"] = choose_auth(settings)
    if "store" not in options and settings.store is not None:
        options["store"] = open_store(settings)
    if settings.timeout is not None:
        options.setdefault("timeout", settings.timeout)
    options.setdefault("disbursement_limits", settings.disbursement_limits)
    return AsyncClient(settings.base_url, **options)


def open_reader(settings: Settings, **options: Any) -> AsyncClient:
    """Like `open_client` for a client that only reads: with the store for its rate limit, but without making one."""
    if missing_file(settings) is not None:
        settings = attrs.evolve(settings, store=None)
    return open_client(settings, **options)


def missing_file(settings: Settings) -> Path | None:
    """Return the file of the SQLite store if it does not exist, else None: a store makes it on first use."""
    named = _SQLITE_FILE.fullmatch(settings.store or "")
    return None if named is None or os.path.exists(file := Path(named[1])) else file


def open_store(settings: Settings, **options: Any) -> SQLStore:
    """Return the store of the settings; its errors name the settings of the command line."""
    from mobilemoney_async.payments.store import SQLStore

    # Without a profile that says so a command removes nothing that the program keeps.
    given = {"keep_changes": _FOR_EVER, **settings.store_options, **options}
    try:
        return SQLStore(settings.store or "", settings.account, key=settings.store_key, **given)
    except InvalidRequest as exc:
        name = {"url": "store", "key": "store key"}.get(exc.argument, exc.argument)
        raise invalid(name, exc.problem) from None


def choose_auth(settings: Settings) -> TokenSource:
    """Return the credentials of a profile: an issued token, else a kept login, else e-mail and password.

    A sandbox on loopback without credentials gets the token that `mobilemoney sandbox` prints.

    Raises:
        InvalidRequest: There are none.
    """
    if settings.token is not None:
        return TokenAuth(settings.token)
    password_login = None
    if settings.email is not None and settings.password is not None:
        password_login = LoginAuth(settings.email, settings.password)
    if (kept := find_login(settings, email=settings.email)) is not None:
        return TokenAuth(kept.token) if password_login is None else KeptFirst(kept.token, password_login)
    if password_login is not None:
        return password_login
    if settings.email is None and settings.is_sandbox:
        return TokenAuth(sandbox_token())
    if urlsplit(settings.base_url).scheme != "https" and not is_loopback(settings.base_url):
        # No credentials would help: the client refuses the URL.
        raise invalid("base_url", "must be https, or http on loopback only: a token is never sent in clear text")
    ways = f"{settings.login_command}, or MOBILEMONEY_TOKEN, or token_file in a profile"
    problem = f"no credentials are known for {settings.base_url}"
    raise InvalidRequest(f"{problem}: {ways}", argument="credentials", problem=problem, advice=ways)


def describe_auth(settings: Settings) -> str:
    """Return the credentials of `choose_auth` in words, and their source."""
    if settings.token is not None:
        return f"token from {settings.sources['token']}"
    if (kept := find_login(settings, email=settings.email)) is not None:
        return f"login kept until {kept.expires_at:%H:%M:%S} UTC"
    if settings.email is not None:
        return f"e-mail and password from {settings.sources['email']}"
    return "the sandbox's token" if settings.is_sandbox else "none are known"


def sandbox_token() -> str:
    """Return the token of a sandbox with the default seed. It is no secret: it opens nothing else."""
    from mobilemoney_async.sandbox import Sandbox

    return Sandbox(seed=0).token


def find_login(settings: Settings, *, email: str | None = None, now: datetime | None = None) -> KeptLogin | None:
    """Return the kept login of a profile at its URL, unless it has expired or belongs to another user.

    Without an e-mail, the login of any user counts.
    """
    try:
        kept = json.loads(_login_file(settings).read_text("utf-8"))
        expires_at = datetime.fromisoformat(kept["expires_at"]).astimezone(UTC)
        login = KeptLogin(email=kept["email"], token=Secret(kept["token"]), expires_at=expires_at)
    except (FileNotFoundError, KeyError, TypeError, ValueError, RecursionError):
        # A file that cannot be read counts as none: the next login replaces it.
        return None
    if (kept["profile"], kept["base_url"]) != (settings.profile, settings.base_url):
        return None
    now = datetime.now(UTC) if now is None else now
    return login if email in {None, login.email} and now < login.expires_at - _MARGIN else None


def keep_login(settings: Settings, login: KeptLogin) -> Path:
    """Write a login to its file, in place of an earlier one, and return the file.

    If the file cannot be written (`OSError`), an earlier one stays.
    """
    file = _login_file(settings)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    values = {"profile": settings.profile, "base_url": settings.base_url, "email": login.email}
    values |= {"token": login.token.reveal(), "expires_at": login.expires_at.isoformat()}
    # mkstemp makes the file with mode 0600, and it is renamed when it is whole: another process sees the old login or
    # the new one, never half a file.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".login-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(values, stream)
        Path(temporary).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return file


def forget_login(settings: Settings) -> bool:
    """Delete the kept login of a profile at its URL, and return whether there was one."""
    file = _login_file(settings)
    is_kept = file.exists()
    file.unlink(missing_ok=True)
    return is_kept


def _login_file(settings: Settings) -> Path:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", settings.profile)[:40]
    digest = hashlib.sha256(f"{settings.profile}\0{settings.base_url}".encode(errors="surrogatepass")).hexdigest()[:16]
    return state_folder(os.environ) / "logins" / f"{name}-{digest}.json"
