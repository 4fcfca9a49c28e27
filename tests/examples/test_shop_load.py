"""The FastAPI shop under load: a process of its own, a sandbox over a socket, and crowds of customers.

Nothing here is timed: a busy machine takes longer, and counts the same.
"""

import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.to_thread
import attrs
import pytest

from mobilemoney_async import PaymentState, SQLStore
from mobilemoney_async.payments.book import PaymentBook
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Choices, Sandbox
from tests.support.patience import PATIENCE, until
from tests.support.processes import environment
from tests.support.scale import soak
from tests.support.warm import MODULE, Program, warm

pytestmark = [
    pytest.mark.real_time,
    # The sandbox serves sockets there only.
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
]

# What the shop's process imports.
IMPORTED = ("mobilemoney_async.contrib.fastapi", "mobilemoney_async.client", "sqlalchemy.dialects.sqlite", "uvicorn")
PRICES = {"coffee": 15_000, "tea": 6_500}
DECLINES, LATE, NO_ANSWER = (f"+255780000{n}" for n in ("039", "408", "203"))
# How an order ends by its number; all others are ordinary customers, who pay in their own time.
ENDS = {DECLINES: "failed", LATE: "expired"}
# An order goes only down this list.
COURSE = ("sending", "finding_out", "pending", "succeeded", "failed", "expired")
SETTLED = {"succeeded", "failed", "expired"}


@attrs.frozen
class Order:
    """What one customer buys."""

    name: str
    item: str
    phone_number: str

    @property
    def end(self) -> str:
        return ENDS.get(self.phone_number, "succeeded")


