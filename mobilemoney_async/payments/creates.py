"""Creates that are never repeated: each is recorded before it is sent, and what came of it before the call returns.

Invariants:
- The record SENDING is committed before the pipeline touches a socket, and only where `records` allows it.
- What ends a request is recorded inside a shield: an answer, a refusal, a failure, and a cancellation too. What cannot
  be recorded, since the database is away, is kept in memory and written before anything else; until then the row says
  SENDING, which others take for unknown once it is stale.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import anyio
import attrs
import msgspec
from anyio.lowlevel import checkpoint

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.codec import encode
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, Endpoint
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.errors import CallOutcome, MobileMoneyError, OutcomeUnknown, RequestTimeout, StoreError
from mobilemoney_async.payments import journal, write_buffer
from mobilemoney_async.payments.journal import JournalEntry
from mobilemoney_async.payments.reconciler import Reconciler
from mobilemoney_async.payments.records import (
    Event,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    Source,
    is_stale,
    may_send,
)
from mobilemoney_async.payments.store import SQLStore
from mobilemoney_async.values import valid_name

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds for which a request may live beyond its attempt's time-out; see `_Journal.sending`.
_MARGIN = 5.0
# Seconds between two looks at a payment that another process is sending.
_FIRST_LOOK, _LOOK_FACTOR, _LAST_LOOK = 0.05, 1.5, 1.0
# Seconds between attempts to record an answer while the database is away.
_SAVE_PAUSES = (0.1, 0.5, 1.0)
# How many transactions that a payment may be are named in an error.
_MOST_NAMED = 3

_EVENTS: Mapping[CallOutcome, Event] = {
    "not_sent": Event.FAIL_UNSENT,
    "refused": Event.REFUSE,
    "unknown": Event.LOSE,
}


class _TakenError(Exception):
    """Another process has the key, or has just changed what is known of it: look again."""


@attrs.define(eq=False)
class _Journal:
    """Keeps the record of one create; the pipeline calls it around each attempt."""

    store: SQLStore
    order: PaymentRequest
    expected: int | None
    utcnow: Callable[[], datetime]
    attempt: int | None = None
    sent_at: datetime | None = None
    outcome: CallOutcome = "not_sent"

    async def sending(self, lives: float) -> float:
        """Record that the order is about to be sent, durably.

        Args:
            lives: The longest that the attempt may take, seconds.

        Returns:
            How many seconds may pass before it is sent. Later, others might take it for lost, and must not be wrong.

        Raises:
            StoreError: It could not be recorded; nothing may be sent.
        """
        self.sent_at = sent_at = self.utcnow()
        expected = self.expected if self.attempt is None else self.attempt
        made: list[int | None] = []
        try:
            await self.store._database.write(
                lambda connection: journal.begin(
                    connection,
                    self.store.account,
                    self.order,
                    expected=expected,
                    sent_at=sent_at,
                    lives=lives + _MARGIN,
                ),
                then=made.append,
            )
            await checkpoint()  # who was cancelled meanwhile does not send
        except BaseException:
            if made and made[0] is not None:
                self.attempt = made[0]
                with anyio.CancelScope(shield=True):
                    await self.failed("not_sent", None)
            raise
        self.attempt = made[0]
        if self.attempt is None:
            raise _TakenError
        return _MARGIN

    async def answered(self, answer: Acknowledgement) -> None:
        """Record the transaction's id, durably.

        Raises:
            StoreError: It could not be recorded, which will be tried again, or contradicts what is known.
        """
        try:
            await self._save(Event.ACKNOWLEDGE, None, answer)
        except StoreError as exc:
            exc.outcome = "unknown"  # the store's word for its own failure; the payment was sent
            raise

    async def failed(self, outcome: CallOutcome, error: MobileMoneyError | None) -> None:
        """Record that an attempt ended without an answer. Never raises: the attempt's own error matters more."""
        self.outcome = outcome
        try:
            await self._save(_EVENTS[outcome], "cancelled" if error is None else str(error), None)
        except StoreError as exc:
            logger.error("what became of payment %r is not recorded yet: %s", self.order.key, exc)  # noqa: TRY400

    async def _save(self, event: Event, detail: str | None, acknowledgement: Acknowledgement | None) -> None:
        change = JournalEntry(
            key=self.order.key,
            attempt=self.attempt,
            event=event,
            source=Source.ANSWER,
            at=self.utcnow(),
            detail=detail,
            acknowledgement=acknowledgement,
        )
        # Before the attempt to write it, so that it is there whatever happens to this task.
        write_buffer.keep(self.store, change)
        for pause in (*_SAVE_PAUSES, None):
            try:
                await write_buffer.save(self.store, change)
            except StoreError:
                if pause is None or not write_buffer.is_kept(self.store, change):
                    raise
                await anyio.sleep(pause)
            else:
                return


