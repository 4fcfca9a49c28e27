"""Creates that are cancelled, too slow, or left by their database: at every stage the record says the truth."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Literal

import anyio
import anyio.from_thread
import httpx
import pytest

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    PermissionDenied,
    RequestTimeout,
    StoreError,
    TransportError,
)
from mobilemoney_async.payments.creates.attempts import RecordedAttempts
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import faults
from tests.payments.service import ORDER, Outage, Vault, World, get, make_world, on_sqlite

Loop = Literal["asyncio", "trio"]


async def create(client: AsyncClient, key: str = "order-1") -> Acknowledgement:
    """Create a collection."""
    return await client.collections.create(**ORDER, idempotency_key=key)


class Stopper:
    """Cancels a create from wherever it is called: by a scope of anyio's, or by asyncio's own means."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._cancel: Callable[[], object] | None = None

    def __call__(self) -> None:
        assert self._cancel is not None
        self._cancel()

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run the work that is to be cancelled."""
        if self._how == "scope":
            with anyio.CancelScope() as scope:
                self._cancel = scope.cancel
                await work()
            assert scope.cancel_called
            return

        async def body() -> None:
            await work()

        task = asyncio.create_task(body())
        self._cancel = task.cancel
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture(params=["asyncio scope", "asyncio task", "trio scope"])
def stop(request: pytest.FixtureRequest) -> Stopper:
    """Cancels, on each loop in each way that it knows."""
    return Stopper(request.param.partition(" ")[2])


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest, stop: Stopper) -> tuple[str, dict[str, Any]]:
    """Return the loop that goes with the way to cancel, in virtual time."""
    from mobilemoney_async.testing import virtual_backend

    name: Loop = "trio" if request.node.callspec.params["stop"].startswith("trio") else "asyncio"
    return virtual_backend(name)


def stop_inside(monkeypatch: pytest.MonkeyPatch, name: str, stop: Stopper) -> None:
    """Stop in the middle of the next transaction that a method of `Journal` is part of."""
    real = getattr(Journal, name)

    def work(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Journal, name, real)
        done = real(*args, **options)
        anyio.from_thread.run_sync(stop)
        return done

    monkeypatch.setattr(Journal, name, work)


async def resume(world: World, key: str = "order-1") -> None:
    """Use the key again, in a new process, and see that there is one payment."""
    async with world.client() as client:
        answer = await create(client, key)
    assert world.made == [answer.transaction_id] == world.ids()


async def bind(world: World, **options: Any) -> None:
    """Bind the account to its merchant, as an earlier payment does: the writes that are counted are the payment's."""
    async with world.client(**options) as client:
        await client.payments.rebind(note="Asha")


def never(number: int) -> bool:
    """Let no write fail."""
    return False


@asynccontextmanager
async def failing(
    url: str, fails: Callable[[int], bool] = never, **options: Any
) -> AsyncIterator[tuple[World, Outage, AsyncClient]]:
    """A client of a bound account, with a database that may fail."""
    world = make_world(url)
    await bind(world)
    store = world.store()
    outage = Outage(account_store(store).database, fails=fails)
    async with world.client(store, **options) as client:
        yield world, outage, client


