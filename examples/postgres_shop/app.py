"""A shop on FastAPI, SQLAlchemy's AsyncSession, asyncpg and PostgreSQL, with several workers.

docs/postgres-shop.md explains it. Another shop changes this module: items, prices, orders and books. The rest is in
`wiring`. `DATABASE_URL` names the database, `MOBILEMONEY_BASE_URL` and `MOBILEMONEY_TOKEN` the service: `alembic
upgrade head`, then `uvicorn --workers 3 --timeout-graceful-shutdown 5 --factory app:create_app`.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import FastAPI, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse
from models import URL, Order, Shipment
from pydantic import BaseModel
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from wiring import shop_lifespan

from mobilemoney_async import AsyncClient, PaymentChange, PaymentRecord, SQLStore
from mobilemoney_async.contrib.fastapi import (
    BackendDependency,
    callback_router,
    event_response,
    install_error_answers,
    status_response,
)
from mobilemoney_async.contrib.orders import TooManyPrompts
from mobilemoney_async.values import tanzanian

PRICES = {"coffee": 15_000, "tea": 6_500}
PAGE = Path(__file__).parent / "page.html"
PER_NUMBER, WITHIN = 5, timedelta(minutes=10)  # of new orders
OrderNumber = Annotated[str, InPath(pattern=r"^[A-Za-z0-9_-]{16,64}$")]


class Cart(BaseModel):
    """The customer's choices. The price is the shop's."""

    item: Literal["coffee", "tea"]
    phone_number: str


async def place_order(session: AsyncSession, store: SQLStore, number: str, cart: Cart) -> PaymentRecord:
    """Record order and payment in the transaction of the session: both, or none."""
    phone_number, price = tanzanian(cart.phone_number), PRICES[cart.item]  # 0788 500 000, as customers type it
    placed = await session.get(Order, number)
    if placed is not None and placed.item == cart.item:
        price = placed.price  # that of its day
    if placed is None:
        # The limit against strangers, for all workers: each prompt rings somebody's phone.
        recent = (Order.phone_number == phone_number, Order.created_at > sa.func.now() - WITHIN)
        if (await session.scalar(sa.select(sa.func.count()).where(*recent)) or 0) >= PER_NUMBER:
            raise TooManyPrompts("too many new orders for this phone number", retry_after=WITHIN.total_seconds())
        order = {"id": number, "item": cart.item, "price": price, "phone_number": phone_number}
        await session.execute(insert(Order).values(order).on_conflict_do_nothing())  # of two clicks at once
    return await session.run_sync(
        lambda connection: store.enqueue(
            connection,
            type="collection",
            phone_number=phone_number,
            amount=price,
            idempotency_key=number,
            not_after=WITHIN,  # later the customer has gone: no phone rings
        )
    )


async def book(session: AsyncSession, change: PaymentChange) -> None:
    """Write what a change of a payment means for its order: the goods leave once, and only if they are paid."""
    order = None if change.key is None else await session.get(Order, change.key)
    if order is None:  # a payment of another program, or a transaction that no payment claims
        return
    if change.state == "FINAL" and change.status == "SUCCESS":
        order.state = "paid"
        shipment = insert(Shipment).values(order_id=order.id, booked_by=os.getpid())
        await session.execute(shipment.on_conflict_do_nothing())
    elif change.state in {"FINAL", "CANCELLED", "NOT_SENT", "REFUSED", "RELEASED"}:
        order.state = "unpaid"  # not FINAL or CANCELLED: paid by the next click


def create_app(make_client: Callable[..., AsyncClient] = AsyncClient.from_env, **options: Any) -> FastAPI:
    """Make the application; `options` are those of `Backend`."""
    store = SQLStore(URL.render_as_string(hide_password=False))
    lifespan = shop_lifespan(store, book, make_client, **options)
    app = FastAPI(title="Duka", lifespan=lifespan, docs_url=None, redoc_url=None)
    install_error_answers(app)
    app.include_router(callback_router())  # hints: the service is asked, and nothing else is believed

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(PAGE)

    @app.post("/orders/{number}")
    async def pay(number: OrderNumber, cart: Cart, request: Request, backend: BackendDependency) -> Response:
        async with request.app.state.sessions.begin() as session:
            payment = await place_order(session, store, number, cart)
        if payment.state == "RELEASED":  # it was lost, and staff has said so: only a create sends it, after a last look
            await backend.collect(number, phone_number=payment.phone_number, amount=payment.amount)
        return status_response(await backend.status(number))  # 202: the dispatcher of one of the workers sends it

    @app.get("/orders/{number}")
    async def status(number: OrderNumber, backend: BackendDependency) -> Response:
        return status_response(await backend.status(number))

    @app.get("/orders/{number}/events")
    async def events(number: OrderNumber, backend: BackendDependency) -> Response:
        return await event_response(backend, number)

    return app
