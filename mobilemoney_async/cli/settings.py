"""Settings of a command: service, credentials and store, from its options, the environment and `mobilemoney.toml`.

Options win over the environment, and the environment over the file. In any case the credentials of one service must not
go to the URL of another, and the payments of one must not go into the store of another. So:

- A profile is one service. Another URL for it is refused.
- The environment belongs to one service: that of ``MOBILEMONEY_BASE_URL``, else of the profile in
  ``MOBILEMONEY_PROFILE``, else of the file's default profile. A command for another service uses nothing of it.
- Credentials or a store in an environment without a service are refused, unless ``--base-url`` names one.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import attrs

from mobilemoney_async.cli.profiles import Profile, Profiles, invalid, read_profiles, read_secret_file
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, require_bearer, require_name

SANDBOX = "sandbox"
SANDBOX_URL = "http://127.0.0.1:8765/v1"
"""The default address of `mobilemoney sandbox`."""

# Names of the profile for a URL that was given without one.
_FROM_ENVIRONMENT, _FROM_OPTIONS = "environment", "command line"
_CREDENTIALS = ("TOKEN", "TOKEN_FILE", "EMAIL", "PASSWORD", "PASSWORD_FILE")


@attrs.frozen(kw_only=True)
class Settings:
    """Service, credentials and store of a command.

    Attributes:
        profile: The profile's name; ``environment`` or ``command line`` for a URL that was given there without one.
        base_url: The service, with its version prefix.
        is_production: Whether money is real: unless the profile says otherwise, it is, except on loopback.
        token: An issued token.
        email: Logs in together with `password`.
        password: The password.
        store: The URL of an `SQLStore`, which may hold a password; None for none.
        store_key: Encrypts the login token in the store.
        account: The account of the payments, in a store of several merchants.
        timeout: Of one attempt, seconds; None for the client's default.
        config: The file that was read, or None.
        secret_files: The files that secrets came from.
        is_chosen: Whether the user named the profile or the URL; False if the sandbox is only the default.
        sources: The source of each setting, by the attribute's name: for messages, never secret.
    """

    profile: str
    base_url: str
    is_production: bool
    token: Secret | None = None
    email: str | None = None
    password: Secret | None = None
    store: str | None = attrs.field(default=None, repr=False)
    store_key: Secret | None = None
    account: str = "default"
    timeout: float | None = None
    config: Path | None = None
    secret_files: tuple[Path, ...] = ()
    is_chosen: bool = True
    sources: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def is_built_in(self) -> bool:
        """True for the default sandbox, which needs no configuration."""
        return self.sources.get("base_url") == "built in"

    @property
    def is_sandbox(self) -> bool:
        """True if the service counts as a sandbox on this machine."""
        return is_loopback(self.base_url) and not self.is_production

    @property
    def login_command(self) -> str:
        """The command that logs in at this service, for the user to paste."""
        source = self.sources.get("base_url", "")
        flags: list[str] = []
        if source.startswith("profile "):
            flags = ["--profile", self.profile]
        elif source == "--base-url":
            flags = ["--base-url", self.base_url]
        return shlex.join(["mobilemoney", "login", *flags])


def load_settings(
    profile: str | None = None,
    config: str | os.PathLike[str] | None = None,
    base_url: str | None = None,
    store: str | None = None,
    account: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings of a command.

    Args:
        profile: The option ``--profile``; None if it was not given, as for the others.
        config: The option ``--config``.
        base_url: The option ``--base-url``.
        store: The option ``--store``.
        account: The option ``--account``.
        environ: The environment.

    Raises:
        InvalidRequest: A setting is missing, contradicts another, or is not accepted.
        OSError: A file cannot be read.
    """
    prefix = "MOBILEMONEY_"
    variables = {k.removeprefix(prefix): v for k, v in environ.items() if k.startswith(prefix) and v.strip()}
    profiles = read_profiles(config, environ)
    target = _choose(profile, base_url, variables, profiles)
    values: dict[str, Any] = {}
    sources = {"base_url": target.source}
    layers = (
        _profile_values(target.profile, profiles),
        _environment_values(variables) if target.uses_environment else ({}, ""),
        ({name: value for name, value in (("store", store), ("account", account)) if value is not None}, "flag"),
    )
    for layer, source in layers:
        _remove_other_credentials(values, layer)
        values.update(layer)
        sources.update(dict.fromkeys(layer, source))
    if values.get("account") is not None:
        require_name("account", values["account"])
    if "@" in urlsplit(target.base_url).netloc:
        raise invalid("base_url", "must be a URL without user and password")  # here, since commands print the URL
    is_production = values.pop("production", None)
    return Settings(
        profile=target.name,
        base_url=target.base_url,
        is_production=not is_loopback(target.base_url) if is_production is None else is_production,
        config=profiles.path,
        secret_files=_secret_files(target, variables),
        is_chosen=target.is_chosen,
        sources=sources,
        **values,
    )


def profile_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of all profiles, for completion: a file that cannot be read has none."""
    try:
        found = read_profiles(None, environ)
    except (InvalidRequest, OSError):
        return [SANDBOX]
    return sorted({SANDBOX, *found.by_name})


def is_loopback(base_url: str) -> bool:
    """Return whether a URL leads to this machine; an invalid URL does not."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@attrs.frozen(kw_only=True)
class _Target:
    """Service of a command.

    Attributes:
        name: The profile's name, or a name in its place.
        base_url: The service.
        source: The source of the URL.
        profile: Its profile, or None.
        uses_environment: Whether the environment's credentials and store belong to it.
        is_chosen: Whether the user named it.
    """

    name: str
    base_url: str
    source: str
    profile: Profile | None
    uses_environment: bool
    is_chosen: bool = True


