"""Final states that change: against the contract, and usual with mobile money (FAILED, then SUCCESS)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import FinalStateChanged, Handler, emit
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import owners
from mobilemoney_async.payments.records.reasons import PaymentCause
from mobilemoney_async.payments.records.record import PaymentRecord, Source
from mobilemoney_async.payments.records.transaction_states import record_seen
from mobilemoney_async.payments.records.unmatched import explained
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import shown_id, shown_text

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Final states in memory that were compared with the store, and the time after which one without a final state of a
# payment's is compared again: another process may have recorded that meanwhile.
_MOST, _AGAIN = 20_000, timedelta(minutes=1)

ChangedState: TypeAlias = tuple[PaymentRecord, Transaction]
"""Payment with its first final state, and its transaction with another one."""


async def compare_final_states(
    store: AccountStore, rows: Sequence[Transaction], *, now: datetime, on_event: Handler | None
) -> None:
    """Report the final states on a page of the list that are others than the store's, each once.

    A state is compared when this process sees it first, so a page of known ones asks nothing of the database; one that
    is compared with no final state of a payment's, again a minute later. Where the store fails, the next page that
    shows them is compared.
    """
    compared = store.compared
    ended = {row.id: row for row in rows if row.is_final and _is_due(compared.get(row.id), str(row.status), now)}
    if not ended:
        return

    def note(journal: Journal) -> list[ChangedState]:
        seen = (row for _, row in changed if record_seen(journal, row, source=Source.POLL, at=now) is not None)
        return [each for row in seen for each in find_changed(journal, row)]

    async def write() -> None:
        report_changes(store, await store.write(note), on_event)

    try:
        changed, settled = await store.read(lambda journal: _find(journal, ended))
        if changed:
            await shielded(write)  # once it is noted, a change is reported by this task or never
    except StoreError as exc:
        warn_of_store("final states are not compared with the store now", exc)
        return
    if len(compared) > _MOST:
        compared.clear()
    again_at = shift(now, _AGAIN)
    compared.update((each, (str(row.status), None if each in settled else again_at)) for each, row in ended.items())


def find_changed(journal: Journal, row: Transaction) -> list[ChangedState]:
    """Return the payment of a row that has contradicted it, if its final state has changed."""
    record = owners(journal, [row.id]).get(row.id)
    return [] if record is None or record.cause is not PaymentCause.CHANGED else [(record, row)]


def _find(
    journal: Journal, ended: Mapping[str, Transaction]
) -> tuple[Sequence[tuple[PaymentRecord, Transaction]], Collection[str]]:
    """Return the payments with another final state than a row of theirs, and the ids whose state is settled here."""
    kept = explained(journal, [*ended])  # someone has said which state counts
    own = [each for name, each in owners(journal, [*ended]).items() if name not in kept]
    pairs = [(record, ended[str(record.transaction_id)]) for record in own if record.is_final]
    changed = [(record, row) for record, row in pairs if record.status != row.status]
    return changed, {*kept, *(row.id for _, row in pairs)}


def _is_due(known: tuple[str, datetime | None] | None, status: str, now: datetime) -> bool:
    """Return whether a final state is to be compared, which was, or another one, as of `AccountStore.compared`."""
    return known is None or known[0] != status or (known[1] is not None and now >= known[1])


def report_changes(store: AccountStore, changed: Iterable[ChangedState], on_event: Handler | None) -> None:
    """Report final states that have changed, once that is committed."""
    for record, row in changed:
        before, status = shown_text(str(record.status)), shown_text(str(row.status))
        said = "payment %r of account %r was finally %s, and transaction %s is %s now: ask the service which is true"
        logger.error(said, record.key, store.account, before, shown_id(row.id), status)
        event = FinalStateChanged(
            transaction_id=row.id, idempotency_key=record.key, type=str(record.type), before=before, status=status
        )
        emit(on_event, event)
