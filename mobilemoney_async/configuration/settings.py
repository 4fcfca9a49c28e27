"""Settings of a command or a program: service, credentials and store, from options, environment and `mobilemoney.toml`.

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
from typing import Any
from urllib.parse import urlsplit

import attrs

from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.configuration.profiles import Profiles, SettingsSource, invalid, read_environment, read_profiles
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, require_name

SANDBOX = "sandbox"
SANDBOX_URL = "http://127.0.0.1:8765/v1"
"""The default address of `mobilemoney sandbox`."""

_URL = "must be an absolute URL, such as https://pay.example/v1"
_CREDENTIALS = ("MOBILEMONEY_TOKEN", "MOBILEMONEY_EMAIL", "MOBILEMONEY_PASSWORD")


@attrs.frozen(kw_only=True)
class Settings:
    """Service, credentials and store of a command.

    Attributes:
        profile: The profile's name; ``environment`` or ``command line`` for a URL that was given there without one.
        is_production: Whether money is real: unless the profile says otherwise, it is, except on loopback.
        token: An issued token, in place of `email` and `password`.
        store: The URL of an `SQLStore`, which may hold a password; None for none.
        store_key: Encrypts the login token in the store.
        account: The account of the payments, in a store of several merchants.
        store_options: Other arguments of `SQLStore`: what commands and programs must agree about.
        timeout: Of one attempt, seconds; None for the client's default.
        disbursement_limits: Limits of disbursements, or None.
        local_numbers: Whether commands read numbers without their country code as Tanzanian.
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
    store_options: Mapping[str, Any] = attrs.field(factory=dict)
    timeout: float | None = None
    local_numbers: bool = False
    disbursement_limits: DisbursementLimits | None = None
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
        named = {f"profile {self.profile}": ["--profile", self.profile], "--base-url": ["--base-url", self.base_url]}
        return shlex.join(["mobilemoney", "login", *named.get(self.sources.get("base_url", ""), [])])


