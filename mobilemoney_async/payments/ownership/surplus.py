"""Surplus of unmatched transactions: the rest of a kind when each open attempt of it has taken one.

A surplus one is no payment of ours, as far as the store knows: it is reported as unclaimed, and it may stop others of
its kind (`duplicates`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED, international, shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.schema import IS_UNIDENTIFIED, WAS_REFUSED_SOFTLY, accounts, payments, unmatched
from mobilemoney_async.payments.ownership.matching import Match, match, query_for
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import (
    CLAIMED,
    EXPLAINED,
    OPEN,
    PaymentRecord,
    PaymentState,
    UnclaimedTransaction,
)
from mobilemoney_async.payments.records.rows import digest, to_record
from mobilemoney_async.payments.records.unmatched import (
    IS_OPEN,
    LINES,
    Line,
    find_lines,
    kept_forms,
    plain,
    to_line,
)

# How far from the send of an open payment a row may be that it has made.
_REACH = timedelta(days=1, minutes=2)
# Payments around a row with a number that proves nothing; and how many are compared on each side of a row's time.
_AROUND, _MOST_COMPARED = timedelta(hours=1), 100
_FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)

_columns = unmatched.c


def surplus(lines: Sequence[Line], attempts: Iterable[PaymentRecord], key: str) -> list[Line]:
    """Return the open lines that are left when each open attempt has taken one of its kind: the nearest in time. Pure.

    Args:
        lines: The open lines.
        attempts: The payments that may have made a transaction with an id that the store does not know.
        key: The account's key of the digests.
    """
    # By amount and digest: hundreds of lost answers meet as many lines inside the write of a page.
    kinds, by_id = dict[tuple[Decimal, str | None], list[Line]](), {line.id: line for line in lines}
    for line in lines:
        kinds.setdefault((line.shown.amount, line.number_digest), []).append(line)
    pairs: list[tuple[timedelta, str, str]] = []
    for attempt in attempts:
        sent_at, of_number = query_for(attempt).sent_at, digest(key, attempt.phone_number)
        near = chain.from_iterable(kinds.get((attempt.amount, each), ()) for each in (of_number, None))
        alike = {each.id for each in near if each.is_of(attempt, of_number)}
        # Its own acknowledgement may have named one of another kind.
        for name in alike.union(each for each in attempt.candidates if each in by_id):
            distance = _distance(by_id[name], sent_at)
            if distance <= _REACH:
                pairs.append((distance, name, attempt.key))
    taken: set[str] = set()
    served: set[str] = set()
    for _, name, key_of in sorted(pairs):
        if name not in taken and key_of not in served:
            taken.add(name)
            served.add(key_of)
    return [line for line in lines if line.id not in taken]


def with_fitting(journal: Journal, record: PaymentRecord, known: Iterable[str] = ()) -> PaymentRecord:
    """Return a payment with `candidates` that a word about it has left: those known, and open lines near its send."""
    sent_at, of_number = query_for(record).sent_at, digest(journal.number_key(), record.phone_number)
    lines = find_lines(journal, IS_OPEN, _columns.amount == plain(record.amount))
    near = (each.id for each in lines if each.is_of(record, of_number) and _distance(each, sent_at) <= _REACH)
    return attrs.evolve(record, candidates=tuple(dict.fromkeys([*known, *near])))


def _distance(line: Line, sent_at: datetime) -> timedelta:
    """Return how far from a payment's send a line is; one without a time is of any."""
    at = line.shown.created_at
    return timedelta(0) if at is None else abs(at - sent_at)


