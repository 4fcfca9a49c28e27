"""Magic phone numbers: the number decides the fate of the payment, without a script.

The table at the end is the only place with these numbers; the command line prints it and a test asserts every row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import attrs

from mobilemoney_async.sandbox import faults
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.states import Event, Kind

PREFIX = "+255780000"

Pace = Literal["ordinary", "decided", "late", "expiry"]
"""Time to the end of a payment: the name of a duration in `Choices`."""


@attrs.frozen(kw_only=True)
class Plan:
    """Plan for the end of a payment, unless it is decided earlier.

    Args:
        event: The event that ends it; None leaves it open for ever.
        pace: The time of the event.
        reason: `failure_reason` of a failed transaction.
        hidden: Whether it is missing from lookups and list at first.
    """

    event: Event | None = Event.APPROVE
    pace: Pace = "ordinary"
    reason: str | None = None
    hidden: bool = False


ORDINARY = Plan()
BY_HAND = Plan(event=Event.EXPIRE, pace="expiry")
_SUCCEEDS = Plan(pace="decided")


def _fails(reason: str) -> Plan:
    return Plan(event=Event.DECLINE, pace="decided", reason=reason)


@attrs.frozen
class MagicNumber:
    """Row of the table of magic numbers.

    Args:
        suffix: The last three digits.
        applies_to: The payments that it decides; for others the number is an ordinary one.
        meaning: Description for readers.
        plan: The end of the payment, once it is accepted.
        fault: The fault that strikes the request that creates it.
        alternates: True if the fault strikes the first request, spares its repetition, and so on in turn.
    """

    suffix: str
    applies_to: Literal["collection", "disbursement", "both"]
    meaning: str
    plan: Plan = _SUCCEEDS
    fault: Fault | None = attrs.field(default=None, kw_only=True)
    alternates: bool = attrs.field(default=False, kw_only=True)

    @property
    def phone_number(self) -> str:
        """The whole number."""
        return PREFIX + self.suffix

    def steers(self, kind: Kind) -> bool:
        """Return whether payments of this kind follow the row."""
        return self.applies_to in ("both", kind)


def find(phone_number: str, kind: Kind) -> MagicNumber | None:
    """Return the row that decides this payment, None if the number is an ordinary one."""
    row = MAGIC_NUMBERS.get(phone_number)
    return row if row is not None and row.steers(kind) else None


_ROWS = (
    MagicNumber("789", "both", "succeeds"),
    MagicNumber("029", "collection", "fails: payer not found", _fails("PAYER_NOT_FOUND")),
    MagicNumber("039", "collection", "fails: the payer did not approve", _fails("PAYMENT_NOT_APPROVED")),
    MagicNumber("048", "collection", "fails: the payer's balance is too low", _fails("INSUFFICIENT_BALANCE")),
    MagicNumber("069", "collection", "fails for no stated reason", _fails("UNSPECIFIED_FAILURE")),
    MagicNumber("089", "disbursement", "fails: recipient not found", _fails("RECIPIENT_NOT_FOUND")),
    MagicNumber("119", "disbursement", "fails for no stated reason", _fails("UNSPECIFIED_FAILURE")),
    MagicNumber("129", "both", "stays open for ever", Plan(event=None)),
    MagicNumber("408", "collection", "the prompt expires: TIMEOUT", Plan(event=Event.EXPIRE, pace="expiry")),
    MagicNumber("201", "both", "accepted, but the answer is lost", fault=faults.lost(processed=True)),
    MagicNumber("202", "both", "the request is lost before processing", fault=faults.lost(processed=False)),
    MagicNumber("203", "both", "HTTP 500 after processing", fault=faults.server_error(500, processed=True)),
    MagicNumber("204", "both", "HTTP 504 before processing", fault=faults.html_page(504, processed=False)),
    MagicNumber(
        "205", "both", "rate-limited once, the repetition passes", fault=faults.rate_limited(), alternates=True
    ),
    MagicNumber(
        "206", "both", "token expired once, the repetition passes", fault=faults.token_expired(), alternates=True
    ),
    MagicNumber("301", "both", "succeeds late", Plan(pace="late")),
    MagicNumber(
        "304", "both", "succeeds, but is missing from lookups and list at first", Plan(pace="decided", hidden=True)
    ),
)

MAGIC_NUMBERS: Mapping[str, MagicNumber] = MappingProxyType({row.phone_number: row for row in _ROWS})
"""The whole table, by phone number."""