@attrs.define(eq=False)
class _Progress:
    """How far a create has come, for when its deadline passes."""

    is_waiting: bool = True
    earlier: PaymentRecord | None = None
    journal: _Journal | None = None

    @property
    def unknown_since(self) -> datetime | None:
        """When a request was sent of which nobody knows what became, or None."""
        if self.journal is not None:
            return self.journal.sent_at if self.journal.outcome == "unknown" else None
        if self.earlier is not None and self.earlier.is_unresolved:
            return self.earlier.sent_at
        return None


class IdempotentCreates:
    """Makes creates for one client.

    Args:
        store: Where they are kept.
        pipeline: Makes the calls.
        reconciler: Finds out what became of unknown ones.
    """

    def __init__(self, store: SQLStore, pipeline: Pipeline, reconciler: Reconciler) -> None:
        self._store = store
        self._deadline = pipeline.options.deadline
        # The deadline is kept here: there is more to wait for than the call.
        self._pipeline = attrs.evolve(pipeline, options=attrs.evolve(pipeline.options, deadline=None))
        self._reconciler = reconciler

    async def create(
        self, endpoint: Endpoint[Acknowledgement], body: Mapping[str, Any], *, idempotency_key: str
    ) -> Acknowledgement:
        """Make a payment, once.

        Args:
            endpoint: Which of the two.
            body: The request, with ``phone_number`` and ``amount`` as they are sent.
            idempotency_key: Its name.

        Raises:
            IdempotencyConflict: The key was used for something else; nothing was sent.
            DuplicateSuspected: A payment of the same kind is unidentified; nothing was sent.
            OutcomeUnknown: Nobody knows whether it exists, now or from an earlier call under this key.
            StoreError: The store failed; nothing was sent.
            MobileMoneyError: As of the pipeline.
        """
        order = _order(endpoint, body, idempotency_key)
        if self._deadline is None:
            return await self._create(endpoint, body, order, _Progress())
        progress = _Progress()
        with anyio.move_on_after(self._deadline):
            return await self._create(endpoint, body, order, progress)
        late = RequestTimeout(f"the call's deadline of {self._deadline:g} s passed", outcome="not_sent")
        if progress.is_waiting:
            # For another call under this key, which may have sent it.
            with anyio.CancelScope(shield=True):
                progress.earlier, _ = await self._look_up(order)
        if progress.unknown_since is None:
            raise late
        late.outcome = "unknown"
        raise OutcomeUnknown(
            f"the payment may or may not exist: {late}", idempotency_key=order.key, sent_at=progress.unknown_since
        ) from late

    async def _create(
        self, endpoint: Endpoint[Acknowledgement], body: Mapping[str, Any], order: PaymentRequest, progress: _Progress
    ) -> Acknowledgement:
        kind = (order.type, order.phone_number, order.amount)
        async with AsyncExitStack() as turns:
            await turns.enter_async_context(self._store._turns.take(order.key))
            progress.is_waiting = False
            await turns.enter_async_context(self._store._turns.take(kind))
            while True:
                expected, acknowledgement = await self._clear(order, progress)
                if acknowledgement is not None:
                    return acknowledgement
                progress.journal = journal = _Journal(self._store, order, expected, self._pipeline.utcnow)
                try:
                    return await self._pipeline.call(
                        endpoint, body=dict(body), idempotency_key=order.key, journal=journal
                    )
                except _TakenError:
                    continue

    async def aclose(self) -> None:
        """Write what could not be recorded so far, or say what could not."""
        try:
            await write_buffer.flush(self._store)
        except StoreError as exc:
            # The rows say that they are being sent, which becomes "unknown" with time, and is found out then.
            keys = ", ".join(map(repr, self._store._unsaved))
            logger.error("what became of %s could not be recorded: %s", keys, exc)  # noqa: TRY400

    async def _clear(self, order: PaymentRequest, progress: _Progress) -> tuple[int | None, Acknowledgement | None]:
        """Return the acknowledgement of a payment that exists, or else which attempt may be followed by another.

        Raises:
            MobileMoneyError: The order may not be sent.
        """
        await write_buffer.flush(self._store, key=order.key)
        pause, is_reconciled = _FIRST_LOOK, False
        while True:
            record, acknowledgement = await self._look_up(order)
            progress.earlier, progress.journal = record, None
            if acknowledgement is not None:
                return None, acknowledgement
            if record is None or may_send(record, absent_suffices=self._store.resend_absent_collections):
                return (None if record is None else record.attempt), None
            if record.state is PaymentState.SENDING and not is_stale(record, self._pipeline.utcnow()):
                await anyio.sleep(pause)
                pause = min(_LAST_LOOK, pause * _LOOK_FACTOR)
                continue
            if is_reconciled:
                raise _unknown(record)
            await self._reconcile(record)
            is_reconciled = True

    async def _look_up(self, order: PaymentRequest) -> tuple[PaymentRecord | None, Acknowledgement | None]:
        store = self._store

        def look(connection: Any) -> tuple[PaymentRecord | None, Acknowledgement | None]:
            record, acknowledgement = journal.look_up(connection, store.account, order)
            if record is None or not record.is_unresolved:
                twin = None if acknowledgement is not None else journal.find_duplicate(connection, store.account, order)
                if twin is not None:
                    raise journal.duplicate(twin)
            return record, acknowledgement

        return await store._database.read(look)

    async def _reconcile(self, record: PaymentRecord) -> None:
        try:
            await self._reconciler.find_out(record.key)
        except MobileMoneyError as exc:
            # Whatever failed now, the store's own failure included, says nothing of what was sent before.
            raise _unknown(record) from exc


