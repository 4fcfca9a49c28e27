"""URL of a database, and the file that SQLite's leads to."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from mobilemoney_async.values import can_encode, hide_text, missing_extra, refuse, url_shape

_ACCEPTS = 'a URL such as "sqlite:///payments.db" or "postgresql+psycopg://user:password@host/database"'


def read_url(url: object) -> sa.URL:
    """Return the meaning of a URL, independent of the working directory.

    Raises:
        InvalidRequest: It is no URL of a store, or needs an extra.
    """
    url = hide_text(url)
    if not isinstance(url, str) or not can_encode(url):
        raise refuse("url", _ACCEPTS, str if isinstance(url, str) else type(url))
    driver, read = "", None
    with suppress(Exception):  # any error of SQLAlchemy's; it may quote a password
        read = make_url(url)
        read.get_backend_name()
        driver = read.drivername
    # Another driver is asked for with a reason, encryption say.
    if read is not None and driver in {"sqlite", "sqlite+pysqlite"}:
        return _read_file(read)
    # Some platforms write `postgres`, which SQLAlchemy no longer reads.
    if read is None or driver not in {"postgres", "postgresql", "postgresql+psycopg"}:
        del read  # a tuple, with the password in it
        kind, _, name = driver.partition("+")
        advice = "the store's driver is psycopg: write postgresql+psycopg://; your own engine may keep " + name
        advice = advice if kind == "postgresql" else ""
        raise refuse("url", _ACCEPTS, f"{driver}://…" if driver else url_shape(url), advice)
    try:
        import psycopg  # noqa: F401 (here, since only PostgreSQL needs it)
    except ImportError as exc:
        del read
        raise missing_extra("url", "postgres", exc) from exc
    return read.set(drivername="postgresql+psycopg")


def _read_file(url: sa.URL) -> sa.URL:
    file = url.database or ""
    if file == "" or ":memory:" in file or url.query.get("mode") == "memory":
        advice = 'for Django\'s test database, name a file: "TEST": {"NAME": "test-shop.db"}'
        raise refuse("url", "a database that outlives the process: " + _ACCEPTS, advice=advice)
    if url.query or file.startswith("file:"):
        # SQLAlchemy drops options: a URL with mode=ro would write.
        raise refuse("url", "an SQLite file without options: " + _ACCEPTS)
    return url.set(drivername="sqlite+pysqlite", database=os.path.abspath(file))


def file_of(url: sa.URL) -> Path | None:
    """Return the file of an SQLite database, which need not exist; None for PostgreSQL."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def readable_files(file: Path | None) -> list[Path]:
    """Return the files of an SQLite database that other users of this machine can read or write, as far as is shown.

    Empty for PostgreSQL, which has no file, and on Windows.
    """
    found: list[Path] = []
    if os.name == "posix" and file is not None:
        for each in (Path(os.path.realpath(file) + end) for end in ("", "-wal", "-shm")):
            with suppress(OSError):  # it is missing, or SQLite removes it just now
                if each.stat().st_mode & 0o077:
                    found.append(each)
    return found


def obstacle(file: Path) -> str:
    """Return why SQLite cannot use a file, which its own errors leave out; an empty text if nothing is found."""
    # Not by pathlib, which raises for a folder that may not be entered.
    folder = file.parent
    if not os.path.isdir(folder):
        return f"there is no directory {folder}"
    # It makes two more files beside its own.
    for each, mode in ((folder, os.W_OK | os.X_OK), (file, os.W_OK)):
        if os.path.exists(each) and not os.access(each, mode):
            return f"this user may not write to {each}"
    return "that is a directory" if os.path.isdir(file) else ""
