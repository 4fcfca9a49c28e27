"""Recorder of a create's attempts in the store, which the pipeline calls around each of them.

The record SENDING is committed before a socket is touched, in one transaction with all that may forbid it. The unique
indexes decide between processes, whatever was read before. The version of the tables, the account's state and the
unmatched transactions are read by the statement that makes the row, since each create pays for it.

A row has the nonce of its latest attempt. After a commit that broke, and may have been made, the process begins again,
and recognises its own row.

From that commit to the end of the request, a cancellation may come at any await: each way out records the end of the
attempt.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.contract.comparison import contradiction
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.database.prepared import run
from mobilemoney_async.database.schema import FOUND_VERSION, Row, accounts, insert_missing, payments, require_known
from mobilemoney_async.database.threads import clock_stands_still
from mobilemoney_async.errors import (
    APIError,
    AuthenticationError,
    CallOutcome,
    IdempotencyConflict,
    MobileMoneyError,
    PermissionDenied,
    RateLimitExceeded,
    StoreError,
    TransportError,
)
from mobilemoney_async.payments.creates.disbursement_limits import require_payment_within
from mobilemoney_async.payments.ownership.binding import Binding, payment_delayed
from mobilemoney_async.payments.ownership.duplicates import (
    NUMBER_KEY,
    SUSPECT,
    TURNED,
    DuplicateGuard,
    duplicate_suspected,
)
from mobilemoney_async.payments.records.account_store import REQUEST_MARGIN, STATE, AccountStore, require_active
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import (
    Clearance,
    PaymentEvent,
    PaymentRequest,
    PaymentState,
    Source,
    clearance,
    withdrawal,
)
from mobilemoney_async.payments.records.rows import JournalEntry, reason_columns, request_columns, to_record
from mobilemoney_async.payments.records.statements import ACCOUNT
from mobilemoney_async.tasks import monotonic, shielded

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds between attempts to record an answer while the database is away; none begins after ten of them, as behind a
# lock: the answer is safe in the buffer, and the caller waits for it.
_SAVE_PAUSES = (0.1, 0.5, 1.0)
_SAVE_LIMIT = 10.0
_EVENTS: Mapping[CallOutcome, PaymentEvent] = {
    "not_sent": PaymentEvent.FAIL_UNSENT,
    "refused": PaymentEvent.REFUSE,
    "unknown": PaymentEvent.LOSE,
}

REFUSED_FOR_ALL = (AuthenticationError, PermissionDenied, RateLimitExceeded)
"""Refusals that have nothing to do with the payment: another one would be refused, too."""

NEVER_ITS_OWN = (TransportError, AuthenticationError, RateLimitExceeded)
"""Reasons why nothing was sent that are certainly no payment's own, as a lack of permission may be."""


_must_compare = sa.or_(accounts.c.due_since.is_not(None), accounts.c.went_backwards)
_MUST_COMPARE: sa.Label[Any] = ACCOUNT.with_only_columns(_must_compare).scalar_subquery().label("must_compare")
_OTHERS = (FOUND_VERSION.label("version"), TURNED, NUMBER_KEY, STATE, _MUST_COMPARE)
_FOUND = {is_strict: (suspect, *_OTHERS) for is_strict, suspect in SUSPECT.items()}
_CHECKS = {is_strict: sa.select(*found) for is_strict, found in _FOUND.items()}