def make_orders(count: int, special: Sequence[str] = (), *, first: int = 0) -> list[Order]:
    """Return orders of as many customers; one in four has one of the special numbers, the others one each."""
    orders = []
    for number in range(first, first + count):
        own = f"+255681{number:06d}"
        phone_number = special[number // 4 % len(special)] if special and number % 4 == 0 else own
        orders.append(Order(f"order-{number:010d}", ("coffee", "tea")[number % 2], phone_number))
    return orders


@attrs.define(eq=False)
class Shop:
    """The shop's process, its sandbox, and what its customers go through.

    Attributes:
        sandbox: The service.
        store_url: The shop's store.
        base_url: Where the service is served.
        grace: How long the shop may take to stop, seconds.
        port: The shop's.
        complaints: What readers were shown that is wrong.
        answers: How often each HTTP status was answered to a checkout; 0 for no answer.
    """

    sandbox: Sandbox
    store_url: str
    base_url: str
    grace: float = PATIENCE
    port: int = 0
    web: aiohttp.ClientSession = attrs.field(init=False)
    process: Program = attrs.field(init=False)
    complaints: list[str] = attrs.field(factory=list)
    answers: Counter[int] = attrs.field(factory=Counter)

    @asynccontextmanager
    async def open(self, log: Path) -> AsyncIterator[None]:
        """Run the process until the context is left, at the same address each time."""
        arguments = (self.port, self.base_url, self.sandbox.token, self.store_url, self.sandbox.speed, self.grace)
        shop = partial(warm(*IMPORTED).piped, MODULE, "tests.support.shop_process", *map(str, arguments))
        with log.open("ab") as said, shop(env=environment(), log=said) as (self.process, output, _):
            with anyio.fail_after(PATIENCE):
                await anyio.wait_readable(output)
            self.port = int(output.readline())
            yield

    async def end(self) -> int:
        """Wait for the end of the process; return its exit code."""
        return await anyio.to_thread.run_sync(self.process.wait, self.grace)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/orders/{path}"

    # Customers

    async def buy(self, order: Order) -> None:
        """Check out, again where that fails, and follow the order to its end, as a patient customer does."""
        while True:
            await self.check_out(order)
            state = await self.follow(order, looks=10)
            if state in SETTLED:
                assert state == order.end
                return

    async def check_out(self, order: Order) -> None:
        """Click until the shop takes the order."""
        cart = {"item": order.item, "phone_number": order.phone_number}
        while True:
            try:
                async with self.web.post(self.url(order.name), json=cart) as answer:
                    self.answers[answer.status] += 1
                    if answer.status in {200, 202}:
                        return
            except (aiohttp.ClientError, OSError):  # the shop is closed
                self.answers[0] += 1
            await anyio.sleep(0.1)  # real time: a customer who clicks again

    async def follow(self, order: Order, *, looks: int = 10**9, may_fail: bool = True) -> str:
        """Look at the order until it is settled, or so often; return its state, and complain of what is wrong."""
        state, pause = "", 2.0
        for _ in range(looks):
            await anyio.sleep(random.uniform(0, pause))  # real time: a customer who looks again
            pause = min(10.0, 1.5 * pause)
            try:
                async with self.web.get(self.url(order.name)) as answer:
                    status, body = answer.status, await answer.json()
            except (aiohttp.ClientError, OSError):
                assert may_fail
                status, body = 404, {}
            if status >= 500 and not may_fail:
                self.complaints.append(f"{order.name}: HTTP {status}")
            if status in {200, 202}:
                state = self.check(order, state, body)
                if state in SETTLED:
                    break
        return state

    async def listen(self, order: Order) -> str:
        """Hear of the order by Server-Sent Events until it is settled; return its state."""
        state = ""
        while True:
            async with self.web.get(self.url(f"{order.name}/events")) as answer:
                if answer.status >= 500:
                    self.complaints.append(f"{order.name}: HTTP {answer.status}")
                async for line in answer.content:
                    if answer.status == 200 and line.startswith(b"data: ") and line != b"data: {}\n":
                        state = self.check(order, state, json.loads(line.removeprefix(b"data: ")))
                    if line == b"event: settled\n" and state in SETTLED:
                        return state
            await anyio.sleep(random.uniform(0.1, 0.3))  # real time: a browser that connects again

    def check(self, order: Order, before: str, body: dict[str, Any]) -> str:
        """Complain of what does not belong to the order, or goes backwards; return its state."""
        state = str(body["state"])
        if body["order"] != order.name or body.get("amount") not in {None, str(PRICES[order.item])}:
            self.complaints.append(f"{order.name}: shown {body}")
        if state == "not_made":
            return ""
        if before and (before in SETTLED or COURSE.index(state) < COURSE.index(before)) and state != before:
            self.complaints.append(f"{order.name}: from {before} to {state}")
        return state

    # What came of it

    async def records(self) -> dict[str, tuple[PaymentState, str | None]]:
        """Return the state and the transaction of each payment in the store."""
        store = SQLStore(self.store_url)
        records = await PaymentBook(account_store(store), lambda: self.sandbox.now).list()
        store.close()
        return {record.key: (record.state, record.transaction_id) for record in records}

    async def hold_against_the_books(self, orders: Sequence[Order]) -> None:
        """Check that each order is one transaction, for its own number and amount, and paid once if it is paid."""
        made, records = self.sandbox.transactions, await self.records()
        assert Counter((each.phone_number, str(each.amount)) for each in made.values()) == Counter(
            (order.phone_number, str(PRICES[order.item])) for order in orders
        )
        assert records.keys() == {order.name for order in orders}
        for order in orders:
            state, transaction_id = records[order.name]
            assert state is PaymentState.FINAL
            assert transaction_id is not None
            kind = made[transaction_id].phone_number, str(made[transaction_id].amount)
            assert kind == (order.phone_number, str(PRICES[order.item]))
        assert len({transaction_id for _, transaction_id in records.values()}) == len(orders)
        paid = [records[order.name][1] for order in orders if order.end == "succeeded"]
        assert Counter(entry.transaction_id for entry in self.sandbox.ledger) == Counter(paid)


@asynccontextmanager
async def running(sandbox: Sandbox, folder: Path) -> AsyncIterator[tuple[Shop, AsyncExitStack]]:
    """Yield a shop that is open, and the stack on which its sandbox is served."""
    log = folder / "shop.log"
    async with (
        AsyncExitStack() as service,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=500), timeout=aiohttp.ClientTimeout(total=None)
        ) as web,
    ):
        base_url = await service.enter_async_context(sandbox.serve())
        shop = Shop(sandbox, f"sqlite:///{folder / 'payments.db'}", base_url)
        shop.web = web
        async with shop.open(log):
            yield shop, service
    assert "Traceback" not in log.read_text()


@pytest.mark.soak
async def test_a_crowd_at_one_process_is_served_right(tmp_path: Path) -> None:
    """With four readers for each customer each order ends as its number says, once, and is shown to its own."""
    sandbox = Sandbox(speed=100, choices=Choices(rate_limit=None, median_delay=100.0, longest_delay=300.0))
    orders = make_orders(soak(120), [DECLINES, LATE])
    orders += [Order(f"order-no-answer-{item}", item, NO_ANSWER) for item in PRICES]
    async with running(sandbox, tmp_path) as (shop, _):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as crowd:
                ended: list[str] = []

                async def read(order: Order, *, by_events: bool) -> None:
                    state = await (shop.listen(order) if by_events else shop.follow(order, may_fail=False))
                    assert state == order.end
                    ended.append(order.name)

                for order in orders:
                    crowd.start_soon(shop.buy, order)
                    for number in range(4):
                        crowd.start_soon(partial(read, order, by_events=number < 2))
    assert shop.complaints == []
    assert Counter(ended) == {order.name: 4 for order in orders}
    assert set(shop.answers) <= {200, 202, 503}  # where the machine is too slow to send in time: click again
    await shop.hold_against_the_books(orders)


