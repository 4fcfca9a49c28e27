"""Payments that are recorded in the merchant's own transaction, and sent by a dispatcher: once, or never."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from string import ascii_lowercase
from typing import Any

import anyio
import attrs
import psycopg
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    APIError,
    AsyncClient,
    ConnectionFailed,
    IdempotencyConflict,
    InvalidRequest,
    OutcomeUnknown,
    PaymentCause,
    PaymentState,
    RateLimiter,
    RetryPolicy,
    SQLStore,
    StoreError,
)
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import faults
from tests.payments.service import (
    PHONE_NUMBER,
    TWO_MINUTES,
    Outage,
    World,
    between_others,
    make_world,
    on_asyncio,
    on_one,
    on_sqlite,
)
from tests.payments.steps import dispatch, record_of
from tests.payments.test_dispatcher import enqueue, refuse
from tests.support.databases import dsn

pytestmark = pytest.mark.pairs

NO_RETRIES = RetryPolicy(max_attempts=1)
ORDER: dict[str, Any] = {"type": "collection", "phone_number": PHONE_NUMBER, "amount": 1000}


@contextmanager
def driver(url: str) -> Iterator[Any]:
    """A connection of the database's driver, as merchants have it."""
    read = sa.make_url(url)
    if read.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(read.database or "")) as connection:
            yield connection
    else:
        with psycopg.connect(dsn(url)) as connection:
            yield connection


async def state(client: AsyncClient, key: str) -> PaymentState | None:
    record = await client.payments.get(key)
    return None if record is None else record.state


# Enqueueing


@pytest.mark.new_database
async def test_a_payment_is_queued_with_the_order_or_not_at_all(world: World) -> None:
    """On the driver's own connection: committed it is sent once, rolled back it never was."""
    async with world.client(world.store()) as client:
        await client.payments.unresolved()
        store = world.store()
        with driver(world.url) as connection:
            connection.execute("CREATE TABLE orders (id TEXT)")
            connection.commit()
            connection.execute("INSERT INTO orders VALUES ('a')")
            queued = store.enqueue(connection, **ORDER, idempotency_key="a", extra={"note": "x"}, priority=2)
            assert (queued.state, queued.attempt, queued.priority, queued.walks) == (PaymentState.QUEUED, 0, 2, 0)
            connection.commit()
            connection.execute("INSERT INTO orders VALUES ('b')")
            store.enqueue(connection, **ORDER, idempotency_key="b")
            connection.rollback()
            orders = connection.execute("SELECT id FROM orders").fetchall()
        assert [tuple(each) for each in orders] == [("a",)]
        assert await state(client, "b") is None
        await dispatch(client)
        assert await state(client, "a") is PaymentState.ACKNOWLEDGED
        record = await record_of(client, "a")
        assert [entry.what for entry in record.history] == ["queued", "sent", "acknowledged"]
    assert world.sent == 1 and b'"note":"x"' in world.line.posts[0].replace(b" ", b"")


@on_sqlite
async def test_a_program_older_than_the_tables_queues_nothing(world: World, client: AsyncClient) -> None:
    """Once a newer release has changed the tables, `enqueue` raises: the order is rolled back with the payment."""
    await client.payments.unresolved()
    engine, store = sa.create_engine(world.url, poolclass=sa.pool.NullPool), world.store()
    with engine.begin() as connection:
        store.enqueue(connection, **ORDER, idempotency_key="a")
        connection.exec_driver_sql("UPDATE mobilemoney_schema SET version = 99")
    with pytest.raises(StoreError, match="update mobilemoney-async"), engine.begin() as connection:
        store.enqueue(connection, **{**ORDER, "amount": 2000}, idempotency_key="b")
    assert world.states() == ["QUEUED"]


async def test_the_same_key_is_the_same_payment(world: World, client: AsyncClient) -> None:
    """Whether it is queued, sent or refused; other parameters are a conflict, and change nothing."""
    first = await client.payments.enqueue(**ORDER, idempotency_key="a")
    assert await client.payments.enqueue(**ORDER, idempotency_key="a") == first
    for wrong in ({"amount": 1001}, {"type": "disbursement"}, {"phone_number": "+255681234599"}):
        with pytest.raises(IdempotencyConflict):
            await client.payments.enqueue(**{**ORDER, **wrong}, idempotency_key="a")
    await dispatch(client)
    again = await client.payments.enqueue(**ORDER, idempotency_key="a")
    assert again.state is PaymentState.ACKNOWLEDGED
    await dispatch(client)
    assert world.sent == 1


