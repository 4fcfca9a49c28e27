"""The DBOS example: a real PostgreSQL, a worker that is killed, and two shops at two sandboxes behind one address."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn

from mobilemoney_async import SQLStore
from mobilemoney_async.sandbox import Sandbox, faults
from tests.support.databases import execute, postgres
from tests.support.fleet import Fleet, fleet_environment, kill, make_sandbox
from tests.support.patience import PATIENCE, until
from tests.support.shops import EXAMPLES

pytestmark = [pytest.mark.once, pytest.mark.slow]  # on the Python for which nox installs the engines

PROGRAM = EXAMPLES / "dbos_orders.py"
IMPORTED = ("dbos", "mobilemoney_async.merchants", "sqlalchemy.dialects.postgresql.psycopg")
OPEN = "SELECT 1 FROM orders WHERE status = 'open'"
IS_LOST = "SELECT 1 FROM mobilemoney_payment_records WHERE key = 'lost' AND state = 'UNKNOWN'"
ORDERS = {f"refund-{number}": (f"+25568123{4_500 + number}", f"{5_000 + 100 * number}") for number in range(6)}


@asynccontextmanager
async def serve(sandboxes: list[Sandbox]) -> AsyncIterator[str]:
    """Serve sandboxes at one address, as one service with a merchant for each token; the first refuses other ones."""
    apps = {each.token: each.app for each in sandboxes}

    async def route(scope: Any, receive: Any, send: Any) -> None:
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        await apps.get(token, sandboxes[0].app)(scope, receive, send)

    config = uvicorn.Config(route, port=0, log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        finally:
            server.should_exit = True


def rows(url: str, query: str) -> list[Any]:
    return [tuple(row) for row in execute(url, query)]


@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_orders_payments_and_workflows_are_one(tmp_path: Path) -> None:
    """A file with a wrong line leaves nothing; a killed worker goes on; each order of each shop is paid once.

    One shop has a wrong token, which is nothing to the others. Orders whose payments were refused, or
    confirmed absent, hear of it too.
    """
    shops = {"shop-1": make_sandbox(1), "shop-2": make_sandbox(2)}
    file, wrong = tmp_path / "payouts.csv", tmp_path / "wrong.csv"
    lines = ["order,phone_number,amount", *(f"{order},{number},{amount}" for order, (number, amount) in ORDERS.items())]
    file.write_text("\n".join(lines))
    wrong.write_text("\n".join([lines[0], "lost-1,+255681234567,1000", "lost-2,+255681234568,-5"]))
    refused, changed = tmp_path / "refused.csv", tmp_path / "changed.csv"
    refused.write_text(f"{lines[0]}\nrefund/9,+255681234569,9000")
    lost = tmp_path / "lost.csv"
    lost.write_text(f"{lines[0]}\nlost,+255681234570,9100")
    changed.write_text(f"{lines[0]}\nrefund/9,+255681234569,9999")
    with postgres() as server:
        url = server.new_database()
        async with serve([*shops.values()]) as base_url:
            tokens = json.dumps({"shop-0": "wrong", **{name: sandbox.token for name, sandbox in shops.items()}})
            env = fleet_environment(
                shops["shop-1"], base_url, tmp_path, MOBILEMONEY_STORE=url, TOKENS=tokens, DBOS__VMID="host-1"
            )
            fleet = Fleet(sandbox=shops["shop-1"], folder=tmp_path, env=env, imported=IMPORTED)
            async with fleet.process(sys.executable, str(PROGRAM), "work") as first:
                await fleet.until(lambda: "the worker has begun" in fleet.said())
                fleet.strike(partial(kill, first), after=2)
                with pytest.raises(AssertionError, match="amount must be"):
                    await fleet.run(PROGRAM, "place", "shop-1", str(wrong))
                for shop, count in [("shop-0", 6), ("shop-1", 6), ("shop-1", 0)]:
                    assert await fleet.run(PROGRAM, "place", shop, str(file)) == f"{count} orders placed\n"
                await first.wait()
                # Only now: what a kill hits before it has left the process is ABSENT, and waits for an operator.
                assert await fleet.run(PROGRAM, "place", "shop-2", str(file)) == "6 orders placed\n"
            assert rows(url, OPEN)
            for sandbox in shops.values():
                sandbox.script(faults.server_error(processed=True), on="b2c")
            async with fleet.process(sys.executable, str(PROGRAM), "work") as second:
                await fleet.until(lambda: not rows(url, f"{OPEN} AND shop <> 'shop-0'"))
                shops["shop-1"].script(faults.server_error(422, processed=False), on="b2c")
                assert await fleet.run(PROGRAM, "place", "shop-1", str(refused)) == "1 orders placed\n"
                await fleet.until(lambda: not rows(url, f"{OPEN} AND shop <> 'shop-0'"))
                shops["shop-1"].script(faults.drop(processed=False), on="b2c")
                assert await fleet.run(PROGRAM, "place", "shop-1", str(lost)) == "1 orders placed\n"
                await fleet.until(lambda: bool(rows(url, IS_LOST)))
                store = SQLStore(url, account="shop-1", grace=0)
                async with shops["shop-1"].client(store=store) as client:
                    await client.payments.confirm_absent("lost", note="looked")
                await fleet.until(lambda: not rows(url, f"{OPEN} AND shop <> 'shop-0'"))
                with pytest.raises(AssertionError, match="IdempotencyConflict"):
                    await fleet.run(PROGRAM, "place", "shop-1", str(changed))
                second.terminate()
                with anyio.fail_after(PATIENCE):
                    assert await second.wait() == 0
        paid = [(shop, order, "SUCCESS") for shop in shops for order in ORDERS]
        unpaid = [("shop-0", order, "open") for order in ORDERS]
        expected = [*unpaid, ("shop-1", "lost", "RELEASED"), *paid[:6], ("shop-1", "refund/9", "REFUSED"), *paid[6:]]
        assert sorted(rows(url, "SELECT shop, id, status FROM orders")) == expected
        from dbos import DBOSClient, DBOSPortableJSONSerializer  # which a collection of tests need not import

        engine = DBOSClient(system_database_url=url, serializer=DBOSPortableJSONSerializer())
        workflows = [
            (each.workflow_id, each.status, each.input["args"][0]) for each in engine.list_workflows() if each.input
        ]
        engine.destroy()
    ended = [(f"{shop}/{order}", "SUCCESS", {"shop": shop, "order": order}) for shop, order, _ in paid]
    assert [each for each in sorted(workflows, key=str) if each[1] == "SUCCESS"] == ended
    assert "shop-1/refund%2F9" in [name for name, status, _ in workflows if status != "SUCCESS"]
    for sandbox in shops.values():
        made = sorted((each.phone_number, each.amount) for each in sandbox.transactions.values())
        assert made == sorted(ORDERS.values())
    assert "Recovering" in fleet.said()
    assert "681234" not in fleet.said()
