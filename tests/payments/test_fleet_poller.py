"""Several pollers over one store: one makes the requests, all get the results, and none is lost when a poller goes."""

import itertools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Self

import anyio
import anyio.abc
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    InvalidRequest,
    InvalidTransactionId,
    Outcome,
    Schedule,
    SQLStore,
    StoreError,
    TransactionNotFound,
    TransactionType,
    WaitTimeout,
)
from mobilemoney_async.contract.codec import reader
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.database.connections import Connections
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.schema import accounts, changes
from mobilemoney_async.payments.creates.attempts import Beginning
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import pending_ids
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRequest, PaymentState, Source
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.polling.poller import Poller
from mobilemoney_async.polling.sharing import Incoming, Outgoing, StatusUpdate, Subscription, UpdateCheck
from mobilemoney_async.sandbox import Choices, Sandbox
from mobilemoney_async.sharing.poller import StoreChannel
from tests.contract import samples
from tests.payments.second_world import BOTH
from tests.payments.service import on_asyncio
from tests.payments.steps import record_of
from tests.payments.test_statement_failures import Fault
from tests.payments.till import LEASE, TTL, Till, make_fleet, make_poller, process, utcnow
from tests.support import patience

Test = Callable[..., Awaitable[None]]

# Limit of what follows once a process holds the lease, seconds: no test may depend on one running out.
LIMIT = LEASE - 5


def on_both(test: Test) -> Test:
    """Run a test with each database and on each loop, once, in real time: PostgreSQL and other processes live in it."""
    marked: Test = pytest.mark.real_time(BOTH(test))
    return marked


