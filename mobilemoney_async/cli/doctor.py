"""`mobilemoney doctor`: checks of the configuration, and advice. One call of the profile, one connection, no money.

The checks yield findings; `judge_…` turns a measurement into findings without I/O. A check that depends on a failed one
is reported as skipped.
"""

from __future__ import annotations

import enum
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import attrs
import httpx
import typer
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from mobilemoney_async import errors
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.cli.clients import find_login, missing_file, open_client, open_store, without_argument
from mobilemoney_async.cli.failures import ExitCode, run
from mobilemoney_async.cli.options import AsJSON, Service, with_service
from mobilemoney_async.cli.output import print_json, visible
from mobilemoney_async.cli.settings import SANDBOX_URL, Settings, is_loopback
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.payments.health import StoreHealth, examine
from mobilemoney_async.payments.matching import ClockSample, Skew, read_date

_SANDBOX_PORT = urlsplit(SANDBOX_URL).port
_CERTIFICATE_DAYS = 14
# Differences between two clocks. A Date header is cut to a second, and its answer takes a moment.
_STEADY, _ALLOWED, _ABSURD = timedelta(seconds=2), timedelta(seconds=60), timedelta(minutes=30)
_ADVICE: dict[type, str] = {
    errors.InvalidCredentials: "check e-mail and password; the service limits attempts, so do not guess",
    errors.TokenExpired: "the token has expired: mobilemoney login, or get a new one",
    errors.AuthenticationError: "the service does not accept the token: is it one of this service, complete, and not "
    "expired or revoked?",
    errors.ServerError: "the service has a fault: try again later",
    errors.UnexpectedResponse: "another program answers at this address: check the base URL and any proxy",
    errors.TransportError: "it can be reached, but gave no answer in time: try again, or with a longer --timeout",
    Exception: "read the error",
}


