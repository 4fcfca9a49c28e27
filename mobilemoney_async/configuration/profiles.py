"""Profiles of a user or a project: the file `mobilemoney.toml`, read and checked as a whole."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, require_bearer, require_days, require_seconds, require_text

FILE_NAME = "mobilemoney.toml"

# A line's dots bound the parts of a dotted key: reading one of n parts takes tomllib n² steps.
_MAX_BYTES, _MAX_DOTS = 64 * 1024, 100
_SECRETS, _LIMITS = ("token", "password"), "disbursement_limits"
_FILES = ("token_file", "password_file", "store_key_file")
_STORE_OPTIONS = "store_options"
_NUMBERS, _BOOLS = ("grace", "keep_changes"), ("sole_writer", "resend_absent_collections")  # in them
_OF_STORE = ("store", "account", _STORE_OPTIONS)
_KEYS = ("base_url", "email", *_SECRETS, *_FILES, *_OF_STORE, "timeout", "production", "local_numbers", _LIMITS)
# Of each group, one is enough.
_ALTERNATIVES = (("token", "token_file", "email"), ("password", "password_file"), ("store_key", "store_key_file"))
_ENVIRONMENT = "environment"
_ENVIRONMENT_KEYS = ("email", *_SECRETS, *_FILES, "store", "store_key")
# As SQLAlchemy reads a URL: up to the first @, and within the query.
_PASSWORD = re.compile(r"^[^:]*://[^:/]*:[^@]+@|[?&](ssl)?password=", re.IGNORECASE)
_RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+pysqlite)?:///)(?!/)(.+)", re.DOTALL)


def invalid(argument: str, text: str) -> InvalidRequest:
    """Return the error for a setting that is not accepted: ``argument: text``, or ``argument must be …``."""
    separator = " " if text.startswith(("must ", "is ", "needs ")) else ": "
    return InvalidRequest(f"{argument}{separator}{text}", argument=argument, problem=text)


@attrs.frozen(kw_only=True)
class SettingsSource:
    """Source of settings: a profile of the file, the environment, or the options of a command.

    The place is for messages. Paths, and that of an SQLite store, are absolute: a relative one counts from the file's
    folder, so that commands in any folder use the same store.
    """

    name: str
    place: str = ""
    values: Mapping[str, Any] = attrs.field(repr=False, factory=dict)

    @property
    def base_url(self) -> str | None:
        """The service; None if the source names none, except for the sandbox, which has a default."""
        return self.values.get("base_url")

    @property
    def files(self) -> list[Path]:
        """The files that its secrets are in."""
        return [value for key, value in self.values.items() if key.endswith("_file")]

    def key(self, key: str) -> str:
        """Return the name of a value as the user wrote it: ``profiles.shop.token``, ``MOBILEMONEY_TOKEN``."""
        return _variable(key) if self.name == _ENVIRONMENT else f"profiles.{self.name}.{key}"

    def refuse_alternatives(self) -> None:
        """Raise `InvalidRequest` if two values exclude each other."""
        for group in _ALTERNATIVES:
            if len(both := [self.key(key) for key in group if key in self.values]) > 1:
                raise InvalidRequest(f"{both[0]} and {both[1]} are both set: unset one", argument=both[1])

    def read(self) -> dict[str, Any]:
        """Return the settings, with the secrets of the files.

        Raises:
            InvalidRequest: A secret is not accepted, or two values exclude each other.
            OSError: A file cannot be read.
        """
        self.refuse_alternatives()
        settings = {key: value for key, value in self.values.items() if key != "base_url"}
        for name in ("token", "password", "store_key"):
            file = settings.pop(f"{name}_file", None)
            if file is not None:
                settings[name] = read_secret_file(file)
        if "token" in settings:
            # A password may begin or end with a blank; a token cannot.
            settings["token"] = require_bearer(self.key("token"), Secret(settings["token"].reveal().strip()))
        return settings


_SANDBOX = {"sandbox": SettingsSource(name="sandbox")}


@attrs.frozen(kw_only=True)
class Profiles:
    """Profiles of a file, if there is one, and ``sandbox``; the default is the name for commands that name none."""

    path: Path | None = None
    default: str | None = None
    by_name: Mapping[str, SettingsSource] = _SANDBOX

    def get(self, name: str) -> SettingsSource:
        """Return a profile, or raise `InvalidRequest` if there is none of that name."""
        if name in self.by_name:
            return self.by_name[name]
        where = "no mobilemoney.toml was found" if self.path is None else f"in {self.path}"
        text = f"there is no profile {name!r} ({where}); known are {', '.join(sorted(self.by_name))}"
        raise InvalidRequest(text, argument="profile")


def read_profiles(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Profiles:
    """Return the profiles of a named file, or of the first file found.

    The search goes from the working directory upwards, and then to ``$XDG_CONFIG_HOME/mobilemoney``.

    Raises:
        InvalidRequest: A key of the file is not accepted; the error names it.
        OSError: The file cannot be read.
    """
    named = config or environ.get("MOBILEMONEY_CONFIG", "").strip() or None
    path = Path(os.path.expanduser(named)).absolute() if named is not None else _find(environ)
    if path is None:
        return Profiles()
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if named is None:
            _refuse_other_writers(path, status)
        table = _parse(path, file.read(_MAX_BYTES + 1))
    is_private = os.name != "posix" or not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    try:
        return _check(path, table, is_private=is_private)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}", argument=exc.argument) from None


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    if len(content) > _MAX_BYTES or any(line.count(b".") > _MAX_DOTS for line in content.split(b"\n")):
        text = f"too large for profiles: at most {_MAX_BYTES:,} bytes, and {_MAX_DOTS} dots in a line"
        raise InvalidRequest(f"{path}: {text}", argument="config")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as exc:  # ValueError also for a number of too many digits
        # Without the error's text, which may quote a secret.
        found = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(exc))
        position = (
            ": it is nested too deeply, has too long a number, or is no UTF-8" if found is None else f" at {found[1]}"
        )
        raise InvalidRequest(f"{path}: not TOML{position}", argument="config") from None


def read_secret_file(path: Path) -> Secret:
    """Return the text of a file, without its last line break."""
    try:
        text = path.read_text("utf-8")
    except ValueError:  # also for a path with a null character
        raise invalid(str(path), "must be UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise invalid(str(path), "is empty, and must hold a secret")
    return Secret(text)


def holds_password(url: str) -> bool:
    """Return whether the URL of a store holds a password."""
    return _PASSWORD.search(url) is not None


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's kept logins, which need not exist.

    Raises:
        InvalidRequest: The user has no home directory, as in some containers.
    """
    folder = _xdg(environ, "XDG_STATE_HOME", ".local", "state")
    if folder is None:
        raise invalid("HOME", "must be set, or XDG_STATE_HOME: the user of this process has no home directory")
    return folder


