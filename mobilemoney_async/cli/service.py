"""Which service a person chose by flags: its settings, and how a command is written that they are told to run next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mobilemoney_async.cli.settings import Settings, load_settings, open_client

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient

_SQLITE_FILE = re.compile(r"sqlite(?:\+pysqlite)?:///(?!file:)([^?]+)(?:\?.*)?")


@attrs.frozen(kw_only=True)
class Service:
    """The flags with which a command was told which service to talk to; None where one was not given.

    Attributes:
        profile: ``--profile``.
        config: ``--config``.
        base_url: ``--base-url``.
        store: ``--store``; never with a password, which would have been refused.
        account: ``--account``.
    """

    profile: str | None = None
    config: str | None = None
    base_url: str | None = None
    store: str | None = attrs.field(default=None, repr=False)
    account: str | None = None

    def settings(self) -> Settings:
        """Return the settings, of these flags, the environment and the file.

        Raises:
            InvalidRequest: Something is missing, contradicts something else, or is not what it accepts.
            OSError: A file cannot be read.
        """
        return load_settings(self.profile, self.config, self.base_url, self.store, self.account)

    @property
    def flags(self) -> list[str]:
        """The flags as they were given, for the next command."""
        return self._flags(*attrs.fields_dict(type(self)))

    @property
    def store_flags(self) -> list[str]:
        """Those of them that a command takes which looks into the store alone."""
        return self._flags("profile", "config", "store", "account")

    def _flags(self, *names: str) -> list[str]:
        given = [(name, getattr(self, name)) for name in names]
        return [word for name, value in given if value is not None for word in (f"--{name.replace('_', '-')}", value)]


def command_line(*words: str) -> str:
    """Return a command of ours as a person may paste it into a shell."""
    return shlex.join(["mobilemoney", *words])


def missing_file(store: str) -> str | None:
    """Return the SQLite file that a store's URL names, where there is none: a store would make it on first use."""
    file = _SQLITE_FILE.fullmatch(store)
    return file[1] if file is not None and not Path(file[1]).exists() else None


def open_to_look(settings: Settings, **options: Any) -> AsyncClient:
    """Return a client that only looks: with the store, for its share of the rate limit, but without making one.

    Args:
        settings: Which service, whose credentials.
        options: Of `AsyncClient`.

    Raises:
        InvalidRequest: There are no credentials, or a setting is not what it accepts.
    """
    if missing_file(settings.store or "") is not None:
        settings = attrs.evolve(settings, store=None)
    return open_client(settings, **options)
