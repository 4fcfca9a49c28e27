"""Writes of several tasks in one transaction: each as if it were alone, at the cost of one commit."""

import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa
from anyio import to_thread
from anyio.lowlevel import checkpoint

from mobilemoney_async import AsyncClient, MobileMoneyError, PaymentState, RateLimiter, SQLStore, StoreError
from mobilemoney_async.database import engine, prepared
from mobilemoney_async.database.column_types import UTCDateTime
from mobilemoney_async.database.connections import GROUP_THREADS, THREADS
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.group import MOST_TOGETHER
from mobilemoney_async.database.prepared import run_later
from mobilemoney_async.database.schema import accounts, insert_missing, leases, payments
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sharing.limiter import SharedLimiter
from tests.support.fakes import BASE_URL
from tests.support.patience import PATIENCE, until
from tests.support.second_service import TOKEN, SecondService

pytestmark = pytest.mark.real_time

_INSERT = sa.text("INSERT INTO group_marks VALUES (:number)")
Work = Callable[[sa.Connection], int]


def run(statement: str, connection: sa.Connection) -> None:
    """Execute a statement."""
    connection.execute(sa.text(statement))


async def make_marks(url: str) -> Database:
    """Return a database with a table of numbers, each of which may be there once."""
    database = Database(url)
    for statement in ("DROP TABLE IF EXISTS group_marks", "CREATE TABLE group_marks (number INTEGER PRIMARY KEY)"):
        await database.write(partial(run, statement))
    return database


@contextmanager
def heard(statements: list[str]) -> Iterator[None]:
    """Listen to the statements of all engines."""

    def note(connection: object, cursor: object, statement: str, *more: object) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """That database."""
    made = await make_marks(store_url)
    yield made
    made.close()


@asynccontextmanager
async def behind_a_gate(database: Database) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Let work of tasks gather while an earlier one runs; at the end of the block all of it is awaited."""
    gate = Gate()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(database.write, gate.work, share_key=("account", "00000")))
            await gate.wait()
            yield tasks
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()


def mark(number: int) -> Work:
    """Return work that inserts a number, and returns it."""

    def work(connection: sa.Connection) -> int:
        connection.execute(_INSERT, {"number": number})
        return number

    return work


async def marks(database: Database) -> list[int]:
    """Return the numbers that are there."""
    return await database.read(
        lambda each: list(each.execute(sa.text("SELECT number FROM group_marks ORDER BY number")).scalars())
    )


@contextmanager
def before_commits(hook: Callable[[], None]) -> Iterator[None]:
    """Call a hook before each commit."""

    def call(connection: sa.Connection) -> None:
        hook()

    sa.event.listen(sa.Engine, "commit", call)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "commit", call)


class Gate:
    """Work that waits in its thread, so that other work gathers behind it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def work(self, connection: sa.Connection) -> int:
        """Wait until the gate is opened."""
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        return 0

    async def wait(self) -> None:
        """Wait until the work has begun."""
        await to_thread.run_sync(self.entered.wait, 60)


async def note(found: dict[int, Any], number: int, work: Awaitable[object]) -> None:
    """Note the result of a work, or its error."""
    try:
        found[number] = await work
    except MobileMoneyError as exc:
        found[number] = exc


async def write_behind_a_gate(database: Database, works: dict[int, Work]) -> dict[int, Any]:
    """Run works that gather while an earlier one runs; return the result or error of each."""
    found: dict[int, Any] = {}

    async with behind_a_gate(database) as tasks:
        for number in random.sample(sorted(works), len(works)):
            work = database.write(works[number], share_key=("account", f"{number:05}"))
            tasks.start_soon(note, found, number, work)
    return found


async def test_writes_that_wait_together_are_committed_together(database: Database) -> None:
    """Each returns its own result once that is committed, and they run in the order of their names."""
    order, commits = list[int](), list[int]()

    def noted(number: int) -> Work:
        def work(connection: sa.Connection) -> int:
            order.append(number)
            return mark(number)(connection)

        return work

    numbers = range(1, MOST_TOGETHER + 1)
    with before_commits(lambda: commits.append(1)):
        found = await write_behind_a_gate(database, {number: noted(number) for number in numbers})
    assert found == {number: number for number in numbers}
    assert order == list(numbers)
    assert len(commits) == 2
    assert await marks(database) == list(numbers)


