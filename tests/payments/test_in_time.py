"""Unknown payments are decided in time, whatever the pauses between payments (`rules.md`: absent, and in time)."""

from __future__ import annotations

import math
import random
from datetime import timedelta

import anyio
import attrs
import httpx
import pytest

from mobilemoney_async import AsyncClient, Merchants, PaymentCause, PaymentState, SQLStore
from tests.payments.second_world import BOTH, DAY, GRACE, HOUR, KINDS, MINUTE, Order, World, make_world, number, outcome
from tests.payments.service import on_asyncio
from tests.support.second_service import BASE_URL, TOKEN, ListBehaviour

EVERY = 2 * MINUTE


@attrs.define(eq=False)
class Shop:
    """Shop that pays in some pauses and reconciles regularly, until its lost payments are decided.

    Attributes:
        pauses: The shortest and the longest pause between two payments of a type.
        every: Seconds between two times that it reconciles.
        at: When payments were lost, and the first later one of its type settled, seconds.
    """

    world: World
    pauses: tuple[float, float]
    dice: random.Random
    every: float = EVERY
    paid: dict[str, list[float]] = attrs.field(factory=lambda: {kind: [] for kind in KINDS})
    lost: dict[str, tuple[str, float]] = attrs.field(factory=dict)
    decided: dict[str, tuple[str, float]] = attrs.field(factory=dict)
    next_at: dict[str, float] = attrs.field(factory=dict)
    reconcile_at: float = 0.0

    async def pay(self, client: AsyncClient, kind: str) -> None:
        count = sum(map(len, self.paid.values()))
        await self.world.pay(client, [Order(f"paid {count}", kind, number(count % 800), 1000 + count)])
        self.paid[kind].append(anyio.current_time())
        self.next_at[kind] = anyio.current_time() + self.dice.uniform(*self.pauses)

    async def lose(self, client: AsyncClient, key: str, kind: str, *, made: bool) -> None:
        await self.world.lose(client, Order(key, kind, number(900 + len(self.lost))), made=made)
        self.lost[key] = kind, anyio.current_time()

    async def run(self, client: AsyncClient, until: float = math.inf) -> None:
        """Go on until a time, or until all that was lost is decided."""
        self.reconcile_at = max(self.reconcile_at, anyio.current_time() + self.dice.uniform(0, self.every))
        while True:
            at, kind = min((at, kind) for kind, at in self.next_at.items())
            if min(at, self.reconcile_at) > until:
                return await anyio.sleep_until(until)
            if at <= self.reconcile_at:
                await anyio.sleep_until(at)
                await self.pay(client, kind)
                continue
            await anyio.sleep_until(self.reconcile_at)
            self.reconcile_at += self.every
            if self.lost:
                await client.payments.reconcile()
            for key in self.lost.keys() - self.decided.keys():
                record = await self.world.get(client, key)
                if record.state is not PaymentState.UNKNOWN:
                    self.decided[key] = outcome(record), anyio.current_time()
            if until == math.inf and self.decided.keys() == self.lost.keys():
                return None

    def later(self, key: str) -> float:
        """Return when the first later payment of a lost one's type had settled."""
        kind, at = self.lost[key]
        return GRACE + min((each for each in self.paid[kind] if each >= at), default=anyio.current_time())


