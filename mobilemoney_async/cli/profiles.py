"""`mobilemoney.toml`: the profiles of a person or a project, read and refused, before anything is done with them."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import Secret, refuse, require_seconds, require_text

FILE_NAME = "mobilemoney.toml"

_SECRETS = ("token", "password")
_FILES = ("token_file", "password_file", "store_key_file")
_TEXTS = ("base_url", "email", "store", "account", *_SECRETS, *_FILES)
_KEYS = ("base_url", "email", *_SECRETS, *_FILES, "store", "account", "timeout", "production")
# As SQLAlchemy reads a URL: up to the first @, and within the query.
_PASSWORD = re.compile(r"^[^:]*://[^:/]*:[^@]+@|[?&](ssl)?password=", re.IGNORECASE)
_RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+pysqlite)?:///)(?!/|file:)(.+)", re.DOTALL)


@attrs.frozen(kw_only=True)
class Profile:
    """One ``[profiles.NAME]`` table.

    Attributes:
        name: Its name.
        values: What it says, checked, by key. Paths, and that of an SQLite store, are absolute: a relative one counts
            from the file's folder, so that the same store is found wherever the command is run.
    """

    name: str
    values: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def base_url(self) -> str | None:
        """The service, or None where the profile names none."""
        return self.values.get("base_url")


@attrs.frozen(kw_only=True)
class Profiles:
    """What a file says.

    Attributes:
        path: The file, or None where there is none.
        default: The profile that is used where none is named, or None.
        by_name: The profiles.
    """

    path: Path | None = None
    default: str | None = None
    by_name: Mapping[str, Profile] = attrs.field(factory=dict)

    def get(self, name: str) -> Profile:
        """Return a profile; ``sandbox`` exists in any case.

        Raises:
            InvalidRequest: There is none of that name.
        """
        if name in self.by_name:
            return self.by_name[name]
        if name == "sandbox":
            return Profile(name=name, values={})
        known = ", ".join(sorted({"sandbox", *self.by_name}))
        where = "no mobilemoney.toml was found" if self.path is None else f"in {self.path}"
        raise InvalidRequest(f"there is no profile {name!r} ({where}); known are {known}", argument="profile")


def read_profiles(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Profiles:
    """Return the profiles of the file that is named, or found.

    Looked for in the working directory and upwards, then in ``$XDG_CONFIG_HOME/mobilemoney``.

    Args:
        config: The file; None looks for one.
        environ: The environment.

    Raises:
        InvalidRequest: The file is not what it should be: named with its key.
        OSError: It cannot be read.
    """
    named = config or environ.get("MOBILEMONEY_CONFIG") or None
    path = Path(named).expanduser().absolute() if named is not None else _find(environ)
    if path is None:
        return Profiles()
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if named is None:
            _refuse_strangers(path, status)
        try:
            table = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            # Not its text: it may quote a secret.
            raise InvalidRequest(f"{path}: not TOML{_position(exc)}", argument="config") from None
    return _check(path, table, is_private=_is_private(status))


def read_secret_file(path: Path) -> Secret:
    """Return what a file holds, without its last line break.

    Raises:
        InvalidRequest: It is empty, or no text.
        OSError: It cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path}: holds no text", argument=str(path)) from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise InvalidRequest(f"{path}: is empty, and should hold a secret", argument=str(path))
    return Secret(text)


def holds_password(url: str) -> bool:
    """Return whether the URL of a store shows a password."""
    return _PASSWORD.search(url) is not None


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return where the user's configuration is, which need not exist."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return where the user's logins are kept, which need not exist."""
    return _xdg(environ, "XDG_STATE_HOME", ".local", "state")


def _xdg(environ: Mapping[str, str], variable: str, *default: str) -> Path:
    said = Path(environ.get(variable, ""))
    # A relative one is invalid by the XDG specification, and to be ignored.
    base = said if said.is_absolute() else Path.home().joinpath(*default)
    return base / "mobilemoney"


def _find(environ: Mapping[str, str]) -> Path | None:
    here = Path.cwd()
    candidates = [folder / FILE_NAME for folder in (here, *here.parents)]
    candidates.append(config_folder(environ) / FILE_NAME)
    return next((path for path in candidates if path.is_file()), None)


def _refuse_strangers(path: Path, status: os.stat_result) -> None:
    """Refuse a file that was found, not named, and that another user may have put there: it says where tokens go."""
    if os.name != "posix":
        return
    if status.st_uid not in {os.getuid(), 0} or status.st_mode & stat.S_IWOTH:
        raise InvalidRequest(
            f"{path}: another user of this machine may have written it; name it with --config if you trust it",
            argument="config",
        )


def _is_private(status: os.stat_result) -> bool:
    return os.name != "posix" or not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _position(exc: Exception) -> str:
    found = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(exc))
    return "" if found is None else f" at {found[1]}"


def _check(path: Path, table: Mapping[str, Any], *, is_private: bool) -> Profiles:
    _refuse_unknown(path, table, ("profile", "profiles"), "")
    sections = table.get("profiles", {})
    if not isinstance(sections, dict):
        raise InvalidRequest(f"{path}: profiles: tables, [profiles.NAME]", argument="profiles")
    by_name = {name: _check_profile(path, name, section, is_private) for name, section in sections.items()}
    default = table.get("profile")
    if default is not None and not (isinstance(default, str) and default in {"sandbox", *by_name}):
        known = ", ".join(sorted({"sandbox", *by_name}))
        raise InvalidRequest(f"{path}: profile: one of {known}", argument="profile")
    return Profiles(path=path, default=default, by_name=by_name)


def _check_profile(path: Path, name: str, section: object, is_private: bool) -> Profile:
    where = f"profiles.{name}"
    if not isinstance(section, dict):
        raise InvalidRequest(f"{path}: {where}: a table, [{where}]", argument=where)
    _refuse_unknown(path, section, _KEYS, f"{where}.")
    values: dict[str, Any] = {}
    for key, value in section.items():
        try:
            values[key] = _check_value(key, value, path.parent)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{path}: {where}.{exc}", argument=f"{where}.{key}") from None
    for key in _SECRETS:
        if key in values and not is_private:
            raise InvalidRequest(
                f"{path}: {where}.{key}: other users can read this file: chmod 600 it, or say {key}_file",
                argument=f"{where}.{key}",
            )
    if "store" in values and holds_password(values["store"]) and not is_private:
        raise InvalidRequest(
            f"{path}: {where}.store: holds a password, and other users can read this file: chmod 600 it, or set "
            "MOBILEMONEY_STORE",
            argument=f"{where}.store",
        )
    for group in (("token", "token_file", "email"), ("password", "password_file")):
        if len(both := [key for key in group if key in values]) > 1:
            raise InvalidRequest(f"{path}: {where}: {both[0]} or {both[1]}, not both", argument=f"{where}.{both[1]}")
    return Profile(name=name, values=values)


def _refuse_unknown(path: Path, table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise InvalidRequest(
                f"{path}: {prefix}{key}: there is no such key; known are {', '.join(known)}", argument=f"{prefix}{key}"
            )


def _check_value(key: str, value: object, folder: Path) -> Any:
    if key == "production":
        if not isinstance(value, bool):
            raise refuse(key, "true or false")
        return value
    if key == "timeout":
        return require_seconds(key, value)
    text = require_text(key, value)
    if key in _SECRETS:
        return Secret(text)
    if key in _FILES:
        return folder / Path(text).expanduser()
    if key == "store" and (relative := _RELATIVE_SQLITE.fullmatch(text)):
        return f"{relative[1]}{folder / relative[2]}"
    return text
