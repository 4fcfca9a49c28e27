"""What the FastAPI parts promise to routes, beyond the example shop.

Functions import FastAPI, since it is a fifth of all that a collection of tests would import.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import anyio
import httpx
import pytest

from mobilemoney_async import AsyncClient, InvalidRequest, PaymentChange, SQLStore, StoreError, TransactionNotFound
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.sandbox import Sandbox

CALLBACKS = "/mobilemoney/callbacks"


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    from fastapi import FastAPI

    from mobilemoney_async.contrib.fastapi import (
        ClientDependency,
        callback_router,
        install_error_answers,
        mobilemoney_lifespan,
    )

    sandbox = Sandbox(speed=100)

    def make_client() -> AsyncClient:
        return sandbox.client(store=SQLStore(f"sqlite:///{folder}/payments.db"))

    app = FastAPI(lifespan=mobilemoney_lifespan(make_client, **options))
    install_error_answers(app)
    app.include_router(callback_router())

    @app.get("/transactions/{transaction_id}")
    async def get(transaction_id: str, client: ClientDependency) -> str:
        return str((await client.transactions.get(transaction_id)).status)

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as web,
    ):
        yield web
    assert not hasattr(app.state, "mobilemoney")


@pytest.mark.costly("runs lines of contrib/fastapi.py that no quick test runs")
async def test_errors_of_the_client_are_answered(tmp_path: Path) -> None:
    """A route may use the client and let its errors through."""
    async with served(tmp_path) as web:
        answer = await web.get("/transactions/T-unknown")
    assert answer.status_code == 404
    assert answer.json()["title"] == "There is no such payment."
    assert TransactionNotFound.__name__ not in answer.text


async def test_a_callback_is_answered_within_a_second(tmp_path: Path) -> None:
    """A check that takes for ever does not keep the service waiting."""

    async def verify(body: bytes, headers: Mapping[str, str]) -> bool:
        await anyio.sleep_forever()
        return True

    async with served(tmp_path, verify=verify) as web:
        came = anyio.current_time()
        assert (await web.post(CALLBACKS, content=b"T-1")).status_code == 503
        assert anyio.current_time() - came <= 1


async def test_a_callback_without_a_secret_needs_no_token(tmp_path: Path) -> None:
    """Without a secret the plain address works; `verify` decides alone, and says no with 403."""

    def verify(body: bytes, headers: Mapping[str, str]) -> bool:
        return body == b"good"

    async with served(tmp_path, verify=verify) as web:
        assert (await web.post(CALLBACKS, content=b"good")).status_code == 204
        assert (await web.post(CALLBACKS, content=b"bad")).status_code == 403


async def test_a_stream_ends_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the store fails from its first look on: a server that stops waits for open streams."""
    from starlette.responses import StreamingResponse

    from mobilemoney_async.contrib.fastapi import event_response

    async def fail(key: str) -> NoReturn:
        raise StoreError("the database is away")

    sandbox = Sandbox(speed=100)
    store = SQLStore(f"sqlite:///{tmp_path}/payments.db")
    async with sandbox.client(store=store) as client:
        backend = Backend(client)  # without its background work, which a minute has much of
        await client.payments.enqueue(
            type="collection",
            phone_number="+255780000789",
            amount=1500,
            idempotency_key="order-1",
            not_before=timedelta(hours=1),
        )
        messages: list[Any] = []
        for answer in [await event_response(backend, "order-1") for _ in range(2)]:
            assert isinstance(answer, StreamingResponse)
            began = anyio.current_time()
            with anyio.fail_after(61):
                messages = [message async for message in answer.body_iterator]
            assert anyio.current_time() - began >= 59
            assert messages[0] == "retry: 1000\n\n"
            monkeypatch.setattr(client.payments, "get", fail)  # for the second
        assert len(messages) == 1


@pytest.mark.slow
async def test_it_lives_inside_a_lifespan_of_your_own(tmp_path: Path) -> None:
    """Start-up code and a background job pay without a route, and `on_settled` is theirs, too."""
    from fastapi import FastAPI

    from mobilemoney_async.contrib.fastapi import mobilemoney_lifespan

    sandbox, settled, steps = Sandbox(speed=100), anyio.Event(), list[str]()

    async def on_settled(change: PaymentChange) -> None:
        steps.append(f"{change.key} {change.status}")
        settled.set()

    async def job(backend: Backend) -> None:
        await backend.disburse("salary-1", phone_number="+255780000789", amount=1500)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = SQLStore(f"sqlite:///{tmp_path}/payments.db")
        inner = mobilemoney_lifespan(lambda: sandbox.client(store=store), on_settled=on_settled, name="shop")
        async with inner(app), anyio.create_task_group() as tasks:
            steps.append(str(await app.state.mobilemoney.client.payments.list()))
            tasks.start_soon(job, app.state.mobilemoney)
            yield
        steps.append("closed")

    app = FastAPI(lifespan=lifespan)
    async with app.router.lifespan_context(app):
        with anyio.fail_after(20):
            await settled.wait()
    assert steps == ["[]", "salary-1 SUCCESS", "closed"]


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_missing_lifespan_is_named(*, is_given: bool) -> None:
    """An application without the lifespan, or a server that does not run it, gets no AttributeError."""
    from fastapi import FastAPI

    from mobilemoney_async.contrib.fastapi import callback_router, mobilemoney_lifespan

    app = FastAPI(lifespan=mobilemoney_lifespan() if is_given else None)
    app.include_router(callback_router())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as web:
        with pytest.raises(InvalidRequest, match=r"mobilemoney_lifespan.*and run by the server"):
            await web.post(CALLBACKS, content=b"")