async def test_a_create_sends_a_queued_payment_now(world: World, client: AsyncClient) -> None:
    """Under the same key, with the same parameters."""
    await client.payments.enqueue(**ORDER, idempotency_key="a", extra={"note": "x"})
    order: dict[str, Any] = {"phone_number": PHONE_NUMBER, "amount": 1000}
    with pytest.raises(IdempotencyConflict):
        await client.collections.create(**order, idempotency_key="a")
    await client.collections.create(**order, idempotency_key="a", extra={"note": "x"})
    await dispatch(client)
    assert world.sent == 1


async def test_wrong_arguments_and_connections_are_refused_before_anything_is_written(world: World) -> None:
    """Each by a sentence that names the argument."""
    wrong: list[dict[str, Any]] = [
        {"type": "gift"},
        {"phone_number": "0681"},
        {"amount": 1.5},
        {"idempotency_key": " "},
        {"extra": {"amount": 1}},
        {"not_before": 5},
        {"not_after": datetime(2026, 1, 1)},  # noqa: DTZ001 (it is not aware)
        {"not_before": datetime.min.replace(tzinfo=timezone(timedelta(hours=3)))},  # year 0 of UTC
        {"not_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
        {"not_after": timedelta.max},
        {"priority": "high"},
        {"priority": 10**9},
    ]
    async with world.client() as client:
        await client.payments.unresolved()
        store = world.store()
        with driver(world.url) as connection:
            for each in wrong:
                with pytest.raises(InvalidRequest, match=next(iter(each))):
                    store.enqueue(connection, **{**ORDER, "idempotency_key": "a", **each})
            for no_connection in (None, "x", object(), world.url):
                with pytest.raises(InvalidRequest, match="connection"):
                    store.enqueue(no_connection, **ORDER, idempotency_key="a")
            connection.rollback()
            if world.url.startswith("sqlite"):
                connection.isolation_level = None
            else:
                connection.autocommit = True
            with pytest.raises(InvalidRequest, match="commits each statement"):
                store.enqueue(connection, **ORDER, idempotency_key="a")
        assert await client.payments.list() == []


@on_sqlite
async def test_the_limits_of_arguments_are_allowed(client: AsyncClient) -> None:
    """A million either way, no more; a time needs its zone."""
    for number, priority in enumerate((1_000_000, -1_000_000)):
        order = {**ORDER, "amount": 1000 + number, "idempotency_key": f"k{number}"}
        assert (await client.payments.enqueue(**order, priority=priority)).priority == priority
        with pytest.raises(InvalidRequest, match="priority"):
            await client.payments.enqueue(**order, priority=priority + (1 if priority > 0 else -1))
    with pytest.raises(InvalidRequest, match="not_before"):
        await client.payments.enqueue(**ORDER, idempotency_key="a", not_before=datetime(2026, 1, 2))  # noqa: DTZ001
    assert len(await client.payments.list()) == 2


# Dispatching


@on_sqlite
async def test_a_payment_is_due_at_its_very_moment(world: World, client: AsyncClient) -> None:
    """The first look of a dispatcher finds one whose time has just come."""
    await client.payments.enqueue(**ORDER, idempotency_key="a", not_before=world.utcnow())
    await dispatch(client, 0.3)
    assert world.sent == 1


async def test_a_key_is_cancelled_in_its_account_alone(world: World) -> None:
    """The queued payment of another account under the same key is sent."""
    async with world.client(world.store(account="one")) as one, world.client(world.store(account="two")) as two:
        for client in (one, two):
            await client.payments.enqueue(**ORDER, idempotency_key="a")
        await one.payments.cancel("a", note="no")
        await dispatch(one, 3)
        await dispatch(two, 3)
        assert [await state(client, "a") for client in (one, two)] == [
            PaymentState.CANCELLED,
            PaymentState.ACKNOWLEDGED,
        ]
    assert world.sent == 1


@pytest.mark.slow
@on_asyncio
async def test_payments_are_sent_by_priority_then_age_and_not_before_their_time(sqlite_file_url: str) -> None:
    """At the pace that was asked for, behind nothing else."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        for number, priority in enumerate((0, 5, 0, 9)):
            order = {**ORDER, "amount": 1000 + number}
            await client.payments.enqueue(**order, idempotency_key=f"k{number}", priority=priority)
        later = world.utcnow() + timedelta(seconds=10)
        await client.payments.enqueue(**{**ORDER, "amount": 9}, idempotency_key="late", not_before=later, priority=99)
        began = world.utcnow()
        dispatcher = await dispatch(client, 14, per_minute=30)
        records = {record.key: record for record in await client.payments.list()}
    waited = {key: (record.sent_at - began).total_seconds() for key, record in records.items() if record.sent_at}
    assert sorted(waited, key=lambda key: waited[key]) == ["k3", "k1", "k0", "k2", "late"]
    assert [round(waited[key]) for key in ("k3", "k1", "k0", "k2")] == [0, 2, 4, 6]
    assert 10 <= waited["late"] < 13
    assert dispatcher.stats.sent == 5


@pytest.mark.slow
async def test_a_rejected_token_costs_no_payment(world: World) -> None:
    """The refusal says nothing about the payment, which goes back into the queue."""
    async with world.client(auth="expired") as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        await dispatch(client)
        assert await state(client, "a") is PaymentState.QUEUED
    async with world.client() as client:
        await dispatch(client, 31)
        assert await state(client, "a") is PaymentState.ACKNOWLEDGED
    assert len(world.made) == 1


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_a_refusal_that_proves_nothing_does_not_put_a_payment_back(sqlite_file_url: str, status: int) -> None:
    """A proxy's page may hide that the service has made it: it is not sent again without a look in the list."""
    world = make_world(sqlite_file_url)
    async with world.client(retry=NO_RETRIES) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        world.sandbox.script(faults.server_error(status, processed=True), on="c2b", times=1)
        await dispatch(client)
        record = await record_of(client, "a")
    assert (record.state, record.is_certain) == (PaymentState.REFUSED, False)
    assert world.sent == 1 == len(world.made)


async def test_a_create_that_is_not_sent_leaves_its_payment_in_the_queue(world: World) -> None:
    """Also one that is cancelled in the last moment."""
    async with world.client(retry=NO_RETRIES) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        world.line.refuse = 1
        with pytest.raises(ConnectionFailed):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="a")
        assert await state(client, "a") is PaymentState.QUEUED
        await dispatch(client)
    assert len(world.made) == 1


