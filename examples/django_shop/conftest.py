"""The Django shop for the tests of docs/testing-your-shop.md: a database of its own, and the sandbox as its service."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, connections

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import virtual_backend
from shop import Order, create_app


@pytest.fixture
def anyio_backend() -> object:
    return virtual_backend("asyncio")


@pytest.fixture
def database(tmp_path: Path) -> None:
    settings.DATABASES["default"]["NAME"] = tmp_path / "shop.db"
    with connection.schema_editor() as tables:
        tables.create_model(Order)
    connection.close()


@pytest.fixture
def open_shop(
    mobilemoney_sandbox: Sandbox, database: None
) -> Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]:
    @asynccontextmanager
    async def open_shop() -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(mobilemoney_sandbox.client)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as browser,
        ):
            yield browser
        await sync_to_async(connections.close_all)()

    return open_shop
