"""Many orders at once against the running shop, and the question that counts: is each paid one shipped once?

`python load.py 40`, or `python load.py 40 --kill PID`, which kills that worker once half of the orders are placed:
uvicorn prints `Started server process [PID]` for each. It needs the shop's `DATABASE_URL`, and a sandbox behind it.
First it says what is still wrong. An order whose answer was lost may have no end yet after five minutes:
`mobilemoney payments list --unresolved` says why.
"""

import argparse
import os
import random
import signal
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import anyio
import httpx
import sqlalchemy as sa
from models import PAID, Base, Order, Shipment
from wiring import URL

from mobilemoney_async import AsyncClient, Difference, SQLStore

AT_ONCE, PAUSE, PATIENCE = 10, 0.5, 300  # orders; seconds
OURS, FIRST = f"load-{uuid4().hex}-", random.randrange(300_000, 900_000)


def cart(phone_number: str) -> dict[str, object]:
    """Return what the customer's page posts. The one place to change for another shop."""
    return {"item": "tea", "phone_number": phone_number}


def problem(shop: str) -> str | None:
    """Return what is still wrong, or None: the tables, the shop, what it answers."""
    try:
        found = sa.inspect(sa.create_engine(URL, poolclass=sa.pool.NullPool))
        for table in Base.metadata.tables.values():
            there = {each["name"] for each in found.get_columns(table.name)} if found.has_table(table.name) else set()
            if missing := [each.name for each in table.columns if each.name not in there]:
                return f"table {table.name} lacks {', '.join(missing)}: alembic upgrade head (see `models`)"
    except sa.exc.OperationalError as exc:
        return f"DATABASE_URL leads to no database: {exc.orig}"
    try:
        answer = httpx.post(f"{shop}/orders/{OURS}0", json=cart(f"0681 {FIRST:06d}"), timeout=30)
    except httpx.TransportError:
        return f"no shop at {shop}: start uvicorn"
    if answer.status_code in {200, 202}:
        return None
    hints = {
        404: "its route is POST /orders/{number}",
        409: "is there stock for all orders?",
        422: "see `cart` here, `Cart` and `new_order` in `app`",
    }
    hint = hints.get(answer.status_code, "its log says why")
    return f"an order was answered with {answer.status_code}: {answer.text[:300]}; {hint}"


async def ask(browser: httpx.AsyncClient, method: str, order: str, body: object = None) -> httpx.Response:
    """Ask until there is an answer: the worker may be gone, and another one takes its place."""
    while True:
        try:
            answer = await browser.request(method, f"/orders/{order}", json=body)
            if answer.status_code < 500:
                return answer.raise_for_status()
        except httpx.TransportError:
            pass  # as a customer who clicks again
        await anyio.sleep(PAUSE)


async def load(shop: str, number: int, victim: int | None) -> Counter[str]:
    """Place orders, kill a worker in the midst of it, and return what the customers are told in the end."""
    told, places = Counter[str](), anyio.CapacityLimiter(AT_ONCE)

    async def buy(browser: httpx.AsyncClient, position: int) -> None:
        order = f"{OURS}{position}"
        async with places:
            if position == number // 2 and victim is not None:
                os.kill(victim, signal.SIGKILL)
            answer = await ask(browser, "POST", order, cart(f"0681 {FIRST + position:06d}"))
        with anyio.move_on_after(PATIENCE):
            while answer.status_code == 202:
                await anyio.sleep(PAUSE)
                answer = await ask(browser, "GET", order)
        told[answer.json()["state"]] += 1
        print(f"{told.total()} of {number}", end="\r", file=sys.stderr, flush=True)

    async with httpx.AsyncClient(base_url=shop, timeout=30) as browser, anyio.create_task_group() as tasks:
        for position in range(number):
            tasks.start_soon(buy, browser, position)
    return told


async def differences() -> list[Difference]:
    """Return where the service's list and the store differ, but for orders of others."""
    today = datetime.now(UTC).date()
    async with AsyncClient.from_env(store=SQLStore(URL.render_as_string(hide_password=False))) as client:
        report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today + timedelta(days=1))
    return [each for each in report.differences if each.key is None or each.key.startswith(OURS)]


async def main(number: int, victim: int | None, shop: str) -> None:
    before = await differences()  # of another database, say: they are not of this run
    told = await load(shop, number, victim)
    await anyio.sleep(5)  # for the books
    engine = sa.create_engine(URL, poolclass=sa.pool.NullPool)
    ours = sa.select(sa.func.count(Order.number)).where(Order.number.startswith(OURS))
    with engine.connect() as connection:
        paid = connection.scalar(ours.where(Order.state == PAID))
        shipped = connection.scalar(ours.where(Shipment.order_id == Order.id))
    found = [f"{each.reason}: {each.advice}" for each in await differences() if each not in before]
    print(f"customers are told: {dict(told)}; orders paid: {paid}; shipped: {shipped}")
    print(*(found or ["the service's list and the shop agree"]), sep="\n")
    if not told["succeeded"] == paid == shipped or found:
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, help="orders")
    parser.add_argument("--kill", type=int, metavar="PID", help="a worker")
    parser.add_argument("--shop", default="http://127.0.0.1:8000", metavar="URL")
    arguments = parser.parse_args()
    if wrong := problem(arguments.shop):
        raise SystemExit(wrong)
    anyio.run(main, arguments.number, arguments.kill, arguments.shop)
