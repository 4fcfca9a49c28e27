"""Reconciliation results of full listings for unknown payments, as statements inside one transaction.

Late matches: someone may confirm that an unknown payment is absent before the list could have shown it, and be wrong.
Its key is then sent again, and the transaction of the earlier attempt has no owner. Another payment of the same kind,
if its answer is lost soon after, must not adopt that transaction: one payment would be made twice and the other not at
all, and both would look right. So a match that also fits such an earlier attempt, its rival, becomes a candidate, and
someone decides. An attempt that two full listings after the grace period have missed is no longer a rival if the
service's clock is known: with the usual grace period, the window of a duplicate does not reach back that far.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import history, payments
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.evidence import Verdict
from mobilemoney_async.payments.journal import WAS_RELEASED, Journal, JournalEntry, to_record
from mobilemoney_async.payments.matching import PaymentQuery, Skew
from mobilemoney_async.payments.records import LISTINGS, PaymentEvent, PaymentRecord, PaymentState, Source

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# After one of these the result of an attempt is known, more or less: a late loss takes an absence back.
_SETTLING = frozenset(
    each.value for each in (PaymentEvent.ACKNOWLEDGE, PaymentEvent.ADOPT, PaymentEvent.REFUSE, PaymentEvent.FAIL_UNSENT)
)


@attrs.define(kw_only=True)
class EarlierAttempt:
    """Attempt of a payment that was released, perhaps too early; settled if its result is known.

    Its number counts from 1; its request was given up at `ended_at`.
    """

    key: str
    number: int
    sent_at: datetime
    ended_at: datetime
    is_settled: bool = False


def mark_stale(journal: Journal, now: datetime, *, busy: Container[Any], stale_after: float | None) -> None:
    """Mark payments as unknown if their sender must have died, except for keys that this process is sending, `busy`.

    A payment counts as unknown `stale_after` seconds after its send; if that is None, from the end of its request on.
    """
    where = [payments.c.account == journal.account, payments.c.state == PaymentState.SENDING]
    if stale_after is None:
        where.append(payments.c.stale_at <= now)
    else:
        where.append(payments.c.sent_at <= now - timedelta(seconds=stale_after))
    # Locked until the commit: a sender that is alive after all records its answer afterwards, which still fits.
    for row in journal.connection.execute(sa.select(payments).where(*where).with_for_update()).all():
        if row.key not in busy:
            at = now if row.stale_at is None else min(now, row.stale_at)
            said = "the process that sent it did not record the result"
            journal.apply(
                JournalEntry(row.key, row.attempt, PaymentEvent.LOSE, source=Source.RECONCILE, at=at, detail=said)
            )


def record_listing(
    journal: Journal,
    record: PaymentRecord,
    verdict: Verdict,
    rival: EarlierAttempt | None,
    *,
    began_at: datetime,
    ended_at: datetime,
    grace: float,
) -> PaymentRecord:
    """Record the result of a full listing for an unknown payment, and return the payment as it is now.

    A payment that is no longer as it was before the listing, `record`, is left as it is. The match of the verdict may
    fit a rival as well. For `grace` seconds after the end of its request a listing may miss a payment that exists.
    """
    # Locked until the commit: another process may have found the payment during the listing, but not from here on.
    row = journal.row(record.key, lock=True)
    assert row is not None  # rows are never deleted
    current = to_record(row)
    if current.attempt != record.attempt or current.state not in {PaymentState.UNKNOWN, PaymentState.ABSENT}:
        return current
    at = ended_at
    if verdict.adopt is not None and rival is not None:
        verdict = _contest(journal, current, verdict.adopt.id, rival, at=at)
    if verdict.adopt is not None:
        adopted = adopt(journal, current, verdict.adopt, source=Source.RECONCILE, at=at)
        return current if isinstance(adopted, StoreError) else adopted
    if verdict.candidates:
        return _record_candidates(journal, row, current, verdict.candidates, at)
    if _is_evidence(current, began_at, row.walked_at, grace):
        return _record_miss(journal, row, current, at)
    return to_record(journal.update(row.key, {"candidates": None})) if current.candidates else current


def adopt(
    journal: Journal,
    record: PaymentRecord,
    transaction: Transaction,
    *,
    source: Source,
    at: datetime,
    note: str | None = None,
) -> PaymentRecord | StoreError:
    """Record the transaction that an unknown payment is, in the attempt of the record, and the transaction's state."""
    first = TransactionStatus.PENDING if record.type == TransactionType.COLLECTION else TransactionStatus.PROCESSING
    acknowledgement = Acknowledgement(
        transaction_id=transaction.id,
        reference=transaction.reference,
        amount=record.amount,
        currency=transaction.currency,
        phone_number=record.phone_number,
        status_code=first,
        status="success",
    )
    adopted = journal.apply(
        JournalEntry(
            record.key,
            record.attempt,
            PaymentEvent.ADOPT,
            source=source,
            at=at,
            detail=note,
            acknowledgement=acknowledgement,
        )
    )
    if isinstance(adopted, StoreError):
        return adopted
    journal.record_seen(transaction, source=source, at=at)
    return journal.find(record.key) or adopted


