"""The shop for the tests of docs/testing-your-shop.md: a database of its own, and the sandbox as its service."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import virtual_backend
from shop import create_app


@pytest.fixture
def anyio_backend() -> object:
    return virtual_backend("asyncio")


@pytest.fixture
def open_shop(
    mobilemoney_sandbox: Sandbox, tmp_path: Path
) -> Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]:
    @asynccontextmanager
    async def open_shop() -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(str(tmp_path / "shop.db"), mobilemoney_sandbox.client)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as browser,
        ):
            yield browser

    return open_shop
