"""`mobilemoney doctor`: checks, with advice. It sends one request and moves no money; `judge_…` functions do no I/O."""

from __future__ import annotations

import enum
import os
import shlex
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import anyio
import attrs
import httpx
import typer

from mobilemoney_async import errors
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.transport_pool import make_pool
from mobilemoney_async.cli.clients import describe_auth, missing_file, open_client, open_store
from mobilemoney_async.cli.failures import ADVICE, ExitCode, advise, copyable, first_error, run
from mobilemoney_async.cli.options import AllAccounts, AsJSON, Service, with_service
from mobilemoney_async.cli.output import ignoring_closed_pipe, plain, print_json, waiting
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.configuration.settings import Settings, is_loopback
from mobilemoney_async.contract.comparison import read_date
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE
from mobilemoney_async.payments.ownership.matching import ClockSample, Skew
from mobilemoney_async.payments.records.account_status import AccountNeed, AccountStatus
from mobilemoney_async.text import visible

if TYPE_CHECKING:
    from mobilemoney_async.payments.records.queries import StoreHealth

_CERTIFICATE_DAYS = 14
# Differences between two clocks. A Date header is cut to a second, and its answer takes a moment.
_STEADY, _ALLOWED, _ABSURD = timedelta(seconds=2), timedelta(seconds=60), timedelta(minutes=30)
_ADVICE: dict[type, str] = ADVICE | {
    errors.TokenExpired: "the token has expired: mobilemoney login, or get a new one",
    errors.AuthenticationError: "is the token one of this service, complete, and not expired or revoked?",
    errors.PermissionDenied: "fine if it may do what you need; else ask the issuer of the credentials",
    errors.RateLimitExceeded: "another program uses up the merchant's limit: let all your processes share one store",
    errors.UnexpectedResponse: "another program answers at this address: check the base URL and any proxy",
    errors.TransportError: "it can be reached, but gave no answer in time: try again, or with a longer --timeout",
    Exception: "read the error",
}


class Level(enum.StrEnum):
    """Result of a check, the least serious first."""

    SKIPPED = "skipped"
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


_COLOURS = {Level.SKIPPED: "bright_black", Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


@attrs.frozen
class Finding:
    """Result of one check: the observation, and the next step."""

    level: Level
    check: str
    text: str
    advice: str | None = None


_skipped, _ok, _warning, _problem = (partial(Finding, level) for level in Level)


@with_service()
def doctor(
    *,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=300, help="For the request.")] = 10.0,
    as_json: AsJSON = False,
    all_accounts: AllAccounts = False,
    service: Service,
) -> None:
    """Check the configuration and name the fixes.

    Checks URL, name, connection, certificate, clock, credentials, rate limit and store. Sends one request, and a login
    if there is no token yet; moves no money, and makes and changes nothing in the store.

    Exit codes: 0 fine, perhaps with warnings, 1 a problem was found, 2 the configuration cannot be read.
    """
    settings = service.settings()
    with waiting("checking"):
        findings = run("doctor", lambda: check(settings, timeout, all_accounts=all_accounts), settings=settings)
    worst = max((finding.level for finding in findings), key=list(Level).index)
    if as_json:
        about = {name: getattr(settings, name) for name in ("profile", "base_url", "is_production")}
        print_json({**about, "worst": worst.value, "findings": [plain(each, unmasked=False) for each in findings]})
    else:
        with ignoring_closed_pipe():
            for finding in findings:
                level = f"{finding.level.value:<8}"
                if not os.environ.get("NO_COLOR"):
                    level = typer.style(level, fg=_COLOURS[finding.level])  # which echo removes without a terminal
                typer.echo(f"{level} {finding.check:<14} {visible(finding.text)}")
                if finding.advice is not None:
                    typer.echo(f"{'':<23} → {visible(copyable(finding.advice))}")
    if worst is Level.PROBLEM:
        raise typer.Exit(ExitCode.ERROR)