def load_settings(
    profile: str | None = None,
    config: str | os.PathLike[str] | None = None,
    base_url: str | None = None,
    store: str | None = None,
    account: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings of a command, from its options, where None was not given, and the environment.

    Raises:
        InvalidRequest: A setting is missing, contradicts another, or is not accepted.
        OSError: A file cannot be read.
    """
    profiles, environment = read_profiles(config, environ), read_environment(environ)
    options = {name: value for name, value in (("store", store), ("account", account)) if value is not None}
    target = _choose(profile, base_url, environ, profiles, environment)
    try:
        parts = urlsplit(target.base_url)
        has_more, _ = {"@", "?", "#"} & {*target.base_url}, parts.port
    except ValueError:
        raise invalid("base_url", _URL) from None
    if has_more:  # here, since commands print the URL
        raise invalid("base_url", "must be a URL without user, password, query and fragment")
    values: dict[str, Any] = {}
    sources = {"base_url": target.place}
    # From the weakest to the strongest.
    for source in (*target.uses, SettingsSource(name="options", place="flag", values=options)):
        settings = source.read()
        _remove_other_credentials(values, settings)
        values.update(settings)
        sources.update(dict.fromkeys(settings, source.place))
    if "account" in values:
        require_name("account", values["account"])
    return Settings(
        profile=target.name,
        base_url=target.base_url,
        is_production=values.pop("production", not is_loopback(target.base_url)),
        config=profiles.path,
        secret_files=tuple(file for source in target.uses for file in source.files),
        is_chosen=target.is_chosen,
        sources=sources,
        **values,
    )


def program_settings(
    base_url: str | None = None, *, has_auth: bool = False, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings of a program: by ``MOBILEMONEY_PROFILE`` those of a command, else the environment's alone.

    Args:
        base_url: The program's own, which wins.
        has_auth: Whether the program has credentials of its own.
        environ: The environment.

    Raises:
        InvalidRequest: Variables are missing, all of which it names; or as `load_settings`.
        OSError: A file cannot be read.
    """
    if not isinstance(base_url, str | None):
        raise invalid("base_url", _URL)
    if has_auth:
        environ = {name: value for name, value in environ.items() if not name.startswith(_CREDENTIALS)}
    if environ.get("MOBILEMONEY_PROFILE", "").strip():
        settings = load_settings(base_url=base_url, environ=environ)
    else:
        url = base_url or environ.get("MOBILEMONEY_BASE_URL", "").strip()
        values = read_environment(environ).read()
        settings = Settings(profile="environment", base_url=url, is_production=not is_loopback(url), **values)
    missing = [] if settings.base_url else ["MOBILEMONEY_BASE_URL"]
    if not has_auth and settings.token is None and (settings.email is None or settings.password is None):
        both = "MOBILEMONEY_TOKEN, or MOBILEMONEY_EMAIL and MOBILEMONEY_PASSWORD"
        both += "; `mobilemoney sandbox` prints them" if settings.profile == SANDBOX else ""
        missing.append(both if settings.email is None else "MOBILEMONEY_PASSWORD")
    if missing:
        raise InvalidRequest(f"set {'; and '.join(missing)}", argument=missing[0].partition(",")[0])
    return settings


def names_service(config: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment, or the file's default profile, names the service that the environment is for."""
    return config is not None or _find_home(environ, read_profiles(config, environ)) != (None, None)


def read_store_key(environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the key of a store that the environment names without a service."""
    values = read_environment(environ).values
    of_key = {name: value for name, value in values.items() if name.startswith("store_key")}
    found: Secret | None = SettingsSource(name="environment", values=of_key).read().get("store_key")
    return found


def profile_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of all profiles, for completion: a file that cannot be read has none."""
    try:
        return sorted(read_profiles(None, environ).by_name)
    except (InvalidRequest, OSError):
        return [SANDBOX]


def is_loopback(base_url: str) -> bool:
    """Return whether a URL leads to this machine; an invalid URL does not."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@attrs.frozen
class _Target:
    """Service of a command, and the sources of its other settings.

    `place` is the source of the URL; `uses` are the sources that belong to this service, the weakest first.
    """

    name: str
    base_url: str
    place: str
    uses: tuple[SettingsSource, ...]
    is_chosen: bool = True


def _choose(
    profile: str | None,
    base_url: str | None,
    environ: Mapping[str, str],
    profiles: Profiles,
    environment: SettingsSource,
) -> _Target:
    home_url, home = _find_home(environ, profiles)
    if home_url is None and home is None:
        return _choose_without_home(profile, base_url, profiles, environment)
    of_home = _profile_url(profiles.by_name.get(home or "", SettingsSource(name=home or "")))
    service_url = home_url or (of_home and of_home[0]) or base_url
    if base_url is not None and profile is None and not _is_same(base_url, service_url):
        # The command knows nothing but the URL of this service.
        return _Target("command line", base_url, "--base-url", ())
    is_home = profile in {None, home}
    name = profile or home
    # A URL of the environment needs no profile.
    section = SettingsSource(name=environment.name) if name is None else profiles.get(name)
    url, place = _find_url(base_url, home_url if is_home else None, section)
    uses = (section, environment) if is_home and _is_same(url, service_url) else (section,)
    return _Target(section.name, url, place, uses)


def _find_home(environ: Mapping[str, str], profiles: Profiles) -> tuple[str | None, str | None]:
    """Return URL and profile of the service that the environment belongs to."""
    url, name = (environ.get(f"MOBILEMONEY_{key}", "").strip() or None for key in ("BASE_URL", "PROFILE"))
    return url, name or (profiles.default if url is None else None)


def _choose_without_home(
    profile: str | None, base_url: str | None, profiles: Profiles, environment: SettingsSource
) -> _Target:
    """Choose where the environment names no service: its values go to ``--base-url``, or are refused."""
    if base_url is not None and profile is None:
        return _Target("command line", base_url, "--base-url", (environment,))
    for key in environment.values:
        advice = "set MOBILEMONEY_BASE_URL or MOBILEMONEY_PROFILE too (to sandbox, for example)"
        raise invalid(environment.key(key), f"no service is named for it: {advice}")
    section = profiles.get(profile or SANDBOX)
    url, place = _find_url(base_url, None, section)
    return _Target(section.name, url, place, (section,), is_chosen=profile is not None)


def _profile_url(profile: SettingsSource) -> tuple[str, str] | None:
    """Return the URL of a profile, and its source."""
    if profile.base_url is not None:
        return profile.base_url, f"profile {profile.name}"
    return (SANDBOX_URL, "built in") if profile.name == SANDBOX else None


def _find_url(option: str | None, variable: str | None, profile: SettingsSource) -> tuple[str, str]:
    """Return the URL of a command's service, and its source."""
    for url, source in ((option, "--base-url"), (variable, "MOBILEMONEY_BASE_URL")):
        if url is None:
            continue
        if profile.base_url is not None and not _is_same(url, profile.base_url):
            text = f"not the base_url of profile {profile.name}, whose credentials go to no other service"
            raise invalid(source, f"{text}; give one of the two")
        return url, source
    found = _profile_url(profile)
    if found is None:
        raise invalid(f"profiles.{profile.name}.base_url", "missing: give it in the file, or by --base-url")
    return found


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