async def test_what_ends_a_payment_goes_before_what_begins_one(database: Database) -> None:
    """In a busy process: else many would be begun, and none would learn its result in time."""
    order: list[int] = []

    async def write(number: int, *, high_priority: bool) -> None:
        def work(connection: sa.Connection) -> None:
            order.append(number)

        await database.write(work, share_key=("account", f"{number:05}"), high_priority=high_priority)

    async with behind_a_gate(database) as tasks:
        for number in range(2 * MOST_TOGETHER + 1):
            tasks.start_soon(partial(write, number, high_priority=number == 2 * MOST_TOGETHER))
    assert order.index(2 * MOST_TOGETHER) == MOST_TOGETHER - 1
    assert sorted(order) == list(range(2 * MOST_TOGETHER + 1))


async def test_work_that_has_waited_for_long_is_done_with_what_came_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is behind goes on: refused, all of the work would only come again."""
    found: list[int] = []

    async def write(number: int) -> None:
        found.append(await database.write(mark(number), share_key=("account", str(number))))

    async with behind_a_gate(database) as tasks:
        monkeypatch.setattr(engine, "_QUEUE", -1)
        tasks.start_soon(write, 1)
        await anyio.wait_all_tasks_blocked()
        monkeypatch.undo()
        tasks.start_soon(write, 2)
    assert sorted(found) == await marks(database) == [1, 2]


async def test_groups_do_not_wait_behind_other_work(database: Database) -> None:
    """Hundreds of accounts may have the database look something up: a payment is recorded at once."""
    gates = [Gate() for _ in range(THREADS - GROUP_THREADS)]

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(database.read, gate.work)
            for gate in gates:
                await gate.wait()
            assert await database.write(mark(1), share_key=("account", "")) == 1
            for gate in gates:
                gate.opened.set()
    assert await marks(database) == [1]


async def test_the_limiters_of_many_accounts_share_transactions(database: Database) -> None:
    """Each account has a budget of its own, and their reservations come together."""
    count, commits = 20, list[int]()
    limiters = [SharedLimiter(RateLimiter(), database, f"shop-{number}") for number in range(count)]
    with before_commits(lambda: commits.append(1)), anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for limiter in limiters:
                tasks.start_soon(limiter.acquire)
    assert [limiter.usage().granted for limiter in limiters] == [1] * count
    assert len(commits) <= count / 2


async def test_work_reads_what_others_of_its_account_have_left_for_later(database: Database) -> None:
    """Nobody's change is lost, though those of several accounts are executed together."""
    await database.write(mark(0))

    def count_up(connection: sa.Connection) -> int:
        number: int = connection.execute(sa.text("SELECT number FROM group_marks")).scalar_one()
        marked = sa.table("group_marks", sa.column("number"))
        run_later(connection, marked.update().values(number=sa.bindparam("next")), {"next": number + 1})
        return number

    found = await write_behind_a_gate(database, dict.fromkeys(range(1, 9), count_up))
    assert sorted(found.values()) == list(range(8))
    assert await marks(database) == [8]


@pytest.mark.parametrize("table", [payments, leases, accounts], ids=str)
async def test_a_row_is_the_same_past_sqlalchemy(database: Database, table: sa.Table) -> None:
    """Its defaults, and what each type makes of a value; also where somebody listens to the statements."""
    kinds: dict[type, Any] = {UTCDateTime: datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC), sa.Integer: 7}
    needed = [each for each in table.c if not each.nullable and each.default is None]
    given = {each.name: kinds.get(type(each.type), "x") for each in needed}
    by_key = sa.select(table).where(table.c.account == sa.bindparam("of"))

    def write(connection: sa.Connection) -> list[Any]:
        made = prepared.run(connection, insert_missing(table, database.dialect, *table.c), given)
        assert prepared.run(connection, insert_missing(table, database.dialect), given) is None
        found = prepared.run(connection, by_key, {"of": given["account"]})
        return [vars(made), vars(found), dict(connection.execute(by_key, {"of": given["account"]}).mappings().one())]

    past, read, by_sqlalchemy = await database.write(write)
    assert past == read == by_sqlalchemy
    assert {**past, **given} == past
    asked = list[str]()
    with heard(asked):
        assert await database.read(lambda each: vars(prepared.run(each, by_key, {"of": given["account"]}))) == past
    assert len([each for each in asked if table.name in each]) == 1


@pytest.mark.parametrize("kind", ["its own", "of the database", "of a row that cannot be read"])
async def test_an_error_is_that_of_its_own_task(database: Database, kind: str) -> None:
    """What it has written is rolled back; the others are committed."""

    def wrong(connection: sa.Connection) -> int:
        mark(100)(connection)
        if kind == "its own":
            raise StoreError("nothing of it", outcome="not_sent")
        if kind == "of a row that cannot be read":
            raise ValueError("+255681234567")
        return mark(100)(connection)

    found = await write_behind_a_gate(database, {1: mark(1), 2: wrong, 3: mark(3)})
    error = found.pop(2)
    assert isinstance(error, StoreError)
    assert "81234567" not in str(error)
    assert found == {1: 1, 3: 3}
    assert await marks(database) == [1, 3]


