"""Which service a command talks to, with whose credentials and store: flags, environment, `mobilemoney.toml`.

Flags win over the environment, and the environment over the file. Whatever wins, two things must never be mixed: the
credentials of one service must not go to the URL of another, and the payments of one must not be written into the
store of another. So:

- A profile is one service. Another URL for it is refused.
- What the environment says belongs together and to one service, its home: ``MOBILEMONEY_BASE_URL``, else the profile
  that ``MOBILEMONEY_PROFILE`` names, else the file's default profile. A command that asks for another service by its
  flags uses none of it.
- Credentials or a store in an environment without a home are refused, unless ``--base-url`` says where they go.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from mobilemoney_async.cli.profiles import Profile, Profiles, read_profiles, read_secret_file
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, refuse, require_bearer, require_name

if TYPE_CHECKING:
    from mobilemoney_async.calls.tokens import TokenSource
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.store import SQLStore

SANDBOX = "sandbox"
SANDBOX_URL = "http://127.0.0.1:8765/v1"
"""Where `mobilemoney sandbox` serves unless it is told otherwise."""

# In place of a profile's name, where a URL was given and no profile.
_FROM_ENVIRONMENT, _FROM_FLAGS = "environment", "command line"
_CREDENTIALS = ("TOKEN", "TOKEN_FILE", "EMAIL", "PASSWORD", "PASSWORD_FILE")


@attrs.frozen(kw_only=True)
class Settings:
    """What a command needs to know of the service.

    Attributes:
        profile: The profile's name; ``environment`` or ``command line`` where a URL was given there and no profile.
        base_url: The service, with its version prefix.
        is_production: Whether money is real: unless the profile says otherwise, whatever is not on loopback.
        token: An issued token.
        email: Logs in together with `password`.
        password: The password.
        store: The URL of an `SQLStore`, which may hold a password; None for none.
        store_key: Encrypts the login token in the store.
        account: Whose payments, where merchants share a store.
        timeout: One attempt in all, seconds; None for the client's default.
        config: The file that was read, or None.
        secret_files: The files that secrets came from.
        is_chosen: Whether somebody named the profile or the URL: False where the sandbox is what is left.
        sources: Where each came from, by the attribute's name: for people, never secret.
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
        """Whether it is the sandbox that nobody configured."""
        return self.sources.get("base_url") == "built in"


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
        profile: The flag ``--profile``; None where it was not given, as for the others.
        config: The flag ``--config``.
        base_url: The flag ``--base-url``.
        store: The flag ``--store``.
        account: The flag ``--account``.
        environ: The environment.

    Raises:
        InvalidRequest: Something is missing, contradicts something else, or is not what it accepts.
        OSError: A file cannot be read.
    """
    variables = {
        name.removeprefix("MOBILEMONEY_"): value
        for name, value in environ.items()
        if name.startswith("MOBILEMONEY_") and value.strip()
    }
    profiles = read_profiles(config, environ)
    target = _choose(profile, base_url, variables, profiles)
    values: dict[str, Any] = {}
    sources = {"base_url": target.source}
    layers = (
        _of_profile(target.profile, profiles),
        _of_environment(variables) if target.uses_environment else ({}, ""),
        ({name: value for name, value in (("store", store), ("account", account)) if value is not None}, "flag"),
    )
    for layer, source in layers:
        _forget_other_credentials(values, layer)
        values.update(layer)
        sources.update(dict.fromkeys(layer, source))
    if values.get("account") is not None:
        require_name("account", values["account"])
    if "@" in urlsplit(target.base_url).netloc:
        raise refuse("base_url", "a URL without user and password")  # here, since it is shown to people
    said = values.pop("production", None)
    return Settings(
        profile=target.name,
        base_url=target.base_url,
        is_production=not is_loopback(target.base_url) if said is None else said,
        config=profiles.path,
        secret_files=_secret_files(target, variables),
        is_chosen=target.is_chosen,
        sources=sources,
        **values,
    )


def open_client(settings: Settings, **options: Any) -> AsyncClient:
    """Return a client of the service, with the store where there is one. Whoever opens it closes it.

    Args:
        settings: Which service, and whose credentials.
        options: Of `AsyncClient`; they win over the settings.

    Raises:
        InvalidRequest: There are no credentials, or something is not what it accepts.
    """
    from mobilemoney_async.client import AsyncClient

    if "auth" not in options:
        options["auth"] = choose_auth(settings)
    if "store" not in options and settings.store is not None:
        options["store"] = open_store(settings.store, settings.account, key=settings.store_key)
    if settings.timeout is not None:
        options.setdefault("timeout", settings.timeout)
    return AsyncClient(settings.base_url, **options)


def open_store(url: str, account: str, *, key: Secret | None, **options: Any) -> SQLStore:
    """Return a store, and say of what is wrong with it how it is called here.

    Args:
        url: As for `SQLStore`, like the others.
        account: Whose payments.
        key: Encrypts the login token.
        options: Others of `SQLStore`.

    Raises:
        InvalidRequest: An argument is not what it accepts, or an extra is missing.
    """
    from mobilemoney_async.payments.store import SQLStore

    try:
        return SQLStore(url, account, key=key, **options)
    except InvalidRequest as exc:
        name = {"url": "store", "key": "store key"}.get(exc.argument, exc.argument)
        raise InvalidRequest(name + str(exc).removeprefix(exc.argument), argument=name) from None


def choose_auth(settings: Settings) -> TokenSource:
    """Return the credentials of a profile: an issued token, else a kept login, else e-mail and password.

    A sandbox on loopback that nobody gave credentials for gets the token that `mobilemoney sandbox` prints.

    Raises:
        InvalidRequest: There are none.
    """
    from mobilemoney_async.calls.tokens import LoginAuth, TokenAuth
    from mobilemoney_async.cli.logins import KeptFirst, find_login, login_command

    if settings.token is not None:
        return TokenAuth(settings.token)
    password_login = None
    if settings.email is not None and settings.password is not None:
        password_login = LoginAuth(settings.email, settings.password)
    kept = find_login(settings, email=settings.email)
    if kept is not None:
        return TokenAuth(kept.token) if password_login is None else KeptFirst(kept.token, password_login)
    if password_login is not None:
        return password_login
    if settings.email is None and is_sandbox(settings):
        return TokenAuth(sandbox_token())
    if urlsplit(settings.base_url).scheme != "https" and not is_loopback(settings.base_url):
        # No credentials would help: the client refuses the URL.
        raise refuse("base_url", "an https URL, or http on loopback only; tokens must not travel in the clear")
    login = login_command(settings, settings.sources.get("base_url", ""))
    raise InvalidRequest(
        f"no credentials are known for {settings.base_url}: {login}, or MOBILEMONEY_TOKEN, or token_file in a profile",
        argument="credentials",
    )


def is_sandbox(settings: Settings) -> bool:
    """Return whether the service is taken for a sandbox on this machine."""
    return is_loopback(settings.base_url) and not settings.is_production


def sandbox_token() -> str:
    """Return the token that a sandbox issues which was not given another seed. No secret: it opens nothing else."""
    from mobilemoney_async.sandbox import Sandbox

    return Sandbox(seed=0).token


def profile_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of all profiles, for completion: a file that cannot be read has none."""
    try:
        found = read_profiles(None, environ)
    except (InvalidRequest, OSError):
        return [SANDBOX]
    return sorted({SANDBOX, *found.by_name})


