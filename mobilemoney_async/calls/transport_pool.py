"""Connection pools of our own: base URL, certificates, proxy, and the pools of httpx-aiohttp and pyqwest.

Beside `calls.transport` the only module that imports httpx, and the only one that imports aiohttp and pyqwest.
"""

from __future__ import annotations

import functools
import importlib
import ipaddress
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from mobilemoney_async.values import missing_extra, refuse, url_shape

_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=5.0)
# pyqwest takes no time for each request: a connection that takes longer counts as none. Less than 0.95 of the default.
_CONNECT_TIMEOUT = 10.0

PoolKind: TypeAlias = Literal["httpx", "aiohttp", "pyqwest"]
"""Library of a pool of our own."""

EXTRAS: Final = {"aiohttp": "httpx_aiohttp", "pyqwest": "pyqwest"}
"""Libraries of pools that an extra installs, and the module to look for."""


def check_base_url(base_url: object) -> str:
    """Return the base URL of the service without a trailing slash.

    Raises:
        InvalidRequest: It is no absolute URL, holds user, query or fragment, or would send tokens in the clear.
    """
    accepts = "an absolute URL with the version prefix, such as https://pay.example/v1: https, or http on loopback only"
    if not isinstance(base_url, str) or not base_url.isascii() or any(char <= " " for char in base_url):
        raise refuse("base_url", accepts, url_shape(base_url))
    try:
        parts = urlsplit(base_url)
        host, _ = parts.hostname, parts.port
    except ValueError as exc:
        raise refuse("base_url", accepts, url_shape(base_url)) from exc
    if parts.username is not None or parts.query or parts.fragment or not host:
        raise refuse("base_url", f"{accepts}, without user, query or fragment", url_shape(base_url))
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise refuse("base_url", accepts, url_shape(base_url), "tokens must not travel in the clear")
    return base_url.rstrip("/")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the certificates that all clients of a process share: loading them takes 18 ms."""
    return httpx.create_ssl_context()


def make_pool(base_url: str, kind: PoolKind) -> Any:
    """Return a pool of connections to the service: httpx's, httpx-aiohttp's in the same form, or pyqwest's in its own.

    Args:
        base_url: The service.
        kind: The library.
    """
    parts = urlsplit(base_url)
    verify: ssl.SSLContext | bool = ssl_context() if parts.scheme == "https" else False
    proxy = _proxy(parts.scheme, parts.hostname)
    if kind == "aiohttp":
        return _make_aiohttp_pool(verify, proxy)
    if kind == "pyqwest":
        return _make_pyqwest_pool(proxy)
    return httpx.AsyncHTTPTransport(verify=verify, limits=_LIMITS, proxy=proxy)


def _make_aiohttp_pool(verify: ssl.SSLContext | bool, proxy: httpx.Proxy | None) -> httpx.AsyncBaseTransport:
    import aiohttp
    from httpx_aiohttp import AiohttpTransport

    async def send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
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
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), middlewares=(send_once,))

    return AiohttpTransport(client=open_session, verify=verify, proxy=proxy)


def _make_pyqwest_pool(proxy: httpx.Proxy | None) -> Any:
    import certifi
    import pyqwest

    # Without a proxy it would look into the environment: give it one that serves no address.
    own = pyqwest.Proxy("http://127.0.0.1:9", no_proxy="*,0.0.0.0/0,::/0")
    if proxy is not None:
        own = pyqwest.Proxy(str(proxy.url), auth=proxy.auth)
    # As httpx chooses for `ssl_context`.
    trusts_environment = bool(os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"))
    return pyqwest.HTTPTransport(
        tls_ca_cert=None if trusts_environment else Path(certifi.where()).read_bytes(),
        tls_include_system_certs=trusts_environment,
        http_version=pyqwest.HTTPVersion.HTTP1,
        proxy=own,
        connect_timeout=_CONNECT_TIMEOUT,
        pool_idle_timeout=_LIMITS.keepalive_expiry,
        pool_max_idle_per_host=_LIMITS.max_keepalive_connections,
        max_connections_per_address=_LIMITS.max_connections,
        enable_gzip=False,
        enable_brotli=False,
        enable_zstd=False,
        use_system_dns=True,
        follow_redirects=False,
        enable_otel=False,
    )


def pyqwest_request(method: str, url: str, headers: dict[str, str], content: bytes | None) -> Any:
    """Return a request of pyqwest's."""
    import pyqwest

    return pyqwest.Request(method, url, pyqwest.Headers(headers.items()), content)


def _proxy(scheme: str, host: str | None) -> httpx.Proxy | None:
    """Return the environment's proxy for the service, as every HTTP client honours it."""
    if host is None or _is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url:
        return None
    return httpx.Proxy(url if "://" in url else f"http://{url}")


def route(base_url: str) -> str:
    """Return the host of the service, and the environment's proxy on the way to it, for an error."""
    parts = urlsplit(base_url)
    with suppress(Exception):  # a proxy's URL that makes no sense
        if (proxy := _proxy(parts.scheme, parts.hostname)) is not None:
            return f"{parts.netloc} through the proxy {proxy.url.netloc.decode('ascii')}"
    return parts.netloc


def require_extra(kind: str) -> None:
    """Raise `InvalidRequest` if the extra of a library of `EXTRAS` is not installed."""
    try:
        importlib.import_module(EXTRAS[kind])
    except ImportError as exc:
        raise missing_extra("transport", kind) from exc