@pytest.mark.slow
@on_asyncio
async def test_payments_that_need_a_look_do_not_stop_the_others(sqlite_file_url: str) -> None:
    """One that was refused without a code of the contract is compared with the list before it is sent again."""
    world = make_world(sqlite_file_url)
    async with world.client(world.store(grace=100)) as client:
        world.sandbox.script(faults.server_error(422, processed=False), on="c2b", times=3)
        for number in range(3):
            order: dict[str, Any] = {"phone_number": PHONE_NUMBER, "amount": 10 + number}
            with pytest.raises(APIError):
                await client.collections.create(**order, idempotency_key=f"soft-{number}")
            queued = await client.payments.enqueue(type="collection", **order, idempotency_key=f"soft-{number}")
            assert queued.state is PaymentState.QUEUED
        for number in range(5):
            await client.payments.enqueue(**{**ORDER, "amount": 1000 + number}, idempotency_key=f"k{number}")
        began = world.utcnow()
        async with client.dispatcher():
            await anyio.sleep(20)
            assert [await state(client, f"k{number}") for number in range(5)] == [PaymentState.ACKNOWLEDGED] * 5
            waiting = await record_of(client, "soft-0")
            assert waiting.state is PaymentState.QUEUED and waiting.reason is not None
            await anyio.sleep(150)
        sent = [await record_of(client, f"soft-{number}") for number in range(3)]
    assert world.sent == 11
    for each in sent:
        assert each.sent_at is not None and each.sent_at >= began + timedelta(seconds=80)


