"""Transactions: their record, and the two state machines as one table (`contract.md` section 3).

No row of the table starts from a final state, so no transaction can leave one.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

import attrs


class Kind(enum.StrEnum):
    """Type of a transaction, the contract's `type`."""

    COLLECTION = "collection"
    DISBURSEMENT = "disbursement"


class Status(enum.StrEnum):
    """State of a transaction, the contract's `status`."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"


class Event(enum.StrEnum):
    """Event that ends an open transaction."""

    APPROVE = "approve"
    """The customer pays, or the recipient is paid."""
    DECLINE = "decline"
    """The payment fails, whatever the reason."""
    EXPIRE = "expire"
    """The prompt was not answered in time."""
    RUN_SHORT = "run short"
    """The merchant's balance does not cover the payout."""


@attrs.frozen(kw_only=True)
class Payment:
    """Record of a transaction in its true state. Immutable: a change of state makes a new one.

    Times are seconds since the sandbox's start.

    Args:
        id: The contract's transaction id.
        ended_at: Time of its final state, None while it is open.
        visible_at: Time from which it can be looked up.
        expires_at: Time at which its prompt expires unless it is decided earlier; None if it does not expire.
    """

    id: str
    reference: str
    external_id: str | None
    kind: Kind
    amount: str
    phone_number: str = attrs.field(repr=False)
    status: Status
    merchant_id: str
    created_at: float
    visible_at: float
    expires_at: float | None = None
    ended_at: float | None = None
    failure_reason: str | None = None
    fees: Mapping[str, str] | None = None
    settlement: Mapping[str, str] | None = None


class IllegalTransitionError(ValueError):
    """Event that cannot happen to a transaction of this kind in this state."""


INITIAL: Mapping[Kind, Status] = MappingProxyType(
    {Kind.COLLECTION: Status.PENDING, Kind.DISBURSEMENT: Status.PROCESSING}
)

TRANSITIONS: Mapping[tuple[Kind, Status, Event], Status] = MappingProxyType(
    {
        (Kind.COLLECTION, Status.PENDING, Event.APPROVE): Status.SUCCESS,
        (Kind.COLLECTION, Status.PENDING, Event.DECLINE): Status.FAILED,
        (Kind.COLLECTION, Status.PENDING, Event.EXPIRE): Status.TIMEOUT,
        (Kind.DISBURSEMENT, Status.PROCESSING, Event.APPROVE): Status.SUCCESS,
        (Kind.DISBURSEMENT, Status.PROCESSING, Event.DECLINE): Status.FAILED,
        (Kind.DISBURSEMENT, Status.PROCESSING, Event.RUN_SHORT): Status.INSUFFICIENT_FUNDS,
    }
)


def after(kind: Kind, status: Status, event: Event) -> Status:
    """Return the next state; raise `IllegalTransitionError` where the table has no row, as for a final state."""
    try:
        return TRANSITIONS[kind, status, event]
    except KeyError:
        raise IllegalTransitionError(f"a {kind} in {status} cannot {event}") from None