def budget(world: World, since: float) -> int:
    """Return the list requests that a lost payment may cost: 20, or two listings of the days since a time."""
    first = world.utcnow() - timedelta(seconds=anyio.current_time() - since, days=2)
    pages = math.ceil(sum(payment.created_at >= first for payment in world.service.payments) / 100)
    return max(20, 2 * (pages + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anyio_backend", "store_url", "shortest", "longest", "newest_first"),
    [
        ("asyncio", "sqlite", MINUTE, MINUTE, True),
        ("trio", "postgresql", 2 * MINUTE, 2 * MINUTE, False),
        ("asyncio", "postgresql", 5 * MINUTE, 10 * MINUTE, True),
        ("trio", "sqlite", 0, 4 * MINUTE, False),
        ("asyncio", "sqlite", 2 * MINUTE, HOUR, True),
        ("asyncio", "sqlite", 20 * HOUR, DAY, False),
    ],
    indirect=["anyio_backend", "store_url"],
)
@pytest.mark.parametrize("made", [False, True])
async def test_a_payment_is_decided_within_a_quarter_of_an_hour(
    world: World, client: AsyncClient, shortest: float, longest: float, newest_first: bool, *, made: bool
) -> None:
    """After a later one of its type has settled: absent or found, for few requests, whatever the pauses.

    With a payment a minute it takes six minutes from the loss.
    """
    world.service.list = ListBehaviour(newest_first=newest_first)
    shop = Shop(world, (shortest, longest), random.Random(f"{shortest} {longest} {made}"))
    shop.every = EVERY if longest < DAY else 2 * EVERY
    for each in KINDS:
        await shop.pay(client, each)
    await shop.run(client, until=anyio.current_time() + 3 * longest)
    began, lists = anyio.current_time(), world.service.lists
    for each in KINDS if longest < DAY else KINDS[:1]:
        await shop.lose(client, each, each, made=made)
    await shop.run(client)
    assert {state for state, _ in shop.decided.values()} == {"found" if made else "absent"}
    assert world.service.lists - lists <= budget(world, began - longest)
    for key, (_, at) in shop.decided.items():
        assert at <= (began + 6 * MINUTE if longest <= MINUTE else shop.later(key) + 15 * MINUTE)
    await world.hold(client)


async def token(account: str) -> str:
    return TOKEN


@pytest.mark.slow
@on_asyncio
async def test_a_worker_decides_in_time_for_few_requests(sqlite_file_url: str) -> None:
    """It looks whenever something is due, which is not each time that it could."""
    world, asked = make_world(sqlite_file_url), list[httpx.Request]()
    world.service.finish_after = 5.0
    # Requests of the poller name no day.
    world.service.answer_list = lambda request: asked.append(request) if "from" in request.url.params else None
    shop = Shop(world, (4 * MINUTE, 5 * MINUTE), random.Random(0), reconcile_at=math.inf)
    store = SQLStore(sqlite_file_url, grace=GRACE)
    async with Merchants(
        BASE_URL, store=store, auth=token, transport=lambda account: world.service, utcnow=world.utcnow
    ) as merchants:
        client = await merchants.client("shop")
        await shop.pay(client, "collections")
        await shop.run(client, until=anyio.current_time() + 6 * MINUTE)
        asked.clear()
        await shop.lose(client, "lost", "collections", made=False)
        async with merchants.worker():
            await shop.run(client, until=anyio.current_time() + 12 * MINUTE)
        record = await world.get(client, "lost")
    assert record.state is PaymentState.ABSENT
    assert len(asked) <= 20


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("is_earlier", [False, True])
async def test_a_look_that_is_not_whole_puts_nothing_off(world: World, client: AsyncClient, is_earlier: bool) -> None:
    """Nor does one that lacked a payment to compare with, on either side: the next one comes once it can decide.

    One that was not whole is repeated after a moment only, however many ask: a long list costs many requests.
    """
    if is_earlier:  # unknown itself, and found only later
        world.service.list.hide = lambda payment: payment.owner == "earlier"
        await world.lose(client, Order("earlier", "collections", number(1)), made=True)
    else:
        await world.pay(client, [Order("earlier", "collections", number(1))])
    await anyio.sleep(3 * HOUR)
    await world.lose(client, Order("lost", "collections", number(2)), made=False)
    await anyio.sleep(1)
    await world.pay(client, [Order("later", "collections", number(3))] * is_earlier)
    await world.reconcile(client, *[EVERY] * 30)
    record = await world.get(client, "lost")
    assert record.cause is (PaymentCause.TOO_OLD if is_earlier else PaymentCause.NO_LATER)
    if is_earlier:
        await client.payments.identify("earlier", world.made("earlier")[0], note="seen on the dashboard")
    else:
        await world.pay(client, [Order("later", "collections", number(3))])
        await anyio.sleep(GRACE)
    world.service.list.total_count = lambda count: count + 1
    await world.reconcile(client, *[EVERY] * 3)
    record = await world.get(client, "lost")
    assert record.cause is PaymentCause.NOT_WHOLE
    assert record.next_look_at is not None and world.utcnow() < record.next_look_at
    world.service.list = ListBehaviour()
    await world.reconcile(client, EVERY)
    assert outcome(await world.get(client, "lost")) == "absent"
    await world.hold(client)
