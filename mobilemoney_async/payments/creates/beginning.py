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
        self.begun, key, said = begun, self.request.key, f"attempt {begun.attempt}"
        journal.record(key, PaymentEvent.SEND, PaymentState.SENDING, at=now, source=Source.ANSWER, detail=said)
        return begun

    def _has_begun(self, journal: Journal) -> bool:
        """Return whether the last run was committed."""
        row = None if self.begun is None else journal.row(self.request.key, lock=True)
        return row is not None and (row.nonce, row.state) == (self.begun and self.begun.nonce, PaymentState.SENDING)

    def _insert(self, journal: Journal, columns: Mapping[str, Any], checks: Mapping[str, Any]) -> bool:
        """Make a row, or return False if a unique index forbids it."""
        new = {"attempt": 1, "walks": 0, "priority": 0, "is_adopted": False, "created_at": columns["sent_at"]}
        values = {**request_columns(journal.account, self.request), **new, **columns, **checks}
        found = run(journal.connection, _insertion(journal.dialect), values).one_or_none()
        if found is not None:
            self._require_allowed(journal, found, checks)
        return found is not None

    def _send_again(
        self, journal: Journal, expected: int, columns: Mapping[str, Any], checks: Mapping[str, Any]
    ) -> bool | None:
        """Begin another attempt in a row; return whether that was queued, or None if it or a duplicate forbids it."""
        request = self.request
        self._require_allowed(journal, journal.execute(_CHECKS, checks).one(), checks)
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

    def _require_allowed(self, journal: Journal, found: sa.Row[Any], checks: Mapping[str, Any]) -> None:
        """Raise the error that forbids the payment, by the columns of `_CHECKS`: it ends the transaction."""
        require_known(found.version)
        require_active(journal, found.account_state)
        if not self.guard.has(found.number_key):  # the store went back to before the account's first payment
            checks = self.guard.parameters(journal, self.request, checks["of_now"])
            found = journal.execute(_CHECKS, checks).one()
        if found.turned is not None and (turned := journal.find(found.turned)) is not None:
            raise duplicate_suspected(turned)
        self.guard.require_unsuspected(journal, self.request, found.suspect, checks)


@functools.cache
def _insertion(dialect: str) -> Any:
    """Return the statement that makes a row, and gives the version of the tables, unless a unique index forbids it."""
    return insert_missing(payments, dialect).returning(*_FOUND)