class KeyTakenError(Exception):
    """Loss of the key to another process, which has just changed its record: look again."""


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
    binding: Binding
    guard: DuplicateGuard
    request: PaymentRequest
    attempt: int | None  # the latest one of the record, which may be sent again; None if there is no record
    utcnow: Callable[[], datetime]
    sent_at: datetime | None = None  # of the latest one that this call has begun, unless it is known not to exist
    on_sending: Callable[[], object] | None = None
    is_queued: bool = False  # at the beginning of the attempt, by its row under the lock
    asked_at: datetime | None = None  # as of `withdrawal`
    since: int | None = None  # as of `Beginning`
    limits: DisbursementLimits | None = None

    async def sending(self, lives: float) -> float:
        """Record, durably, that the payment is about to be sent, in an attempt of at most `lives` seconds.

        Returns the seconds from this call after which it may not be sent any more, since other processes may count it
        as lost. After a `StoreError`, and a `LimitExceeded`, nothing may be sent.
        """
        if self.on_sending is not None:
            self.on_sending()
        called_at, called = self.utcnow(), monotonic()
        pace = 0.0 if clock_stands_still() else 1.0
        until, made = lives + REQUEST_MARGIN, list[Begun | None]()
        beginning = Beginning(self.guard, self.request, self.attempt, until, asked_at=self.asked_at, since=self.since)
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
            # A task that was cancelled during the commit does not send; and those of one group go on together.
            await checkpoint()
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
        assert self.sent_at is not None
        raise NotEchoedError(answer.transaction_id, problem, self.sent_at)

    async def failed(self, outcome: CallOutcome, error: MobileMoneyError | None) -> None:
        """Record that an attempt ended without an answer. Never raises: the attempt's own error matters more."""
        detail = "cancelled" if error is None else str(error)
        is_certain = isinstance(error, APIError) and error.is_certain
        code = (error.code or f"HTTP {error.status_code}") if isinstance(error, APIError) else None
        is_unmade = outcome == "not_sent" or (is_certain and isinstance(error, REFUSED_FOR_ALL))
        event = PaymentEvent.REQUEUE if self.is_queued and is_unmade else _EVENTS[outcome]
        self.sent_at = self.sent_at if outcome == "unknown" else None
        try:
            await self._save(event, detail=detail, is_certain=is_certain, code=code)
        except StoreError as exc:
            yet = " yet" if self.request.key in self.store.unwritten else ""  # else there is another one meanwhile
            said = "the result of payment %r of account %r is not recorded%s: %s"
            logger.error(said, self.request.key, self.store.account, yet, exc)  # noqa: TRY400
        else:
            if outcome == "unknown":
                # A life that ends with a lost answer remembers its payment. Else an operator decides.
                with suppress(StoreError):
                    await self.binding.keep_contact(after=timedelta(0))

    async def _save(self, event: PaymentEvent, **values: Any) -> None:
        entry = JournalEntry(self.request.key, self.attempt, event, source=Source.ANSWER, at=self.utcnow(), **values)
        # In the buffer before the first attempt to write it, so that no interruption loses it.
        self.store.keep(entry)
        until = anyio.current_time() + _SAVE_LIMIT
        for pause in (*_SAVE_PAUSES, None):
            try:
                await self.store.save(entry)
            except StoreError:
                if pause is None or not self.store.is_kept(entry) or anyio.current_time() + pause > until:
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


@attrs.frozen
class Begun:
    """Attempt that was begun.

    Attributes:
        attempt: Its number.
        sent_at: When it was begun.
        nonce: Random, also in its row.
        was_queued: Whether the payment was in the queue, by its row under the lock.
    """

    attempt: int
    sent_at: datetime
    nonce: str
    was_queued: bool = False


