"""Import of transactions that no payment owns, each as the payment of a key that an operator gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import partial

import attrs

from mobilemoney_async.calls.collaborators import AnswerFacts
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import differences, international, may_be_number, shift
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType, is_final
from mobilemoney_async.database.schema import payments
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError, StoreError
from mobilemoney_async.payments.ownership.listing import Lister, unhurried
from mobilemoney_async.payments.ownership.matching import (
    ClockSample,
    Skew,
    estimate_skew,
    own_samples,
    read_sample,
)
from mobilemoney_async.payments.ownership.reconciliation import adopt
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.due import comparable
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import owners
from mobilemoney_async.payments.records.reasons import PaymentCause
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState, Source
from mobilemoney_async.payments.records.rows import UNKNOWN_EXTRA, to_record
from mobilemoney_async.payments.records.transaction_states import take_final_state, was_taken
from mobilemoney_async.payments.records.unmatched import lines_of
from mobilemoney_async.values import normalise_amount, normalise_phone_number, valid_name

# Transactions that are fetched one by one, rather than listed.
_FEW = 10
# Own payments that show the service's clock, and how old they may be.
_WITNESSES, _WEEK = 5, timedelta(days=7)


async def import_transactions(
    store: AccountStore, pipeline: Pipeline, keys: Mapping[str, str], *, note: str, phone_numbers: Mapping[str, str]
) -> list[PaymentRecord]:
    """Import transactions that no payment owns; see `Payments.recover`."""
    pipeline = unhurried(pipeline)
    known = await store.read(lambda journal: lines_of(journal, keys.values()))
    times = [each.shown.created_at for each in known.values() if each.shown.created_at is not None]
    rows, dates = dict[str, Transaction](), list[ClockSample]()
    if len(keys) > _FEW and times:
        listing = await Lister(pipeline).near(min(times), max(times), lane=Priority.BULK)
        rows, dates = {row.id: row for row in listing.rows}, [*listing.dates]
    wait = store.settles_after(pipeline.options.timeout)
    done: list[PaymentRecord] = []
    for key, name in keys.items():
        try:
            row = rows.get(name)
            if row is None:
                facts, asked_at = AnswerFacts(), pipeline.utcnow()
                answer = await pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": name}, facts=facts)
                row, sample = answer.transaction, read_sample(facts.date, began_at=asked_at, ended_at=pipeline.utcnow())
                dates += [] if sample is None else [sample]
            number = phone_numbers.get(name) or international(row.phone_number)
            work = partial(_import, key=key, transaction=row, number=number, note=note, wait=wait, dates=dates)
            # One by one: fetching may take minutes, and an interruption must not lose what was fetched.
            done.append(await store.decide_about(key, work, pipeline.utcnow))
        except MobileMoneyError as exc:
            said = copy(exc)  # others may have been given the same one
            said.args = (f"{exc}; this was {key!r}={name}, imported before it: {len(done)} of {len(keys)}",)
            raise said from exc
    return done


def _import(
    journal: Journal,
    now: datetime,
    *,
    key: str,
    transaction: Transaction,
    number: str | None,
    note: str,
    wait: timedelta,
    dates: Sequence[ClockSample],
) -> PaymentRecord:
    """Record a transaction that no payment owns as the payment of a key, new or not, and return the payment."""
    record, name = journal.find(key, lock=True), transaction.id
    if record is not None and record.transaction_id == name:
        return _import_again(journal, record, transaction, note=note, now=now)
    owner = owners(journal, [name]).get(name)
    if owner is not None:
        raise _refused(f"transaction {name} is payment {owner.key!r} already")
    known, made_at = lines_of(journal, [name]).get(name), transaction.created_at
    if known is None or known.shown.status == "":  # no list has shown it
        skew = _own_skew(journal, now) or estimate_skew(dates)
        settled_at = None if made_at is None else shift(made_at, wait - (skew.low if skew else timedelta(0)))
        is_young, kind = settled_at is not None and now < settled_at, transaction.type
    else:
        is_young, kind = now < known.due_at and not known.shown.is_gap, known.shown.type
        shown = international(transaction.phone_number)
        is_other = shown is not None and not may_be_number(known.shown.phone_number, shown)
        if is_other or transaction.amount != known.shown.amount:
            raise _refused(f"transaction {name} shows another amount or phone number than it did in the list")
    if is_young:
        raise _refused(f"transaction {name} may be a payment on its way: try again in a few minutes")
    if record is not None and record.transaction_id is not None:
        row = journal.row(key)
        is_line = row is not None and row.batch is not None
        retry = f"; a retry of its line has a key such as {row.batch}-retry-1-{row.line}" if row and is_line else ""
        raise _refused(f"payment {key!r} is transaction {record.transaction_id} already{retry}")
    if record is None:
        record = _insert(journal, key, attrs.evolve(transaction, type=kind), number, now)
    adopted = assign(journal, record, transaction, note=note, now=now)
    if isinstance(adopted, StoreError):
        raise adopted  # someone has given it to another payment at this moment
    return adopted


def _import_again(
    journal: Journal, record: PaymentRecord, transaction: Transaction, *, note: str, now: datetime
) -> PaymentRecord:
    """Return the payment that owns a transaction; with that as it is now, if it has changed or cannot be read here.

    One that was shown to be another payment ends so too: somebody has asked the service.
    """
    is_contradicted = record.cause is PaymentCause.OTHER_PAYMENT
    has_changed = record.cause is PaymentCause.CHANGED or record.status != transaction.status
    is_unreadable = record.transaction is None  # as written by an earlier version
    may_end = is_contradicted or (record.is_final and (is_unreadable or has_changed))
    if not (is_final(record.type, transaction.status) and may_end):
        return record
    is_other = any(differences(transaction, record)) and not was_taken(transaction, record.transaction)
    if is_other and not is_contradicted:
        raise _refused(f"transaction {transaction.id} is shown as another payment than {record.key!r}")
    take_final_state(journal, record, attrs.evolve(transaction, type=record.type), note=note, at=now)
    return journal.find(record.key) or record


def _own_skew(journal: Journal, now: datetime) -> Skew | None:
    """Return how far the service's clock is ahead, as the latest own payments with a final state show it."""
    columns = payments.c
    recent = columns.sent_at.between(shift(now, -_WEEK), now), columns.transaction.is_not(None)
    latest = journal.records(*recent, *comparable(columns), order_by=[columns.sent_at.desc()], limit=_WITNESSES)
    return estimate_skew(own_samples((each, each.transaction) for each in latest))


