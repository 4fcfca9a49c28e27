"""Beginning of a payment: its row SENDING, in one transaction with all that may forbid it.

The unique indexes decide between processes, whatever was read before. The version of the tables, the account's state
and the unmatched transactions are read by the statement that makes the row, since each create pays for it.

A row has the nonce of its latest attempt. After a commit that broke, and may have been made, the process begins again,
and recognises its own row.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.database.prepared import run
from mobilemoney_async.database.schema import FOUND_VERSION, insert_missing, payments, require_known
from mobilemoney_async.errors import IdempotencyConflict, StoreError
from mobilemoney_async.payments.ownership.duplicates import (
    NUMBER_KEY,
    SUSPECT,
    TURNED,
    DuplicateGuard,
    duplicate_suspected,
)
from mobilemoney_async.payments.records.account_state import STATE, require_active
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
from mobilemoney_async.payments.records.rows import reason_columns, request_columns, to_record

_FOUND = (FOUND_VERSION.label("version"), SUSPECT, TURNED, NUMBER_KEY, STATE)
_CHECKS = sa.select(*_FOUND)


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


def begin_payment(
    journal: Journal,
    guard: DuplicateGuard,
    request: PaymentRequest,
    *,
    expected: int | None,
    sent_at: datetime,
    lives: float,
    asked_at: datetime | None = None,
    since: int | None = None,
    earlier: Begun | None = None,
) -> Begun | None:
    """Record that a payment is about to be sent, and return the attempt; None if another was faster.

    Args:
        journal: In a transaction that writes.
        guard: That of the account.
        request: The payment.
        expected: The latest attempt of its record, which must still be one that may be sent again; None if there
            is no record.
        sent_at: Now.
        lives: The longest that the request can be on its way, seconds.
        asked_at: As of `withdrawal`.
        since: Of a caller's create, the number of the first entry of the payment's history after it began.
        earlier: What the last run of this transaction has begun, which is returned if it was committed.

    Raises:
        DuplicateSuspected: A payment of the same kind is unidentified, or may be made already.
        AccountSuspended: The account begins no payment now.
        IdempotencyConflict: It was made by a retry in place of a payment that has moved money after all.
        StoreError: Another release has changed the tables since this process began; or someone has taken the payment
            out of the queue from `since` on, and was told that it is not sent.
    """
    # Before what may forbid it by now: it is begun.
    if (own := _find_own(journal, request, earlier)) is not None:
        return own
    checks = guard.parameters(journal, request, sent_at)
    times = {"sent_at": sent_at, "stale_at": sent_at + timedelta(seconds=lives), "changed_at": sent_at}
    columns = {"state": PaymentState.SENDING, "stops_kind": True, **times}
    columns["nonce"] = nonce = secrets.token_hex(16)
    beginning = _Beginning(journal, guard, request, sent_at, nonce, columns, checks)
    begun = beginning.insert() if expected is None else beginning.send_again(expected, asked_at, since)
    if begun is None:
        # Read after the database has refused the row: because of a duplicate, or of the key itself.
        duplicate = journal.find_duplicate(request)
        if duplicate is not None:
            raise duplicate_suspected(duplicate)
        return _find_own(journal, request, earlier)
    what, detail = PaymentEvent.SEND, f"attempt {begun.attempt}"
    journal.record(request.key, what, PaymentState.SENDING, at=sent_at, source=Source.ANSWER, detail=detail)
    return begun


def _find_own(journal: Journal, request: PaymentRequest, earlier: Begun | None) -> Begun | None:
    """Return what an earlier run of the transaction has begun, if it was committed."""
    row = None if earlier is None else journal.row(request.key, lock=True)
    if row is None or earlier is None:
        return None
    return earlier if (row.nonce, row.state) == (earlier.nonce, PaymentState.SENDING) else None


@attrs.frozen
class _Beginning:
    """Beginning of one payment, in its transaction."""

    journal: Journal
    guard: DuplicateGuard
    request: PaymentRequest
    sent_at: datetime
    nonce: str
    columns: Mapping[str, Any]  # which change with each attempt
    checks: Mapping[str, Any]

    def insert(self) -> Begun | None:
        """Make a row, or return None if a unique index forbids it."""
        new = {"attempt": 1, "walks": 0, "priority": 0, "is_adopted": False, "created_at": self.sent_at}
        values = {**request_columns(self.journal.account, self.request), **new, **self.columns, **self.checks}
        found = run(self.journal.connection, _insertion(self.journal.dialect), values).one_or_none()
        if found is None:
            return None
        self._require_allowed(found)
        return Begun(1, self.sent_at, self.nonce)

    def send_again(self, expected: int, asked_at: datetime | None, since: int | None) -> Begun | None:
        """Begin another attempt in a row, or return None if the row or a duplicate forbids it."""
        journal, request = self.journal, self.request
        self._require_allowed(journal.execute(_CHECKS, self.checks).one())
        row = journal.row(request.key, lock=True)
        # The caller knows whether absence suffices, and the age of the last look. Under the lock, only what another
        # process may have changed matters.
        if row is None or row.attempt != expected or clearance(to_record(row), None) is not Clearance.SEND:
            return None
        if withdrawal(to_record(row), self.sent_at, asked_at=asked_at) is not None:
            return None
        if (why := journal.repeated(row)) is not None:
            raise IdempotencyConflict(f"{why}: nothing was sent")
        was_queued = row.state == PaymentState.QUEUED
        if since is not None and not was_queued and journal.was_taken_out(request.key, since=since):
            said = "it was taken out of the queue meanwhile; nothing was sent"
            raise StoreError(f"payment {request.key!r}: {said}", outcome="not_sent")
        values = {**self.columns, "phone_number": request.phone_number, "attempt": expected + 1, "walks": 0}
        nothing = ("walked_at", "candidates", "ended_at", "error", "is_certain", "looked_at", "look_passed")
        values |= {**dict.fromkeys(nothing), "next_look_at": None, **reason_columns(None)}
        try:
            with journal.connection.begin_nested():
                journal.change(request.key, values)
        except sa.exc.IntegrityError:
            if journal.find_duplicate(request) is None:
                raise  # refused for another reason, a trigger say: the caller would try again for ever
            return None
        return Begun(expected + 1, self.sent_at, self.nonce, was_queued)

    def _require_allowed(self, found: sa.Row[Any]) -> None:
        """Raise the error that forbids the payment, by the columns of `_CHECKS`: it ends the transaction."""
        require_known(found.version)
        require_active(self.journal, found.account_state)
        checks = self.checks
        if not self.guard.has(found.number_key):  # the store went back to before the account's first payment
            checks = self.guard.parameters(self.journal, self.request, self.sent_at)
            found = self.journal.execute(_CHECKS, checks).one()
        if found.turned is not None and (turned := self.journal.find(found.turned)) is not None:
            raise duplicate_suspected(turned)
        self.guard.require_unsuspected(self.journal, self.request, found.suspect, checks)


@functools.cache
def _insertion(dialect: str) -> Any:
    """Return the statement that makes a row, and gives the version of the tables, unless a unique index forbids it."""
    return insert_missing(payments, dialect).returning(*_FOUND)
