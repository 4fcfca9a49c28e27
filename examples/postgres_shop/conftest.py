"""A database for the tests of the shop: `DATABASE_URL` names one that they may empty."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import alembic.command
import alembic.config
import httpx
import pytest
import sqlalchemy as sa
from app import create_app
from models import URL

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import virtual_backend

Open = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def anyio_backend() -> object:
    return virtual_backend("asyncio")  # a minute takes milliseconds, and waits for PostgreSQL


@pytest.fixture
def migrations() -> alembic.config.Config:
    return alembic.config.Config(Path(__file__).parent / "alembic.ini")


@pytest.fixture
def database(migrations: alembic.config.Config) -> sa.Engine:
    engine = sa.create_engine(URL, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    alembic.command.upgrade(migrations, "head")
    return engine


@pytest.fixture
def open_shop(mobilemoney_sandbox: Sandbox, database: sa.Engine) -> Open:
    @asynccontextmanager
    async def open_shop() -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(mobilemoney_sandbox.client)
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
        async with app.router.lifespan_context(app), browser:
            yield browser

    return open_shop
