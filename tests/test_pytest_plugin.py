"""The pytest plugin in pytest runs of its own, and in them the recipes of docs/testing.md and a web application."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import _mobilemoney_pytest
from tests.support.processes import environment
from tests.support.warm import run_pytest_alone

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text("utf-8"), re.DOTALL)
ANYIO_CONFTEST, ASYNCIO_CONFTEST = BLOCKS[:2]
WEB_APPLICATION = '''
import anyio
import httpx
import pytest
from fastapi import FastAPI, Response

from mobilemoney_async.contrib.fastapi import (
    BackendDependency,
    mobilemoney_lifespan,
    status_response,
)


def create_app(make_client, **options) -> FastAPI:
    """The code under test."""
    app = FastAPI(lifespan=mobilemoney_lifespan(make_client, **options))

    @app.post("/orders/{order}")
    async def pay(
        order: str, phone_number: str, backend: BackendDependency
    ) -> Response:
        return status_response(
            await backend.collect(
                order, phone_number=phone_number, amount=15_000
            )
        )

    return app


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("customer", "ending"),
    [("+255780000789", "SUCCESS"), ("+255780000039", "FAILED")],
)
async def test_an_order_is_shipped_once_it_is_paid(
    mobilemoney_client, customer, ending
):
    settled = []

    async def settle(change):
        settled.append((change.key, change.status))

    app = create_app(
        lambda: mobilemoney_client, on_settled=settle, name="shop"
    )
    browser = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://shop"
    )
    async with app.router.lifespan_context(app), browser:
        answer = await browser.post(
            "/orders/order-1", params={"phone_number": customer}
        )
        assert (answer.status_code, answer.json()["state"]) == (202, "pending")
        with anyio.fail_after(600):  # seconds of virtual time
            while not settled:
                await anyio.sleep(1)
    assert settled == [("order-1", ending)]
'''
RECIPES = "\n\n".join([*BLOCKS[2:], WEB_APPLICATION])
TESTS = 7  # of six functions: one of them has two customers

IN_ITS_OWN_LOOP = """
import anyio
import pytest

from mobilemoney_async.testing import run_virtual


def pays(client):
    async def main():
        prompt = await client.collections.create(phone_number="+255780000789", amount=1000)
        return await client.transactions.wait(prompt.transaction_id)

    return main


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_virtual(mobilemoney_client, backend):
    assert run_virtual(pays(mobilemoney_client), backend=backend).succeeded


@pytest.mark.mobilemoney(speed=1000)
def test_real(mobilemoney_sandbox, mobilemoney_client):
    assert mobilemoney_sandbox.speed == 1000
    assert anyio.run(pays(mobilemoney_client)).succeeded


@pytest.mark.mobilemoney(speed=7, balance=5)
class TestMarks:
    @pytest.mark.mobilemoney(balance=6)
    def test_nearest(self, mobilemoney_sandbox):
        assert (mobilemoney_sandbox.speed, mobilemoney_sandbox.balance) == (7, 6)

    @pytest.mark.mobilemoney(60)
    def test_by_place(self, request):
        with pytest.raises(pytest.UsageError, match="by name"):
            request.getfixturevalue("mobilemoney_sandbox")

    def test_new(self, mobilemoney_sandbox, mobilemoney_client):
        assert not mobilemoney_sandbox.transactions
        assert mobilemoney_client._pipeline.utcnow() == mobilemoney_sandbox.now
"""


def run_pytest(folder: Path, *arguments: str, **files: str) -> dict[str, int]:
    """Run pytest in a process of its own, with the plugin and no other but those named, and count how tests ended."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    ran = run_pytest_alone(folder, "-p", _mobilemoney_pytest.__name__, "--strict-markers", "-q", *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {outcome: int(count) for count, outcome in re.findall(r"(\d+) (passed|failed|skipped|error)", ran.stdout)}


@pytest.mark.slow
def test_the_recipes_pass_under_anyio_on_both_loops(tmp_path: Path) -> None:
    """The recipes of the docs are tests that pass, in virtual time, on asyncio and trio."""
    ended = run_pytest(tmp_path, "-p", "anyio.pytest_plugin", conftest=ANYIO_CONFTEST, test_recipes=RECIPES)
    assert ended == {"passed": 2 * TESTS}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_recipes_pass_under_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    """The same tests with the other plugin's marker, in both its modes."""
    recipes = RECIPES.replace("@pytest.mark.anyio", "@pytest.mark.asyncio" if mode == "strict" else "")
    chosen, count = ("", TESTS) if mode == "strict" else ("shipped_once", 2)  # what differs is the other plugin's
    ended = run_pytest(
        tmp_path,
        "-p",
        "pytest_asyncio.plugin",
        f"--asyncio-mode={mode}",
        "--override-ini=asyncio_default_fixture_loop_scope=function",
        f"-k={chosen}",
        conftest=ASYNCIO_CONFTEST,
        test_recipes=recipes,
    )
    assert ended == {"passed": count}


@pytest.mark.slow
def test_the_fixtures_need_no_plugin_for_async_tests(tmp_path: Path) -> None:
    """Tests that run a loop themselves take the fixtures too; the marker gives the sandbox its arguments."""
    assert run_pytest(tmp_path, test_own=IN_ITS_OWN_LOOP) == {"passed": 6}


@pytest.mark.slow
def test_a_project_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    """The plugin is loaded in every run of pytest; the library is imported by the first test that asks for it."""
    unused = (
        "import sys\n\n\ndef test_it():\n    assert not {'anyio', 'httpx', 'mobilemoney_async'} & set(sys.modules)\n"
    )
    (tmp_path / "test_unused.py").write_text(unused, encoding="utf-8")
    (tmp_path / "pytest.ini").touch()  # not that of a folder above
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", _mobilemoney_pytest.__name__]
    variables = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path, env=variables)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_pytest_finds_it() -> None:
    """The entry point names the plugin, in the project's metadata and where it is installed."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
    assert declared == {"mobilemoney": _mobilemoney_pytest.__name__}
    if os.environ.get("MOBILEMONEY_TESTS_INSTALLED"):
        (found,) = importlib.metadata.entry_points(group="pytest11", name="mobilemoney")
        assert found.load() is _mobilemoney_pytest
