"""The two state machines, as one table (`contract.md` section 3).

A final state has no row that starts from it, so a transaction that reached one can never leave it.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

import attrs


class Kind(enum.StrEnum):
    """The contract's `type` of a transaction."""

    COLLECTION = "collection"
    DISBURSEMENT = "disbursement"


class Status(enum.StrEnum):
    """The contract's `status` of a transaction."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"


class Event(enum.StrEnum):
    """What can happen to an open transaction."""

    APPROVE = "approve"
    """The customer pays, or the recipient is paid."""
    DECLINE = "decline"
    """The payment fails, whatever the reason."""
    EXPIRE = "expire"
    """Nobody answered the prompt."""
    RUN_SHORT = "run short"
    """The merchant's balance does not cover the payout."""


@attrs.frozen(kw_only=True)
class Payment:
    """The true record of a transaction. Immutable: a change of state makes a new one.

    Times are seconds since the sandbox's start.

    Args:
        id: The contract's transaction id.
        ended_at: When it reached its final state, None while it is open.
        visible_at: When it can first be looked up.
        expires_at: When its prompt expires if nobody decides before; None if something else is to happen to it.
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
    """The event cannot happen to a transaction of this kind in this state."""


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
    """Look up the state that follows.

    Raises:
        IllegalTransitionError: The table has no such row; a final state has none at all.
    """
    try:
        return TRANSITIONS[kind, status, event]
    except KeyError:
        raise IllegalTransitionError(f"a {kind} in {status} cannot {event}") from None
