"""Payments that begin in one transaction: the look, the place under the rate limit, and the record.

So begin those of an account that this process has made a payment of, while there is a place and a token at hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidCredentials,
    MobileMoneyError,
    OutcomeUnknown,
    RateLimiter,
    RequestTimeout,
    Secret,
    SQLStore,
    StoreError,
)
from mobilemoney_async.calls.tokens import Login
from mobilemoney_async.database import engine, group
from mobilemoney_async.payments.attempts import RecordedAttempts
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.records import PaymentRequest
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import faults
from tests.payments.service import PHONE_NUMBER, World, make_world
from tests.payments.test_group_commit import Gate

pytestmark = pytest.mark.anyio

C2B = "/v1/payment-service/airtel/c2b"


async def create(client: AsyncClient, key: str, amount: int = 1000) -> Acknowledgement:
    """Create a collection."""
    return await client.collections.create(phone_number=PHONE_NUMBER, amount=amount, idempotency_key=key)


async def warm(client: AsyncClient) -> None:
    """Make two payments of the account, by which this process comes to know it."""
    for number in range(2):
        await create(client, f"earlier-{number}", amount=500 + number)


async def refuse(*args: Any, **options: Any) -> Any:
    """Fail as a database does that is away, or locked."""
    raise StoreError("the store failed: away", outcome="not_sent")


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield a list of the transactions that are committed meanwhile, but for PostgreSQL's notifications."""
    commits: list[str] = []
    statements: list[str] = []

    def execute(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    def commit(connection: sa.Connection) -> None:
        if "pg_notify" not in statements[-1]:
            commits.append(statements[-1])

    sa.event.listen(sa.Engine, "before_cursor_execute", execute)
    sa.event.listen(sa.Engine, "commit", commit)
    try:
        yield commits
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", execute)
        sa.event.remove(sa.Engine, "commit", commit)


def before_it_begins(monkeypatch: pytest.MonkeyPatch, hook: Callable[[], object]) -> None:
    """Call a hook once, when the next payment is about to begin at once."""
    real = RecordedAttempts.takes_place

    def takes_place(self: RecordedAttempts) -> bool:
        taken = real(self)
        if taken:
            monkeypatch.setattr(RecordedAttempts, "takes_place", real)
            hook()
        return taken

    monkeypatch.setattr(RecordedAttempts, "takes_place", takes_place)


async def test_a_create_is_two_transactions(store_url: str) -> None:
    """One before it is sent, one after; the first of an account, which is bound to its merchant, has more."""
    world = make_world(store_url)
    async with world.client() as client:
        await warm(client)
        with counted() as commits:
            made = await create(client, "order-1")
    assert len(commits) == 2
    assert world.made[-1] == made.transaction_id
    assert world.states() == ["ACKNOWLEDGED"] * 3
    assert world.happened()[-2:] == ["sent", "acknowledged"]


async def test_its_request_counts_against_the_limit_of_all_processes(sqlite_file_url: str) -> None:
    """Whatever way its place was taken: three processes at their limit send 60 a minute, and none is rejected."""
    world = make_world(sqlite_file_url, rate_limit="both")
    limits = [RateLimiter() for _ in range(3)]
    async with (
        world.client(rate_limiter=limits[0]) as one,
        world.client(rate_limiter=limits[1]) as two,
        world.client(rate_limiter=limits[2]) as three,
    ):
        for client in (one, two, three):
            await create(client, f"first of {id(client)}", amount=400)
        await anyio.sleep(60)
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                for place, client in enumerate((one, two, three)):
                    tasks.start_soon(create, client, f"order-{number}-{place}", 1000 + 3 * number + place)
        took = anyio.current_time() - began
    assert world.sent == len(world.made) == 93
    assert 78 <= took <= 100  # a burst of 10, and then one a second


async def test_a_key_that_was_used_takes_no_place(store_url: str) -> None:
    """A create that is repeated returns its acknowledgement, and uses nothing of the limit."""
    world = make_world(store_url)
    async with world.client(rate_limiter=RateLimiter()) as client:
        await warm(client)
        first = await create(client, "order-1")
        used = client._pipeline.limiter.usage()
        for _ in range(20):
            assert await create(client, "order-1") == first
        with pytest.raises(IdempotencyConflict):
            await create(client, "order-1", amount=2000)
        assert client._pipeline.limiter.usage() == used
    assert world.sent == 3


async def test_a_duplicate_is_found_and_takes_no_place(store_url: str) -> None:
    """An unidentified payment of the same kind, under another key."""
    world = make_world(store_url)
    async with world.client(rate_limiter=RateLimiter()) as client:
        await warm(client)
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await create(client, "order-1")
        used = client._pipeline.limiter.usage()
        with pytest.raises(DuplicateSuspected):
            await create(client, "order-2")
        assert client._pipeline.limiter.usage() == used
    assert world.sent == 3


async def test_without_a_free_place_it_waits_in_line_without_a_record(sqlite_file_url: str) -> None:
    """The record says that a payment is on its way: it is not made seconds before."""
    world = make_world(sqlite_file_url)
    async with world.client(rate_limiter=RateLimiter()) as client:
        await warm(client)
        client._pipeline.limiter.hold(30)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create, client, "order-1")
            await anyio.sleep(20)
            assert world.states() == ["ACKNOWLEDGED"] * 2
        assert world.sent == 3


