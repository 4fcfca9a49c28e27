"""Dispatcher of an account's queued payments: it sends them one after the other, behind interactive creates.

Critical section: one process of an account at a time dispatches, under the lease `dispatcher`; another goes on within
seconds of its death. The lease keeps the pace, not the money safe: each payment is sent by `IdempotentCreates`, which
only one process can begin.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Self

import anyio
import attrs
from anyio.abc import TaskGroup

from mobilemoney_async.calls.collaborators import ClaimEndedError
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, CREATE_DISBURSEMENT
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.clock import Holder
from mobilemoney_async.database.leases import TaskLease, new_holder
from mobilemoney_async.errors import (
    APIError,
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidRequest,
    LimitExceeded,
    MobileMoneyError,
    OutcomeUnknown,
    StoreError,
)
from mobilemoney_async.events import DispatcherPaused, emit
from mobilemoney_async.payments.creates.attempts import NEVER_ITS_OWN, REFUSED_FOR_ALL
from mobilemoney_async.payments.creates.creates import IdempotentCreates
from mobilemoney_async.payments.outbox.outbox import (
    Counted,
    Queued,
    cause_of_wait,
    count_queued,
    next_queued,
    postpone,
    warn_late,
    withdraw_late,
)
from mobilemoney_async.payments.outbox.pauses import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Obstacles,
    Pause,
    equal_ends,
    find_pause,
    save_pause,
)
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.reasons import Reason
from mobilemoney_async.payments.records.record import PaymentRecord
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import shielded, task_group
from mobilemoney_async.text import redact
from mobilemoney_async.values import refuse, require_text

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds: the lease, between two looks at the queue, and between two attempts to get the lease.
_LEASE, _LOOK, _WAIT = 10.0, 0.5, 2.0
# The lease of a dispatcher in the process that has claimed the account: the next claim ends that.
_CLAIMED = 60.0
# Seconds that a payment may keep the next one waiting, as during a listing, and for the answers at the end.
_PATIENCE, _DRAIN = 10.0, 10.0
# Payments that are being sent at once at most: answers may take long.
_IN_FLIGHT = 20
# Unknown results of a type in a row after which its payments wait: those that are still queued need no decision.
_UNKNOWN = 5
# Seconds after which a payment is tried again that cannot be sent now, for a reason of its own.
_OWN_PAUSE = 30.0
_NAME = "dispatcher"


@attrs.frozen(kw_only=True)
class DispatcherStats(Data):
    """State of a dispatcher.

    Attributes:
        queued: The account's queued payments, as last counted.
        sent: The payments that this dispatcher has sent, whatever their results.
        finishes_at: When the last queued payment will have been sent at this pace, or None while it is paused, or
            another process dispatches.
        paused: The reason why nothing is sent, or no disbursement, in any process, or None.
        paused_until: When it goes on by itself, as after failures to send, and unknown results; None if someone has to
            resume: after `pause`, many equal ends without money moving, and the word that a backup was restored.
    """

    queued: int = 0
    sent: int = 0
    finishes_at: datetime | None = None
    paused: str | None = None
    paused_until: datetime | None = None


class Dispatcher(anyio.AsyncContextManagerMixin):
    """Sender of an account's queued payments: ``async with client.dispatcher(): ...``.

    Any number of processes may run one. Leaving the block waits for the answers that are due, ten seconds at most.
    """

    def __init__(
        self,
        store: AccountStore,
        pipeline: Pipeline,
        creates: IdempotentCreates,
        per_minute: float,
        pause_after: int | None,
    ) -> None:
        self._store = store
        self._pause_after = pause_after
        self._utcnow = pipeline.utcnow
        self._on_event = pipeline.on_event
        self._pipeline = pipeline
        self._creates = creates
        self._interval = 60.0 / per_minute
        self._claim = pipeline.claim
        # A claim has one dispatcher at a time: the next one goes on, also where this one could not give the lease back.
        holder = new_holder(None) if pipeline.host is None else Holder(_NAME, pipeline.host)
        ttl = _LEASE if self._claim is None else _CLAIMED
        self._lease = TaskLease(store.database, store.account, _NAME, holder, ttl)
        self._leased_until = -math.inf
        self._next_at = -math.inf
        self._sending: dict[str, tuple[PaymentRecord, anyio.CancelScope]] = {}
        self._changed = anyio.Event()
        self._queued = self._sent = 0
        self._latest: datetime | None = None
        self._pause = Pause()  # as the store has it
        self._order: Pause | None = None  # of this program, which the store does not have yet
        self._is_closed = False
        self._obstacles = Obstacles()
        self._unknown: Counter[TransactionType] = Counter()  # results in a row
        self._whose = "" if store.account == "default" else f" of account {store.account!r}"  # for the log

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._is_closed:
            raise refuse("dispatcher", "a new one: each is used once")
        self._pipeline.wire.check_open()
        await self._store.database.open()
        async with self._pipeline.wire.in_use(), task_group() as tasks:
            tasks.start_soon(self._run, tasks)
            tasks.start_soon(self._pipeline.stay_in_contact)
            try:
                yield self
            finally:
                self._is_closed = True
                await shielded(partial(self._end, tasks))

    async def _end(self, tasks: TaskGroup) -> None:
        """Wait for the answers that are due, and give the lease back."""
        try:
            with anyio.move_on_after(_DRAIN):
                await until_answered(self)
        finally:
            for _, scope in self._sending.values():
                scope.cancel()
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(_LEASE), suppress(StoreError):
            await self._save_order()
            await self._lease.give_back()

    @property
    def stats(self) -> DispatcherStats:
        """State of the dispatcher now."""
        pause, now, finishes_at = self._order or self._pause, self._utcnow(), None
        shown = pause if self._paused is None else Pause(self._paused)
        # One that lasts is shown before what ends by itself, here or in another process that could not send.
        if not shown.lasts and (self._obstacles or pause.is_over(now)):
            shown = self._obstacles.as_pause(anyio.current_time(), now)
        if shown.reason is None and self._leased_until > anyio.current_time():
            finishes_at = max(now + timedelta(seconds=self._queued * self._interval), self._latest or now)
        return DispatcherStats(
            queued=self._queued, sent=self._sent, finishes_at=finishes_at, paused=shown.reason, paused_until=shown.until
        )

    def pause(self, reason: str = "the program has paused it") -> None:
        """Send nothing from now on, in any process of the account, until `resume`; requests on their way go on."""
        self._order = Pause(redact(require_text("reason", reason)))  # for logs, events and every view
        self._stop_waiting()
        self._stir()

    def resume(self) -> None:
        """Go on after a pause, of any process; after that of a restored store only if `stats.paused` has said so."""
        was_shown = (self._order or self._pause).of_payouts
        self._order, self._next_at = Pause(resumed_at=self._utcnow(), of_payouts=was_shown), -math.inf
        self._unknown.clear()
        self._obstacles.clear()
        self._stir()

    @property
    def _paused(self) -> str | None:
        """Why nothing is sent until `resume`."""
        if self._is_closed:
            return "the dispatcher is closed"
        pause = self._order or self._pause
        return pause.reason if pause.stops(TransactionType.COLLECTION) else None

    def _stop_waiting(self, types: Collection[TransactionType] = tuple(TransactionType)) -> None:
        """Leave payments of some types in the queue that were taken from it, and wait: for the rate limit, say."""
        for record, scope in self._sending.values():
            if not scope.shield and record.type in types:
                scope.cancel()

    async def _save_order(self) -> None:
        """Let the store have the program's last order."""
        if (order := self._order) is not None:
            await self._store.write(lambda journal: save_pause(journal, order), share_key="")
            self._pause = Pause(order.reason)
            if self._order is order:
                self._order = None

    def __repr__(self) -> str:
        return f"<Dispatcher: {self._queued} queued, {self._sent} sent>"

    async def _run(self, tasks: TaskGroup) -> None:
        while True:
            changed = self._changed
            try:
                pause = await self._step(tasks)
            except StoreError as exc:
                warn_of_store("the dispatcher waits for the store", exc)
                pause = FIRST_PAUSE
            with anyio.move_on_after(pause):
                await changed.wait()

    async def _step(self, tasks: TaskGroup) -> float:
        """Send the next payment if it is time, and return the seconds until the next step."""
        if self._claim is not None:
            self._claim.require()
        await self._save_order()
        if self._paused is not None or not await self._is_holder():
            await self._look(())
            return _LOOK if self._order is not None else _WAIT
        now = anyio.current_time()
        if now < self._next_at or len(self._sending) >= _IN_FLIGHT:
            return min(_LOOK, self._next_at - now) if self._next_at > now else _LOOK
        tried = {each.type for each, _ in self._sending.values() if self._unknown[each.type] >= _UNKNOWN}
        types = [each for each in TransactionType if each not in tried and not self._obstacles.blocks(each, now)]
        found = await self._look(types)
        if found is None or self._paused is not None:
            ends = (each.until - now for each in self._obstacles.values() if each.until > now)
            return _LOOK if types else min([_WAIT, *ends])
        await self._begin(tasks, *found)
        return 0.0

    async def _look(self, types: Collection[TransactionType]) -> Queued | None:
        """Count the queue, take out late payments, and return the payment of some types to send next."""
        at = self._utcnow()
        # One of a kind that is being sent would only wait for it.
        kinds = [(str(each.type), each.phone_number, f"{each.amount:f}") for each, _ in self._sending.values()]

        def look(journal: Journal) -> tuple[Counted, Pause, Queued | None, str | None]:
            counted, pause, found, ends = count_queued(journal), find_pause(journal), None, None
            if counted[0] and (sent := [each for each in types if not pause.stops(each)]):
                found = next_queued(journal, at, types=sent, kinds=kinds)
            if found is not None and self._pause_after is not None:
                a_day_ago = at - timedelta(days=1)
                since = max(a_day_ago, pause.resumed_at or a_day_ago)
                ends = equal_ends(journal, found[0].type, self._pause_after, since=since)
            return counted, pause, found, ends

        (self._queued, self._latest, earliest), pause, found, ends = await self._store.read(look, share_key=_NAME)
        self._take(pause, ends)
        if earliest is not None and earliest <= at:  # whichever process sees it first, also one that is paused
            warn_late(await self._store.decide(withdraw_late, self._utcnow), self._whose)
        return found

    def _take(self, pause: Pause, ends: str | None) -> None:
        """Obey the pause of the store; where the last payments have ended alike, pause, loudly."""
        if self._order is not None:  # the program has decided
            return
        if pause.lasts and (not self._pause.lasts or pause.of_payouts < self._pause.of_payouts):
            logger.warning("the dispatcher%s is paused: %s", self._whose, pause.reason)
        self._pause = pause
        self._stop_waiting([each for each in TransactionType if pause.stops(each)])
        if ends is not None:
            self.pause(f"{ends}; no money moved")
            emit(self._on_event, DispatcherPaused(reason=self._paused or ends))
            said = "the dispatcher%s has paused: %s; call resume() once the reason is gone"
            logger.error(said, self._whose, self._paused)

    async def _is_holder(self) -> bool:
        """Return whether this process dispatches; renew the lease halfway."""
        if anyio.current_time() > self._leased_until - self._lease.ttl / 2:
            began = anyio.current_time()
            try:
                self._leased_until = began + self._lease.ttl if await self._lease.take() else -math.inf
            finally:  # also where the database is away: another process may dispatch by now
                if self._leased_until <= anyio.current_time():
                    self._stop_waiting()
        return self._leased_until > anyio.current_time()

    async def _begin(self, tasks: TaskGroup, record: PaymentRecord, extra: str | None) -> None:
        """Begin to send a payment, and return once the rate limit has granted it: one of ours waits at a time."""
        granted, scope = anyio.Event(), anyio.CancelScope()
        self._sending[record.key] = record, scope
        tasks.start_soon(self._send, record, extra, granted, scope)
        # One that was refused, perhaps not for certain, may need a listing first.
        with anyio.move_on_after(None if record.is_certain else _PATIENCE):
            while not granted.is_set():
                with anyio.move_on_after(_WAIT):
                    await granted.wait()
                    return
                with suppress(StoreError):  # what waits decides as it begins, too
                    await self._is_holder()
                    self._take(await self._store.read(find_pause, share_key=""), None)  # of another process

    async def _send(
        self, record: PaymentRecord, extra: str | None, granted: anyio.Event, scope: anyio.CancelScope
    ) -> None:
        began = anyio.current_time()

        def sending() -> None:
            # From here on a cancellation of the program would leave an unknown result: the answer is waited for.
            scope.shield = True
            self._next_at = max(self._next_at, began + self._interval)  # one that is not sent after all takes no place
            granted.set()

        try:
            endpoint = CREATE_COLLECTION if record.type == TransactionType.COLLECTION else CREATE_DISBURSEMENT
            body = {"phone_number": record.phone_number, "amount": f"{record.amount:f}"}
            body |= {} if extra is None else json.loads(extra)
            with scope:
                await self._creates.create(
                    endpoint, body, idempotency_key=record.key, on_sending=sending, from_queue=True
                )
            if scope.cancelled_caught:
                return
            self._sent += 1
            self._unknown[record.type] = 0
            await self._unblock(record.type)
        except MobileMoneyError as exc:
            await self._failed(record, exc)
        finally:
            del self._sending[record.key]
            granted.set()
            self._stir()

    async def _failed(self, record: PaymentRecord, error: MobileMoneyError) -> None:
        if error.outcome == "unknown":
            if await self._put_off(record, error):
                return
            self._sent += 1
            self._unknown[record.type] += 1
            logger.warning("queued payment %r%s has an unknown result: %s", record.key, self._whose, error)
            if (count := self._unknown[record.type]) >= _UNKNOWN:
                self._block(record.type, f"{count} results in a row are unknown: {error}")
                await self._show()
        elif (
            isinstance(error, APIError)
            and error.outcome == "refused"
            and not (error.is_certain and isinstance(error, REFUSED_FOR_ALL))  # else another one is refused, too
        ):
            self._sent += 1
            self._unknown[record.type] = 0
            logger.warning("queued payment %r%s was refused: %s", record.key, self._whose, error)
            await self._unblock(record.type)
        elif not isinstance(error, ClaimEndedError):  # otherwise the next host sends it at once
            await self._put_off(record, error)

    async def _put_off(self, record: PaymentRecord, error: MobileMoneyError) -> bool:
        """Let a payment wait that was not sent; and others of its type, unless the reason is its own.

        Returns:
            Whether nothing was sent, as its record shows: False also while the store is away.
        """
        is_own = isinstance(error, DuplicateSuspected | IdempotencyConflict | InvalidRequest | OutcomeUnknown)
        is_own = is_own or not record.is_certain
        pause: float | None = _OWN_PAUSE  # None: it keeps its place, and all of its type wait
        if isinstance(error, LimitExceeded):
            is_own, pause = is_own or error.limit != "per_day", LONGEST_PAUSE
        elif not is_own:
            is_of_all = isinstance(error, NEVER_ITS_OWN)
            pause = None if is_of_all else _OWN_PAUSE + self._obstacles.next_pause(record.type)

        def put_off(journal: Journal, at: datetime) -> tuple[list[str], bool, bool]:
            late = withdraw_late(journal, at)
            reason = Reason(cause_of_wait(error, journal, at), str(error))
            # Later than the others of its type: if the reason is its own after all, it is not in their way.
            until = None if pause is None else at + timedelta(seconds=pause)
            waits = postpone(journal, record.key, reason=reason, at=at, until=until) is not None
            now = journal.find(record.key)
            return late, waits, now is not None and now.attempt == record.attempt

        try:
            late, is_written, is_unsent = await self._store.decide(put_off, self._utcnow)
            warn_late(late, self._whose)
            if not is_written:  # it was taken out of the queue, held, or sent: by someone else, or now
                return is_unsent
            logger.info("queued payment %r%s waits: %s", record.key, self._whose, error)
        except StoreError:
            is_own, is_written = error.outcome == "unknown", False
        if not is_own:
            self._block(record.type, error)
            if is_written:
                await self._show()
        return is_written

    def _block(self, kind: TransactionType, reason: MobileMoneyError | str) -> None:
        """Send none of a type for a while; of several that were on their way, the first begins the pause."""
        now, is_first = anyio.current_time(), kind not in self._obstacles
        if self._obstacles.blocks(kind, now):
            return
        pause = self._obstacles.add(kind, str(reason), now)
        if isinstance(reason, StoreError):
            warn_of_store(f"no {kind} can be sent", reason)
        else:
            said = "no %s%s can be sent, the dispatcher pauses for %.0f s: %s"
            logger.warning(said, kind, self._whose, pause, reason)
        if is_first:
            emit(self._on_event, DispatcherPaused(reason=str(reason)))

    async def _unblock(self, kind: TransactionType) -> None:
        if self._obstacles.pop(kind, None) or (self._pause.until is not None and not self._obstacles):
            await self._show()

    async def _show(self) -> None:
        """Let other processes show why nothing is sent for a while."""
        pause = self._obstacles.as_pause(anyio.current_time(), self._utcnow())
        try:
            await self._store.write(lambda journal: save_pause(journal, pause), share_key="")
            self._pause = self._pause if self._pause.lasts else pause
        except StoreError as exc:
            warn_of_store("other dispatchers do not show this one's pause", exc)

    def _stir(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


async def until_answered(dispatcher: Dispatcher) -> None:
    """Wait until a dispatcher is sending nothing."""
    while dispatcher._sending:
        changed = dispatcher._changed
        await changed.wait()