@pytest.mark.costly("runs lines of payments/creates/creates.py that no quick test runs")
async def test_a_look_delays_no_queued_payment_and_a_pause_of_the_queue_no_look(sqlite_file_url: str) -> None:
    """Each has a time of its own: of the next look in the list, and before which the dispatcher does not try again."""
    world = make_world(sqlite_file_url)
    store = world.store(grace=60)
    async with world.client(store, retry=NO_RETRIES) as client:
        world.sandbox.script(faults.server_error(422, processed=False), on="c2b")
        with pytest.raises(APIError):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="a")
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        later = world.utcnow() + timedelta(hours=2)
        await account_store(store).write(lambda journal: journal.update("a", {"next_look_at": later}))
        await dispatch(client, 10)
        waiting = await record_of(client, "a")
        assert waiting.reason is not None
        assert waiting.not_before is not None and waiting.next_look_at != waiting.not_before
        await anyio.sleep(120)
        await account_store(store).write(lambda journal: journal.update("a", {"next_look_at": later}))
        await dispatch(client, 60)
        assert await state(client, "a") is PaymentState.ACKNOWLEDGED
    assert world.sent == 2


@pytest.mark.slow
@on_asyncio
async def test_an_interactive_create_is_at_most_one_payment_behind(sqlite_file_url: str) -> None:
    """Under a rate limit that the queue has used up."""
    world = make_world(sqlite_file_url)
    async with world.client(rate_limiter=RateLimiter(per_minute=12, burst=5)) as client:
        await enqueue(client, 20)
        async with client.dispatcher(per_minute=12):
            await anyio.sleep(70)
            before = world.sent
            await client.collections.create(phone_number=PHONE_NUMBER, amount=5, idempotency_key="now")
            assert world.sent <= before + 2


async def test_a_slow_pace_is_one_pace_for_all_processes(sqlite_file_url: str) -> None:
    """However long the pause between two payments, no other process takes over and sends in between."""
    world = make_world(sqlite_file_url)
    async with world.client() as one, world.client() as other:
        await enqueue(one, 4)
        async with one.dispatcher(per_minute=2), other.dispatcher(per_minute=2):
            await anyio.sleep(29)
            assert world.sent == 1
            await anyio.sleep(30)
            assert world.sent == 2


async def test_each_account_has_a_queue_of_its_own(sqlite_file_url: str) -> None:
    """A dispatcher neither counts nor sends what another merchant has queued in the same database."""
    world = make_world(sqlite_file_url)
    async with world.client(world.store(account="one")) as one, world.client(world.store(account="two")) as two:
        await enqueue(two, 3)
        assert (await dispatch(one, 5)).stats.queued == 0
        assert world.sent == 0
        assert (await dispatch(two, 20)).stats.sent == 3 == world.sent


async def test_a_queued_payment_may_be_cancelled_until_it_is_sent(world: World, client: AsyncClient) -> None:
    """Then its key is used up; one that was sent cannot be."""
    await client.payments.enqueue(**ORDER, idempotency_key="a")
    cancelled = await client.payments.cancel("a", note="changed their mind")
    assert cancelled.state is PaymentState.CANCELLED
    await dispatch(client, 5)
    assert (await client.payments.enqueue(**ORDER, idempotency_key="a")).state is PaymentState.CANCELLED
    with pytest.raises(StoreError):
        await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="a")
    for key in ("a", "nothing"):
        with pytest.raises(StoreError) as caught:
            await client.payments.cancel(key, note="again")
        assert caught.value.outcome == "not_sent"
    assert world.sent == 0


