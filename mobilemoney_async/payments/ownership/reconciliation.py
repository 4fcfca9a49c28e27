"""Reconciliation results of full listings for unknown payments, as statements inside one transaction.

Late matches: a payment may be called absent before the list could have shown it. Its key is then sent again, and the
transaction of the earlier attempt has no owner. Another payment of the same kind, if its answer is lost soon after,
must not adopt that transaction: one payment would be made twice and the other not at all, and both would look right. So
a match that also fits such an earlier attempt, its rival, becomes a candidate, and someone decides. With the usual
grace period, the window of a duplicate does not reach back to an attempt that was called absent after it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.contract.states import TransactionType, initial_status
from mobilemoney_async.database.schema import IS_UNIDENTIFIED, history, payments
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.ownership.evidence import STEADY, Evidence, Verdict, may_be
from mobilemoney_async.payments.ownership.matching import (
    PaymentQuery,
    Skew,
    estimate_skew,
    may_be_within,
    own_samples,
    query_for,
)
from mobilemoney_async.payments.records.due import neighbours
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import owners, same
from mobilemoney_async.payments.records.reasons import LACKS, PaymentCause, Reason
from mobilemoney_async.payments.records.record import (
    LISTINGS,
    REUSABLE,
    PaymentEvent,
    PaymentRecord,
    PaymentState,
    Source,
)
from mobilemoney_async.payments.records.rows import JournalEntry, reason_columns, to_record
from mobilemoney_async.payments.records.transaction_states import record_seen
from mobilemoney_async.payments.records.unmatched import end_word, explained, kept_forms

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# An attempt of the payment was released, or certainly failed: few of many.
_WAS_RELEASED = sa.text("(attempt > 1 OR state = 'RELEASED')")

_DAY = timedelta(days=1)
# Time to the next listing after one that could not be read as a whole.
_AGAIN = timedelta(minutes=1)
# No request is longer on its way.
_LONGEST_REQUEST = timedelta(minutes=10)


def mark_stale(journal: Journal, now: datetime, *, busy: Container[Any], stale_after: float | None) -> None:
    """Mark payments as unknown if their sender must have died, except for keys that this process is sending, `busy`.

    A payment counts as unknown `stale_after` seconds after its send; if that is None, from the end of its request on.
    """
    is_old = payments.c.stale_at <= now
    if stale_after is not None:
        is_old = payments.c.sent_at <= now - timedelta(seconds=stale_after)
    where = (payments.c.account == journal.account, payments.c.state == PaymentState.SENDING, is_old)
    # Locked until the commit: a sender that is alive after all records its answer afterwards, which still fits. What it
    # has locked is left to the next time.
    for row in journal.execute(sa.select(payments).where(*where).with_for_update(skip_locked=True)).all():
        if row.key not in busy:
            lose_stale(journal, to_record(row), now, source=Source.RECONCILE)


def lose_stale(journal: Journal, record: PaymentRecord, now: datetime, *, source: Source) -> PaymentRecord | StoreError:
    """Make a payment unknown after its sender must have died."""
    at = now if record.stale_at is None else min(now, record.stale_at)
    said = "the process that sent it did not record the result"
    return journal.apply(JournalEntry(record.key, record.attempt, PaymentEvent.LOSE, source=source, at=at, detail=said))


def ask_for_look(journal: Journal, record: PaymentRecord, *, at: datetime) -> PaymentRecord | None:
    """Note that a create waits for a look for a payment: if it cannot wait for its end, `reconcile` makes it.

    Returns:
        The payment as it is now; None if no look is needed: one has ended since the create read `record`.
    """
    current = journal.find(record.key, lock=True)
    assert current is not None  # rows are never deleted
    if (current.looked_at, current.walks) != (record.looked_at, record.walks):
        return None
    if current.state in REUSABLE and (current.next_look_at is None or current.next_look_at > at):
        return to_record(journal.update(record.key, {"next_look_at": at}))
    return current


@attrs.frozen(kw_only=True)
class ListCheck:
    """Listing that was read for a payment, and its verdict.

    Attributes:
        evidence: That of the listing.
        verdict: The conclusion from it.
        rival: The key of a payment of which an earlier attempt may have made the match of the verdict as well.
        is_contradicted: Whether it contradicts known payments: then it is no look at all.
        is_part: Whether only pages near the send were read.
        is_asked: Whether a create waits for it.
    """

    evidence: Evidence
    verdict: Verdict
    rival: str | None = None
    is_contradicted: bool = False
    is_part: bool = False
    is_asked: bool = False

    @property
    def at(self) -> datetime:
        """Time of the listing."""
        return self.evidence.listing.ended_at

    def is_late(self, record: PaymentRecord) -> bool:
        """Return whether it was begun after the grace period of a payment."""
        return record.ended_at is not None and self.evidence.is_settled(record.ended_at)

    def counts(self, record: PaymentRecord, walked_at: datetime | None) -> bool:
        """Return whether it is one of the listings that must miss a payment; `walked_at` is the end of the last one."""
        half = timedelta(seconds=self.evidence.grace / 2)
        is_apart = walked_at is None or self.evidence.listing.began_at - walked_at >= half
        is_read = self.verdict.is_clear or (not record.candidates and self.evidence.knows(record.key))
        return self.is_late(record) and is_apart and is_read and not self.is_contradicted


def record_listing(journal: Journal, record: PaymentRecord, check: ListCheck) -> PaymentRecord:
    """Record the result of a listing for a payment, and return the payment as it is now.

    A payment that is no longer as it was before the listing, `record`, is left as it is.
    """
    # Locked until the commit: another process may have found the payment during the listing, but not from here on.
    if record.state in REUSABLE:
        # A merchant's own transaction, which queues it again, may hold the lock for minutes: it is looked at next time.
        row = journal.row_if_free(record.key)
        if row is None:
            return record
    else:
        row = journal.row(record.key, lock=True)
    assert row is not None  # rows are never deleted
    if row.named_id is not None and (owners(journal, [row.named_id]) or explained(journal, [row.named_id])):
        row = journal.update(row.key, {"named_id": None})
    current = to_record(row)
    if (current.attempt, current.state) != (record.attempt, record.state):
        return current
    at, verdict = check.at, check.verdict
    if verdict.adopt is not None and check.rival is not None:
        verdict = _contest(journal, current, verdict.adopt.id, check.rival, at=at)
        check = attrs.evolve(check, verdict=verdict)
    if verdict.adopt is not None and current.state is not PaymentState.RELEASED:
        adopted = adopt(journal, current, verdict.adopt, source=Source.RECONCILE, at=at)
        return current if isinstance(adopted, StoreError) else adopted
    candidates = verdict.candidates if verdict.adopt is None else (verdict.adopt.id,)
    if row.named_id is not None:  # whatever the list shows, or hides
        candidates = tuple(dict.fromkeys([*candidates, row.named_id]))
        check = attrs.evolve(check, verdict=attrs.evolve(verdict, is_clear=False, reason=may_be(candidates)))
    _stop_others(journal, row, current, check)
    if not candidates:
        return _record_miss(journal, row, current, check)
    return _record_match(journal, current, candidates, check)


def _record_match(
    journal: Journal, current: PaymentRecord, candidates: tuple[str, ...], check: ListCheck
) -> PaymentRecord:
    """Record that a listing shows transactions that a payment may be, none of which is certain."""
    at, reason = check.at, check.verdict.reason
    values: dict[str, Any] = {"next_look_at": _next_check(current, check, reason)}
    if current.state in REUSABLE:
        doubted = mark_unknown(journal, current, reason, at=at, detail=" ".join(candidates))
        if not isinstance(doubted, StoreError):  # else a payment of the same kind is unknown: that one comes first
            values = {"candidates": json.dumps(candidates)}
        return to_record(journal.update(current.key, values))
    if current.state is PaymentState.ABSENT and not check.is_asked:
        # It stays absent: only where its key is used again is such a transaction in its way.
        return to_record(journal.update(current.key, values))
    if check.is_part:
        # A part of the list leaves open whether there is another one: the caller reads the rest.
        return attrs.evolve(current, candidates=candidates)
    values |= reason_columns(reason)
    if candidates != current.candidates:
        values |= {"candidates": json.dumps(candidates), "changed_at": at}
        if current.state is not PaymentState.ABSENT:
            # Seen, perhaps: earlier listings that missed it no longer count. What someone explains was not seen.
            values |= {"walks": 0, "walked_at": None}
        journal.note(current.key, at=at, what="ambiguous", source=Source.RECONCILE, detail=" ".join(candidates))
    return to_record(journal.update(current.key, values))


def mark_unknown(
    journal: Journal, record: PaymentRecord, reason: Reason | None, *, at: datetime, detail: str | None = None
) -> PaymentRecord | StoreError:
    """Make a payment unknown that counted as refused or absent, since it may exist.

    Its own reason is the reason if another is not given; the history has that, or a `detail`.
    """
    return journal.apply(
        JournalEntry(
            record.key,
            record.attempt,
            PaymentEvent.DOUBT,
            source=Source.RECONCILE,
            at=at,
            detail=detail or (record.reason if reason is None else str(reason)),
            reason=reason,
        )
    )


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
    acknowledgement = Acknowledgement(
        transaction_id=transaction.id,
        reference=transaction.reference,
        amount=record.amount,
        currency=transaction.currency,
        phone_number=record.phone_number,
        status_code=initial_status(record.type),
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
    record_seen(journal, transaction, source=source, at=at)
    if source is Source.PERSON:
        end_word(journal, transaction.id)
        if not _is_of_request(journal, record, transaction, at=at):
            journal.update(record.key, {"ended_at": None})  # so no listing is compared with it
    look_again(journal, transaction.id, at=at)
    return journal.find(record.key) or adopted


def _is_of_request(journal: Journal, record: PaymentRecord, transaction: Transaction, *, at: datetime) -> bool:
    """Return whether a transaction that someone names may be of a payment's own request, by its time.

    After a restored backup it may be of one that the store has forgotten. Without own payments around it, whose final
    states show the service's clock, that counts as ours.
    """
    if record.ended_at is None:  # the store knows of no request
        return False
    around = neighbours(journal, record, settled_at=at)
    samples = own_samples((each, each.transaction) for each in around)
    return may_be_within(transaction, *query_for(record).window(estimate_skew(samples), STEADY))


def look_again(journal: Journal, transaction_id: str, *, at: datetime) -> None:
    """Let the next `reconcile` look for the payments that a transaction may have been: it is settled now.

    It is no candidate of theirs any more: an absent one, which the list has shown to a create, is absent again.
    """
    columns, name = payments.c, json.dumps(transaction_id)
    journal.change_rows(payments, columns.named_id == transaction_id, named_id=None, next_look_at=at)
    here = (columns.account == journal.account, IS_UNIDENTIFIED, columns.state != PaymentState.SENDING)
    were = columns.candidates.contains(name, autoescape=True)
    asked = sa.select(columns.key, columns.candidates).where(*here, were).order_by(columns.key)
    for row in journal.execute(asked.with_for_update()).all():
        left = [each for each in json.loads(row.candidates) if each != transaction_id]
        values = {"candidates": json.dumps(left) if left else None, "next_look_at": at}
        journal.change(row.key, {**values, **reason_columns(may_be(left) if left else None)})


def find_rival(
    journal: Journal, key: str, transaction: Transaction, *, query: PaymentQuery, skew: Skew | None
) -> str | None:
    """Return the key of another payment with an unanswered request that may have made a transaction as well, or None.

    Of each payment that was released, or sent more than once, the requests that were lost count, whatever was said of
    them later; of one with a transaction only those before its last.
    `key` and `query` are of the payment that is about to adopt the transaction, `skew` is of the service's clock.
    """
    lost = (
        sa.select(payments.c.key, history.c.at)
        .join(history, (history.c.account == same(payments.c.account)) & (history.c.key == payments.c.key))
        .where(
            payments.c.account == journal.account,
            payments.c.phone_number.in_(kept_forms(journal, [query.phone_number])),
            payments.c.type == str(query.type),
            payments.c.amount == query.amount,
            payments.c.key != key,
            _WAS_RELEASED,
            history.c.what == PaymentEvent.LOSE.value,
            sa.or_(payments.c.transaction_id.is_(None), history.c.at < payments.c.sent_at),
        )
    )
    for each in journal.execute(lost):
        request = attrs.evolve(query, sent_at=shift(each.at, -_LONGEST_REQUEST), ended_at=each.at)
        if may_be_within(transaction, *request.window(skew)):
            return str(each.key)
    return None


def _contest(journal: Journal, record: PaymentRecord, transaction_id: str, rival: str, *, at: datetime) -> Verdict:
    """Return the verdict without its adoption, and note the suspicion once in the rival's history."""
    verdict = Verdict(candidates=(transaction_id,), reason=Reason(PaymentCause.RIVAL, rival))
    if transaction_id not in record.candidates:
        said = "payment %r of account %r may have been paid twice: transaction %s"
        logger.error(said, rival, journal.account, transaction_id)
        detail = f"transaction {transaction_id} may be an earlier attempt, which was called absent: paid twice?"
        # Two processes may each hold the row that the other waits for here: the database ends one transaction, which is
        # run again.
        journal.row(rival, lock=True)
        journal.note(rival, at=at, what="contradiction", source=Source.RECONCILE, detail=detail)
    return verdict


