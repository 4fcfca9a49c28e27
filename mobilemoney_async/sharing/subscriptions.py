"""Table of the shared poller, followed payments with the messages to their followers: statements in one transaction.

Critical section: a poller that writes locks the row of the lease first, until its commit. So the two numbers that the
row counts grow in the order of the commits, and a reader that has read up to a number has missed nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.clock import Lease
from mobilemoney_async.database.leases import read_lease
from mobilemoney_async.database.schema import leases, lock_row, payments, subscriptions
from mobilemoney_async.database.serialization import dump, load
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks, select_among
from mobilemoney_async.payments.records.record import Source
from mobilemoney_async.payments.records.transaction_states import record_seen
from mobilemoney_async.polling.sharing import Outgoing, StatusUpdate, Subscription
from mobilemoney_async.text import shown_id

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_NAME = "poller"
# A payment that is no longer followed ended at this distance, by any host's clock.
_LONG_AGO = timedelta(days=1)


@attrs.define(kw_only=True)
class LeaseRow:
    """Row of the poller's lease, and the numbers of the latest change of the followed payments and the latest news."""

    lease: Lease
    subscription_number: int
    message_number: int


def look(journal: Journal) -> LeaseRow | None:
    """Return the row without locking it; None if there is none yet."""
    return next(map(_lease_row, journal.rows(leases, leases.c.name == _NAME)), None)


def lock(journal: Journal) -> LeaseRow:
    """Lock the row until the commit, and return it. Other pollers wait for it."""
    return _lease_row(lock_row(journal.connection, leases, {"account": journal.account, "name": _NAME}))


def save(journal: Journal, row: LeaseRow) -> None:
    """Write the row that was locked."""
    values = attrs.asdict(row.lease) | {
        "subscription_number": row.subscription_number,
        "message_number": row.message_number,
    }
    journal.change_rows(leases, leases.c.name == _NAME, **values)


def write_updates(
    journal: Journal, row: LeaseRow, said: Sequence[StatusUpdate], *, at: datetime, is_holder: bool
) -> None:
    """Record the service's answers, and write them to the pollers that track their payments, the sender's included.

    A final state is true from any poller. Other answers are taken from the holder only: another poller's may be older
    than the known state. One that contradicts the payment's record ends the tracking as an error.
    """
    columns = subscriptions.c
    for each in said:
        final = each.transaction if each.transaction is not None and each.transaction.is_final else None
        if final is None and not is_holder:
            continue
        if final is not None:
            contradiction = record_seen(journal, final, source=Source.POLL, at=at)
            if contradiction is not None:
                logger.error("the service contradicts itself: %s", contradiction)
                each = StatusUpdate(transaction_id=each.transaction_id, error=contradiction)  # noqa: PLW2901
        message = _message(each) | {"message_number": row.message_number + 1}
        here = (columns.transaction_id == each.transaction_id, ~columns.has_ended)
        row.message_number += min(1, journal.change_rows(subscriptions, *here, **message))


def read_updates(journal: Journal, *, follower: str, after: int) -> list[StatusUpdate]:
    """Return the messages to a poller after a number: those up to it have arrived, and their ended rows go."""
    columns = subscriptions.c
    journal.delete_rows(subscriptions, columns.follower == follower, columns.has_ended, columns.message_number <= after)
    mine = (columns.follower == follower, columns.message_number > after)
    return [_update(row) for row in journal.rows(subscriptions, *mine, order_by=[columns.message_number])]


def write_subscriptions(
    journal: Journal,
    row: LeaseRow,
    outgoing: Outgoing,
    *,
    follower: str,
    ahead: timedelta,
    ended: Container[str],
) -> list[StatusUpdate]:
    """Write the payments that a poller follows, and those that it no longer follows.

    The store's clock is `ahead` of its host's. The poller has the messages of those that are `ended`.

    Returns:
        The final states that are known already: of payments that need not be followed.
    """
    columns, stated = subscriptions.c, outgoing.subscriptions
    known = _known_finals(journal, [each for each in stated if each not in ended])
    new = [each for number, each in stated.items() if number not in known and number not in ended]
    if new:
        row.subscription_number += 1
        for ids in chunks(each.transaction_id for each in new):
            journal.delete_rows(subscriptions, columns.follower == follower, columns.transaction_id.in_(ids))
        shared = {"account": journal.account, "number": row.subscription_number}
        journal.execute(subscriptions.insert(), [attrs.asdict(_moved(each, ahead)) | shared for each in new])
    return list(known.values())


def read_subscriptions(journal: Journal, *, after: int, ahead: timedelta) -> list[Subscription]:
    """Return the changes of the followed payments after a number, in the order in which they were tracked.

    Their times are of this host's clock; the store's is `ahead` of it.
    """
    columns = subscriptions.c
    order = (columns.tracked_at, columns.transaction_id)
    rows = journal.rows(subscriptions, columns.number > after, ~columns.has_ended, order_by=order)
    names = attrs.fields_dict(Subscription)
    return [_moved(Subscription(**{name: getattr(row, name) for name in names}), -ahead) for row in rows]


def _moved(subscription: Subscription, by: timedelta) -> Subscription:
    """Return it by another clock, which is ahead by so much."""
    return attrs.evolve(subscription, tracked_at=subscription.tracked_at + by, until=subscription.until + by)


def withdraw_all(journal: Journal, row: LeaseRow, *, follower: str, at: datetime) -> None:
    """End the following of all payments of a poller."""
    row.subscription_number += 1
    own, until = (subscriptions.c.follower == follower, ~subscriptions.c.has_ended), at - _LONG_AGO
    journal.change_rows(subscriptions, *own, number=row.subscription_number, until=until)


def tidy(journal: Journal, *, at: datetime) -> None:
    """Delete payments that are no longer followed at a time of the store; for the holder that has read the changes."""
    journal.delete_rows(subscriptions, subscriptions.c.until < at)


def _known_finals(journal: Journal, transaction_ids: Collection[str]) -> dict[str, StatusUpdate]:
    """Return the final states of some payments that the store has."""
    found: dict[str, StatusUpdate] = {}
    table = payments.c
    seen = sa.select(table.transaction).where(table.account == journal.account, table.transaction.is_not(None))
    for row in select_among(journal, seen, table.transaction_id, transaction_ids):
        # An unreadable record of payments is passed over: the service can show its state again.
        with suppress(StoreError):
            transaction = load(Transaction, row.transaction)
            if transaction.is_final:
                found[transaction.id] = StatusUpdate(transaction_id=transaction.id, transaction=transaction)
    return found


def _message(each: StatusUpdate) -> dict[str, Any]:
    return {
        "has_ended": each.is_ending,
        "transaction": None if each.transaction is None else dump(each.transaction),
        "error": None if each.error is None else dump(each.error),
        "lag": each.lag,
    }


def _update(row: sa.Row[Any]) -> StatusUpdate:
    try:
        transaction = None if row.transaction is None else load(Transaction, row.transaction)
        error = None if row.error is None else load(MobileMoneyError, row.error)
    except StoreError as exc:  # it must not keep the others from being read
        logger.error("the poller's message about transaction %s: %s", shown_id(row.transaction_id), exc)  # noqa: TRY400
        return StatusUpdate(transaction_id=row.transaction_id, error=exc if row.has_ended else None)
    return StatusUpdate(transaction_id=row.transaction_id, transaction=transaction, error=error, lag=row.lag)


def _lease_row(row: sa.Row[Any]) -> LeaseRow:
    return LeaseRow(
        lease=read_lease(row), subscription_number=row.subscription_number, message_number=row.message_number
    )
