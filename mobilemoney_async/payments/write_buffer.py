"""What could not be recorded because the database was away: kept in memory, written before anything is decided."""

from __future__ import annotations

import logging

from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments import journal
from mobilemoney_async.payments.journal import Contradiction, JournalEntry
from mobilemoney_async.payments.store import SQLStore

logger: logging.Logger = logging.getLogger("mobilemoney_async")


def keep(store: SQLStore, change: JournalEntry) -> None:
    """Keep a change until it is written; it replaces an earlier one of the same payment."""
    store._unsaved[change.key] = change


def is_kept(store: SQLStore, change: JournalEntry) -> bool:
    """Return whether a change is still to be written."""
    return store._unsaved.get(change.key) is change


async def save(store: SQLStore, change: JournalEntry) -> None:
    """Write a change, and keep it no longer.

    Raises:
        StoreError: The database failed, and the change is kept; or the change contradicts what is known.
    """
    written = await store._database.write(lambda connection: journal.apply(connection, store.account, change))
    if is_kept(store, change):
        del store._unsaved[change.key]
    if isinstance(written, Contradiction):
        raise written.error()


async def flush(store: SQLStore, *, key: str | None = None) -> None:
    """Write what is kept, but for what others are about to write.

    Args:
        store: Whose.
        key: A payment that is the caller's turn, and so is not another's.

    Raises:
        StoreError: The database failed.
    """
    if not store._unsaved:
        return
    busy = store._turns.held(but=key)
    for change in [each for each in store._unsaved.values() if each.key not in busy]:
        try:
            await save(store, change)
        except StoreError:
            if is_kept(store, change):
                raise
            logger.exception("what was kept of a payment contradicts the store")
