"""The logins that `mobilemoney login` keeps.

A file for each profile and URL, which its owner alone can read, never anybody else for a moment. It holds a token
that the service lets expire within the hour, and no password.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import attrs

from mobilemoney_async.calls.tokens import Login, LoginAuth
from mobilemoney_async.cli.profiles import state_folder
from mobilemoney_async.values import Secret

# A token that ends so soon may end on the way.
_MARGIN = timedelta(seconds=30)


class Place(Protocol):
    """Where a login is for: `Settings`, say."""

    @property
    def profile(self) -> str:
        """The profile's name."""
        ...

    @property
    def base_url(self) -> str:
        """The service."""
        ...


@attrs.frozen(kw_only=True)
class KeptLogin:
    """A login that was kept.

    Attributes:
        email: Whose it is.
        token: The access token.
        expires_at: When the service lets it expire, as an aware UTC datetime of this machine's clock.
    """

    email: str
    token: Secret
    expires_at: datetime


def login_command(place: Place, source: str) -> str:
    """Return the command that logs in there, for a person to paste.

    Args:
        place: Where.
        source: Where its URL came from: ``--base-url``, ``profile NAME``, or what needs no flag.
    """
    flags: list[str] = []
    if source.startswith("profile "):
        flags = ["--profile", place.profile]
    elif source == "--base-url":
        flags = ["--base-url", place.base_url]
    return shlex.join(["mobilemoney", "login", *flags])


def find_login(
    place: Place,
    *,
    email: str | None = None,
    now: datetime | None = None,
    environ: Mapping[str, str] = os.environ,
) -> KeptLogin | None:
    """Return the login that was kept for a profile at its URL, unless it has expired or is somebody else's.

    Args:
        place: Of which profile, at which URL.
        email: Whose it must be; None for whoever logged in.
        now: Aware UTC; None for the present.
        environ: Where the files are.
    """
    try:
        kept = json.loads(_file(place, environ).read_text("utf-8"))
        login = KeptLogin(
            email=kept["email"],
            token=Secret(kept["token"]),
            expires_at=datetime.fromisoformat(kept["expires_at"]).astimezone(UTC),
        )
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        # What cannot be read is as good as none: the next login writes it anew.
        return None
    if (kept["profile"], kept["base_url"]) != (place.profile, place.base_url) or email not in {None, login.email}:
        return None
    now = datetime.now(UTC) if now is None else now
    return login if now < login.expires_at - _MARGIN else None


def keep_login(place: Place, login: KeptLogin, *, environ: Mapping[str, str] = os.environ) -> Path:
    """Keep a login in place of an earlier one, and return its file.

    Raises:
        OSError: It cannot be written; an earlier one stays.
    """
    file = _file(place, environ)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Made with 0600 by mkstemp, and renamed when it is whole: at no moment can anybody else read it, or half of it.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".login-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(
                {
                    "profile": place.profile,
                    "base_url": place.base_url,
                    "email": login.email,
                    "token": login.token.reveal(),
                    "expires_at": login.expires_at.isoformat(),
                },
                stream,
            )
        Path(temporary).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return file


def forget_login(place: Place, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Forget the login of a profile at its URL, and return whether there was one.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        _file(place, environ).unlink()
    except FileNotFoundError:
        return False
    return True


def _file(place: Place, environ: Mapping[str, str]) -> Path:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", place.profile)[:40]
    digest = hashlib.sha256(f"{place.profile}\0{place.base_url}".encode()).hexdigest()[:16]
    return state_folder(environ) / "logins" / f"{name}-{digest}.json"


class KeptFirst:
    """Uses a kept login while the service takes it, then logs in: a login less, where logins are limited.

    Args:
        kept: The token of the kept login.
        login: Logs in when the service refuses that.
    """

    def __init__(self, kept: Secret, login: LoginAuth) -> None:
        self._kept: Secret | None = kept
        self._login = login

    def __repr__(self) -> str:
        return "KeptFirst(…)"

    async def token(self, login: Login) -> Secret:
        """Return the kept token, or that of the login."""
        return self._kept if self._kept is not None else await self._login.token(login)

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Forget the kept token, or tell the login."""
        if token == self._kept:
            self._kept = None
        else:
            self._login.rejected(token, replacement=replacement)
