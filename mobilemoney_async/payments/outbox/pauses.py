"""Pauses of an account's queue: of all its dispatchers, in the store, and of one type of payment, in one dispatcher."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import accounts, payments
from mobilemoney_async.database.serialization import load, shorten
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records.account_status import describe
from mobilemoney_async.payments.records.account_store import resumed_by
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.reasons import reason_of_pause
from mobilemoney_async.payments.records.record import PaymentState
from mobilemoney_async.payments.records.statements import PAYMENTS
from mobilemoney_async.text import shown_text

# Payments that were sent last, among which those are looked for that have ended.
_MOST_LATEST = 500
# Seconds for which no payment of a type is tried after one that could not be sent.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0

_columns = payments.c
_latest = (
    PAYMENTS.with_only_columns(
        *(_columns[each] for each in ("type", "state", "status", "code", "error", "transaction", "sent_at"))
    )
    .where(_columns.sent_at.is_not(None), _columns.sent_at >= sa.bindparam("since"))
    .order_by(_columns.sent_at.desc())
    .limit(_MOST_LATEST)
    .subquery()
)
_ENDS = (
    sa.select(_latest)
    .where(_latest.c.type == sa.bindparam("of_type"))
    .where(_latest.c.state.in_([PaymentState.FINAL, PaymentState.REFUSED]))
    .order_by(_latest.c.sent_at.desc())
    .limit(sa.bindparam("most"))
)


@attrs.frozen
class Pause:
    """Pause of an account's dispatchers.

    Attributes:
        reason: The reason; None if there is no pause.
        until: The end of one that ends by itself; others end when someone resumes.
        resumed_at: The time at which someone did so last.
        of_payouts: Whether collections go on, since a store was restored; of the end of a pause, whether it was that.
    """

    reason: str | None = None
    until: datetime | None = None
    resumed_at: datetime | None = None
    of_payouts: bool = False

    @property
    def lasts(self) -> bool:
        """Whether it lasts until someone resumes."""
        return self.reason is not None and self.until is None

    def is_over(self, now: datetime) -> bool:
        """Return whether there is none any more, or has been none."""
        return self.reason is None or (self.until is not None and self.until <= now)

    def stops(self, kind: TransactionType) -> bool:
        """Return whether no payment of a type is sent until someone resumes."""
        return self.lasts and (not self.of_payouts or kind == TransactionType.DISBURSEMENT)


def find_pause(journal: Journal) -> Pause:
    """Return the pause of the account's dispatchers."""
    row = journal.find_account()
    if row is None:
        return Pause()
    if row.state is not None:  # whatever a dispatcher has decided, and until that is changed
        return Pause(f"the account is {describe(row.state, row.state_note)}{resumed_by(journal.account, row.state)}")
    return Pause(reason_of_pause(row), row.paused_until, row.resumed_at, bool(row.payouts_wait and row.paused is None))


def save_pause(journal: Journal, pause: Pause) -> None:
    """Record a pause, or that there is none any more; one that ends by itself ends no other one.

    That of a restored store lasts through another one, and ends when someone resumes who was shown it alone.
    """
    found = journal.lock_account()
    values: dict[str, Any] = {"paused": pause.reason and shorten(pause.reason), "paused_until": pause.until}
    where: list[Any] = []
    if pause.resumed_at is not None:
        values["resumed_at"] = pause.resumed_at
        values["payouts_wait"] = found.payouts_wait and not (pause.of_payouts and found.paused is None)
    elif not pause.lasts:
        is_free = sa.or_(accounts.c.paused.is_(None), accounts.c.paused_until.is_not(None))
        where = [is_free, accounts.c.payouts_wait.is_not(True)]
    journal.change_rows(accounts, *where, **values)


def equal_ends(journal: Journal, kind: TransactionType, count: int, *, since: datetime) -> str | None:
    """Return how the last payments of a type ended, so many, if all did alike and no money moved; else None.

    Those that were sent since a time. One that is not final yet is passed over, but ends a row of refusals.
    """
    given = {"of_account": journal.account, "since": since, "of_type": str(kind), "most": count}
    rows = journal.execute(_ENDS, given).all()
    if len(rows) < count or len({(row.state, row.status, row.code) for row in rows}) > 1:
        return None
    last = rows[0]
    if last.status == TransactionStatus.SUCCESS:
        return None
    if last.state == PaymentState.REFUSED:
        accepted = (_columns.type == str(kind), _columns.state == PaymentState.ACKNOWLEDGED)
        if journal.rows(payments, *accepted, _columns.sent_at >= rows[-1].sent_at, limit=1):
            return None
        return f"{count} {kind}s in a row were refused: {last.error}"
    reasons = {_failure_reason(row.transaction) for row in rows}
    said = ": ".join([last.status, *(shown_text(each) for each in reasons if each)])
    return None if len(reasons) > 1 else f"{count} {kind}s in a row ended as {said}"


def _failure_reason(text: str | None) -> str | None:
    with suppress(StoreError):  # unreadable, as of an earlier version: no reason to send nothing
        return None if text is None else load(Transaction, text).failure_reason
    return None


@attrs.frozen
class Obstacle:
    """Reason why no payment of a type can be sent, until a time of the loop's clock, and the length of the pause."""

    reason: str
    until: float
    pause: float


class Obstacles(dict[TransactionType, Obstacle]):
    """Types of which a dispatcher can send no payment for a while. Times are those of the loop's clock."""

    def blocks(self, kind: TransactionType, now: float) -> bool:
        """Return whether no payment of a type may be tried yet."""
        return kind in self and now < self[kind].until

    def next_pause(self, kind: TransactionType) -> float:
        """Return how long a type pauses if it cannot be sent now, seconds: twice the time of its last pause."""
        known = self.get(kind)
        return FIRST_PAUSE if known is None else min(2 * known.pause, LONGEST_PAUSE)

    def add(self, kind: TransactionType, reason: str, now: float) -> float:
        """Let a type pause from now on, and return for how long, seconds."""
        pause = self.next_pause(kind)
        self[kind] = Obstacle(reason, now + pause, pause)
        return pause

    def as_pause(self, now: float, at: datetime) -> Pause:
        """Return the pause until the last type is tried again; `at` is the wall clock's time."""
        last = max(self.values(), key=lambda each: each.until, default=None)
        return Pause() if last is None else Pause(last.reason, at + timedelta(seconds=last.until - now))
