"""Dispatcher of an account's queued payments: it sends them one after the other, behind interactive creates.

Critical section: one process of an account at a time dispatches, under the lease `dispatcher`; another goes on within
seconds of its death. The lease keeps the pace, not the money safe: each payment is sent by `IdempotentCreates`, which
only one process can begin.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Self

import anyio
import anyio.abc
import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, CREATE_DISBURSEMENT
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.leases import change_lease
from mobilemoney_async.errors import (
    DuplicateSuspected,
    MobileMoneyError,
    StoreError,
)
from mobilemoney_async.events import DispatcherPaused, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.creates import IdempotentCreates
from mobilemoney_async.payments.journal import Journal
from mobilemoney_async.payments.outbox import count_queued, next_queued, postpone, queue_again
from mobilemoney_async.payments.records import PaymentRecord, PaymentState
from mobilemoney_async.values import require_text

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds: the lease, two looks at the queue, and the drain at the end.
_LEASE, _LOOK, _DRAIN = 10.0, 0.5, 10.0
# Payments that are being sent at once at most: answers may take long.
_IN_FLIGHT = 20
# Equal refusals in a row after which the dispatcher pauses, since the next one will be refused, too.
_REFUSALS = 20
# Seconds after which a payment is tried again that waits for another of its kind, or could not be sent.
_DUPLICATE_PAUSE, _FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 5.0, 300.0


@attrs.frozen(kw_only=True)
class DispatcherStats:
    """State of a dispatcher.

    Attributes:
        queued: The account's queued payments, as last counted.
        sent: The payments that this dispatcher has sent, whatever their results.
        finishes_at: When the last queued payment will have been sent at this pace, or None while it is paused, or
            another process dispatches.
        paused: Why it is paused, or None.
    """

    queued: int = 0
    sent: int = 0
    finishes_at: datetime | None = None
    paused: str | None = None


class Dispatcher(anyio.AsyncContextManagerMixin):
    """Sender of an account's queued payments: ``async with client.dispatcher(): ...``.

    Any number of processes may run one. Leaving the block waits for the answers to what was sent, ten seconds at most.
    """

    def __init__(self, store: AccountStore, pipeline: Pipeline, creates: IdempotentCreates, per_minute: float) -> None:
        self._store = store
        self._utcnow = pipeline.utcnow
        self._on_event = pipeline.on_event
        self._creates = creates
        self._interval = 60.0 / per_minute
        self._me = uuid.uuid4().hex
        self._leased_until = -math.inf
        self._next_at = -math.inf
        self._sending: set[str] = set()
        self._changed = anyio.Event()
        self._queued = self._sent = 0
        self._paused: str | None = None
        self._last_refusal, self._refusals = "", 0
        self._pause = _FIRST_PAUSE

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        await self._store.database.open()
        failure: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, tasks)
            try:
                yield self
            except (GeneratorExit, anyio.get_cancelled_exc_class()):
                raise
            except BaseException as exc:  # noqa: BLE001 (raised again past the group, which would wrap it)
                failure = exc
            finally:
                self._paused = "the dispatcher is closed"
                with anyio.move_on_after(_DRAIN, shield=True):
                    while self._sending:
                        changed = self._changed
                        await changed.wait()
                tasks.cancel_scope.cancel()
                with anyio.move_on_after(_LEASE, shield=True), suppress(StoreError):
                    await self._hold(None)
        if failure is not None:
            raise failure

    @property
    def stats(self) -> DispatcherStats:
        """State of the dispatcher now."""
        finishes_at = None
        if self._paused is None and self._leased_until > anyio.current_time():
            finishes_at = self._utcnow() + timedelta(seconds=self._queued * self._interval)
        return DispatcherStats(queued=self._queued, sent=self._sent, finishes_at=finishes_at, paused=self._paused)

    def pause(self, reason: str = "the program has paused it") -> None:
        """Send nothing from now on; what is being sent goes on. Another process may still dispatch."""
        self._paused = require_text("reason", reason)

    def resume(self) -> None:
        """Go on after `pause`, or after the dispatcher has paused by itself."""
        self._paused, self._refusals, self._next_at = None, 0, -math.inf
        self._stir()

    def __repr__(self) -> str:
        return f"<Dispatcher: {self._queued} queued, {self._sent} sent>"

    async def _run(self, tasks: anyio.abc.TaskGroup) -> None:
        is_well = True
        while True:
            changed = self._changed
            try:
                pause = await self._step(tasks)
                is_well = True
            except StoreError as exc:
                if is_well:
                    logger.warning("the dispatcher waits for the store: %s", exc)
                is_well, pause = False, _FIRST_PAUSE
            with anyio.move_on_after(pause):
                await changed.wait()

    async def _step(self, tasks: anyio.abc.TaskGroup) -> float:
        """Send the next payment if it is time, and return the seconds until the next step."""
        if self._paused is not None or not await self._is_holder():
            return _LOOK
        now = anyio.current_time()
        if now < self._next_at or len(self._sending) >= _IN_FLIGHT:
            return max(0.0, self._next_at - now) or _LOOK

        at = self._utcnow()

        def look(journal: Journal) -> tuple[int, list[tuple[PaymentRecord, str | None]]]:
            return count_queued(journal), next_queued(journal, at, limit=_IN_FLIGHT + 1)

        self._queued, found = await self._store.read(look)
        for record, extra in found:
            if record.key not in self._sending:
                await self._begin(tasks, record, extra)
                self._next_at = max(self._next_at, now + self._interval)
                return 0.0
        return _LOOK

    async def _is_holder(self) -> bool:
        """Return whether this process dispatches; renew the lease halfway."""
        if anyio.current_time() > self._leased_until - _LEASE / 2:
            began = anyio.current_time()
            self._leased_until = began + _LEASE if await self._hold(_LEASE) else -math.inf
        return self._leased_until > anyio.current_time()

    async def _hold(self, ttl: float | None) -> bool:
        account = self._store.account
        held, _ = await self._store.database.timed(
            lambda connection, clock: change_lease(connection, account, "dispatcher", by=self._me, ttl=ttl, clock=clock)
        )
        return held

    async def _begin(self, tasks: anyio.abc.TaskGroup, record: PaymentRecord, extra: str | None) -> None:
        """Begin to send a payment, and return once the rate limit has granted it: one of ours waits at a time."""
        granted = anyio.Event()
        self._sending.add(record.key)
        tasks.start_soon(self._send, record, extra, granted)
        await granted.wait()

    async def _send(self, record: PaymentRecord, extra: str | None, granted: anyio.Event) -> None:
        try:
            is_collection = record.type == TransactionType.COLLECTION
            body = {"phone_number": record.phone_number, "amount": f"{record.amount:f}"}
            body |= {} if extra is None else json.loads(extra)
            endpoint = CREATE_COLLECTION if is_collection else CREATE_DISBURSEMENT
            await self._creates.create(endpoint, body, idempotency_key=record.key, on_sending=granted.set)
            self._sent += 1
            self._refusals, self._pause = 0, _FIRST_PAUSE
        except MobileMoneyError as exc:
            await self._failed(record, exc)
        finally:
            self._sending.discard(record.key)
            granted.set()
            self._stir()

    async def _failed(self, record: PaymentRecord, error: MobileMoneyError) -> None:
        if error.outcome == "unknown":
            self._sent += 1
            logger.warning("queued payment %r has an unknown result: %s", record.key, error)
            return
        if error.outcome == "refused":
            self._sent += 1
            logger.warning("queued payment %r was refused: %s", record.key, error)
            self._count_refusal(error)
            return
        pause, is_duplicate = _DUPLICATE_PAUSE, isinstance(error, DuplicateSuspected)
        if not is_duplicate:
            pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            self._next_at = anyio.current_time() + pause
            logger.warning("nothing can be sent, the dispatcher pauses for %.0f s: %s", pause, error)

        at = self._utcnow()

        def put_back(journal: Journal) -> None:
            current = journal.find(record.key, lock=True)
            if current is not None and current.state is PaymentState.NOT_SENT:
                queue_again(journal, current, at=at, reason=str(error), pause=pause)
            elif current is not None and current.state is PaymentState.QUEUED:
                postpone(journal, record.key, at=at, reason=str(error), pause=pause)

        with suppress(StoreError):  # it stays as it is, and is looked at again
            await self._store.write(put_back)

    def _count_refusal(self, error: MobileMoneyError) -> None:
        """Pause after many equal refusals, such as those for an empty float: the next one would be refused, too."""
        self._refusals = self._refusals + 1 if str(error) == self._last_refusal else 1
        self._last_refusal = str(error)
        if self._refusals >= _REFUSALS and self._paused is None:
            self._paused = f"{_REFUSALS} payments in a row were refused: {error}"
            emit(self._on_event, DispatcherPaused(reason=self._paused))
            logger.error("the dispatcher has paused: %s; call resume() once the reason is gone", self._paused)

    def _stir(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
