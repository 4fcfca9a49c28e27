"""States of payments' transactions, as the service shows them: what a payment makes of each, in one transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED, differences
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import payments
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRecord, PaymentState, Source
from mobilemoney_async.payments.records.rows import JournalEntry, reason_columns
from mobilemoney_async.payments.records.statements import PAYMENTS, account_column
from mobilemoney_async.text import shown_text
from mobilemoney_async.values import valid_name

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
        number = "erased" if row.phone_number.startswith(ERASED) else transaction.phone_number
        transaction = attrs.evolve(transaction, type=TransactionType(row.type), phone_number=number)
    if row is None or (row.status == status and (row.state == PaymentState.FINAL or not transaction.is_final)):
        return None
    if row.state == PaymentState.FINAL:
        changed = Reason(PaymentCause.CHANGED, status)
        if transaction.is_final and (row.cause, row.about) == (changed.cause.value, changed.about):
            return None  # told before
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


def keep_final_state(journal: Journal, transaction_id: str, *, note: str, at: datetime) -> bool:
    """Keep the first of two final states of a payment's transaction; return False if it has not shown two.

    The caller explains the transaction, so that the other state is not reported again.
    """
    of_transaction = {"of_account": journal.account, "of_transaction": transaction_id}
    row = journal.execute(_BY_TRANSACTION_LOCKED, of_transaction).one_or_none()
    if row is None or row.state != PaymentState.FINAL or row.cause != PaymentCause.CHANGED:
        return False
    journal.change(row.key, reason_columns(None))
    journal.note(row.key, at=at, what="explained", source=Source.PERSON, detail=note)
    return True


def take_final_state(
    journal: Journal, record: PaymentRecord, transaction: Transaction, *, note: str, at: datetime
) -> None:
    """Take the final state that the service shows now for a payment's transaction, which had another one."""
    status = str(transaction.status)
    if record.phone_number.startswith(ERASED):
        transaction = attrs.evolve(transaction, phone_number="erased")
    values = {"status": status, "transaction": dump(transaction), "changed_at": at, **reason_columns(None)}
    change = (PaymentEvent.FINISH, PaymentState.FINAL, status)
    journal.record(record.key, *change, at=at, source=Source.PERSON, detail=f"{status}: {note}", values=values)


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
        return Reason(PaymentCause.OTHER_PAYMENT, transaction.id)
    return None
