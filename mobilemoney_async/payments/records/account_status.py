"""Account of a platform: its state, and its needs."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.text import redact, text_repr


class AccountState(enum.StrEnum):
    """State of an account."""

    ACTIVE = "ACTIVE"
    """It pays."""
    SUSPENDED = "SUSPENDED"
    """It begins no payment, and no worker serves it."""
    REMOVED = "REMOVED"
    """It begins no payment; workers follow what is open to its end."""


class AccountNeed(enum.StrEnum):
    """Reason why an account needs someone, the most serious first."""

    UNMATCHED = "unmatched"
    """The service shows transactions that no payment of the store claims: perhaps paid twice."""
    UNKNOWN = "unknown"
    """Payments have an unknown result, or a final state that contradicts their record, or are kept in the queue."""
    BEHIND = "behind"
    """New payments wait: the store has to be compared with the service first."""
    SUSPENDED = "suspended"
    """It waits for someone to resume or remove it."""
    PAUSED = "paused"
    """Nothing is sent from its queue."""
    FAILING = "failing"
    """A worker could not serve it in the last minutes."""
    QUEUED = "queued"
    """It is removed, and payments are left in its queue."""


@attrs.frozen(kw_only=True)
class AccountStatus(Data):
    """Status of one account of a platform.

    Attributes:
        account: Its name.
        state: Whether it pays.
        note: Why it was suspended, removed or resumed last, or None.
        state_at: When it was changed last, aware UTC.
        pending: Payments that exist and are not final.
        unknown: Payments with an unknown result and no request on its way, with a final state that contradicts their
            record, or kept in the queue.
        unmatched: Transactions of the service that no payment claims and that are not explained.
        queued: Payments in the queue.
        paused: Why nothing is sent from the queue, by a dispatcher's or someone's decision; None where it is sent.
        paused_until: When the queue goes on by itself, aware UTC; None if someone has to resume it.
        last_error: The last failure of a worker that served it, or None.
        last_error_at: Its time, aware UTC.
        needs: Why it needs someone, the most serious reason first; empty if it does not.
    """

    account: str
    state: AccountState
    note: str | None = attrs.field(repr=text_repr)
    state_at: datetime | None
    pending: int
    unknown: int
    unmatched: int
    queued: int
    paused: str | None
    paused_until: datetime | None
    last_error: str | None
    last_error_at: datetime | None
    needs: Sequence[AccountNeed]


@attrs.frozen(kw_only=True)
class Erasure(Data):
    """Erasure of one phone number in one account, or of the whole account.

    Attributes:
        account: The account.
        digest: Of the number, under the account's key; ``account`` for the whole account.
        at: When, aware UTC.
        rows: The number of rows that were changed, by table; empty for one that is listed.
    """

    account: str
    digest: str
    at: datetime
    rows: Mapping[str, int] = attrs.field(factory=dict)


def describe(state: str, note: str | None) -> str:
    """Return a state and its note for people: ``suspended: the merchant has left``."""
    return state.lower() if note is None else f"{state.lower()}: {redact(note)}"
