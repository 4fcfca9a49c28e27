"""Interfaces of what calls work with: records of payments, observers of the list, claims of accounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from mobilemoney_async.contract.models import Transaction, UnreadableRow
from mobilemoney_async.errors import CallOutcome, MobileMoneyError, StoreError


class AttemptRecorder(Protocol):
    """Record of one call that moves money, on disk before the socket is touched."""

    async def sending(self, lives: float) -> float:
        """Record that an attempt of at most `lives` seconds is about to be sent; return in how many it must be.

        They count from this call, and are more where the store was busy. An error ends the call: it was not sent.
        """
        ...

    async def answered(self, answer: Any) -> None:
        """Record the answer. Called inside a shield; an error of it ends the call."""
        ...

    async def failed(self, outcome: CallOutcome, error: MobileMoneyError | None) -> None:
        """Record that an attempt failed, or was cancelled (None). Called inside a shield; raises nothing."""
        ...


class RowObserver(Protocol):
    """Observer of the transaction list: it sees each page that any part of the client reads.

    After a lookup, and once a minute from an open poller or dispatcher, it sees no rows, only that the client is alive.
    """

    async def observe(self, rows: Sequence[Transaction], unreadable: Sequence[UnreadableRow] = ()) -> None:
        """See the rows of a page, and those that cannot be read. Raises nothing; cancelling it ends the call."""
        ...


class ClaimEndedError(StoreError):
    """End of an `AccountClaim`: nothing was sent, and another host goes on."""


class AccountClaim(Protocol):
    """Right to serve an account, which one host of a platform has at a time.

    Attributes:
        host: Name of the host.
        ttl: Seconds for which the host has it after each renewal.
        poller: Of a poller of this host with a lease that is renewed along with the claim: its name, and the two
            numbers of the row. Set by the poller.
    """

    host: str
    ttl: float
    poller: tuple[str, int, int] | None

    def require(self) -> None:
        """Raise `ClaimEndedError` if another host may serve the account by now. Called before each request is sent."""
        ...


class Admission(Protocol):
    """Check that credentials which may change at any time are the account's own."""

    def is_current(self) -> bool:
        """Return whether the credentials that are in use now have been admitted."""
        ...

    async def require_bound(self) -> None:
        """Admit the credentials that are in use now, or raise `StoreError`: they are another merchant's."""
        ...


@attrs.define
class AnswerFacts:
    """Facts of the last answer to one call, beside its value; filled in by `Pipeline.call`.

    Attributes:
        date: The Date header, which shows the service's clock, or None.
    """

    date: str | None = None
