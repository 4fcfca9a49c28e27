"""Limits of the payments of a merchant's programs to recipients. Pure."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import attrs

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.errors import InvalidRequest, LimitExceeded
from mobilemoney_async.values import normalise_amount, refuse

A_DAY = timedelta(hours=24)
"""The time over which disbursements are summed, up to now: no midnight lets twice as much pass."""

# A larger sum would not be exact in SQLite.
_MOST = Decimal(10**15)


def _read(value: int | Decimal | str | None) -> Decimal | None:
    """Return the amount of a limit; another value stays as it is, for the check that knows the limit's name."""
    found: Any = value
    with suppress(InvalidRequest):
        found = None if value is None else Decimal(normalise_amount(value))
    return found  # type: ignore[no-any-return]


def _check(instance: object, attribute: attrs.Attribute[Decimal | None], value: Any) -> None:
    if value is not None and not (
        isinstance(value, Decimal) and value.is_finite() and 0 < value <= _MOST and value == int(value)
    ):
        raise refuse(attribute.name, f"whole TZS above 0, at most {_MOST:,f}, or None", value)


@attrs.frozen(kw_only=True)
class DisbursementLimits:
    """Limits of disbursements: one that exceeds any of them is not sent, but raises `LimitExceeded`.

    A day is the last 24 hours. All disbursements count that may have moved money: those on their way, with an unknown
    result, or refused without a code of the contract, too. Those that failed, were not sent, were cancelled, or were
    refused for certain do not. With a store, all processes count together, by the database's clock, and what waits in
    the queue counts for each payment that does not come from there. Without one, each process counts what it has sent
    itself, and a payment that fails later goes on to count.

    Args:
        per_payment: Of one disbursement, whole TZS; an int, `Decimal` or str as for an amount. None for no limit.
        per_recipient_a_day: Of all disbursements to one phone number in a day.
        per_day: Of all disbursements in a day.

    Raises:
        InvalidRequest: A limit is not a whole number above 0, or all of them are None.
    """

    per_payment: Decimal | None = attrs.field(default=None, converter=_read, validator=_check)
    per_recipient_a_day: Decimal | None = attrs.field(default=None, converter=_read, validator=_check)
    per_day: Decimal | None = attrs.field(default=None, converter=_read, validator=_check)

    def __attrs_post_init__(self) -> None:
        if self.per_payment is self.per_recipient_a_day is self.per_day is None:
            raise refuse("disbursement_limits", "one limit at least: per_payment, per_recipient_a_day or per_day")


def check_limits(limits: object) -> DisbursementLimits | None:
    """Return the argument ``disbursement_limits``, or raise `InvalidRequest`."""
    if limits is None or isinstance(limits, DisbursementLimits):
        return limits
    raise refuse("disbursement_limits", "a DisbursementLimits or None", type(limits))


@exactly
def require_within(
    limits: DisbursementLimits, amount: Decimal, *, to_recipient: Decimal, in_all: Decimal, what: str = ""
) -> None:
    """Raise `LimitExceeded` if a disbursement exceeds a limit.

    Args:
        limits: The limits.
        amount: Of the disbursement, or of several to one number.
        to_recipient: The sum that may have been sent to this number in the last 24 hours.
        in_all: The same to any number.
        what: Words for what exceeds the limit, for the error.
    """
    for name, limit, spent in (
        ("per_payment", limits.per_payment, Decimal(0)),
        ("per_recipient_a_day", limits.per_recipient_a_day, to_recipient),
        ("per_day", limits.per_day, in_all),
    ):
        if limit is not None and spent + amount > limit:
            left, named = max(limit - spent, Decimal(0)), what or f"a disbursement of {amount:,f} TZS"
            said = f"{named} exceeds {name} of the disbursement limits, {limit:,f} TZS"
            rest = "" if name == "per_payment" else f": {left:,f} TZS are left"
            raise LimitExceeded(f"{said}{rest}; nothing was sent", limit=name, most=limit, left=left)