class Level(enum.Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red", Level.SKIPPED: "bright_black"}


@attrs.frozen
class Finding:
    """Finding of one check.

    Attributes:
        check: The check's name.
        level: Its result.
        text: The observation.
        advice: The next step, or None.
    """

    check: str
    level: Level
    text: str
    advice: str | None = None


@with_service()
def doctor(
    *,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=300, help="For each step.")] = 10.0,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Check the configuration and say what to fix.

    Checks URL, name, connection, certificate, clock, credentials, rate limit and store. Sends one request, and a login
    if there is no token yet; moves no money, and makes and changes nothing in the store.

    Exit codes: 0 fine, perhaps with warnings, 1 a problem was found, 2 the configuration cannot be read.
    """
    settings = service.settings()
    findings: list[Finding] = []

    async def work() -> None:
        async for finding in check(settings, timeout):
            findings.append(finding)
            if not as_json:
                _print(finding)

    run("doctor", work, settings=settings)
    levels = {finding.level for finding in findings}
    worst = next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)
    if as_json:
        found = [attrs.asdict(each, value_serializer=_level_as_text) for each in findings]
        print_json(
            {
                "profile": settings.profile,
                "base_url": settings.base_url,
                "is_production": settings.is_production,
                "worst": worst.value,
                "findings": [{name: value for name, value in each.items() if value is not None} for each in found],
            }
        )
    if worst is Level.PROBLEM:
        raise typer.Exit(ExitCode.ERROR)


def _level_as_text(finding: object, field: object, value: object) -> object:
    return value.value if isinstance(value, Level) else value


def _print(finding: Finding) -> None:
    level = f"{finding.level.value:<8}"
    if not os.environ.get("NO_COLOR"):
        # Without a terminal, typer's echo removes the colours.
        level = typer.style(level, fg=_COLOURS[finding.level])
    typer.echo(f"{level} {finding.check:<14} {visible(finding.text)}")
    if finding.advice is not None:
        typer.echo(f"{'':<23} → {visible(finding.advice)}")


async def check(settings: Settings, timeout: float) -> AsyncIterator[Finding]:
    """Yield the findings, check after check.

    Args:
        settings: The checked configuration.
        timeout: Of each step, seconds, more than 0.
    """
    source = settings.sources["base_url"]
    where = f"of {settings.config}" if source.startswith("profile ") else f"its URL is from {source}"
    text = "the built-in sandbox" if settings.is_built_in else f"profile {settings.profile}, {where}"
    yield Finding("configuration", Level.OK, text)
    for file in settings.secret_files:
        if os.name == "posix" and file.exists() and file.stat().st_mode & 0o077:
            yield Finding("secrets", Level.WARNING, f"other users can read {file}", f"chmod 600 {file}, if you can")
    try:
        AsyncClient(settings.base_url, auth="-")
    except InvalidRequest as exc:
        yield Finding("url", Level.PROBLEM, f"{settings.base_url} must be {_accepted(exc)}", "fix the base URL")
    else:
        yield judge_url(settings.base_url, is_production=settings.is_production)
        reached = True
        async for finding in _check_connection(settings.base_url, timeout):
            reached = reached and finding.level is not Level.PROBLEM
            yield finding
        async for finding in _check_call(settings, timeout, reached=reached):
            yield finding
    async for finding in _check_store(settings):
        yield finding


def _accepted(exc: InvalidRequest) -> str:
    return without_argument(exc).removeprefix("must be ")


def judge_url(base_url: str, *, is_production: bool) -> Finding:
    """Judge the form of a URL that the client accepts."""
    parts = urlsplit(base_url)
    if parts.path.rstrip("/").rpartition("/")[2] != "v1":
        text = f"{base_url} does not end with the version prefix /v1"
        return Finding("url", Level.WARNING, text, "add /v1 if this is the service's own address")
    money = "real money" if is_production else "no real money"
    return Finding("url", Level.OK, f"{base_url} ({parts.scheme}; {money})")


async def _check_connection(base_url: str, timeout: float) -> AsyncIterator[Finding]:
    parts = urlsplit(base_url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    proxy = _proxy(parts.scheme, host)
    if proxy is not None and not is_loopback(base_url):
        yield Finding("connection", Level.OK, f"goes through the proxy {proxy} of the environment; not checked further")
        return
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
            # The same trusted certificates as the client's.
            secured = await TLSStream.wrap(stream, hostname=host, ssl_context=httpx.create_ssl_context())
    except ssl.SSLCertVerificationError as exc:
        text = f"the certificate is not trusted: {exc.verify_message}"
        advice = "is this the service's own address? if a proxy of yours inspects traffic, SSL_CERT_FILE names its CA"
        return Finding("tls", Level.PROBLEM, text, advice)
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as exc:
        return Finding("tls", Level.PROBLEM, f"no secure connection: {_reason(exc)}", "is this a port for https?")
    certificate = secured.extra(TLSAttribute.peer_certificate)  # noqa: S610 (no Django)
    version = secured.extra(TLSAttribute.tls_version)  # noqa: S610
    expires = certificate.get("notAfter") if certificate else None
    expires_at = None
    if isinstance(expires, str):
        expires_at = datetime.fromtimestamp(ssl.cert_time_to_seconds(expires), UTC)
    with suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream), anyio.move_on_after(1):
        await secured.aclose()
    return judge_certificate(expires_at, version, datetime.now(UTC))


def judge_certificate(expires_at: datetime | None, version: str, now: datetime) -> Finding:
    """Judge the days that a trusted certificate is still valid, if it names its end, over this version of TLS."""
    if expires_at is None:
        return Finding("tls", Level.OK, f"{version}, the certificate is trusted")
    days = (expires_at - now).days
    text = f"{version}, the certificate is trusted and valid until {expires_at:%Y-%m-%d}: {days} days"
    if days >= _CERTIFICATE_DAYS:
        return Finding("tls", Level.OK, text)
    return Finding("tls", Level.WARNING, text, "the service must renew it: ask before payments fail on that day")


async def _check_call(settings: Settings, timeout: float, *, reached: bool) -> AsyncIterator[Finding]:
    shared = "shared by all processes of the store" if settings.store else "in each process by itself"
    limit = f"at most {REQUESTS_PER_MINUTE:g} requests a minute and {BURST} at once, {shared}"
    yield Finding("rate limit", Level.OK, limit)
    dates: list[str | None] = []

    async def note_date(response: httpx.Response) -> None:
        dates.append(response.headers.get("Date"))

    async with httpx.AsyncClient(event_hooks={"response": [note_date]}) as http_client:
        try:
            # Without the store, which has its own check, and with one attempt: failures are not repeated but reported.
            options = {"retry": RetryPolicy(max_attempts=1), "timeout": timeout, "http_client": http_client}
            client = open_client(settings, store=None, **options)
        except InvalidRequest as exc:
            yield Finding("credentials", Level.PROBLEM, *_accepted(exc).split(": ", 1))
            return
        user = _user(settings)
        if not reached:
            yield Finding("credentials", Level.SKIPPED, f"{user}: not tried, the service was not reached")
            return
        failure = None
        began_at, began = datetime.now(UTC), anyio.current_time()
        async with client:
            try:
                await client.users.profile()
            except MobileMoneyError as exc:
                failure = exc
        ended_at, took = datetime.now(UTC), anyio.current_time() - began
    shown = read_date(dates[-1]) if dates and dates[-1] is not None else None
    if shown is not None:
        # The service read its clock at some time during the request: the difference is uncertain by that much.
        yield judge_clock(ClockSample(shown=shown, began_at=began_at, ended_at=ended_at).skew)
    elif settings.is_sandbox:
        yield Finding("clock", Level.SKIPPED, "a sandbox on this machine has this machine's clock")
    elif failure is None:
        yield judge_clock(None)
    for finding in judge_call(failure, user, took):
        yield finding


def judge_clock(skew: Skew | None) -> Finding:
    """Judge the difference between this machine's clock and the service's; None if the service shows no time."""
    if skew is None:
        advice = "keep this machine's clock set by NTP: reconcile allows for a difference of a minute at most, unless "
        text = "the service's answer shows no time (it has no Date header)"
        return Finding("clock", Level.WARNING, text, f"{advice}payments of yours show the service's clock")
    apart = max(skew.low, -skew.high, timedelta(0))
    if apart <= _STEADY:
        return Finding("clock", Level.OK, "this machine's clock agrees with the service's")
    side = "behind" if skew.low > timedelta(0) else "ahead of"
    text = f"this machine's clock is {apart.total_seconds():.0f} s {side} the service's"
    if apart <= _ALLOWED:
        return Finding("clock", Level.OK, f"{text}: reconcile allows for that")
    advice = "set this machine's clock by NTP: reconcile allows for a steady difference, but not for one that changes "
    if apart <= _ABSURD:
        return Finding("clock", Level.WARNING, text, f"{advice}while a payment is unknown")
    return Finding("clock", Level.PROBLEM, text, f"{advice}while a payment is unknown, and dates of list are wrong")


def judge_call(failure: MobileMoneyError | None, user: str, took: float) -> list[Finding]:
    """Judge credentials and rate limit by a call of the profile.

    Args:
        failure: The call's error, or None.
        user: The credentials that were used, without secrets.
        took: The call's duration, seconds.
    """
    passed = Finding("rate limit", Level.OK, f"one request was answered, in {took:.1f} s")
    if failure is None:
        return [Finding("credentials", Level.OK, f"{user}: accepted"), passed]
    if isinstance(failure, errors.PermissionDenied):
        text = f"{user}: known to the service, but may not read the profile: {failure}"
        advice = "fine if it may do what you need; else ask the issuer of the credentials"
        return [Finding("credentials", Level.WARNING, text, advice), passed]
    if isinstance(failure, errors.RateLimitExceeded):
        wait = "" if failure.retry_after is None else f", for {failure.retry_after:g} s more"
        text = f"the service rejects requests of this merchant{wait}"
        advice = "another program uses up the merchant's 60 requests a minute: let all your processes share one store"
        return [
            Finding("credentials", Level.SKIPPED, f"{user}: not tried, because of the rate limit"),
            Finding("rate limit", Level.PROBLEM, text, advice),
        ]
    advice = next(_ADVICE[cls] for cls in type(failure).__mro__ if cls in _ADVICE)
    return [
        Finding("credentials", Level.PROBLEM, f"{user}: {failure}", advice),
        Finding("rate limit", Level.SKIPPED, "no request was answered"),
    ]


async def _check_store(settings: Settings) -> AsyncIterator[Finding]:
    if settings.store is None:
        level, advice = Level.OK, None
        if settings.is_production:
            level, advice = (
                Level.WARNING,
                "with a store no payment is sent twice, and unknown ones are resolved: --store",
            )
        yield Finding("store", level, "none: payments are not recorded", advice)
        return
    try:
        store = open_store(settings.store, settings.account, key=settings.store_key)
    except InvalidRequest as exc:
        yield Finding("store", Level.PROBLEM, f"{exc.argument} must be {_accepted(exc)}")
        return
    file = missing_file(settings.store)
    if file is not None and not os.access(folder := Path(file).parent, os.W_OK):
        yield Finding("store", Level.PROBLEM, f"{file} cannot be made", f"make its folder, writable: {folder}")
        return
    try:
        health = await examine(store, datetime.now(UTC))
    except MobileMoneyError as exc:
        yield Finding("store", Level.PROBLEM, str(exc), "check the URL, and that this user may use the database")
        return
    for finding in judge_store(health, has_key=settings.store_key is not None):
        yield finding


def judge_store(health: StoreHealth, *, has_key: bool) -> Iterator[Finding]:
    """Judge the health of a store."""
    version, known = health.version, health.known_version
    if version is None:
        yield Finding("store", Level.OK, "it is empty: its first use makes the tables")
        return
    tables = f"tables of version {version}"
    if version > known:
        text = f"{tables} are newer than this release, which knows up to {known}"
        yield Finding("store", Level.PROBLEM, text, "update mobilemoney-async")
        return
    if health.cannot_write is not None:
        advice = "give this user the right to write it (for SQLite: the file and its folder)"
        yield Finding("store", Level.PROBLEM, f"it cannot be written: {health.cannot_write}", advice)
    else:
        update = f" become {known} on the next use" if version < known else ""
        yield Finding("store", Level.OK, f"it opens and can be written; {tables}{update}")
    if health.unresolved:
        text = f"{health.unresolved} with an unknown result"
        yield Finding("payments", Level.WARNING, text, "run mobilemoney payments reconcile")
    else:
        yield Finding("payments", Level.OK, "none is unresolved")
    if health.clear_tokens:
        advice = "log in again with the key" if has_key else "set MOBILEMONEY_STORE_KEY, the same for all processes"
        yield Finding("store key", Level.WARNING, "it holds a login token in clear text", advice)


def _user(settings: Settings) -> str:
    if settings.token is not None:
        return f"token from {settings.sources['token']}"
    kept = find_login(settings, email=settings.email)
    if kept is not None:
        return f"login kept until {kept.expires_at:%H:%M:%S} UTC"
    if settings.email is not None:
        return f"e-mail and password from {settings.sources['email']}"
    return "the sandbox's token"


def _proxy(scheme: str, host: str) -> str | None:
    """Return host and port of the client's proxy, without its password."""
    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass(host):
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
