"""The whole, as a merchant's processes use it: two clients with stores of their own on one database."""

import itertools
import json
import threading
from typing import Literal

import anyio
import httpx
import pytest

from mobilemoney_async import AsyncClient, DuplicateSuspected, LoginAuth, RateLimiter, SQLStore, StoreError
from mobilemoney_async.database.connections import Connections
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sharing.limiter import SharedLimiter
from mobilemoney_async.testing import acknowledgement_answer
from tests.payments.service import World, make_world, on_sqlite
from tests.support.patience import PATIENCE


def make_client(world: World, sandbox: Sandbox) -> AsyncClient:
    """Return a client that logs in, as another process would make it."""
    return AsyncClient(
        sandbox.base_url,
        auth=LoginAuth(sandbox.email, sandbox.password),
        store=SQLStore(world.url),
        rate_limiter=RateLimiter(),
        transport=sandbox.transport(),
        utcnow=world.utcnow,
    )


@pytest.mark.slow
async def test_two_processes_share_login_limit_and_poller(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One login, no rejection, each final state for both, also if the database is away for a while."""
    world = make_world(sqlite_file_url)
    sandbox = world.sandbox
    async with make_client(world, sandbox) as one, make_client(world, sandbox) as two:
        made = []
        for number in range(12):
            client = one if number % 2 else two
            order = {"phone_number": f"+2556812345{number:02}", "amount": 1000, "idempotency_key": f"order-{number}"}
            made.append((await client.collections.create(**order)).transaction_id)  # type: ignore[arg-type]
        async with two.poller(resume=True) as resumed, one.poller() as poller:
            for transaction_id in made[:5]:
                poller.track(transaction_id)
            await world.advance(2)
            with monkeypatch.context() as outage:

                def fail(*arguments: object, **options: object) -> None:
                    raise StoreError("the database is away", outcome="not_sent")

                outage.setattr(Connections, "transact", fail)
                await world.advance(20)
            assert {outcome.transaction_id async for outcome in resumed.outcomes()} == set(made)
            assert {outcome.transaction_id async for outcome in poller.outcomes()} == set(made[:5])
            asked = resumed.stats.requests + poller.stats.requests
        assert asked < 3 * len(made)
        assert {str(record.state) for record in await one.payments.list()} == {"FINAL"}
        async with one.poller() as again:
            assert (await again.wait(made[0])).is_final
            assert again.stats.requests == 0
    log = [request.path for request in sandbox.requests]
    assert sum(path.endswith("/login") for path in log) == 1
    assert not [request for request in sandbox.requests if request.code == "RATE_LIMIT_EXCEEDED"]


@on_sqlite
async def test_a_shared_limiter_is_not_shared_twice(world: World, client: AsyncClient) -> None:
    """A limiter that was made shared by one client may be given to another."""
    limiter = client._pipeline.limiter
    assert isinstance(limiter, SharedLimiter)
    async with world.client(rate_limiter=limiter) as other:
        assert other._pipeline.limiter is limiter


class Slow(httpx.AsyncBaseTransport):
    """A service that takes a moment for each payment, and may be called from several threads.

    Attributes:
        made: The phone number of each payment.
    """

    def __init__(self) -> None:
        self.made: list[str] = []
        self._numbers = itertools.count(1)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        phone_number = json.loads(await request.aread())["phone_number"]
        self.made.append(phone_number)
        await anyio.sleep(0.01)  # real time: so that the loops meet; if not, this shows less
        return acknowledgement_answer(f"tx-{next(self._numbers)}", phone_number=phone_number)


@pytest.mark.slow
def test_one_store_serves_event_loops_in_several_threads(store_url: str) -> None:
    """One store may be given to clients on asyncio and on trio: all of them together send each key once."""
    store, service = SQLStore(store_url), Slow()
    told: dict[str, dict[str, str]] = {"asyncio": {}, "trio": {}}

    async def pay(loop: str) -> None:
        async with AsyncClient(
            "https://service.invalid/v1",
            auth="token",
            store=store,
            transport=service,
            rate_limiter=RateLimiter(per_minute=60_000, burst=1000),
        ) as client:

            async def create(number: int) -> None:
                phone_number, key = f"+2556812345{number:02}", f"order-{number}"
                while True:
                    try:
                        answer = await client.collections.create(
                            phone_number=phone_number, amount=1000, idempotency_key=key
                        )
                    except DuplicateSuspected:  # in the other loop it is on its way
                        await anyio.sleep(0.05)  # real time: a merchant who tries again
                    else:
                        told[loop][key] = answer.transaction_id
                        return

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for number in range(20):
                        tasks.start_soon(create, number)

    def run(loop: Literal["asyncio", "trio"]) -> None:
        anyio.run(pay, loop, backend=loop)

    threads = [threading.Thread(target=run, args=(loop,)) for loop in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told["asyncio"] == told["trio"]
    assert len(told["trio"]) == 20
    assert sorted(service.made) == [f"+2556812345{number:02}" for number in range(20)]
