"""Creates that are never repeated: each is recorded before it is sent, and its result before the call returns.

Invariants:
- The record SENDING is committed before the pipeline touches a socket, and only if `records` allows it.
- The end of a request is recorded inside a shield: an answer, a refusal, a failure, and a cancellation too. An end that
  cannot be recorded, since the database is away, is kept in memory and written before anything else; until then the row
  is SENDING, which other processes count as unknown once it is stale.

Critical sections, in the order in which they are entered:
- The locks of the key and of the kind, from the first look at the record to the end of the call. They keep off the
  tasks of this event loop only. Other processes are kept off by the unique indexes, in the transaction of
  `Beginning`.
- From the commit of SENDING to the end of the request, a cancellation may come at any await. Each way out records the
  end of the attempt.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs
import msgspec

from mobilemoney_async.calls.collaborators import AnswerFacts
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.contract.codec import Content, Fields, encode
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Endpoint, type_created
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.errors import (
    DuplicateSuspected,
    IdempotencyConflict,
    MobileMoneyError,
    OutcomeUnknown,
    RequestTimeout,
    StoreError,
)
from mobilemoney_async.payments.creates.attempts import KeyTakenError, NotEchoedError, RecordedAttempts
from mobilemoney_async.payments.ownership.comparison import AccountFacts
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard, duplicate_suspected
from mobilemoney_async.payments.ownership.evidence import may_be, names
from mobilemoney_async.payments.ownership.matching import query_for, read_sample
from mobilemoney_async.payments.ownership.reconciler import Reconciler
from mobilemoney_async.payments.ownership.reconciliation import adopt, mark_unknown
from mobilemoney_async.payments.ownership.recovery import Recovery
from mobilemoney_async.payments.records.account_store import AccountStore, suspended
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.next_steps import next_step
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import (
    Clearance,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
    clearance,
    is_stale,
    withdrawal,
)
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import shown_id
from mobilemoney_async.values import valid_name

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds between two looks at a payment that another process is sending.
_FIRST_LOOK, _LOOK_FACTOR, _LAST_LOOK = 0.05, 1.5, 1.0


class IdempotentCreates:
    """Creates of one client under idempotency keys."""

    def __init__(
        self,
        store: AccountStore,
        pipeline: Pipeline,
        reconciler: Reconciler,
        recovery: Recovery,
        limits: DisbursementLimits | None = None,
    ) -> None:
        self._limits = limits
        self._store = store
        self._deadline = pipeline.options.deadline
        # The deadline is kept here: there is more to wait for than the call.
        self._pipeline = attrs.evolve(pipeline, options=attrs.evolve(pipeline.options, deadline=None))
        self._reconciler = reconciler
        self._recovery = recovery
        self._guard = DuplicateGuard(store.sole_writer)

    async def create(
        self,
        endpoint: Endpoint[Acknowledgement],
        body: Mapping[str, Any] | Fields,
        *,
        idempotency_key: str,
        on_sending: Callable[[], object] | None = None,
        from_queue: bool = False,
    ) -> Acknowledgement:
        """Make a payment, once; `body` has ``phone_number`` and ``amount`` as they are sent.

        `on_sending` is called when the rate limit has granted the request. With `from_queue`, it is sent only if it is
        in the queue at that moment, and its `not_after` has not passed.

        Raises:
            IdempotencyConflict: The key was used for another payment, or is used up; nothing was sent.
            DuplicateSuspected: A payment of the same kind is unidentified; nothing was sent.
            AccountSuspended: The account is suspended or removed; nothing was sent.
            LimitExceeded: A disbursement exceeds a limit; nothing was sent.
            OutcomeUnknown: The result is unknown, of this call or of an earlier one under this key.
            StoreError: The store failed; nothing was sent.
            MobileMoneyError: As of the pipeline. If the call is cancelled, the store has the result, or keeps the
                payment as unknown.
        """
        body = Fields.of(body)
        request = payment_request(type_created(endpoint), body, idempotency_key)
        attempts = RecordedAttempts(
            self._store,
            self._recovery.binding,
            self._guard,
            request,
            None,
            self._pipeline.utcnow,
            on_sending=on_sending,
            asked_at=None if from_queue else self._pipeline.utcnow(),
            limits=self._limits if request.type is TransactionType.DISBURSEMENT else None,
        )
        with anyio.move_on_after(self._deadline):
            return await self._create(endpoint, body, attempts)
        acknowledgement = await shielded(lambda: self._end_late(attempts))
        assert acknowledgement is not None
        return acknowledgement

    async def _create(
        self, endpoint: Endpoint[Acknowledgement], body: Fields, attempts: RecordedAttempts
    ) -> Acknowledgement:
        request = attempts.request
        kind = (request.type, request.phone_number, request.amount)
        async with AsyncExitStack() as locks:
            is_held = self._store.locks.is_held
            if attempts.asked_at is not None and (is_held(request.key) or is_held(kind)):
                # A payment that is taken out of the queue during this wait is not sent either.
                attempts.since = await self._store.read(lambda journal: journal.next_entry(request.key))
            # Always the key first: two creates cannot wait for each other.
            await locks.enter_async_context(self._store.locks.hold(request.key))
            await locks.enter_async_context(self._store.locks.hold(kind))
            while True:
                acknowledgement = await self._until_sendable(attempts)
                if acknowledgement is not None:
                    return acknowledgement
                try:
                    return await self._pipeline.call(
                        endpoint, body=body, idempotency_key=request.key, recorder=attempts
                    )
                except KeyTakenError:
                    continue
                except NotEchoedError as exc:
                    return await self._identify(request, exc)

    async def _end_late(self, attempts: RecordedAttempts) -> Acknowledgement:
        """Return the acknowledgement of a payment whose create has passed its deadline, or raise the error for that.

        The end of its own request is recorded by then. One query: it does not wait for another call under its key.
        """
        late = RequestTimeout(f"the call's deadline of {self._deadline:g} s passed", outcome="not_sent")
        sent_at = attempts.sent_at
        try:
            record, acknowledgement, facts = await self._look_up(attempts.request)
        except DuplicateSuspected:
            raise late from None
        except StoreError:
            if sent_at is None:  # this call has begun nothing
                raise
        else:
            if acknowledgement is not None:
                return acknowledgement
            if record is None or not record.is_unresolved:
                if facts.due_since is not None:
                    late.args = (f"{late}, and the service's list was not read yet: call payments.reconcile()",)
                raise late
            sent_at = record.sent_at
        assert sent_at is not None
        late.outcome = "unknown"
        said = f"the payment may or may not exist: {late}"
        raise self._pipeline.unknown(said, attempts.request.key, sent_at, cause=late)

    async def aclose(self) -> None:
        """Write the write-behind buffer, or log the payments without a recorded result."""
        try:
            await self._store.flush()
        except StoreError as exc:
            # Their rows say SENDING, which becomes unknown with time, and is then looked for in the list.
            keys = ", ".join(map(repr, self._store.unwritten))
            said = "the results of %s of account %r could not be recorded: %s"
            logger.error(said, keys, self._store.account, exc)  # noqa: TRY400

    async def _until_sendable(self, attempts: RecordedAttempts) -> Acknowledgement | None:
        """Return the acknowledgement of a payment that exists, or else None once `attempts` may begin the next one.

        Raises:
            MobileMoneyError: The payment may not be sent.
        """
        request = attempts.request
        await self._store.flush(key=request.key)
        pause, has_looked = _FIRST_LOOK, False
        while True:
            is_first = attempts.asked_at is not None and attempts.since is None
            record, acknowledgement, facts = await self._look_up(request, first=attempts if is_first else None)
            if acknowledgement is not None:
                return acknowledgement
            now = self._pipeline.utcnow()
            # Another process may send from here on: `Beginning` finds out.
            answer = self._clearance(record, now, attempts.asked_at)
            if record is None or answer is Clearance.SEND:
                if facts.state is not None:  # before anything is asked of the service; `Beginning` decides
                    raise suspended(self._store.account, facts.state, facts.state_note)
                if not await self._recovery.admit(request, facts):
                    attempts.attempt = None if record is None else record.attempt
                    return None
            elif record.state is PaymentState.SENDING and not is_stale(record, now):
                await anyio.sleep(pause)
                pause = min(_LAST_LOOK, pause * _LOOK_FACTOR)
            elif has_looked or answer in {Clearance.WAIT, Clearance.DOUBT}:
                raise await self._refuse(record, answer)
            else:
                await self._look(record, facts)
                has_looked = True

    def _clearance(self, record: PaymentRecord | None, now: datetime, asked_at: datetime | None) -> Clearance:
        """Return whether a key may be sent now; raise `IdempotencyConflict` if its payment was cancelled."""
        if record is None:
            return Clearance.SEND
        if record.state is PaymentState.CANCELLED:
            raise IdempotencyConflict(f"payment {record.key!r} was cancelled, and its key is used up: nothing was sent")
        answer = clearance(record, now, absent_suffices=self._store.resend_absent_collections, grace=self._store.grace)
        if answer is Clearance.SEND and (reason := withdrawal(record, now, asked_at=asked_at)) is not None:
            raise StoreError(f"payment {record.key!r}: {reason}; nothing was sent", outcome="not_sent")
        return answer

    async def _look(self, record: PaymentRecord, facts: AccountFacts) -> None:
        """Look for a payment in the service's list."""
        try:
            await self._recovery.binding.require_bound(facts)
            await self._reconciler.run(record, before=self._recovery.compare)
        except Exception as exc:
            # A failure now, of the store or of a token source too, proves nothing about the earlier request.
            if record.is_unresolved:
                raise self._unknown(record, cause=exc) from exc
            is_store = isinstance(exc, StoreError) and exc.is_database  # another transaction may hold the payment's row
            raise _no_look(record, "the store is busy or failed" if is_store else "the list cannot be read") from exc

    async def _refuse(self, record: PaymentRecord, answer: Clearance) -> MobileMoneyError:
        """Return the error for a key that may not be sent now; note first if someone has to decide."""
        if answer is Clearance.DOUBT:
            reason = Reason(PaymentCause.UNCOMPARED) if record.cause is None else None
            now = self._pipeline.utcnow()
            doubted = await self._store.write(lambda journal: mark_unknown(journal, record, reason, at=now))
            return doubted if isinstance(doubted, StoreError) else self._unknown(doubted)
        if record.is_unresolved or record.candidates:
            return self._unknown(record)
        return _no_look(record, record.reason or "that may not show it yet")

    def _unknown(self, record: PaymentRecord, *, cause: Exception | None = None) -> OutcomeUnknown:
        """Return the error for a payment whose earlier request has an unknown result."""
        assert record.sent_at is not None
        step = next_step(record, self._pipeline.utcnow(), grace=timedelta(seconds=self._store.grace))
        may = f"may be {may_be(record.candidates).about}" if record.candidates else "may or may not exist"
        said = f"the payment {may}; nothing was sent now. {step}"
        return self._pipeline.unknown(said, record.key, record.sent_at, cause=cause)

    async def _identify(self, request: PaymentRequest, not_echoed: NotEchoedError) -> Acknowledgement:
        """Look up the transaction of an acknowledgement that names something else, and adopt it if it is the payment.

        Raises:
            OutcomeUnknown: It is not, or could not be fetched.
        """
        identifiers, facts = {"transaction_id": not_echoed.transaction_id}, AnswerFacts()
        asked_at = self._pipeline.utcnow()
        cause: Exception = not_echoed
        try:
            answer = await self._pipeline.call(GET_TRANSACTION, identifiers=identifiers, facts=facts)
            sample = read_sample(facts.date, began_at=asked_at, ended_at=self._pipeline.utcnow())

            def adopt_named(journal: Journal) -> None:
                record = journal.find(request.key, lock=True)
                skew = None if sample is None else sample.skew
                if record is not None and record.is_unresolved and names(query_for(record), answer.transaction, skew):
                    adopt(journal, record, answer.transaction, source=Source.ANSWER, at=asked_at)

            await self._store.write(adopt_named)
        except MobileMoneyError as exc:
            cause = exc
        try:
            _, acknowledgement, _ = await self._look_up(request)
        except StoreError:
            acknowledgement = None
        if acknowledgement is not None:
            return acknowledgement
        said = f"{not_echoed}: the payment may be transaction {shown_id(not_echoed.transaction_id)}, or may not exist"
        raise self._pipeline.unknown(said, request.key, not_echoed.sent_at, cause=cause)

    async def _look_up(
        self, request: PaymentRequest, *, first: RecordedAttempts | None = None
    ) -> tuple[PaymentRecord | None, Acknowledgement | None, AccountFacts]:
        # Now: a transaction that others share may begin before the work.
        newest = self._store.newest

        def look(journal: Journal) -> tuple[PaymentRecord | None, Acknowledgement | None, AccountFacts]:
            facts, has_conflicts = self._recovery.binding.look_with_conflicts(journal, request, newest)
            if first is not None:  # before its record is read: what comes in between counts
                first.since = journal.next_entry(request.key) if has_conflicts else 0
            if not has_conflicts:
                return None, None, facts
            record, acknowledgement = journal.look_up(request)
            if acknowledgement is None and (record is None or not record.is_unresolved):
                duplicate = journal.find_duplicate(request)
                if duplicate is not None:
                    raise duplicate_suspected(duplicate)
            return record, acknowledgement, facts

        return await self._store.read(look, share_key=request.key)


def payment_request(kind: TransactionType, body: Mapping[str, Any] | Fields, key: str) -> PaymentRequest:
    """Return the payment that a request's body asks for."""
    body = Fields.of(body)
    extra = Fields({name: each for name, each in body.reveal().items() if name not in {"phone_number", "amount"}})
    digest = ""
    if extra.reveal():
        plain = Content(msgspec.json.encode(msgspec.json.decode(encode("extra", extra)), order="deterministic"))
        digest = hashlib.sha256(plain).hexdigest()
    return PaymentRequest(
        key=key,
        type=kind,
        phone_number=body["phone_number"],
        amount=body["amount"],
        extra_digest=digest,
        external_id=valid_name(extra.reveal().get("external_id")),
    )


def _no_look(record: PaymentRecord, obstacle: str) -> StoreError:
    """Return the error for a payment that does not exist, as far as is known, where the list does not show that now."""
    is_released = record.state is PaymentState.RELEASED
    known = "confirmed absent" if is_released else "refused without a code of the contract"
    return StoreError(
        f"the payment was {known}: it is sent again only after a look in the service's list ({obstacle}); nothing was "
        "sent now, try again in a few minutes",
        outcome="not_sent",
    )
