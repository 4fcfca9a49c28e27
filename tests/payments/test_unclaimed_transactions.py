"""Transactions that no payment claims, stores that are behind their service, and the service of another merchant."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import rule

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    MobileMoneyError,
    OutcomeUnknown,
    SQLStore,
    StoreError,
)
from tests.payments.second_world import (
    BOTH,
    DAY,
    GRACE,
    HOUR,
    KINDS,
    MINUTE,
    TYPES,
    Order,
    World,
    make_world,
    number,
    reported,
)
from tests.payments.test_misbehaving_list import ORDERS, SETTINGS, Shop, keys, processes
from tests.support.databases import Postgres
from tests.support.second_service import TOKEN, ListBehaviour, Payment

pytestmark = pytest.mark.anyio

KIND = pytest.mark.parametrize("kind", KINDS)
DAYS_BEFORE = 3


def order(kind: str, key: str = "k", last: int = 1) -> Order:
    return Order(key, kind, number(last))


async def begin(world: World, client: AsyncClient) -> None:
    """Make the account's first payment: older rows are history."""
    await world.pay(client, [Order("first", "collections", number(600), 700)])
    await anyio.sleep(5 * MINUTE)


async def unclaimed(client: AsyncClient) -> set[str]:
    found = await reported(client)
    assert found is not None, "client.payments.unclaimed() is missing"
    return found


# Paid twice?

Pays = Callable[[World, AsyncClient, Order], Any]


async def a_proxy_repeats(world: World, client: AsyncClient, asked: Order) -> str:
    world.service.repeats = 2
    await world.pay(client, [asked])
    world.service.repeats = 1
    return world.made(asked.key)[1]


async def another_system_pays(world: World, client: AsyncClient, asked: Order) -> str:
    await world.pay(client, [asked])
    await anyio.sleep(20)
    return world.service.make(TYPES[asked.kind], asked.phone_number, str(asked.amount)).id


async def an_operator_pays_first(world: World, client: AsyncClient, asked: Order) -> str:
    made = world.service.make(TYPES[asked.kind], asked.phone_number, str(asked.amount))
    world.service.finish(made)
    await anyio.sleep(20)
    await world.pay(client, [asked])
    return made.id


async def a_refusal_was_none(world: World, client: AsyncClient, asked: Order) -> str:
    def refuse(request: httpx.Request, payment: Payment | None) -> httpx.Response:
        return httpx.Response(403, json={"success": False, "error": "insufficient_permissions", "message": "no"})

    await world.answered(client, asked, refuse, made=True)
    return world.made(asked.key)[0]


async def a_word_was_wrong(world: World, client: AsyncClient, asked: Order) -> str:
    world.service.list = ListBehaviour(lag=timedelta(minutes=10))
    await world.lose(client, asked, made=True)
    await anyio.sleep(GRACE + MINUTE)
    await world.confirm(client, asked.key)
    assert isinstance(await world.attempt(client, asked), Acknowledgement)
    await anyio.sleep(10 * MINUTE)
    return world.made(asked.key)[0]


TWICE: dict[str, Pays] = {
    "a proxy repeats the request": a_proxy_repeats,
    "another system pays": another_system_pays,
    "an operator has paid by hand": an_operator_pays_first,
    "a certain refusal was none": a_refusal_was_none,
    "an operator's word was wrong": a_word_was_wrong,
}


@BOTH
@KIND
@pytest.mark.parametrize("name", TWICE)
async def test_a_second_transaction_is_reported_and_stops_a_third(store_url: str, kind: str, name: str) -> None:
    """It is unclaimed, a new key of its kind waits for an operator's explanation, and so the money stops leaving."""
    world, asked = make_world(store_url), order(kind)
    async with world.client() as client:
        await begin(world, client)
        second = await TWICE[name](world, client, asked)
        await world.read(client)
        assert await unclaimed(client) == {second}
        new = Order("new", kind, asked.phone_number)
        stopped = await world.attempt(client, new)
        assert isinstance(stopped, DuplicateSuspected), stopped
        said: Any = stopped
        assert (said.other_key, said.transaction_id, said.outcome) == (None, second, "not_sent")
        assert asked.phone_number not in str(stopped)
        assert world.posts("new") == 0
        payments: Any = client.payments
        await payments.explain(second, note="Asha refunded it")
        assert isinstance(await world.attempt(client, new), Acknowledgement)
        await world.read(client)
        assert await unclaimed(client) == set()