@pytest.mark.slow
async def test_a_payment_that_was_tried_in_vain_can_be_cancelled(world: World) -> None:
    """One that was provably not sent, like one that never was tried; one that may exist is refused again."""
    async with world.client(retry=NO_RETRIES) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="unsent")
        world.line.refuse = 1
        await dispatch(client, 2)
        waiting = await record_of(client, "unsent")
        assert (waiting.state, waiting.attempt) == (PaymentState.QUEUED, 1)
        cancelled = await client.payments.cancel("unsent", note="no")
        assert (cancelled.state, cancelled.reason) == (PaymentState.CANCELLED, None)
        world.sandbox.script(faults.server_error(422, processed=False), on="c2b", times=1)
        with pytest.raises(APIError):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=50, idempotency_key="soft")
        order = {**ORDER, "amount": 50}
        await client.payments.enqueue(**order, idempotency_key="soft")
        refused = await client.payments.cancel("soft", note="no")
        assert (refused.state, refused.is_certain) == (PaymentState.REFUSED, False)
        with pytest.raises(StoreError, match="REFUSED, not queued"):
            await client.payments.cancel("soft", note="again")
        sent = world.sent
        await dispatch(client, 90)
        assert world.sent == sent
        assert (await client.payments.enqueue(**order, idempotency_key="soft")).state is PaymentState.QUEUED
        kept = await record_of(client, "soft")
    assert [each.what for each in kept.history] == [*("sent", "refused", "queued", "cancelled", "queued")]


async def test_a_payment_is_taken_back_with_its_key(world: World) -> None:
    """A cancelled payment whose key is reusable is as one that was not sent; one that may exist is refused again."""
    async with world.client(retry=NO_RETRIES) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a", not_before=timedelta(seconds=5))
        queued = await client.payments.cancel("a", note="no", reusable=True)
        assert (queued.state, queued.attempt) == (PaymentState.NOT_SENT, 0)
        world.sandbox.script(faults.server_error(422, processed=False), on="c2b", times=1)
        with pytest.raises(APIError):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=50, idempotency_key="soft")
        await client.payments.enqueue(**{**ORDER, "amount": 50}, idempotency_key="soft")
        refused = await client.payments.cancel("soft", note="no", reusable=True)
        assert (refused.state, refused.is_certain) == (PaymentState.REFUSED, False)
        await dispatch(client, 8.3)  # ends while it does not renew its lease
        assert world.sent == 1
        await client.payments.enqueue(**ORDER, idempotency_key="a", not_before=timedelta(seconds=5))
        await dispatch(client, 3.3)
        other = await client.payments.enqueue(
            **{**ORDER, "amount": 60}, idempotency_key="b", not_before=timedelta(seconds=5)
        )
        await client.payments.hold(["a", "soft", "nothing"], timedelta(seconds=8))
        assert [(await record_of(client, key)).not_before for key in ("soft", "b")] == [None, other.not_before]
        await client.payments.cancel("b", note="no")
        await dispatch(client, 3.3)
        assert world.sent == 1
        await dispatch(client, 8.3)
        found = [each.state async for each in client.payments.changes(forever=False) if each.key == "a"]
    assert world.sent == 2
    assert found[:4] == [PaymentState.QUEUED, PaymentState.NOT_SENT, PaymentState.QUEUED, PaymentState.SENDING]


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_payment_that_waited_past_its_not_after_is_not_sent(
    store_url: str, caplog: pytest.LogCaptureFixture, is_paused: bool
) -> None:
    """After an outage it leaves the queue, also if dispatchers are paused; record, feed and log say so."""
    world, minute = make_world(store_url), timedelta(minutes=1)
    shops = [world.store(account="shop-1") for _ in range(2)]
    async with world.client(shops[0]) as client, world.client(shops[1]) as other:
        for number, until in enumerate([None, 10 * minute, 30 * minute]):
            order = {**ORDER, "amount": 1000 + number, "idempotency_key": f"k{number}"}
            assert not (await client.payments.enqueue(**order, not_after=until)).is_late
        await anyio.sleep(601)
        async with client.dispatcher() as one:
            if is_paused:
                one.pause()
            async with other.dispatcher() as two:
                if is_paused:
                    two.pause()
                await anyio.sleep(5)
        assert world.sent == (0 if is_paused else 2)
        late = await record_of(client, "k1")
        assert (late.state, late.is_late) == (PaymentState.NOT_SENT, True)
        assert [(each.what, each.source) for each in late.history] == [("queued", "caller"), ("withdrawn", "caller")]
        found = [each.state async for each in client.payments.changes(forever=False) if each.key == "k1"]
        assert found == [PaymentState.QUEUED, PaymentState.NOT_SENT]
        assert (
            caplog.text.count("'k1'") == caplog.text.count("of account 'shop-1', since they were not sent in time") == 1
        )
        again = await client.payments.enqueue(**{**ORDER, "amount": 1001}, idempotency_key="k1", not_after=minute)
        assert (again.state, again.is_late) == (PaymentState.QUEUED, False)
        async with client.dispatcher() as one:
            one.resume()
            await anyio.sleep(5)
        assert await state(client, "k1") is PaymentState.ACKNOWLEDGED
    assert world.sent == 3


