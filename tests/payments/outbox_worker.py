"""Merchants' programs around the outbox, which may be killed at any moment: processes that a nursery forks.

Each kind places orders, with the payment in the same transaction, and keeps books: the endings of payments, in the same
transaction as its place among the changes. Beside that, each runs a dispatcher, a poller and `reconcile`.

| kind | orders | database |
|---|---|---|
| `dispatcher` | none: the test has queued them | SQLite, PostgreSQL |
| `psycopg` | a worker's loop over a list | PostgreSQL, one connection of psycopg for each task |
| `sqlite3` | the same; its books follow as a named consumer | SQLite, one connection for each transaction |
"""

import json
import random
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import anyio
import anyio.to_thread
import attrs
import psycopg
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, MobileMoneyError, PaymentChange, SQLStore, StoreError
from tests.payments.crash_worker import ONCE_MORE, fork, run_nursery, wide_open
from tests.support.databases import dsn

TABLES = (
    "CREATE TABLE shop_orders (id VARCHAR(40) PRIMARY KEY, amount INTEGER NOT NULL)",
    "CREATE TABLE shop_books (id VARCHAR(40), amount INTEGER NOT NULL, status VARCHAR(40))",
    "CREATE TABLE shop_place (id INTEGER PRIMARY KEY, place VARCHAR(100))",
    "INSERT INTO shop_place VALUES (1, '')",
)
BOOK = "INSERT INTO shop_books (id, amount, status) VALUES ({0}, {0}, {0})"
MOVE = "UPDATE shop_place SET place = {0} WHERE id = 1 AND place = {0}"


@attrs.frozen
class Job:
    """Job of all workers; the amount of each order follows from its number."""

    kind: str
    base_url: str
    token: str
    store_url: str
    orders: int = 0


def order_of(number: int) -> dict[str, Any]:
    """Return the arguments of an order's payment."""
    phone_number, key = f"+2556812{number % 100_000:05}", f"order-{number}"
    order = {"type": "collection", "phone_number": phone_number, "amount": 1_000 + number}
    return {**order, "idempotency_key": key, "extra": {"external_id": key}}


def open_store(job: Job) -> SQLStore:
    """Return the store; an absent collection may be sent again."""
    return SQLStore(job.store_url, grace=1.0, resend_absent_collections=True)


def open_client(job: Job, store: SQLStore) -> AsyncClient:
    """Return a client that nothing slows down."""
    return AsyncClient(
        job.base_url, auth=job.token, store=store, timeout=5.0, retry=ONCE_MORE, rate_limiter=wide_open()
    )


class Rolled(Exception):
    """Reason to roll an order back."""


class Shop:
    """Merchant's own tables, in the database that has the store's: an order and its payment are one transaction."""

    def __init__(self, job: Job, store: SQLStore) -> None:
        self.url = job.store_url
        self.store = store

    async def place_order(self, number: int, *, is_rolled_back: bool = False) -> None:
        """Record an order and its payment, or raise `Rolled` at the end of the transaction."""
        raise NotImplementedError

    async def place(self) -> str:
        """Return the cursor of the last change in the books."""
        raise NotImplementedError

    async def write(self, cursor: str, change: PaymentChange) -> bool:
        """Write a change and its cursor; return False if another process has done so."""
        raise NotImplementedError


class PsycopgShop(Shop):
    """Plain psycopg, in threads."""

    async def place_order(self, number: int, *, is_rolled_back: bool = False) -> None:
        def place_order() -> None:
            order = order_of(number)
            with psycopg.connect(dsn(self.url)) as connection:
                insert = "INSERT INTO shop_orders VALUES (%s, %s) ON CONFLICT DO NOTHING"
                connection.execute(insert, (order["idempotency_key"], order["amount"]))
                self.store.enqueue(connection, **order)
                if is_rolled_back:
                    raise Rolled

        await anyio.to_thread.run_sync(place_order)

    async def place(self) -> str:
        def place() -> str:
            with psycopg.connect(dsn(self.url)) as connection:
                row = connection.execute("SELECT place FROM shop_place").fetchone()
            assert row is not None
            return str(row[0])

        return await anyio.to_thread.run_sync(place)

    async def write(self, cursor: str, change: PaymentChange) -> bool:
        def write() -> bool:
            with psycopg.connect(dsn(self.url)) as connection:
                is_ours = connection.execute(MOVE.format("%s"), (change.cursor, cursor)).rowcount == 1
                if is_ours and (booked := ending(change)) is not None:
                    connection.execute(BOOK.format("%s"), booked)
            return is_ours

        return await anyio.to_thread.run_sync(write)