def _order(endpoint: Endpoint[Acknowledgement], body: Mapping[str, Any], key: str) -> PaymentRequest:
    is_collection = endpoint is CREATE_COLLECTION
    extra = {name: value for name, value in body.items() if name not in {"phone_number", "amount"}}
    digest = ""
    if extra:
        plain = msgspec.json.encode(msgspec.json.decode(encode("extra", extra)), order="deterministic")
        digest = hashlib.sha256(plain).hexdigest()
    return PaymentRequest(
        key=key,
        type=TransactionType.COLLECTION if is_collection else TransactionType.DISBURSEMENT,
        phone_number=body["phone_number"],
        amount=body["amount"],
        extra_digest=digest,
        external_id=valid_name(extra.get("external_id")),
    )


def _unknown(record: PaymentRecord) -> OutcomeUnknown:
    if record.state is PaymentState.ABSENT:
        said = "the service's list does not show the payment: confirm_absent() lets it be sent again"
    elif record.is_ambiguous:
        named = [*record.candidates[:_MOST_NAMED], *(["another"] if record.candidates[_MOST_NAMED:] else [])]
        said = f"the payment may be {' or '.join(named)}: a person has to look, and to say by identify() or "
        said += "confirm_absent() what it is"
    else:
        said = "the payment may or may not exist, and was not found yet"
    assert record.sent_at is not None
    return OutcomeUnknown(f"{said}; nothing was sent now", idempotency_key=record.key, sent_at=record.sent_at)
