"""Attempts that a person has called absent too early: whose is a transaction that turns up late?

A person may say that an unknown payment does not exist before the list could have shown it, and be wrong. Its key is
sent again then, its record tells of the new attempt, and the transaction of the old one stays without an owner. A twin
that is lost soon after must not take it for its own: one order would be paid twice, and the other not at all, and both
would look right. What two walks after the grace period have missed is not doubted, where the service's clock is known:
if the period is no shorter than usual, no twin's window reaches so far back then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.schema import WAS_RELEASED, history, payments
from mobilemoney_async.payments.matching import PaymentQuery, Skew
from mobilemoney_async.payments.records import Event

# After one of these it is known what became of an attempt, more or less: a late loss takes an absence back.
_KNOWN = frozenset(each.value for each in (Event.ACKNOWLEDGE, Event.ADOPT, Event.REFUSE, Event.FAIL_UNSENT))


@attrs.define(kw_only=True)
class ReleasedAttempt:
    """One of them.

    Attributes:
        payment_id: The row of its payment.
        key: Its payment's.
        number: Which attempt, from 1.
        sent_at: When it was sent.
        ended_at: When its request was given up.
        is_known: Whether it turned out what became of it.
    """

    payment_id: int
    key: str
    number: int
    sent_at: datetime
    ended_at: datetime
    is_known: bool = False


def find_late_match(
    connection: sa.Connection,
    account: str,
    key: str,
    *,
    search: PaymentQuery,
    transaction: Transaction,
    skew: Skew | None,
) -> ReleasedAttempt | None:
    """Return the attempt of another payment that a transaction may be, if there is one.

    Args:
        connection: Reading.
        account: Whose.
        key: The payment that is about to adopt the transaction.
        search: How it was looked for.
        transaction: What was found.
        skew: Of the service's clock.
    """
    # Of an unknown clock the windows are wider by more than the grace period makes up for.
    known = _KNOWN if skew is None else _KNOWN | {Event.MISS.value}
    for attempt in _of_this_kind(connection, account, key, search, known):
        start, end = attrs.evolve(search, sent_at=attempt.sent_at, ended_at=attempt.ended_at).window(skew)
        if start <= transaction.created_at <= end:
            return attempt
    return None


def _of_this_kind(
    connection: sa.Connection, account: str, key: str, search: PaymentQuery, known: frozenset[str]
) -> list[ReleasedAttempt]:
    statement = (
        sa.select(payments.c.key, history.c.payment_id, history.c.what, history.c.at)
        .join(history, history.c.payment_id == payments.c.id)
        .where(
            payments.c.account == account,
            payments.c.phone_number == search.phone_number,
            payments.c.type == str(search.type),
            payments.c.amount == search.amount,
            payments.c.key != key,
            WAS_RELEASED,
        )
        .order_by(history.c.payment_id, history.c.id)
    )
    return [each for each in _attempts(connection.execute(statement).all(), known) if not each.is_known]


def _attempts(entries: Iterable[Any], known: frozenset[str]) -> Sequence[ReleasedAttempt]:
    """Return the attempts of which histories tell, and of what happened to them what settles one."""
    found: list[ReleasedAttempt] = []
    for entry in entries:
        last = found[-1] if found and found[-1].payment_id == entry.payment_id else None
        if entry.what == Event.SEND.value:
            found.append(
                ReleasedAttempt(
                    payment_id=entry.payment_id,
                    key=entry.key,
                    number=1 if last is None else last.number + 1,
                    sent_at=entry.at,
                    ended_at=entry.at,
                )
            )
        elif last is not None and entry.what in known:
            last.is_known = True
        elif last is not None and entry.what == Event.LOSE.value:
            last.ended_at, last.is_known = entry.at, False
    return found