def _xdg(environ: Mapping[str, str], variable: str, *default: str) -> Path | None:
    """Return the package's folder below one of the XDG specification's, or None without a home directory."""
    named = Path(environ.get(variable, ""))
    if not named.is_absolute():  # the specification says to ignore a relative path
        try:
            named = Path.home().joinpath(*default)
        except RuntimeError:
            return None
    return named / "mobilemoney"


def _find(environ: Mapping[str, str]) -> Path | None:
    here = Path.cwd()
    candidates = [folder / FILE_NAME for folder in (here, *here.parents)]
    if (folder := _xdg(environ, "XDG_CONFIG_HOME", ".config")) is not None:
        candidates.append(folder / FILE_NAME)
    return next((path for path in candidates if os.path.isfile(path)), None)  # whose folders may be closed to this user


def _refuse_other_writers(path: Path, status: os.stat_result) -> None:
    """Refuse a file that was found, not named, if another user may have written it: it decides where tokens go."""
    if os.name != "posix":
        return
    if status.st_uid not in {os.getuid(), 0} or status.st_mode & stat.S_IWOTH:
        text = "another user of this machine may have written it; name it with --config if you trust it"
        raise InvalidRequest(f"{path}: {text}", argument="config")


def read_environment(environ: Mapping[str, str]) -> SettingsSource:
    """Return the credentials and the store of the environment; an empty variable counts as none."""
    values: dict[str, Any] = {}
    for key in _ENVIRONMENT_KEYS:
        text = environ.get(_variable(key), "")
        if text.strip() and key in _FILES:
            values[key] = Path(os.path.expanduser(text))
        elif text.strip():
            values[key] = text.strip() if key in {"email", "store"} else Secret(text)
    return SettingsSource(name=_ENVIRONMENT, place=_ENVIRONMENT, values=values)


