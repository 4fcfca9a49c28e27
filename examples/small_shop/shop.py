"""A small shop on FastAPI and SQLite. docs/testing-your-shop.md has its rules and its tests."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import NoReturn

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from mobilemoney_async import AsyncClient, PaymentChange, SQLStore
from mobilemoney_async.contrib.fastapi import install_error_answers, mobilemoney_lifespan
from mobilemoney_async.values import tanzanian

PRICE = 15_000


class Cart(BaseModel):
    phone_number: str


def unknown() -> NoReturn:
    raise HTTPException(404)


def create_app(
    file: str = "shop.db",
    make_client: Callable[..., AsyncClient] = AsyncClient.from_env,
) -> FastAPI:
    store = SQLStore(f"sqlite:///{file}")  # orders and payments: one file

    def books(statement: str, *values: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(file)) as database, database:
            return database.execute(statement, values).fetchall()

    def move(order: str, before: str, after: str) -> None:
        books(
            "UPDATE orders SET state = ? WHERE id = ? AND state = ?",
            after,
            order,
            before,
        )

    async def settle(change: PaymentChange) -> None:
        # Safe to repeat: a change may come twice.
        if change.status == "SUCCESS":
            move(change.key, "open", "ship")
            move(change.key, "unpaid", "ship")  # paid after all
            move(change.key, "given up", "refund")
        else:
            move(change.key, "open", "unpaid")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        books("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
        options = {"on_settled": settle, "name": "shop", "pause_after": None}  # strangers do not close the shop
        async with mobilemoney_lifespan(lambda: make_client(store=store), **options)(app):
            yield
        store.close()

    app = FastAPI(lifespan=lifespan)
    install_error_answers(app)  # a wrong number, another payment of the order

    @app.post("/orders/{order}")
    async def pay(order: str, cart: Cart, response: Response) -> str:
        # Order and payment: both or none.
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("INSERT OR IGNORE INTO orders VALUES (?, 'open')", (order,))
            payment = store.enqueue(
                database,
                type="collection",
                phone_number=tanzanian(cart.phone_number),
                amount=PRICE,
                idempotency_key=order,
                not_after=timedelta(minutes=10),
            )
            if payment.state == "QUEUED":  # also once more, after it was unpaid
                database.execute("UPDATE orders SET state = 'open' WHERE id = ? AND state = 'unpaid'", (order,))
        found = await state(order)
        response.status_code = {"open": 202}.get(found, 200)
        return found

    @app.post("/orders/{order}/give-up")
    async def give_up(order: str) -> None:  # the goods are on sale again
        move(order, "open", "given up")

    @app.get("/orders/{order}")
    async def state(order: str) -> str:
        found = books("SELECT state FROM orders WHERE id = ?", order)
        return found[0][0] if found else unknown()

    return app
