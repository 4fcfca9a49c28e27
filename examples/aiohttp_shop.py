"""The shop of `fastapi_shop.py` on aiohttp, with a cleanup context: the same page, the same routes.

`python examples/aiohttp_shop.py` starts it together with a sandbox of the service, and prints its address.
"""

import asyncio
import contextlib
import json
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from html import escape
from pathlib import Path
from typing import Any

import anyio
from aiohttp import web

from mobilemoney_async import AsyncClient, MobileMoneyError, RateLimiter, SQLStore
from mobilemoney_async.callbacks import MAX_BODY, CallbackStatus
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.http_answers import HTTPAnswer, answer_error, answer_status, order_fields

FILES = Path(__file__).parent / "shop"
ITEMS = {"coffee": ("Coffee from Kilimanjaro, 250 g", 15_000), "tea": ("Tea from Mufindi, 100 g", 6_500)}
BACKEND: web.AppKey[Backend] = web.AppKey("backend", Backend)
ORDER = "{order:[A-Za-z0-9_-]{16,64}}"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
CALLBACK_STATUS = {
    CallbackStatus.ACCEPTED: 204,
    CallbackStatus.WRONG_TOKEN: 404,
    CallbackStatus.NOT_VERIFIED: 403,
    CallbackStatus.TOO_LARGE: 413,
}
routes = web.RouteTableDef()


def create_app(make_client: Callable[[], AsyncClient] = AsyncClient.from_env, **options: Any) -> web.Application:
    """Make the application.

    Args:
        make_client: Makes the client, with a store.
        options: Of `Backend`.
    """
    options = {"local_numbers": True, **options}  # 0788 500 000, as customers type it

    async def payments(app: web.Application) -> AsyncIterator[None]:
        async with make_client() as client, Backend(client, **options) as backend:
            app[BACKEND] = backend
            yield

    # More than the receiver's own limit, so that the receiver refuses large bodies itself.
    app = web.Application(middlewares=[errors], client_max_size=2 * MAX_BODY)
    app.cleanup_ctx.append(payments)
    app.add_routes(routes)
    return app


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn errors of the library into HTTP answers."""
    try:
        return await handler(request)
    except MobileMoneyError as error:
        return respond(answer_error(error))


def respond(answer: HTTPAnswer) -> web.Response:
    """Return an answer of the library as an aiohttp response."""
    headers = {"Content-Type": "application/json", **answer.headers}
    return web.Response(status=answer.status, body=json.dumps(dict(answer.body)), headers=headers)


@routes.get("/")
async def page(request: web.Request) -> web.Response:
    order = request.query.get("order", secrets.token_urlsafe(12))
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,64}", order):
        raise web.HTTPNotFound
    items = "\n".join(
        f'<label class="item"><input type="radio" name="item" value="{name}"{" checked" if name == "coffee" else ""}>'
        f"<span>{escape(title)}</span> <b>{price:,} TZS</b></label>"
        for name, (title, price) in ITEMS.items()
    )
    text = (FILES / "index.html").read_text("utf-8")
    for name, value in {"order": order, "items": items, "demo": ""}.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return web.Response(text=text, content_type="text/html", headers=HEADERS)


@routes.get("/{name:shop[.](css|js)}")
async def file(request: web.Request) -> web.FileResponse:
    return web.FileResponse(FILES / request.match_info["name"], headers=HEADERS)


@routes.post(f"/orders/{ORDER}")
async def pay(request: web.Request) -> web.Response:
    try:
        cart = await request.json()
        (_, price), phone_number = ITEMS[cart["item"]], cart["phone_number"]
    except (KeyError, TypeError, ValueError, RecursionError):  # the last for JSON that is nested very deeply
        problem = '{"title": "Please choose an item."}'
        raise web.HTTPUnprocessableEntity(text=problem, content_type="application/problem+json") from None
    order, backend = request.match_info["order"], request.app[BACKEND]
    # This shop has no login, so its best name for a caller is the address, with room for a crowd behind it. Give the
    # user of your login instead; behind a proxy the address is the proxy's.
    status = await backend.collect(order, phone_number=phone_number, amount=price, caller=request.remote)
    return respond(answer_status(status))


@routes.get(f"/orders/{ORDER}")
async def status(request: web.Request) -> web.Response:
    return respond(answer_status(await request.app[BACKEND].status(request.match_info["order"])))


@routes.get(f"/orders/{ORDER}/events")
async def events(request: web.Request) -> web.StreamResponse:
    backend, order = request.app[BACKEND], request.match_info["order"]
    if await backend.status(order) is None:
        return respond(answer_status(None))
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await stream.prepare(request)
    until = anyio.current_time() + 60
    with contextlib.suppress(ConnectionResetError):  # the customer has closed the page
        async for each in backend.watch(order):
            await stream.write(f"data: {json.dumps(order_fields(each))}\n\n".encode())
            if each.is_settled:
                await stream.write(b"event: settled\ndata: {}\n\n")
            elif anyio.current_time() >= until:
                break  # the browser reconnects
    return stream


@routes.post("/mobilemoney/callbacks")
@routes.post("/mobilemoney/callbacks/{token}")
async def callback(request: web.Request) -> web.Response:
    with anyio.move_on_after(1):
        body, token = await request.read(), request.match_info.get("token")
        result = await request.app[BACKEND].callbacks.receive(body, request.headers, token=token)
        return web.Response(status=CALLBACK_STATUS[result.status])
    return web.Response(status=503)


async def demonstrate(port: int = 8000, speed: float = 5.0) -> None:
    """Serve the shop and a sandbox, until interrupted."""
    from mobilemoney_async.sandbox import Sandbox

    sandbox = Sandbox(speed=speed)
    with tempfile.TemporaryDirectory() as folder:
        store = SQLStore(f"sqlite:///{folder}/payments.db")
        async with sandbox.serve() as base_url:

            def make_client() -> AsyncClient:
                limiter = RateLimiter(per_minute=60 * speed, burst=10, window=60 / speed)
                return AsyncClient(base_url, auth=sandbox.token, store=store, rate_limiter=limiter, timeout=5)

            runner = web.AppRunner(create_app(make_client, min_interval=0.2), shutdown_timeout=5)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", port).start()
                print(f"http://127.0.0.1:{port}  (+255 780 000 789 pays, …039 declines, …408 runs out of time)")
                await asyncio.Event().wait()
            finally:
                await runner.cleanup()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(demonstrate())
