"""A crowd at your shop, over real sockets and in real time: docs/testing-your-shop.md shows how to run it.

It serves a sandbox, starts your shop against it, lets all customers click at once, and types their PINs.
"""

import os
import random
import secrets
import sys
import time
from collections import Counter

import anyio
import anyio.abc
import httpx

from mobilemoney_async.sandbox import Sandbox, faults

SHOP = "http://127.0.0.1:8001"
LOST = 0.05  # of the answers to a create
SLOW = 0.1  # of the customers
SECONDS, SLOW_SECONDS = (3, 20), (60, 100)  # until a customer's PIN
RUN = secrets.token_hex(4)


def phone_of(number: int) -> str:
    return f"+255681{number:06}"


async def buy(browser: httpx.AsyncClient, number: int, orders: dict) -> None:
    url, clicked = f"/orders/{RUN}-{number}", time.monotonic()
    cart = {"phone_number": phone_of(number)}
    (await browser.post(url, json=cart)).raise_for_status()
    taken = time.monotonic() - clicked
    orders[number] = ("open", taken, 0.0)
    while (state := (await browser.get(url)).json()) == "open":
        await anyio.sleep(1)
    orders[number] = (state, taken, time.monotonic() - clicked)


async def answer_phones(sandbox: Sandbox) -> None:
    async def pay(transaction_id: str) -> None:
        is_slow = random.random() < SLOW
        await anyio.sleep(random.uniform(*SLOW_SECONDS if is_slow else SECONDS))
        sandbox.approve(transaction_id)

    rung = set()
    async with anyio.create_task_group() as customers:
        while True:
            for transaction_id in sandbox.transactions.keys() - rung:
                rung.add(transaction_id)
                customers.start_soon(pay, transaction_id)
            await anyio.sleep(0.1)


async def crowd(count: int) -> dict[int, tuple[str, float, float]]:
    orders = {}
    # A connection for each request, as a crowd has.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=SHOP, timeout=None, limits=limits) as browser:
        with anyio.move_on_after(900):
            async with anyio.create_task_group() as customers:
                for number in range(count):
                    customers.start_soon(buy, browser, number, orders)
    return orders


async def opens(shop: anyio.abc.Process) -> bool:
    async with httpx.AsyncClient(base_url=SHOP) as browser:
        while shop.returncode is None:
            try:
                await browser.get("/")
            except httpx.ConnectError:
                await anyio.sleep(0.1)
            else:
                return True
    return False


def percentiles(seconds: list[float]) -> str:
    marks, count = sorted(seconds), len(seconds)
    return ", ".join(f"p{n} {marks[count * n // 100]:.2f} s" for n in (50, 95, 99) if marks)


def report(sandbox: Sandbox, orders: dict, seconds: float) -> None:
    paid = {each for each in orders if orders[each][0] == "ship"}
    still_open = [each for each in orders.values() if each[0] == "open"]
    made = sandbox.transactions
    asked = Counter(each.phone_number for each in made.values())
    money = Counter(made[entry.transaction_id].phone_number for entry in sandbox.ledger)
    print(f"orders         {len(orders)}, {len(paid)} paid", end=", ")
    print(f"{len(still_open)} open, {len(paid) / seconds:.2f} paid a second")
    print("click to order", percentiles([each[1] for each in orders.values()]))
    print("click to paid ", percentiles([orders[each][2] for each in paid]))
    print("asked twice   ", sum(times > 1 for times in asked.values()))
    rejected = sandbox.requests.rejections
    print(f"requests       {sandbox.requests.total}, {rejected} rejected")
    agree = money == Counter(phone_of(number) for number in paid)
    print("books and service", "agree" if agree else "DIFFER")


async def main(count: int, command: list[str]) -> None:
    sandbox = Sandbox(by_hand=True, run=RUN)
    lost = sandbox.script(faults.drop(processed=True), on="c2b", probability=LOST)
    async with sandbox.serve() as base_url, anyio.create_task_group() as tasks:
        tasks.start_soon(answer_phones, sandbox)
        settings = {
            "MOBILEMONEY_BASE_URL": base_url,
            "MOBILEMONEY_TOKEN": sandbox.token,
        }
        async with await anyio.open_process(command, env=os.environ | settings, stdout=None, stderr=None) as shop:
            try:
                if await opens(shop):
                    began = time.monotonic()
                    orders = await crowd(count)
                    seconds = time.monotonic() - began
                    print(f"answers lost   {lost.fired}")
                    report(sandbox, orders, seconds)
            finally:
                if shop.returncode is None:
                    shop.terminate()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]), sys.argv[2:])
