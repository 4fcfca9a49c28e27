"""What opens, keeps and closes the shop's payments, in each worker. Copy it as it is: you need not read it today.

It knows no item and no price. It uses `Place`, and the attributes `phone_number` and `created_at` of `Order`.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import anyio
import sqlalchemy as sa
from fastapi import Depends, FastAPI, Path, Request, Response
from models import UNPAID, Order, Place
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from mobilemoney_async import (
    AsyncClient,
    InvalidCursor,
    OutcomeUnknown,
    PaymentChange,
    PaymentRecord,
    RateLimiter,
    SQLStore,
    StoreError,
)
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.fastapi import (
    BackendDependency,
    callback_router,
    event_response,
    install_error_answers,
    mobilemoney_lifespan,
    status_response,
)
from mobilemoney_async.contrib.orders import TooManyPrompts

# One address for both: the shop's own engine asks by asyncpg, the store by psycopg.
URL = sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
SPEED = float(os.environ.get("SANDBOX_SPEED", "1"))  # of a sandbox; 1 for the real service
PAUSE = 1.0  # seconds
PER_NUMBER, WITHIN = 5, timedelta(minutes=10)  # of new orders
OrderNumber = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{16,64}$")]

Sessions = async_sessionmaker[AsyncSession]
Book = Callable[[AsyncSession, PaymentChange], Awaitable[None]]

logger = logging.getLogger("shop")


async def book_changes(client: AsyncClient, sessions: Sessions, book: Book) -> int:
    """Book the next changes, and return how many.

    A change and its place are one transaction, which locks the rows of one order only: two orders could deadlock.
    Any number of workers may call it: the one that has locked the place reads, the others skip it. A worker that is
    killed loses its lock with its connection, and what it has not committed was never booked.
    """
    booked = 0
    while True:
        async with sessions.begin() as session:
            place = await session.scalar(sa.select(Place).with_for_update(skip_locked=True))
            if place is None:
                return booked
            # `forever=False`: up to the newest change, at most a page.
            found = client.payments.changes(after=place.cursor, limit=1, forever=False)
            changes = [change async for change in found]
            for change in changes:
                await book(session, change)
                place.cursor = change.cursor
        if not changes:
            return booked
        booked += len(changes)


def of_latest_try(client: AsyncClient, book: Book) -> Book:
    """Return `book`, but not for a change since which a click has sent the payment again: that needs the goods."""

    async def book_latest(session: AsyncSession, change: PaymentChange) -> None:
        if change.key is not None and change.state in {"NOT_SENT", "REFUSED", "RELEASED"}:
            await take_turns(session, change.key)
            payment = await client.payments.get(change.key)
            if payment is None or payment.state != change.state:
                return
        await book(session, change)

    return book_latest


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


async def take_turns(session: AsyncSession, number: str) -> None:
    """Wait until no other transaction works on the order, in any worker; to the end of this one, others wait."""
    await session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(number, 0))))


async def limit_prompts(session: AsyncSession, phone_number: str) -> None:
    """Refuse a new order if its number has too many, in all workers: each prompt rings somebody's phone."""
    recent = (Order.phone_number == phone_number, Order.created_at > sa.func.now() - WITHIN)
    if (await session.scalar(sa.select(sa.func.count()).select_from(Order).where(*recent)) or 0) >= PER_NUMBER:
        raise TooManyPrompts("too many new orders for this phone number", retry_after=WITHIN.total_seconds())


@dataclass
class Shop:
    """What a route needs: the shop's own sessions, and the payments of this worker."""

    sessions: Sessions
    store: SQLStore
    backend: Backend
    book: Book

    async def answer(self, payment: PaymentRecord) -> Response:
        """Return what the customer is told of an order that was just recorded."""
        if payment.state == "RELEASED":  # it was lost, and staff has said so: only a create sends it, after a last look
            with suppress(OutcomeUnknown):  # it was lost again: the status tells
                await self.send_again(payment)
        return status_response(await self.backend.status(payment.key))

    async def send_again(self, payment: PaymentRecord) -> None:
        """Send a released payment, whose order holds its goods; if it is provably not sent, the books give them back.

        Its turn lasts to the end of the create: other clicks, and the books, neither send nor give back during it.
        """
        async with self.sessions() as session:
            await take_turns(session, payment.key)
            if await session.scalar(sa.select(Order.state).where(Order.number == payment.key)) == UNPAID:
                return  # the click before this one was not sent
            try:
                await self.backend.collect(payment.key, phone_number=payment.phone_number, amount=payment.amount)
            except Exception:
                now = await self.backend.client.payments.get(payment.key)
                if now is not None and now.state == "RELEASED":  # a payment that is sent is SENDING before
                    at = datetime.now(UTC)
                    change = PaymentChange(cursor="", key=now.key, state=now.state, status=None, at=at, record=now)
                    await self.book(session, change)
                    await session.commit()
                raise


async def get_shop(request: Request) -> Shop:
    shop: Shop = request.app.state.shop
    return shop


ShopDependency = Annotated[Shop, Depends(get_shop)]


def install_payments(app: FastAPI) -> None:
    """Add the routes that customers' pages follow, the service's hints, and answers for the library's errors."""
    install_error_answers(app)
    app.include_router(callback_router())  # hints: the service is asked, and nothing else is believed

    @app.get("/orders/{number}")
    async def status(number: OrderNumber, backend: BackendDependency) -> Response:
        return status_response(await backend.status(number))

    @app.get("/orders/{number}/events")
    async def events(number: OrderNumber, backend: BackendDependency) -> Response:
        return await event_response(backend, number)


def shop_lifespan(
    book: Book, make_client: Callable[..., AsyncClient] = AsyncClient.from_env, **options: Any
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan that sends, follows and books payments; `options` are those of `Backend`.

    An application that has a lifespan enters this one inside its own: `async with shop_lifespan(book)(app): yield`.
    """
    store = SQLStore(URL.render_as_string(hide_password=False))

    def client() -> AsyncClient:
        return make_client(store=store, rate_limiter=RateLimiter(60 * SPEED, 10, window=60 / SPEED))

    paces = {
        "min_interval": 1 / SPEED,  # seconds between two questions to the service about results
        "per_minute": 45 * SPEED,  # payments that the dispatcher sends; the limit's rest is for these questions
        "reconcile_every": 60 / SPEED,  # seconds until the service's list is searched for unknown payments again
    }
    options = {"pause_after": None, **paces, **options}  # strangers who do not approve do not close the shop
    payments = mobilemoney_lifespan(client, secret=os.environ.get("CALLBACK_SECRET"), **options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Without `hide_parameters` an error in the log would show phone numbers.
        # READ COMMITTED, whatever the server's default is: who has waited for a lock must see the row as it is then.
        url = URL.set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url, hide_parameters=True, pool_pre_ping=True, isolation_level="READ COMMITTED")
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        try:
            async with sessions.begin() as session:  # the row to lock, if no worker has made it before
                await session.execute(insert(Place).values(name="books").on_conflict_do_nothing())
            async with payments(app), anyio.create_task_group() as tasks:
                backend: Backend = app.state.mobilemoney
                app.state.shop = Shop(sessions, store, backend, book)
                tasks.start_soon(keep_books, backend.client, sessions, of_latest_try(backend.client, book))
                yield
                tasks.cancel_scope.cancel()  # what is not committed is rolled back
        finally:
            await engine.dispose()

    return lifespan
