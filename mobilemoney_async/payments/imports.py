"""Import of transactions that a store has forgotten, each as the payment of a key that an operator gives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial

import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import international, may_be_number
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import insert_missing, payments
from mobilemoney_async.errors import InvalidRequest, StoreError
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.journal import UNKNOWN_EXTRA, Journal, to_record
from mobilemoney_async.payments.listing import Lister
from mobilemoney_async.payments.matching import Match, Spellings, match, query_for, shift
from mobilemoney_async.payments.reasons import PaymentCause, Reason
from mobilemoney_async.payments.reconciliation import adopt, doubt
from mobilemoney_async.payments.records import CLAIMED, REUSABLE, PaymentRecord, PaymentState, Source
from mobilemoney_async.payments.unclaimed import find_unclaimed
from mobilemoney_async.values import normalise_amount, normalise_phone_number, valid_name

# Transactions that are fetched one by one, rather than listed.
_FEW = 10
_DAY = timedelta(days=1)


async def import_transactions(
    store: AccountStore, pipeline: Pipeline, keys: Mapping[str, str], *, note: str, phone_numbers: Mapping[str, str]
) -> list[PaymentRecord]:
    """Import unclaimed transactions as payments; see `Payments.recover`."""
    known = await store.read(lambda journal: find_unclaimed(journal, None, *keys.values()))
    rows: dict[str, Transaction] = {}
    if len(keys) > _FEW and known:
        times = [each.created_at for each in known]
        first_day = shift(min(times), -_DAY).date()
        walk = await Lister(pipeline).near(min(times), max(times), first_day, lane=Priority.BULK)
        rows = {row.id: row for row in walk.rows}
    done: list[PaymentRecord] = []
    for key, name in keys.items():
        row = rows.get(name)
        if row is None:
            row = (await pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": name})).transaction
        number, now = phone_numbers.get(name) or international(row.phone_number), pipeline.utcnow()
        # Under the key's lock no create of this event loop is under way, and the row's lock keeps off others.
        async with store.locks.hold(key):
            await store.flush(key=key)
            work = partial(_import, key=key, transaction=row, number=number, note=note, now=now)
            record = await store.write(work)
        if isinstance(record, StoreError):
            raise record
        done.append(record)
    return done


def _import(
    journal: Journal, *, key: str, transaction: Transaction, number: str | None, note: str, now: datetime
) -> PaymentRecord | StoreError:
    """Record an unclaimed transaction as the payment of a key, new or not, and return the payment."""
    record, name = journal.find(key, lock=True), transaction.id
    if record is not None and record.transaction_id == name:
        return record  # imported before
    known = next(iter(find_unclaimed(journal, None, name)), None)
    if known is None or known.state == CLAIMED:
        raise _refused(f"{name!r} is not among the unclaimed transactions")
    shown = international(transaction.phone_number)
    is_other = shown is not None and not may_be_number(known.phone_number, shown)
    if is_other or transaction.amount != known.amount:
        raise _refused(f"transaction {name} shows another amount or phone number than it did in the list")
    if record is not None and record.transaction_id is not None:
        raise _refused(f"payment {key!r} is transaction {record.transaction_id} already")
    if record is not None:
        return _adopt(journal, record, transaction, note=note, now=now)
    record = _insert(journal, key, attrs.evolve(transaction, type=known.type), number, now)
    adopted = _adopt(journal, record, transaction, note=note, now=now)
    if isinstance(adopted, StoreError):
        raise adopted  # someone has imported it under another key at this moment: this key stays unused
    return adopted


def _adopt(
    journal: Journal, record: PaymentRecord, transaction: Transaction, *, note: str, now: datetime
) -> PaymentRecord | StoreError:
    """Record that a payment, whatever its state, is a transaction, which must be of its kind."""
    key, name = record.key, transaction.id
    if record.sent_at is None:  # queued again, after the store has forgotten that it was sent
        record = attrs.evolve(record, sent_at=min(transaction.created_at or now, now))
    if match(query_for(record), transaction, Spellings()) is Match.NONE:
        raise _refused(f"transaction {name} has another type, phone number or amount than payment {key!r}")
    if not record.attempt:
        sent_at = record.sent_at
        record = to_record(journal.update(key, {"attempt": 1, "sent_at": sent_at, "ended_at": sent_at}))
    if record.state in REUSABLE:
        doubted = doubt(journal, record, Reason(PaymentCause.FORGOTTEN, name), at=now)
        if isinstance(doubted, StoreError):
            return doubted
    return adopt(journal, record, transaction, source=Source.PERSON, at=now, note=note)


def _insert(journal: Journal, key: str, transaction: Transaction, number: str | None, now: datetime) -> PaymentRecord:
    """Record a payment with an unknown result, as it was before the store forgot it."""
    if number is None:
        raise _refused(f"transaction {transaction.id} does not show its whole phone number, so give that as well")
    if transaction.type not in set(TransactionType):
        raise _refused(f"transaction {transaction.id} is neither a collection nor a disbursement")
    try:
        phone_number, amount = normalise_phone_number(number), normalise_amount(transaction.amount)
    except InvalidRequest as exc:  # no argument of the caller's
        raise _refused(f"transaction {transaction.id} is no payment of ours: {exc}") from None
    values = {
        "account": journal.account,
        "key": key,
        "type": str(transaction.type),
        "phone_number": phone_number,
        "amount": amount,
        "extra_digest": UNKNOWN_EXTRA,
        "external_id": valid_name(transaction.external_id),
        "state": PaymentState.UNKNOWN,
        "attempt": 1,
        **dict.fromkeys(("created_at", "changed_at", "sent_at", "ended_at"), min(transaction.created_at or now, now)),
    }
    journal.connection.execute(insert_missing(payments, journal.connection.dialect.name), values)
    record = journal.find(key)
    if record is None:
        raise _refused(f"another payment of the kind of {transaction.id} has an unknown result: find that one first")
    return record


def _refused(reason: str) -> StoreError:
    return StoreError(f"{reason}: nothing was changed", outcome="not_sent")
