"""FastAPI (extra `fastapi`): a lifespan that owns the payments, dependencies, error answers, events and callbacks.

app = FastAPI(lifespan=mobilemoney_lifespan())
install_error_answers(app)
app.include_router(callback_router())

@app.post("/orders/{order}")
async def pay(order: str, cart: Cart, backend: BackendDependency) -> Response:
    return status_response(await backend.collect(order, phone_number=cart.phone_number, amount=cart.total))
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

import anyio

try:
    from fastapi import APIRouter, Depends, FastAPI, Request
    from fastapi.requests import HTTPConnection
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from starlette.requests import ClientDisconnect
except ModuleNotFoundError as _missing:
    raise ImportError(f'{__name__} needs an extra: pip install "mobilemoney-async[fastapi]"') from _missing

from mobilemoney_async.callbacks import MAX_BODY, CallbackStatus
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.http_answers import HTTPAnswer, answer_error, answer_status, order_fields
from mobilemoney_async.contrib.orders import OrderStatus
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.values import refuse

_CALLBACK_SECONDS = 1.0
# A stream ends after this time, and the browser reconnects: a server that stops waits for open streams.
_STREAM_SECONDS = 60.0
_HTTP_STATUS = {
    CallbackStatus.ACCEPTED: 204,
    CallbackStatus.WRONG_TOKEN: 404,
    CallbackStatus.NOT_VERIFIED: 403,
    CallbackStatus.TOO_LARGE: 413,
}


def mobilemoney_lifespan(
    make_client: Callable[[], AsyncClient] = AsyncClient.from_env, **options: Any
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan for ``FastAPI(lifespan=...)`` that opens client, poller and callbacks, and closes them.

    Args:
        make_client: Makes the client, with a store. By default from the environment.
        options: Of `Backend`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with make_client() as client, Backend(client, **options) as backend:
            app.state.mobilemoney = backend
            try:
                yield
            finally:
                del app.state.mobilemoney

    return lifespan


# Both are async, though they wait for nothing: FastAPI runs plain functions in a worker thread, for each request.
async def get_backend(connection: HTTPConnection) -> Backend:
    """Return the application's backend; a dependency.

    Raises:
        InvalidRequest: The application runs without `mobilemoney_lifespan`, or its server did not run that.
    """
    backend = getattr(connection.app.state, "mobilemoney", None)
    if not isinstance(backend, Backend):
        where = "on the application that has the route, and run by the server"
        raise refuse("lifespan", f"that of mobilemoney_lifespan(...), {where}")
    return backend


async def get_client(connection: HTTPConnection) -> AsyncClient:
    """Return the application's client; a dependency."""
    return (await get_backend(connection)).client


BackendDependency = Annotated[Backend, Depends(get_backend)]
"""For a route's argument: the backend."""
ClientDependency = Annotated[AsyncClient, Depends(get_client)]
"""For a route's argument: the client."""


def install_error_answers(app: FastAPI) -> None:
    """Turn errors of this library that a route raises into HTTP answers: see `http_answers.answer_error`."""

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, MobileMoneyError)
        return _response(answer_error(error))

    app.add_exception_handler(MobileMoneyError, answer)


def status_response(status: OrderStatus | None) -> Response:
    """Return an order's status as a response: 200 settled, 202 not yet, 404 for None."""
    return _response(answer_status(status))


async def event_response(backend: Backend, order: str) -> Response:
    """Return an order's statuses as Server-Sent Events, for the browser's ``EventSource``; 404 for an unknown order.

    Each status is one message with its JSON. After the settled one comes an event ``settled``, on which the page closes
    its source. A stream ends after a minute, and the browser reconnects by itself.

    Args:
        backend: Backend of the order.
        order: The order's name.

    Raises:
        StoreError: The store failed.
    """
    if await backend.status(order) is None:
        return status_response(None)
    return StreamingResponse(
        _events(backend.watch(order)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def callback_router(path: str = "/mobilemoney/callbacks") -> APIRouter:
    """Return a router that takes the service's callbacks at ``path/{token}``, and without a secret at ``path`` too.

    It answers within a second, even if `verify` or the sender is slow, and only with an HTTP status.

    Args:
        path: Path of the route; with a leading slash, without a trailing one.
    """
    router = APIRouter()

    async def receive(request: Request, backend: BackendDependency) -> Response:
        with anyio.move_on_after(_CALLBACK_SECONDS):
            try:
                body = await _read(request)
            except ClientDisconnect:
                return Response(status_code=400)  # the sender is gone and does not read it
            if body is None:
                return Response(status_code=413)
            token = request.path_params.get("token")
            result = await backend.callbacks.receive(body, request.headers, token=token)
            return Response(status_code=_HTTP_STATUS[result.status])
        return Response(status_code=503)

    router.add_api_route(path, receive, methods=["POST"], include_in_schema=False)
    router.add_api_route(f"{path}/{{token}}", receive, methods=["POST"], include_in_schema=False)
    return router


async def _read(request: Request) -> bytes | None:
    """Return a request's body, or None if it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


async def _events(statuses: AsyncIterator[OrderStatus]) -> AsyncGenerator[str]:
    until = anyio.current_time() + _STREAM_SECONDS
    yield "retry: 1000\n\n"
    while True:
        status = None
        with anyio.CancelScope(deadline=until):  # also of a first read that waits for a failed store
            status = await anext(statuses, None)
        if status is None:
            return
        yield f"data: {json.dumps(order_fields(status))}\n\n"
        if status.is_settled:
            yield "event: settled\ndata: {}\n\n"


def _response(answer: HTTPAnswer) -> Response:
    return JSONResponse(dict(answer.body), status_code=answer.status, headers=dict(answer.headers))
