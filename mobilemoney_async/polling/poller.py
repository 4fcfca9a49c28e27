"""The poller: one task group that tracks any number of payments on the part of the request limit that others leave.

The planner knows every payment and decides; `Poller` waits for the limiter, makes the requests and hands the outcomes
out. An outcome is always a value. A fault delays and loses nothing; only closing the client under the poller, which
waiting cannot fix, ends the group with an error. While processes share a store, a `Coordinator` stands between the
poller and its planner: only one of them makes requests then.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.abc

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.limits import UNSEEN_GRACE, Schedule
from mobilemoney_async.contract.models import Acknowledgement, Transaction, id_of
from mobilemoney_async.errors import (
    InvalidRequest,
    InvalidTransactionId,
    MobileMoneyError,
    StoreError,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.polling.coordinator import Coordinator
from mobilemoney_async.polling.outcomes import Metrics, Outcome, Outcomes, PollerStats
from mobilemoney_async.polling.pacing import Pacer
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.requests import Requester
from mobilemoney_async.polling.scoring import InFlight, SingleLookup
from mobilemoney_async.polling.sharing import PollerChannel, StatusUpdate, warn_of_store
from mobilemoney_async.tasks import Signal, task_group
from mobilemoney_async.values import refuse, require_identifier, require_seconds

__all__ = ["Poller", "PollerStats"]

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Requests in flight at once: enough to go on while one answer is lost.
_MOST_IN_FLIGHT = 4
# Seconds until the store is read again after it failed.
_FAULT_PAUSE = 5.0
# Seconds between two looks for payments of the store that the service did not know.
_LOOK_AGAIN = 600.0


class Poller(anyio.AsyncContextManagerMixin):
    """Tracker of payments until their final states; made by ``client.poller()``.

    ``async with client.poller() as poller: ...``. Leaving the block ends the tracking, not the payments. An exception
    of the block leaves it as it is.

    Args:
        pipeline: Makes the calls.
        timeout: Time after which a payment is given up, seconds, more than 0; None for never.
        min_interval: Shortest time between two requests of this poller, seconds, at least 0.
        schedule: Pauses between two looks at one payment.
        channel: The connection to the pollers of other processes, of which one makes the requests for all; None for a
            poller on its own.
        resume: Whether to track every payment of the store that is not final, now and later; with a channel only.

    Raises:
        InvalidRequest: An argument is not what it accepts.
        StoreError: On entering: the store's account is another merchant's, or, with `resume`, the store failed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        timeout: float | None = None,
        min_interval: float = 1.0,
        schedule: Schedule | None = None,
        channel: PollerChannel | None = None,
        resume: bool = False,
    ) -> None:
        self._timeout = None if timeout is None else require_seconds("timeout", timeout)
        self._pacer = Pacer(require_seconds("min_interval", min_interval, allow_zero=True))
        pauses = Schedule() if schedule is None else schedule
        if not isinstance(pauses, Schedule):
            raise refuse("schedule", "a Schedule", schedule)
        if not isinstance(resume, bool):
            raise refuse("resume", "a bool", resume)
        if resume and channel is None:
            raise InvalidRequest("resume needs a client with a store", argument="resume")
        self._pipeline = pipeline
        self._requester = Requester(pipeline)
        self._planner = Planner(pauses)
        self._channel, self._resume = channel, resume
        self._unknown: set[str] = set()  # without a true answer since the last look for them
        self._changed = Signal()
        self._coordinator: Coordinator | None = None
        if channel is not None:
            wake, utcnow = self._changed.send, pipeline.utcnow
            self._coordinator = Coordinator(
                channel=channel, planner=self._planner, utcnow=utcnow, hand_out=self._hand_out, wake=wake
            )
        # This poller's payments. The planner may have those of other processes too, or none.
        self._tracked: Planner | Coordinator = self._planner if self._coordinator is None else self._coordinator
        self._outcomes = Outcomes(lambda: not self._tracked)
        self._metrics = Metrics(pipeline.on_event, lambda: self.pending)
        self._is_open = self._was_open = False
        self._in_flight = 0
        self._fault: Exception | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._was_open:
            raise refuse("poller", "a new one: each is used once")
        self._pipeline.wire.check_open()
        unfinished = [] if self._channel is None else await self._channel.join(resume=self._resume)
        self._was_open = True
        try:
            async with self._pipeline.wire.in_use(), task_group() as group:
                self._begin(group, unfinished)
                try:
                    yield self
                finally:
                    # First the state, then the tasks: a waiter that wakes finds the poller closed.
                    self._close()
        finally:
            # The tasks have ended: no sync of the coordinator runs beside this one.
            if self._coordinator is not None:
                await self._coordinator.leave()

    # Tracking

    def track(self, payment: Acknowledgement | Transaction | str, *, timeout: float | None = None) -> None:
        """Track a payment until its final state. One that is tracked already, or has just ended, is left as it is.

        A payment that was given up or not found may be tracked again.

        Args:
            payment: The acknowledgement of a create, a transaction, or its id. An acknowledgement counts as new: its
                first look is due after a second. An id may be old.
            timeout: Give up after so many seconds, more than 0; the poller's own by default.

        Raises:
            InvalidRequest: An argument is not what it accepts, or the poller is not open.
        """
        self._check_open()
        is_new = isinstance(payment, Acknowledgement)
        transaction_id = id_of("payment", payment)
        patience = self._timeout if timeout is None else require_seconds("timeout", timeout)
        self._track(transaction_id, patience, is_new=is_new)

    def _track(
        self, transaction_id: str, patience: float | None, *, is_new: bool, tracked_at: float | None = None
    ) -> None:
        ended = self._outcomes.latest(transaction_id)
        if ended is not None and ended.transaction is not None:
            return
        self._outcomes.forget(transaction_id)
        now = anyio.current_time()
        deadline = math.inf if patience is None else now + patience
        if self._tracked.track(transaction_id, now, is_new=is_new, deadline=deadline, tracked_at=tracked_at):
            self._metrics.tracked(transaction_id)
            self._changed.send()

    def hint(self, transaction_id: str) -> bool:
        """Note that a payment may have changed, for example from a callback, which is not trusted.

        The poller's next requests show it, within a second if the limit allows and hints are not too many. An id that
        is not tracked is ignored.

        Returns:
            Whether this poller tracks the payment, also if the hint makes no request come sooner.

        Raises:
            InvalidRequest: The id is not one, or the poller is not open.
        """
        self._check_open()
        is_tracked = require_identifier("transaction_id", transaction_id) in self._tracked
        if self._tracked.hint(transaction_id, anyio.current_time()):
            self._changed.send()
        return is_tracked

    # Outcomes

    async def wait(self, transaction_id: str | Acknowledgement | Transaction) -> Transaction:
        """Wait for a payment's final state; any number of tasks may. One that is not tracked yet is tracked.

        A payment that was given up or not found raises that at once, until it is tracked again. A cancelled wait
        changes nothing: the payment stays tracked.

        Returns:
            The transaction in its final state, whichever that is: look at ``succeeded``.

        Raises:
            WaitTimeout: The payment was given up. Carries the transaction as last seen; its cause is the fault that
                kept the latest request from an answer, if there is one.
            TransactionNotFound: The service does not know it, also after two minutes.
            InvalidTransactionId: The service calls the id malformed.
            StoreError: Its final state contradicts its record in the store, which stays open.
            InvalidRequest: The id is not one, or the poller was closed.
        """
        self._check_open()
        key = id_of("transaction_id", transaction_id)
        outcome = self._outcomes.latest(key)
        if outcome is None:
            self.track(transaction_id)
            outcome = await self._outcomes.wait(key)
        else:
            await anyio.lowlevel.checkpoint()
        if outcome.error is not None:
            # Each waiter gets its own: raising it changes its traceback.
            raise copy.copy(outcome.error) from outcome.error.__cause__
        assert outcome.transaction is not None
        return outcome.transaction

    def outcomes(self, *, forever: bool = False) -> AsyncIterator[Outcome]:
        """Return an iterator over the outcomes as they come, each once.

        It begins with the first outcome that no other iterator has returned; unread, the latest 10,000 are kept.
        Several iterators that are made at the same time get the same outcomes each. All end when the poller is closed.

        Args:
            forever: Whether to wait for further payments when nothing is pending, instead of ending.

        Raises:
            InvalidRequest: The poller is not open.
        """
        self._check_open()
        return self._outcomes.read(forever=forever)

    @property
    def pending(self) -> int:
        """The number of tracked payments."""
        return len(self._tracked)

    @property
    def stats(self) -> PollerStats:
        """Metrics of the poller. Read them inside the event loop."""
        ready_at = self._ready_at()
        is_idle = ready_at == math.inf
        return self._metrics.stats(next_request_in=None if is_idle else max(0.0, ready_at - anyio.current_time()))

    def __repr__(self) -> str:
        return f"<Poller: {len(self._tracked)} pending>"

    # Inside

    def _check_open(self) -> None:
        if not self._is_open:
            raise refuse("poller", "open: use it inside its `async with`")

    def _begin(self, group: anyio.abc.TaskGroup, unfinished: list[str]) -> None:
        self._is_open = True
        self._pipeline.wire.prepare()  # before the first slot is taken
        group.start_soon(self._poll, group)
        group.start_soon(self._give_up)
        group.start_soon(self._pipeline.stay_in_contact)
        if self._coordinator is not None:
            group.start_soon(self._coordinator.run)
        for transaction_id in unfinished:
            self.track(transaction_id)
        if self._channel is not None and self._resume:
            group.start_soon(self._follow_store, self._channel)
            group.start_soon(self._look_again, self._channel)

    async def _follow_store(self, channel: PollerChannel) -> None:
        """Track each payment of the store that comes to exist, whichever process has sent it."""
        while True:
            try:
                arrivals = await channel.next_arrivals()
            except StoreError as exc:
                warn_of_store("new payments of the store are tracked later", exc)
                await anyio.sleep(_FAULT_PAUSE)
            else:
                for transaction_id in arrivals:
                    self._track(transaction_id, self._timeout, is_new=True)

    async def _look_again(self, channel: PollerChannel) -> None:
        """Look payments of the store up again that the service did not know, or showed otherwise: it may be late."""
        while True:
            await anyio.sleep(_LOOK_AGAIN)
            if not self._unknown:
                continue
            try:
                pending = await channel.unfinished()
            except StoreError as exc:
                warn_of_store("payments that the service did not know are tracked later", exc)
                continue
            unknown, self._unknown = self._unknown.intersection(pending), set()
            if unknown:
                said = "the service does not know %d payments%s, or not as made: each is looked up every ten minutes"
                logger.warning(said, len(unknown), channel.whose)
            # They have had their grace period: one look each.
            tracked_at = anyio.current_time() - UNSEEN_GRACE
            for transaction_id in sorted(unknown):
                self._track(transaction_id, self._timeout, is_new=False, tracked_at=tracked_at)

    def _close(self) -> None:
        self._is_open = False
        self._metrics.closed()
        self._outcomes.close()

    def _ready_at(self) -> float:
        if not self._planner or not self._may_send():
            return math.inf
        queue_at = self._pacer.queue_at(anyio.current_time(), self._pipeline.limiter.usage())
        return max(self._planner.ready_at(), queue_at)

    def _may_send(self) -> bool:
        return self._coordinator is None or self._coordinator.may_send(anyio.current_time())

    async def _poll(self, group: anyio.abc.TaskGroup) -> None:
        """Make a request whenever there is one to make, the interval has passed and the limiter grants a slot."""
        while True:
            at = math.inf if self._in_flight >= _MOST_IN_FLIGHT else self._ready_at()
            queued_at = anyio.current_time()
            if at > queued_at:
                await self._changed.wait(until=at)
                continue
            # The slot comes before the choice. During this wait answers arrive, payments come and go, and the lease may
            # be lost: everything is checked again. From here to `Planner.send` there is no await.
            if not await self._requester.reserve():
                continue
            now = anyio.current_time()
            if not self._may_send():
                continue
            if not self._pacer.may_send(now):
                self._pacer.came_early()
                continue
            self._pacer.sent(now, now - queued_at)
            request = self._planner.choose(now)
            if request is not None:
                self._in_flight += 1
                self._metrics.sent(request, now - queued_at)
                group.start_soon(self._answer, self._planner.send(request, now))

    async def _give_up(self) -> None:
        while True:
            given_up = self._tracked.give_up(anyio.current_time())
            for each in given_up:
                assert each.error is not None
                each.error.__cause__ = self._fault
            self._hand_out(given_up)
            await self._changed.wait(until=self._tracked.give_up_at())

    async def _answer(self, sent: InFlight) -> None:
        """Send a request, and take its answer or its fault. Up to four of these run at once."""
        rows: Sequence[Transaction] = ()
        try:
            answer = await self._requester.send(sent.request)
            now, our_time = anyio.current_time(), self._pipeline.utcnow().timestamp()
            if isinstance(answer, Transaction):
                rows = [answer]
                endings = self._planner.take_transaction(sent, answer, now, our_time=our_time)
            else:
                rows = answer.transactions
                endings = self._planner.take_page(sent, answer, now, our_time=our_time)
            self._fault = None
        except InvalidRequest:
            raise  # the client was closed
        except Exception as exc:  # noqa: BLE001 (a caller's own token source may raise anything)
            if isinstance(exc, TransactionNotFound | InvalidTransactionId) and isinstance(sent.request, SingleLookup):
                endings = self._planner.refuse(sent, exc, anyio.current_time())
            else:
                self._fail(sent, exc)
                return
        finally:
            self._in_flight -= 1
            self._changed.send()
        if self._coordinator is None:
            self._hand_out(endings)
        else:
            self._coordinator.settle(endings, rows)

    def _fail(self, sent: InFlight, exc: Exception) -> None:
        if isinstance(exc, StoreError):
            warn_of_store("the poller waits", exc)
        else:
            shown = exc if isinstance(exc, MobileMoneyError) else type(exc).__name__
            whose = "" if self._channel is None else self._channel.whose
            logger.warning("the poller%s goes on after: %s", whose, shown)
        self._fault = exc.with_traceback(None)
        self._metrics.failed()
        now = anyio.current_time()
        self._planner.fail(sent, now, is_unreadable=isinstance(exc, UnexpectedResponse))
        if self._coordinator is not None:
            self._coordinator.failed(now)

    def _hand_out(self, endings: list[StatusUpdate]) -> None:
        for update in endings:
            if self._resume and isinstance(update.error, TransactionNotFound | InvalidTransactionId | StoreError):
                self._unknown.add(update.transaction_id)
            # First: a handler of the event may track the payment again, which forgets this outcome.
            self._outcomes.add(
                Outcome(transaction_id=update.transaction_id, transaction=update.transaction, error=update.error)
            )
            self._metrics.ended(update)