def find_attempt(journal: Journal, row: Transaction, clock_offset: timedelta) -> PaymentRecord | None:
    """Return a payment of a row's kind in whatever state: the best fit and then the nearest, or None.

    Where the row shows no whole number, only payments of the same time are compared; else an erased number is as there.
    The service's clock is ahead by `clock_offset`.
    """
    table, number = payments.c, international(row.phone_number)
    made_at = shift(row.created_at or _FIRST_MOMENT, -clock_offset)
    alike = sa.select(payments).where(table.account == journal.account, table.amount == plain(row.amount))
    forms = {} if number is None else kept_forms(journal, [number])
    if number is not None:
        alike = alike.where(table.phone_number.in_(forms))
    else:
        days = shift(made_at, -_AROUND), shift(made_at, _AROUND)
        # One that was queued is created long before it is sent; one that was sent again shows its last time only.
        alike = alike.where(sa.or_(table.created_at.between(*days), table.sent_at.between(*days)))
        alike = alike.where(table.phone_number.not_like(f"{ERASED}%"))  # which would fit every number
    # No bare column: by the index on times, all payments of the account would be read. Without a time it is on no side.
    sent_at = sa.func.coalesce(table.sent_at, table.sent_at)
    before = alike.where(sent_at <= made_at).order_by(sent_at.desc(), table.key)
    after = alike.where(sent_at > made_at).order_by(sent_at, table.key)
    found: list[tuple[bool, timedelta, str, PaymentRecord]] = []
    for each in chain.from_iterable(journal.execute(side.limit(_MOST_COMPARED)) for side in (before, after)):
        record = attrs.evolve(to_record(each), phone_number=forms.get(each.phone_number, each.phone_number))
        query = query_for(record)
        fit = match(query, row)
        if fit is not Match.NONE:
            found.append((fit is Match.POSSIBLE, abs(query.sent_at - made_at), each.key, record))
    best = min(found, default=None, key=lambda each: each[:3])
    return None if best is None else best[3]


def open_attempts(journal: Journal) -> list[PaymentRecord]:
    """Return the payments with an open attempt: on their way, unknown, or refused softly until a list misses them.

    Of an absent payment someone, or two listings, have said that it made nothing.
    """
    return _open_attempts(journal.connection, payments.c.account == journal.account).get(journal.account, [])


def count_unclaimed(connection: sa.Connection, now: datetime) -> Mapping[str, int]:
    """Return the number of open transactions of `find_unclaimed` by account, for all accounts in a few statements."""
    lines, attempts = dict[str, list[Line]](), _open_attempts(connection, sa.true())
    statement = LINES.where(IS_OPEN)
    for row in connection.execute(statement):
        lines.setdefault(row.account, []).append(to_line(row))
    of_keys = sa.select(accounts.c.account, accounts.c.number_key)
    keys = {row.account: row.number_key for row in connection.execute(of_keys)}
    left = {each: surplus(lines[each], attempts.get(each, []), keys.get(each) or "") for each in lines}
    return {each: sum(line.is_unclaimed(now) for line in left[each]) for each in left}


def _open_attempts(connection: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, list[PaymentRecord]]:
    table, attempts = payments.c, dict[str, list[PaymentRecord]]()
    may_exist = sa.and_(IS_UNIDENTIFIED, table.state != PaymentState.ABSENT)
    was_refused = sa.and_(WAS_REFUSED_SOFTLY, table.walks == 0)
    for each in (may_exist, was_refused):
        for row in connection.execute(sa.select(payments).where(which, each, table.sent_at.is_not(None))):
            attempts.setdefault(row.account, []).append(to_record(row))
    return attempts


def find_unclaimed(journal: Journal, state: str | None, now: datetime) -> list[UnclaimedTransaction]:
    """Return the transactions that no payment claims, first seen first: open ones, or those of another state, or all.

    Open is the surplus, once nothing of ours can be on its way that it may be, and at once what the store has
    forgotten. Of those that a payment has claimed, only what was unclaimed before.
    """
    lines = find_lines(journal, _columns.shown_number != "")  # as all but those of which only the word is kept
    open_ones = [line for line in lines if line.shown.state == OPEN]
    left = surplus(open_ones, open_attempts(journal), journal.number_key()) if open_ones else []
    unclaimed = {line.id for line in left if line.is_unclaimed(now)}
    return [
        line.shown
        for line in lines
        if state in {None, line.shown.state}
        and (line.id in unclaimed or line.shown.state == EXPLAINED or (line.shown.state == CLAIMED and line.told_at))
    ]