async def check(settings: Settings, timeout: float, *, all_accounts: bool = False) -> list[Finding]:
    """Return the findings of all checks; the time-out of the request is in seconds, more than 0."""
    source = settings.sources["base_url"]
    where = f"of {settings.config}" if source.startswith("profile ") else f"its URL is from {source}"
    text = "the built-in sandbox" if settings.is_built_in else f"profile {settings.profile}, {where}"
    files = settings.secret_files if os.name == "posix" else ()
    readable = [file for file in files if file.exists() and file.stat().st_mode & 0o077]
    secrets = [
        _warning("secrets", f"other users can read {each}", f"chmod 600 {each}, if you can") for each in readable
    ]
    url = judge_url(settings.base_url, is_production=settings.is_production)
    service = [] if url.level is Level.PROBLEM else await _check_service(settings, timeout)
    return [
        _ok("configuration", text),
        *secrets,
        url,
        *service,
        *await _check_store(settings, all_accounts=all_accounts),
    ]


def judge_url(base_url: str, *, is_production: bool) -> Finding:
    """Judge the form of a base URL."""
    try:
        AsyncClient(base_url, auth="-")
    except errors.InvalidRequest as exc:
        return _problem("url", str(exc), "fix the base URL")
    parts = urlsplit(base_url)
    if not parts.path.rstrip("/").endswith("/v1"):
        return _warning("url", f"{base_url} does not end with the version prefix /v1", "add it for the service itself")
    return _ok("url", f"{base_url} ({parts.scheme}; {'real money' if is_production else 'no real money'})")


async def _check_service(settings: Settings, timeout: float) -> list[Finding]:
    """Check by one request: of the profile, or without credentials of the base URL alone."""
    parts = urlsplit(settings.base_url)
    address = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    connection: list[Finding] = []
    dates: list[str] = []

    async def note_answer(response: httpx.Response) -> None:
        # While the connection is open: a closed one has no address.
        connection[:] = _judge_stream(response.extensions["network_stream"], address)
        dates.append(response.headers.get("Date", ""))

    try:
        pool = make_pool(settings.base_url, aiohttp=False)  # as all calls have it
    except errors.ConnectionFailed as exc:
        return [_problem("connection", str(exc), "fix this setting of the environment")]
    http_client = httpx.AsyncClient(transport=pool, event_hooks={"response": [note_answer]}, timeout=timeout)
    missing = failure = None
    began_at = datetime.now(UTC)
    async with http_client:
        call: Any = partial(http_client.head, settings.base_url)
        try:
            # Without the store, which has its own check, and with one attempt: a failure is reported, not repeated.
            options = {"retry": RetryPolicy(max_attempts=1), "timeout": timeout, "http_client": http_client}
            call = open_client(settings, store=None, **options).users.profile
        except errors.InvalidRequest as exc:
            missing = _problem("credentials", exc.problem, exc.advice)
        try:
            await call()
        except (errors.MobileMoneyError, httpx.HTTPError) as exc:
            failure = exc
    if failure is not None and not connection:
        connection.append(_judge_unreached(failure, settings.base_url, address))
    shared = "shared by all processes of the store" if settings.store else "in each process by itself"
    rate_limit = _ok("rate limit", f"at most {REQUESTS_PER_MINUTE:g} requests a minute and {BURST} at once, {shared}")
    user = describe_auth(settings)
    if any(finding.level is Level.PROBLEM for finding in connection):
        not_tried = _skipped("credentials", f"{user}: not tried, the service was not reached")
        return [*connection, rate_limit, missing or not_tried]
    clock = _judge_date(dates[-1] if dates else "", began_at, is_sandbox=settings.is_sandbox)
    return [
        *connection,
        rate_limit,
        clock,
        *([missing] if missing else judge_call(failure, user, settings.login_command)),
    ]


def _judge_date(date: str, began_at: datetime, *, is_sandbox: bool) -> Finding:
    if (shown := read_date(date)) is not None:
        # The service read its clock at some time during the request: the difference is uncertain by that much.
        return judge_clock(ClockSample(shown=shown, began_at=began_at, ended_at=datetime.now(UTC)).skew)
    own = _skipped("clock", "a sandbox on this machine has this machine's clock")
    return own if is_sandbox else judge_clock(None)


