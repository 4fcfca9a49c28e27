"""The shop of examples/postgres_shop, as its user runs it: alembic, PostgreSQL, workers of uvicorn, its tests."""

import ast
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async.sandbox import faults
from tests.support.databases import Postgres, execute, postgres
from tests.support.fleet import Fleet, fleet_environment, make_sandbox
from tests.support.patience import PATIENCE
from tests.support.shops import EXAMPLES, run_tests
from tests.support.warm import SCRIPT, warm

FOLDER = EXAMPLES / "postgres_shop"
PAGE = EXAMPLES.parent / "docs" / "postgres-shop.md"
CUSTOMERS = [f"0681 234 {number:03d}" for number in range(10)] + ["0780 000 039", "0780 000 203"]
SERVE = (
    sys.executable,
    "-m",
    "uvicorn",
    "--workers=2",
    "--timeout-graceful-shutdown=5",
    "--timeout-worker-healthcheck=20",
)
ALEMBIC = "import sys, alembic.config; alembic.config.main(sys.argv[1:])"

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


def new_database(server: Postgres) -> str:
    """Return the URL of a new database; asyncpg knows no empty host before one in the query."""
    url = sa.make_url(server.new_database())
    url = sa.URL.create("postgresql", url.username, url.password, database=url.database, query=url.query)
    return url.render_as_string(hide_password=False)


def rows(url: str, statement: str) -> list[Any]:
    return [tuple(row) for row in execute(url.replace("postgresql:", "postgresql+psycopg:"), statement)]