@attrs.define(eq=False)
class Beginning:
    """Beginning of one attempt. Its transaction may run again, after a commit that broke.

    Attributes:
        guard: That of the account.
        expected: The latest attempt of its record, which must still be one that may be sent again; None if there
            is no record.
        lives: The longest that the request can be on its way, seconds.
        asked_at: As of `withdrawal`.
        since: Of a caller's create, the number of the first entry of the payment's history after it began.
        begun: What the last run has begun, which the next one returns if it was committed.
    """

    guard: DuplicateGuard
    request: PaymentRequest
    expected: int | None
    lives: float
    asked_at: datetime | None = None
    since: int | None = None
    begun: Begun | None = attrs.field(default=None, init=False)

    def begin(self, journal: Journal, now: datetime) -> Begun | None:
        """Record, in a transaction that writes, that the payment is about to be sent; return the attempt.

        Returns None if another was faster.

        Raises:
            DuplicateSuspected: A payment of the same kind is unidentified, or may be made already.
            AccountSuspended: The account begins no payment now.
            IdempotencyConflict: It was made by a retry in place of a payment that has moved money after all.
            StoreError: Another release has changed the tables since this process began; or someone has taken the
                payment out of the queue from `since` on, and was told that it is not sent.
        """
        # Before what may forbid it by now: it is begun.
        if self._has_begun(journal):
            return self.begun
        checks, nonce = self.guard.parameters(journal, self.request, now), secrets.token_hex(16)
        times = {"sent_at": now, "stale_at": now + timedelta(seconds=self.lives), "changed_at": now}
        columns = {"state": PaymentState.SENDING, "stops_kind": True, "nonce": nonce, **times}
        if self.expected is None:
            begun = Begun(1, now, nonce) if self._insert(journal, columns, checks) else None
        else:
            was_queued = self._send_again(journal, self.expected, columns, checks)
            begun = None if was_queued is None else Begun(self.expected + 1, now, nonce, was_queued)
        if begun is None:
            # Read after the database has refused the row: because of a duplicate, or of the key itself.
            if (duplicate := journal.find_duplicate(self.request)) is not None:
                raise duplicate_suspected(duplicate)
            return self.begun if self._has_begun(journal) else None
        self.begun, key = begun, self.request.key
        said: dict[str, Any] = {"source": Source.ANSWER, "detail": f"attempt {begun.attempt}"}
        journal.record(key, PaymentEvent.SEND, PaymentState.SENDING, at=now, is_last=True, **said)
        return begun

    def _has_begun(self, journal: Journal) -> bool:
        """Return whether the last run was committed."""
        row = None if self.begun is None else journal.row(self.request.key, lock=True)
        return row is not None and (row.nonce, row.state) == (self.begun and self.begun.nonce, PaymentState.SENDING)

    def _insert(self, journal: Journal, columns: Mapping[str, Any], checks: Mapping[str, Any]) -> bool:
        """Make a row, or return False if a unique index forbids it."""
        new = {"attempt": 1, "created_at": columns["sent_at"]}
        values = {**request_columns(journal.account, self.request), **new, **columns, **checks}
        found = run(
            journal.connection, insert_missing(payments, journal.dialect, *_FOUND[self.guard.is_strict]), values
        )
        if found is not None:
            self._require_allowed(journal, found, checks)
        return found is not None

    def _send_again(
        self, journal: Journal, expected: int, columns: Mapping[str, Any], checks: Mapping[str, Any]
    ) -> bool | None:
        """Begin another attempt in a row; return whether that was queued, or None if it or a duplicate forbids it."""
        request = self.request
        self._require_allowed(journal, run(journal.connection, _CHECKS[self.guard.is_strict], checks), checks)
        row = journal.row(request.key, lock=True)
        # The caller knows whether absence suffices, and the age of the last look. Under the lock, only what another
        # process may have changed matters.
        if row is None or row.attempt != expected or clearance(to_record(row), None) is not Clearance.SEND:
            return None
        if withdrawal(to_record(row), columns["sent_at"], asked_at=self.asked_at) is not None:
            return None
        if (why := journal.repeated(row)) is not None:
            raise IdempotencyConflict(f"{why}: nothing was sent")
        was_queued = bool(row.state == PaymentState.QUEUED)
        if self.since is not None and not was_queued and journal.was_taken_out(request.key, since=self.since):
            said = "it was taken out of the queue meanwhile; nothing was sent"
            raise StoreError(f"payment {request.key!r}: {said}", outcome="not_sent")
        values = {**columns, "phone_number": request.phone_number, "attempt": expected + 1, "walks": 0}
        nothing = ("walked_at", "candidates", "ended_at", "error", "is_certain", "looked_at", "look_passed")
        values |= {**dict.fromkeys(nothing), "next_look_at": None, **reason_columns(None)}
        return None if journal.stop(row, values) is not None else was_queued

    def _require_allowed(self, journal: Journal, found: Row, checks: Mapping[str, Any]) -> None:
        """Raise the error that forbids the payment, by the columns of `_CHECKS`: it ends the transaction."""
        require_known(found.version)
        require_active(journal, found.account_state)
        if found.must_compare and self.guard.sole_writer is not False and checks["of_payout"]:
            raise payment_delayed(
                "has to be compared with the service before a disbursement, which began before that was known"
            )
        if not self.guard.has(found.account_number_key):  # the store went back to before the account's first payment
            checks = self.guard.parameters(journal, self.request, checks["of_now"])
            found = run(journal.connection, _CHECKS[self.guard.is_strict], checks)
        if found.turned is not None and (turned := journal.find(found.turned)) is not None:
            raise duplicate_suspected(turned)
        self.guard.require_unsuspected(journal, self.request, found.suspect, checks)
