"""Overview of all accounts of a database: nine statements, however many there are, and nothing is written.

Unidentified, contradicted and queued payments have small indexes of their own. Of the others each account costs a look
at its place in an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.database.schema import IS_QUEUED, IS_UNIDENTIFIED, accounts, payments
from mobilemoney_async.payments.ownership.surplus import count_unclaimed
from mobilemoney_async.payments.records.account_status import AccountNeed, AccountState, AccountStatus
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.queries import IS_PENDING, needing_someone
from mobilemoney_async.payments.records.reasons import reason_of_pause

# For how long a failure counts: a worker tries again at least once a minute.
_FAILING = timedelta(minutes=5)
_COMPARING = timedelta(minutes=1)
_columns = payments.c


async def read_accounts(
    store: AccountStore, now: datetime | None = None, *, everything: bool = False
) -> list[AccountStatus]:
    """Return the status of the accounts of a store's database that need someone, or of all, by name.

    Args:
        store: Of any of them.
        now: The time, aware UTC; None for that of the clock which all processes of the store share.
        everything: Also those that need nobody.

    Raises:
        StoreError: The database failed or cannot be reached.
    """
    time_of = store.database.time_of_transaction(store.database.wall_clock.utcnow)
    found = await store.database.read(lambda connection: _read(connection, now or time_of(connection)))
    return [each for each in found if everything or each.needs]


def count_needs(statuses: Iterable[AccountStatus]) -> Mapping[str, int]:
    """Return the number of accounts for each reason why one needs someone, 0 included."""
    counts = dict.fromkeys(map(str, AccountNeed), 0)
    for need in (need for status in statuses for need in status.needs):
        counts[need] += 1
    return counts


def _read(connection: sa.Connection, now: datetime) -> list[AccountStatus]:
    *lost, is_kept, is_contradicted = needing_someone(now)
    unidentified = _count(connection, IS_UNIDENTIFIED, sa.or_(*lost))
    contradicted, kept = _count(connection, is_contradicted), _count(connection, is_kept)
    queued = _count(connection, IS_QUEUED)
    unmatched = count_unclaimed(connection, now)
    pending = (
        sa.select(sa.func.count())
        .select_from(payments)
        .where(_columns.account == accounts.c.account, IS_PENDING)
        .scalar_subquery()
    )
    rows = {row.account: row for row in connection.execute(sa.select(accounts, pending.label("pending")))}
    found: list[AccountStatus] = []
    none = SimpleNamespace(**dict.fromkeys(accounts.c.keys()), pending=0)
    for account in sorted({*rows, *queued, *unidentified}):
        row = rows.get(account, none)  # what is only queued has no row yet
        counts = {
            "pending": row.pending,
            "unknown": sum(each.get(account, 0) for each in (unidentified, contradicted, kept)),
            "unmatched": unmatched.get(account, 0),
            "queued": queued.get(account, 0),
        }
        found.append(_status(account, row, counts, now))
    return found


def _count(connection: sa.Connection, *where: Any) -> Mapping[str, int]:
    statement = sa.select(_columns.account, sa.func.count().label("number")).where(*where).group_by(_columns.account)
    return {row.account: row.number for row in connection.execute(statement)}


def _status(account: str, row: Any, counts: Mapping[str, int], now: datetime) -> AccountStatus:
    is_over = row.paused_until is not None and row.paused_until <= now
    paused = None if is_over else reason_of_pause(row, account)
    state = AccountState.ACTIVE
    if row.state is not None:  # a state of a later release pays nothing either
        state = AccountState.REMOVED if row.state == AccountState.REMOVED else AccountState.SUSPENDED
    is_failing = row.error_at is not None and row.error_at > now - _FAILING
    # The first payment after a pause is compared in seconds.
    is_late = row.due_since is not None and row.due_since < now - _COMPARING
    # After a restore disbursements wait for the repeated comparison as well.
    is_behind = is_late or (bool(row.went_backwards) and (row.due_since or row.again_at) is not None)
    # Nothing is compared for a removed account without a payment that is open, and it pays nothing.
    has_ended = state is AccountState.REMOVED and not counts["pending"] + counts["unknown"]
    reasons: Sequence[tuple[AccountNeed, object]] = (
        (AccountNeed.UNMATCHED, counts["unmatched"]),
        (AccountNeed.UNKNOWN, counts["unknown"]),
        (AccountNeed.BEHIND, is_behind and not has_ended),
        (AccountNeed.SUSPENDED, state is AccountState.SUSPENDED),
        (AccountNeed.PAUSED, paused is not None and state is AccountState.ACTIVE),
        (AccountNeed.FAILING, is_failing and state is not AccountState.SUSPENDED),
        (AccountNeed.QUEUED, counts["queued"] and state is AccountState.REMOVED),
    )
    return AccountStatus(
        account=account,
        state=state,
        note=row.state_note,
        state_at=row.state_at,
        paused=paused,
        paused_until=None if is_over else row.paused_until,
        last_error=row.error,
        last_error_at=row.error_at,
        needs=tuple(need for need, is_so in reasons if is_so),
        **counts,
    )
