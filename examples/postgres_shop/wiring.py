"""What opens, keeps and closes the shop's payments, in each worker. It knows no item and no price: copy it as it is."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import sqlalchemy as sa
from fastapi import FastAPI
from models import URL, Place
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from mobilemoney_async import AsyncClient, InvalidCursor, PaymentChange, RateLimiter, SQLStore, StoreError
from mobilemoney_async.contrib.fastapi import mobilemoney_lifespan

SPEED = float(os.environ.get("SANDBOX_SPEED", "1"))  # of a sandbox; 1 for the real service
PAGE_OF_CHANGES, PAUSE = 100, 1.0  # seconds

Sessions = async_sessionmaker[AsyncSession]
Book = Callable[[AsyncSession, PaymentChange], Awaitable[None]]

logger = logging.getLogger("shop")


async def book_changes(client: AsyncClient, sessions: Sessions, book: Book) -> int:
    """Book the next changes, and return how many: they and their place are one transaction.

    Any number of workers may call it: the one that has locked the place reads, the others skip it. A worker that is
    killed loses its lock with its connection, and what it has not committed was never booked.
    """
    async with sessions.begin() as session:
        place = await session.scalar(sa.select(Place).with_for_update(skip_locked=True))
        if place is None:
            return 0
        # `forever=False`: up to the newest change, at most a page.
        found = client.payments.changes(after=place.cursor, limit=PAGE_OF_CHANGES, forever=False)
        changes = [change async for change in found]
        for change in changes:
            await book(session, change)
            place.cursor = change.cursor
    return len(changes)


async def keep_books(client: AsyncClient, sessions: Sessions, book: Book) -> None:
    """Book changes as they come, for as long as the worker runs; while a database is away, later."""
    while True:
        try:
            async with sessions() as session:
                booked = await session.scalar(sa.select(Place.cursor))
            async for _ in client.payments.changes(after=booked, limit=1, forever=True):  # wait for the next one
                if not await book_changes(client, sessions, book):
                    await anyio.sleep(PAUSE)  # another worker books it
        except InvalidCursor as exc:
            # After a restored backup: each change comes once more, which changes nothing that `book` has written.
            logger.warning("the books begin again with the oldest change: %s", exc)
            async with sessions.begin() as session:
                await session.execute(sa.update(Place).where(Place.cursor == booked).values(cursor=None))
        except (StoreError, sa.exc.SQLAlchemyError, OSError) as exc:
            logger.warning("the books wait: %s", exc)
            await anyio.sleep(PAUSE)
        except Exception:
            logger.exception("a change could not be booked, and no later one is")
            await anyio.sleep(10 * PAUSE)


def shop_lifespan(
    store: SQLStore, book: Book, make_client: Callable[..., AsyncClient], **options: Any
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan that sends, follows and books payments; `options` are those of `Backend`.

    Inside it, `app.state.sessions` makes the sessions of the shop.
    """

    def client() -> AsyncClient:
        return make_client(store=store, rate_limiter=RateLimiter(60 * SPEED, 10, window=60 / SPEED))

    paces = {
        "min_interval": 1 / SPEED,  # seconds between two questions to the service about results
        "per_minute": 45 * SPEED,  # payments that the dispatcher sends; the limit's rest is for these questions
        "reconcile_every": 60 / SPEED,  # seconds until the service's list is searched for unknown payments again
    }
    payments = mobilemoney_lifespan(client, secret=os.environ.get("CALLBACK_SECRET"), **paces | options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Without `hide_parameters` an error in the log would show phone numbers.
        engine = create_async_engine(URL.set(drivername="postgresql+asyncpg"), hide_parameters=True, pool_pre_ping=True)
        sessions = app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
        try:
            async with sessions.begin() as session:  # the row to lock, if no worker has made it before
                await session.execute(insert(Place).values(name="books").on_conflict_do_nothing())
            async with payments(app), anyio.create_task_group() as tasks:
                tasks.start_soon(keep_books, app.state.mobilemoney.client, sessions, book)
                yield
                tasks.cancel_scope.cancel()  # what is not committed is rolled back
        finally:
            await engine.dispose()

    return lifespan
