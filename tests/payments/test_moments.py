"""Moments at which an answer of the store changes: each belongs to one side, to the microsecond."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from mobilemoney_async import DisbursementLimits, LimitExceeded, StoreError, TransactionType
from mobilemoney_async.database.schema import accounts, changes, lives, payments, unmatched
from mobilemoney_async.payments.creates.disbursement_limits import require_payment_within
from mobilemoney_async.payments.erasure import erase_number
from mobilemoney_async.payments.feed.changes import prune_changes
from mobilemoney_async.payments.outbox.outbox import next_queued, postpone, withdraw_late
from mobilemoney_async.payments.outbox.pauses import equal_ends
from mobilemoney_async.payments.ownership.reconciliation import mark_stale
from mobilemoney_async.payments.ownership.searches import begin_life, go_on, newest_owned
from mobilemoney_async.payments.ownership.surplus import count_unclaimed
from mobilemoney_async.payments.records.due import Work, accounts_with_work, due
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentRequest
from mobilemoney_async.payments.records.unmatched import thin
from tests.support.fakes import NOON

TICK, MINUTE, DAY = timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)
GRACE, NUMBER = 120.0, "+255780000789"

Ask = Callable[[Journal, datetime], object]


def is_due(journal: Journal, now: datetime) -> object:
    return due(journal, now, key=None, grace=GRACE)


def has_work(work: Work) -> Ask:
    return lambda journal, now: accounts_with_work(journal.connection, now, GRACE).get("default", Work(0)) & work


def is_next(journal: Journal, now: datetime) -> object:
    return next_queued(journal, now, types=[*TransactionType], kinds=())


def is_postponed(journal: Journal, now: datetime) -> object:
    return postpone(journal, "order-1", reason=Reason(PaymentCause.DELAYED), at=now, until=now + DAY)


def is_lost(journal: Journal, now: datetime) -> object:
    mark_stale(journal, now, busy=(), stale_after=None)
    return journal.count(payments, payments.c.state == "UNKNOWN")


def counts(journal: Journal, now: datetime) -> object:
    request = PaymentRequest(key="next", type=TransactionType.DISBURSEMENT, phone_number=NUMBER, amount="1")
    try:
        require_payment_within(journal, DisbursementLimits(per_day=1000), request, at=now, is_of_queue=False)
    except LimitExceeded as exc:
        return exc
    return None


def is_last(journal: Journal, now: datetime) -> object:
    return equal_ends(journal, TransactionType.COLLECTION, 1, since=now)


def stays_open(journal: Journal, now: datetime) -> object:
    try:
        return not erase_number(journal, NUMBER, now)
    except StoreError:
        return True


def is_kept(journal: Journal, now: datetime) -> object:
    prune_changes(journal, now)
    return journal.count(changes)


def goes_on(journal: Journal, now: datetime) -> object:
    go_on(journal, now)
    return journal.count(lives, lives.c.until == now)


def is_remembered(journal: Journal, now: datetime) -> object:
    begin_life(journal, now, now)
    return journal.count(lives) - 1


def is_unclaimed(journal: Journal, now: datetime) -> object:
    return count_unclaimed(journal.connection, now).get("default")


def is_whole(journal: Journal, now: datetime) -> object:
    thin(journal, now)
    return journal.count(unmatched, unmatched.c.shown_number != "")


# Whether the answer is yes a microsecond before NOON, then, and a microsecond later.
BEFORE, UNTIL, FROM = (True, False, False), (True, True, False), (False, True, True)
SOFT: dict[str, Any] = {"state": "REFUSED", "is_certain": False, "ended_at": NOON - DAY / 2}
RELEASED: dict[str, Any] = {"state": "RELEASED", "ended_at": NOON - DAY / 2}
QUEUED: dict[str, Any] = {"state": "QUEUED"}
PAYOUT: dict[str, Any] = {"type": "disbursement", "stops_kind": False}
LOST: dict[str, Any] = {"type": "disbursement", "is_lost": True}
LIFE: dict[str, Any] = {"began_at": NOON - 60 * DAY}
PAYMENTS = [
    ({"next_look_at": NOON}, is_due, FROM),
    ({"state": "ABSENT", "ended_at": NOON - 7 * DAY}, is_due, UNTIL),
    ({"state": "ABSENT", "ended_at": NOON, "next_look_at": NOON}, is_due, FROM),
    ({**SOFT, "ended_at": NOON - timedelta(seconds=GRACE)}, is_due, FROM),
    ({**SOFT, "ended_at": NOON - DAY}, is_due, UNTIL),
    ({**SOFT, "next_look_at": NOON}, is_due, FROM),
    ({**SOFT, "walks": 1, "next_look_at": NOON}, is_due, FROM),
    ({**SOFT, "walks": 1, "next_look_at": NOON - DAY}, is_due, UNTIL),
    ({**RELEASED, "changed_at": NOON - DAY}, is_due, UNTIL),
    ({**RELEASED, "changed_at": NOON, "next_look_at": NOON}, is_due, FROM),
    ({**RELEASED, "looked_at": NOON - 2 * DAY, "next_look_at": NOON - DAY}, is_due, UNTIL),
    ({**RELEASED, "changed_at": NOON - 30 * DAY}, stays_open, UNTIL),
    ({"state": "SENDING", "stale_at": NOON}, has_work(Work.RECONCILE), FROM),
    ({"state": "SENDING", "stale_at": NOON}, is_lost, FROM),
    ({**QUEUED, "not_before": NOON + MINUTE}, has_work(Work.DISPATCH), FROM),
    ({**QUEUED, "not_before": NOON + DAY, "not_after": NOON + MINUTE}, has_work(Work.DISPATCH), FROM),
    ({**QUEUED, "not_before": NOON}, is_next, FROM),
    ({**QUEUED, "not_after": NOON}, is_next, BEFORE),
    ({**QUEUED, "not_after": NOON}, withdraw_late, FROM),
    ({**QUEUED, "not_before": NOON}, is_postponed, FROM),
    ({**QUEUED, **PAYOUT, "not_before": NOON + DAY}, counts, FROM),
    ({**PAYOUT, "state": "SENDING", "sent_at": NOON - DAY}, counts, BEFORE),
    ({"state": "FINAL", "status": "FAILED", "sent_at": NOON}, is_last, UNTIL),
    ({"state": "FINAL", "transaction_id": "tx-1", "sent_at": NOON}, newest_owned, FROM),
    ({"state": "FINAL", "changed_at": NOON}, is_kept, UNTIL),
]
OTHERS = [
    (changes, {"name": "tx-1", "entry": 0, "at": NOON, "number": 1}, is_kept, UNTIL),
    (lives, {**LIFE, "until": NOON - 5 * MINUTE}, goes_on, UNTIL),
    (lives, {**LIFE, "until": NOON}, goes_on, FROM),
    (lives, {**LIFE, "until": NOON - 30 * DAY}, is_remembered, UNTIL),
    (lives, {**LIFE, "until": NOON + 5 * MINUTE}, is_remembered, FROM),
    (unmatched, {"due_at": NOON}, is_unclaimed, FROM),
    (unmatched, {**LOST, "created_at": NOON - DAY}, counts, BEFORE),
    (unmatched, {"changed_at": NOON - 30 * DAY, "explained_at": NOON}, is_whole, UNTIL),
]


@pytest.mark.parametrize(("table", "row", "ask", "yes"), [*((payments, *each) for each in PAYMENTS), *OTHERS])
def test_each_moment_belongs_to_one_side(
    sqlite_file_url: str, table: sa.Table, row: dict[str, Any], ask: Ask, yes: tuple[bool, ...]
) -> None:
    """What is due from a time on is due at it; what counts for a day counts at its end, or not, always alike."""
    kind = {"type": "collection", "phone_number": NUMBER, "amount": "1000"}
    values: dict[str, Any] = {"account": "default", **row}
    if table is payments:
        values = {**kind, "key": "order-1", "state": "UNKNOWN", "attempt": 1, "stops_kind": True, **values}
        values = {"extra_digest": "", "created_at": NOON - 2 * DAY, "changed_at": NOON - 2 * DAY, **values}
    if table is unmatched:
        times = dict.fromkeys(("created_at", "first_seen_at", "due_at", "changed_at"), NOON)
        shown = {"transaction_id": "tx-1", "amount": "1000", "shown_number": "+25578***0789", "status": "SUCCESS"}
        values = {"type": "collection", **shown, **times, **values}
    engine = sa.create_engine(sqlite_file_url, poolclass=sa.pool.NullPool)
    found = []
    for now in (NOON - TICK, NOON, NOON + TICK):
        with engine.connect() as connection:  # rolled back each time
            connection.execute(accounts.insert().values(account="default", feed_last=1))
            if ask is is_kept and table is payments:
                first = {"account": "default", "name": "order-1", "entry": 1, "at": NOON - DAY, "number": 1}
                connection.execute(changes.insert().values(first))
            connection.execute(table.insert().values(values))
            found.append(bool(ask(Journal(connection, "default"), now)))
    assert tuple(found) == yes
