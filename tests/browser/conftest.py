"""Pages in a headless Chromium. These tests run where they are asked for: `nox -s browser`."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Elsewhere there need be neither a browser nor what drives it.
collect_ignore_glob = [] if os.environ.get("MOBILEMONEY_TESTS_BROWSER") else ["test_*.py"]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.support.chromium import headless

    with headless(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome
