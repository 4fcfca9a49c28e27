"""PostgreSQL's connection breaks at the commit that begins a payment: the payment is made, once, by one process."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import anyio
import anyio.from_thread
import pytest
import sqlalchemy as sa

from mobilemoney_async import Acknowledgement, AsyncClient, ConnectionFailed, RetryPolicy, StoreError
from mobilemoney_async.database import engine
from mobilemoney_async.payments.creates.attempts import Beginning
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.store import account_store
from tests.payments.service import ORDER, World, make_world, on_asyncio, rows
from tests.support.databases import run_on
from tests.support.patience import PATIENCE, until, wait_until

pytestmark = [pytest.mark.real_time, on_asyncio]

_COMMIT = b"Q\0\0\0\x0bCOMMIT\0"
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

Sent = Callable[[socket.socket], object]


def committed(server: socket.socket) -> None:
    """Let the commit be made, whose answer nobody gets."""
    server.sendall(_COMMIT)
    while not server.recv(1_000).endswith(b"Z\0\0\0\5I"):
        pass


def rolled_back(server: socket.socket) -> None:
    """Let the commit never arrive: the server rolls back once it notices."""
    server.shutdown(socket.SHUT_RDWR)


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, sent: Sent) -> Iterator[list[str]]:
    """Break the connection at the first commit of a transaction that begins payments; show the keys of all beginnings.

    `sent` decides about the commit; it gets the line to the server, of which the driver has a dead one in its place.
    """
    begun, begin_payment, has_broken = list[str](), Beginning.begin, False

    def begin(beginning: Beginning, journal: Journal, now: datetime) -> Any:
        found = begin_payment(beginning, journal, now)
        begun.append(beginning.request.key)
        journal.connection.info["begins"] = True
        return found

    def at_commit(connection: sa.Connection) -> None:
        nonlocal has_broken
        if not connection.info.pop("begins", False) or has_broken:
            return
        has_broken = True
        driver: Any = connection.connection.driver_connection
        number = driver.fileno()
        server, (dead, other_end) = socket.socket(fileno=os.dup(number)), socket.socketpair()
        server.setblocking(True)
        with dead, other_end:
            os.dup2(dead.fileno(), number)
        with server:
            sent(server)

    monkeypatch.setattr(Beginning, "begin", begin)
    sa.event.listen(sa.Engine, "commit", at_commit)
    try:
        with anyio.fail_after(PATIENCE):
            yield begun
    finally:
        sa.event.remove(sa.Engine, "commit", at_commit)
    assert has_broken


async def create(client: AsyncClient, key: str = "order-1", amount: int = 1000) -> Acknowledgement:
    """Create a collection."""
    return await client.collections.create(**{**ORDER, "amount": amount}, idempotency_key=key)


def require_once(world: World, answer: Acknowledgement) -> None:
    """Require that the payment was sent once, and that its record says so."""
    assert world.sent == 1
    assert world.made == world.ids() == [answer.transaction_id]
    assert world.happened()[-2:] == ["sent", "acknowledged"]


@pytest.mark.parametrize("has_row", [False, True])
@pytest.mark.parametrize("sent", [committed, rolled_back])
async def test_the_payment_is_made(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, sent: Sent, has_row: bool
) -> None:
    """Whether the commit was made or not, and for an attempt in a row that exists: the caller notices nothing."""
    world = make_world(postgres_url)
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        if has_row:
            world.line.refuse = 1
            with pytest.raises(ConnectionFailed):
                await create(client)
        with broken(monkeypatch, sent) as begun:
            answer = await create(client)
    assert begun == ["order-1"] * 2
    require_once(world, answer)


@pytest.mark.parametrize("sent", [committed, rolled_back])
async def test_one_that_was_queued_goes_back_into_the_queue(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, sent: Sent
) -> None:
    """Its row no longer says that it was, once the commit was made: the process remembers."""
    world = make_world(postgres_url)
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        await client.payments.enqueue(type="collection", **ORDER, idempotency_key="order-1")
        world.line.refuse = 1
        with broken(monkeypatch, sent), pytest.raises(ConnectionFailed):
            await create(client)
        assert world.states() == ["QUEUED"]
        assert world.sent == 0


async def test_a_commit_that_is_on_its_way_is_waited_for(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the commit only when the payment begins again: that waits, and finds its own row."""
    lines, world = list[socket.socket](), make_world(postgres_url)

    def arrive_late() -> None:
        wait_until(lambda: rows(postgres_url, _WAITING))
        with lines[0] as server:
            committed(server)

    thread = threading.Thread(target=arrive_late)

    def keep(server: socket.socket) -> None:
        lines.append(server.dup())
        thread.start()

    async with world.client() as client:
        with broken(monkeypatch, keep):
            answer = await create(client)
    thread.join()
    require_once(world, answer)