@attrs.frozen(kw_only=True)
class _Home:
    """Service that the environment belongs to.

    Attributes:
        url: ``MOBILEMONEY_BASE_URL``, or None.
        profile: ``MOBILEMONEY_PROFILE``, or without a URL the file's default profile, or None.
    """

    url: str | None
    profile: str | None

    @classmethod
    def of(cls, variables: Mapping[str, str], profiles: Profiles) -> Self:
        url = variables.get("BASE_URL")
        return cls(url=url, profile=variables.get("PROFILE") or (None if url else profiles.default))

    @property
    def is_missing(self) -> bool:
        return self.url is None and self.profile is None

    def find_url(self, option: str | None, profiles: Profiles) -> str | None:
        """Return its URL; for a profile without one, that of the option ``--base-url``."""
        if self.url is not None or self.profile is None:
            return self.url
        profile = profiles.by_name.get(self.profile)
        if profile is not None and profile.base_url is not None:
            return profile.base_url
        return SANDBOX_URL if self.profile == SANDBOX else option


def _choose(profile: str | None, base_url: str | None, variables: Mapping[str, str], profiles: Profiles) -> _Target:
    home = _Home.of(variables, profiles)
    home_url = home.find_url(base_url, profiles)
    if home.is_missing and (base_url is None or profile is not None):
        _refuse_without_service(variables)
    if base_url is not None and profile is None and not _is_same(base_url, home_url):
        # The command knows nothing but the URL of this service.
        return _Target(
            name=_FROM_OPTIONS,
            base_url=base_url,
            source="--base-url",
            profile=None,
            uses_environment=home.is_missing,
        )
    is_home = profile in {None, home.profile}
    name = profile or home.profile or (SANDBOX if home.is_missing else None)
    section = None if name is None else profiles.get(name)
    url, source = _find_url(base_url, home.url if is_home else None, section)
    return _Target(
        name=_FROM_ENVIRONMENT if section is None else section.name,
        base_url=url,
        source=source,
        profile=section,
        uses_environment=is_home and _is_same(url, home_url),
        is_chosen=not home.is_missing or profile is not None,
    )


def _find_url(option: str | None, variable: str | None, profile: Profile | None) -> tuple[str, str]:
    """Return the URL of a command's service, and its source."""
    own = None if profile is None else profile.base_url
    for url, source in ((option, "--base-url"), (variable, "MOBILEMONEY_BASE_URL")):
        if url is None:
            continue
        if profile is not None and own is not None and not _is_same(url, own):
            raise invalid(
                source,
                f"not the base_url of profile {profile.name}, whose credentials go to no other service; "
                "give one of the two",
            )
        return url, source
    if profile is None or (own is None and profile.name == SANDBOX):
        return SANDBOX_URL, "built in"
    if own is None:
        raise invalid(f"profiles.{profile.name}.base_url", "missing: give it in the file, or by --base-url")
    return own, f"profile {profile.name}"


def _refuse_without_service(variables: Mapping[str, str]) -> None:
    for name in (*_CREDENTIALS, "STORE", "STORE_KEY"):
        if name in variables:
            raise invalid(
                f"MOBILEMONEY_{name}",
                "no service is named for it: set MOBILEMONEY_BASE_URL or MOBILEMONEY_PROFILE too (to sandbox, for "
                "example)",
            )


def _profile_values(profile: Profile | None, profiles: Profiles) -> tuple[dict[str, Any], str]:
    if profile is None:
        return {}, ""
    values = {key: value for key, value in profile.values.items() if key != "base_url"}
    for name in ("token", "password", "store_key"):
        file = values.pop(f"{name}_file", None)
        if file is not None:
            values[name] = _read(name, file)
    if "token" in values:
        values["token"] = require_bearer(f"profiles.{profile.name}.token", values["token"])
    return values, f"{profiles.path}"


def _environment_values(variables: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    for group in (("TOKEN", "TOKEN_FILE", "EMAIL"), ("PASSWORD", "PASSWORD_FILE")):
        if len(both := [name for name in group if name in variables]) > 1:
            first, second = (f"MOBILEMONEY_{name}" for name in both[:2])
            raise InvalidRequest(f"{first} and {second} are both set: unset one", argument=second)
    values: dict[str, Any] = {name.lower(): variables[name] for name in ("EMAIL", "STORE") if name in variables}
    for name in ("TOKEN", "PASSWORD", "STORE_KEY"):
        if name in variables:
            values[name.lower()] = Secret(variables[name])
        elif f"{name}_FILE" in variables:
            values[name.lower()] = _read(name.lower(), Path(variables[f"{name}_FILE"]).expanduser())
    if "token" in values:
        values["token"] = require_bearer("MOBILEMONEY_TOKEN", values["token"])
    return values, "environment"


def _secret_files(target: _Target, variables: Mapping[str, str]) -> tuple[Path, ...]:
    files = [] if target.profile is None else [v for k, v in target.profile.values.items() if k.endswith("_file")]
    if target.uses_environment:
        files += [Path(variables[name]).expanduser() for name in ("TOKEN_FILE", "PASSWORD_FILE") if name in variables]
    return tuple(files)


def _read(name: str, file: Path) -> Secret:
    secret = read_secret_file(file)
    # A password may begin or end with a blank; a token cannot.
    return Secret(secret.reveal().strip()) if name == "token" else secret


def _remove_other_credentials(values: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Remove the credentials that a layer replaces: a password must not go with another user's e-mail address."""
    if "token" in layer or "email" in layer:
        for name in ("token", "email", "password"):
            values.pop(name, None)
    elif "password" in layer:
        values.pop("token", None)


def _is_same(url: str | None, other: str | None) -> bool:
    return url is not None and other is not None and _normal(url) == _normal(other)


def _normal(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
    except ValueError:
        return url