async def test_a_hold_of_another_process_holds_it(sqlite_file_url: str) -> None:
    world = make_world(sqlite_file_url)
    async with world.client(rate_limiter=RateLimiter()) as one, world.client(rate_limiter=RateLimiter()) as two:
        await warm(one)
        await create(two, "earlier-3", amount=600)
        one._pipeline.limiter.hold(30)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create, one, "order-1")
            await anyio.sleep(1)
            tasks.start_soon(create, two, "order-2", 2000)
            await anyio.sleep(28)
            assert world.sent == 3
        assert world.sent == 5


async def test_a_place_for_later_is_not_taken(sqlite_file_url: str) -> None:
    """A process that does not know yet how much the other has used sends when its place is due, not before."""
    world, sent = make_world(sqlite_file_url), list[float]()
    limits = [RateLimiter(per_minute=60, burst=1) for _ in range(2)]
    async with world.client(rate_limiter=limits[0]) as one, world.client(rate_limiter=limits[1]) as two:
        for number, client in enumerate((one, two)):
            await create(client, f"earlier-{number}", amount=500 + number)
        await anyio.sleep(60)
        world.line.before = lambda request: sent.append(anyio.current_time())
        await create(one, "order-1")
        await anyio.sleep(0.9)
        await create(two, "order-2", amount=2000)
    assert sent[1] - sent[0] >= 1


@pytest.mark.parametrize("is_over", [False, True])
async def test_two_processes_with_one_key_send_it_once(store_url: str, is_over: bool) -> None:
    """Both know the account, and begin at the same moment."""
    world = make_world(store_url)
    async with world.client() as one, world.client() as two:
        await warm(one)
        await create(two, "earlier-3", amount=600)
        answers: list[Acknowledgement] = []

        async def ask(client: AsyncClient) -> None:
            answers.append(await create(client, "order-1"))

        async with anyio.create_task_group() as tasks:
            for client in (one, two):
                tasks.start_soon(ask, client)
                if is_over:
                    await anyio.sleep(10)
    assert answers[0] == answers[1]
    assert world.sent == 4


@pytest.mark.real_time
async def test_another_process_that_is_faster_costs_its_neighbours_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payments share a transaction; the key of one is taken after its look, and the index refuses its row."""
    world, store = make_world(postgres_url), SQLStore(postgres_url)
    groups: list[int] = []
    real_begin, real_run = Journal.begin, group.run_together

    def run_together(pieces: Any, *args: Any, **options: Any) -> Any:
        groups.append(len(pieces))
        return real_run(pieces, *args, **options)

    def begin(self: Journal, request: PaymentRequest, **options: Any) -> Any:
        if options.get("has_looked") and request.key == "order-1":
            monkeypatch.setattr(Journal, "begin", real_begin)
            take_key(postgres_url, "order-1")
        return real_begin(self, request, **options)

    async with world.client(store) as client, world.client(store.for_account("shop-2")) as neighbour:
        for each in (client, neighbour):
            await warm(each)
        monkeypatch.setattr(engine, "run_together", run_together)
        monkeypatch.setattr(Journal, "begin", begin)
        results: dict[str, object] = {}

        async def ask(client: AsyncClient, key: str) -> None:
            try:
                results[key] = await create(client, key)
            except MobileMoneyError as exc:
                results[key] = exc

        gate = Gate()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(account_store(store).database.write, gate.work, joins=("", "")))
            await gate.wait()
            tasks.start_soon(ask, client, "order-1")
            tasks.start_soon(ask, neighbour, "order-2")
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
        assert groups[:2] == [1, 2]  # together
        assert isinstance(results["order-1"], IdempotencyConflict)
        assert isinstance(results["order-2"], Acknowledgement)
    assert world.sent == len(world.made) == 5


def take_key(url: str, key: str) -> None:
    """Make a payment of another kind under a key, as another process does, by a copy of the row `earlier-0`."""
    changed = {"key": key, "amount": "77", "state": "UNKNOWN", "transaction_id": None, "acknowledgement": None}
    statement = sa.text(
        "INSERT INTO mobilemoney_payment_records SELECT (jsonb_populate_record(each, CAST(:changed AS jsonb))).* "
        "FROM mobilemoney_payment_records AS each WHERE key = 'earlier-0' AND account <> 'shop-2'"
    )
    with sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection:
        connection.execute(statement, {"changed": json.dumps(changed)})


class Vault:
    """Source of a token that may be gone.

    Attributes:
        is_away: Whether it is gone.
        is_honest: Whether it says so.
        asked: How often it was asked while the token was gone.
    """

    def __init__(self, token: str, *, is_honest: bool, failure: Exception | None = None) -> None:
        self._token = Secret(token)
        self._failure = InvalidCredentials("no", status_code=401) if failure is None else failure
        self.is_away = False
        self.is_honest = is_honest
        self.asked = 0

    def is_ready(self) -> bool:
        return not (self.is_away and self.is_honest)

    async def token(self, login: Login) -> Secret:
        if self.is_away:
            self.asked += 1
            await anyio.sleep(1)
            raise self._failure
        return self._token

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Do nothing."""


