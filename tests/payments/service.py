"""A merchant, the sandbox as its service, and a store: the parts of the store's tests.

The merchant's clock is the sandbox's, less `ahead`; both follow the loop's, so that tests run in virtual time.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, TypeAlias

import anyio
import attrs
import httpx
import pytest

from mobilemoney_async import AsyncClient, PaymentRecord, RateLimiter, Secret, SQLStore, StoreError, Transaction
from mobilemoney_async.database.connections import database_failure
from mobilemoney_async.database.engine import Database
from mobilemoney_async.payments.records import transaction_states
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import Source
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Choices, Sandbox
from mobilemoney_async.testing import killed_at_end
from tests.support.databases import execute
from tests.support.fakes import NOON

PHONE_NUMBER = "+255681234501"
ORDER: dict[str, Any] = {"phone_number": PHONE_NUMBER, "amount": 1000}
TWO_MINUTES = 121.0

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
"""For tests of what does not depend on the loop: one of them is enough."""
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
"""For tests of what does not depend on the database."""
on_one = pytest.mark.parametrize(("anyio_backend", "store_url"), [("asyncio", "sqlite")], indirect=True)
"""For tests of what depends on neither."""

Hook: TypeAlias = Callable[[httpx.Request], Awaitable[None] | None]


class Line(httpx.AsyncBaseTransport):
    """Carries requests to the sandbox, and lets a test look at them on the way.

    Args:
        sandbox: The service.

    Attributes:
        refuse: How many more connections are refused: provably nothing is sent.
        posts: The bodies of the requests that were sent to create something.
        before: Called with each request before the service has it.
        after: Called with each request when the service has answered.
        answer_after: Seconds that each answer takes on its way back.
        change_page: Changes the body of each page of the list.
        has_dates: Whether answers carry a Date header.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._inner = sandbox.transport()
        self.refuse = 0
        self.posts: list[bytes] = []
        self.paths: list[str] = []
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.answer_after = 0.0
        self.change_page: Callable[[dict[str, Any]], object] | None = None
        self.has_dates = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            if self.refuse:
                self.refuse -= 1
                raise httpx.ConnectError("All connection attempts failed")
            self.posts.append(b"")
        self.paths.append(request.url.path)
        await _call(self.before, request)
        if request.method == "POST":
            self.posts[-1] = await request.aread()
        response = await self._inner.handle_async_request(request)
        await anyio.sleep(self.answer_after)
        await _call(self.after, request)
        if self.change_page is not None and request.url.path.endswith("/transactions"):
            body = json.loads(await response.aread())
            self.change_page(body)
            response = httpx.Response(response.status_code, json=body)
        if self.has_dates:
            response.headers["date"] = format_datetime(self._sandbox.now, usegmt=True)
        else:
            response.headers.pop("date", None)
        return response

    def meanwhile(self, work: Callable[[], Awaitable[object]], *, is_made: bool = False) -> None:
        """Let something happen once, while the next request is on its way there, or its answer on its way back."""
        place = "after" if is_made else "before"

        async def once(request: httpx.Request) -> None:
            setattr(self, place, None)
            await work()

        setattr(self, place, once)


async def _call(hook: Hook | None, request: httpx.Request) -> None:
    done = None if hook is None else hook(request)
    if done is not None:
        await done


class Vault:
    """Source of a token, which takes `seconds`, and fails if there is a `failure`."""

    def __init__(self, token: str) -> None:
        self._token = Secret(token)
        self.seconds = 0.0
        self.failure: Exception | None = None

    async def token(self, login: object) -> Secret:
        await anyio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return self._token

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Do nothing."""


@attrs.define(eq=False)
class World:
    """Service, and the clients that may use it.

    Attributes:
        url: Of the database.
        sandbox: The service.
        line: To the service.
        ahead: How far the service's clock is ahead of the merchant's.
    """

    url: str
    sandbox: Sandbox
    line: Line
    ahead: timedelta = timedelta(0)

    def utcnow(self) -> datetime:
        """Return the merchant's time."""
        return self.sandbox.now - self.ahead

    async def advance(self, seconds: float) -> None:
        """Let time pass, which is virtual."""
        await anyio.sleep(seconds)

    def store(self, **options: Any) -> SQLStore:
        """Return a store of its own: another process, as far as stores can tell."""
        return SQLStore(self.url, **options)

    def client(self, store: SQLStore | None = None, **options: Any) -> AbstractAsyncContextManager[AsyncClient]:
        """Return a client of a store, or of one of its own."""
        chosen: dict[str, Any] = {
            "auth": self.sandbox.token,
            "transport": self.line,
            "utcnow": self.utcnow,
            "rate_limiter": RateLimiter(per_minute=600_000, burst=10_000),
            "store": self.store() if store is None else store,
            "timeout": 5.0,
        }
        return AsyncClient(self.sandbox.base_url, **{**chosen, **options})

    @property
    def sent(self) -> int:
        """Number of creates that were sent."""
        return len(self.line.posts)

    @property
    def made(self) -> list[str]:
        """The transactions of the service, oldest first."""
        return [*self.sandbox.transactions]

    def states(self) -> list[str]:
        """Return the states in the database, oldest first, through another connection."""
        return self._column("state FROM mobilemoney_payment_records ORDER BY created_at, key")

    def ids(self) -> list[str | None]:
        """Return the transactions in the database, through another connection."""
        return self._column("transaction_id FROM mobilemoney_payment_records ORDER BY created_at, key")

    def happened(self) -> list[str]:
        """Return the entries of the histories, oldest first, through another connection."""
        return self._column("what FROM mobilemoney_payment_history ORDER BY at, key, number")

    def _column(self, selected: str) -> list[Any]:
        return [row[0] for row in rows(self.url, f"SELECT {selected}")]


