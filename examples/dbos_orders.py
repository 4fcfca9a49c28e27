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
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.to_thread
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, error

from mobilemoney_async import AsyncClient, Merchants, PaymentChange, PaymentState, SQLStore, StoreError

DAY, PAUSE = 86_400.0, 5.0  # seconds
NOT_PAID = {PaymentState.REFUSED, PaymentState.RELEASED}  # as far as is known, or as an operator has confirmed
EARLY = ["open", *map(str, NOT_PAID)]  # a workflow that lags does not overwrite a later status
URL = os.environ["MOBILEMONEY_STORE"]
TOKENS: dict[str, str] = json.loads(os.environ["TOKENS"])  # here: your vault
# Not the default serializer, which is pickle: who can write to its tables could run code here.
SERIALIZER = DBOSPortableJSONSerializer()

logger = logging.getLogger("orders")
store = SQLStore(URL)
# Its errors would show phone numbers; and who has waited for a lock must see the row as it is then.
engine = sa.create_engine(URL, pool_pre_ping=True, hide_parameters=True, isolation_level="READ COMMITTED")
tables = sa.MetaData()
orders = sa.Table(
    "orders",
    tables,
    sa.Column("shop", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
)


def workflow_id(shop: str, order: str) -> str:
    """Return the id of an order's workflow: our idempotency key, with its account. Either may hold a slash."""
    return f"{quote(shop, safe='')}/{quote(order, safe='')}"


def place(shop: str, payouts: list[dict[str, str]]) -> int:
    """Place orders, and return how many are new: all with their payments and workflows, or, after an error, none.

    An order that exists stays as it is; with another number or amount it is an error.
    """
    workflows = DBOSClient(system_database_url=URL, serializer=SERIALIZER)
    payments, placed = store.for_account(shop), 0
    try:
        with engine.begin() as connection:
            for each in payouts:
                name = each["order"]
                payments.enqueue(
                    connection,
                    type="disbursement",
                    phone_number=each["phone_number"],
                    amount=each["amount"],
                    idempotency_key=name,
                )
                if connection.scalar(sa.select(orders.c.id).where(orders.c.shop == shop, orders.c.id == name)):
                    continue
                placed += 1
                connection.execute(orders.insert().values(shop=shop, id=name, status="open"))
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
        return placed
    finally:
        workflows.destroy()


@DBOS.workflow(name="fulfil")
async def fulfil(order: dict[str, str]) -> str:
    """Wait for the end of an order's payment, and do what comes next; a restart goes on at the step that was open.

    A payment that was not made is not at its end: an operator sends it again under its key, or ends this workflow.
    """
    while True:
        status = await DBOS.recv_async("settled", timeout_seconds=DAY)
        if status is not None:
            await write_status(order, status)
            if status not in NOT_PAID:
                return str(status)


@DBOS.step(retries_allowed=True, interval_seconds=PAUSE, backoff_rate=1, max_attempts=1000)
async def write_status(order: dict[str, str], status: str) -> None:
    """Write what has become of an order; here: ship it. May run twice; tried again while the database is away."""
    await anyio.to_thread.run_sync(write, order["shop"], order["order"], status, orders.c.status.in_(EARLY))
    logger.info("%s: %s", workflow_id(order["shop"], order["order"]), status)


def write(shop: str, order: str, status: str, *only: sa.ColumnElement[bool]) -> None:
    with engine.begin() as connection:
        is_it = (orders.c.shop == shop, orders.c.id == order)
        connection.execute(orders.update().where(*is_it, *only).values(status=status))


async def tell(shop: str, client: AsyncClient) -> None:
    """Send what ends a payment, or needs someone, to its workflow: at least once, from where the last worker was."""
    told = {PaymentState.FINAL, PaymentState.CANCELLED, *NOT_PAID}
    while True:
        try:
            async for change in client.payments.changes(consumer="orders", start="oldest"):
                try:
                    if change.key is not None and change.state in told:
                        if change.state == PaymentState.FINAL:  # may correct an earlier one, whose workflow has ended
                            status = str(change.status)
                            await anyio.to_thread.run_sync(write, shop, change.key, status)
                        await send(workflow_id(shop, change.key), change)
                except Exception as exc:
                    logger.exception("%s: told later", shop)
                    await change.failed(exc)
                else:
                    await change.done()
        except StoreError as exc:
            logger.warning("%s: the orders hear of their payments later: %s", shop, exc)
            await anyio.sleep(PAUSE)


async def send(workflow: str, change: PaymentChange) -> None:
    status = str(change.status or change.state)
    try:
        await DBOS.send_async(workflow, status, "settled", idempotency_key=f"{workflow}/{change.cursor}")
    except error.DBOSNonExistentWorkflowError:
        logger.info("%s: %s, not an order", workflow, status)


async def secret_of(shop: str) -> str:
    return TOKENS[shop]


async def work() -> None:
    await anyio.to_thread.run_sync(tables.create_all, engine)
    # DBOS resumes only workflows of its own version, by default a hash of the code. Change it when the steps of a
    # workflow change, and let workers of the old version end theirs.
    DBOS(
        config={
            "name": "orders",
            "system_database_url": URL,
            "serializer": SERIALIZER,
            "application_version": "1",
        }
    )
    async with (
        Merchants(os.environ["MOBILEMONEY_BASE_URL"], store=store, auth=secret_of, timeout=10) as merchants,
        # Sends what is queued and follows it, for all shops; one with a wrong token does not hold up the others.
        merchants.worker(),
        anyio.create_task_group() as tasks,
    ):
        # In this event loop, which runs the workflows too.
        DBOS.launch()
        try:
            # A part for each shop: its open orders take nothing from the others.
            await DBOS.register_queue_async("orders", partition_worker_concurrency=1000)
            for shop in TOKENS:
                tasks.start_soon(tell, shop, await merchants.client(shop))
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as stopped:
                print("the worker has begun", flush=True)
                async for _ in stopped:
                    break
            tasks.cancel_scope.cancel()
        finally:
            DBOS.destroy()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.argv[1] == "work":
        anyio.run(work)
    else:
        payouts = list(csv.DictReader(Path(sys.argv[3]).read_text("utf-8").splitlines()))
        print(place(sys.argv[2], payouts), "orders placed")