async def test_a_commit_that_breaks_is_not_tried_again(database: Database) -> None:
    """All of it may be there, or nothing: each task gets the error, and no work runs a second time."""
    runs = list[int]()

    def counted(number: int) -> Work:
        def work(connection: sa.Connection) -> int:
            runs.append(number)
            return mark(number)(connection)

        return work

    def break_it() -> None:
        if runs:
            raise OSError("the line went dead")

    with before_commits(break_it):
        found = await write_behind_a_gate(database, {number: counted(number) for number in (1, 2, 3)})
    assert [found[number].outcome for number in (1, 2, 3)] == ["not_sent"] * 3
    assert runs == [1, 2, 3]


async def test_a_lock_that_one_waits_for_holds_up_no_other(postgres_url: str) -> None:
    """Another process holds it for long: the one that needs it waits alone, and gets it."""
    database = await make_marks(postgres_url)
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    others, found = (1, 3, 4, 5), dict[int, Any]()
    with anyio.fail_after(PATIENCE):
        with engine.connect() as connection, connection.begin() as transaction:
            connection.execute(_INSERT, {"number": 2})
            async with anyio.create_task_group() as tasks:
                for number in (1, 2, 3, 4, 5):
                    work = database.write(mark(number), share_key=("account", str(number)))
                    tasks.start_soon(note, found, number, work)
                await until(lambda: len(found) == len(others))
                transaction.rollback()
        assert found == {number: number for number in (1, 2, 3, 4, 5)}
    assert await marks(database) == [1, 2, 3, 4, 5]
    database.close()


async def test_cancelled_before_it_begins_work_never_runs(database: Database) -> None:
    """Its task leaves at once, while the transaction before it goes on."""
    gate = Gate()

    async def write(work: Work, name: str) -> None:
        await database.write(work, share_key=("account", name))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as outer:
            outer.start_soon(write, gate.work, "gate")
            await gate.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, mark(1), "one")
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            outer.start_soon(write, mark(2), "two")
            gate.opened.set()
    assert await marks(database) == [2]


@pytest.mark.parametrize("who", ["leader", "follower"])
async def test_cancelled_during_its_transaction_a_task_leaves_after_the_end(database: Database, who: str) -> None:
    """What was begun is committed, and the callback has its result; other tasks get theirs."""
    first, gate, told = Gate(), Gate(), list[int]()
    ended: list[str] = []

    def slow(connection: sa.Connection) -> int:
        mark(9)(connection)
        return gate.work(connection)

    async def write(work: Work, name: str, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        with anyio.CancelScope() as scope:
            task_status.started(scope)
            await database.write(work, share_key=("account", name), on_commit=told.append)
            await checkpoint()
        ended.append(f"{name}: {'cancelled' if scope.cancelled_caught else 'done'}")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            await tasks.start(write, first.work, "0")
            await first.wait()
            leader = await tasks.start(write, mark(1), "1")
            follower = await tasks.start(write, slow, "2")
            await tasks.start(write, mark(3), "3")
            first.opened.set()
            await gate.wait()
            {"leader": leader, "follower": follower}[who].cancel()
            await anyio.wait_all_tasks_blocked()
            assert ended == ["0: done"]
            gate.opened.set()
    cancelled = {"leader": "1", "follower": "2"}[who]
    assert sorted(ended) == ["0: done"] + [
        f"{name}: {'cancelled' if name == cancelled else 'done'}" for name in ("1", "2", "3")
    ]
    assert sorted(told) == [0, 0, 1, 3]
    assert await marks(database) == [1, 3, 9]


async def test_tasks_that_come_and_go_lose_no_write(database: Database) -> None:
    """However tasks are cancelled, a write that returned is there, and one whose callback ran is there."""
    told, returned = set[int](), set[int]()
    rng = random.Random(7)

    async def write(number: int, patience: float) -> None:
        with anyio.move_on_after(patience):  # real time: it cancels at random
            returned.add(await database.write(mark(number), share_key=("account", str(number)), on_commit=told.add))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(write, number, rng.choice([0.0, 0.001, 0.01, 60.0]))
                if rng.random() < 0.2:
                    await anyio.sleep(0.002)  # real time: some have begun, others not
        there = set(await marks(database))
    assert returned <= told
    assert told == there


async def test_reads_share_a_transaction_but_no_error(database: Database) -> None:
    """One that refuses costs the others nothing."""
    found = dict[int, Any]()

    def refuse(connection: sa.Connection) -> int:
        raise StoreError("no", outcome="not_sent")

    def look(number: int, connection: sa.Connection) -> int:
        return int(connection.execute(sa.text("SELECT :number + 0"), {"number": number}).scalar_one())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                work = database.read(refuse if number == 2 else partial(look, number), share_key=("a", str(number)))
                tasks.start_soon(note, found, number, work)
    assert str(found.pop(2)) == "no"
    assert found == {0: 0, 1: 1, 3: 3, 4: 4}


async def test_a_payment_that_is_recorded_during_a_shared_look_does_not_seem_lost(store_url: str) -> None:
    """The look of a create shares a transaction that began before that payment: it does not expect to see it."""
    service, store = SecondService(utcnow=now), SQLStore(store_url)
    account, before, beside = account_store(store), Gate(), Gate()

    async def create(client: AsyncClient, number: int) -> None:
        await client.collections.create(
            phone_number=f"+25568{number:07}", amount=1000, idempotency_key=f"order-{number}"
        )

    def look(journal: Journal) -> int:
        journal.connection.execute(sa.text("SELECT count(*) FROM mobilemoney_payment_records")).one()
        return beside.work(journal.connection)

    async with AsyncClient(BASE_URL, auth=TOKEN, transport=service, store=store) as client:
        await create(client, 1)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(account.read, lambda journal: before.work(journal.connection), share_key="0"))
                await before.wait()
                tasks.start_soon(partial(account.read, look, share_key="a"))
                tasks.start_soon(create, client, 2)
                await anyio.wait_all_tasks_blocked()
                before.opened.set()
                await beside.wait()
                account.note_newest(now())
                beside.opened.set()
    assert (len(service.payments), service.posts, service.lists) == (2, 2, 0)


