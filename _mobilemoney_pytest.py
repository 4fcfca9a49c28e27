"""Pytest plugin of `mobilemoney_async`: fixtures for a merchant's own tests (docs/testing.md).

It is outside the package, since every run of pytest imports it wherever the library is installed, and importing the
package takes about as long as importing pytest. The fixtures are plain functions, so they serve every runner of async
tests: anyio's plugin on both loops, pytest-asyncio in both its modes, and tests that run a loop themselves.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mobilemoney_async import AsyncClient
    from mobilemoney_async.sandbox import Sandbox


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "mobilemoney(**options): arguments of the Sandbox behind `mobilemoney_sandbox`, such as speed=60 or balance=0",
    )


@pytest.fixture
def mobilemoney_sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Return the payments service, in process and empty; ``@pytest.mark.mobilemoney(speed=60)`` gives it arguments."""
    from mobilemoney_async.sandbox import Sandbox

    options: dict[str, Any] = {}
    for mark in request.node.iter_markers("mobilemoney"):  # the nearest first
        if mark.args:
            raise pytest.UsageError("mark mobilemoney takes arguments by name only, such as mobilemoney(speed=60)")
        options = {**mark.kwargs, **options}
    return Sandbox(**options)


@pytest.fixture
def mobilemoney_client(mobilemoney_sandbox: Sandbox, tmp_path: Path) -> Iterator[AsyncClient]:
    """Return a client of `mobilemoney_sandbox`, on the sandbox's clock: with a store if its extra is installed."""
    if importlib.util.find_spec("sqlalchemy") is None:
        yield mobilemoney_sandbox.client()
        return
    from mobilemoney_async import SQLStore

    store = SQLStore(f"sqlite:///{tmp_path / 'mobilemoney.db'}")
    yield mobilemoney_sandbox.client(store=store)
    store.close()
