"""Databases for the tests of the store: `store_url` runs a test on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import Postgres, postgres, sqlite_url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server, started when the first test asks for it."""
    with postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """A new PostgreSQL database."""
    return postgres_server.new_database()


@pytest.fixture
def sqlite_file_url(tmp_path: Path) -> str:
    """A new SQLite database."""
    return sqlite_url(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database, once of each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()
