"""Common parts of all ways between values and plain data, such as side fields that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

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


# Side fields that an answer does not show, or shows as something else: each is said once a process.


class SideFields(NamedTuple):
    """Side fields of an answer.

    Attributes:
        shown: Those which the contract shows always: that one is missing is noted, too.
        otherwise: Values in place of fields that cannot be read, where these are neither None nor the default.
    """

    shown: tuple[str, ...] = ()
    otherwise: Mapping[str, Any] = {}


ANSWERS: dict[Any, SideFields] = {}
"""Bodies of the service, and the objects in them, that are read by their core fields; the models add theirs."""

# Fields of the contract with the kinds of value below: a service cannot fill our memory.
_noted: set[tuple[str, str, str]] = set()
_unsaid: list[tuple[str, str, str]] = []


def note(owner: str, field: str, value: object) -> None:
    """Note that a field cannot be read, for the log; each field and kind of value once."""
    noted = (owner, field, _kind_of(value))
    if noted not in _noted:
        _noted.add(noted)
        _unsaid.append(noted)


def forget_unsaid() -> None:
    """Forget the notes that the log does not have yet: what was read is no such answer."""
    _noted.difference_update(_unsaid)
    _unsaid.clear()


def take_unsaid() -> list[str]:
    """Return the sentences that the log does not have yet. None of them shows a value."""
    if not _unsaid:
        return []
    said = "{}.{} cannot be read in an answer of the service, and counts as missing: it is {}"
    taken = [said.format(*noted) for noted in _unsaid]
    _unsaid.clear()
    return taken


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "missing or null"
        case bool():
            return "true or false"
        case str():
            return "another text" if value else "an empty text"
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case _:
            return "a number"
