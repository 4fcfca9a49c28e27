"""Databases of a world: a file of SQLite, or a database on a PostgreSQL server of our own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs
import psycopg
import sqlalchemy as sa

from tests.support.databases import Postgres

T = TypeVar("T")


@attrs.frozen
class Books:
    """Open transaction of the merchant's own."""

    raw: Any

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """Run a statement of SQLite, on the other database too."""
        if isinstance(self.raw, sqlite3.Connection):
            return self.raw.execute(statement, values)
        statement = statement.replace("?", "%s").replace("INTEGER PRIMARY KEY", "SERIAL PRIMARY KEY")
        return self.raw.execute(statement, values)


class SQLiteDisk:
    """Database in a file."""

    has_server = False

    def __init__(self, folder: Path) -> None:
        self._file, self._backup, self._synced = (folder / f"{name}.db" for name in ("shop", "backup", "synced"))
        self._is_synced = True
        self.url = f"sqlite:///{self._file}"

    def transact(self, work: Callable[[Books], T]) -> T:
        """Run a transaction."""
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN IMMEDIATE")
            self._is_synced = True
            done = work(Books(connection))
            connection.execute("COMMIT")
            return done

    def look(self, statement: str) -> list[Any]:
        """Read from outside of the world."""
        with closing(sqlite3.connect(self._file)) as connection:
            return connection.execute(statement).fetchall()

    def tables(self) -> set[str]:
        """Return the names of the tables."""
        found = self.look("SELECT name FROM sqlite_master") if self._file.exists() else ()
        return {name for (name,) in found}

    def make_backup(self) -> None:
        """Copy the database, as a nightly job does."""
        self._copy(self._file, self._backup)

    def restore_backup(self) -> bool:
        """Bring the database back to its last backup, while no process runs; return whether there is one."""
        if is_there := self._backup.exists():
            self._copy(self._backup, self._file)
        return is_there

    def note_commit(self, *, is_durable: bool) -> None:
        """Note that a transaction is about to be committed: one that is durable brings those before it to the disk."""
        if self._is_synced and not is_durable:
            self._copy(self._file, self._synced)
        self._is_synced = is_durable

    def lose_unsynced(self) -> bool:
        """Lose what a power cut loses, while no process runs; return whether that is anything."""
        if is_lost := not self._is_synced:
            self._copy(self._synced, self._file)
            self._is_synced = True
        return is_lost

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
            one.backup(other)

    def close(self) -> None:
        """Leave the file to whoever deletes the folder."""


class PostgresDisk:
    """Database of a real server, whose commits of the last minutes a failover may forget."""

    has_server = True

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.url = server.new_database()
        self._backup: str | None = None
        self._reader: Any = None

    @staticmethod
    def _plain(url: str) -> str:
        return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

    def transact(self, work: Callable[[Books], T]) -> T:
        """Run a transaction."""
        with psycopg.connect(self._plain(self.url)) as connection:
            return work(Books(connection))

    def look(self, statement: str) -> list[Any]:
        """Read from outside of the world."""
        if self._reader is None:
            self._reader = psycopg.connect(self._plain(self.url), autocommit=True)
        return list(self._reader.execute(statement).fetchall())

    def tables(self) -> set[str]:
        """Return the names of the tables."""
        return {name for (name,) in self.look("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}

    def note_commit(self, *, is_durable: bool) -> None:
        """Do nothing: the server, which has its own power, has each commit on its disk."""

    def lose_unsynced(self) -> bool:
        """Return that nothing is lost."""
        return False

    def make_backup(self) -> None:
        """Copy the database. All sessions end, as they do when a connection breaks."""
        self.close()
        self._backup = self._server.copy(self.url)

    def restore_backup(self) -> bool:
        """Let the copy take over, while no process runs; return whether there is one."""
        if self._backup is None:
            return False
        self.close()
        of_server = sa.make_url(self._plain(self.url)).set(database="postgres").render_as_string(hide_password=False)
        with psycopg.connect(of_server, autocommit=True) as connection:
            one, other = (sa.make_url(url).database for url in (self.url, self._backup))
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(ending, (one,))
            connection.execute(f"DROP DATABASE {one}")
            connection.execute(f"ALTER DATABASE {other} RENAME TO {one}")
        self._backup = None
        return True

    def close(self) -> None:
        """Close the session that looks from outside."""
        if self._reader is not None:
            with suppress(psycopg.Error):
                self._reader.close()
        self._reader = None
