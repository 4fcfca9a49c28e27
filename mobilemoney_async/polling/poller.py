"""The poller: one task group that follows any number of payments on what is left of the request limit.

Who owns what: the plan knows every payment and decides; `Poller` waits for the limiter, makes the calls and hands out
what came of them. A payment's ending is always a value. A fault on the way delays and loses nothing; only closing the
client under the poller, which cannot be mended by waiting, ends the group with an error.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.abc
import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, LIST_TRANSACTIONS, Priority
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX, Schedule
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.errors import (
    InvalidRequest,
    InvalidTransactionId,
    MobileMoneyError,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.polling.asking import Asked, ById, Ending, Page
from mobilemoney_async.polling.granted import granted
from mobilemoney_async.polling.outcomes import UNREAD, Outcome, Outcomes
from mobilemoney_async.polling.pace import Pace
from mobilemoney_async.polling.plan import Plan
from mobilemoney_async.values import refuse, require_identifier, require_seconds

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Requests on their way at once: enough to go on while one answer is lost.
_MOST_ON_THE_WAY = 4
# Of how many endings the lag is averaged.
_LAGS = 50


@attrs.frozen(kw_only=True)
class PollerStats:
    """How a poller is doing.

    Attributes:
        tracked: Payments ever tracked.
        pending: Payments followed now.
        final: Payments whose final state was seen.
        unresolved: Payments that ended without one: given up, not found, malformed id.
        pages: Pages asked for.
        lookups: Lookups by id.
        faults: Requests among them that failed for a reason that says nothing about a payment.
        mean_lag: How late the latest final states were seen, an estimate in seconds; None before the first.
        next_request_in: Seconds until there is something to ask, 0 for now, None for never. The rate limit may make
            it later.
    """

    tracked: int
    pending: int
    final: int
    unresolved: int
    pages: int
    lookups: int
    faults: int
    mean_lag: float | None
    next_request_in: float | None

    @property
    def requests(self) -> int:
        """Requests in all."""
        return self.pages + self.lookups


class _Waiter:
    """Those who wait for one payment."""

    __slots__ = ("ended", "number", "outcome")

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.outcome: Outcome | None = None
        self.number = 0


class Poller(anyio.AsyncContextManagerMixin):
    """Follows payments to their final states; made by ``client.poller()``.

    ``async with client.poller() as poller: ...``. Leaving the block ends the following, not the payments. An exception
    of the block leaves it as it is.

    Args:
        pipeline: Makes the calls.
        timeout: How long to follow each payment, seconds, more than 0; None for as long as it takes.
        min_interval: Between two requests of this poller, seconds, at least 0.
        schedule: Between two looks at one payment.

    Raises:
        InvalidRequest: An argument is not what it accepts.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        timeout: float | None = None,
        min_interval: float = 1.0,
        schedule: Schedule | None = None,
    ) -> None:
        self._timeout = None if timeout is None else require_seconds("timeout", timeout)
        self._pace = Pace(require_seconds("min_interval", min_interval, allow_zero=True))
        pauses = Schedule() if schedule is None else schedule
        if not isinstance(pauses, Schedule):
            raise refuse("schedule", "a Schedule")
        # Faults are waited out by the plan, which may have something better to ask than the same again.
        once = attrs.evolve(pipeline.options, deadline=None, retry=attrs.evolve(pipeline.options.retry, max_attempts=1))
        self._pipeline = attrs.evolve(pipeline, options=once)
        self._plan = Plan(pauses)
        self._outcomes = Outcomes(lambda: not self._plan)
        self._ended: OrderedDict[str, Outcome] = OrderedDict()
        self._waiters: dict[str, _Waiter] = {}
        self._changed = anyio.Event()
        self._is_open = self._was_open = False
        self._on_the_way = 0
        self._tracked = self._final = self._unresolved = self._pages = self._lookups = self._faults = 0
        self._lag: float | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._was_open:
            raise refuse("poller", "one that was not used before")
        self._was_open = True
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as group:
                self._is_open = True
                group.start_soon(self._poll, group)
                group.start_soon(self._give_up)
                try:
                    yield self
                except (GeneratorExit, anyio.get_cancelled_exc_class()):
                    raise
                except BaseException as exc:  # noqa: BLE001 (raised again past the group, which would wrap it)
                    failure = exc
                finally:
                    self._close()
                    group.cancel_scope.cancel()
        except BaseExceptionGroup as exc:
            if failure is not None:
                logger.exception("the poller failed as well")
            elif len(exc.exceptions) == 1:
                failure = exc.exceptions[0]
            else:
                raise
        if failure is not None:
            raise failure

    # What to follow

    def track(self, payment: Acknowledgement | str, *, timeout: float | None = None) -> None:
        """Follow a payment until its final state. One that is followed already, or has just ended, is left as it is.

        A payment that was given up or not found may be tracked again.

        Args:
            payment: The acknowledgement of a create, or a transaction id. Of an acknowledgement the poller takes the
                payment to be created just now: its first look is due after a second. An id may be of any age.
            timeout: Give it up after so many seconds, more than 0; the poller's own by default.

        Raises:
            InvalidRequest: An argument is not what it accepts, or the poller is not open.
        """
        self._check_open()
        is_new = isinstance(payment, Acknowledgement)
        transaction_id = require_identifier(
            "payment", payment.transaction_id if isinstance(payment, Acknowledgement) else payment
        )
        patience = self._timeout if timeout is None else require_seconds("timeout", timeout)
        ended = self._ended.get(transaction_id)
        if ended is not None and ended.transaction is not None:
            return
        self._ended.pop(transaction_id, None)
        now = anyio.current_time()
        deadline = math.inf if patience is None else now + patience
        if self._plan.track(transaction_id, now, is_new=is_new, deadline=deadline):
            self._tracked += 1
            self._wake()

    def hint(self, transaction_id: str) -> None:
        """Say that a payment may have changed: from a callback, whose contents nobody vouches for.

        It is asked about within a second, if the limit allows and hints are not too many. An id that is not followed
        is ignored.

        Raises:
            InvalidRequest: The id is not one, or the poller is not open.
        """
        self._check_open()
        if self._plan.hint(require_identifier("transaction_id", transaction_id), anyio.current_time()):
            self._wake()

    # What came of it

    async def wait(self, transaction_id: str) -> Transaction:
        """Wait for a payment's final state; any number of tasks may. An id that is not followed is tracked.

        A cancelled wait changes nothing: the payment is followed further.

        Returns:
            The transaction in its final state, whichever that is: look at ``succeeded``.

        Raises:
            WaitTimeout: The payment was given up. Carries the transaction as last seen.
            TransactionNotFound: The service does not know it, also after two minutes.
            InvalidTransactionId: The service calls the id malformed.
            InvalidRequest: The id is not one, or the poller was closed.
        """
        self._check_open()
        require_identifier("transaction_id", transaction_id)
        outcome = self._ended.get(transaction_id)
        if outcome is None:
            outcome = await self._wait(transaction_id)
        else:
            await anyio.lowlevel.checkpoint()
        if outcome.error is not None:
            raise copy.copy(outcome.error)  # each waiter gets its own: raising it changes its traceback
        assert outcome.transaction is not None
        return outcome.transaction

    def outcomes(self, *, forever: bool = False) -> AsyncIterator[Outcome]:
        """Return an iterator over the outcomes as they come, each once.

        It begins with the first outcome that no other iterator has given to anybody; where nobody reads, the latest
        10,000 are kept. Several iterators that are made at the same time get the same outcomes each. All end when the
        poller is closed.

        Args:
            forever: Whether to wait for further payments when nothing is pending, instead of ending.

        Raises:
            InvalidRequest: The poller is not open.
        """
        self._check_open()
        return self._outcomes.read(forever=forever)

    @property
    def pending(self) -> int:
        """How many payments are followed now."""
        return len(self._plan)

    @property
    def stats(self) -> PollerStats:
        """How the poller is doing. Look at it inside the event loop."""
        ready_at = self._ready_at()
        return PollerStats(
            tracked=self._tracked,
            pending=len(self._plan),
            final=self._final,
            unresolved=self._unresolved,
            pages=self._pages,
            lookups=self._lookups,
            faults=self._faults,
            mean_lag=self._lag,
            next_request_in=None if ready_at == math.inf else max(0.0, ready_at - anyio.current_time()),
        )

    def __repr__(self) -> str:
        return f"<Poller: {len(self._plan)} pending>"

    # Inside

    def _check_open(self) -> None:
        if not self._is_open:
            raise refuse("poller", "one that is open: use it inside its `async with`")

    def _close(self) -> None:
        self._is_open = False
        self._outcomes.close()
        for waiter in self._waiters.values():
            waiter.ended.set()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _sleep_until(self, at: float) -> None:
        """Sleep until a time, or until something changes."""
        with anyio.CancelScope(deadline=at):
            await self._changed.wait()

    async def _wait(self, transaction_id: str) -> Outcome:
        self.track(transaction_id)
        waiter = self._waiters.setdefault(transaction_id, _Waiter())
        waiter.number += 1
        try:
            await waiter.ended.wait()
        finally:
            waiter.number -= 1
            if not waiter.number and self._waiters.get(transaction_id) is waiter:
                del self._waiters[transaction_id]
        if waiter.outcome is None:
            raise refuse("poller", "one that stays open until the payment has ended")
        return waiter.outcome

    def _ready_at(self) -> float:
        if not self._plan:
            return math.inf
        queue_at = self._pace.queue_at(
            anyio.current_time(), self._pipeline.limiter.usage(), is_urgent=self._plan.is_urgent
        )
        return max(self._plan.ready_at(), queue_at)

    async def _poll(self, group: anyio.abc.TaskGroup) -> None:
        """Ask, whenever there is something to ask, the interval has passed and the limiter lets us."""
        while True:
            at = math.inf if self._on_the_way >= _MOST_ON_THE_WAY else self._ready_at()
            queued_at = anyio.current_time()
            if at > queued_at:
                await self._sleep_until(at)
                continue
            # Before the choice: what is worth asking may be something else when our turn comes.
            await self._pipeline.limiter.acquire(Priority.POLL)
            now = anyio.current_time()
            if not self._pace.may_send(now):
                self._pace.came_early()
                continue
            self._pace.sent(now, now - queued_at)
            request = self._plan.choose(now)
            if request is not None:
                self._on_the_way += 1
                group.start_soon(self._ask, self._plan.ask(request, now))

    async def _give_up(self) -> None:
        while True:
            self._hand_out(self._plan.give_up(anyio.current_time()))
            await self._sleep_until(self._plan.give_up_at())

    async def _ask(self, asked: Asked) -> None:
        try:
            endings = await self._answer(asked)
        except InvalidRequest:
            raise  # the client was closed
        except Exception as exc:  # noqa: BLE001 (a caller's own token source may raise anything)
            if isinstance(exc, TransactionNotFound | InvalidTransactionId) and isinstance(asked.request, ById):
                endings = self._plan.refuse(asked, exc, anyio.current_time())
            else:
                what = exc if isinstance(exc, MobileMoneyError) else type(exc).__name__
                logger.warning("following payments goes on after: %s", what)
                self._faults += 1
                is_unreadable = isinstance(exc, UnexpectedResponse)
                self._plan.fail(asked, anyio.current_time(), is_unreadable=is_unreadable)
                endings = []
        finally:
            self._on_the_way -= 1
        self._hand_out(endings)
        self._wake()

    async def _answer(self, asked: Asked) -> list[Ending]:
        pipeline = attrs.evolve(self._pipeline, limiter=granted(self._pipeline.limiter))
        match asked.request:
            case Page(number):
                self._pages += 1
                query = {"page": number, "limit": PAGE_SIZE_MAX}
                page = await pipeline.call(LIST_TRANSACTIONS, query=query, lane=Priority.POLL)
                return self._plan.take_page(asked, page, anyio.current_time(), pipeline.utcnow())
            case ById(transaction_id):
                self._lookups += 1
                identifiers = {"transaction_id": transaction_id}
                found = await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.POLL)
                return self._plan.take_transaction(asked, found.transaction, anyio.current_time(), pipeline.utcnow())

    def _hand_out(self, endings: list[Ending]) -> None:
        for ending in endings:
            outcome = Outcome(transaction_id=ending.transaction_id, transaction=ending.transaction, error=ending.error)
            self._count(ending)
            self._ended[outcome.transaction_id] = outcome
            if len(self._ended) > UNREAD:
                self._ended.popitem(last=False)
            waiter = self._waiters.pop(outcome.transaction_id, None)
            if waiter is not None:
                waiter.outcome = outcome
                waiter.ended.set()
            self._outcomes.add(outcome)

    def _count(self, ending: Ending) -> None:
        if ending.error is None:
            self._final += 1
        else:
            self._unresolved += 1
        if ending.lag is not None:
            self._lag = ending.lag if self._lag is None else self._lag + (ending.lag - self._lag) / _LAGS
