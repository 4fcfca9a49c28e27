"""Where a store is: which URLs are taken, and what about a file keeps SQLite from using it."""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from mobilemoney_async.values import can_encode, missing_extra, refuse

_ACCEPTS = 'a URL such as "sqlite:///payments.db" or "postgresql+psycopg://user:password@host/database"'


def read_url(url: object) -> sa.URL:
    """Return what a URL means, whatever becomes of the working directory.

    Raises:
        InvalidRequest: It is none of ours, or needs an extra.
    """
    if not isinstance(url, str) or not can_encode(url):
        raise refuse("url", _ACCEPTS)
    try:
        read = make_url(url)
        read.get_backend_name()
    except Exception:  # noqa: BLE001 (whatever SQLAlchemy raises; it may quote a password)
        raise refuse("url", _ACCEPTS) from None
    # With another driver it is asked for a reason, encryption say.
    if read.drivername in {"sqlite", "sqlite+pysqlite"}:
        return _read_file(read)
    if read.drivername not in {"postgresql", "postgresql+psycopg"}:
        raise refuse("url", _ACCEPTS)
    try:
        import psycopg  # noqa: F401 (here, since only who has PostgreSQL needs it)
    except ImportError as exc:
        raise missing_extra("url", "postgres") from exc
    return read.set(drivername="postgresql+psycopg")


def _read_file(url: sa.URL) -> sa.URL:
    file = url.database or ""
    if file in {"", "file:"} or ":memory:" in file or url.query.get("mode") == "memory":
        raise refuse("url", "a database that outlives the process: " + _ACCEPTS)
    url = url.set(drivername="sqlite+pysqlite")
    if "uri" in url.query:
        return url
    if url.query:
        # SQLAlchemy leaves them out, so that who asks for mode=ro would write.
        raise refuse("url", "an SQLite file without options: " + _ACCEPTS)
    return url.set(database=os.path.abspath(file))


def file_of(url: sa.URL) -> Path | None:
    """Return the file of an SQLite database, which need not exist; None for PostgreSQL, and for a URI of SQLite's."""
    is_file = url.get_backend_name() == "sqlite" and "uri" not in url.query
    return Path(str(url.database)) if is_file else None


def obstacle(file: Path) -> str:
    """Return why SQLite cannot use a file, which its own errors leave out; an empty text where nothing is seen."""
    folder = file.parent
    if not folder.is_dir():
        return f"there is no directory {folder}"
    if file.is_dir():
        return "that is a directory"
    # It makes two more files beside its own.
    for each in (folder, file):
        if each.exists() and not os.access(each, os.W_OK):
            return f"this user may not write to {each}"
    return ""
