"""Hosts with clocks minutes apart: with PostgreSQL its clock decides, so no payment is given up too early."""

import itertools
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import httpx
import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import AsyncClient, OutcomeUnknown, PaymentState, RateLimiter, SQLStore, StoreError
from mobilemoney_async.database.clock import WallClock
from mobilemoney_async.database.engine import Database
from mobilemoney_async.payments.book import PaymentBook
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.testing import page_answer
from tests.payments.service import ORDER, PHONE_NUMBER, make_world, on_asyncio
from tests.payments.steps import record_of
from tests.support.databases import dsn
from tests.support.fakes import FakeTransport, Hang
from tests.support.patience import PATIENCE, until

real = pytest.mark.real_time
moments = st.floats(0, 2e9)


class Host:
    """Host with a clock that differs from ours.

    Attributes:
        ahead: By so many seconds.
    """

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def time(self) -> float:
        """Return the time of its clock."""
        return time.time() + self.ahead  # real time: the clock of PostgreSQL is real too

    def store(self, url: str) -> SQLStore:
        """Return the store of a process there."""
        store = SQLStore(url)
        account_store(store).database.wall_clock = WallClock(self.time)
        return store


def silent(*, drops: bool) -> FakeTransport:
    """Return a service that lists nothing, and hangs up on payments, or leaves their caller waiting."""
    lost = httpx.RemoteProtocolError("hung up") if drops else Hang()
    return FakeTransport(lambda sent: page_answer() if sent.method == "GET" else lost)


async def until_taken(service: FakeTransport) -> None:
    """Wait until a payment has come."""
    await until(lambda: any(sent.method == "POST" for sent in service.sent))


def client(service: FakeTransport, store: SQLStore) -> AsyncClient:
    """Return the client of a process with its host's clock, corrected by the store."""
    limiter = RateLimiter(per_minute=60_000, burst=1000)
    return AsyncClient("https://service.invalid/v1", auth="token", store=store, transport=service, rate_limiter=limiter)


@real
@on_asyncio
async def test_a_request_is_not_given_up_by_a_host_whose_clock_is_ahead(postgres_url: str) -> None:
    """A payment that one host is sending is on its way for all of them, whatever their clocks show, or jump to."""
    service, host = silent(drops=False), Host(+2 * PATIENCE)
    behind, ahead = Host(-2 * PATIENCE).store(postgres_url), host.store(postgres_url)
    async with client(service, behind) as sender, client(service, ahead) as other, anyio.create_task_group() as tasks:

        async def send() -> None:
            await sender.collections.create(**ORDER, idempotency_key="order-1")

        tasks.start_soon(send)
        await until_taken(service)
        for _ in range(2):
            assert await other.payments.reconcile() == []
            host.ahead += 7200
            with pytest.raises(StoreError, match="on its way"):
                await other.payments.confirm_absent("order-1", note="I cannot see it")
            host.ahead += 7200
        book = PaymentBook(account_store(Host(+2 * PATIENCE).store(postgres_url)))  # as the command line has it
        with pytest.raises(StoreError, match="on its way"):
            await book.confirm_absent("order-1", note="I cannot see it")
        (record,) = await other.payments.unresolved()
        assert record.state is PaymentState.SENDING
        tasks.cancel_scope.cancel()


@real
@on_asyncio
async def test_the_grace_period_is_as_long_on_every_host(postgres_url: str) -> None:
    """A host with a clock minutes ahead does not call a payment absent that was sent a moment ago."""
    service = silent(drops=True)
    behind, ahead = Host(-2 * PATIENCE).store(postgres_url), Host(+2 * PATIENCE).store(postgres_url)
    async with client(service, behind) as sender, client(service, ahead) as other:
        with pytest.raises(OutcomeUnknown):
            await sender.collections.create(**ORDER, idempotency_key="order-1")
        for _ in range(3):
            await other.payments.reconcile()
        (record,) = await other.payments.unresolved()
        assert (record.state, record.walks) == (PaymentState.UNKNOWN, 0)
        assert record.sent_at is not None
        assert abs((record.sent_at - datetime.now(UTC)).total_seconds()) < PATIENCE


@real
@on_asyncio
async def test_the_clock_of_a_host_that_was_set_is_put_right(postgres_url: str) -> None:
    """Each reading of the database's clock corrects the host's, also one that was set in between."""
    host = Host(0)
    database = Database(postgres_url)
    clock = database.wall_clock = WallClock(host.time)
    for ahead in (0, 3600, -86400):
        host.ahead = ahead
        await database.timed(lambda connection, clock: None)
        assert abs(clock.utcnow().timestamp() - time.time()) < PATIENCE  # real time: ahead were hours
    database.close()