@pytest.mark.parametrize("is_honest", [False, True])
async def test_a_login_that_fails_hides_no_payment(store_url: str, is_honest: bool) -> None:
    """What the store knows of a key is the answer, whether or not there is a token, and as soon as it can be."""
    world = make_world(store_url)
    vault = Vault(world.sandbox.token, is_honest=is_honest)
    async with world.client(auth=vault) as client:
        await warm(client)
        first = await create(client, "order-1")
        vault.is_away = True
        assert await create(client, "order-1") == first
        assert vault.asked == (not is_honest)
        hurried = client.with_options(deadline=0.5)
        assert await create(hurried, "order-1") == first
        with pytest.raises(InvalidCredentials):
            await create(client, "order-2", amount=2000)
    assert world.sent == 3
    assert len(world.states()) == 3


async def known(client: AsyncClient, world: World) -> None:
    """Make the payments `acknowledged`, and `unknown`, of which the service has said nothing."""
    await warm(client)
    await create(client, "acknowledged")
    world.sandbox.script(faults.lost(processed=True), on="c2b")
    with pytest.raises(OutcomeUnknown):
        await create(client, "unknown", amount=3000)


async def require_truth(client: AsyncClient, *, new: type[Exception] | None) -> None:
    """Require that creates say what the store knows of their keys, and that one under a new key fails so, if any."""
    assert (await create(client, "acknowledged")).transaction_id
    with pytest.raises(OutcomeUnknown) as caught:
        await create(client, "unknown", amount=3000)
    assert caught.value.outcome == "unknown"
    with pytest.raises(IdempotencyConflict):
        await create(client, "acknowledged", amount=2000)
    if new is not None:
        with pytest.raises(new):
            await create(client, "new", amount=4000)


@pytest.mark.parametrize("failure", [ConnectionError("vault"), StoreError("away", outcome="not_sent")])
async def test_an_error_of_a_token_source_hides_no_payment(store_url: str, failure: Exception) -> None:
    """It may raise what it likes."""
    world = make_world(store_url)
    vault = Vault(world.sandbox.token, is_honest=False, failure=failure)
    async with world.client(auth=vault) as client:
        await known(client, world)
        vault.is_away = True
        await require_truth(client, new=type(failure))
    assert world.sent == 4


async def test_a_slow_token_source_hides_no_payment(store_url: str) -> None:
    """The deadline comes before the look."""
    world = make_world(store_url)
    vault = Vault(world.sandbox.token, is_honest=False)
    async with world.client(auth=vault) as client:
        await known(client, world)
        vault.is_away = True
        await require_truth(client.with_options(deadline=0.5), new=RequestTimeout)
    assert world.sent == 4