def find_rival(
    journal: Journal, key: str, transaction: Transaction, *, query: PaymentQuery, skew: Skew | None
) -> EarlierAttempt | None:
    """Return the earlier attempt of another payment that a transaction fits as well, if there is one.

    `key` and `query` are of the payment that is about to adopt it, `skew` is of the service's clock.
    """
    statement = (
        sa.select(payments.c.key, history.c.what, history.c.at)
        .join(history, (history.c.account == payments.c.account) & (history.c.key == payments.c.key))
        .where(
            payments.c.account == journal.account,
            payments.c.phone_number == query.phone_number,
            payments.c.type == str(query.type),
            payments.c.amount == query.amount,
            payments.c.key != key,
            WAS_RELEASED,
        )
        .order_by(history.c.key, history.c.number)
    )
    # With an unknown clock the windows are wider by more than the grace period.
    settling = _SETTLING if skew is None else _SETTLING | {PaymentEvent.MISS.value}
    for attempt in _attempts(journal.connection.execute(statement).all(), settling):
        start, end = attrs.evolve(query, sent_at=attempt.sent_at, ended_at=attempt.ended_at).window(skew)
        if not attempt.is_settled and start <= transaction.created_at <= end:
            return attempt
    return None


def _attempts(entries: Iterable[Any], settling: Container[str]) -> Sequence[EarlierAttempt]:
    """Return the attempts in some histories, each settled or not."""
    found: list[EarlierAttempt] = []
    for entry in entries:
        last = found[-1] if found and found[-1].key == entry.key else None
        if entry.what == PaymentEvent.SEND.value:
            found.append(
                EarlierAttempt(
                    key=entry.key,
                    number=1 if last is None else last.number + 1,
                    sent_at=entry.at,
                    ended_at=entry.at,
                )
            )
        elif last is not None and entry.what in settling:
            last.is_settled = True
        elif last is not None and entry.what == PaymentEvent.LOSE.value:
            last.ended_at, last.is_settled = entry.at, False
    return found


def _contest(
    journal: Journal, record: PaymentRecord, transaction_id: str, rival: EarlierAttempt, *, at: datetime
) -> Verdict:
    """Return the verdict without its adoption, and note the suspicion once in the rival's history."""
    verdict = Verdict(candidates=(transaction_id,))
    if verdict.candidates != record.candidates:
        logger.error("payment %r may have been paid twice: transaction %s", rival.key, transaction_id)
        detail = f"transaction {transaction_id} may be attempt {rival.number}, which was called absent: paid twice?"
        # Two processes may each hold the row that the other waits for here: the database ends one transaction, which is
        # run again.
        journal.row(rival.key, lock=True)
        journal.note(rival.key, at=at, what="contradiction", source=Source.RECONCILE, detail=detail)
    return verdict


def _record_candidates(
    journal: Journal, row: sa.Row[Any], current: PaymentRecord, candidates: tuple[str, ...], at: datetime
) -> PaymentRecord:
    if candidates == current.candidates:
        return current
    # Seen, perhaps: earlier listings that missed it no longer count.
    values = {"candidates": json.dumps(candidates), "walks": 0, "walked_at": None, "changed_at": at}
    journal.note(row.key, at=at, what="ambiguous", source=Source.RECONCILE, detail=" ".join(candidates))
    return to_record(journal.update(row.key, values))


def _record_miss(journal: Journal, row: sa.Row[Any], current: PaymentRecord, at: datetime) -> PaymentRecord:
    """Count a listing that has missed a payment; after the second one the payment is absent."""
    values = {"candidates": None, "walks": current.walks + 1, "walked_at": at, "changed_at": at}
    updated = to_record(journal.update(row.key, values))
    if updated.walks < LISTINGS or updated.state is not PaymentState.UNKNOWN:
        return updated
    said = "two full listings have not shown it"
    journal.apply(
        JournalEntry(current.key, current.attempt, PaymentEvent.MISS, source=Source.RECONCILE, at=at, detail=said)
    )
    return journal.find(updated.key) or updated


def _is_evidence(current: PaymentRecord, began_at: datetime, last_at: datetime | None, grace: float) -> bool:
    """Return whether a listing that has missed a payment counts: it began after the grace period and the last one."""
    if current.ended_at is None or began_at < current.ended_at + timedelta(seconds=grace):
        return False
    return last_at is None or began_at >= last_at