@on_asyncio
async def test_a_clock_that_jumps_takes_nothing_out_of_the_queue(postgres_url: str) -> None:
    """A payment with an hour left stays queued on a host whose clock jumps two hours ahead, and is then sent."""
    host, service = Host(0), silent(drops=True)
    async with client(service, host.store(postgres_url)) as shop, shop.dispatcher() as dispatcher:
        dispatcher.pause()
        await shop.payments.enqueue(type="collection", **ORDER, idempotency_key="order-1", not_after=timedelta(hours=1))
        host.ahead = 7200
        await anyio.sleep(10)
        dispatcher.resume()
        await anyio.sleep(10)
        (record,) = await shop.payments.list()
        assert record.state is PaymentState.UNKNOWN  # it was sent, and the service gave no answer


@on_asyncio
@pytest.mark.parametrize("driver", ["sqlalchemy", "psycopg", "ours"])
async def test_a_time_from_now_is_of_the_database_s_clock(postgres_url: str, driver: str) -> None:
    """Also on a host that has never read it, and is two hours late: an hour is an hour from now."""
    asked: dict[str, Any] = {"type": "collection", **ORDER, "idempotency_key": "order-1"}
    asked |= {"not_before": timedelta(minutes=1), "not_after": timedelta(hours=1)}
    async with client(silent(drops=True), Host(0).store(postgres_url)) as other:
        await other.payments.unresolved()  # makes the tables
        late = Host(-7200).store(postgres_url)
        if driver == "psycopg":
            with psycopg.connect(dsn(postgres_url)) as raw:
                late.enqueue(raw, **asked)
        elif driver == "ours":
            await PaymentBook(account_store(late)).enqueue(**asked)
            account_store(late).database.close()
        else:
            with sa.create_engine(postgres_url, poolclass=sa.pool.NullPool).begin() as connection:
                late.enqueue(connection, **asked)
        record = await record_of(other, "order-1")
        assert record.not_before is not None
        assert record.not_after is not None
        assert abs((record.not_before - datetime.now(UTC) - timedelta(minutes=1)).total_seconds()) < PATIENCE
        assert record.not_after - record.not_before == timedelta(minutes=59)


def test_the_host_s_clock_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be set at any time: between two readings of the database's clock, a clock that is not set counts."""
    shown = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: shown)
    clock = Database("postgresql://host/payments").wall_clock
    shown += 2 * PATIENCE
    assert 1_000_000 <= clock.utcnow().timestamp() < shown


def test_the_host_s_clock_goes_on_while_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a request that slept behind its record would be sent once other hosts have called it lost: see `calls`."""
    real, awake, slept = time.clock_gettime, getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC), 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda kind: real(kind) + slept * (kind != awake))
    clock = Database("postgresql://host/payments").wall_clock
    before = clock.utcnow()
    slept = 600.0
    assert clock.utcnow() - before >= timedelta(minutes=10)


@pytest.mark.parametrize("frozen", [0.0, 2e9])
async def test_a_store_works_in_time_that_a_test_has_frozen(
    store_url: str, frozen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """freezegun gives some callers the real time, by their stacks: no deadline of ours is computed from both."""
    world, real, is_frozen = make_world(store_url), time.monotonic, itertools.cycle([True, False])

    def read() -> float:
        return frozen if next(is_frozen) else real()

    monkeypatch.setattr(time, "monotonic", read)
    async with world.client() as client, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(partial(client.collections.create, PHONE_NUMBER, 100 + number))
    async with world.client() as client:
        (first, *_) = records = await client.payments.list()
        assert len(records) == 5
        assert first.sent_at is not None and abs(first.sent_at - world.utcnow()) < timedelta(hours=1)


@given(moments, moments, st.floats(0, 3600), st.floats(0, 1))
def test_a_look_bounds_the_difference(host: float, shown: float, took: float, part: float) -> None:
    """After any reading the clock shows a time that the database can have had during the reading."""
    clock = WallClock(lambda: host + took)
    clock.seen(shown, after=host, before=host + took)
    assert shown - 1e-3 <= clock.utcnow().timestamp() <= shown + took + 1e-3


def test_a_clock_that_agrees_is_left_alone() -> None:
    """While the database's clock can be the host's, the time does not jump with each look."""
    clock = WallClock(lambda: 1_000_000.0)
    for shown in (1_000_000.01, 999_999.99, 1_000_000.0):
        clock.seen(shown, after=999_999.98, before=1_000_000.02)
        assert clock.utcnow() == datetime.fromtimestamp(1_000_000.0, UTC)