def run_script(code: str, *arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program of the shop's staff, whose imports are done."""
    modules = ("alembic.command", "alembic.config", "asyncpg", "mobilemoney_async.contrib.fastapi")
    dialects = ("sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.ext.asyncio")
    staff = warm(*modules, *dialects, options=("-W", "error"))
    return staff.run(code, *arguments, cwd=cwd, env=env, seconds=PATIENCE)


def migrate(folder: Path, *arguments: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Run alembic for the shop in a folder."""
    ran = run_script(ALEMBIC, "-c", str(folder / "alembic.ini"), *arguments, cwd=cwd, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def workers(pid: int) -> list[int]:
    """Return the processes that serve, which the server has started."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split())
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_the_shop_passes_its_tests(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the example, as its user runs them; the shop's own database stays as it is."""
    url = new_database(server)
    rows(url, "CREATE TABLE orders AS SELECT 'paid' AS state")
    monkeypatch.setenv("DATABASE_URL", url)
    assert run_tests(FOLDER) == 15
    assert rows(url, "SELECT state FROM orders") == [("paid",)]


def test_the_tests_of_the_shop_empty_no_other_database(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that leads to another database than it names ends them before anything is dropped."""
    url = new_database(server)
    name = str(sa.make_url(url).database)
    monkeypatch.setenv("DATABASE_URL", f"{url}&dbname={name}")
    with pytest.raises(AssertionError, match=f"{name} is not emptied"):
        run_tests(FOLDER, "-k", "keeps_its_cart")


async def buy(browser: httpx.AsyncClient, customers: list[str]) -> None:
    """Click until the shop has taken the order: a worker may be gone before it has answered."""
    for phone_number in customers:
        number = f"order-{CUSTOMERS.index(phone_number):016d}"
        cart = {"item": "tea", "phone_number": phone_number}
        status = 0
        with anyio.fail_after(PATIENCE):
            while status not in {200, 202}:
                try:
                    status = (await browser.post(f"/orders/{number}", json=cart)).status_code
                except httpx.TransportError:
                    await anyio.sleep(0.1)  # real time: a customer who clicks again


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_every_paid_order_is_shipped_once(server: Postgres, tmp_path: Path) -> None:
    """Of two workers: both are restarted one by one while orders come, one is killed under load, answers are lost."""
    sandbox, url = make_sandbox(), new_database(server)
    with socket.create_server(("127.0.0.1", 0)) as free:
        shop = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with sandbox.serve() as base_url:
        variables = {"DATABASE_URL": url, "MOBILEMONEY_TIMEOUT": "5", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        env = fleet_environment(sandbox, base_url, tmp_path, **variables)
        del env["MOBILEMONEY_STORE"]
        fleet = Fleet(sandbox=sandbox, folder=tmp_path, env=env)
        migrate_shop = partial(migrate, FOLDER, cwd=tmp_path, env=env)
        await anyio.to_thread.run_sync(migrate_shop, "upgrade", "head")
        served = (*SERVE, f"--app-dir={FOLDER}", f"--port={shop.rpartition(':')[2]}", "--factory", "app:create_app")
        async with fleet.process(*served) as process, httpx.AsyncClient(base_url=shop, timeout=PATIENCE) as browser:
            await fleet.until(lambda: fleet.said().count("Application startup complete") == 2)

            sandbox.script(faults.drop(processed=True), on="c2b", times=2)
            before = workers(process.pid)
            asked = 0

            def are_new() -> bool:
                """Ask for a rolling restart, again where a busy machine was too slow for the health check."""
                nonlocal asked
                if fleet.said().count("aborting the restart") == asked:
                    process.send_signal(signal.SIGHUP)
                    asked += 1
                now = workers(process.pid)
                return len(now) == 2 and not {*before} & {*now}

            are_new()
            async with anyio.create_task_group() as tasks:
                for start in range(4):
                    tasks.start_soon(buy, browser, CUSTOMERS[start::4])
            await fleet.until(are_new)
            await fleet.until(lambda: not rows(url, "SELECT 1 FROM orders WHERE state = 'open'"))
            (victim, *_) = workers(process.pid)
            load = (str(FOLDER / "load.py"), "6", f"--kill={victim}", f"--shop={shop}")
            beside = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); {SCRIPT}"  # its own folder, as for any script
            tried = await anyio.to_thread.run_sync(partial(run_script, beside, *load, cwd=tmp_path, env=env))
            assert tried.stdout.splitlines() == [
                "customers are told: {'succeeded': 6}; orders paid: 6; shipped: 6",
                "the service's list and the shop agree",
            ], tried.stderr
            await fleet.until(lambda: victim not in workers(process.pid) and len(workers(process.pid)) == 2)
            # The tables are those of `models`, beside the library's.
            await anyio.to_thread.run_sync(migrate_shop, "check")
            process.terminate()
            with anyio.fail_after(PATIENCE):
                await process.wait()
    assert "Traceback" not in fleet.said()
    made = Counter(each.phone_number for each in sandbox.transactions.values())
    assert [*made.values()] == [1] * (len(CUSTOMERS) + 6)
    paid = {each.phone_number for each in sandbox.transactions.values() if each.status == "SUCCESS"}
    assert sandbox.ledger.collected == Decimal(6_500) * len(paid)
    assert rows(url, "SELECT phone_number FROM orders WHERE state = 'paid' ORDER BY phone_number") == [
        (number,) for number in sorted(paid)
    ]
    shipped = "SELECT phone_number FROM shipments JOIN orders ON id = order_id ORDER BY phone_number"
    assert rows(url, shipped) == [(number,) for number in sorted(paid)]


# What the reader of the docs has: an old order, and books.
EXISTING = """
CREATE TABLE books (
    id BIGSERIAL PRIMARY KEY, price INTEGER NOT NULL, stock INTEGER NOT NULL
);
CREATE TABLE purchases (
    id BIGSERIAL PRIMARY KEY, total INTEGER NOT NULL, status VARCHAR NOT NULL,
    placed_at TIMESTAMPTZ DEFAULT now() NOT NULL
);
CREATE TABLE purchase_lines (
    order_id BIGINT REFERENCES purchases, book_id BIGINT REFERENCES books, quantity INTEGER NOT NULL,
    PRIMARY KEY (order_id, book_id)
);
INSERT INTO purchases (total, status) VALUES (9000, 'dispatched');
"""
# What the shop of the docs must hold beside the tests of the example, which has no stock.
STOCK = """
import pytest
import sqlalchemy as sa
from models import Book
from test_shop import pay, rows, settled

pytestmark = pytest.mark.anyio


async def test_open_and_paid_orders_hold_their_books(open_shop, database):
    async with open_shop() as browser:
        with database.begin() as connection:
            connection.execute(sa.update(Book).values(stock=4))
        await pay(browser, "0780 000 789", "order-0000000000000001")
        await pay(browser, "0780 000 039", "order-0000000000000002")
        assert rows(database, sa.select(Book.stock)) == [(0,)]
        refused = await pay(browser, "0780 000 778", "order-0000000000000003")
        assert (refused.status_code, refused.json()) == (409, {"detail": "Sold out."})
        assert (await browser.get("/orders/order-0000000000000003")).status_code == 404
        assert await settled(browser, "order-0000000000000001") == "succeeded"
        assert await settled(browser, "order-0000000000000002") == "failed"
        assert rows(database, sa.select(Book.stock)) == [(2,)]
        assert (await pay(browser, "0780 000 778", "order-0000000000000003")).status_code == 202
"""


def shop_of_the_docs(copy: Path) -> None:
    """Copy the example, and replace in it what docs/postgres-shop.md replaces: definitions of the same names.

    Definitions of new names come after the one before them, as they do in the docs.
    """
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "pgdata", ".venv"))
    (block,) = re.findall(
        r"<!-- not run alone: replaces [^\n]*\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    for part in re.split(r"^# (?=\w+\.py:)", block, flags=re.MULTILINE)[1:]:
        heading, _, new = part.partition("\n")
        file = copy / heading.partition(":")[0]
        text = file.read_text("utf-8")
        last = ""
        for node in ast.parse(new).body:
            after = ast.get_source_segment(new, node)
            assert after is not None
            if old := [each for each in ast.parse(text).body if name_of(each) == name_of(node)]:
                before = ast.get_source_segment(text, old[0])
            else:
                before, after = last, f"{last}\n\n\n{after}"
            assert before
            text, last = text.replace(before, after), after
        file.write_text(text, "utf-8")


def name_of(node: ast.stmt) -> str | None:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.ImportFrom(module=str(name)):
            return name
        case ast.Assign(targets=[ast.Tuple() as names]):
            return ast.unparse(names)
    return None


def test_the_shop_that_the_docs_make_of_it_passes_its_tests(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that exist, with lines, stock and a status of their own: nothing else has to change, and all goes back."""
    copy = tmp_path / "shop"
    shop_of_the_docs(copy)
    url = new_database(server)
    monkeypatch.setenv("DATABASE_URL", url)
    rows(url, EXISTING)
    (copy / "migrations/versions/0001_shop.py").unlink()
    steps = ("revision --autogenerate -m shop", "upgrade head", "check", "downgrade base", "upgrade head")
    for step in steps:
        migrate(copy, *step.split(), cwd=copy, env=os.environ)
    assert rows(url, "SELECT status, number, cart FROM purchases") == [("dispatched", None, None)]
    (copy / "test_stock.py").write_text(STOCK, "utf-8")
    # Those of what the docs replace: cart, stock, and what becomes of an order.
    chosen = "hold_their_books or keeps_its_cart or not_recorded or sent_again or (shipped_once and 789)"
    assert run_tests(copy, "-k", chosen) == 6
