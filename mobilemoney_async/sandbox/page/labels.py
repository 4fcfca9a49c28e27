"""How the page writes money, numbers and times; pure."""

import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from math import ceil
from urllib.parse import unquote, urlsplit

# Whole words only: digits inside the service's own ids are no phone numbers.
_PHONE_NUMBER = re.compile(r"(?<![0-9A-Za-z_])[+]?[0-9]{8,15}(?![0-9A-Za-z_])")
_SHOWN_AT_END = 3


def money(amount: str | Decimal) -> str:
    """Write an amount with thousands apart; what is no number stays as it is."""
    try:
        return f"{Decimal(amount):,f}"
    except (InvalidOperation, ValueError):
        return str(amount)


def phone_number(number: str, *, masked: bool) -> str:
    """Write a phone number in groups, or with no more of it than its country and its last three digits."""
    if masked:
        return mask(number)
    tanzanian = re.fullmatch(r"(\+255)(\d{3})(\d{3})(\d{3})", number)
    return " ".join(tanzanian.groups()) if tanzanian else number


def mask(number: str) -> str:
    """Return what may be seen of a phone number, or of any text that stands where one should."""
    if len(number) <= _SHOWN_AT_END + 4:
        return "•••"
    return f"{number[:4]} ••• ••• {number[-_SHOWN_AT_END:]}"


def mask_within(text: str) -> str:
    """Mask every phone number in a text of anybody's, such as a path or a reference."""
    return _PHONE_NUMBER.sub(lambda found: mask(found.group()), unquote(text))


def receiver(url: str) -> str:
    """Name a receiver of callbacks without what may be secret in its URL: user, path and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    more = "…" if parts.path not in ("", "/") or parts.query else ""
    return f"{parts.scheme}://{host}/{more}"


def duration(seconds: float) -> str:
    """Write a time that is left as minutes and seconds, or hours and minutes; a second that has begun counts."""
    whole = max(0, ceil(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60}:{whole % 60:02}"


def clock_time(moment: datetime) -> str:
    """Write the time of day."""
    return f"{moment:%H:%M:%S}"


def day(moment: datetime) -> str:
    """Write the date as people say it."""
    return f"{moment:%a} {moment.day} {moment:%b %Y}"
