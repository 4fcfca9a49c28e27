"""Labels of money, numbers, times and states on the page; pure."""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from math import ceil
from urllib.parse import unquote, urlsplit

from mobilemoney_async.sandbox.states import Kind, Payment, Status

TONES: Mapping[Status, str] = {
    Status.SUCCESS: "good",
    Status.FAILED: "bad",
    Status.INSUFFICIENT_FUNDS: "bad",
    Status.TIMEOUT: "late",
    Status.PENDING: "wait",
    Status.PROCESSING: "wait",
}
"""Colour and icon of each state, by their names in the stylesheet."""

_RESULTS = {
    (Kind.COLLECTION, Status.SUCCESS): "Paid",
    (Kind.COLLECTION, Status.FAILED): "Not paid",
    (Kind.COLLECTION, Status.TIMEOUT): "Expired",
    (Kind.DISBURSEMENT, Status.SUCCESS): "Received",
}
# Whole words only: digits inside the service's own ids are not phone numbers.
_PHONE_NUMBER = re.compile(r"(?<![0-9A-Za-z_])[+]?[0-9]{8,15}(?![0-9A-Za-z_])")


def money(amount: str | Decimal) -> str:
    """Return an amount with separated thousands; a text that is not a number is returned as it is."""
    try:
        return f"{Decimal(amount):,f}"
    except (InvalidOperation, ValueError):
        return str(amount)


def phone_number(number: str, *, masked: bool) -> str:
    """Return a phone number in groups, or masked."""
    if masked:
        return mask(number)
    tanzanian = re.fullmatch(r"(\+255)(\d{3})(\d{3})(\d{3})", number)
    return " ".join(tanzanian.groups()) if tanzanian else number


def mask(number: str) -> str:
    """Return the country and the last three digits of a phone number; nothing of a shorter text."""
    if len(number) < 8:
        return "•••"
    return f"{number[:4]} ••• ••• {number[-3:]}"


def mask_within(text: str) -> str:
    """Mask every phone number in a text, such as a path or a reference."""
    return _PHONE_NUMBER.sub(lambda found: mask(found.group()), unquote(text))


def receiver(url: str) -> str:
    """Return the URL of a receiver without user, path and query, which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    more = "…" if parts.path not in ("", "/") or parts.query else ""
    return f"{parts.scheme}://{host}/{more}"


def result(payment: Payment) -> str:
    """Return the result of a final payment for its customer or recipient."""
    return _RESULTS.get((payment.kind, payment.status), "Not received")


def speed(rate: float) -> str:
    """Return the speed of the clock."""
    return {0.0: "Paused", 1.0: "Real time"}.get(rate, f"{rate:g} times as fast as real time")


def duration(seconds: float) -> str:
    """Return the time left as minutes and seconds, or hours and minutes, rounded up to whole seconds."""
    whole = max(0, ceil(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60}:{whole % 60:02}"


def clock_time(moment: datetime, *, short: bool = False) -> str:
    """Return the time of day, in a short form without seconds."""
    return f"{moment:%H:%M}" if short else f"{moment:%H:%M:%S}"


def day(moment: datetime) -> str:
    """Return the date, such as "Mon 2 Mar 2026"."""
    return f"{moment:%a} {moment.day} {moment:%b %Y}"
