"""Fixtures for the tests of commands: a person without configuration, and a sandbox over a real socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mobilemoney_async.sandbox import Choices, Sandbox
from tests.support.commands import leave_home, served


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with a home in it."""
    leave_home(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(choices=Choices(rate_limit=None))


@pytest.fixture
def url(sandbox: Sandbox) -> Iterator[str]:
    with served(sandbox) as base_url:
        yield base_url