async def all_of(poller: Poller) -> list[Outcome]:
    """Return the outcomes of all payments that a poller tracks."""
    with anyio.fail_after(LIMIT):  # real time: before a lease runs out
        return [outcome async for outcome in poller.outcomes()]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is bound to happen before a lease runs out."""
    with anyio.fail_after(LIMIT):  # real time: a lease runs in it too
        await patience.until(condition)


async def lead(a: Poller, till: Till, number: str) -> None:
    """Let the first process track a payment, and ask for those of all from then on."""
    a.track(number)
    await until(lambda: till.askers["a"] > 0)


async def until_quiet(till: Till) -> None:
    """Wait until no process sends requests any more."""
    asked = -1
    with anyio.fail_after(LIMIT):  # real time: before a lease runs out
        while asked != (asked := len(till.asked)):
            await anyio.sleep(0.5)  # real time: if requests are later than that, this shows less


class Watched(StoreChannel):
    """A connection to the store that counts its uses, may be cut off from its database, and may die without leaving."""

    is_away = False
    is_dead = False

    def __init__(self, url: str) -> None:
        super().__init__(account_store(SQLStore(url)), utcnow=utcnow)
        self.ttl, self.poll, self.linger = LEASE, 0.05, 0.2
        self.turns: list[Outgoing] = []
        self.peeks = 0
        self.held: bool = False

    def _check(self) -> None:
        if self.is_away or self.is_dead:
            raise StoreError("the store failed: away", outcome="not_sent")

    async def sync(self, outgoing: Outgoing, **options: Any) -> Incoming:
        if self.is_dead:
            await anyio.sleep_forever()
        self._check()
        self.turns.append(outgoing)
        incoming = await super().sync(outgoing, **options)
        self.held = incoming.holds
        return incoming

    async def check_updates(self) -> UpdateCheck:
        self._check()
        self.peeks += 1
        return await super().check_updates()

    async def leave(self, updates: Sequence[StatusUpdate]) -> None:
        self._check()
        await super().leave(updates)


@asynccontextmanager
async def watched(till: Till, url: str, name: str, **options: Any) -> AsyncIterator[tuple[Poller, Watched]]:
    """Yield a poller and its connection to the store."""
    fleet = Watched(url)
    fleet.store.attach()
    try:
        async with till.client(name) as client, make_poller(client, fleet, **options) as poller:
            yield poller, fleet
    finally:
        fleet.store.detach()


@pytest.mark.slow
@on_both
async def test_one_makes_the_requests_and_all_get_the_results(store_url: str) -> None:
    """Of three processes one makes the requests; each gets the outcomes of its own payments, each once."""
    till = Till()
    async with (
        process(till, store_url, "a") as a,
        process(till, store_url, "b") as b,
        process(till, store_url, "c") as c,
    ):
        own = {poller: [f"{name}-{number}" for number in range(20)] for poller, name in ((a, "a"), (b, "b"), (c, "c"))}
        for poller, numbers in own.items():
            till.open("shared", *numbers)
            for number in [*numbers, "shared"]:
                poller.track(number)
        await until(lambda: len(till.asked) >= 3)
        till.end()
        for poller, numbers in own.items():
            outcomes = await all_of(poller)
            assert sorted(each.transaction_id for each in outcomes) == sorted([*numbers, "shared"])
            assert all(each.transaction is not None and each.transaction.succeeded for each in outcomes)
            assert (poller.pending, poller.stats.final, poller.stats.tracked) == (0, 21, 21)
    assert len(till.askers) == 1


@pytest.mark.slow
@on_both
async def test_the_next_goes_on_at_once_when_the_holder_leaves(store_url: str) -> None:
    """A holder that closes hands over: the payments of others stay tracked, its own do not."""
    till = Till.of("a-1", "b-1")
    async with process(till, store_url, "b") as b:
        async with process(till, store_url, "a") as a:
            await lead(a, till, "a-1")
            b.track("b-1")
            await anyio.sleep(0.3)  # real time: if a wrong request is later, this shows less
            assert set(till.askers) == {"a"}
        asked = len(till.asked)
        await until(lambda: till.askers["b"] > 0)  # it does not wait for the lease to run out
        assert {who for who, _ in till.asked[asked:]} == {"b"}
        till.end("b-1", "a-1")
        assert (await b.wait("b-1")).succeeded
    assert "a-1" not in {what for who, what in till.asked if who == "b"}


@pytest.mark.slow
@on_both
async def test_another_takes_over_when_the_one_that_asks_dies(store_url: str) -> None:
    """When the holder dies another makes all requests, and never both at the same time."""
    till = Till()
    await record(store_url, "order-1", "x")
    async with AsyncExitStack() as stack:
        a, seat = await stack.enter_async_context(watched(till, store_url, "a"))
        b = await stack.enter_async_context(process(till, store_url, "b"))
        c = await stack.enter_async_context(process(till, store_url, "c"))
        till.open("x", "y", "z", "last")
        await lead(a, till, "x")
        b.track("y")
        c.track("z")
        await anyio.sleep(0.2)  # real time: if a wrong request is later, this shows less
        assert set(till.askers) == {"a"}
        seat.ttl, turns = TTL, len(seat.turns)
        a.track("last")
        await until(lambda: len(seat.turns) > turns + 1)
        seat.is_dead = True
        await until(lambda: len(till.askers) > 1)
        await anyio.sleep(TTL)  # real time: if a wrong request is later, this shows less
        order = [name for name, _ in itertools.groupby(who for who, _ in till.asked)]
        assert order in (["a", "b"], ["a", "c"])
        till.end("x", "y", "z", "last")
        assert (await b.wait("y")).succeeded
        assert (await c.wait("z")).succeeded
        # The payments of the dead one are known, too: it starts again and needs no request.
        asked = len(till.asked)
        async with process(till, store_url, "a-again") as again:
            assert (await again.wait("x")).succeeded
        assert len(till.asked) == asked


@pytest.mark.slow
@on_both
async def test_a_timeout_is_the_process_s_own(store_url: str) -> None:
    """A process gives up on time with the latest state; a payment that all have given up costs no more requests."""
    till = Till.of("x", "y")
    async with process(till, store_url, "a") as a, process(till, store_url, "b") as b:
        await lead(a, till, "y")
        seen = None
        while seen is None:  # on a busy machine the first request may be late
            b.track("x", timeout=0.6)  # real time: that ends
            with pytest.raises(WaitTimeout) as caught:
                await b.wait("x")
            seen = caught.value.transaction
        assert seen.status == "PENDING"
        assert b.pending == 0
        a.track("x", timeout=0.3)  # real time: that ends
        assert isinstance((await anext(a.outcomes())).error, WaitTimeout)
        till.end("x")
        b.track("x")
        assert (await b.wait("x")).succeeded
        till.end("y")
        assert (await a.wait("y")).succeeded
        a.track("z", timeout=0.2)  # real time: that ends
        assert isinstance((await all_of(a))[-1].error, WaitTimeout)
        await until_quiet(till)
    assert set(till.askers) == {"a"}


@pytest.mark.slow
@on_both
async def test_a_state_that_the_store_knows_costs_no_request(store_url: str) -> None:
    """A final state in the store is reported without a request, in any process and after a restart."""
    till = Till.of("x")
    await record(store_url, "order-1", "x")
    async with process(till, store_url, "a") as a:
        a.track("x")
        till.end("x")
        first = await a.wait("x")
    asked = len(till.asked)
    async with process(till, store_url, "b") as b, process(till, store_url, "c") as c:
        b.track("x")
        assert [outcome.transaction for outcome in await all_of(b)] == [first]
        assert await c.wait("x") == first
        assert (b.stats.final, b.stats.requests) == (1, 0)
    assert len(till.asked) == asked


@pytest.mark.slow
@on_both
async def test_refusals_reach_who_follows_and_do_not_stick(store_url: str) -> None:
    """A malformed id ends as such in the process that tracked it; tracked again it is requested again."""
    till = Till.of("x")
    async with process(till, store_url, "a") as a, process(till, store_url, "b") as b:
        await lead(a, till, "x")
        for _ in range(2):
            with pytest.raises(InvalidTransactionId) as caught:
                await b.wait("malformed")
            assert caught.value.status_code == 400
            b.track("malformed")
            assert b.pending == 1
            assert isinstance((await anext(b.outcomes())).error, InvalidTransactionId)
            await until(lambda: not b.pending)
    assert sum(what == "malformed" for _, what in till.asked) >= 2
    assert set(till.askers) == {"a"}


@pytest.mark.parametrize("name", ["x\0", "x" * 201])
async def test_an_id_that_some_database_cannot_keep_is_refused(sqlite_file_url: str, name: str) -> None:
    """It would go out with the messages about all payments of its process, and none of them could be written."""
    async with process(Till.of("x"), sqlite_file_url, "a") as poller:
        with pytest.raises(InvalidRequest, match=r"^payment must be a str of at most 200 characters"):
            poller.track(name)
        assert not poller.pending


async def test_hints_travel_and_forged_ones_cost_nothing(sqlite_file_url: str) -> None:
    """A callback that reaches another process than the holder counts; a thousand forged ones are no transactions."""
    till = Till.of("x", "y")
    slow = Schedule(first=0.3, factor=100, cap=100)
    async with (
        watched(till, sqlite_file_url, "a", schedule=slow) as (a, _),
        watched(till, sqlite_file_url, "b", schedule=slow) as (b, seat),
    ):
        await lead(a, till, "x")
        b.track("y")
        await until(lambda: bool(seat.turns))
        await anyio.sleep(0.7)  # the first looks are over, the next ones are far away
        before = len(till.asked)
        turns = len(seat.turns)
        for number in range(1000):
            assert not b.hint(f"forged-{number}")
        assert not b.hint("x"), "another process follows it"
        await anyio.sleep(0.2)
        assert (len(till.asked), len(seat.turns)) == (before, turns)
        till.end("y")
        for _ in range(1000):
            assert b.hint("y")
        with anyio.fail_after(3):
            assert (await b.wait("y")).succeeded
        assert len(seat.turns) - turns <= 5
        assert len(till.asked) - before <= 3


@pytest.mark.costly("runs lines of polling/coordinator.py that no quick test runs")
@on_asyncio
async def test_a_store_that_fails_delays(sqlite_file_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """While the store is away requests end with the lease; then everything goes on, logged once for all."""
    caplog.set_level(logging.INFO, "mobilemoney_async")
    till = Till.of("x", "y")
    async with watched(till, sqlite_file_url, "a") as (a, one), watched(till, sqlite_file_url, "b") as (b, two):
        await lead(a, till, "x")
        b.track("y")
        await anyio.sleep(0.2)
        one.is_away = two.is_away = True
        await anyio.sleep(LEASE)
        asked = len(till.asked)
        till.end("x", "y")
        await anyio.sleep(LEASE)
        assert len(till.asked) == asked
        b.track("z", timeout=0.1)
        with pytest.raises(WaitTimeout):
            await b.wait("z")
        assert (a.pending, b.pending) == (1, 1)
        one.is_away = two.is_away = False
        assert len(await all_of(a)) == 1
        assert (await b.wait("y")).succeeded
    said = [record.message.partition(":")[0] for record in caplog.records if record.levelno >= logging.INFO]
    said = [each for each in said if "store" in each]
    assert sorted(said) == [
        "the poller waits for the store",
        "the store is back",
        "the store is back",
    ]


async def test_an_answer_that_the_store_did_not_take_is_told_later(sqlite_file_url: str) -> None:
    """An ending is handed out when the store has it, also if that takes several attempts."""
    till = Till.of("x")
    await record(sqlite_file_url, "order-1", "x")
    async with watched(till, sqlite_file_url, "a") as (a, seat):
        a.track("x")
        await until(lambda: len(till.asked) > 1)
        seat.is_away = True
        till.end("x")
        asked = len(till.asked)
        await until(lambda: len(till.asked) > asked)
        await anyio.sleep(0.1)
        assert a.pending == 1
        seat.is_away = False
        assert (await a.wait("x")).succeeded
        async with process(till, sqlite_file_url, "b") as b:
            asked = len(till.asked)
            assert (await b.wait("x")).succeeded
            assert len(till.asked) == asked


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2])
@on_both
async def test_closing_at_any_moment_leaves_the_others_at_work(store_url: str, moment: float) -> None:
    """A process that is cancelled while everything goes on is gone soon, and the others lose nothing."""
    till = Till.of(*(f"x-{number}" for number in range(10)))
    async with process(till, store_url, "b") as b:
        with anyio.fail_after(LIMIT):  # real time: before a lease runs out
            with anyio.move_on_after(moment):  # real time: it ends at any moment
                async with process(till, store_url, "a") as a:
                    for number in range(10):
                        a.track(f"x-{number}")
                        b.track(f"x-{number}")
                        a.hint(f"x-{number}")
                    await anyio.sleep_forever()
        for number in range(10):
            b.track(f"x-{number}")
        till.end()
        assert len(await all_of(b)) == 10


@pytest.mark.costly("runs lines of polling/coordinator.py, polling/sharing.py that no quick test runs")
@pytest.mark.parametrize("ttl", [4.0, pytest.param(3600.0, marks=pytest.mark.slow)])  # of a poller, of a worker
@on_asyncio
async def test_a_process_that_gets_no_answers_leaves_asking_to_another(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch, ttl: float
) -> None:
    """If only the holder cannot reach the service, another process takes over after a while, and gives back as soon."""
    monkeypatch.setattr("mobilemoney_async.polling.coordinator._STEP_DOWN_AFTER", 0.3)
    monkeypatch.setattr("mobilemoney_async.polling.coordinator._STAND_BACK", 1.0)
    monkeypatch.setattr("mobilemoney_async.sharing.poller.StoreChannel.ttl", ttl)
    till = Till.of("x", "y", "z")
    async with process(till, sqlite_file_url, "a") as a, process(till, sqlite_file_url, "b") as b:
        await lead(a, till, "x")
        b.track("y")
        await anyio.sleep(0.2)
        till.cut_off.add("a")
        await until(lambda: till.askers["b"] > 0)
        till.end("x", "y")
        assert (await a.wait("x")).succeeded
        assert (await b.wait("y")).succeeded
        till.cut_off = {"b"}
        a.track("z")
        till.end("z")
        with anyio.fail_after(60):
            assert (await a.wait("z")).succeeded


async def test_who_follows_nothing_costs_nothing(sqlite_file_url: str) -> None:
    """When nothing is pending anywhere no process uses the database; the first payment is tracked at once."""
    till = Till.of("x", "y")
    async with watched(till, sqlite_file_url, "a") as (a, one), watched(till, sqlite_file_url, "b") as (b, two):
        a.track("x")
        till.end("x")
        assert (await a.wait("x")).succeeded
        await until(lambda: not one.held)
        before = len(one.turns), one.peeks, len(two.turns), two.peeks
        await anyio.sleep(0.5)
        assert (len(one.turns), one.peeks, len(two.turns), two.peeks) == before
        till.end("y")
        with anyio.fail_after(3):
            assert (await b.wait("y")).succeeded
    assert set(till.askers) == {"a", "b"}


async def record(url: str, key: str, number: str) -> None:
    """Leave a payment in the store that was acknowledged, by a process that is gone."""
    database = Database(url)
    order = PaymentRequest(key=key, type=TransactionType.COLLECTION, phone_number="+255680000001", amount="1000")
    acknowledgement = reader(Acknowledgement)(json.dumps(samples.acknowledgement(transaction_id=number)).encode())
    now = utcnow()

    def work(connection: Any) -> None:
        journal = Journal(connection, "default")
        Beginning(DuplicateGuard(), order, None, 60).begin(journal, now)
        change = JournalEntry(
            key=key,
            attempt=1,
            event=PaymentEvent.ACKNOWLEDGE,
            source=Source.ANSWER,
            at=now,
            acknowledgement=acknowledgement,
        )
        journal.apply(change)

    await database.write(work)
    database.close()


@pytest.mark.slow
@on_both
async def test_the_store_s_payments_are_resumed_and_their_ends_recorded(store_url: str) -> None:
    """With resume=True every payment of the store that is not final is tracked, and its final state recorded."""
    till = Till.of("x", "y")
    await record(store_url, "order-2", "x")
    await record(store_url, "order-1", "y")
    till.end("x")
    database = Database(store_url)
    oldest_first = await database.read(lambda connection: pending_ids(Journal(connection, "default")))
    assert oldest_first == ["x", "y"]
    async with process(till, store_url, "a", resume=True) as a:
        assert a.pending == 2
        assert (await a.wait("x")).succeeded
        found = await database.read(lambda connection: Journal(connection, "default").find("order-2"))
        assert found is not None
        assert (found.state, str(found.status)) == (PaymentState.FINAL, "SUCCESS")
        till.end("y", status="TIMEOUT")
        assert (await a.wait("y")).status == "TIMEOUT"
        assert await database.read(lambda connection: pending_ids(Journal(connection, "default"))) == []
        database.close()
    asked = len(till.asked)
    async with process(till, store_url, "b", resume=True) as b:
        assert b.pending == 0
    assert len(till.asked) == asked


@pytest.mark.slow
@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.pairs
async def test_payments_that_are_made_later_are_followed_too(
    store_url: str, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With resume=True a poller also follows what other processes send while it is open, though the store was away."""
    sandbox = Sandbox()
    url = store_url
    async with sandbox.client(store=SQLStore(url)) as one, sandbox.client(store=SQLStore(url)) as other:
        async with one.poller(resume=True) as poller:
            await anyio.sleep(1)
            if is_away:
                with monkeypatch.context() as outage:

                    def fail(*arguments: object, **options: object) -> None:
                        raise StoreError("the database is away", outcome="not_sent")

                    outage.setattr(Connections, "transact", fail)
                    await anyio.sleep(20)
            made = await other.collections.create(phone_number="+255780000789", amount=1000, idempotency_key="order-1")
            async for outcome in poller.outcomes(forever=True):
                assert outcome.transaction_id == made.transaction_id
                break
        record = await record_of(other, "order-1")
        assert record.is_final