def _judge_stream(stream: Any, address: str) -> Iterator[Finding]:
    """Judge the connection of an answer, which httpcore describes: to the service, or to a proxy in between."""
    peer = "{}:{}".format(*stream.get_extra_info("server_addr"))
    yield _ok("connection", f"{address} answers{'' if peer == address else f' (connected to {peer})'}")
    if (tls := stream.get_extra_info("ssl_object")) is not None:
        expires_at = datetime.fromtimestamp(ssl.cert_time_to_seconds(tls.getpeercert()["notAfter"]), UTC)
        yield judge_certificate(expires_at, tls.version(), datetime.now(UTC))


def _judge_unreached(failure: Exception, base_url: str, address: str) -> Finding:
    """Judge a request without an answer: by the errors of the network that caused its failure."""
    causes: list[BaseException] = []
    cause: BaseException | None = failure
    while cause is not None:
        causes.append(cause := first_error(cause))
        cause = cause.__cause__ or cause.__context__
    if not any(isinstance(each, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError) for each in causes):
        return _ok("connection", f"{address} answers")
    last = causes[-1]
    reason = getattr(last, "strerror", None) or type(last).__name__
    if isinstance(last, socket.gaierror | UnicodeError):
        return _problem("dns", f"{address} is not found: {reason}", "check the host's name, your network and DNS")
    if isinstance(last, ssl.SSLCertVerificationError):
        advice = "is this the service's own address? if a proxy of yours inspects traffic, SSL_CERT_FILE names its CA"
        return _problem("tls", f"the certificate is not trusted: {last.verify_message}", advice)
    if isinstance(last, ssl.SSLError | anyio.BrokenResourceError | anyio.EndOfStream):
        return _problem("tls", f"no secure connection: {reason}", "is this a port for https?")
    reason = os.strerror(last.errno) if isinstance(last, OSError) and last.errno else "no answer in time"
    start = f"start it: mobilemoney sandbox --port {urlsplit(base_url).port}"
    advice = start if is_loopback(base_url) else "check port, firewall and proxy"
    return _problem("connection", f"{address} does not answer: {reason}", advice)


def judge_certificate(expires_at: datetime, version: str, now: datetime) -> Finding:
    """Judge the days that a trusted certificate is still valid, over this version of TLS."""
    days = (expires_at - now).days
    text = f"{version}, the certificate is trusted and valid until {expires_at:%Y-%m-%d}: {days} days"
    if days >= _CERTIFICATE_DAYS:
        return _ok("tls", text)
    return _warning("tls", text, "the service must renew it: ask before payments fail on that day")


def judge_clock(skew: Skew | None) -> Finding:
    """Judge the difference between this machine's clock and the service's; None if the service shows no time."""
    if skew is None:
        advice = "set this machine's by NTP: reconcile allows for a minute, unless payments show the service's clock"
        return _warning("clock", "the service's answer shows no time (it has no Date header)", advice)
    apart = max(skew.low, -skew.high, timedelta(0))
    if apart <= _STEADY:
        return _ok("clock", "this machine's clock agrees with the service's")
    side = "behind" if skew.low > timedelta(0) else "ahead of"
    text = f"this machine's clock is {apart.total_seconds():.0f} s {side} the service's"
    if apart <= _ALLOWED:
        return _ok("clock", f"{text}: reconcile allows for that")
    advice = "set it by NTP: reconcile allows for a steady difference, but not for one that changes while a payment is "
    level = Level.WARNING if apart <= _ABSURD else Level.PROBLEM
    return Finding(level, "clock", text, f"{advice}unknown; the dates of list are wrong too")


def judge_call(failure: Exception | None, user: str, login: str = "mobilemoney login") -> list[Finding]:
    """Judge credentials and rate limit by a call of the profile, and its error if it failed; `login` is a command."""
    if failure is None:
        return [_ok("credentials", f"{user}: accepted")]
    advice = advise(failure, _ADVICE).replace("mobilemoney login", login)
    if isinstance(failure, errors.RateLimitExceeded):
        wait = "" if failure.retry_after is None else f", for {failure.retry_after:.0f} s more"
        text = "the service rejects requests of this merchant"
        text = text if failure.is_certain else f"HTTP {failure.status_code} without a code of the service"
        not_tried = _skipped("credentials", f"{user}: not tried, because of the rate limit")
        return [not_tried, _problem("rate limit", f"{text}{wait}", advice)]
    if isinstance(failure, errors.PermissionDenied):
        return [_warning("credentials", f"{user}: accepted, but may not read the profile: {failure}", advice)]
    return [_problem("credentials", f"{user}: {failure}", advice)]


