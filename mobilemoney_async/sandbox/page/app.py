"""Phone page as an ASGI application: its routes, forms and event streams, and its protection against other websites.

The page has no password, and any website that is open in the same browser can send requests to it: forms from another
origin, or requests under a name that resolves to 127.0.0.1 and look like the page's own (DNS rebinding). The browser
names origin and host, so both are refused.
"""

import ipaddress
import re
import secrets
import weakref
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mobilemoney_async.sandbox.accounts import Account
from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.endpoints import PREFIX, ROUTES
from mobilemoney_async.sandbox.page.forms import Actions, Form, RefusedForm, account_of, one_of, read
from mobilemoney_async.sandbox.page.fragments import ASSETS, DOCUMENT, TICK, EventStream, write, write_parts
from mobilemoney_async.sandbox.page.snapshot import Snapshot, take

MASK_COOKIE, MERCHANT_COOKIE = "mobilemoney_mask", "mobilemoney_merchant"

HOST = "mobilemoney_async.sandbox.host"
"""Key in the ASGI scope's `state`: the host that `serve` was asked to listen on."""

_NOT_KEPT = {"cache-control": "no-store"}
_YEAR = 31_536_000

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_HOST_HEADER = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+))(?::[0-9]*)?")

_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: browsers would then send `Origin: null` with the page's own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def create_page(sandbox: Controls) -> ASGIApp:
    """Make the phone page of a sandbox, which answers requests from other websites with HTTP 403."""
    actions = Actions(sandbox)
    page = _Page(sandbox, actions)
    forms: dict[str, Callable[[Form], None]] = {
        "/phones/ask": actions.ask,
        "/phones/pin": actions.enter_pin,
        "/phones/decline": actions.decline,
        "/phones/expire": actions.expire,
        "/phones/by-hand": actions.answer_by_hand,
        "/clock": actions.run_clock,
        "/clock/jump": actions.jump,
        "/faults": actions.switch_faults,
        "/callbacks": actions.send_callbacks,
    }
    routes = [
        Route("/", page.show),
        Route("/live", page.follow),
        *(Route(f"/static/{name}", file, methods=["GET"]) for name, file in ASSETS.items()),
        Route("/openapi.json", DOCUMENT, methods=["GET"]),
        Route("/merchants.json", page.tell_tokens),
        Route("/mask", page.mask, methods=["POST"]),
        Route("/merchant", page.switch, methods=["POST"]),
        *(Route(path, page.does(forms[path], shown_at=path.split("/")[1]), methods=["POST"]) for path in forms),
    ]
    return guarded(Starlette(routes=routes, exception_handlers={404: _not_found, RefusedForm: page.show}))


class _Choice(NamedTuple):
    """Choice of a browser: the merchant's name, and whether phone numbers are masked."""

    merchant: str
    masked: bool