@pytest.mark.parametrize("sent", [committed, rolled_back])
async def test_payments_that_share_the_commit(postgres_url: str, monkeypatch: pytest.MonkeyPatch, sent: Sent) -> None:
    """Each of them is made, once."""
    world = make_world(postgres_url)
    store, entered, opened = world.store(), threading.Event(), threading.Event()

    def hold(journal: Journal) -> None:
        entered.set()
        assert opened.wait(PATIENCE)

    async with world.client(store) as client:
        await create(client, "order-0", 999)
        waiting = engine._loops.of(account_store(store).database).leaders[2].waiting  # durable writes
        with broken(monkeypatch, sent) as begun:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: account_store(store).write(hold, share_key="0"))
                await until(entered.is_set)
                for number in range(1, 5):
                    tasks.start_soon(create, client, f"order-{number}", 1000 + number)
                await until(lambda: len(waiting) == 5)
                opened.set()
    keys = [f"order-{number}" for number in range(1, 5)]
    assert begun[:4] == keys
    assert sorted(begun[4:]) == keys
    assert world.sent == len(set(world.made)) == 5
    assert sorted(world.made) == sorted(filter(None, world.ids()))


async def test_a_process_that_comes_in_between_is_the_only_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is not ours, though it is of the same key and on its way: it alone sends, and both get its answer."""
    world, answers = make_world(postgres_url), list[Acknowledgement]()
    is_sending = anyio.Event()

    async with world.client() as client, world.client() as other:

        async def send_meanwhile() -> None:
            tasks.start_soon(lambda: answer_later(other))
            await is_sending.wait()

        async def answer_later(client: AsyncClient) -> None:
            answers.append(await create(client))

        def roll_back(server: socket.socket) -> None:
            rolled_back(server)
            anyio.from_thread.run(send_meanwhile)

        with broken(monkeypatch, roll_back) as begun:

            async def hold(request: Any) -> None:
                is_sending.set()
                await until(lambda: len(begun) == 3)

            world.line.before = hold
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: answer_later(client))
    assert answers[0].transaction_id == answers[1].transaction_id
    require_once(world, answers[0])


async def test_a_process_that_comes_later_waits(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one finds its own row, another with the same key finds it on its way."""
    world, answers = make_world(postgres_url), list[Acknowledgement]()
    async with world.client() as client, world.client() as other, anyio.create_task_group() as tasks:

        async def answer(client: AsyncClient) -> None:
            answers.append(await create(client))

        def commit(server: socket.socket) -> None:
            committed(server)
            anyio.from_thread.run_sync(lambda: tasks.start_soon(answer, other))

        with broken(monkeypatch, commit):
            await answer(client)
    assert answers[0].transaction_id == answers[1].transaction_id
    require_once(world, answers[0])


async def test_a_database_that_stays_away(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent, as before any payment; what may have been committed is found later."""
    world, place = make_world(postgres_url), sa.make_url(postgres_url)
    server_url = place.set(database="postgres").render_as_string(hide_password=False)
    allow = f"ALTER DATABASE {place.database} ALLOW_CONNECTIONS"

    def commit(server: socket.socket) -> None:
        committed(server)
        run_on(server_url, f"{allow} false")

    async with world.client() as client:
        try:
            with broken(monkeypatch, commit), pytest.raises(StoreError) as caught:
                await create(client)
        finally:
            run_on(server_url, f"{allow} true")
        assert caught.value.outcome == "not_sent"
        assert world.states() == ["SENDING"]
        assert world.sent == 0