def _stop_others(journal: Journal, row: sa.Row[Any], current: PaymentRecord, check: ListCheck) -> None:
    """Let an unknown collection stop others of its kind, or not, unless another one stops them already.

    One that a whole listing after the grace period has not shown near its send stops none: its customer approves each
    prompt.
    """
    if current.state is not PaymentState.UNKNOWN or current.type != TransactionType.COLLECTION:
        return
    stops = not (check.verdict.has_none_near and check.is_late(current))
    if row.stops_kind and not stops:
        journal.update(row.key, {"stops_kind": False})
    elif stops and not row.stops_kind:
        journal.stop(row, {"stops_kind": True})


def _next_check(
    record: PaymentRecord,
    check: ListCheck,
    reason: Reason | None,
    *,
    walked_at: datetime | None = None,
    is_done: bool = False,
) -> datetime | None:
    """Return the time of the next look for a payment as a look has left it; None if no other is needed.

    Within the grace period, ever more rarely; at its end and half of it later, for the listings that must miss it; then
    whenever it is three times as old. Another payment that settles may make an unknown one due before: see
    `payments.due`.

    Args:
        record: The payment.
        check: The latest one.
        reason: Its reason why the payment is still open.
        walked_at: The end of the latest listing that counts for the absence of the payment.
        is_done: Whether the look was all that a payment needs that counts as not made.
    """
    cause, at, grace = None if reason is None else reason.cause, check.at, timedelta(seconds=check.evidence.grace)
    ended_at = record.ended_at or record.changed_at
    age = at - ended_at
    was_searched = record.state is PaymentState.RELEASED or record.walks > 0
    if record.state in REUSABLE and (is_done or age < grace or (was_searched and age > _DAY)):
        return None
    if cause is PaymentCause.NOT_WHOLE and not (record.state in REUSABLE and age > _DAY):
        return at + _AGAIN
    if age < grace:  # ever more rarely, but at its end
        return min(at + max(age, grace / 8), ended_at + grace)
    if record.state is PaymentState.UNKNOWN and (cause is None or cause in LACKS):
        if record.walks < LISTINGS:
            return (walked_at or at) + grace / 2
        if cause is None:  # this look was of a part of the list: one of whole days decides
            return at
        # The payment that it waits for makes it due. Each look at a long list costs several requests.
        pause = 7 * age if cause is PaymentCause.NO_LATER else 2 * age
        return max(at + pause, ended_at + 2 * _DAY) if len(check.evidence.listing.rows) >= PAGE_SIZE_MAX else at + pause
    return at + 2 * age


