"""Fixture for the tests of calls."""

import pytest

from tests.calls.ways import WAYS


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, anyio_backend_name: str) -> str:
    """Return a way of sending, for `tests.calls.ways.connect`."""
    name: str = request.param
    return "httpx" if name == "aiohttp" and anyio_backend_name == "trio" else name  # aiohttp has no trio