@pytest.mark.soak
async def test_an_outage_of_the_service_loses_nothing(tmp_path: Path) -> None:
    """While customers come the service is away for 30 s of its own time: each order is paid in the end, and once."""
    sandbox = Sandbox(speed=20, choices=Choices(rate_limit=None, latency=2.0))
    orders = make_orders(soak(90))
    await pay_through_an_outage(sandbox, tmp_path, orders, seconds=30 / sandbox.speed)


async def pay_through_an_outage(sandbox: Sandbox, folder: Path, orders: Sequence[Order], *, seconds: float) -> None:
    """Let a third of the customers come, then the service go, another third come, and the rest when it is back.

    One pays before all others: a payment that has none before it to compare the list with is never called absent.
    """
    third = len(orders) // 3
    async with running(sandbox, folder) as (shop, service):
        with anyio.fail_after(PATIENCE):
            await shop.buy(orders[0])
            async with anyio.create_task_group() as crowd:
                for order in orders[1:third]:
                    crowd.start_soon(shop.buy, order)
                await until(lambda: len(sandbox.transactions) >= third // 2)
                await service.aclose()
                met = sandbox.requests.total
                with pytest.raises(OSError, match="All connection attempts failed"):
                    await anyio.connect_tcp("127.0.0.1", urlsplit(shop.base_url).port or 0)
                for order in orders[third : 2 * third]:
                    crowd.start_soon(shop.buy, order)
                await anyio.sleep(seconds)  # real time: the length of the outage
                assert sandbox.requests.total == met
                await service.enter_async_context(sandbox.serve(port=urlsplit(shop.base_url).port or 0))
                for order in orders[2 * third :]:
                    crowd.start_soon(shop.buy, order)
        assert shop.complaints == []
        await shop.hold_against_the_books(orders)


@pytest.mark.soak
async def test_sigterm_under_load_leaves_nothing_half_done(tmp_path: Path) -> None:
    """Told to stop in a rush the shop finishes what is on its way and ends by itself; its next start knows the rest."""
    sandbox = Sandbox(speed=100, choices=Choices(rate_limit=None, latency=10.0, median_delay=100.0))
    orders = make_orders(soak(100))
    async with running(sandbox, tmp_path) as (shop, stack):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as crowd:
                for order in orders:
                    crowd.start_soon(shop.buy, order)
                await until(lambda: len(sandbox.transactions) >= soak(28))
                shop.process.signal(signal.SIGTERM)
                assert await shop.end() in {0, -signal.SIGTERM}
                records = await shop.records()
                assert {transaction_id for _, transaction_id in records.values()} == set(sandbox.transactions)
                assert {state for state, _ in records.values()} <= {PaymentState.ACKNOWLEDGED, PaymentState.FINAL}
                await stack.enter_async_context(shop.open(tmp_path / "shop.log"))
        assert shop.complaints == []
        await shop.hold_against_the_books(orders)


@pytest.mark.soak
async def test_kill_9_loses_no_ending(tmp_path: Path) -> None:
    """Killed twice while payments end, the shop hands the ending of each to `on_settled`, and no other."""
    sandbox = Sandbox(speed=100, choices=Choices(rate_limit=None, median_delay=200.0, longest_delay=400.0))
    orders = make_orders(soak(60), [DECLINES])
    ends = {f"{order.name} {'SUCCESS' if order.end == 'succeeded' else 'FAILED'}" for order in orders}
    book = tmp_path / "payments.db.settled"
    book.touch()

    async def settle(share: float) -> None:
        await until(lambda: len(set(book.read_text().splitlines())) >= share * len(ends))
        assert set(book.read_text().splitlines()) <= ends

    async with running(sandbox, tmp_path) as (shop, stack):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as crowd:
                for order in orders:
                    crowd.start_soon(shop.check_out, order)
            async with anyio.create_task_group() as crowd:
                for order in orders:
                    crowd.start_soon(shop.follow, order)
                for share in (0.2, 0.6):
                    await settle(share)
                    shop.process.signal(signal.SIGKILL)
                    assert await shop.end() == -signal.SIGKILL
                    await stack.enter_async_context(shop.open(tmp_path / "shop.log"))
            await settle(1.0)
        assert shop.complaints == []
        await shop.hold_against_the_books(orders)