async def test_cancelled_while_it_waits_for_the_limiter(
    sqlite_file_url: str, stop: Stopper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create that is cancelled before its turn has left nothing: neither a record nor a request."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        limiter = client._pipeline.limiter
        acquire = limiter.acquire
        limiter.hold(3600)

        async def ask(*args: Any, **options: Any) -> None:
            stop()
            await acquire(*args, **options)

        monkeypatch.setattr(limiter, "acquire", ask)
        await stop.run(lambda: create(client))
        assert world.sent == 0
        assert await client.payments.list() == []
    await resume(world)


@on_sqlite
async def test_cancelled_while_it_waits_for_its_duplicate(world: World, client: AsyncClient, stop: Stopper) -> None:
    """A create that is cancelled while its duplicate is on its way leaves nothing, and the duplicate goes on."""

    async def meanwhile(request: httpx.Request) -> None:
        async def wait_and_stop() -> None:
            await anyio.sleep(1)
            stop()

        async with anyio.create_task_group() as group:
            group.start_soon(stop.run, lambda: create(client, "order-2"))
            group.start_soon(wait_and_stop)

    world.line.before = meanwhile
    await create(client)
    world.line.before = None
    assert world.states() == ["ACKNOWLEDGED"]
    await create(client, "order-2")
    assert world.sent == 2


@pytest.mark.parametrize(
    ("name", "is_lost", "state", "sent"),
    [("record", False, "NOT_SENT", 0), ("save", True, "UNKNOWN", 1), ("save", False, "ACKNOWLEDGED", 1)],
)
async def test_cancelled_while_it_is_being_recorded(
    world: World, stop: Stopper, monkeypatch: pytest.MonkeyPatch, *, name: str, is_lost: bool, state: str, sent: int
) -> None:
    """A create that is cancelled while its start, its loss or its answer is being recorded has recorded it."""
    if is_lost:
        world.sandbox.script(faults.lost(processed=True), on="c2b")
    async with world.client() as client:
        stop_inside(monkeypatch, name, stop)

        async def work() -> None:
            with pytest.raises(OutcomeUnknown) if is_lost else nullcontext():
                await create(client)

        await stop.run(work)
        assert (world.states(), world.sent) == ([state], sent)
    await resume(world)
    assert world.sent == 1


async def test_cancelled_after_its_payment_was_queued(
    world: World, stop: Stopper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create that is cancelled puts a payment back which another process has queued while it waited."""
    async with world.client() as client, world.client() as other:
        stop_inside(monkeypatch, "record", stop)
        await stop.run(lambda: create(client))
        acquire = client._pipeline.limiter.acquire

        async def ask(*args: Any, **options: Any) -> None:
            await other.payments.enqueue(type="collection", **ORDER, idempotency_key="order-1")
            stop_inside(monkeypatch, "record", stop)
            await acquire(*args, **options)

        monkeypatch.setattr(client._pipeline.limiter, "acquire", ask)
        await stop.run(lambda: create(client))
    assert (world.states(), world.sent) == (["QUEUED"], 0)
    await resume(world)


@pytest.mark.parametrize("is_made", [False, True])
async def test_cancelled_while_it_waits_for_the_answer(world: World, stop: Stopper, is_made: bool) -> None:
    """A create that is cancelled while the service works, or on its way there, is unknown, and found if it exists."""

    async def hang(request: httpx.Request) -> None:
        world.line.before = world.line.after = None
        stop()
        await anyio.sleep_forever()

    setattr(world.line, "after" if is_made else "before", hang)
    async with world.client() as client:
        await stop.run(lambda: create(client))
        assert world.states() == ["UNKNOWN"]
        record = await get(client)
        assert record.error == "cancelled"
        assert len(world.made) == is_made
    if is_made:
        await resume(world)
        assert world.sent == 1


async def test_cancelled_while_the_database_is_away(sqlite_file_url: str, stop: Stopper) -> None:
    """A create that is cancelled while it waits for the database to record its answer has recorded it in the end."""

    def fail(number: int) -> bool:
        if number == 2:
            stop()
        return number == 2

    async with failing(sqlite_file_url, fail) as (world, _, client):
        await stop.run(lambda: create(client))
    await resume(world)
    assert world.sent == 1


# Deadlines


async def _expect(client: AsyncClient, error: type[MobileMoneyError], outcome: str, key: str = "order-1") -> None:
    with pytest.raises(error) as caught:
        await create(client, key)
    assert (caught.value.outcome, caught.value.idempotency_key) == (outcome, key)


@pytest.mark.parametrize("stop", ["asyncio scope", "trio scope"], indirect=True)
class TestDeadline:
    """The deadline of a call holds at every stage, and its error says whether something may have been sent."""

    async def test_while_it_waits_for_the_limiter(self, sqlite_file_url: str) -> None:
        world = make_world(sqlite_file_url)
        async with world.client(deadline=2.0) as client:
            client._pipeline.limiter.hold(3600)
            began = anyio.current_time()
            with pytest.raises(RequestTimeout) as caught:
                await create(client)
            assert caught.value.outcome == "not_sent" and "reconcile" not in str(caught.value)
            assert anyio.current_time() == pytest.approx(began + 2)
            assert world.states() == []

    async def test_while_another_process_makes_the_payment(
        self, sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call returns what exists by then."""
        world = make_world(sqlite_file_url)
        async with world.client(deadline=2.0) as hasty, world.client() as client, anyio.create_task_group() as group:
            monkeypatch.setattr(hasty._pipeline.limiter, "acquire", lambda *_, **__: anyio.sleep(3600))

            async def meanwhile() -> None:
                await anyio.sleep(1)
                await create(client)

            group.start_soon(meanwhile)
            assert (await create(hasty)).transaction_id == world.made[0]
        assert world.sent == 1

    async def test_while_the_store_is_away_and_nothing_was_sent(self, sqlite_file_url: str) -> None:
        async with failing(sqlite_file_url, deadline=2.0) as (world, outage, client):
            client._pipeline.limiter.hold(3600)

            async def go_away() -> None:
                await anyio.sleep(1)
                outage.away = True

            async with anyio.create_task_group() as group:
                group.start_soon(go_away)
                await _expect(client, StoreError, "not_sent")
            outage.away = False
            assert world.states() == []

    @pytest.mark.parametrize("is_here", [True, False])
    @pytest.mark.parametrize("key", ["order-1", "order-2"])
    async def test_while_the_same_payment_is_on_its_way(self, sqlite_file_url: str, is_here: bool, key: str) -> None:
        """Of the same key it would be wrong to say that nothing was sent."""
        world = make_world(sqlite_file_url)
        store = world.store()
        async with world.client(store) as client, world.client(store if is_here else None, deadline=2.0) as hasty:

            async def meanwhile(request: httpx.Request) -> None:
                world.line.before = None
                async with anyio.create_task_group() as group:
                    if key == "order-1":
                        group.start_soon(_expect, hasty, OutcomeUnknown, "unknown")
                    else:
                        error = RequestTimeout if is_here else DuplicateSuspected
                        group.start_soon(_expect, hasty, error, "not_sent", key)

            world.line.before = meanwhile
            await create(client)
            assert (await create(hasty)).transaction_id == world.made[0]
        assert world.sent == 1

    async def test_while_it_waits_for_the_answer(self, sqlite_file_url: str) -> None:
        world = make_world(sqlite_file_url)
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        async with world.client(deadline=2.0) as client:
            await _expect(client, OutcomeUnknown, "unknown")
            assert world.states() == ["UNKNOWN"]
        await resume(world)
        assert world.sent == 1

    async def test_between_two_attempts(self, sqlite_file_url: str) -> None:
        world = make_world(sqlite_file_url)
        world.sandbox.script(faults.rate_limited(60), on="c2b")
        async with world.client(deadline=2.0) as client:
            with pytest.raises(RequestTimeout) as caught:
                await create(client)
            assert caught.value.outcome in {"not_sent", "refused"}
            assert world.states() == ["REFUSED"]

    async def test_while_it_waits_for_the_answer_and_the_store_is_away(self, sqlite_file_url: str) -> None:
        """The error is of the payment, which may have been made, not of the store."""
        async with failing(sqlite_file_url, deadline=2.0) as (world, outage, client):

            def go_away(request: httpx.Request) -> None:
                outage.away = True

            world.line.before = go_away
            world.sandbox.script(faults.lost(processed=True), on="c2b")
            await _expect(client, OutcomeUnknown, "unknown")
            outage.away = False

    async def test_while_it_finds_out(self, sqlite_file_url: str) -> None:
        world = make_world(sqlite_file_url)
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        world.sandbox.script(faults.latency(4), on="transactions")
        async with world.client() as client:
            await _expect(client, OutcomeUnknown, "unknown")
            await _expect(client.with_options(deadline=2.0), OutcomeUnknown, "unknown")
        await resume(world)

    async def test_while_its_answer_is_being_recorded(self, sqlite_file_url: str) -> None:
        async with failing(sqlite_file_url, deadline=1.5) as (world, outage, client):
            outage.slow = 1.0
            answer = await create(client)
        assert world.ids() == [answer.transaction_id]

    async def test_while_it_is_being_recorded(self, sqlite_file_url: str) -> None:
        async with failing(sqlite_file_url, deadline=1.5) as (world, outage, client):
            outage.slow = 3.0
            await _expect(client, RequestTimeout, "not_sent")
        assert world.sent == 0

    async def test_after_another_process_has_taken_the_key(self, sqlite_file_url: str) -> None:
        """While it waits for a token, the payment is sent elsewhere, and its answer is lost: it may have been made."""
        world = make_world(sqlite_file_url)
        store, vault = world.store(), Vault(world.sandbox.token)
        await bind(world)
        outage = Outage(account_store(store).database)
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        async with world.client(timeout=1.0) as client, world.client(store, auth=vault, deadline=5.0) as hasty:
            await hasty.payments.rebind(note="Asha")
            vault.seconds = 2.0  # asked for twice, before and after its place in line
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_expect, hasty, OutcomeUnknown, "unknown")
                await anyio.sleep(1)
                await _expect(client, OutcomeUnknown, "unknown")
                outage.slow_reads = 3.0  # so that the next look ends after the deadline
        assert world.sent == 1


@pytest.mark.parametrize("stop", ["asyncio scope", "trio scope"], indirect=True)
class TestKnown:
    """What the store knows of a key is the answer, whatever fails or takes too long."""

    async def _prepare(self, world: World, client: AsyncClient) -> None:
        await create(client, "acknowledged")
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**{**ORDER, "amount": 2000}, idempotency_key="unknown")

    async def _require(self, client: AsyncClient) -> None:
        assert (await create(client, "acknowledged")).transaction_id
        with pytest.raises(IdempotencyConflict):
            await client.collections.create(**{**ORDER, "amount": 3000}, idempotency_key="acknowledged")
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**{**ORDER, "amount": 2000}, idempotency_key="unknown")

    @pytest.mark.parametrize(
        ("failure", "deadline", "new"),
        [
            (ConnectionError("vault"), None, TransportError),
            (StoreError("away", outcome="not_sent"), None, StoreError),
            (ConnectionError("vault"), 0.5, RequestTimeout),
        ],
    )
    async def test_without_a_token(
        self, sqlite_file_url: str, failure: Exception, deadline: float | None, new: type[Exception]
    ) -> None:
        world = make_world(sqlite_file_url)
        vault = Vault(world.sandbox.token)
        async with world.client(auth=vault) as client:
            await self._prepare(world, client)
            vault.seconds, vault.failure = 1.0, failure
            hasty = client.with_options(deadline=deadline)
            await self._require(hasty)
            with pytest.raises(new):
                await create(hasty, "new")
        assert world.sent == 2

    @pytest.mark.parametrize("seconds", [0.6, 0.95, 3.0])
    async def test_by_a_slow_store(self, sqlite_file_url: str, seconds: float) -> None:
        """The deadline comes during its first transaction, or a later one."""
        world = make_world(sqlite_file_url)
        store = world.store()
        async with world.client(store) as client:
            await self._prepare(world, client)
            outage = Outage(account_store(store).database)
            outage.slow = outage.slow_reads = seconds
            await self._require(client.with_options(deadline=1.0))
        assert world.sent == 2


