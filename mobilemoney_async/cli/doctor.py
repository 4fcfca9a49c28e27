"""`mobilemoney doctor`: checks of the configuration, and advice. It sends one request, and moves no money.

The checks yield findings; `judge_…` turns a measurement into findings without I/O.
"""

from __future__ import annotations

import enum
import os
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
import attrs
import httpx
import typer

from mobilemoney_async import errors
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.cli.clients import find_login, missing_file, open_client, open_store, without_argument
from mobilemoney_async.cli.failures import ExitCode, run
from mobilemoney_async.cli.options import AsJSON, Service, with_service
from mobilemoney_async.cli.output import plain, print_json, visible, waiting
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
    errors.AuthenticationError: "is the token one of this service, complete, and not expired or revoked?",
    errors.ServerError: "the service has a fault: try again later",
    errors.UnexpectedResponse: "another program answers at this address: check the base URL and any proxy",
    errors.TransportError: "it can be reached, but gave no answer in time: try again, or with a longer --timeout",
    Exception: "read the error",
}


class Level(enum.StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red", Level.SKIPPED: "bright_black"}


@attrs.frozen
class Finding:
    """Result of one check: the observation, and the next step."""

    level: Level
    check: str
    text: str
    advice: str | None = None


_ok, _warning = partial(Finding, Level.OK), partial(Finding, Level.WARNING)
_problem, _skipped = partial(Finding, Level.PROBLEM), partial(Finding, Level.SKIPPED)


@with_service()
def doctor(
    *,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=300, help="For the request.")] = 10.0,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Check the configuration and say what to fix.

    Checks URL, name, connection, certificate, clock, credentials, rate limit and store. Sends one request, and a login
    if there is no token yet; moves no money, and makes and changes nothing in the store.

    Exit codes: 0 fine, perhaps with warnings, 1 a problem was found, 2 the configuration cannot be read.
    """
    settings = service.settings()
    with waiting("checking"):
        findings = run("doctor", lambda: check(settings, timeout), settings=settings)
    levels = {finding.level for finding in findings}
    worst = next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)
    if as_json:
        print_json(
            {
                "profile": settings.profile,
                "base_url": settings.base_url,
                "is_production": settings.is_production,
                "worst": worst.value,
                "findings": [plain(each, unmasked=False) for each in findings],
            }
        )
    else:
        for finding in findings:
            _print(finding)
    if worst is Level.PROBLEM:
        raise typer.Exit(ExitCode.ERROR)


def _print(finding: Finding) -> None:
    level = f"{finding.level.value:<8}"
    if not os.environ.get("NO_COLOR"):
        # Without a terminal, typer's echo removes the colours.
        level = typer.style(level, fg=_COLOURS[finding.level])
    typer.echo(f"{level} {finding.check:<14} {visible(finding.text)}")
    if finding.advice is not None:
        typer.echo(f"{'':<23} → {visible(finding.advice)}")


async def check(settings: Settings, timeout: float) -> list[Finding]:
    """Return the findings of all checks; the time-out of the request is in seconds, more than 0."""
    url = judge_url(settings.base_url, is_production=settings.is_production)
    findings = [*_check_configuration(settings), url]
    if url.level is not Level.PROBLEM:
        findings += await _check_service(settings, timeout)
    return [*findings, *await _check_store(settings)]


def _check_configuration(settings: Settings) -> Iterator[Finding]:
    source = settings.sources["base_url"]
    where = f"of {settings.config}" if source.startswith("profile ") else f"its URL is from {source}"
    yield _ok(
        "configuration", "the built-in sandbox" if settings.is_built_in else f"profile {settings.profile}, {where}"
    )
    for file in settings.secret_files:
        if os.name == "posix" and file.exists() and file.stat().st_mode & 0o077:
            yield _warning("secrets", f"other users can read {file}", f"chmod 600 {file}, if you can")


def _accepted(exc: InvalidRequest) -> str:
    return without_argument(exc).removeprefix("must be ")


def judge_url(base_url: str, *, is_production: bool) -> Finding:
    """Judge the form of a base URL."""
    try:
        AsyncClient(base_url, auth="-")
    except InvalidRequest as exc:
        return _problem("url", f"{base_url} must be {_accepted(exc)}", "fix the base URL")
    parts = urlsplit(base_url)
    if parts.path.rstrip("/").rpartition("/")[2] != "v1":
        text = f"{base_url} does not end with the version prefix /v1"
        return _warning("url", text, "add /v1 if this is the service's own address")
    return _ok("url", f"{base_url} ({parts.scheme}; {'real money' if is_production else 'no real money'})")


async def _check_service(settings: Settings, timeout: float) -> list[Finding]:
    """Check by one request: of the profile, or without credentials of the base URL alone."""
    connection: list[Finding] = []
    dates: list[str] = []

    async def note_answer(response: httpx.Response) -> None:
        # While the connection is open: a closed one has no address.
        connection[:] = _judge_stream(response.extensions["network_stream"], settings.base_url)
        dates.append(response.headers.get("Date", ""))

    try:
        http_client = httpx.AsyncClient(event_hooks={"response": [note_answer]}, timeout=timeout)
    except OSError as exc:
        text = f"the trusted certificates cannot be read: {exc.strerror or exc}"
        return [_problem("tls", text, "check SSL_CERT_FILE and SSL_CERT_DIR")]
    missing = failure = None
    async with http_client:
        call: Any = partial(http_client.head, settings.base_url)
        try:
            # Without the store, which has its own check, and with one attempt: a failure is reported, not repeated.
            options = {"retry": RetryPolicy(max_attempts=1), "timeout": timeout, "http_client": http_client}
            call = open_client(settings, store=None, **options).users.profile
        except InvalidRequest as exc:
            missing = _problem("credentials", *_accepted(exc).split(": ", 1))
        began_at = datetime.now(UTC)
        try:
            await call()
        except (MobileMoneyError, httpx.HTTPError) as exc:
            failure = exc
    ended_at = datetime.now(UTC)
    if failure is not None and not connection:
        connection.append(judge_unreached(failure, settings.base_url))
    shared = "shared by all processes of the store" if settings.store else "in each process by itself"
    rate_limit = _ok("rate limit", f"at most {REQUESTS_PER_MINUTE:g} requests a minute and {BURST} at once, {shared}")
    if any(finding.level is Level.PROBLEM for finding in connection):
        not_tried = _skipped("credentials", f"{_user(settings)}: not tried, the service was not reached")
        return [*connection, rate_limit, missing or not_tried]
    clock = _judge_date(dates[-1] if dates else "", began_at, ended_at, settings)
    credentials = judge_call(failure, _user(settings)) if missing is None else [missing]
    return [*connection, rate_limit, clock, *credentials]


def _judge_date(date: str, began_at: datetime, ended_at: datetime, settings: Settings) -> Finding:
    shown = read_date(date)
    if shown is None and settings.is_sandbox:
        return _skipped("clock", "a sandbox on this machine has this machine's clock")
    # The service read its clock at some time during the request: the difference is uncertain by that much.
    return judge_clock(None if shown is None else ClockSample(shown=shown, began_at=began_at, ended_at=ended_at).skew)


def _address(base_url: str) -> str:
    parts = urlsplit(base_url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _judge_stream(stream: Any, base_url: str) -> Iterator[Finding]:
    """Judge the connection of an answer, which httpcore describes: to the service, or to a proxy in between."""
    peer = "{}:{}".format(*stream.get_extra_info("server_addr"))
    address = _address(base_url)
    yield _ok("connection", f"{address} answers{'' if peer == address else f' (connected to {peer})'}")
    tls = stream.get_extra_info("ssl_object")
    if tls is not None:
        end = (tls.getpeercert() or {}).get("notAfter")
        expires_at = None if end is None else datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC)
        yield judge_certificate(expires_at, tls.version(), datetime.now(UTC))


def judge_unreached(failure: Exception, base_url: str) -> Finding:
    """Judge a request without an answer: by the errors of the network that caused its failure."""
    address = _address(base_url)
    causes: list[BaseException] = [failure]
    while (cause := _cause(causes[-1])) is not None:
        causes.append(cause)
    if not any(isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError) for cause in causes):
        return _ok("connection", f"{address} answers")
    last = causes[-1]
    reason = getattr(last, "strerror", None) or type(last).__name__
    if isinstance(last, socket.gaierror | UnicodeError):
        return _problem("dns", f"{address} is not found: {reason}", "check the host's name, your network and DNS")
    if isinstance(last, ssl.SSLCertVerificationError):
        text = f"the certificate is not trusted: {last.verify_message}"
        advice = "is this the service's own address? if a proxy of yours inspects traffic, SSL_CERT_FILE names its CA"
        return _problem("tls", text, advice)
    if isinstance(last, ssl.SSLError | anyio.BrokenResourceError | anyio.EndOfStream):
        return _problem("tls", f"no secure connection: {reason}", "is this a port for https?")
    advice = "check port, firewall and proxy"
    if is_loopback(base_url):
        port = urlsplit(base_url).port
        advice = f"start it: mobilemoney sandbox{'' if port == _SANDBOX_PORT else f' --port {port}'}"
    reason = os.strerror(last.errno) if isinstance(last, OSError) and last.errno else "no answer in time"
    return _problem("connection", f"{address} does not answer: {reason}", advice)


def _cause(exc: BaseException) -> BaseException | None:
    if isinstance(exc, BaseExceptionGroup):
        return exc.exceptions[0]
    return exc.__cause__ or exc.__context__


def judge_certificate(expires_at: datetime | None, version: str, now: datetime) -> Finding:
    """Judge the days that a trusted certificate is still valid, if it names its end, over this version of TLS."""
    if expires_at is None:
        return _ok("tls", f"{version}, the certificate is trusted")
    days = (expires_at - now).days
    text = f"{version}, the certificate is trusted and valid until {expires_at:%Y-%m-%d}: {days} days"
    if days >= _CERTIFICATE_DAYS:
        return _ok("tls", text)
    return _warning("tls", text, "the service must renew it: ask before payments fail on that day")


def judge_clock(skew: Skew | None) -> Finding:
    """Judge the difference between this machine's clock and the service's; None if the service shows no time."""
    if skew is None:
        advice = "keep this machine's clock set by NTP: reconcile allows for a difference of a minute at most, unless "
        text = "the service's answer shows no time (it has no Date header)"
        return _warning("clock", text, f"{advice}payments of yours show the service's clock")
    apart = max(skew.low, -skew.high, timedelta(0))
    if apart <= _STEADY:
        return _ok("clock", "this machine's clock agrees with the service's")
    side = "behind" if skew.low > timedelta(0) else "ahead of"
    text = f"this machine's clock is {apart.total_seconds():.0f} s {side} the service's"
    if apart <= _ALLOWED:
        return _ok("clock", f"{text}: reconcile allows for that")
    level = Level.WARNING if apart <= _ABSURD else Level.PROBLEM
    advice = "set it by NTP: reconcile allows for a steady difference, but not for one that changes while a payment is "
    return Finding(level, "clock", text, f"{advice}unknown; the dates of list are wrong too")


def judge_call(failure: Exception | None, user: str) -> list[Finding]:
    """Judge credentials and rate limit by a call of the profile, and its error if it failed."""
    if failure is None:
        return [_ok("credentials", f"{user}: accepted")]
    if isinstance(failure, errors.PermissionDenied):
        text = f"{user}: known to the service, but may not read the profile: {failure}"
        return [
            _warning("credentials", text, "fine if it may do what you need; else ask the issuer of the credentials")
        ]
    if isinstance(failure, errors.RateLimitExceeded):
        wait = "" if failure.retry_after is None else f", for {failure.retry_after:g} s more"
        text = f"the service rejects requests of this merchant{wait}"
        advice = "another program uses up the merchant's 60 requests a minute: let all your processes share one store"
        not_tried = _skipped("credentials", f"{user}: not tried, because of the rate limit")
        return [not_tried, _problem("rate limit", text, advice)]
    advice = next(_ADVICE[cls] for cls in type(failure).__mro__ if cls in _ADVICE)
    return [_problem("credentials", f"{user}: {failure}", advice)]


async def _check_store(settings: Settings) -> list[Finding]:
    if settings.store is None:
        advice = "with a store no payment is sent twice, and unknown ones are resolved: see --store"
        text = "none: payments are not recorded"
        return [_warning("store", text, advice) if settings.is_production else _ok("store", text)]
    file = missing_file(settings)
    if file is not None and not os.access(folder := Path(file).parent, os.W_OK):
        return [_problem("store", f"{file} cannot be made", f"make its folder, writable: {folder}")]
    try:
        health = await examine(open_store(settings), datetime.now(UTC))
    except InvalidRequest as exc:
        return [_problem("store", f"{exc.argument} must be {_accepted(exc)}")]
    except MobileMoneyError as exc:
        return [_problem("store", str(exc), "check the URL, and that this user may use the database")]
    return list(judge_store(health, has_key=settings.store_key is not None))


def judge_store(health: StoreHealth, *, has_key: bool) -> Iterator[Finding]:
    """Judge the health of a store."""
    version, known = health.version, health.known_version
    if version is None:
        yield _ok("store", "it is empty: its first use makes the tables")
        return
    if version > known:
        text = f"its tables are of version {version}, this release knows up to {known}"
        yield _problem("store", text, "update mobilemoney-async")
        return
    if health.cannot_write is not None:
        advice = "give this user the right to write it (for SQLite: the file and its folder)"
        yield _problem("store", f"it cannot be written: {health.cannot_write}", advice)
    else:
        update = f" become {known} on the next use" if version < known else ""
        yield _ok("store", f"it opens and can be written; tables of version {version}{update}")
    if health.unresolved:
        text = f"payments with an unknown result: {health.unresolved}"
        yield _warning("payments", text, "run mobilemoney payments reconcile")
    else:
        yield _ok("payments", "none is unresolved")
    if health.clear_tokens:
        advice = "log in again with the key" if has_key else "set MOBILEMONEY_STORE_KEY, the same for all processes"
        yield _warning("store key", "it holds a login token in clear text", advice)


def _user(settings: Settings) -> str:
    if settings.token is not None:
        return f"token from {settings.sources['token']}"
    kept = find_login(settings, email=settings.email)
    if kept is not None:
        return f"login kept until {kept.expires_at:%H:%M:%S} UTC"
    if settings.email is not None:
        return f"e-mail and password from {settings.sources['email']}"
    return "the sandbox's token" if settings.is_sandbox else "none are known"
