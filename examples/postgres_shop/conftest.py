"""A database for the tests of the shop, which they empty: that of `DATABASE_URL`, with `_test` after its name."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import virtual_backend

# The only database that is emptied here. `wiring` reads the variable, so it and `app` are imported later.
SHOP = sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
URL = SHOP.set(database=f"{(SHOP.database or 'shop').removesuffix('_test')}_test")
os.environ["DATABASE_URL"] = URL.render_as_string(hide_password=False)


def stock(connection: sa.Connection) -> None:
    """Insert what an order needs: here nothing, in your shop perhaps its goods."""


Open = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def anyio_backend() -> object:
    return virtual_backend("asyncio")  # a minute takes milliseconds, and waits for PostgreSQL


@pytest.fixture(scope="session")
def new_database() -> None:
    """Make the database, once. A role that may not do that needs one: `createdb --owner shop shop_test`."""
    if SHOP == URL:
        return
    engine = sa.create_engine(SHOP, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if not connection.scalar(sa.text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": URL.database}):
            connection.execute(sa.text(f'CREATE DATABASE "{URL.database}"'))


@pytest.fixture
def database(new_database: None) -> sa.Engine:
    from models import Base

    engine = sa.create_engine(URL, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        name = connection.scalar(sa.text("SELECT current_database()"))  # a pooler, or `?dbname=`, may lead elsewhere
        if not name.endswith("_test"):
            pytest.exit(f"{name} is not emptied: the name of a database for tests ends with _test", 1)
        connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
        Base.metadata.create_all(connection)
        stock(connection)
    return engine


@pytest.fixture
def open_shop(mobilemoney_sandbox: Sandbox, database: sa.Engine) -> Open:
    from app import create_app

    @asynccontextmanager
    async def open_shop() -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(mobilemoney_sandbox.client)
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
        async with app.router.lifespan_context(app), browser:
            yield browser

    return open_shop