def _variable(key: str) -> str:
    return f"MOBILEMONEY_{key.upper()}"


def _check(path: Path, table: Mapping[str, Any], *, is_private: bool) -> Profiles:
    _refuse_unknown(table, ("profile", "profiles"), "")
    sections = table.get("profiles", {})
    if not isinstance(sections, dict):
        raise invalid("profiles", "must be tables, [profiles.NAME]")
    by_name = _SANDBOX | {name: _check_profile(path, name, each, is_private) for name, each in sections.items()}
    default = table.get("profile")
    if default not in (None, *by_name):
        raise invalid("profile", f"must be one of {', '.join(sorted(by_name))}")
    return Profiles(path=path, default=default, by_name=by_name)


def _check_profile(path: Path, name: str, section: object, is_private: bool) -> SettingsSource:
    where = f"profiles.{name}"
    if not isinstance(section, dict):
        raise invalid(where, f"must be a table, [{where}]")
    _refuse_unknown(section, _KEYS, f"{where}.")
    values: dict[str, Any] = {}
    for key, value in section.items():
        try:
            values[key] = _check_value(key, value, path.parent)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{where}.{exc}", argument=f"{where}.{key}") from None
    if not is_private:
        _refuse_readable_secrets(where, values)
    source = SettingsSource(name=name, place=str(path), values=values)
    source.refuse_alternatives()
    return source


def _refuse_readable_secrets(where: str, values: Mapping[str, Any]) -> None:
    instead = {key: f"use {key}_file" for key in _SECRETS if key in values}
    if holds_password(values.get("store", "")):
        instead["store"] = "set MOBILEMONEY_STORE"
    for key, advice in instead.items():
        text = f"holds a secret, and other users can read this file: chmod 600 it, or {advice}"
        raise invalid(f"{where}.{key}", text)


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise invalid(f"{prefix}{key}", f"there is no such key; known are {', '.join(known)}")


def _check_limits(value: object) -> DisbursementLimits:
    names = [each.name for each in attrs.fields(DisbursementLimits)]
    if not isinstance(value, dict) or not value or not {*value} <= {*names}:
        raise invalid(_LIMITS, f"must be a table of {', '.join(names)}, whole TZS")
    try:
        return DisbursementLimits(**value)
    except InvalidRequest as exc:
        raise invalid(f"{_LIMITS}.{exc.argument}", exc.problem) from None


def _check_store_options(value: object) -> dict[str, Any]:
    names = ", ".join((*_NUMBERS, *_BOOLS))
    if not isinstance(value, dict) or not {*value} <= {*_NUMBERS, *_BOOLS}:
        raise invalid(_STORE_OPTIONS, f"must be a table of {names}")
    for key, each in value.items():
        if key == "keep_changes":
            require_days(f"{_STORE_OPTIONS}.{key}", each)
        elif key == "grace":
            require_seconds(f"{_STORE_OPTIONS}.{key}", each, allow_zero=True)
        elif not isinstance(each, bool):
            raise invalid(f"{_STORE_OPTIONS}.{key}", "must be true or false")
    return value


def _check_value(key: str, value: object, folder: Path) -> Any:
    if key in {"production", "local_numbers"}:
        if not isinstance(value, bool):
            raise invalid(key, "must be true or false")
        return value
    if key == "timeout":
        return require_seconds(key, value)
    if key == _STORE_OPTIONS:
        return _check_store_options(value)
    if key == _LIMITS:
        return _check_limits(value)
    text = require_text(key, value)
    if key in _SECRETS:
        return Secret(text)
    if key in _FILES:
        return folder / os.path.expanduser(text)  # unlike Path's, no error for an unknown user
    if key == "store" and (relative := _RELATIVE_SQLITE.fullmatch(text)):
        return f"{relative[1]}{folder / relative[2]}"
    return text