async def create_behind_a_gate(client: AsyncClient, store: SQLStore, count: int) -> dict[int, Any]:
    """Make payments at once, while a look holds up their looks; return what each got."""
    gate, found = Gate(), dict[int, Any]()

    async def create(each: int) -> None:
        key, phone = f"order-{each}", f"+25568{each:07}"
        await note(found, each, client.collections.create(phone_number=phone, amount=1000, idempotency_key=key))

    await create(0)  # the account's secret, and its place under the limit
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            account = account_store(store)
            tasks.start_soon(partial(account.read, lambda journal: gate.work(journal.connection), share_key="0"))
            await gate.wait()
            for each in range(1, count):
                tasks.start_soon(create, each)
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
    return found


async def test_payments_that_are_made_together_are_recorded_as_if_alone(store_url: str) -> None:
    """Each has its own record, history and changes."""
    service, store, commits = SecondService(utcnow=now), SQLStore(store_url), list[int]()
    async with AsyncClient(BASE_URL, auth=TOKEN, transport=service, store=store) as client:
        with before_commits(lambda: commits.append(1)):
            found = await create_behind_a_gate(client, store, 8)
        kept = [await client.payments.get(f"order-{each}") for each in range(8)]
        changes = [each async for each in client.payments.changes(forever=False)]
    for number, record in enumerate(kept):
        assert record is not None
        assert record.state is PaymentState.ACKNOWLEDGED
        assert record.transaction_id == found[number].transaction_id
        assert [entry.what for entry in record.history] == ["sent", "acknowledged"]
        assert [each.state for each in changes if each.key == record.key] == ["SENDING", "ACKNOWLEDGED"]
        assert record.sent_at == record.created_at == record.history[0].at
    assert len(commits) < 4 * 8


async def test_two_answers_with_one_transaction_are_one_payment(store_url: str) -> None:
    """Both acknowledgements come together: the second is refused, as if it had come later."""
    store = SQLStore(store_url)
    arrived, waiting = anyio.Event(), list[httpx.Request]()

    class Together(SecondService):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            if request.method == "POST" and len(self.payments) > 1:
                waiting.append(request)
                if len(waiting) == 2:
                    arrived.set()
                await arrived.wait()
            return response

    service = Together(utcnow=now)
    service.acknowledge = lambda row: row if len(service.payments) == 1 else {**row, "transaction_id": "TXN-TWICE"}
    async with AsyncClient(BASE_URL, auth=TOKEN, transport=service, store=store) as client:
        found = await create_behind_a_gate(client, store, 3)
        kept = [await client.payments.get(f"order-{each}") for each in range(3)]
    failed = [each for each in found.values() if isinstance(each, MobileMoneyError)]
    assert [(type(each).__name__, each.outcome) for each in failed] == [("OutcomeUnknown", "unknown")]
    assert sorted(str(each and each.state) for each in kept) == ["ACKNOWLEDGED", "ACKNOWLEDGED", "SENDING"]


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)
