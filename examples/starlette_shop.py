"""A shop on Starlette. `python examples/starlette_shop.py` runs it once, with a sandbox and a customer."""

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mobilemoney_async import AsyncClient, MobileMoneyError, SQLStore
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.http_answers import (
    HTTPAnswer,
    answer_error,
    answer_status,
)
from mobilemoney_async.sandbox import Sandbox

folder = tempfile.TemporaryDirectory()
sandbox = Sandbox(speed=60)


# In production: AsyncClient.from_env.
def make_client() -> AsyncClient:
    return sandbox.client(store=SQLStore(f"sqlite:///{folder.name}/payments.db"))


@asynccontextmanager
async def open_prices() -> AsyncIterator[dict[str, int]]:
    yield {"order-1": 15_000}  # your own database, cache, …


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    async with (
        open_prices() as prices,
        make_client() as client,
        # Reads 0788 500 000, as customers type it.
        Backend(client, local_numbers=True) as backend,
    ):
        yield {"prices": prices, "backend": backend}


def respond(answer: HTTPAnswer) -> JSONResponse:
    headers = dict(answer.headers)
    return JSONResponse(dict(answer.body), answer.status, headers)


async def pay(request: Request) -> JSONResponse:
    order = request.path_params["order"]
    status = await request.state.backend.collect(
        order,
        phone_number=(await request.json())["phone_number"],
        amount=request.state.prices[order],
    )
    return respond(answer_status(status))


async def status(request: Request) -> JSONResponse:
    backend = request.state.backend
    order = request.path_params["order"]
    return respond(answer_status(await backend.status(order)))


async def failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MobileMoneyError)
    return respond(answer_error(error))


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/orders/{order}", pay, methods=["POST"]),
        Route("/orders/{order}", status),
    ],
    exception_handlers={MobileMoneyError: failed},
)


with TestClient(app) as browser:  # a server, and a customer's browser
    cart = {"phone_number": "0780 000 789"}
    answer = browser.post("/orders/order-1", json=cart)
    while answer.status_code == 202:
        time.sleep(0.05)
        answer = browser.get("/orders/order-1")
    print(answer.json()["state"])
folder.cleanup()
