"""The shops of docs/testing-your-shop.md with their tests, each in a folder of its own as its reader has it."""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import _mobilemoney_pytest
from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.warm import run_pytest_alone

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "testing-your-shop.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
# What becomes of a payment whose answer is lost is the same under each framework, and takes minutes to find out.
SAME = "list_is_wrong or drop or html"
# A view of Django finds the backend in the scope of its request.
STATUS_TEST = """
import time

from shop import create_app
from starlette.testclient import TestClient

from mobilemoney_async.sandbox import Sandbox


def test_a_customer_sees_the_status(database):
    with TestClient(create_app(Sandbox(speed=60).client), base_url="http://shop") as browser:
        browser.post("/orders/order-1", json={"phone_number": "0780 000 789"})
        while (answer := browser.get("/orders/order-1/status")).status_code == 202:
            time.sleep(0.05)
    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
"""

pytestmark = pytest.mark.once


def copy_files(folder: Path, *sections: str) -> None:
    """Copy the examples that these sections name."""
    for section in sections:
        for example in re.findall(r"\]\(\.\./examples/(\S+\.py)\)", SECTIONS[section]):
            shutil.copy(EXAMPLES / example, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "left_out", "passed"), [("FastAPI", "nothing", 12), ("Django", SAME, 7)])
def test_a_shop_passes_its_tests(tmp_path: Path, framework: str, left_out: str, passed: int) -> None:
    """Copied into an empty folder, the three files are a shop whose tests pass, without a warning."""
    copy_files(tmp_path, framework, "The tests")
    plugins = ("-p", "anyio.pytest_plugin", "-p", _mobilemoney_pytest.__name__)
    ran = run_pytest_alone(tmp_path, *plugins, "-q", "-W", "error", "-k", f"not ({left_out})")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"\n{passed} passed" in ran.stdout


@pytest.mark.slow
def test_a_view_of_django_answers_with_the_status(tmp_path: Path) -> None:
    """The Starlette application around Django gives each request the backend."""
    copy_files(tmp_path, "Django")
    (tmp_path / "test_status.py").write_text(STATUS_TEST, encoding="utf-8")
    plugins = ("-p", "anyio.pytest_plugin", "-p", _mobilemoney_pytest.__name__)
    ran = run_pytest_alone(tmp_path, *plugins, "-q", "-W", "error")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_shop_on_starlette_is_paid() -> None:
    """The example of docs/fastapi.md serves a customer, without a warning."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / "starlette_shop.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment())
    assert (ran.stdout, ran.stderr) == ("succeeded\n", "")


@pytest.mark.slow
def test_a_crowd_is_paid_and_the_books_agree(tmp_path: Path) -> None:
    """The load test drives the shop over real sockets, and counts orders, lost answers and money."""
    copy_files(tmp_path, "FastAPI", "A load test")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    load = tmp_path / "load.py"
    # With customers in a hurry, and each third answer lost.
    quick = {"= (3, 20), (60, 100)": "= (0, 1), (1, 2)", "LOST = 0.05": "LOST = 0.3", ":8001": f":{port}"}
    text = load.read_text("utf-8")
    for old, new in quick.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    load.write_text(text, encoding="utf-8")
    served = [sys.executable, "-m", "uvicorn", "--factory", "shop:create_app", "--port", port, "--log-level", "error"]
    ran = subprocess.run(
        [sys.executable, "load.py", "8", *served],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=tmp_path,
        env=environment(),
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^orders +8, 8 paid, 0 open", ran.stdout, re.MULTILINE), ran.stdout + ran.stderr
    assert re.search(r"^asked twice +0$", ran.stdout, re.MULTILINE)
    assert ran.stdout.endswith("books and service agree\n")