@BOTH
@KIND
async def test_a_suspicion_stops_a_kind_for_a_while(store_url: str, kind: str) -> None:
    """A collection waits for an hour, a disbursement for a day; the report stays."""
    world, asked = make_world(store_url), order(kind)
    async with world.client() as client:
        await begin(world, client)
        second = await another_system_pays(world, client, asked)
        await world.read(client)
        least, most = (50 * MINUTE, 2 * HOUR) if kind == "collections" else (23 * HOUR, 2 * DAY)
        await anyio.sleep(least)
        assert isinstance(await world.attempt(client, Order("soon", kind, asked.phone_number)), DuplicateSuspected)
        await anyio.sleep(most)
        assert isinstance(await world.attempt(client, Order("late", kind, asked.phone_number)), Acknowledgement)
        assert second in await unclaimed(client)


@BOTH
@KIND
async def test_a_transaction_that_failed_stops_nothing(store_url: str, kind: str) -> None:
    world, asked = make_world(store_url), order(kind)
    async with world.client() as client:
        await begin(world, client)
        second = await another_system_pays(world, client, asked)
        world.service.finish(world.service.payments[-1], "FAILED")
        await world.read(client)
        assert await unclaimed(client) == {second}
        assert isinstance(await world.attempt(client, Order("new", kind, asked.phone_number)), Acknowledgement)


@BOTH
@pytest.mark.parametrize("sole_writer", [None, True, False])
async def test_strangers_are_reported_unless_others_pay_too(store_url: str, sole_writer: bool | None) -> None:
    """A row that fits no attempt is reported, and stops its kind for a sole writer; with others it is not reported."""
    world = make_world(store_url)
    options: dict[str, Any] = {"grace": GRACE, "sole_writer": sole_writer}
    async with world.client(store=SQLStore(world.url, **options)) as client:
        await begin(world, client)
        made = world.service.make("collection", number(1), "5000")
        await world.read(client)
        assert await unclaimed(client) == (set() if sole_writer is False else {made.id})
        said = await world.attempt(client, order("collections"))
        assert isinstance(said, DuplicateSuspected if sole_writer else Acknowledgement), said


@BOTH
async def test_what_is_older_than_the_account_is_history(store_url: str) -> None:
    """Transactions from before the store's first record are not reported, nor is what the store claims."""
    world = make_world(store_url)
    for each in range(5):
        world.service.make("collection", number(each), "5000")
    await anyio.sleep(HOUR)
    async with world.client() as client:
        await begin(world, client)
        await world.pay(client, [order("collections"), order("disbursements", "k2")])
        await world.read(client)
        assert await unclaimed(client) == set()


@BOTH
@KIND
async def test_a_row_that_an_open_payment_may_be_is_its_candidate(store_url: str, kind: str) -> None:
    """What could be an unknown payment is not called a stranger while that is open."""
    world, asked = make_world(store_url), order(kind)
    async with world.client() as client:
        await begin(world, client)
        world.service.repeats = 2
        await world.lose(client, asked, made=True)
        world.service.repeats = 1
        await world.read(client)
        await world.reconcile(client, 0.0)
        assert await unclaimed(client) == set()
        assert set((await world.get(client, "k")).candidates) == {*world.made("k")}
        await client.payments.identify("k", world.made("k")[1], note="Asha found the receipt")
        await world.read(client)
        assert await unclaimed(client) == {world.made("k")[0]}


# Another merchant


@BOTH
@KIND
async def test_rows_of_another_merchant_are_not_believed(store_url: str, kind: str) -> None:
    """A list that shows another merchant's payment of the same kind does not make it ours."""
    world, asked = make_world(store_url), order(kind)
    world.service.list = ListBehaviour(all_merchants=True)
    async with world.client() as client:
        await begin(world, client)
        await world.pay(client, [Order("before", kind, number(10))])
        await world.lose(client, asked, made=False)
        world.service.make(TYPES[kind], asked.phone_number, "5000", merchant_id="merchant-2")
        await anyio.sleep(MINUTE)
        await world.pay(client, [Order("after", kind, number(11))])
        await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE)
        assert (await world.get(client, "k")).transaction_id is None
        await world.read(client)
        assert await unclaimed(client) == set()