class SqliteShop(Shop):
    """Plain sqlite3, in threads. The store keeps its place, so what it writes is safe to repeat."""

    async def place_order(self, number: int, *, is_rolled_back: bool = False) -> None:
        order = order_of(number)

        def place_order(connection: sqlite3.Connection) -> None:
            insert = "INSERT INTO shop_orders VALUES (?, ?) ON CONFLICT DO NOTHING"
            connection.execute(insert, (order["idempotency_key"], order["amount"]))
            self.store.enqueue(connection, **order)
            if is_rolled_back:
                raise Rolled

        await self._transact(place_order)

    async def book(self, change: PaymentChange) -> None:
        """Write a change, which may come twice."""
        booked = ending(change)
        if booked is not None:
            once = "INSERT INTO shop_books SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM shop_books WHERE id = ?)"
            await self._transact(lambda connection: connection.execute(once, (*booked, booked[0])))

    async def _transact(self, work: Callable[[sqlite3.Connection], object]) -> None:
        def transact() -> None:
            file = sa.make_url(self.url).database
            assert file is not None
            with closing(sqlite3.connect(file, timeout=20)) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                work(connection)

        await anyio.to_thread.run_sync(transact)


def ending(change: PaymentChange) -> tuple[str, int, str] | None:
    """Return what the books have of a payment that has ended, or None of another change."""
    if change.record is None or change.key is None or change.state != "FINAL":
        return None
    return change.key, int(change.record.amount), str(change.status)


async def keep_books(client: AsyncClient, poller: Any, shop: Shop) -> None:
    """Follow the changes of all payments, in any number of processes: each is written once."""
    while True:
        cursor = await shop.place()
        async for change in client.payments.changes(after=cursor or None):
            record = change.record
            if record is not None and record.transaction_id is not None and not record.is_final:
                poller.track(record.transaction_id)
            if not await shop.write(cursor, change):
                break  # another process has
            cursor = change.cursor


async def consume(client: AsyncClient, shop: SqliteShop) -> None:
    """Follow the changes as a consumer: one process at a time, each change at least once."""
    while True:
        with suppress(StoreError):  # another process has taken over, or the file was busy
            async for change in client.payments.changes(consumer="books", start="oldest"):
                await shop.book(change)
                await change.done()
        await anyio.sleep(0.2)


async def reconcile(client: AsyncClient) -> None:
    """Look for unknown payments, and send the collections again that certainly do not exist."""
    while True:
        try:
            for record in await client.payments.reconcile():
                if record.state == "ABSENT":
                    order = order_of(int(record.key.removeprefix("order-")))
                    del order["type"]
                    await client.collections.create(**order)
        except MobileMoneyError as exc:  # of a list that came too late, or of a payment: there is a next time
            print(f"reconcile: {exc}", file=sys.stderr)
        await anyio.sleep(0.5)


@asynccontextmanager
async def backend(job: Job, shop: Shop | None, store: SQLStore) -> AsyncIterator[AsyncClient]:
    """Run everything that a merchant's process runs beside its requests."""
    async with (
        open_client(job, store) as client,
        client.poller(resume=True, min_interval=0.05) as poller,
        client.dispatcher(per_minute=600_000),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(reconcile, client)
        if isinstance(shop, SqliteShop):
            tasks.start_soon(consume, client, shop)
        elif shop is not None:
            tasks.start_soon(keep_books, client, poller, shop)
        yield client
        tasks.cancel_scope.cancel()


async def dispatch(job: Job, seed: int) -> None:
    async with open_client(job, open_store(job)) as client, client.dispatcher(per_minute=600_000):
        await anyio.sleep_forever()


async def work_off(job: Job, seed: int) -> None:
    """Place all orders, in any order; each is there once, however often it is placed."""
    store = open_store(job)
    shop = SqliteShop(job, store) if job.kind == "sqlite3" else PsycopgShop(job, store)
    numbers = list(range(job.orders))
    random.Random(seed).shuffle(numbers)
    async with backend(job, shop, store):
        for number in numbers:
            if number % 5 == seed % 5:
                with suppress(Rolled):
                    await shop.place_order(number + 50_000, is_rolled_back=True)
            await shop.place_order(number)
        await anyio.sleep_forever()


def main() -> None:
    """Run the nursery of a kind of merchant."""
    job = Job(**json.loads(sys.stdin.readline()))
    work = dispatch if job.kind == "dispatcher" else work_off
    run_nursery(lambda seed: fork(work, job, seed))


if __name__ == "__main__":
    main()