# The database away


@pytest.mark.parametrize("stop", ["asyncio scope", "trio scope"], indirect=True)
class TestOutage:
    """While the database is away nothing is sent, and nothing that was sent is lost."""

    async def test_before_it_is_recorded(self, store_url: str) -> None:
        """Nothing is sent that could not be recorded."""
        async with failing(store_url) as (world, outage, client):
            outage.away = True
            await _expect(client, StoreError, "not_sent")
            outage.away = False
            outage.fails = lambda number: number == 1
            await _expect(client, StoreError, "not_sent")
            assert world.sent == 0
            await create(client)
        assert world.sent == 1

    async def test_for_a_moment_after_the_answer(self, sqlite_file_url: str) -> None:
        """A moment's failure to record an answer is waited out; the caller does not notice."""
        async with failing(sqlite_file_url, lambda number: number in {2, 3}) as (world, _, client):
            answer = await create(client)
        assert world.ids() == [answer.transaction_id]

    async def test_after_the_answer(self, store_url: str) -> None:
        """An answer that cannot be recorded is kept: the same key gives it as soon as the database is back."""
        async with failing(store_url, lambda number: number >= 2) as (world, outage, client):
            with pytest.raises(OutcomeUnknown) as caught:
                await create(client)
            assert isinstance(caught.value.__cause__, StoreError)
            assert world.states() == ["SENDING"]
            with pytest.raises(StoreError):
                await create(client)
            with pytest.raises(StoreError):
                await create(client, "order-2")  # its duplicate
            outage.fails = never
            answer = await create(client)
            assert world.made == [answer.transaction_id] == world.ids()
            await create(client, "order-2")
        assert world.happened()[:2] == ["sent", "acknowledged"]
        assert world.sent == 2

    async def test_behind_a_lock_after_the_answer(self, sqlite_file_url: str) -> None:
        """No caller waits again and again for a lock, ten seconds each time; the answer is kept as above."""
        async with failing(sqlite_file_url, lambda number: number >= 2) as (world, outage, client):

            async def lock(request: httpx.Request) -> None:
                outage.slow = 10

            world.line.after = lock
            began = anyio.current_time()
            with pytest.raises(OutcomeUnknown):
                await create(client)
            assert anyio.current_time() - began < 15
            outage.slow, outage.fails = 0, never
            assert world.made == [(await create(client)).transaction_id]

    async def test_after_the_loss(self, sqlite_file_url: str) -> None:
        """A loss that cannot be recorded is kept, and is found out as soon as the database is back."""
        async with failing(sqlite_file_url, lambda number: number >= 2) as (world, outage, client):
            world.sandbox.script(faults.lost(processed=True), on="c2b")
            await _expect(client, OutcomeUnknown, "unknown")
            assert world.states() == ["SENDING"]
            outage.fails = never
            with pytest.raises(DuplicateSuspected):
                await create(client, "order-2")
            assert world.states() == ["UNKNOWN"]
            await create(client)
        assert world.ids() == world.made
        assert world.sent == 1

    async def test_after_the_loss_and_before_a_decision(self, sqlite_file_url: str) -> None:
        """Someone can say which transaction it is as soon as the database is back."""
        async with failing(sqlite_file_url, lambda number: number >= 2) as (world, outage, client):
            world.sandbox.script(faults.lost(processed=True), on="c2b")
            await _expect(client, OutcomeUnknown, "unknown")
            outage.fails = never
            found = await client.payments.identify("order-1", world.made[0], note="Asha: on the dashboard")
        assert [found.transaction_id] == world.made

    async def test_after_a_refusal(self, sqlite_file_url: str) -> None:
        """A refusal that cannot be recorded is raised as it is, and the key may be used again later."""
        world = make_world(sqlite_file_url)
        token = world.sandbox.issue_token(["read"])
        await bind(world, auth=token)
        store = world.store()
        outage = Outage(account_store(store).database, fails=lambda number: number >= 2)
        async with world.client(store, auth=token) as client:
            with pytest.raises(PermissionDenied):
                await create(client)
            assert world.states() == ["SENDING"]
            outage.fails = never
            async with world.client(store) as allowed:
                await create(allowed)
        assert world.happened() == ["sent", "refused", "sent", "acknowledged"]

    async def test_after_a_refusal_of_a_queued_payment(self, sqlite_file_url: str) -> None:
        """One that goes back into the queue can be taken out of it as soon as the database is back."""
        world = make_world(sqlite_file_url)
        token = world.sandbox.issue_token(["read"])
        await bind(world, auth=token)
        store = world.store()
        outage = Outage(account_store(store).database)

        async def fail(request: httpx.Request) -> None:
            outage.fails = lambda number: True

        world.line.after = fail
        async with world.client(store, auth=token) as client:
            await client.payments.enqueue(type="collection", **ORDER, idempotency_key="order-1")
            async with client.dispatcher():
                await anyio.sleep(5)
            assert world.states() == ["SENDING"]
            outage.fails = never
            cancelled = await client.payments.cancel("order-1", note="Asha: no longer needed")
            assert cancelled.state is PaymentState.CANCELLED

    async def test_between_two_attempts(self, sqlite_file_url: str) -> None:
        """A refusal that is not recorded yet does not keep the next attempt from being recorded properly."""
        async with failing(sqlite_file_url, lambda number: number in {2, 3, 4, 5}) as (world, _, client):
            world.sandbox.script(faults.rate_limited(1), on="c2b")
            answer = await create(client)
        assert world.made == [answer.transaction_id] == world.ids()
        assert world.happened() == ["sent", "refused", "sent", "acknowledged"]

    async def test_until_the_client_is_closed(self, sqlite_file_url: str) -> None:
        """The write-behind buffer is written when the client is closed."""
        async with failing(sqlite_file_url, lambda number: number >= 2) as (world, outage, client):
            with pytest.raises(OutcomeUnknown):
                await create(client)
            outage.fails = never
        assert world.ids() == world.made

    async def test_for_ever(self, sqlite_file_url: str, caplog: pytest.LogCaptureFixture) -> None:
        """A result that is never written is found by the next process; the log names its key and no phone number."""
        async with failing(sqlite_file_url, lambda number: number >= 2) as (world, _, client):
            with pytest.raises(OutcomeUnknown):
                await create(client)
        assert "order-1" in caplog.text
        assert "681234501" not in caplog.text
        await world.advance(11)
        await resume(world)
        assert world.sent == 1

    async def test_reconcile_waits_for_nobody(self, sqlite_file_url: str) -> None:
        """Whatever is asked of the store raises `StoreError` too; the buffered result is found when it is back."""
        async with failing(sqlite_file_url, lambda number: number >= 2) as (world, outage, client):
            with pytest.raises(OutcomeUnknown):
                await create(client)
            outage.away = True
            payments = client.payments
            confirm = partial(payments.confirm_absent, "k", note="n")
            for call in (payments.reconcile, payments.list, payments.unresolved, partial(payments.get, "k"), confirm):
                with pytest.raises(StoreError):
                    await call()
            outage.away, outage.fails = False, never
            assert await client.payments.reconcile() == []
        assert world.ids() == world.made

    async def test_a_commit_whose_answer_is_lost(self, sqlite_file_url: str) -> None:
        """A payment whose record was committed is sent, though the database reported a failure."""
        async with failing(sqlite_file_url) as (world, outage, client):
            outage.lies = lambda number: number == 1
            answer = await create(client)
        assert world.made == [answer.transaction_id] == world.ids()
        assert world.happened() == ["sent", "acknowledged"]

    @pytest.mark.parametrize("then", ["away", "lies again"])
    async def test_a_commit_whose_answer_is_lost_with_the_database(self, sqlite_file_url: str, then: str) -> None:
        """Its record is soon stale and resolved, and nothing is sent."""
        fails = never if then == "lies again" else lambda number: number == 2
        async with failing(sqlite_file_url, fails) as (world, outage, client):
            outage.lies = lambda number: number <= 2
            await _expect(client, StoreError, "not_sent")
            assert world.states() == ["SENDING"]
            await world.advance(11)
            await _expect(client, OutcomeUnknown, "unknown")
        assert world.sent == 0

    async def test_an_answer_whose_commit_was_not_confirmed(self, sqlite_file_url: str) -> None:
        """An answer that was recorded though the database said no is recorded once."""
        async with failing(sqlite_file_url) as (world, outage, client):
            outage.lies = lambda number: number == 2
            answer = await create(client)
        assert world.ids() == [answer.transaction_id]
        assert world.happened() == ["sent", "acknowledged"]


