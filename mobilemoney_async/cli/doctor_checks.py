"""The checks of `mobilemoney doctor`: they look, `doctor` judges. One call of the profile, a connection, no money.

What a check needs and an earlier one found broken, it skips, and says so.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.transport import Wire
from mobilemoney_async.cli import doctor
from mobilemoney_async.cli.doctor import Finding, Level
from mobilemoney_async.cli.settings import SANDBOX_URL, Settings, is_loopback, is_sandbox, open_client, open_store
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.payments.health import examine
from mobilemoney_async.payments.matching import ClockSample, read_date
from mobilemoney_async.payments.store import account_store

_SANDBOX_PORT = urlsplit(SANDBOX_URL).port


async def check(settings: Settings, timeout: float) -> AsyncIterator[Finding]:
    """Yield what is found, check after check.

    Args:
        settings: What is checked.
        timeout: For each thing that is waited for, seconds, more than 0.
    """
    for found in _check_configuration(settings):
        yield found
    try:
        Wire(settings.base_url)
    except InvalidRequest as exc:
        yield Finding("url", Level.PROBLEM, f"{settings.base_url}: {exc}", "mend the base URL")
    else:
        yield doctor.judge_url(settings.base_url, is_production=settings.is_production)
        reached = True
        async for found in _check_connection(settings.base_url, timeout):
            reached = reached and found.level is not Level.PROBLEM
            yield found
        async for found in _check_call(settings, timeout, reached=reached):
            yield found
    async for found in _check_store(settings):
        yield found


def _check_configuration(settings: Settings) -> list[Finding]:
    source = settings.sources["base_url"]
    where = f"of {settings.config}" if source.startswith("profile ") else f"its URL is from {source}"
    text = "the built-in sandbox" if settings.is_built_in else f"profile {settings.profile}, {where}"
    return [
        Finding("configuration", Level.OK, text),
        *(
            Finding("secrets", Level.WARNING, f"other users can read {file}", f"chmod 600 {file}, if you can")
            for file in settings.secret_files
            if os.name == "posix" and file.exists() and file.stat().st_mode & 0o077
        ),
    ]


async def _check_connection(base_url: str, timeout: float) -> AsyncIterator[Finding]:
    parts = urlsplit(base_url)
    proxy = _proxy(parts)
    if proxy is not None:
        yield Finding(
            "connection", Level.OK, f"goes through the proxy {proxy}, as the environment says; the rest is its to reach"
        )
        return
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with anyio.fail_after(timeout):
            found = await anyio.getaddrinfo(host, port)
    except (OSError, UnicodeError) as exc:
        text = f"{host} is not found: {getattr(exc, 'strerror', None) or type(exc).__name__}"
        yield Finding("dns", Level.PROBLEM, text, "check the host's name, and this machine's network and DNS")
        return
    addresses = sorted({str(each[4][0]) for each in found})
    if addresses != [host]:
        yield Finding("dns", Level.OK, f"{host} is {', '.join(addresses[:3])}")
    try:
        with anyio.fail_after(timeout):
            stream = await anyio.connect_tcp(host, port)
    except OSError as exc:
        advice = "check port, firewall and proxy"
        if is_loopback(base_url):
            advice = f"start it: mobilemoney sandbox{'' if port == _SANDBOX_PORT else f' --port {port}'}"
        yield Finding("connection", Level.PROBLEM, f"{host}:{port} does not answer: {_reason(exc)}", advice)
        return
    yield Finding("connection", Level.OK, f"{host}:{port} answers")
    async with stream:
        if parts.scheme == "https":
            yield await _check_tls(stream, host, timeout)


async def _check_tls(stream: ByteStream, host: str, timeout: float) -> Finding:
    try:
        with anyio.fail_after(timeout):
            # What the client trusts, so that the doctor says what the client will meet.
            secured = await TLSStream.wrap(stream, hostname=host, ssl_context=httpx.create_ssl_context())
    except ssl.SSLCertVerificationError as exc:
        return Finding(
            "tls",
            Level.PROBLEM,
            f"the certificate is not trusted: {exc.verify_message}",
            "is this the service's own address? where a proxy of yours inspects traffic, SSL_CERT_FILE names its CA",
        )
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as exc:
        return Finding("tls", Level.PROBLEM, f"no secure connection: {_reason(exc)}", "is this a port for https?")
    certificate = secured.extra(TLSAttribute.peer_certificate)  # noqa: S610 (no Django)
    version = secured.extra(TLSAttribute.tls_version)  # noqa: S610
    expires = certificate.get("notAfter") if certificate else None
    expires_at = None
    if isinstance(expires, str):
        expires_at = datetime.fromtimestamp(ssl.cert_time_to_seconds(expires), UTC)
    with suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream):
        with anyio.move_on_after(1):
            await secured.aclose()
    return doctor.judge_certificate(expires_at, version, datetime.now(UTC))


async def _check_call(settings: Settings, timeout: float, *, reached: bool) -> AsyncIterator[Finding]:
    yield Finding(
        "rate limit",
        Level.OK,
        f"at most {REQUESTS_PER_MINUTE:g} requests a minute and {BURST} at once, "
        + ("shared by all processes of the store" if settings.store else "in each process by itself"),
    )
    dates: list[str] = []

    async def note_date(response: httpx.Response) -> None:
        if "date" in response.headers:
            dates.append(response.headers["date"])

    http = httpx.AsyncClient(event_hooks={"response": [note_date]})
    try:
        # Without the store, which has checks of its own, and with one attempt: what fails is to be seen.
        client = open_client(settings, store=None, retry=RetryPolicy(max_attempts=1), timeout=timeout, http_client=http)
    except InvalidRequest as exc:
        yield Finding("credentials", Level.PROBLEM, *str(exc).split(": ", 1))
        return
    who = _who(settings)
    if not reached:
        yield Finding("credentials", Level.SKIPPED, f"{who}: not tried, the service was not reached")
        return
    async with http, client:
        failure = None
        began_at, began = datetime.now(UTC), anyio.current_time()
        try:
            await client.users.profile()
        except MobileMoneyError as exc:
            failure = exc
        took = anyio.current_time() - began
    shown = read_date(dates[-1]) if dates else None
    if shown is not None:
        # The request took all of that time: so much is the difference uncertain.
        yield doctor.judge_clock(ClockSample(shown=shown, began_at=began_at, ended_at=datetime.now(UTC)).skew)
    elif is_sandbox(settings):
        yield Finding("clock", Level.SKIPPED, "a sandbox on this machine has this machine's clock")
    elif failure is None:
        yield doctor.judge_clock(None)
    for found in doctor.judge_call(failure, who, took):
        yield found


async def _check_store(settings: Settings) -> AsyncIterator[Finding]:
    if settings.store is None:
        yield Finding(
            "store",
            Level.WARNING if settings.is_production else Level.OK,
            "none: payments are not remembered",
            "with a store no payment is sent twice, and unknown ones are found out: see --store"
            if settings.is_production
            else None,
        )
        return
    try:
        store = open_store(settings.store, settings.account, key=settings.store_key)
    except InvalidRequest as exc:
        yield Finding("store", Level.PROBLEM, str(exc))
        return
    file = account_store(store).database.file
    if file is not None and not file.exists() and not os.access(file.parent, os.W_OK):
        yield Finding("store", Level.PROBLEM, f"{file} cannot be made", f"make its folder, writable: {file.parent}")
        return
    try:
        condition = await examine(store, datetime.now(UTC))
    except MobileMoneyError as exc:
        yield Finding("store", Level.PROBLEM, str(exc), "check the URL, and that this user may reach the database")
        return
    for found in doctor.judge_store(condition, has_key=settings.store_key is not None):
        yield found


def _who(settings: Settings) -> str:
    if settings.token is not None:
        return f"token from {settings.sources['token']}"
    from mobilemoney_async.cli.logins import find_login

    kept = find_login(settings, email=settings.email)
    if kept is not None:
        return f"login kept until {kept.expires_at:%H:%M:%S} UTC"
    if settings.email is not None:
        return f"e-mail and password from {settings.sources['email']}"
    return "the sandbox's token"


def _proxy(parts: SplitResult) -> str | None:
    """Return host and port of the proxy that the client will use, without its password."""
    host = parts.hostname or ""
    if is_loopback(parts.geturl()) or proxy_bypass(host):
        return None
    proxies = getproxies()
    url = proxies.get(parts.scheme) or proxies.get("all")
    if not url:
        return None
    found = urlsplit(url if "://" in url else f"http://{url}")
    return f"{found.hostname}:{found.port}" if found.port else found.hostname


def _reason(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    cause = exc.__cause__ if isinstance(exc.__cause__, OSError) else exc
    if isinstance(cause, ssl.SSLError):
        return str(cause.reason or type(cause).__name__)
    errno = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(errno) if errno else type(cause).__name__
