"""A small shop that is paid by phone, on FastAPI.

`python examples/fastapi_shop.py` starts it together with a sandbox of the service, and prints its address. With
MOBILEMONEY_BASE_URL and the other variables of `AsyncClient.from_env` set, `uvicorn --factory fastapi_shop:create_app`
serves it against the real service; MOBILEMONEY_STORE then names the store that remembers the payments.

The order number is the payment's idempotency key: a second click, a reload and a restart give the same payment.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, HTMLResponse
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mobilemoney_async import AsyncClient, RateLimiter, SQLStore
from mobilemoney_async.contrib.fastapi import (
    BackendDependency,
    callback_router,
    event_response,
    install_error_answers,
    mobilemoney_lifespan,
    status_response,
)

FILES = Path(__file__).parent / "shop"
MAX_BODY = 100_000  # bytes; the receiver of callbacks refuses large ones itself, below that
ITEMS = {"coffee": ("Coffee from Kilimanjaro, 250 g", 15_000), "tea": ("Tea from Mufindi, 100 g", 6_500)}
OrderNumber = Annotated[str, InPath(pattern=r"^[A-Za-z0-9_-]{16,64}$")]
# Permissions of the page: its own files, and nothing else.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
DEMO = """<details class="card"><summary>This shop is a demonstration</summary>
<p>No money moves. These numbers decide how a payment ends:</p>
<ul class="numbers">
<li><code>+255 780 000 789</code> pays</li>
<li><code>+255 780 000 039</code> does not approve</li>
<li><code>+255 780 000 408</code> lets the time run out</li>
<li><code>+255 780 000 203</code> pays, but our request gets no proper answer</li>
</ul></details>"""


class Cart(BaseModel):
    """The customer's choices. The price is the shop's."""

    item: Literal["coffee", "tea"]
    phone_number: str


class BodyLimit:
    """Middleware that stops reading a request's body when it is too large: FastAPI reads any body whole."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = MAX_BODY

        async def receive_bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413)
            return message

        await self.app(scope, receive_bounded, send)


def create_app(
    make_client: Callable[[], AsyncClient] = AsyncClient.from_env, *, is_demo: bool = False, **options: Any
) -> FastAPI:
    """Make the application.

    Args:
        make_client: Makes the client, with a store.
        is_demo: Whether to show the sandbox's numbers.
        options: Of `Backend`.
    """
    options = {"local_numbers": True, **options}  # 0788 500 000, as customers type it
    app = FastAPI(title="Duka", lifespan=mobilemoney_lifespan(make_client, **options), docs_url=None, redoc_url=None)
    install_error_answers(app)
    app.add_middleware(BodyLimit)
    app.include_router(callback_router())

    @app.get("/")
    async def page(order: str | None = None) -> HTMLResponse:
        return HTMLResponse(render(order, is_demo=is_demo), headers=HEADERS)

    @app.get("/{name}.{kind}")
    async def file(name: Literal["shop"], kind: Literal["css", "js"]) -> FileResponse:
        return FileResponse(FILES / f"{name}.{kind}", headers=HEADERS)

    @app.post("/orders/{order}")
    async def pay(order: OrderNumber, cart: Cart, request: Request, backend: BackendDependency) -> Response:
        _, price = ITEMS[cart.item]
        # This shop has no login, so its best name for a caller is the address, with room for a crowd behind it. Give
        # the user of your login instead. Behind a proxy, let uvicorn trust its header: --forwarded-allow-ips.
        caller = request.client.host if request.client else None
        status = await backend.collect(order, phone_number=cart.phone_number, amount=price, caller=caller)
        return status_response(status)

    @app.get("/orders/{order}")
    async def status(order: OrderNumber, backend: BackendDependency) -> Response:
        return status_response(await backend.status(order))

    @app.get("/orders/{order}/events")
    async def events(order: OrderNumber, backend: BackendDependency) -> Response:
        return await event_response(backend, order)

    return app


def render(order: str | None, *, is_demo: bool) -> str:
    """Return the page for an order, a new one by default."""
    if order is not None and not all(each.isalnum() or each in "-_" for each in order):
        raise HTTPException(404)
    items = "\n".join(
        f'<label class="item"><input type="radio" name="item" value="{name}"{" checked" if name == "coffee" else ""}>'
        f"<span>{escape(title)}</span> <b>{price:,} TZS</b></label>"
        for name, (title, price) in ITEMS.items()
    )
    page = (FILES / "index.html").read_text("utf-8")
    fields = {"order": escape(order or secrets.token_urlsafe(12)), "items": items, "demo": DEMO if is_demo else ""}
    for name, value in fields.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    return page


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

            app = create_app(make_client, is_demo=True, min_interval=0.2)
            # An event stream is open as long as its page. A stopping server must not wait for all of them.
            config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=5)
            print(f"http://127.0.0.1:{port}")
            await uvicorn.Server(config).serve()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(demonstrate())
