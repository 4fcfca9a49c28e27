"""Connection pools of our own: base URL and what is below it, certificates, proxy, and httpx-aiohttp's pool.

Beside `calls.transport` the only module that imports httpx, and the only one that imports aiohttp.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import httpx

from mobilemoney_async.errors import ConnectionFailed
from mobilemoney_async.tracebacks import without_frames
from mobilemoney_async.values import HiddenText, missing_extra, refuse, url_shape

_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=5.0)
_PARSED = "_uri_reference"  # what httpx keeps of a URL; there is no public way to have it parsed later
# Path and query in which httpx would quote nothing, and resolve no dots; longer URLs are httpx's to refuse.
_MOST_PLAIN = 8_000
_PLAIN_TARGET = re.compile(r"(?:/[\w\-~%][\w\-~%.]*)+(?:\?[\w\-~%.=&]*)?", re.ASCII)


def check_base_url(base_url: object) -> str:
    """Return the base URL of the service without a trailing slash.

    Raises:
        InvalidRequest: It is no absolute URL, holds user, query or fragment, or would send tokens in the clear.
    """
    accepts = "an absolute URL with the version prefix, such as https://pay.example/v1: https, or http on loopback only"
    if not isinstance(base_url, str) or not base_url.isascii() or any(char <= " " for char in base_url):
        raise refuse("base_url", accepts, url_shape(base_url))
    try:
        scheme, has_user, host = _split(base_url)
    except (ValueError, httpx.InvalidURL) as exc:
        without_frames(exc)  # which hold a password, if the URL does
        raise refuse("base_url", accepts, url_shape(base_url)) from None
    # Also an empty query or fragment: the path of a request would belong to it.
    if has_user or {"?", "#"} & {*base_url} or not host:
        raise refuse("base_url", f"{accepts}, without user, query or fragment", url_shape(base_url))
    if scheme != "https" and not (scheme == "http" and _is_loopback(host)):
        raise refuse("base_url", accepts, url_shape(base_url), "tokens must not travel in the clear")
    return base_url.rstrip("/")


def _split(base_url: str) -> tuple[str, bool, str | None]:
    """Return the scheme, whether there is a user, and the host."""
    parts = urlsplit(base_url)
    host, _, _ = parts.hostname, parts.port, httpx.URL(base_url)  # which refuses hosts such as 10.0.0.256
    return parts.scheme, parts.username is not None, host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _PlainURL(httpx.URL):
    """URL below a base URL that httpx would leave as it is: parsing it takes longer than the rest of a request.

    It is parsed all the same for users that ask for more of it than a pool does, such as instrumentation.
    """

    def __init__(self, base: httpx.URL, target: str) -> None:
        self._base, self._target = base, HiddenText(target)

    raw_scheme = property(lambda self: self._base.raw_scheme)
    raw_host = property(lambda self: self._base.raw_host)
    port = property(lambda self: self._base.port)
    raw_path = property(lambda self: self._base.raw_path.rstrip(b"/") + self._target.encode("ascii"))

    def __str__(self) -> str:
        return str(self._base).rstrip("/") + self._target

    @property
    def _uri_reference(self) -> Any:  # type: ignore[override]
        return getattr(httpx.URL(str(self)), _PARSED)


def below(base: httpx.URL, url: str, target: str) -> httpx.URL:
    """Return a URL that consists of a base URL and a quoted target."""
    if len(url) > _MOST_PLAIN or not _PLAIN_TARGET.fullmatch(target) or not hasattr(base, _PARSED):
        return httpx.URL(url)
    return _PlainURL(base, target)


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the certificates that all clients of a process share: loading them takes 18 ms."""
    return httpx.create_ssl_context()