@attrs.define
class SlowLogin:
    """Token source that waits: a create has its payment in hand meanwhile, as in a long line for the rate limit."""

    value: str
    opened: anyio.Event = attrs.field(factory=anyio.Event)

    async def open_in(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self.opened.set()

    async def token(self, login: object) -> str:
        await self.opened.wait()
        return self.value

    def rejected(self, token: object, *, replacement: bool) -> None:
        raise AssertionError


async def test_a_payment_that_becomes_late_in_a_dispatcher_s_hands_is_not_sent(world: World) -> None:
    """The decision is made in the transaction in which the dispatcher would begin to send."""
    login = SlowLogin(world.sandbox.token)
    async with world.client(auth=login) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a", not_after=timedelta(seconds=20))
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(25)
            assert await state(client, "a") is PaymentState.QUEUED
            login.opened.set()
            await anyio.sleep(5)
            late = await record_of(client, "a")
            assert (late.state, late.is_late) == (PaymentState.NOT_SENT, True)
            assert dispatcher.stats.paused is None
    assert world.sent == 0


async def test_a_create_that_waits_until_its_payment_is_late_does_not_send_it(world: World) -> None:
    """A create that begins after the `not_after` of a queued payment is a new wish, and sends it."""
    login = SlowLogin(world.sandbox.token)
    async with world.client(auth=login) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a", not_after=timedelta(seconds=20))
        create = partial(client.collections.create, phone_number=PHONE_NUMBER, amount=1000, idempotency_key="a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(login.open_in, 20)
            with pytest.raises(StoreError, match="was to be sent before") as caught:
                await create()
        assert (caught.value.outcome, world.sent) == ("not_sent", 0)
        assert await state(client, "a") is PaymentState.QUEUED
        await create()
    assert world.sent == 1


async def test_a_payment_that_was_taken_back_is_not_sent_by_another_process_that_has_it_in_hand(world: World) -> None:
    """Once `cancel(reusable=True)` has returned, the queue does not send it, though its key may be used again."""
    login = SlowLogin(world.sandbox.token)
    async with world.client(auth=login) as client, world.client(world.store()) as other:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(5)
            assert (await other.payments.cancel("a", note="no", reusable=True)).state is PaymentState.NOT_SENT
            login.opened.set()
            await anyio.sleep(5)
            assert dispatcher.stats.paused is None
        assert (world.sent, await state(client, "a")) == (0, PaymentState.NOT_SENT)


@pytest.mark.parametrize(
    ("is_doubtful", "reusable", "ahead"),
    [(False, True, -10), (False, True, 10), (False, False, 0), (True, True, 0), (True, False, 0)],
)
async def test_a_create_does_not_send_what_was_taken_back_while_it_waited(
    world: World, is_doubtful: bool, reusable: bool, ahead: int
) -> None:
    """Neither what was never tried, nor what was refused without a code; a create that begins later is a new wish.

    Whatever the clock of the create's host says.
    """
    login, stays = SlowLogin(world.sandbox.token), is_doubtful or reusable
    said = "it was taken out of the queue meanwhile; nothing was sent" if stays else "its key is used up"
    own = world.client(auth=login, utcnow=lambda: world.utcnow() + timedelta(seconds=ahead))
    async with own as client, world.client(world.store()) as other:
        if is_doubtful:
            async with between_others(other):
                world.sandbox.script(faults.server_error(422, processed=False), on="c2b", times=1)
                with pytest.raises(APIError):
                    await other.collections.create(PHONE_NUMBER, 1000, idempotency_key="a")
            await anyio.sleep(TWO_MINUTES)
            await other.payments.reconcile()
        await other.payments.enqueue(**ORDER, idempotency_key="a")
        sent = world.sent
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(login.open_in, 5)

            async def take_back() -> None:
                await anyio.sleep(3)
                await other.payments.cancel("a", note="no", reusable=reusable)

            tasks.start_soon(take_back)
            with pytest.raises(StoreError, match=said) as caught:
                await client.collections.create(PHONE_NUMBER, 1000, idempotency_key="a")
        assert (caught.value.outcome, world.sent) == ("not_sent", sent)
        if stays:
            await client.collections.create(PHONE_NUMBER, 1000, idempotency_key="a")
            assert world.sent == sent + 1


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_create_that_waits_for_another_of_its_kind_does_not_send_what_was_taken_back(
    world: World, first: str
) -> None:
    """It has not looked at its record yet."""
    login = SlowLogin(world.sandbox.token)
    async with world.client(auth=login) as client, world.client(world.store()) as other:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        create = partial(client.collections.create, PHONE_NUMBER, 1000)

        async def begin() -> None:
            with suppress(StoreError):
                await create(idempotency_key=first)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            await anyio.sleep(1)

            async def take_back() -> None:
                await anyio.sleep(1)
                await other.payments.cancel("a", note="no", reusable=True)
                login.opened.set()

            tasks.start_soon(take_back)
            with pytest.raises(StoreError, match="taken out of the queue meanwhile"):
                await create(idempotency_key="a")
        assert (world.sent, await state(client, "a")) == (first == "b", PaymentState.NOT_SENT)


async def test_a_payment_that_waits_for_one_on_its_way_needs_nobody(world: World, client: AsyncClient) -> None:
    """Another process sends a payment of the same kind: the dispatcher's turn comes with its answer."""
    world.line.answer_after = 4
    async with world.client(world.store()) as other, anyio.create_task_group() as tasks:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        tasks.start_soon(partial(other.collections.create, PHONE_NUMBER, 1000, idempotency_key="b"))
        await anyio.sleep(1)
        await dispatch(client, 2)
        waits = await record_of(client, "a")
    assert (waits.state, waits.cause) == (PaymentState.QUEUED, PaymentCause.DELAYED)


async def test_a_key_that_was_taken_back_once_is_tried_again_like_any_other(world: World, client: AsyncClient) -> None:
    """What a create itself could not send was taken back by nobody, also once its time in the queue is over."""
    soon: dict[str, Any] = {"not_before": timedelta(seconds=0.1), "not_after": timedelta(seconds=0.2)}
    await client.payments.enqueue(**ORDER, idempotency_key="a", **soon)
    await client.payments.cancel("a", note="no", reusable=True)
    world.line.refuse = 2
    await client.collections.create(PHONE_NUMBER, 1000, idempotency_key="a")
    assert world.happened() == ["queued", "withdrawn", "sent", "not_sent", "sent", "not_sent", "sent", "acknowledged"]


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_payment_that_is_queued_while_its_create_waits_stays_in_the_queue(world: World, tries: int) -> None:
    """Also one that an earlier create could not send: `enqueue` has returned that it is queued."""
    login, create = SlowLogin(world.sandbox.token), {**ORDER, "idempotency_key": "a"}
    login.opened.set()
    async with (
        world.client(auth=login, retry=RetryPolicy(max_attempts=tries)) as client,
        world.client(world.store()) as other,
    ):
        world.line.refuse = 2 * tries
        kind = create.pop("type")
        with pytest.raises(ConnectionFailed):
            await client.collections.create(**create)
        login.opened = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def queue() -> None:
                await anyio.sleep(3)
                queued = await other.payments.enqueue(type=kind, **create)
                assert queued.state is PaymentState.QUEUED
                login.opened.set()

            tasks.start_soon(queue)
            with pytest.raises(ConnectionFailed):
                await client.collections.create(**create)
        assert await state(client, "a") is PaymentState.QUEUED
        await dispatch(other)
        assert (world.sent, await state(client, "a")) == (1, PaymentState.ACKNOWLEDGED)


@pytest.mark.slow
async def test_a_payment_that_may_exist_or_was_released_is_not_queued_again(world: World, client: AsyncClient) -> None:
    """`enqueue` returns it as it is, and no dispatcher sends it; released, a create does, after a look in the list."""
    await client.collections.create(phone_number=PHONE_NUMBER, amount=1, idempotency_key="earlier")
    world.sandbox.script(faults.lost(processed=False), on="c2b", times=1)
    with pytest.raises(OutcomeUnknown):
        await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="a")
    seen = list[PaymentState]()

    async def enqueue_in_vain() -> None:
        seen.append((await client.payments.enqueue(**ORDER, idempotency_key="a")).state)
        await dispatch(client, 5)

    await enqueue_in_vain()
    await client.collections.create(phone_number=PHONE_NUMBER, amount=2, idempotency_key="later")
    for _ in range(3):
        await anyio.sleep(3600)
        await client.payments.reconcile()
    await enqueue_in_vain()
    await client.payments.confirm_absent("a", note="Asha: looked")
    await enqueue_in_vain()
    assert (seen, world.sent) == ([PaymentState.UNKNOWN, PaymentState.ABSENT, PaymentState.RELEASED], 3)
    await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="a")
    assert world.sent == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message", "sent"),
    [
        pytest.param("NO_FLOAT", "{word} has no float", 20, id="one code, other texts"),
        pytest.param("", "{word} has no float", 20, id="no code, other texts"),
        pytest.param("NO_FLOAT_{word}", "no float", 25, id="other codes, one text"),
    ],
)
@on_one
async def test_refusals_are_equal_by_their_code_or_else_by_their_status(
    world: World, client: AsyncClient, code: str, message: str, sent: int
) -> None:
    """What names the payment makes no other reason of it, and one reason for each payment pauses nothing."""
    await enqueue(client, 25)
    for word in ascii_lowercase[:25]:
        refuse(world, code.format(word=word), message.format(word=word))
    await dispatch(client, 4, per_minute=600)
    assert world.sent == sent


