"""Recorder of a create's attempts in the store, which the pipeline calls around each of them.

The record SENDING is committed before a socket is touched. From that commit to the end of the request, a cancellation
may come at any await: each way out records the end of the attempt.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint

from mobilemoney_async.cancellation import shielded
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.contract.comparison import contradiction
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.database.threads import clock_stands_still
from mobilemoney_async.errors import (
    APIError,
    AuthenticationError,
    CallOutcome,
    MobileMoneyError,
    PermissionDenied,
    RateLimitExceeded,
    StoreError,
)
from mobilemoney_async.host_clock import monotonic
from mobilemoney_async.payments.creates.beginning import Beginning, Begun
from mobilemoney_async.payments.creates.disbursement_limits import require_payment_within
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
from mobilemoney_async.payments.records.account_store import REQUEST_MARGIN, AccountStore
from mobilemoney_async.payments.records.entries import JournalEntry
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRequest, Source

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds between attempts to record an answer while the database is away.
_SAVE_PAUSES = (0.1, 0.5, 1.0)
_EVENTS: Mapping[CallOutcome, PaymentEvent] = {
    "not_sent": PaymentEvent.FAIL_UNSENT,
    "refused": PaymentEvent.REFUSE,
    "unknown": PaymentEvent.LOSE,
}

REFUSED_FOR_ALL = (AuthenticationError, PermissionDenied, RateLimitExceeded)
"""Refusals that have nothing to do with the payment: another one would be refused, too."""


class KeyTakenError(Exception):
    """Loss of the key to another process, which has just changed its record, or other credentials: look again."""


class NotEchoedError(Exception):
    """Acknowledgement of a transaction that does not fit the request."""

    def __init__(self, transaction_id: str, problem: str, sent_at: datetime) -> None:
        super().__init__(problem)
        self.transaction_id = transaction_id
        self.sent_at = sent_at


@attrs.define(eq=False)
class RecordedAttempts:
    """Record of one create's attempts; the pipeline calls it around each of them.

    A payment that was queued goes back into the queue, in the transaction that records the end of the attempt, if it
    was provably not sent, or refused for a reason that is not its own: so no crash leaves it out.
    """

    store: AccountStore
    guard: DuplicateGuard
    request: PaymentRequest
    expected: int | None
    utcnow: Callable[[], datetime]
    attempt: int | None = None
    sent_at: datetime | None = None
    outcome: CallOutcome = "not_sent"
    on_sending: Callable[[], object] | None = None
    is_queued: bool = False  # at the beginning of the attempt, by its row under the lock
    asked_at: datetime | None = None  # as of `withdrawal`
    since: int | None = None  # as of `Beginning`
    is_current: Callable[[], bool] = lambda: True
    limits: DisbursementLimits | None = None

    async def sending(self, lives: float) -> float:
        """Record, durably, that the payment is about to be sent, in an attempt of at most `lives` seconds.

        Returns the seconds from this call after which it may not be sent any more, since other processes may count it
        as lost. After a `StoreError`, and a `LimitExceeded`, nothing may be sent.
        """
        if not self.is_current():
            raise KeyTakenError  # a secret was replaced while this waited: is it the same merchant's?
        if self.on_sending is not None:
            self.on_sending()
        called_at, called = self.utcnow(), monotonic()
        pace = 0.0 if clock_stands_still() else 1.0
        expected = self.expected if self.attempt is None else self.attempt
        until, made = lives + REQUEST_MARGIN, list[Begun | None]()
        beginning = Beginning(self.guard, self.request, expected, until, asked_at=self.asked_at, since=self.since)
        time_of = self.store.database.time_of_transaction(self.utcnow)

        def begin(journal: Journal) -> Begun | None:
            # In a busy process a transaction begins seconds after it was asked for, which must not make it worthless.
            sent_at = called_at + timedelta(seconds=pace * (monotonic() - called))
            if self.limits is not None:
                # A create that finds its payment in the queue is a wish like others, and waits for none of them.
                require_payment_within(
                    journal,
                    self.limits,
                    self.request,
                    at=time_of(journal.connection),
                    is_of_queue=self.asked_at is None,
                )
            return beginning.begin(journal, sent_at)

        def note(begun: Begun | None) -> None:
            made.append(begun)
            if begun is not None:
                self.attempt, self.sent_at, self.is_queued = begun.attempt, begun.sent_at, begun.was_queued
                self.store.note_newest(begun.sent_at)

        try:
            # The commit may succeed although this task is cancelled during it: `made` knows.
            # With limits it holds the account's lock, which a shared transaction would keep for longer.
            share_key = self.request.key if self.limits is None else None
            write = functools.partial(self.store.write, begin, on_commit=note, share_key=share_key)
            await _write_begun(write, beginning)
            await checkpoint()  # a task that was cancelled during the commit does not send
        except BaseException:
            if made and made[0] is not None:
                await shielded(lambda: self.failed("not_sent", None))
            raise
        if made[0] is None:
            raise KeyTakenError
        return (made[0].sent_at - called_at).total_seconds() + REQUEST_MARGIN

    async def answered(self, answer: Acknowledgement) -> None:
        """Record the transaction's id, durably. The pipeline calls it inside a shield.

        Raises:
            StoreError: It could not be recorded, which will be tried again, or contradicts the record.
        """
        asked = {"phone_number": self.request.phone_number, "amount": self.request.amount}
        problem = contradiction(answer, type=self.request.type, **asked)
        try:
            if problem is None:
                await self._save(PaymentEvent.ACKNOWLEDGE, acknowledgement=answer)
                self.store.remember(answer.transaction_id)
                return
            await self._save(PaymentEvent.LOSE, detail=problem, named_id=answer.transaction_id)
        except StoreError as exc:
            exc.outcome = "unknown"  # "not_sent" meant the entry; the payment was sent
            raise
        self.outcome = "unknown"
        assert self.sent_at is not None
        raise NotEchoedError(answer.transaction_id, problem, self.sent_at)

    async def failed(self, outcome: CallOutcome, error: MobileMoneyError | None) -> None:
        """Record that an attempt ended without an answer. Never raises: the attempt's own error matters more."""
        self.outcome = outcome
        detail = "cancelled" if error is None else str(error)
        is_certain = isinstance(error, APIError) and error.is_certain
        code = (error.code or f"HTTP {error.status_code}") if isinstance(error, APIError) else None
        is_unmade = outcome == "not_sent" or (is_certain and isinstance(error, REFUSED_FOR_ALL))
        event = PaymentEvent.PUT_BACK if self.is_queued and is_unmade else _EVENTS[outcome]
        try:
            await self._save(event, detail=detail, is_certain=is_certain, code=code)
        except StoreError as exc:
            logger.error("the result of payment %r is not recorded yet: %s", self.request.key, exc)  # noqa: TRY400

    async def _save(self, event: PaymentEvent, **values: Any) -> None:
        entry = JournalEntry(self.request.key, self.attempt, event, source=Source.ANSWER, at=self.utcnow(), **values)
        # In the buffer before the first attempt to write it, so that no interruption loses it.
        self.store.keep(entry)
        for pause in (*_SAVE_PAUSES, None):
            try:
                await self.store.save(entry)
            except StoreError:
                if pause is None or not self.store.is_kept(entry):
                    raise
                await anyio.sleep(pause)
            else:
                return


async def _write_begun(write: Callable[[], Awaitable[object]], beginning: Beginning) -> None:
    """Write the beginning of an attempt; again if the commit broke, and may have been made.

    The second transaction waits for the locks of the first. So it finds the row of the first, or makes one.
    """
    try:
        await write()
    except StoreError as exc:
        if beginning.begun is None or not exc.is_database:
            raise
    else:
        return
    await write()