def make_world(url: str, **choices: Any) -> World:
    """Return a world with a service that has no limit of its own and answers at once."""
    sandbox = Sandbox(now=NOON, balance=10**9, choices=Choices(**{"rate_limit": None, **choices}))
    return World(url, sandbox, Line(sandbox))


async def get(client: AsyncClient, key: str = "order-1") -> PaymentRecord:
    """Return the record of a key that was used."""
    record = await client.payments.get(key)
    assert record is not None
    return record


@asynccontextmanager
async def between_others(client: AsyncClient, direction: str = "collections") -> AsyncGenerator[None]:
    """Make a payment before and one after, of the same type: a listing without them proves no absence."""
    creates = getattr(client, direction)
    await creates.create(phone_number="+255681234599", amount=901)
    yield
    await creates.create(phone_number="+255681234599", amount=902)


async def miss(world: World, client: AsyncClient) -> None:
    """Reconcile twice, as far apart as the listings must be for an absence."""
    for _ in range(2):
        await client.payments.reconcile()
        await world.advance(61)


async def leave(world: World, key: str = "order-1") -> None:
    """Let a process die while its payment is on its way: the service has made it, and nobody records the answer."""
    is_made = anyio.Event()

    async def hang(request: httpx.Request) -> None:
        is_made.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        async with killed_at_end(world.client()) as dead:
            world.line.after = hang
            tasks.start_soon(lambda: dead.collections.create(**ORDER, idempotency_key=key))
            await is_made.wait()
            world.line.after = None
        tasks.cancel_scope.cancel()


async def record_seen(world: World, transaction: Transaction) -> Any:
    """Record a transaction as another process does that sees it; return the contradiction, if it is one."""
    return await write(
        world,
        lambda journal: transaction_states.record_seen(journal, transaction, source=Source.POLL, at=world.utcnow()),
    )


async def write(world: World, work: Callable[[Journal], Any]) -> Any:
    """Change the store as another process does."""
    with closing(world.store()) as store:
        return await account_store(store).write(work)


def rows(url: str, statement: str) -> list[Any]:
    """Return the rows that a connection of its own reads."""
    return [tuple(row) for row in execute(url, statement)]


class Delay:
    """Lets the caller of each transaction go on some seconds after its end, as on a machine that sleeps."""

    def __init__(self, database: Database) -> None:
        self._timed, self.seconds = database.timed, 0.0
        database.timed = self._delayed  # type: ignore[method-assign]

    async def _delayed(self, work: Any, **options: Any) -> Any:
        done = await self._timed(work, **options)
        await anyio.sleep(self.seconds)
        return done


class Outage:
    """Makes the work of a database fail.

    Attributes:
        away: Whether it is away now: nothing works.
        fails: Which writes of payments fail, by their number from 1.
        lies: Which writes succeed, and say that they failed.
        slow: How long each write of payments takes, virtual seconds.
        slow_reads: How long each read takes.
        writes: How many were tried.
    """

    def __init__(self, database: Database, *, fails: Callable[[int], bool] = lambda number: False) -> None:
        self._run = database._run
        self.fails = fails
        self.lies: Callable[[int], bool] = lambda number: False
        self.away = False
        self.slow = self.slow_reads = 0.0
        self.writes = 0
        database._run = self._try  # type: ignore[method-assign]

    async def _try(self, work: Any) -> Any:
        if not work.writes:
            await anyio.sleep(self.slow_reads)
        elif self.away or work.durable:  # else the rate budget, which these tests are not about
            return await self._try_write(work)
        if self.away:
            raise StoreError("the store failed: away", outcome="not_sent")
        return await self._run(work)

    async def _try_write(self, work: Any) -> Any:
        self.writes += 1
        number = self.writes
        await anyio.sleep(self.slow)
        if self.away or self.fails(number):
            raise StoreError("the store failed: away", outcome="not_sent")
        if self.lies(number):
            work.on_commit = None
        done = await self._run(work)
        if self.lies(number):
            raise database_failure("the store failed: the commit was not confirmed")
        return done