def is_loopback(base_url: str) -> bool:
    """Return whether a URL leads to this machine; what is no URL does not."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@attrs.frozen(kw_only=True)
class _Target:
    """The service that a command is for.

    Attributes:
        name: The profile's name, or what stands in its place.
        base_url: The service.
        source: Where the URL came from.
        profile: The profile that belongs to it, or None.
        uses_environment: Whether the environment's credentials and store belong to it.
        is_chosen: Whether somebody named it.
    """

    name: str
    base_url: str
    source: str
    profile: Profile | None
    uses_environment: bool
    is_chosen: bool = True


def _choose(profile: str | None, base_url: str | None, variables: Mapping[str, str], profiles: Profiles) -> _Target:
    home_url = variables.get("BASE_URL")
    home_profile = variables.get("PROFILE") or (None if home_url else profiles.default)
    is_homeless = home_url is None and home_profile is None
    if home_profile is not None and home_url is None:
        home = profiles.by_name.get(home_profile)
        built_in = SANDBOX_URL if home_profile == SANDBOX else None
        # A profile that names no URL goes where the command says.
        home_url = (None if home is None else home.base_url) or built_in or base_url
    if is_homeless and (base_url is None or profile is not None):
        _refuse_homeless(variables)

    if base_url is not None and profile is None and not _same(base_url, home_url):
        # Nothing but the URL is known of this service.
        return _Target(
            name=_FROM_FLAGS, base_url=base_url, source="--base-url", profile=None, uses_environment=is_homeless
        )
    name = profile or home_profile
    is_home = profile is None or profile == home_profile
    section = profiles.get(name or SANDBOX) if name or (is_homeless and base_url is None) else None
    url, source = _url(base_url, variables.get("BASE_URL") if is_home else None, section)
    return _Target(
        name=section.name if section is not None else _FROM_ENVIRONMENT,
        base_url=url,
        source=source,
        profile=section,
        uses_environment=is_home and _same(url, home_url),
        is_chosen=not is_homeless or profile is not None,
    )


def _url(flag: str | None, variable: str | None, profile: Profile | None) -> tuple[str, str]:
    said = None if profile is None else profile.base_url
    for url, source in ((flag, "--base-url"), (variable, "MOBILEMONEY_BASE_URL")):
        if url is None:
            continue
        if profile is not None and said is not None and not _same(url, said):
            raise InvalidRequest(
                f"{source}: not the base_url of profile {profile.name}, whose credentials go nowhere else; "
                "give one of the two",
                argument=source,
            )
        return url, source
    if said is not None:
        return said, f"profile {profile.name}" if profile is not None else ""
    if profile is not None and profile.name != SANDBOX:
        raise InvalidRequest(
            f"profiles.{profile.name}.base_url: missing: give it in the file, or by --base-url",
            argument=f"profiles.{profile.name}.base_url",
        )
    return SANDBOX_URL, "built in"


def _refuse_homeless(variables: Mapping[str, str]) -> None:
    for name in (*_CREDENTIALS, "STORE", "STORE_KEY"):
        if name in variables:
            raise InvalidRequest(
                f"MOBILEMONEY_{name} is set without a service: set MOBILEMONEY_BASE_URL, or MOBILEMONEY_PROFILE "
                "(to sandbox, say), too",
                argument=f"MOBILEMONEY_{name}",
            )


def _of_profile(profile: Profile | None, profiles: Profiles) -> tuple[dict[str, Any], str]:
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


def _of_environment(variables: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    values: dict[str, Any] = {}
    for group in (("TOKEN", "TOKEN_FILE", "EMAIL"), ("PASSWORD", "PASSWORD_FILE")):
        if len(both := [name for name in group if name in variables]) > 1:
            first, second = (f"MOBILEMONEY_{name}" for name in both[:2])
            raise InvalidRequest(f"{first} and {second} are both set: unset one", argument=second)
    for name in ("TOKEN", "PASSWORD", "STORE_KEY"):
        if name in variables:
            values[name.lower()] = Secret(variables[name])
        elif f"{name}_FILE" in variables:
            values[name.lower()] = _read(name.lower(), Path(variables[f"{name}_FILE"]).expanduser())
    if "token" in values:
        values["token"] = require_bearer("MOBILEMONEY_TOKEN", values["token"])
    for name in ("EMAIL", "STORE"):
        if name in variables:
            values[name.lower()] = variables[name]
    return values, "environment"


def _secret_files(target: _Target, variables: Mapping[str, str]) -> tuple[Path, ...]:
    said = [] if target.profile is None else [v for k, v in target.profile.values.items() if k.endswith("_file")]
    if target.uses_environment:
        said += [Path(variables[name]).expanduser() for name in ("TOKEN_FILE", "PASSWORD_FILE") if name in variables]
    return tuple(said)


def _read(name: str, file: Path) -> Secret:
    secret = read_secret_file(file)
    # A password may begin or end with a blank; a token cannot.
    return Secret(secret.reveal().strip()) if name == "token" else secret


def _forget_other_credentials(values: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Forget the credentials that a layer replaces: one person's password must not go with another's address."""
    if "token" in layer or "email" in layer:
        for name in ("token", "email", "password"):
            values.pop(name, None)
    elif "password" in layer:
        values.pop("token", None)


def _same(url: str | None, other: str | None) -> bool:
    return url is not None and other is not None and _normal(url) == _normal(other)


def _normal(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
    except ValueError:
        return url