async def _check_store(settings: Settings, *, all_accounts: bool) -> list[Finding]:
    if settings.store is None:
        advice = "with a store no payment is sent twice, and unknown ones are resolved: see --store"
        text = "none: payments are not recorded"
        return [_warning("store", text, advice) if settings.is_production else _ok("store", text)]
    try:
        store = open_store(settings)
        # Here: they need the extra, which opening a store checks.
        from mobilemoney_async.database.url import readable_files
        from mobilemoney_async.payments.records.queries import StoreHealth, check_health
        from mobilemoney_async.payments.store import account_store
        from mobilemoney_async.sharing.accounts import read_accounts

        statuses: Sequence[AccountStatus] = []
        database, found = account_store(store).database, StoreHealth(version=None)
        readable = judge_files(readable_files(database.file))  # before SQLite makes -wal and -shm for the look
        if (file := missing_file(settings)) is None:
            look = partial(check_health, account=settings.account, now=datetime.now(UTC))
            found = await database.peek(look)
            statuses = (
                await read_accounts(account_store(store))
                if all_accounts and found.version and found.refusal is None
                else []
            )
        elif not os.access(file.parent, os.W_OK):
            return [_problem("store", f"{file} cannot be made", f"make its folder, writable: {file.parent}")]
    except errors.MobileMoneyError as exc:
        advice = "check the URL, and that this user may use the database; if it is damaged, restore a backup"
        return [_problem("store", str(exc), None if isinstance(exc, errors.InvalidRequest) else advice)]
    judged = judge_accounts(statuses) if all_accounts and found.refusal is None else []
    return [*judge_store(found, has_key=settings.store_key is not None), *judged, *readable]


def judge_accounts(statuses: Sequence[AccountStatus]) -> list[Finding]:
    """Judge the accounts of a platform that need someone."""
    if not statuses:
        return [_ok("accounts", "no account of the store needs anyone")]
    counts = Counter(need for status in statuses for need in status.needs)
    told = ", ".join(f"{need}: {counts[need]}" for need in AccountNeed if need in counts)
    return [_warning("accounts", f"{len(statuses)} need someone ({told})", "run mobilemoney accounts list")]


def judge_files(readable: list[Path]) -> list[Finding]:
    """Judge the files of a store that other users of this machine can read."""
    if not readable:
        return []
    names = ", ".join(map(str, readable))
    text = f"other users of this machine can read {names}: phone numbers, amounts, and a login token without a key"
    return [_warning("store file", text, f"chmod 600 {shlex.join(map(str, readable))}")]


def judge_store(health: StoreHealth, *, has_key: bool) -> list[Finding]:
    """Judge the health of a store."""
    if health.version is None:
        return [_ok("store", "it is empty: its first use makes the tables")]
    if health.refusal is not None:
        return [_problem("store", health.refusal, None)]
    findings = [_ok("store", f"it opens and can be written; tables of version {health.version}")]
    if health.cannot_write is not None:
        advice = "name the server that writes, and give this user the right to (for SQLite: to the file and its folder)"
        findings = [_problem("store", f"it cannot be written: {health.cannot_write}", advice)]
    text = f"payments with an unknown result: {health.unresolved}"
    unresolved = _warning("payments", text, "run mobilemoney payments reconcile")
    findings.append(unresolved if health.unresolved else _ok("payments", "none is unresolved"))
    if health.clear_tokens:
        advice = "set MOBILEMONEY_STORE_KEY, the same for all processes"
        if has_key:
            advice = f"{advice}: one of them has none; the next login with the key deletes this token"
        findings.append(_warning("store key", "it holds a login token in clear text", advice))
    elif health.encrypted_tokens and not has_key:
        text = "other processes encrypt the login token, and there is no key here: each process logs in by itself"
        findings.append(_warning("store key", text, "set MOBILEMONEY_STORE_KEY, the same for all processes"))
    return findings
