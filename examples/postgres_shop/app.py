"""The shop: catalogue, orders and books. Change this module and `models`; `wiring` does the rest, as it is.

docs/postgres-shop.md explains it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import FileResponse
from models import OPEN, PAID, UNPAID, Order, Shipment
from pydantic import BaseModel
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from wiring import WITHIN, OrderNumber, ShopDependency, install_payments, limit_prompts, shop_lifespan, take_turns

from mobilemoney_async import AsyncClient, PaymentChange, PaymentRecord, SQLStore
from mobilemoney_async.values import tanzanian

PRICES = {"coffee": 15_000, "tea": 6_500}
PAGE = Path(__file__).parent / "page.html"


class Cart(BaseModel):
    """What the page sends. The price is the shop's."""

    item: str
    phone_number: str  # 0788 500 000, as customers type it


async def new_order(session: AsyncSession, cart: Cart) -> Order:
    """Return the order of a cart, with its price in whole shillings: from here, or from your tables."""
    if cart.item not in PRICES:
        raise HTTPException(422, "There is no such item.")
    return Order(item=cart.item, price=PRICES[cart.item])


async def set_state(session: AsyncSession, order: Order, state: str) -> None:
    """Change the state of an order. An open or a paid one holds its goods: take or give back yours here."""
    order.state = state


async def find_order(session: AsyncSession, number: str) -> Order | None:
    """Return an order, locked: a click and the books do not change it at once."""
    return await session.scalar(sa.select(Order).where(Order.number == number).with_for_update(of=Order))


async def place_order(session: AsyncSession, store: SQLStore, number: str, cart: Cart) -> PaymentRecord:
    """Record order and payment in one transaction: both, or none. The same number again is the same payment."""
    phone_number, chosen = tanzanian(cart.phone_number), cart.model_dump(mode="json", exclude={"phone_number"})
    await take_turns(session, number)  # of two clicks at once, the second waits for the first
    order = await find_order(session, number)
    if order is None:
        await limit_prompts(session, phone_number)
        order = await new_order(session, cart)
        order.number, order.phone_number, order.cart, order.state = number, phone_number, chosen, UNPAID
        session.add(order)
        await session.flush()  # it has its id now
    elif order.cart != chosen:
        raise HTTPException(409, "This order has another cart. Please begin a new order.")
    payment = await session.run_sync(
        lambda sync_session: store.enqueue(
            sync_session,
            type="collection",
            phone_number=phone_number,
            amount=order.price,
            idempotency_key=number,
            not_after=WITHIN,  # later the customer has gone: no phone rings
        )
    )
    if payment.state in {"QUEUED", "RELEASED"}:  # it will be sent, for the first time or again
        await set_state(session, order, OPEN)
    return payment


async def book(session: AsyncSession, change: PaymentChange) -> None:
    """Write what a change of a payment means for its order: the goods leave once, and only if they are paid."""
    order = None if change.key is None else await find_order(session, change.key)
    if order is None:  # a payment of another program
        return
    if change.state == "FINAL" and change.status == "SUCCESS":
        await set_state(session, order, PAID)
        shipment = insert(Shipment).values(order_id=order.id, booked_by=os.getpid())
        await session.execute(shipment.on_conflict_do_nothing())
    elif change.state in {"FINAL", "CANCELLED", "NOT_SENT", "REFUSED", "RELEASED"}:
        await set_state(session, order, UNPAID)


def create_app(make_client: Callable[..., AsyncClient] = AsyncClient.from_env, **options: Any) -> FastAPI:
    app = FastAPI(title="Duka", lifespan=shop_lifespan(book, make_client, **options), docs_url=None, redoc_url=None)
    install_payments(app)  # GET /orders/{number} and its events, callbacks, error answers

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(PAGE)

    @app.post("/orders/{number}")
    async def pay(number: OrderNumber, cart: Cart, shop: ShopDependency) -> Response:
        async with shop.sessions.begin() as session:
            payment = await place_order(session, shop.store, number, cart)
        return await shop.answer(payment)  # 202: one of the workers sends it

    return app
