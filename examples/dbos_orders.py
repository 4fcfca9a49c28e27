"""Pays for orders of many shops: order, payment and DBOS workflow are one transaction in the store's own PostgreSQL.

Worker: `python examples/dbos_orders.py work`. It makes all tables, so start it once before the first order. It pays,
and each order's workflow goes on when its payment has ended. Killed at any point and started again, it goes on there.
Orders: `python examples/dbos_orders.py place shop-1 examples/payouts.csv`, as often as you like.

Environment: MOBILEMONEY_BASE_URL, MOBILEMONEY_STORE (a `postgresql+psycopg://` URL) and TOKENS, a JSON object of the
shops' tokens.
"""

import csv
import json
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, error

from mobilemoney_async import Merchants, PaymentChange, SQLStore
from mobilemoney_async.contrib.backend import Backend

SPEED = float(os.environ.get("SANDBOX_SPEED", "1"))  # of a sandbox
DAY = 86_400.0
URL = os.environ["MOBILEMONEY_STORE"]
TOKENS: dict[str, str] = json.loads(os.environ["TOKENS"])  # here: your vault
# Not the default serializer, which is pickle: who can write to its tables could run code here.
SERIALIZER = DBOSPortableJSONSerializer()

logger = logging.getLogger("orders")
store = SQLStore(URL)
engine = sa.create_engine(URL, hide_parameters=True)  # its errors would show phone numbers
tables = sa.MetaData()
orders = sa.Table(
    "orders",
    tables,
    sa.Column("shop", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
)


def workflow_id(shop: str, order: str) -> str:
    """Return the id of an order's workflow: our idempotency key, with its account."""
    return f"{shop}/{order}"


def place(shop: str, payouts: list[dict[str, str]]) -> None:
    """Place orders: all of them with their payments and workflows, or, after an error, nothing."""
    workflows = DBOSClient(system_database_url=URL, serializer=SERIALIZER)
    payments = store.for_account(shop)
    try:
        with engine.begin() as connection:
            for each in payouts:
                name = each["order"]
                if connection.scalar(sa.select(orders.c.id).where(orders.c.shop == shop, orders.c.id == name)):
                    continue
                connection.execute(orders.insert().values(shop=shop, id=name, status="open"))
                payments.enqueue(
                    connection,
                    type="disbursement",
                    phone_number=each["phone_number"],
                    amount=each["amount"],
                    idempotency_key=name,
                )
                workflows.enqueue_in_transaction(
                    connection,
                    {
                        "workflow_name": "fulfil",
                        "workflow_id": workflow_id(shop, name),
                        "queue_name": "orders",
                        "queue_partition_key": shop,
                    },
                    {"shop": shop, "order": name},  # a plain dict, without the phone number
                )
    finally:
        workflows.destroy()


@DBOS.workflow(name="fulfil")
async def fulfil(order: dict[str, str]) -> str:
    """Wait for the end of an order's payment, and do what comes next; a restart goes on at the step that was open."""
    status = None
    while status is None:
        status = await DBOS.recv_async("settled", timeout_seconds=DAY)
    await close_order(order, status)
    return str(status)


@DBOS.step()
async def close_order(order: dict[str, str], status: str) -> None:
    """Write the end of an order; here: ship it. A step may run twice."""

    def write() -> None:
        with engine.begin() as connection:
            is_it = (orders.c.shop == order["shop"], orders.c.id == order["order"])
            connection.execute(orders.update().where(*is_it).values(status=status))

    await anyio.to_thread.run_sync(write)
    logger.info("%s: %s", workflow_id(order["shop"], order["order"]), status)


async def tell(shop: str, change: PaymentChange) -> None:
    """Send the end of a payment to its workflow. The store repeats it until this has returned once."""
    if change.key is None:
        return
    to, status = workflow_id(shop, change.key), str(change.status or change.state)
    try:
        await DBOS.send_async(to, status, "settled", idempotency_key=f"{to}/{status}")
    except error.DBOSNonExistentWorkflowError:
        logger.info("%s: %s, not an order", to, status)


async def secret_of(shop: str) -> str:
    return TOKENS[shop]


async def work() -> None:
    await anyio.to_thread.run_sync(tables.create_all, engine)
    DBOS(config={"name": "orders", "system_database_url": URL, "serializer": SERIALIZER})
    intervals = {"min_interval": 1 / SPEED, "reconcile_every": 60 / SPEED}
    async with (
        Merchants(os.environ["MOBILEMONEY_BASE_URL"], store=store, auth=secret_of, timeout=10) as merchants,
        AsyncExitStack() as stack,
    ):
        # In this event loop, which runs the workflows too.
        DBOS.launch()
        stack.callback(DBOS.destroy)
        # A part for each shop: a thousand open orders of one take nothing from the others.
        await DBOS.register_queue_async("orders", partition_worker_concurrency=100)
        for shop in TOKENS:
            client = await merchants.client(shop)
            await stack.enter_async_context(Backend(client, on_settled=partial(tell, shop), name="orders", **intervals))
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as stopped:
            print("the worker has begun", flush=True)
            async for _ in stopped:
                break


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.argv[1] == "work":
        anyio.run(work)
    else:
        payouts = list(csv.DictReader(Path(sys.argv[3]).read_text("utf-8").splitlines()))
        place(sys.argv[2], payouts)
        print(len(payouts), "orders placed")