@BOTH
@KIND
@pytest.mark.parametrize("what", ["token", "host"])
async def test_the_store_of_one_merchant_does_not_serve_another(store_url: str, kind: str, what: str) -> None:
    """With another merchant's token, or at another host, nothing is concluded and nothing is sent."""
    world, asked = make_world(store_url), order(kind)
    world.service.merchants = {TOKEN: "merchant-1", "token.of.merchant-2": "merchant-2"}
    async with world.client() as client:
        await begin(world, client)
        await world.lose(client, asked, made=True)
        await anyio.sleep(MINUTE)
        await world.pay(client, [Order("after", kind, number(11))])
    before = {record.key: record.state for record in await _records(world)}
    posts = world.service.posts
    other = world.client(auth="token.of.merchant-2") if what == "token" else world.client(base_url=OTHER_HOST)
    async with other as client:
        for pause in (GRACE + MINUTE, GRACE + MINUTE):
            await anyio.sleep(pause)
            with pytest.raises(StoreError):
                await client.payments.reconcile()
        for each in (asked, order(kind, "new", 2)):
            with pytest.raises(MobileMoneyError):
                answer = await world.attempt(client, each)
                assert isinstance(answer, StoreError | OutcomeUnknown)
                raise answer
    assert {record.key: record.state for record in await _records(world)} == before
    assert world.service.posts == posts
    async with world.client() as client:
        assert isinstance(await world.attempt(client, asked), Acknowledgement)
        await world.hold(client, at_end=True)


OTHER_HOST = "https://sandbox.second.example/v1"


async def _records(world: World) -> list[Any]:
    async with world.client() as client:
        return await client.payments.list()


# A store that is behind its service


@pytest.fixture
def restore(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return what copies a database as it is now: a backup, which is restored by using it."""

    def copy(url: str) -> str:
        if not url.startswith("sqlite"):
            server: Postgres = request.getfixturevalue("postgres_server")
            return server.copy(url)
        path = tmp_path / "restored.db"
        with closing(sqlite3.connect(str(sa.make_url(url).database))) as source, closing(sqlite3.connect(path)) as to:
            source.backup(to)
        return f"sqlite:///{path}"

    return copy


@BOTH
@KIND
async def test_a_restored_backup_pays_nothing_again(store_url: str, kind: str, restore: Callable[[str], str]) -> None:
    """The orders of the hour that the store has forgotten are tried again: none of them is sent, others are."""
    world = make_world(store_url)
    forgotten = [order(kind, f"forgotten {each}", each) for each in range(10)]
    async with world.client() as client:
        await world.pay(client, [order(kind, f"kept {each}", 100 + each) for each in range(3)])
    world.url = restore(store_url)
    old = World(store_url, world.service, world.utcnow)
    await anyio.sleep(10 * MINUTE)
    async with old.client() as client:
        for each in forgotten:
            await old.pay(client, [each])
            await anyio.sleep(5 * MINUTE)
    posts = world.service.posts
    async with world.client() as client:
        for each in forgotten:
            said = await world.attempt(client, each)
            assert isinstance(said, StoreError), said
            assert said.outcome == "not_sent"
        assert world.service.posts == posts
        await anyio.sleep(MINUTE)
        assert isinstance(await world.attempt(client, order(kind, "new", 500)), Acknowledgement)
        assert isinstance(await world.attempt(client, forgotten[0]), StoreError)
        await world.read(client)
        assert await unclaimed(client) >= {world.made(each.key)[0] for each in forgotten}


@BOTH
async def test_a_quiet_merchant_costs_a_request_an_hour(store_url: str) -> None:
    """On the good path the check of the store costs one list request an hour at most."""
    world = make_world(store_url)
    async with world.client() as client:
        for each in range(6 * 12):
            await world.pay(client, [order(KINDS[each % 2], f"k{each}", each)])
            await anyio.sleep(5 * MINUTE - 1)
        assert world.service.lists <= 6 + 1


# All of it together


class Shops(Shop):
    """The shop, beside a proxy that repeats requests, and other systems that pay for the same merchant."""

    @rule(who=processes, key=keys, is_lost=st.booleans())
    def a_proxy_repeats(self, who: int, key: str, is_lost: bool) -> None:
        self.world.service.repeats = 2
        self.order(who=who, key=key, plan="answer lost" if is_lost else "acknowledged", made=True)
        self.world.service.repeats = 1

    @rule(key=keys)
    def another_system_pays(self, key: str) -> None:
        """Pay as another key would, but not while a request may be on its way: that may be taken for it, as we say."""

        async def work() -> None:
            order = ORDERS[key]
            alike = {each.key for each in ORDERS.values() if attrs.evolve(each, key=key) == order}
            posts = [event.at for event in self.world.service.log if event.what == "post" and event.owner in alike]
            if not posts or self.world.utcnow() > max(posts) + timedelta(minutes=10):
                self.world.service.make(TYPES[order.kind], order.phone_number, str(order.amount))
                await anyio.sleep(10)

        self.run(work)

    @rule(who=processes)
    def someone_reads_the_list(self, who: int) -> None:
        async def work() -> None:
            with suppress(MobileMoneyError):
                await self.world.read(self.workers[who].client)

        self.run(work)


TestShops = pytest.mark.soak(Shops.TestCase)
TestShops.settings = SETTINGS
