"""Common parts of all ways between values and plain data."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from mobilemoney_async.errors import CallOutcome

ERROR_ATTRIBUTES: dict[str, Any] = {
    "outcome": CallOutcome,
    "sent_at": datetime,
    "status_code": int,
    "retry_after": float | None,
    "is_certain": bool,
    "argument": str,
    "message": str,
    "excerpt": str,
    "problem": str,
    "state": str,
    "is_database": bool,
    "limit": str,
    "most": Decimal,
    "left": Decimal,
    **dict.fromkeys(
        ["advice", "peer", "idempotency_key", "transaction_id", "other_key", "code", "content_type", "path", "note"],
        str | None,
    ),
}
"""Types of the errors' attributes in data; the models add theirs."""


class OddNumber:
    """JSON number too long for an int, or with an exponent too large for a Decimal."""

    def __init__(self, text: str) -> None:
        self.text: str = text


class DecodeError(ValueError):
    """Body or data that does not fit, with its place, such as ``$.transaction.amount``. Never quotes it."""

    def __init__(self, expected: str, path: str | None = None) -> None:
        super().__init__(expected if path is None else f"{expected} at {path}")
        self.path = path


def in_utc(moment: datetime) -> datetime:
    """Return a time in UTC; one without an offset is UTC, as the contract's times are.

    Raises:
        ValueError: It is none of UTC's years 1 to 9999.
    """
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:  # the first and the last day of the calendar
        raise ValueError("expected a timestamp within the years 1 to 9999 of UTC") from None
