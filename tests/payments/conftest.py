"""Databases for the tests of the store: `store_url` runs a test on SQLite and on PostgreSQL.

A test finds all tables, without rows. One that is marked `new_database` gets a database of its own, without tables.
With MOBILEMONEY_TESTS_PARTITIONED set, the tables of PostgreSQL are partitioned by account; `test_partitioned` always
runs a selection of the tests so.
"""

import itertools
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient
from mobilemoney_async.database.engine import Database
from tests.payments import hosts, second_world
from tests.payments.service import World, make_world
from tests.support.databases import Postgres, postgres, sqlite_url

# A condition on the account: equal to a value, or among some.
_OF_ACCOUNT = re.compile(r"account (=|IN|= ANY) ?\(?[?:%]")


@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def require_account(connection: object, cursor: object, statement: str, *_: object) -> None:
    """Let the work of one account name the account in each statement: other rows are another merchant's."""
    if "mobilemoney_" in statement and not statement.startswith("INSERT") and not _OF_ACCOUNT.search(statement):
        places = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe(1)))
        # Tests look at all rows, and so do commands, whose tests may run in the same process.
        own = itertools.takewhile(lambda place: not {"tests", "cli"} & {*place.split("/")}, places)
        assert not any(place.endswith("account_store.py") for place in own), statement


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server, started when the first test asks for it."""
    with postgres() as server:
        yield server


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store look for what others write ten times more rarely: for tests that take virtual minutes."""
    monkeypatch.setattr("mobilemoney_async.database.change_watch._POLL", 5.0)
    monkeypatch.setattr("mobilemoney_async.sharing.poller.StoreChannel.poll", 5.0)


@pytest.fixture
def crashing_server() -> Iterator[Postgres]:
    """A server of the test's own."""
    with postgres() as server:
        yield server


def _postgres_url(request: pytest.FixtureRequest) -> str:
    server: Postgres = request.getfixturevalue("postgres_server")
    if request.node.get_closest_marker("new_database"):
        return server.new_database()
    return server.shared_database(partitioned="MOBILEMONEY_TESTS_PARTITIONED" in os.environ)


def _sqlite_url(request: pytest.FixtureRequest) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return sqlite_url(folder, has_tables=not request.node.get_closest_marker("new_database"))


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> str:
    """A PostgreSQL database with empty tables, or a new one."""
    return _postgres_url(request)


@pytest.fixture
def sqlite_file_url(request: pytest.FixtureRequest) -> str:
    """An SQLite database with empty tables, or none yet."""
    return _sqlite_url(request)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The same, once of each kind."""
    return _sqlite_url(request) if request.param == "sqlite" else _postgres_url(request)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module marked `pairs` on both databases and both loops, in half the time of all four pairs."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    is_own = any("anyio_backend" in names or "store_url" in names for names in own)
    if metafunc.definition.get_closest_marker("pairs") and "store_url" in metafunc.fixturenames and not is_own:
        metafunc.definition.add_marker(second_world.BOTH)


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    """One of each kind, opened."""
    opened = Database(store_url)
    yield opened
    opened.close()


@pytest.fixture(params=["collections", "disbursements"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of payments, once each."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def platform(sqlite_file_url: str) -> hosts.Platform:
    """Hosts over one database."""
    return hosts.Platform(sqlite_file_url)


@pytest.fixture
async def world(request: pytest.FixtureRequest, store_url: str) -> World | second_world.World:
    """A merchant, a service, and a store of each kind; in the test's loop, whose clock they follow.

    The service is the sandbox, or the second one where the test's module imports `World` of `second_world`.
    """
    kind = request.function.__globals__.get("World")
    return second_world.make_world(store_url) if kind is second_world.World else make_world(store_url)


@pytest.fixture
async def client(world: World) -> AsyncIterator[AsyncClient]:
    """A client of that world, which is open for as long as the test runs."""
    async with world.client() as opened:
        yield opened
