"""A small shop on Django: settings, model, views and ASGI application in one file.

docs/testing-your-shop.md has its rules and its tests.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import close_old_connections, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount

from mobilemoney_async import AsyncClient, MobileMoneyError, PaymentChange, SQLStore
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.http_answers import HTTPAnswer, answer_error, answer_status
from mobilemoney_async.values import tanzanian

settings.configure(
    ALLOWED_HOSTS=["shop", "127.0.0.1"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "shop.db",
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    },
    ROOT_URLCONF=__name__,
    USE_TZ=True,
)
django.setup()
PRICE = 15_000


class Order(models.Model):
    id = models.CharField(max_length=40, primary_key=True)
    state = models.CharField(max_length=10, default="open")

    class Meta:
        app_label = "shop"


def order(request: HttpRequest, number: str) -> JsonResponse:
    if request.method == "POST":
        try:
            place(number, json.loads(request.body)["phone_number"])
        except MobileMoneyError as error:  # a wrong number, another payment of the order
            return respond(answer_error(error))
    state = get_object_or_404(Order, id=number).state
    return JsonResponse(state, safe=False, status=202 if (request.method, state) == ("POST", "open") else 200)


def place(number: str, phone_number: str) -> None:
    # Order and payment: both or none.
    with transaction.atomic():
        Order.objects.get_or_create(id=number)
        payment = store().enqueue(
            connection,
            type="collection",
            phone_number=tanzanian(phone_number),
            amount=PRICE,
            idempotency_key=number,
            not_after=timedelta(minutes=10),
        )
        if payment.state == "QUEUED":  # also once more, after it was unpaid
            Order.objects.filter(id=number, state="unpaid").update(state="open")


def respond(answer: HTTPAnswer) -> JsonResponse:
    response = JsonResponse(dict(answer.body), status=answer.status)
    for name, value in answer.headers.items():
        response[name] = value
    return response


def give_up(request: HttpRequest, number: str) -> JsonResponse:
    # The goods are on sale again.
    Order.objects.filter(id=number, state="open").update(state="given up")
    return JsonResponse("given up", safe=False)


async def status(request: HttpRequest, number: str) -> JsonResponse:
    backend = request.scope["state"]["backend"]
    return respond(answer_status(await backend.status(number)))


urlpatterns = [
    path("orders/<number>", order),
    path("orders/<number>/give-up", give_up),
    path("orders/<number>/status", status),
]


def store() -> SQLStore:  # orders and payments: one database
    return SQLStore(f"sqlite:///{settings.DATABASES['default']['NAME']}")


async def settle(change: PaymentChange) -> None:
    await sync_to_async(close_old_connections)()  # Django does that only around requests
    # Safe to repeat: a change may come twice.
    orders = Order.objects.filter(id=change.key)
    if change.status == "SUCCESS":
        await orders.filter(state__in=["open", "unpaid"]).aupdate(state="ship")
        await orders.filter(state="given up").aupdate(state="refund")
    else:
        await orders.filter(state="open").aupdate(state="unpaid")


def create_app(
    make_client: Callable[..., AsyncClient] = AsyncClient.from_env,
) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with (
            make_client(store=store()) as client,
            Backend(client, on_settled=settle, name="shop", pause_after=None) as backend,
        ):
            yield {"backend": backend}

    django_app = get_asgi_application()
    return Starlette(lifespan=lifespan, routes=[Mount("/", app=django_app)])
