"""What `mobilemoney doctor` says of what it has seen. No I/O: `doctor_checks` looks, this judges."""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import attrs

from mobilemoney_async.errors import (
    AuthenticationError,
    InvalidCredentials,
    MobileMoneyError,
    PermissionDenied,
    RateLimitExceeded,
    ServerError,
    TokenExpired,
    TransportError,
    UnexpectedResponse,
)
from mobilemoney_async.payments.health import StoreHealth
from mobilemoney_async.payments.matching import Skew

_SOON = 14  # days of a certificate
_STEADY = timedelta(seconds=2)  # a Date header is cut to a second, and its answer takes a moment
_FAR = timedelta(seconds=60)  # what reconcile allows for where it has not seen the service's clock
_ABSURD = timedelta(minutes=30)  # a time zone taken for another, or a dead battery


class Level(enum.Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@attrs.frozen
class Finding:
    """What one check found.

    Attributes:
        check: Its name.
        level: How it ended.
        text: What was seen.
        advice: What to do about it, or None.
    """

    check: str
    level: Level
    text: str
    advice: str | None = None


def judge_url(base_url: str, *, is_production: bool) -> Finding:
    """Say whether a URL can be the service's. That it is https, or on loopback, is the client's to refuse."""
    parts = urlsplit(base_url)
    money = "real money" if is_production else "no real money"
    if parts.path.rstrip("/").rpartition("/")[2] != "v1":
        return Finding(
            "url",
            Level.WARNING,
            f"{base_url} does not end with the version prefix /v1",
            "the service's base URL includes it: add it if this is the service's own address",
        )
    return Finding("url", Level.OK, f"{base_url} ({parts.scheme}; {money})")


def judge_certificate(expires_at: datetime | None, version: str, now: datetime) -> Finding:
    """Say how long the service's certificate is good for.

    Args:
        expires_at: Aware UTC, or None where the certificate does not say.
        version: Of TLS.
        now: Aware UTC.
    """
    if expires_at is None:
        return Finding("tls", Level.OK, f"{version}, the certificate is trusted")
    days = (expires_at - now).days
    text = f"{version}, the certificate is trusted and good until {expires_at:%Y-%m-%d}: {days} days"
    if days < _SOON:
        return Finding("tls", Level.WARNING, text, "the service has to renew it: ask before payments fail on that day")
    return Finding("tls", Level.OK, text)


def judge_clock(skew: Skew | None) -> Finding:
    """Say how far this machine's clock is from the service's, and what that means for `reconcile`."""
    if skew is None:
        return Finding(
            "clock",
            Level.WARNING,
            "the service's answer shows no time (it has no Date header)",
            "keep this machine's clock set by NTP: reconcile believes a difference of a minute at most, unless "
            "payments of yours show the service's clock",
        )
    apart = timedelta(0)
    if skew.low > timedelta(0):
        apart = skew.low
    elif skew.high < timedelta(0):
        apart = -skew.high
    side = "behind" if skew.low > timedelta(0) else "ahead of"
    text = f"this machine's clock is {apart.total_seconds():.0f} s {side} the service's"
    if apart <= _STEADY:
        return Finding("clock", Level.OK, "this machine's clock agrees with the service's")
    if apart <= _FAR:
        return Finding("clock", Level.OK, f"{text}: reconcile allows for that")
    advice = "set this machine's clock by NTP: reconcile allows for a steady difference, but not for one that changes "
    if apart <= _ABSURD:
        return Finding("clock", Level.WARNING, text, f"{advice}while a payment is unknown")
    return Finding("clock", Level.PROBLEM, text, f"{advice}while a payment is unknown, and dates of list are off")


def judge_call(failure: MobileMoneyError | None, who: str, took: float) -> list[Finding]:
    """Say what a call of the profile tells of credentials and of the rate budget.

    Args:
        failure: How it failed, or None.
        who: Which credentials were used, without what is secret.
        took: Seconds.
    """
    if failure is None:
        return [
            Finding("credentials", Level.OK, f"{who}: accepted"),
            Finding("rate limit", Level.OK, f"one request went through, in {took:.1f} s"),
        ]
    if isinstance(failure, PermissionDenied):
        return [
            Finding(
                "credentials",
                Level.WARNING,
                f"{who}: known to the service, but may not read the profile: {failure}",
                "fine if it may do what you need; else ask whoever issued the credentials",
            ),
            Finding("rate limit", Level.OK, f"one request went through, in {took:.1f} s"),
        ]
    if isinstance(failure, RateLimitExceeded):
        wait = "" if failure.retry_after is None else f", for {failure.retry_after:g} s more"
        return [
            Finding("credentials", Level.SKIPPED, f"{who}: not tried, by the rate limit"),
            Finding(
                "rate limit",
                Level.PROBLEM,
                f"the service rejects requests of this merchant{wait}",
                "something else uses up the merchant's 60 requests a minute: let all your processes share one store",
            ),
        ]
    not_told = Finding("rate limit", Level.SKIPPED, "no request went through")
    return [Finding("credentials", Level.PROBLEM, f"{who}: {failure}", _cure(failure)), not_told]


def _cure(failure: MobileMoneyError) -> str:
    if isinstance(failure, InvalidCredentials):
        return "check e-mail and password; the service limits attempts, so do not try at random"
    if isinstance(failure, TokenExpired):
        return "the token has expired: mobilemoney login, or get a new one"
    if isinstance(failure, AuthenticationError):
        return "the service does not know the token: is it one of this service, whole, and not expired or revoked?"
    if isinstance(failure, ServerError):
        return "the service has a fault: try again later"
    if isinstance(failure, UnexpectedResponse):
        return "something else than the service answers there: check the base URL, and what stands in between"
    if isinstance(failure, TransportError):
        return "it can be reached, but gave no answer in time: try again, or with a longer --timeout"
    return "see what it says"


def judge_store(condition: StoreHealth, *, has_key: bool) -> list[Finding]:
    """Say what state the store is in."""
    if condition.version is None:
        return [Finding("store", Level.OK, "it is empty: its tables are made when it is first used")]
    known = condition.known_version
    if condition.version > known:
        return [
            Finding(
                "store",
                Level.PROBLEM,
                f"its tables are of version {condition.version}, this release knows up to {known}",
                "update mobilemoney-async",
            )
        ]
    findings = [_judge_access(condition)]
    if condition.unresolved:
        findings.append(
            Finding(
                "payments",
                Level.WARNING,
                f"nobody knows what became of {condition.unresolved}",
                "mobilemoney payments reconcile finds out",
            )
        )
    else:
        findings.append(Finding("payments", Level.OK, "none is unresolved"))
    if condition.clear_tokens:
        findings.append(
            Finding(
                "store key",
                Level.WARNING,
                "a login token lies there in clear text",
                "log in anew under the key, which replaces it"
                if has_key
                else "set MOBILEMONEY_STORE_KEY, the same for all processes",
            )
        )
    return findings


def _judge_access(condition: StoreHealth) -> Finding:
    if condition.cannot_write is not None:
        return Finding(
            "store",
            Level.PROBLEM,
            f"it cannot be written: {condition.cannot_write}",
            "give this user the right to write it (for SQLite: the file and its folder)",
        )
    if condition.version is not None and condition.version < condition.known_version:
        return Finding(
            "store",
            Level.OK,
            f"it opens and can be written; tables of version {condition.version} become {condition.known_version} "
            "on the next use",
        )
    return Finding("store", Level.OK, f"it opens and can be written; tables of version {condition.version}")


def worst(findings: list[Finding]) -> Level:
    """Return the worst level that was found."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)
