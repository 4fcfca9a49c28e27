"""State of an account: active, suspended or removed. It is in the store, so that every process obeys.

A payment that begins reads it in the statement that records the payment, as the version of the tables: so none begins
once the state is committed, whatever has waited for the rate limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.database.schema import accounts, erasures, insert_missing
from mobilemoney_async.errors import AccountSuspended, StoreError
from mobilemoney_async.payments.records.account_status import AccountState, describe
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.statements import OF_ACCOUNT, account_column
from mobilemoney_async.text import printable, redact

WHOLE_ACCOUNT = "account"
"""In place of a digest, in the list of erasures."""

STATE: sa.Label[Any] = account_column("state")
"""State of the account `of_account`, None if it is active, as a column of another statement."""


def require_active(journal: Journal, state: str | None) -> None:
    """Raise `AccountSuspended` unless the state of the account is None."""
    if state is not None:
        row = journal.find_account()
        raise suspended(journal.account, state, None if row is None else row.state_note)


def suspended(account: str, state: str, note: str | None) -> AccountSuspended:
    """Return the error for a payment of an account that is not active."""
    said = f"account {account!r} is {describe(state, note)}; nothing was sent"
    return AccountSuspended(said, state=state, note=None if note is None else redact(note))


def save_failures(connection: sa.Connection, failures: Mapping[str, str], at: datetime) -> None:
    """Record the last failure of some accounts, by account; not of one whose row is locked: it may fail again."""
    run, rows = connection.execute, [{"account": each} for each in failures]
    run(insert_missing(accounts, connection.dialect.name), rows)  # what is only queued has no row yet
    free = sa.select(accounts.c.account).where(accounts.c.account.in_(failures)).with_for_update(skip_locked=True)
    statement = accounts.update().where(accounts.c.account == OF_ACCOUNT)
    if found := run(free).scalars().all():
        run(statement, [{"of_account": each, "error": failures[each], "error_at": at} for each in found])


def change_state(journal: Journal, state: AccountState, note: str | None, at: datetime, *, by_machine: bool) -> bool:
    """Change the state of an account, and return whether it was another one; a machine changes no one's decision."""
    account, value = journal.account, None if state is AccountState.ACTIVE else str(state)
    if state is not AccountState.REMOVED and journal.rows(erasures, erasures.c.digest == WHOLE_ACCOUNT):
        # Processes that knew its secret key may compare with that still.
        raise StoreError(f"account {account!r} was erased: its merchant needs another account", outcome="not_sent")
    before = journal.lock_account().state
    if before == value or (by_machine and before is not None):
        return False
    journal.change_account(state=value, state_note=None if note is None else printable(note), state_at=at)
    return True