class _Page:
    """Page of one sandbox, with the event streams of its open pages."""

    def __init__(self, sandbox: Controls, actions: Actions) -> None:
        self._sandbox = sandbox
        self._actions = actions
        self._secret = secrets.token_bytes(16)
        # By merchant and whether numbers are masked: the snapshot, its parts, and until when streams share them.
        self._looks: dict[_Choice, tuple[Snapshot, Mapping[str, str], float]] = {}
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()

    async def show(self, request: Request, refused: Any = None) -> Response:
        """Show the page, with the refusal of a form; to htmx, which sent the form, what the event stream leaves out."""
        details = self._details(request, refused)
        if _is_from_htmx(request):
            html = write("answer", path=request.url.path, **details)
        else:
            snapshot = self._take(self._account(request), masked=_is_masked(request))
            html = write("page", snapshot=snapshot, **details)
        return HTMLResponse(html, refused.status if refused else 200, _NOT_KEPT)

    async def follow(self, request: Request) -> Response:
        choice = _Choice(self._account(request).name, _is_masked(request))
        stream = EventStream(lambda: self._look(choice))
        self._streams.add(stream)
        return StreamingResponse(stream, headers=_NOT_KEPT, media_type="text/event-stream")

    async def mask(self, request: Request) -> Response:
        """Mask phone numbers from now on in this browser, or show them."""
        masked = one_of(await read(request), "masked", "yes", "no")
        return self._choose("/", MASK_COOKIE, masked if masked == "yes" else None)

    async def switch(self, request: Request) -> Response:
        """Show another merchant from now on in this browser."""
        name = one_of(await read(request), "merchant", *self._sandbox.merchants)
        return self._choose("/#merchant", MERCHANT_COOKIE, name)

    async def tell_tokens(self, request: Request) -> Response:
        return JSONResponse(dict(self._sandbox.tokens), headers=_NOT_KEPT)

    def _choose(self, shown_at: str, cookie: str, value: str | None) -> Response:
        """Return the answer to a choice that is a cookie of the browser's."""
        answer = RedirectResponse(shown_at, 303)
        if value is not None:
            answer.set_cookie(cookie, value, max_age=_YEAR, httponly=True, samesite="strict")
        else:
            answer.delete_cookie(cookie, httponly=True, samesite="strict")
        # Other pages of this browser follow streams that were opened with the old cookie.
        for stream in self._streams:
            stream.end()
        return answer

    def _account(self, request: Request) -> Account:
        """Return the account of the merchant that a browser has chosen."""
        return account_of(self._sandbox, request.cookies.get(MERCHANT_COOKIE))

    def does(self, action: Callable[[Form], None], shown_at: str) -> Callable[..., object]:
        """Make the endpoint of an action: a plain form is answered with the page, htmx with the stream's gaps."""

        async def endpoint(request: Request) -> Response:
            request.state.form = form = await read(request)
            action(form)  # without an await: all of it happens, or nothing
            self._wake()
            return await self.show(request) if _is_from_htmx(request) else RedirectResponse(f"/#{shown_at}", 303)

        return endpoint

    def _look(self, choice: _Choice) -> Mapping[str, str]:
        """Return the parts of the page, rendered again only if the snapshot has changed.

        Streams that look within half a tick share one snapshot, and those that show the same parts get the same object.
        """
        now, last = anyio.current_time(), self._looks.get(choice)
        if last is not None and now < last[2]:
            return last[1]
        snapshot = self._take(account_of(self._sandbox, choice.merchant), masked=choice.masked)
        parts = write_parts(snapshot) if last is None or last[0] != snapshot else last[1]
        self._looks[choice] = (snapshot, parts, now + TICK / 2)
        return parts

    def _wake(self) -> None:
        """Let all streams look at once, from the beginning."""
        self._looks = {choice: (snapshot, parts, -inf) for choice, (snapshot, parts, _) in self._looks.items()}
        for stream in self._streams:
            stream.wake()

    def _take(self, account: Account, *, masked: bool) -> Snapshot:
        return take(self._sandbox, account, masked=masked, secret=self._secret, asked=self._actions.asked)

    def _details(self, request: Request, refused: RefusedForm | None) -> dict[str, object]:
        """Return the values of the page outside the snapshot, with the refusal of the form if there is one."""
        return {
            "refused": refused,
            "form": getattr(request.state, "form", {}),
            "base_url": f"{request.url.scheme}://{request.headers['host']}{PREFIX}",
            "account": self._account(request),
            "merchants": self._sandbox.merchants,
            "endpoints": [route.name for route in ROUTES],
            "callbacks": self._sandbox.callbacks,
        }


def _is_from_htmx(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _is_masked(request: Request) -> bool:
    return request.cookies.get(MASK_COOKIE) == "yes"


async def _not_found(request: Request, _: Exception) -> Response:
    return PlainTextResponse(f"Not found. The page is at /, the API under {PREFIX}.\n", 404)


def refusal(scope: Scope) -> str | None:
    """Return the reason to refuse a request that is not the page's own; None for one that may pass."""
    headers = Headers(scope=scope)
    if not is_own_host(scope):
        return (
            "The page answers only under a loopback address, such as http://127.0.0.1, or the address it is served at."
        )
    if scope["method"] in _SAFE_METHODS:
        return None
    origin = headers.get("origin")
    # Neither header: no browser sent it, and a program on this machine needs no page to do harm.
    foreign_origin = origin is not None and origin.partition("//")[2].lower() != headers["host"].lower()
    if foreign_origin or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "The page takes no requests from other websites."
    return None


def guarded(app: ASGIApp) -> ASGIApp:
    """Return an application that refuses foreign requests with HTTP 403, and sets the security headers."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        reason = refusal(scope)
        answer = app if reason is None else PlainTextResponse(reason, 403)
        await answer(scope, receive, send_guarded)

    return serve


def is_own_host(scope: Scope) -> bool:
    """Return whether the Host header names loopback, the host of `serve` or the address of the connection.

    No other name does: a foreign one may resolve to this machine.
    """
    found = _HOST_HEADER.fullmatch(Headers(scope=scope).get("host", ""))
    if found is None:
        return False
    name, own = (found[1] or found[2]).lower(), (scope.get("state", {}).get(HOST), *(scope.get("server") or ())[:1])
    return _is_loopback(name) or name in {each.lower() for each in own if each}


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
