"""Servers and clocks of others: what docs/servers.md says of them."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import httpx
import pytest

from tests.support.fleet import Fleet, fleet_environment, make_sandbox
from tests.support.patience import PATIENCE
from tests.support.warm import warm

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "servers.md").read_text("utf-8")
# A synchronous view of Django, over the same module of the page, with the page's answer.
(RESPONSE,) = (" ".join(each.split()) for each in re.findall(r"`(HttpResponse\(.*?\))`", PAGE, re.DOTALL))
DJANGO = f"""
import json, payments
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="of the test")

def order(request, order):
    if request.method == "POST":
        answer = payments.pay(order, json.loads(request.body)["phone_number"], 15_000)
    else:
        answer = payments.status(order)
    return {RESPONSE}

urlpatterns = [path("orders/<order>", order)]
app = get_wsgi_application()
"""
FASTAPI = """
from fastapi import FastAPI, Response
from pydantic import BaseModel
from mobilemoney_async.contrib.fastapi import (
    BackendDependency, install_error_answers, mobilemoney_lifespan, status_response
)

class Cart(BaseModel):
    phone_number: str

app = FastAPI(lifespan=mobilemoney_lifespan(local_numbers=True))
install_error_answers(app)

@app.post("/orders/{order}")
async def pay(order: str, cart: Cart, backend: BackendDependency) -> Response:
    return status_response(await backend.collect(order, phone_number=cart.phone_number, amount=15_000))

@app.get("/orders/{order}")
async def status(order: str, backend: BackendDependency) -> Response:
    return status_response(await backend.status(order))
"""
SHOPS = {"django": DJANGO, "fastapi": FASTAPI}

pytestmark = [pytest.mark.once, pytest.mark.slow]
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


def test_every_line_of_the_page_is_a_test() -> None:
    """Each row of the table names a test that exists."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert all("::test_" in row or row.endswith("| the same |") for row in rows)
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE):
        assert f"def {name}(" in (DOCS.parent / file).read_text("utf-8"), f"{file}::{name}"


def write_shop(folder: Path, framework: str) -> None:
    for text, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE, re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    if framework in SHOPS:
        (folder / "shop.py").write_text(SHOPS[framework], encoding="utf-8")


async def is_paid(browser: httpx.AsyncClient, order: str) -> bool:
    with anyio.fail_after(PATIENCE):
        answer = await browser.get(f"/orders/{order}")
    return answer.status_code == 200 and answer.json()["state"] == "succeeded"


async def buy(browser: httpx.AsyncClient, fleet: Fleet, orders: range) -> None:
    """Order, click twice, and wait until all is paid."""
    unknown = await browser.get("/orders/unknown")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/problem+json")
    for number in (*orders, *orders):
        cart = {"phone_number": f"0780 {number:03d} 789"}
        answer = await browser.post(f"/orders/order-{number}", json=cart)
        assert answer.status_code in {200, 202}, answer.text
    for number in orders:
        while not await is_paid(browser, f"order-{number}"):
            await anyio.sleep(0.2)  # real time: a customer's page
    assert Counter(each.phone_number for each in fleet.sandbox.transactions.values()).most_common(1)[0][1] == 1


@pytest.mark.stops
@pytest.mark.real_time
@on_asyncio
@pytest.mark.parametrize(
    ("framework", "options"),
    [
        ("django", ("--preload", "--worker-class=sync")),
        ("flask", ("--worker-class=gevent",)),
    ],
    ids=["preload", "gevent"],
)
async def test_a_synchronous_shop_is_paid(framework: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Two processes of gunicorn, each with a portal: an order that is clicked twice is one payment."""
    await serve_shop(framework, options, tmp_path, is_frozen=False)


@pytest.mark.stops
@pytest.mark.real_time
@on_asyncio
async def test_a_shop_on_fastapi_is_paid(tmp_path: Path) -> None:
    """Two processes of gunicorn with its own ASGI worker: an order that is clicked twice is one payment."""
    await serve_shop("fastapi", ("--worker-class=asgi", "--asgi-lifespan=on"), tmp_path, is_frozen=False)


@pytest.mark.stops
@pytest.mark.real_time
@on_asyncio
async def test_a_process_that_was_frozen_goes_on(tmp_path: Path) -> None:
    """Their threads stand still for minutes of the service, with payments open; then these are followed, and more."""
    await serve_shop("flask", ("--worker-class=gthread", "--threads=4"), tmp_path, is_frozen=True)


async def serve_shop(framework: str, options: tuple[str, ...], folder: Path, *, is_frozen: bool) -> None:
    write_shop(folder, framework)
    sandbox = make_sandbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with sandbox.serve() as base_url:
        fleet = Fleet(sandbox=sandbox, folder=folder, env=fleet_environment(sandbox, base_url, folder))
        command = (
            sys.executable,
            "-m",
            "gunicorn",
            "--workers=2",
            "--timeout=600",
            "--no-control-socket",
            f"--bind={address}",
            *options,
        )
        async with fleet.process(*command, "shop:app") as process:
            await fleet.until(lambda: fleet.said().count("Booting worker") == 2)
            async with httpx.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE) as browser:
                await buy(browser, fleet, range(3))
                if is_frozen:
                    await browser.post("/orders/order-9", json={"phone_number": "0780 009 789"})
                    os.killpg(process.pid, signal.SIGSTOP)
                    thawed = sandbox.now.timestamp() + 15  # longer than every lease
                    await fleet.until(lambda: sandbox.now.timestamp() > thawed)
                    os.killpg(process.pid, signal.SIGCONT)
                    await buy(browser, fleet, range(9, 11))
            process.terminate()
            with anyio.fail_after(PATIENCE):
                assert await process.wait() == 0
    assert "Traceback" not in fleet.said(), fleet.said()


def test_the_extra_postgres_gives_django_its_driver() -> None:
    """Django prefers psycopg 3 where it is there."""
    program = "from django.db.backends.postgresql.psycopg_any import is_psycopg3; assert is_psycopg3"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


FROZEN = """
import sys
from datetime import datetime
from freezegun import freeze_time
import anyio
from mobilemoney_async import SQLStore
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import run_virtual

async def main(url):
    async with Sandbox(speed=60).client(store=SQLStore(url)) as client:
        prompt = await client.collections.create("+255780000789", 5000, idempotency_key="order-1")
        return (await client.transactions.wait(prompt, timeout=300)).status

with freeze_time("2026-11-27 12:00", real_asyncio=sys.argv[1] == "real"):
    status = (run_virtual if sys.argv[1] == "virtual" else anyio.run)(main, sys.argv[2])
    print(status, datetime.now())
"""


@pytest.mark.parametrize("how", ["virtual", "real"])
def test_a_frozen_clock_does_not_stop_a_payment(how: str, tmp_path: Path) -> None:
    """The program sees one time, and the payment ends."""
    modules = ("freezegun", "mobilemoney_async.payments.api", "mobilemoney_async.sandbox", "mobilemoney_async.testing")
    ran = warm(*modules).run(FROZEN, how, f"sqlite:///{tmp_path}/payments.db", seconds=PATIENCE)
    assert (ran.returncode, ran.stdout) == (0, "SUCCESS 2026-11-27 12:00:00\n"), ran.stderr


def test_a_frozen_clock_stops_asyncio() -> None:
    """The loop's own clock stands still, so that no timer of it is ever due."""
    program = """
import asyncio
from freezegun import freeze_time
with freeze_time("2026-11-27"):
    loop = asyncio.new_event_loop()
    assert len({loop.time() for _ in range(10_000)}) == 1
    loop.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