def make_pool(base_url: str, *, aiohttp: bool) -> httpx.AsyncBaseTransport:
    """Return a pool of connections to the service.

    Args:
        base_url: The service.
        aiohttp: Whether the pool is httpx-aiohttp's, in place of httpx's.

    Raises:
        ConnectionFailed: A setting of the environment is unusable: the proxy, or the trusted certificates.
    """
    parts = urlsplit(base_url)
    try:
        verify: ssl.SSLContext | bool = ssl_context() if parts.scheme == "https" else False
        proxy = _proxy(parts)
        if not aiohttp:
            return httpx.AsyncHTTPTransport(verify=verify, limits=_LIMITS, proxy=proxy)
        if proxy is None or proxy.url.scheme in {"http", "https"}:
            return _make_aiohttp_pool(verify, proxy)
        fault = f"{_shown_proxy(parts.scheme)} must be http or https for aiohttp"
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        fault = f"the trusted certificates cannot be read ({reason}): see SSL_CERT_FILE and SSL_CERT_DIR"
    except ImportError:
        fault = f"{_shown_proxy(parts.scheme)} cannot be used: pip install socksio"
    except (ValueError, httpx.InvalidURL):
        fault = f"{_shown_proxy(parts.scheme)} must be the URL of a proxy, such as http://proxy.example:3128"
    # Outside: the library's error may quote the proxy's password.
    failed = ConnectionFailed(f"cannot connect to {parts.netloc}: {fault}; nothing was sent", outcome="not_sent")
    failed.peer = parts.netloc
    raise failed


def _make_aiohttp_pool(verify: ssl.SSLContext | bool, proxy: httpx.Proxy | None) -> httpx.AsyncBaseTransport:
    import aiohttp
    from httpx_aiohttp import AiohttpTransport

    class UnaskedError(aiohttp.ClientConnectionError):
        """Connection on which an answer came without a request: aiohttp takes it for that to the request."""

    used: WeakSet[Any] = WeakSet()

    class OneUseRequest(aiohttp.ClientRequest):
        _send_on = aiohttp.ClientRequest.send  # fails here, not silently, where a release of aiohttp sends otherwise

        async def send(self, conn: Any) -> aiohttp.ClientResponse:
            if conn.protocol in used and conn.protocol.should_close:
                raise UnaskedError  # which closes it; nothing was sent
            used.add(conn.protocol)
            return await self._send_on(conn)

    async def send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        while True:  # until a connection is new, or nothing has come on it
            with suppress(UnaskedError):
                return await send(request, handler)

    async def send(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        # aiohttp sends a GET, PUT or DELETE again when a used connection breaks: past the limiter, and a PUT may be
        # money. It does so for these two errors only, so they leave here as a third one.
        try:
            return await handler(request)
        except aiohttp.ClientConnectorError:
            raise  # no connection: never sent again
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
            raise aiohttp.ClientConnectionError("the connection broke") from exc

    def open_session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=verify, limit=_LIMITS.max_connections or 0, keepalive_timeout=_LIMITS.keepalive_expiry or 0
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(send_once,),
            request_class=OneUseRequest,
        )

    return AiohttpTransport(client=open_session, verify=verify, proxy=proxy)


def _proxy(service: SplitResult) -> httpx.Proxy | None:
    """Return the environment's proxy for the service, as every HTTP client honours it."""
    host, netloc = service.hostname, service.netloc
    # In NO_PROXY each of them may stand, as httpx reads it.
    if host is None or _is_loopback(host) or any(map(proxy_bypass, (host, netloc, f"{service.scheme}://{netloc}"))):
        return None
    _, url = _proxy_setting(service.scheme)
    if not url:
        return None
    url = url if "://" in url else f"http://{url}"
    parts = urlsplit(url)
    _, _ = parts.port, (parts.hostname or ".").encode("idna")  # which httpx would fail to connect to
    return httpx.Proxy(url)


def _proxy_setting(scheme: str) -> tuple[str, str]:
    """Return name and value of the environment's setting of a proxy."""
    proxies = getproxies()
    name = scheme if proxies.get(scheme) else "all"
    return f"{name.upper()}_PROXY", proxies.get(name, "")


def _shown_proxy(scheme: str) -> str:
    """Return the setting of a proxy for an error, without a password."""
    name, url = _proxy_setting(scheme)
    shape = url_shape(url)
    return f"{name} ({shape})" if isinstance(shape, str) else name


def route(base_url: str) -> str:
    """Return the host of the service, and the environment's proxy on the way to it, for an error."""
    parts = urlsplit(base_url)
    with suppress(Exception):  # a proxy's URL that makes no sense
        if (proxy := _proxy(parts)) is not None:
            return f"{parts.netloc} through the proxy {proxy.url.netloc.decode('ascii')}"
    return parts.netloc


def require_aiohttp() -> None:
    """Raise `InvalidRequest` if the extra ``aiohttp`` is not installed."""
    try:
        import httpx_aiohttp  # noqa: F401
    except ImportError as exc:
        raise missing_extra("transport", "aiohttp", exc) from exc