async def test_a_store_that_cannot_be_written_hides_no_payment(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite another program may hold the only lock for writing."""
    world = make_world(store_url)
    async with world.client() as client:
        await known(client, world)
        assert client._store is not None

        with monkeypatch.context() as patch:
            patch.setattr(client._store.database, "write", refuse)
            await require_truth(client, new=StoreError)
    assert world.sent == 4


@pytest.mark.parametrize("seconds", [0.6, 0.95, 3.0])
async def test_a_slow_store_hides_no_payment(store_url: str, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The deadline comes during its transactions, before the look or after it."""
    world = make_world(store_url)
    async with world.client() as client:
        await known(client, world)
        assert client._store is not None
        database = client._store.database
        for name in ("read", "write"):
            monkeypatch.setattr(database, name, slowly(getattr(database, name), seconds))
        await require_truth(client.with_options(deadline=1.0), new=RequestTimeout if seconds > 1 else None)
        monkeypatch.undo()
    assert world.sent == 4


def slowly(real: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return a function that takes so many seconds more, and is not cancelled meanwhile, as a transaction is not."""

    async def call(*args: Any, **options: Any) -> Any:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(seconds)
            return await real(*args, **options)

    return call


@pytest.mark.parametrize("deadline", [0.5, None])
async def test_a_payment_that_another_process_sends_is_waited_for(store_url: str, deadline: float | None) -> None:
    """Until the deadline, and then its result is unknown."""
    world = make_world(store_url)
    async with world.client() as one, world.client() as two:
        await warm(one)
        await create(two, "earlier-3", amount=600)
        answers: list[object] = []

        async def ask(client: AsyncClient) -> None:
            try:
                answers.append(await create(client, "order-1"))
            except MobileMoneyError as exc:
                answers.append((type(exc), exc.outcome))

        async def wait(request: httpx.Request) -> None:
            await anyio.sleep(2)

        world.line.before = wait
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, one)
            await anyio.sleep(1)
            tasks.start_soon(ask, two if deadline is None else two.with_options(deadline=deadline))
    if deadline is None:
        assert answers[0] == answers[1]
    else:
        assert answers[0] == (OutcomeUnknown, "unknown")
    assert world.sent == 4


async def test_a_result_that_was_not_recorded_yet_is_written_first(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was away when the answer came: the next payment finds it back, and writes the answer."""
    world = make_world(store_url)
    async with world.client() as client:
        await warm(client)
        assert client._store is not None
        database = client._store.database

        with monkeypatch.context() as patch:
            world.line.before = lambda request: patch.setattr(database, "write", refuse)
            with pytest.raises(OutcomeUnknown):
                await create(client, "order-1")
            world.line.before = None
        assert world.states() == ["ACKNOWLEDGED", "ACKNOWLEDGED", "SENDING"]
        await create(client, "order-2", amount=2000)
        assert world.states() == ["ACKNOWLEDGED"] * 4


async def test_a_store_that_is_behind_is_noticed_before_it_pays(store_url: str) -> None:
    """Its newest payment is gone, as after a failover: the look is a part of the transaction that begins the next."""
    world = make_world(store_url)
    async with world.client() as client:
        await warm(client)
        await world.advance(5)
        await create(client, "order-1")
        with sa.create_engine(store_url, poolclass=sa.pool.NullPool).begin() as connection:
            for table, column in (("payment_records", "key"), ("payment_history", "key"), ("changes", "name")):
                connection.exec_driver_sql(f"DELETE FROM mobilemoney_{table} WHERE {column} = 'order-1'")
        with pytest.raises((StoreError, DuplicateSuspected)):
            await create(client, "order-1")
    assert world.sent == 3


async def test_a_payment_after_a_quiet_hour_is_compared_first(store_url: str) -> None:
    world = make_world(store_url)
    async with world.client() as client:
        await warm(client)
        world.line.paths.clear()
        await create(client, "order-1")
        assert world.line.paths == [C2B]
        await world.advance(timedelta(hours=2).total_seconds())
        await create(client, "order-2", amount=2000)
        assert world.line.paths[-1] == C2B
        assert len(world.line.paths) > 2


async def test_cancelled_before_its_transaction_it_leaves_nothing(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a record nor a place that others wait for."""
    world = make_world(store_url)
    async with world.client() as client:
        await warm(client)
        with anyio.CancelScope() as scope:
            before_it_begins(monkeypatch, scope.cancel)
            await create(client, "order-1")
        assert scope.cancel_called
        assert world.sent == 2
        await create(client, "order-1")
        with counted() as commits:
            await create(client, "order-2", amount=2000)
        assert len(commits) == 2
    assert world.states() == ["ACKNOWLEDGED"] * 4


async def test_a_database_that_fails_stops_it_before_the_socket(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(store_url)
    async with world.client() as client:
        await warm(client)
        assert client._store is not None
        database = client._store.database

        with monkeypatch.context() as patch:
            before_it_begins(monkeypatch, partial(patch.setattr, database, "write", refuse))
            with pytest.raises(StoreError):
                await create(client, "order-1")
        assert world.sent == 2
        await create(client, "order-1")
    assert world.sent == 3
