"""Security of the page: protection against other websites.

The page has no password, and any website that is open in the same browser can send requests to it: forms from another
origin, or requests under a name that resolves to 127.0.0.1 and look like the page's own (DNS rebinding). The browser
names origin and host, so both are refused.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

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


def refusal(method: str, headers: Mapping[str, str], *, served_at: str | None) -> str | None:
    """Return the reason to refuse a request that is not the page's own; None for one that may pass.

    The server answers to loopback names and to `served_at`. Headers are by lower-case name.
    """
    host = headers.get("host", "")
    name = _host_name(host)
    if not _is_loopback(name) and name != (served_at or "").lower():
        return (
            "The page answers only under a loopback address, such as http://127.0.0.1, or the address it is served at."
        )
    if method in _SAFE_METHODS:
        return None
    origin = headers.get("origin")
    # Neither header: no browser sent it, and a program on this machine needs no page to do harm.
    foreign_origin = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    if foreign_origin or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "The sandbox's controls take no requests from other websites."
    return None


class SecurityMiddleware:
    """Middleware that refuses foreign requests with HTTP 403, and sets the security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        server = scope.get("server")
        reason = refusal(scope["method"], Headers(scope=scope), served_at=server[0] if server else None)
        app = self._app if reason is None else PlainTextResponse(reason, 403)
        await app(scope, receive, send_guarded)


def _host_name(host: str) -> str:
    """Return the name or address in a Host header, without brackets and port; empty if it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
