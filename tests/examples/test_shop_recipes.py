"""The shops of docs/testing-your-shop.md with their tests, each in a folder of its own as its reader has it."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.shops import EXAMPLES, run_tests
from tests.support.warm import SCRIPT, warm

PAGE = (EXAMPLES.parent / "docs" / "testing-your-shop.md").read_text("utf-8")
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
            time.sleep(0.05)  # real time: it asks until the payment has ended, however late
        unknown = browser.get("/orders/order-2/status")
    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
    assert (unknown.status_code, unknown.headers["Content-Type"]) == (404, "application/problem+json")
"""
# The copied fixtures open the shop of either framework.
UNPAID_TEST = """
from datetime import timedelta

import anyio
import pytest

from mobilemoney_async import SQLStore
from mobilemoney_async.sandbox import faults
from mobilemoney_async.sandbox.states import Status

pytestmark = pytest.mark.anyio


async def click(browser, phone_number):
    answer = await browser.post("/orders/order-1", json={"phone_number": phone_number})
    assert answer.status_code == (202 if answer.json() == "open" else 200)


async def becomes(browser, wanted):
    with anyio.fail_after(60):
        while (await browser.get("/orders/order-1")).json() != wanted:
            await anyio.sleep(1)


async def test_the_next_click_pays_what_came_too_late(open_shop, mobilemoney_sandbox, monkeypatch):
    outage = mobilemoney_sandbox.script(faults.refused(), on="c2b", probability=1)
    async with open_shop() as browser:
        with monkeypatch.context() as patch:
            patch.setattr("shop.timedelta", lambda minutes: timedelta(seconds=1))
            await click(browser, "+255780000789")
            await becomes(browser, "unpaid")
        outage.cancel()
        await click(browser, "+255780000789")
        assert (await browser.get("/orders/order-1")).json() == "open"
        await becomes(browser, "ship")
    assert mobilemoney_sandbox.ledger.collected == 15_000


async def test_what_turns_out_to_be_paid_is_shipped(open_shop, mobilemoney_sandbox, tmp_path):
    async with open_shop() as browser:
        await click(browser, "+255780000039")
        await becomes(browser, "unpaid")
        await click(browser, "+255780000039")  # not taken again
        assert (await browser.get("/orders/order-1")).json() == "unpaid"
        ((transaction_id, payment),) = mobilemoney_sandbox.transactions.items()
        for name, value in (("status", Status.SUCCESS), ("failure_reason", None)):  # the service corrects itself
            object.__setattr__(payment, name, value)
        store = SQLStore(f"sqlite:///{tmp_path / 'shop.db'}")
        async with mobilemoney_sandbox.client(store=store) as staff:
            assert [row.id async for row in staff.transactions.list()] == [transaction_id]  # the change is seen
            await staff.payments.recover({"order-1": transaction_id}, note="Asha: the dashboard has it as paid")
        await becomes(browser, "ship")


async def test_what_the_customer_can_correct_is_said(open_shop):
    async def pay(phone_number):
        answer = await browser.post("/orders/order-1", json={"phone_number": phone_number})
        return answer.status_code, answer.json()

    async with open_shop() as browser:
        status, said = await pay("0222 111 000")
        assert (status, said["message"]) == (422, "Please enter a Tanzanian mobile number, such as 0788 500 000.")
        await click(browser, "+255780000039")
        await becomes(browser, "unpaid")
        status, said = await pay("0780 000 789")
        assert (status, said["title"]) == (409, "This order has another payment. Please begin a new order.")
        assert (await browser.get("/orders/order-1")).json() == "unpaid"
"""
# What pytest-django does: a test database, whose name the settings have, and between tests no rows of the models.
PYTEST_DJANGO = """

@pytest.fixture(scope="session")
def test_database():
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    with connection.schema_editor() as tables:
        tables.create_model(Order)


@pytest.fixture
def transactional_db(test_database):
    yield
    Order.objects.all().delete()


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
    assert run_tests(tmp_path, "-k", f"not ({left_out})") == passed


@pytest.mark.slow
def test_a_shop_passes_its_tests_in_the_test_database_of_django(tmp_path: Path) -> None:
    """With the page's name and fixture for pytest-django, no test meets the payments of the test before."""
    copy_files(tmp_path, "Django", "The tests")
    (test_name,) = re.findall(r'`("TEST": [^`]+)`', SECTIONS["Django"])
    (fixture,) = re.findall(r"```python\n(@pytest.fixture\n.*?)```", SECTIONS["Django"], re.DOTALL)
    shop, conftest = tmp_path / "shop.py", tmp_path / "conftest.py"
    before, options, after = shop.read_text("utf-8").partition('"OPTIONS": {')
    shop.write_text(f"{before}{test_name}, {options}{after}", encoding="utf-8")
    replaced = r"@pytest.fixture\ndef database\(.*?\n\n\n"
    text, count = re.subn(replaced, PYTEST_DJANGO + fixture, conftest.read_text("utf-8"), flags=re.DOTALL)
    assert count == 1
    conftest.write_text(text, encoding="utf-8")
    assert run_tests(tmp_path, "-k", "a_customer") == 2
    assert [each.name for each in tmp_path.glob("*.db")] == [json.loads(f"{{{test_name}}}")["TEST"]["NAME"]]


@pytest.mark.slow
def test_a_view_of_django_answers_with_the_status(tmp_path: Path) -> None:
    """The Starlette application around Django gives each request the backend."""
    copy_files(tmp_path, "Django")
    (tmp_path / "test_status.py").write_text(STATUS_TEST, encoding="utf-8")
    assert run_tests(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["FastAPI", "Django"])
def test_an_unpaid_order_that_is_paid_after_all_is_shipped(tmp_path: Path, framework: str) -> None:
    """No paid order stays unpaid: by the next click after an outage, or since the service has corrected itself.

    What the customer has to correct is an answer, no error of the server.
    """
    copy_files(tmp_path, framework)
    (tmp_path / "test_unpaid.py").write_text(UNPAID_TEST, encoding="utf-8")
    assert run_tests(tmp_path)


@pytest.mark.slow
def test_the_shop_on_starlette_is_paid() -> None:
    """The example of docs/fastapi.md serves a customer, without a warning."""
    modules = ("starlette.testclient", "mobilemoney_async.contrib.backend", "mobilemoney_async.sandbox")
    starlette = warm(*modules, options=("-W", "error"))
    ran = starlette.run(SCRIPT, str(EXAMPLES / "starlette_shop.py"), env=environment(), seconds=PATIENCE)
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
