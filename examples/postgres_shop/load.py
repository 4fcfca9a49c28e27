"""Many orders at once against the running shop, and the question that counts: is each paid one shipped once?

`python load.py 40`, or `python load.py 40 --kill PID`, which kills that worker once half of the orders are placed:
uvicorn prints `Started server process [PID]` for each. It needs the shop's `DATABASE_URL`, and a sandbox behind it. An
order whose answer was lost may have no end yet after five minutes: `mobilemoney payments list --unresolved` says why.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import anyio
import httpx
import sqlalchemy as sa
from models import URL, Order, Shipment

from mobilemoney_async import AsyncClient, SQLStore

AT_ONCE, PAUSE, PATIENCE = 10, 0.5, 300  # orders; seconds
OURS = f"load-{uuid4().hex}-"


async def ask(browser: httpx.AsyncClient, method: str, order: str, **cart: str) -> httpx.Response:
    """Ask until there is an answer: the worker may be gone, and another one takes its place."""
    while True:
        try:
            answer = await browser.request(method, f"/orders/{order}", json=cart or None)
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
            answer = await ask(browser, "POST", order, item="tea", phone_number=f"0681 {position:06d}")
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


async def main(number: int, victim: int | None, shop: str) -> None:
    told, today = await load(shop, number, victim), datetime.now(UTC).date()
    await anyio.sleep(5)  # for the books
    engine = sa.create_engine(URL, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        ours = Order.id.startswith(OURS)
        paid = connection.scalar(sa.select(sa.func.count()).where(ours, Order.state == "paid"))
        shipped = connection.scalar(sa.select(sa.func.count()).where(Shipment.order_id.startswith(OURS)))
    async with AsyncClient.from_env(store=SQLStore(URL.render_as_string(hide_password=False))) as client:
        report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today + timedelta(days=1))
    print(f"customers are told: {dict(told)}; orders paid: {paid}; shipped: {shipped}")
    print(*(report.differences or ["the service's list and the shop agree"]), sep="\n")
    if not told["succeeded"] == paid == shipped or report.differences:
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, help="orders")
    parser.add_argument("--kill", type=int, metavar="PID", help="a worker")
    parser.add_argument("--shop", default="http://127.0.0.1:8000", metavar="URL")
    arguments = parser.parse_args()
    anyio.run(main, arguments.number, arguments.kill, arguments.shop)
