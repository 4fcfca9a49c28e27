"""States of payments' transactions, as the service shows them, and what a payment makes of each.

Final states change, against the contract, as is usual with mobile money: FAILED, then SUCCESS.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED, differences, international, shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import payments, unmatched
from mobilemoney_async.database.serialization import dump, load
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import FinalStateChanged, Handler, emit
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import owners
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRecord, PaymentState, Source
from mobilemoney_async.payments.records.rows import JournalEntry, reason_columns, without_person
from mobilemoney_async.payments.records.statements import PAYMENTS, account_column
from mobilemoney_async.payments.records.unmatched import end_word, explained
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import shown_id, shown_text
from mobilemoney_async.values import valid_name

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Final states in memory that were compared with the store, and the time after which one without a final state of a
# payment's is compared again: another process may have recorded that meanwhile.
_MOST, _AGAIN = 20_000, timedelta(minutes=1)

ChangedState: TypeAlias = tuple[PaymentRecord, Transaction]
"""Payment with its first final state, and its transaction with another one."""

_BY_TRANSACTION_LOCKED = (
    PAYMENTS.add_columns(account_column("merchant_id"))
    .where(payments.c.transaction_id == sa.bindparam("of_transaction"))
    .with_for_update()
)


def record_seen(journal: Journal, transaction: Transaction, *, source: Source, at: datetime) -> StoreError | None:
    """Record the state of a transaction as the service showed it, if a payment owns it; see `Journal.apply`."""
    of_transaction = {"of_account": journal.account, "of_transaction": transaction.id}
    row = journal.execute(_BY_TRANSACTION_LOCKED, of_transaction).one_or_none()
    status = str(transaction.status)
    if row is not None:
        mismatch = _mismatch(row, transaction)
        if mismatch is not None:
            return _hold_open(journal, row, mismatch, source=source, at=at)
        # The list may have its own word for the type, by which no state is known to be final.
        transaction = attrs.evolve(transaction, type=TransactionType(row.type))
        if row.phone_number.startswith(ERASED):
            transaction = without_person(transaction)
    if row is None or (row.status == status and (row.state == PaymentState.FINAL or not transaction.is_final)):
        return None
    if row.state == PaymentState.FINAL:
        changed = Reason(PaymentCause.CHANGED, status)
        if transaction.is_final and (
            (row.cause, row.about) == (changed.cause.value, changed.about)  # told before
            or explained(journal, [transaction.id], unmatched.c.status == status)  # the first state counts
        ):
            return None
        if transaction.is_final:
            journal.change(row.key, reason_columns(changed))
        entry = JournalEntry(row.key, row.attempt, PaymentEvent.FINISH, source=source, at=at)
        return journal.contradict(entry, f"was finally {row.status}, and is {shown_text(status)}")
    values: dict[str, Any] = {"status": status}
    if transaction.is_final:
        values |= {"state": PaymentState.FINAL, "changed_at": at, "transaction": dump(transaction)}
        values |= {**reason_columns(None), "error": None} if row.cause else {}
        values["external_id"] = row.external_id or valid_name(transaction.external_id)
        final = (PaymentState.FINAL, status)
        journal.record(row.key, PaymentEvent.FINISH, *final, at=at, source=source, detail=status, values=values)
    else:
        journal.change(row.key, values)
    if transaction.is_final and transaction.merchant_id and not row.account_merchant_id and not row.is_adopted:
        # Its id was in our own acknowledgement: from here on, rows of another merchant are not ours.
        journal.change_account(merchant_id=transaction.merchant_id)
    return None


def keep_final_state(journal: Journal, transaction_id: str, *, note: str, at: datetime) -> str | None:
    """Keep the first of two final states of a payment's transaction, and return the other; None if it has one.

    The caller explains the transaction in the other state, so that this one is not reported again.
    """
    of_transaction = {"of_account": journal.account, "of_transaction": transaction_id}
    row = journal.execute(_BY_TRANSACTION_LOCKED, of_transaction).one_or_none()
    if row is None or row.state != PaymentState.FINAL or row.cause != PaymentCause.CHANGED:
        return None
    journal.change(row.key, reason_columns(None))
    journal.note(row.key, at=at, what="explained", source=Source.PERSON, detail=note)
    return str(row.about)


def take_final_state(
    journal: Journal, record: PaymentRecord, transaction: Transaction, *, note: str, at: datetime
) -> None:
    """Take the final state that the service shows now for a payment's transaction, which had another one or none."""
    status = str(transaction.status)
    if record.phone_number.startswith(ERASED):
        transaction = without_person(transaction)
    values: dict[str, Any] = {"state": PaymentState.FINAL, "status": status, "transaction": dump(transaction)}
    values |= {"changed_at": at, "error": None, **reason_columns(None)}
    change = (PaymentEvent.FINISH, PaymentState.FINAL, status)
    journal.record(record.key, *change, at=at, source=Source.PERSON, detail=f"{status}: {note}", values=values)
    end_word(journal, transaction.id)


def _hold_open(journal: Journal, row: sa.Row[Any], reason: Reason, *, source: Source, at: datetime) -> StoreError:
    """Note, once, why a payment is not final though its transaction is, and return the error for it."""
    if row.state == PaymentState.ACKNOWLEDGED and row.cause != reason.cause:
        journal.change(row.key, {**reason_columns(reason), "error": str(reason)})
        journal.note(row.key, at=at, what="contradiction", source=source, detail=str(reason))
    return StoreError(f"payment {row.key!r}: {reason}", outcome="unknown")


def _mismatch(row: sa.Row[Any], transaction: Transaction) -> Reason | None:
    """Return why a transaction cannot be that of a payment's row, or None."""
    if transaction.merchant_id and row.account_merchant_id not in {None, "", transaction.merchant_id}:
        return Reason(PaymentCause.OTHER_MERCHANT, transaction.id)
    if any(differences(transaction, row)):
        known = None if row.transaction is None else load(Transaction, row.transaction)
        return None if was_taken(transaction, known) else Reason(PaymentCause.OTHER_PAYMENT, transaction.id)
    return None


def was_taken(transaction: Transaction, known: Transaction | None) -> bool:
    """Return whether a payment has ended with a transaction of these values, `known`, though it asked for others."""
    if known is None:
        return False
    known = attrs.evolve(known, phone_number=international(known.phone_number) or ERASED)  # as the service showed it
    return not any(differences(transaction, known))


# Final states that change


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
    """Return the payments with another final state than a row of theirs, and the ids with a settled state."""
    own = owners(journal, [*ended]).values()
    pairs = [(record, ended[str(record.transaction_id)]) for record in own if record.is_final]
    changed = [(record, row) for record, row in pairs if record.status != row.status]
    return changed, {row.id for _, row in pairs}


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
