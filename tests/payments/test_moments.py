"""Moments at which an answer of the store changes: each belongs to one side, to the microsecond."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import DisbursementLimits, LimitExceeded, StoreError, TransactionType
from mobilemoney_async.database.schema import accounts, changes, lives, payments, unmatched
from mobilemoney_async.payments.creates.disbursement_limits import require_payment_within
from mobilemoney_async.payments.erasure import erase_number
from mobilemoney_async.payments.feed.changes import prune_changes
from mobilemoney_async.payments.outbox.outbox import hold, next_queued, postpone, withdraw_late
from mobilemoney_async.payments.outbox.pauses import equal_ends
from mobilemoney_async.payments.ownership.reconciliation import mark_stale
from mobilemoney_async.payments.ownership.searches import begin_life, go_on, newest_owned
from mobilemoney_async.payments.ownership.surplus import count_unclaimed
from mobilemoney_async.payments.records.due import DueWork, accounts_with_work, due, neighbours
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import needing_someone
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentRequest
from mobilemoney_async.payments.records.rows import UNKNOWN_EXTRA
from mobilemoney_async.payments.records.unmatched import thin
from tests.support.fakes import NOON

TICK, MINUTE, DAY = timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)
GRACE, NUMBER = 120.0, "+255780000789"

Ask = Callable[[Journal, datetime], object]


def is_due(journal: Journal, now: datetime) -> object:
    return due(journal, now, key=None, grace=GRACE)


def is_listed_whole(journal: Journal, now: datetime) -> object:
    return any(
        each.in_whole_days for each in due(journal, now, key="order-1", grace=GRACE) if each.record.key == "order-1"
    )


def has_work(work: DueWork) -> Ask:
    return lambda journal, now: accounts_with_work(journal.connection, now, GRACE).get("default", DueWork(0)) & work


def is_next(journal: Journal, now: datetime) -> object:
    return next_queued(journal, now, types=[*TransactionType], kinds=())


def is_postponed(journal: Journal, now: datetime) -> object:
    return postpone(journal, "order-1", reason=Reason(PaymentCause.DELAYED), at=now, until=now + DAY)


def is_lost(journal: Journal, now: datetime) -> object:
    mark_stale(journal, now, busy=(), stale_after=None)
    return journal.count(payments, payments.c.state == "UNKNOWN")


def needs_someone(journal: Journal, now: datetime) -> object:
    return journal.count(payments, sa.or_(*needing_someone(now)))


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
        erase_number(journal, NUMBER, now)
    except StoreError:
        return True
    return False


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
ALWAYS, NEVER = (True,) * 3, (False,) * 3
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
    ({**SOFT, "ended_at": NOON - 30 * DAY}, is_due, UNTIL),
    ({**SOFT, "next_look_at": NOON}, is_due, FROM),
    ({**SOFT, "walks": 1, "next_look_at": NOON}, is_due, FROM),
    ({**SOFT, "walks": 1, "next_look_at": NOON - DAY}, is_due, UNTIL),
    ({**RELEASED, "changed_at": NOON - DAY}, is_due, UNTIL),
    ({**RELEASED, "changed_at": NOON, "next_look_at": NOON}, is_due, FROM),
    ({**RELEASED, "looked_at": NOON - 2 * DAY, "next_look_at": NOON - DAY}, is_due, UNTIL),
    ({**RELEASED, "changed_at": NOON - 30 * DAY}, stays_open, UNTIL),
    ({"state": "SENDING", "stale_at": NOON}, has_work(DueWork.RECONCILE), FROM),
    ({"state": "SENDING", "stale_at": NOON}, is_lost, FROM),
    ({"state": "SENDING", "stale_at": NOON}, needs_someone, FROM),
    ({**QUEUED, "not_before": NOON + MINUTE}, has_work(DueWork.DISPATCH), FROM),
    ({**QUEUED, "not_before": NOON + DAY, "not_after": NOON + MINUTE}, has_work(DueWork.DISPATCH), FROM),
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
    (unmatched, {"changed_at": NOON - 30 * DAY}, is_whole, ALWAYS),  # nobody has claimed it
]


OTHER = {"key": "other", "amount": "1", "state": "FINAL", "stops_kind": False, "transaction_id": "tx-1"}
OPEN = {
    "sent_at": NOON - DAY,
    "ended_at": NOON - DAY,
    "next_look_at": NOON + DAY,
    "walks": 1,
    "walked_at": NOON - DAY / 2,
}
LATER = {**OPEN, "cause": PaymentCause.NO_LATER.value}, {"sent_at": NOON - DAY, "ended_at": NOON - DAY / 2}
SINCE = {"sent_at": NOON - 2 * DAY, "ended_at": NOON - DAY, "changed_at": NOON - DAY / 2}
EARLIER = {**OPEN, "cause": PaymentCause.NO_EARLIER.value}, SINCE
WITNESSES = [
    (LATER, {}, {}, ALWAYS),
    (LATER, {"walks": 0, "walked_at": None}, {}, ALWAYS),
    (LATER, {"walked_at": NOON - timedelta(seconds=GRACE / 2)}, {}, FROM),
    (LATER, {"sent_at": NOON - 7 * DAY}, {}, UNTIL),
    (LATER, {}, {"ended_at": NOON - timedelta(seconds=GRACE)}, FROM),
    (LATER, {}, {"sent_at": NOON - DAY - TICK}, NEVER),
    (LATER, {"cause": PaymentCause.RIVAL.value}, {}, NEVER),
    (EARLIER, {}, {}, ALWAYS),
    (EARLIER, {"cause": PaymentCause.TOO_OLD.value}, {}, ALWAYS),
    (EARLIER, {}, {"sent_at": NOON - 14 * DAY}, UNTIL),
    (EARLIER, {}, {"ended_at": NOON - DAY + TICK}, NEVER),
    (EARLIER, {"looked_at": NOON - DAY / 2 - TICK}, {}, ALWAYS),
    (EARLIER, {"looked_at": NOON - DAY / 2}, {}, NEVER),
    (EARLIER, {"ended_at": NOON - DAY / 2}, {}, NEVER),
    *(
        (each, {}, other, NEVER)
        for each in (LATER, EARLIER)
        for other in (
            {"account": "shop-2"},
            {"type": "disbursement"},
            {"transaction_id": None},
            {"attempt": 2},
            {"extra_digest": UNKNOWN_EXTRA},
        )
    ),
]


def insert(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> None:
    values: dict[str, Any] = {"account": "default", **row}
    if table is payments:
        values = {"type": "collection", "phone_number": NUMBER, "amount": "1000", "extra_digest": "", **values}
        values = {"key": "order-1", "state": "UNKNOWN", "attempt": 1, "stops_kind": True, **values}
        values = {"created_at": NOON - 2 * DAY, "changed_at": NOON - 2 * DAY, **values}
    if table is unmatched:
        times = dict.fromkeys(("created_at", "first_seen_at", "due_at", "changed_at"), NOON)
        shown = {"transaction_id": "tx-1", "amount": "1000", "shown_number": "+25578***0789", "status": "SUCCESS"}
        values = {"type": "collection", **shown, **times, **values}
    connection.execute(table.insert().values(values))


def ask_around(url: str, ask: Ask, *rows: tuple[sa.Table, dict[str, Any]]) -> tuple[bool, ...]:
    """Return the answers about some rows a microsecond before NOON, then, and a microsecond later."""
    engine, found = sa.create_engine(url, poolclass=sa.pool.NullPool), list[bool]()
    for now in (NOON - TICK, NOON, NOON + TICK):
        with engine.connect() as connection:  # rolled back each time
            insert(connection, accounts, {"feed_last": 1})
            for each in rows:
                insert(connection, *each)
            found.append(bool(ask(Journal(connection, "default"), now)))
    return tuple(found)


@pytest.mark.parametrize(("table", "row", "ask", "yes"), [*((payments, *each) for each in PAYMENTS), *OTHERS])
def test_each_moment_belongs_to_one_side(
    sqlite_file_url: str, table: sa.Table, row: dict[str, Any], ask: Ask, yes: tuple[bool, ...]
) -> None:
    """What is due from a time on is due at it; what counts for a day counts at its end, or not, always alike."""
    first = (changes, {"name": "order-1", "entry": 1, "at": NOON - DAY, "number": 1})
    rows = [first] * (ask is is_kept and table is payments)
    assert ask_around(sqlite_file_url, ask, *rows, (table, row)) == yes


@pytest.mark.parametrize(("two", "changed", "other", "yes"), WITNESSES)
def test_a_payment_is_due_once_another_can_be_compared(
    sqlite_file_url: str, two: Any, changed: dict[str, Any], other: dict[str, Any], yes: tuple[bool, ...]
) -> None:
    """One of its account and type, sent once, at a time that a listing may show with it."""
    rows = (payments, {**two[0], **changed}), (payments, {**OTHER, **two[1], **other})
    assert ask_around(sqlite_file_url, is_due, *rows) == yes
    assert ask_around(sqlite_file_url, is_listed_whole, *rows) == (NEVER if changed.get("walks") == 0 else yes)


@pytest.mark.parametrize(
    ("sent_at", "ended_at", "yes"),
    [
        (NOON - 7 * DAY, NOON - DAY, UNTIL),
        (NOON - DAY, NOON, FROM),
        (NOON, NOON + MINUTE, UNTIL),
        (NOON + 7 * DAY, NOON + 7 * DAY, FROM),
        (NOON + DAY, NOON + 8 * DAY, FROM),
    ],
)
def test_the_payments_of_a_week_on_each_side_are_compared(
    sqlite_file_url: str, sent_at: datetime, ended_at: datetime, yes: tuple[bool, ...]
) -> None:
    """Those that had ended before it was sent, or began after its end and have settled."""

    def ask(journal: Journal, now: datetime) -> object:
        record = journal.find("order-1")
        assert record is not None
        sent = attrs.evolve(record, sent_at=now, ended_at=now)
        return neighbours(journal, sent, settled_at=now + 8 * DAY)

    other = {**OTHER, "sent_at": sent_at, "ended_at": ended_at}
    assert ask_around(sqlite_file_url, ask, (payments, {}), (payments, other)) == yes


@pytest.mark.parametrize(
    ("row", "yes"),
    [
        ({"walks": 1}, ALWAYS),
        ({"walks": 1, "next_look_at": NOON}, FROM),
        ({"walks": 0}, NEVER),
        ({"walks": 2, "cause": PaymentCause.NO_LATER.value}, NEVER),
        ({"walks": 2, "cause": PaymentCause.RIVAL.value}, ALWAYS),
        ({"walks": 2}, ALWAYS),
        ({"state": "ABSENT", "walks": 2}, NEVER),
        (RELEASED, ALWAYS),
    ],
)
def test_whole_days_are_read_where_they_decide(
    sqlite_file_url: str, row: dict[str, Any], yes: tuple[bool, ...]
) -> None:
    """A listing of whole days costs the most. What another create has asked for is not read for this one."""
    others = {"key": "other", "state": "RELEASED", "looked_at": NOON, "stops_kind": False}
    assert ask_around(sqlite_file_url, is_listed_whole, (payments, row), (payments, others)) == yes


def test_the_oldest_payments_are_looked_for_first(sqlite_file_url: str) -> None:
    """Those of one time by their keys, whatever their states."""

    def ask(journal: Journal, now: datetime) -> bool:
        return [each.record.key for each in due(journal, now, key=None, grace=GRACE)] == ["c", "a", "b"]

    rows = {"a": {"state": "ABSENT", "ended_at": NOON}, "b": {}, "c": {**RELEASED, "created_at": NOON - 3 * DAY}}
    made = [(payments, {"changed_at": NOON, **row, "key": key, "stops_kind": False}) for key, row in rows.items()]
    assert ask_around(sqlite_file_url, ask, *reversed(made)) == ALWAYS


def test_only_accounts_with_work_are_opened(sqlite_file_url: str) -> None:
    """A late payment leaves the queue of any account; an account that is suspended has no other work."""
    queued = {**QUEUED, "not_after": NOON + DAY}
    late = {**QUEUED, "not_after": NOON}
    acknowledged = {"state": "ACKNOWLEDGED", "transaction_id": "tx-1", "status": "PENDING"}
    rows: list[tuple[str, list[dict[str, Any]], DueWork]] = [
        ("", [queued], DueWork.DISPATCH),
        ("", [{**QUEUED, "not_before": NOON + DAY}], DueWork(0)),
        ("", [{"state": "SENDING", "stale_at": NOON + DAY}], DueWork(0)),
        ("", [{"stale_at": NOON, "next_look_at": NOON + DAY}], DueWork(0)),
        ("", [{"state": "FINAL", "stale_at": NOON, "ended_at": NOON, "not_after": NOON}], DueWork(0)),
        ("", [{"state": "ABSENT", "ended_at": NOON}], DueWork.RECONCILE),
        ("", [{**SOFT, "stops_kind": False}], DueWork.RECONCILE),
        ("", [{**RELEASED, "changed_at": NOON}], DueWork.RECONCILE),
        ("", [acknowledged, {"key": "b", "amount": "1"}, {**late, "key": "c"}], DueWork(7)),
        ("SUSPENDED", [acknowledged, {"key": "b", "amount": "1"}, {**queued, "key": "c"}], DueWork(0)),
        ("SUSPENDED", [acknowledged, {**late, "key": "c", "amount": "1"}], DueWork.DISPATCH),
        ("REMOVED", [acknowledged, {**queued, "key": "c", "amount": "1"}], DueWork.FOLLOW),
        ("REMOVED", [{}, {**late, "key": "c", "amount": "1"}], DueWork.RECONCILE | DueWork.DISPATCH),
        ("REMOVED", [{"state": "FINAL", "not_after": NOON}, {**queued, "key": "c"}], DueWork(0)),
        ("REMOVED", [], DueWork(0)),
    ]
    engine = sa.create_engine(sqlite_file_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        for number, (state, made, _) in enumerate(rows):
            insert(connection, accounts, {"account": f"shop-{number:02}", "state": state or None})
            for row in made:
                insert(connection, payments, {"stops_kind": False, **row, "account": f"shop-{number:02}"})
        found = accounts_with_work(connection, NOON, GRACE)
    expected = {f"shop-{number:02}": work for number, (*_, work) in enumerate(rows)}
    assert found == {account: work for account, work in expected.items() if work}


def test_what_is_held_waits_at_least_until_then(sqlite_file_url: str) -> None:
    """One that waits for longer, and one that is not queued any more, stay as they are."""
    later, rows = NOON + DAY, {"a": QUEUED, "b": {**QUEUED, "not_before": NOON - DAY}, "d": {"state": "CANCELLED"}}
    rows["c"] = {**QUEUED, "not_before": later}
    with sa.create_engine(sqlite_file_url, poolclass=sa.pool.NullPool).connect() as connection:
        for key, row in rows.items():
            insert(connection, payments, {**row, "key": key, "stops_kind": False})
        journal = Journal(connection, "default")
        hold(journal, [*rows], until=NOON)
        held = {each.key: each.not_before for each in journal.records()}
    assert held == {"a": NOON, "b": NOON, "c": later, "d": None}
