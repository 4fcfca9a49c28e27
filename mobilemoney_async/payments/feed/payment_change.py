"""Change of a payment, as the feed's readers get it; needs no database."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState, UnclaimedTransaction
from mobilemoney_async.text import redact
from mobilemoney_async.values import refuse


class ChangeReader(Protocol):
    """Consumer that handed out a change."""

    async def done(self, cursor: str) -> None:
        """Record that a change, and those handed out before it, are handled."""

    async def failed(self, change: PaymentChange, reason: str) -> None:
        """Record that a change could not be handled, so that it comes again."""


@attrs.frozen(kw_only=True)
class PaymentChange(Data):
    """Change of a payment's state, or a transaction that no payment claims: one entry of the feed.

    Attributes:
        cursor: Its place in the feed: ``payments.changes(after=cursor)`` goes on behind it. Opaque.
        key: The payment's idempotency key; None for an unclaimed transaction.
        state: The state after the change; None for an unclaimed transaction.
        status: The transaction's state then, once known.
        at: Its time.
        record: The payment as it is now, which later changes may have changed too, without its history; None if it was
            moved away, and for an unclaimed transaction.
        transaction: The unclaimed transaction as it is now; None for a payment.
    """

    cursor: str
    key: str | None
    state: PaymentState | None
    status: TransactionStatus | None
    at: datetime
    record: PaymentRecord | None = attrs.field(default=None, repr=False)
    transaction: UnclaimedTransaction | None = attrs.field(default=None, repr=False)
    _reader: ChangeReader | None = attrs.field(default=None, repr=False, eq=False)

    async def done(self) -> None:
        """Record that this change is handled, and so are those that the consumer got before it.

        Raises:
            InvalidRequest: It was not read with ``consumer=``.
            StoreError: The store failed, or another process has taken over as this consumer: this change comes again.
        """
        await self._consumer().done(self.cursor)

    async def failed(self, error: Exception | str) -> None:
        """Record that this change could not be handled. It comes again after a growing pause, ten times.

        The later changes of its payment wait for it, and those of other payments go on. After ten times it is parked.

        Args:
            error: The reason; kept with the change, redacted.

        Raises:
            InvalidRequest: It was not read with ``consumer=``.
            StoreError: As of `done`.
        """
        said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        await self._consumer().failed(self, redact(said))

    def _consumer(self) -> ChangeReader:
        if self._reader is None:
            raise refuse("consumer", "the name of one, given to payments.changes: nothing else keeps a place")
        return self._reader