async def test_cancelled_while_it_recognises_its_record(
    sqlite_file_url: str, stop: Stopper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit without an answer too, a create that was cancelled is not sent, and its record says so."""
    async with failing(sqlite_file_url) as (world, outage, client):

        def lies(number: int) -> bool:
            if number == 2:
                stop_inside(monkeypatch, "row", stop)
            return number == 1

        outage.lies = lies
        await stop.run(lambda: create(client))
        assert world.states() == ["NOT_SENT"]
        assert world.sent == 0
    await resume(world)


@pytest.mark.parametrize("stop", ["asyncio scope", "trio scope"], indirect=True)
async def test_closed_while_it_is_being_recorded(world: World, stop: Stopper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends nothing after `aclose`, over connections that nobody would close, and the record says so."""
    sending = RecordedAttempts.sending

    async def close_meanwhile(recorder: RecordedAttempts, lives: float) -> float:
        patience = await sending(recorder, lives)
        await client.aclose()
        return patience

    monkeypatch.setattr(RecordedAttempts, "sending", close_meanwhile)
    async with world.client() as client:
        with pytest.raises(InvalidRequest, match="the client is closed"):
            await create(client)
    assert not world.made
    async with world.client() as other:
        record = await get(other)
        assert record.state is PaymentState.NOT_SENT