@pytest.mark.costly("runs lines of sharing/poller.py that no quick test runs")
@pytest.mark.pairs
async def test_payments_are_followed_after_the_feed_has_begun_anew(store_url: str) -> None:
    """As where the store is found to be behind its service: those made before that is noticed, and later ones."""
    sandbox = Sandbox()
    async with sandbox.client(store=SQLStore(store_url)) as one, sandbox.client(store=SQLStore(store_url)) as other:

        async def pay(key: str) -> str:
            creates = other.collections
            made = await creates.create(phone_number="+255780000789", amount=1000, idempotency_key=key)
            return made.transaction_id

        async with one.poller(resume=True) as poller:
            outcomes = poller.outcomes(forever=True)
            made = await pay("order-1")
            assert (await anext(outcomes)).transaction_id == made
            new = accounts.update().values(feed_epoch="0123abcd")
            await Database(store_url).write(lambda connection: connection.execute(new))
            for key in ("order-2", "order-3"):
                made = await pay(key)
                with anyio.fail_after(600):
                    assert (await anext(outcomes)).transaction_id == made


@pytest.mark.costly("runs lines of polling/poller.py that no quick test runs")
async def test_a_payment_that_the_service_shows_late_is_followed_to_its_end(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With resume=True also after it was not found: it is looked up again, and the log says so."""
    monkeypatch.setattr("mobilemoney_async.polling.planner.UNSEEN_GRACE", 1.0)
    monkeypatch.setattr("mobilemoney_async.polling.poller._LOOK_AGAIN", 4.0)
    sandbox = Sandbox(choices=Choices(lookup_lag=10, list_lag=10))
    async with sandbox.client(store=SQLStore(sqlite_file_url)) as client, client.poller(resume=True) as poller:
        outcomes = poller.outcomes(forever=True)
        await client.collections.create(phone_number="+255780000789", amount=1000, idempotency_key="order-1")
        with anyio.fail_after(60):
            assert isinstance((await anext(outcomes)).error, TransactionNotFound)
            assert (await anext(outcomes)).transaction is not None
        record = await record_of(client, "order-1")
        assert record.is_final
    assert "the service does not know 1 payments, or not as made: each is looked up" in caplog.text


@pytest.mark.slow
@on_asyncio
async def test_a_wall_clock_that_is_set_ahead_stops_no_poller(sqlite_file_url: str) -> None:
    """Neither in the process that makes the requests nor in one that gets the results from it."""
    sandbox, ahead = Sandbox(), timedelta()
    clients = [sandbox.client(store=SQLStore(sqlite_file_url), utcnow=lambda: sandbox.now + ahead) for _ in range(2)]
    async with clients[0] as one, clients[1] as other, one.poller() as first, other.poller() as second:
        made = [
            await client.collections.create(phone_number="+255780000129", amount=1000, idempotency_key=key)
            for client, key in ((one, "order-1"), (other, "order-2"))
        ]
        for poller, payment in zip((first, second), made, strict=True):
            poller.track(payment)
        await anyio.sleep(20)
        ahead = timedelta(hours=2)
        await anyio.sleep(20)
        for payment in made:
            sandbox.approve(payment.transaction_id)
        with anyio.fail_after(60):
            for poller, payment in zip((first, second), made, strict=True):
                assert (await poller.wait(payment)).succeeded


async def test_resuming_needs_a_store_that_works(sqlite_file_url: str) -> None:
    """Without a store `resume` is refused; a store that fails is an error on entering, before anything has begun."""
    till = Till()
    async with till.client("a") as client:
        with pytest.raises(InvalidRequest, match="resume"):
            Poller(client._pipeline, resume=True)
        poller = make_poller(client, make_fleet(f"{sqlite_file_url}/none/such.db"), resume=True)
        with pytest.raises(StoreError):
            async with poller:
                raise AssertionError


class Seats:
    """Two connections of one fleet, used by hand."""

    def __init__(self, url: str) -> None:
        self.one, self.two = make_fleet(url, ttl=30), make_fleet(url, ttl=30)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.one.store.database.close()
        self.two.store.database.close()


def turn(seat: StoreChannel, *wanted: str, wants: bool = True, **told: Any) -> Awaitable[Incoming]:
    return seat.sync(Outgoing(**told), wants_lease=wants, wanted=wanted)


def following(seat: StoreChannel, number: str, seconds: float = 60, **options: Any) -> dict[str, Subscription]:
    now = utcnow()
    row = Subscription(
        transaction_id=number,
        follower=seat.follower,
        is_new=False,
        tracked_at=now,
        until=now + timedelta(seconds=seconds),
        **options,
    )
    return {number: row}


def row(number: str, status: str) -> Transaction:
    return reader(Transaction)(json.dumps(samples.transaction(id=number, status=status)).encode())


@on_both
async def test_only_the_holder_is_believed_when_it_is_not_a_final_state(store_url: str) -> None:
    """A refusal or an open state from a poller without the lease is dropped; a final state is always believed."""
    refusal = TransactionNotFound("no", status_code=404, code="TRANSACTION_NOT_FOUND")
    async with Seats(store_url) as seats:
        assert (await turn(seats.one, subscriptions=following(seats.one, "x"))).holds
        assert not (await turn(seats.two, subscriptions=following(seats.two, "x"))).holds
        await turn(seats.two, updates=[StatusUpdate(transaction_id="x", error=refusal)])
        await turn(seats.two, updates=[StatusUpdate(transaction_id="x", transaction=row("x", "PENDING"))])
        assert (await turn(seats.one, "x")).updates == []
        final = StatusUpdate(transaction_id="x", transaction=row("x", "SUCCESS"), lag=2.5)
        assert (await turn(seats.two, "x", updates=[final])).updates == [final]
        assert (await turn(seats.one, "x", updates=[final, final])).updates == [final]
        assert (await turn(seats.one, "x")).updates == (await turn(seats.two, "x")).updates == []


@pytest.mark.slow
@on_both
async def test_an_ending_reaches_the_record_the_feed_and_all_pollers_or_none(store_url: str) -> None:
    """At whichever statement the transaction fails, since it writes all that others are to get."""
    await record(store_url, "order-1", "x")
    final = StatusUpdate(transaction_id="x", transaction=row("x", "SUCCESS"))
    async with Seats(store_url) as seats:

        def look(connection: sa.Connection) -> tuple[PaymentState | None, int]:
            found = Journal(connection, "default").find("order-1")
            endings = sa.select(sa.func.count()).select_from(changes).where(changes.c.state == "FINAL")
            return None if found is None else found.state, connection.execute(endings).scalar_one()

        for seat in (seats.one, seats.two):
            await turn(seat, subscriptions=following(seat, "x"))
        given, tried = list[StatusUpdate](), 0
        while not given:
            assert await seats.one.store.database.read(look) == (PaymentState.ACKNOWLEDGED, 0)
            assert (await turn(seats.two, "x")).updates == []
            tried += 1
            with suppress(StoreError), Fault(tried, "operational").armed():
                given += (await turn(seats.one, "x", updates=[final])).updates
        assert tried > 8  # among them the three writes
        assert given == (await turn(seats.two, "x")).updates == [final]
        assert await seats.one.store.database.read(look) == (PaymentState.FINAL, 1)
        assert (await turn(seats.two, "x")).updates == []


@on_both
async def test_the_holder_gets_every_change_once(store_url: str) -> None:
    """A new holder gets all tracked payments, and then each change once."""
    async with Seats(store_url) as seats:
        assert not (await turn(seats.two, wants=False, subscriptions=following(seats.two, "x"))).holds
        learned = await turn(seats.one, subscriptions=following(seats.one, "y"))
        assert sorted(each.transaction_id for each in learned.subscriptions) == ["x", "y"]
        await turn(seats.two, subscriptions=following(seats.two, "x", is_hinted=True))
        (change,) = (await turn(seats.one)).subscriptions
        assert (change.transaction_id, change.is_hinted) == ("x", True)
        assert (await turn(seats.one)).subscriptions == []
        await turn(seats.two, subscriptions=following(seats.two, "x", seconds=-60))
        (change,) = (await turn(seats.one)).subscriptions
        assert change.until <= utcnow()
        # Given back while a change is unread: it stays with the holder.
        await turn(seats.two, subscriptions=following(seats.two, "z"))
        assert (await turn(seats.one, wants=False)).holds
        assert not (await turn(seats.one, wants=False)).holds
        taken = await turn(seats.two)
        assert taken.holds
        assert {each.transaction_id for each in taken.subscriptions if each.until > utcnow()} == {"y", "z"}


async def test_accounts_do_not_meet(sqlite_file_url: str) -> None:
    """Two merchants in one database have a holder each, and know nothing of each other's payments."""
    store = SQLStore(sqlite_file_url)
    one, other = (StoreChannel(account_store(each), utcnow=utcnow) for each in (store, store.for_account("another")))
    assert (await turn(one, subscriptions=following(one, "x"))).holds
    learned = await turn(other, "x")
    assert (learned.holds, list(learned.subscriptions), list(learned.updates)) == (True, [], [])
    store.close()


@pytest.mark.costly("runs lines of polling/coordinator.py that no quick test runs")
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_subscriptions_of_a_dead_process_expire(sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Living processes renew their subscriptions; those of a dead one expire."""
    monkeypatch.setattr("mobilemoney_async.polling.coordinator._HOLD", 0.6)
    monkeypatch.setattr("mobilemoney_async.polling.coordinator._SWEEP", 0.1)
    till = Till.of("x", "y", "z")
    async with (
        process(till, sqlite_file_url, "a", ttl=TTL) as a,
        watched(till, sqlite_file_url, "b") as (b, seat),
        process(till, sqlite_file_url, "c", ttl=TTL) as c,
    ):
        seat.ttl = TTL
        await lead(a, till, "x")
        b.track("y")
        c.track("z")
        await until(lambda: bool(seat.turns))
        seat.is_dead = True
        till.end("z")
        assert (await c.wait("z")).succeeded
        till.end("x")
        assert (await a.wait("x")).succeeded
        await until_quiet(till)


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_hosts_may_disagree_about_the_time(postgres_url: str) -> None:
    """On PostgreSQL each host reads the times of the others by its own clock, however wrong that is."""
    wrong = timedelta(minutes=20)
    store = account_store(SQLStore(postgres_url))
    one = StoreChannel(store, utcnow=utcnow)
    other = StoreChannel(store, utcnow=lambda: utcnow() - wrong)
    began = utcnow()
    rows = following(one, "x") | {
        "y": Subscription(
            transaction_id="y",
            follower=other.follower,
            is_new=True,
            tracked_at=began - wrong,
            until=began - wrong + timedelta(seconds=60),
        )
    }
    await turn(one, wants=False, subscriptions={"x": rows["x"]})
    await turn(other, wants=False, subscriptions={"y": rows["y"]})
    for seat, ahead in ((one, timedelta()), (other, wrong)):
        learned = await turn(seat)
        assert sorted(each.transaction_id for each in learned.subscriptions) == ["x", "y"]
        for each in learned.subscriptions:
            assert abs(each.tracked_at + ahead - began) < timedelta(seconds=10)
            assert abs(each.until - each.tracked_at - timedelta(seconds=60)) < timedelta(seconds=1)
        assert not (await turn(seat, wants=False)).holds
    store.database.close()