async def test_a_dispatcher_warns_once_in_each_outage_of_the_store(
    sqlite_file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in one that it finds as it begins, and in the second one; it goes on by itself when the store is back."""
    world, store = make_world(sqlite_file_url), SQLStore(sqlite_file_url)
    outage = Outage(account_store(store).database)
    outage.away = True
    async with world.client(store) as client, client.dispatcher():
        for number in range(2):
            outage.away = True
            await anyio.sleep(55)
            assert caplog.text.count("the dispatcher waits for the store") == number + 1
            outage.away = False
            await client.payments.enqueue(**{**ORDER, "amount": 1000 + number}, idempotency_key=f"k{number}")
            await anyio.sleep(10)
            assert world.sent == number + 1
    assert "is paused" not in caplog.text


async def test_a_program_that_resumes_the_dispatcher_need_not_wait_for_its_pause(sqlite_file_url: str) -> None:
    """After what could not be sent it tries again at once, as soon as the program says that the reason is gone."""
    world = make_world(sqlite_file_url)
    async with world.client(retry=NO_RETRIES) as client:
        await client.payments.enqueue(**ORDER, idempotency_key="a")
        world.line.refuse = 10**6
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(36)  # it rests until the 75th second
            world.line.refuse = 0
            await client.payments.enqueue(**{**ORDER, "amount": 2000}, idempotency_key="b")
            assert dispatcher.stats.paused is not None
            dispatcher.resume()
            await anyio.sleep(3)
            stats = dispatcher.stats
            assert (stats.paused, world.sent) == (None, 2)


@pytest.mark.slow
@on_asyncio
async def test_slow_answers_do_not_slow_the_pace(sqlite_file_url: str) -> None:
    """Up to twenty payments are on their way at once."""
    world = make_world(sqlite_file_url)
    world.line.answer_after = 4.0
    async with world.client() as client:
        await enqueue(client, 25)
        async with client.dispatcher(per_minute=600):
            await anyio.sleep(3)
            assert world.sent == 20


@on_sqlite
async def test_an_exception_of_the_block_is_not_wrapped(client: AsyncClient) -> None:
    """And arguments are refused by name."""
    with pytest.raises(KeyError):
        async with client.dispatcher():
            raise KeyError("mine")
    for wrong in (0, -1, 600_001, "fast"):
        with pytest.raises(InvalidRequest, match="per_minute"):
            client.dispatcher(per_minute=wrong)  # type: ignore[arg-type]