def assign(
    journal: Journal, record: PaymentRecord, transaction: Transaction, *, note: str, now: datetime
) -> PaymentRecord | StoreError:
    """Record someone's word that a payment, whatever its state, is a transaction, which must be of its kind."""
    key, name = record.key, transaction.id
    if record.sent_at is None:  # queued again, after the store has forgotten that it was sent
        record = attrs.evolve(record, sent_at=min(transaction.created_at or now, now))
    row = journal.row(key)
    is_named = row is not None and row.named_id == name  # by our own acknowledgement: with other values, it may be ours
    others = [f"another {what} ({shown}, not {ours})" for what, ours, shown in differences(transaction, record)]
    if others and not is_named:
        raise _refused(f"transaction {name} has {' and '.join(others)} than payment {key!r}")
    if not record.attempt:
        record = to_record(journal.update(key, {"attempt": 1, "sent_at": record.sent_at}))
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
        "key": key,
        "type": str(transaction.type),
        "phone_number": phone_number,
        "amount": amount,
        "extra_digest": UNKNOWN_EXTRA,
        "external_id": valid_name(transaction.external_id),
        "state": PaymentState.UNKNOWN,
        "stops_kind": False,  # at once it is owned
        "attempt": 1,
        **dict.fromkeys(("created_at", "changed_at", "sent_at", "ended_at"), min(transaction.created_at or now, now)),
    }
    journal.insert(payments, **values)
    record = journal.find(key)
    assert record is not None  # under the key's lock
    return record


def _refused(reason: str) -> StoreError:
    return StoreError(reason, outcome="not_sent")