def _comparable_at(journal: Journal, record: PaymentRecord, check: ListCheck, reason: Reason | None) -> datetime | None:
    """Return when a refused disbursement can be compared with a later one, which is too new so far; or None."""
    if record.state not in REUSABLE or record.type != TransactionType.DISBURSEMENT:
        return None
    if reason is None or reason.cause is not PaymentCause.NO_LATER or record.ended_at is None:
        return None
    near = neighbours(journal, record, settled_at=check.at, most=1)
    ends = [each.ended_at for each in near if each.ended_at is not None and each.ended_at > record.ended_at]
    return shift(min(ends), timedelta(seconds=check.evidence.grace)) if ends else None


def _record_miss(journal: Journal, row: sa.Row[Any], current: PaymentRecord, check: ListCheck) -> PaymentRecord:
    """Record that a listing has not shown a payment, and conclude that it is absent if all evidence agrees."""
    at, verdict, reason = check.at, check.verdict, check.verdict.reason
    if current.ended_at is None or check.evidence.listing.began_at < current.ended_at:
        return current
    has_counted = check.counts(current, row.walked_at)
    values: dict[str, Any] = {"walks": current.walks + 1, "walked_at": at} if has_counted else {}
    is_released = current.state is PaymentState.RELEASED  # an operator has decided: the listing needs no control
    if verdict.is_clear and (is_released or not check.is_contradicted):
        values |= {"looked_at": at, "look_passed": verdict.absent_ok, "candidates": None}
    if check.is_part and reason is not None and reason.cause is PaymentCause.NOT_WHOLE:
        reason = None  # as it was meant to be
    walks = values.get("walks", current.walks)
    # Only a listing after the grace period passes its control.
    is_absent = current.state is PaymentState.UNKNOWN and verdict.absent_ok and walks >= LISTINGS
    is_of_others = check.is_part or (reason is not None and reason.cause is PaymentCause.OTHER_DAYS)
    # A look at a part of the list puts nothing off.
    if not is_of_others or current.next_look_at is None or current.next_look_at <= at:
        left = attrs.evolve(current, state=PaymentState.ABSENT if is_absent else current.state, walks=walks)
        is_done, walked_at = has_counted or "looked_at" in values, values.get("walked_at", row.walked_at)
        next_look_at = _next_check(left, check, reason, walked_at=walked_at, is_done=is_done)
        values["next_look_at"] = next_look_at or _comparable_at(journal, current, check, reason)
        values |= reason_columns(reason) if not check.is_part or current.state is PaymentState.UNKNOWN else {}
    changed = to_record(journal.update(current.key, values)) if values else current
    if not is_absent:
        return changed
    said = "two listings have not shown it; the last one was complete, and showed payments from before and after it"
    journal.apply(
        JournalEntry(current.key, current.attempt, PaymentEvent.MISS, source=Source.RECONCILE, at=at, detail=said)
    )
    return journal.find(current.key) or changed
