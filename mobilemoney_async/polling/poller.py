"""The poller: one task group that follows any number of payments on what is left of the request limit.

Who owns what: the plan knows every payment and decides; `Poller` waits for the limiter, makes the calls and hands out
what came of them. A payment's ending is always a value. A fault on the way delays and loses nothing; only closing the
client under the poller, which cannot be mended by waiting, ends the group with an error. Where processes share a store,
a `Member` stands between the poller and its plan: only one of them asks then.
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
import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, LIST_TRANSACTIONS, Priority
from mobilemoney_async.contract.limits import PAGE_SIZE_MAX, Schedule
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.errors import (
    InvalidRequest,
    InvalidTransactionId,
    MobileMoneyError,
    StoreError,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.polling.granted import granted
from mobilemoney_async.polling.member import Member
from mobilemoney_async.polling.outcomes import Outcome, Outcomes
from mobilemoney_async.polling.pacing import Pacer
from mobilemoney_async.polling.planner import InFlight, Planner
from mobilemoney_async.polling.readable import PageReader
from mobilemoney_async.polling.scoring import Lookup, Page
from mobilemoney_async.polling.sharing import Fleet, News
from mobilemoney_async.polling.stats import PollerStats
from mobilemoney_async.polling.tally import Tally
from mobilemoney_async.polling.waiting import Waiting
from mobilemoney_async.values import refuse, require_identifier, require_seconds

__all__ = ["Poller", "PollerStats"]

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Requests on their way at once: enough to go on while one answer is lost.
_MOST_ON_THE_WAY = 4
# Until the limit is asked for again where the store that keeps it fails, seconds.
_STORE_PAUSE = 1.0


class Poller(anyio.AsyncContextManagerMixin):
    """Follows payments to their final states; made by ``client.poller()``.

    ``async with client.poller() as poller: ...``. Leaving the block ends the following, not the payments. An exception
    of the block leaves it as it is.

    Args:
        pipeline: Makes the calls.
        timeout: How long to follow each payment, seconds, more than 0; None for as long as it takes.
        min_interval: Between two requests of this poller, seconds, at least 0.
        schedule: Between two looks at one payment.
        fleet: Where the pollers of other processes are met, of which one asks for all; None for a poller of its own.
        resume: Whether to track every payment of the store that is not final; with a fleet only.

    Raises:
        InvalidRequest: An argument is not what it accepts.
        StoreError: On entering, with `resume`: the store failed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        timeout: float | None = None,
        min_interval: float = 1.0,
        schedule: Schedule | None = None,
        fleet: Fleet | None = None,
        resume: bool = False,
    ) -> None:
        self._timeout = None if timeout is None else require_seconds("timeout", timeout)
        self._pace = Pacer(require_seconds("min_interval", min_interval, allow_zero=True))
        pauses = Schedule() if schedule is None else schedule
        if not isinstance(pauses, Schedule):
            raise refuse("schedule", "a Schedule", schedule)
        # Faults are waited out by the plan, which may have something better to ask than the same again.
        once = attrs.evolve(pipeline.options, deadline=None, retry=attrs.evolve(pipeline.options.retry, max_attempts=1))
        self._pipeline = attrs.evolve(pipeline, options=once)
        self._list = attrs.evolve(LIST_TRANSACTIONS, read=PageReader())
        self._plan = Planner(pauses)
        if not isinstance(resume, bool):
            raise refuse("resume", "a bool", resume)
        if resume and fleet is None:
            raise InvalidRequest("resume needs a client with a store", argument="resume")
        self._fleet = fleet
        self._resume = resume
        self._member = (
            None
            if fleet is None
            else Member(fleet, self._plan, utcnow=pipeline.utcnow, hand_out=self._hand_out, wake=self._wake)
        )
        # What this poller follows: what it asks about, unless one process asks for all.
        self._followed: Planner | Member = self._plan if self._member is None else self._member
        self._outcomes = Outcomes(lambda: not self._followed)
        self._waiting = Waiting()
        self._changed = anyio.Event()
        self._is_open = self._was_open = self._limit_is_away = False
        self._on_the_way = 0
        self._fault: Exception | None = None
        self._tally = Tally(pipeline.on_event, lambda: self.pending)

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._was_open:
            raise refuse("poller", "a new one: each is used once")
        unfinished = await self._unfinished()
        self._was_open = True
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as group:
                self._begin(group, unfinished)
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
        finally:
            await self._leave()
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
        if not isinstance(payment, Acknowledgement | str):
            raise refuse("payment", "an Acknowledgement or a transaction id", payment)
        transaction_id = require_identifier("payment", payment if isinstance(payment, str) else payment.transaction_id)
        patience = self._timeout if timeout is None else require_seconds("timeout", timeout)
        ended = self._waiting.ended(transaction_id)
        if ended is not None and ended.transaction is not None:
            return
        self._waiting.forget(transaction_id)
        now = anyio.current_time()
        deadline = math.inf if patience is None else now + patience
        if self._followed.track(transaction_id, now, is_new=is_new, deadline=deadline):
            self._tally.tracked(transaction_id)
            self._wake()

    def hint(self, transaction_id: str) -> bool:
        """Say that a payment may have changed: from a callback, whose contents nobody vouches for.

        It is asked about within a second, if the limit allows and hints are not too many. An id that is not followed
        is ignored.

        Returns:
            Whether this poller follows the payment: True also where it is asked about no sooner for the hint.

        Raises:
            InvalidRequest: The id is not one, or the poller is not open.
        """
        self._check_open()
        is_followed = require_identifier("transaction_id", transaction_id) in self._followed
        if self._followed.hint(transaction_id, anyio.current_time()):
            self._wake()
        return is_followed

    # What came of it

    async def wait(self, transaction_id: str) -> Transaction:
        """Wait for a payment's final state; any number of tasks may. An id that is not followed is tracked.

        A payment that was given up or not found raises that at once, until it is tracked again. A cancelled wait
        changes nothing: the payment is followed further.

        Returns:
            The transaction in its final state, whichever that is: look at ``succeeded``.

        Raises:
            WaitTimeout: The payment was given up. Carries the transaction as last seen; its cause is the fault for
                which the service could not be asked lately, if there is one.
            TransactionNotFound: The service does not know it, also after two minutes.
            InvalidTransactionId: The service calls the id malformed.
            InvalidRequest: The id is not one, or the poller was closed.
        """
        self._check_open()
        require_identifier("transaction_id", transaction_id)
        outcome = self._waiting.ended(transaction_id)
        if outcome is None:
            self.track(transaction_id)
            outcome = await self._waiting.wait(transaction_id)
        else:
            await anyio.lowlevel.checkpoint()
        if outcome.error is not None:
            # Each waiter gets its own: raising it changes its traceback.
            raise copy.copy(outcome.error) from outcome.error.__cause__
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
        return len(self._followed)

    @property
    def stats(self) -> PollerStats:
        """How the poller is doing. Look at it inside the event loop."""
        ready_at = self._ready_at()
        is_idle = ready_at == math.inf
        return self._tally.stats(next_request_in=None if is_idle else max(0.0, ready_at - anyio.current_time()))

    def __repr__(self) -> str:
        return f"<Poller: {len(self._followed)} pending>"

    # Inside

    def _check_open(self) -> None:
        if not self._is_open:
            raise refuse("poller", "open: use it inside its `async with`")

    async def _unfinished(self) -> list[str]:
        return await self._fleet.unfinished() if self._fleet is not None and self._resume else []

    def _begin(self, group: anyio.abc.TaskGroup, unfinished: list[str]) -> None:
        self._is_open = True
        self._pipeline.wire.prepare()  # before the first place under the limit is taken
        group.start_soon(self._poll, group)
        group.start_soon(self._give_up)
        if self._member is not None:
            group.start_soon(self._member.run)
            group.start_soon(self._member.listen)
        for transaction_id in unfinished:
            self.track(transaction_id)

    async def _leave(self) -> None:
        if self._member is not None:
            await self._member.leave()

    def _close(self) -> None:
        self._is_open = False
        self._tally.closed()
        self._outcomes.close()
        self._waiting.close()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _sleep_until(self, at: float) -> None:
        """Sleep until a time, or until something changes."""
        with anyio.CancelScope(deadline=at):
            await self._changed.wait()

    def _ready_at(self) -> float:
        if not self._plan or not self._may_ask():
            return math.inf
        queue_at = self._pace.queue_at(anyio.current_time(), self._pipeline.limiter.usage())
        return max(self._plan.ready_at(), queue_at)

    def _may_ask(self) -> bool:
        return self._member is None or self._member.may_ask(anyio.current_time())

    async def _poll(self, group: anyio.abc.TaskGroup) -> None:
        """Ask, whenever there is something to ask, the interval has passed and the limiter lets us."""
        while True:
            at = math.inf if self._on_the_way >= _MOST_ON_THE_WAY else self._ready_at()
            queued_at = anyio.current_time()
            if at > queued_at:
                await self._sleep_until(at)
                continue
            # Before the choice: what is worth asking may be something else when our turn comes.
            if not await self._take_place():
                continue
            now = anyio.current_time()
            if not self._may_ask():
                continue
            if not self._pace.may_send(now):
                self._pace.came_early()
                continue
            self._pace.sent(now, now - queued_at)
            request = self._plan.choose(now)
            if request is not None:
                self._on_the_way += 1
                self._tally.asked(request, now - queued_at)
                group.start_soon(self._ask, self._plan.send(request, now))

    async def _take_place(self) -> bool:
        """Wait for a place under the limit; return False, after a pause, where the store that keeps it fails."""
        try:
            await self._pipeline.limiter.acquire(Priority.POLL)
        except StoreError as exc:
            if not self._limit_is_away:
                logger.warning("following payments waits for the store: %s", exc)
            self._limit_is_away = True
            await anyio.sleep(_STORE_PAUSE)
            return False
        self._limit_is_away = False
        return True

    async def _give_up(self) -> None:
        while True:
            given_up = self._followed.give_up(anyio.current_time())
            for each in given_up:
                assert each.error is not None
                each.error.__cause__ = self._fault
            self._hand_out(given_up)
            await self._sleep_until(self._followed.give_up_at())

    async def _ask(self, asked: InFlight) -> None:
        rows: Sequence[Transaction] = ()
        try:
            endings, rows = await self._answer(asked)
            self._fault = None
        except InvalidRequest:
            raise  # the client was closed
        except Exception as exc:  # noqa: BLE001 (a caller's own token source may raise anything)
            if isinstance(exc, TransactionNotFound | InvalidTransactionId) and isinstance(asked.request, Lookup):
                endings = self._plan.refuse(asked, exc, anyio.current_time())
            else:
                self._fail(asked, exc)
                return
        finally:
            self._on_the_way -= 1
            self._wake()
        if self._member is None:
            self._hand_out(endings)
        else:
            self._member.settle(endings, rows)

    def _fail(self, asked: InFlight, exc: Exception) -> None:
        what = exc if isinstance(exc, MobileMoneyError) else type(exc).__name__
        logger.warning("following payments goes on after: %s", what)
        self._fault = exc.with_traceback(None)
        self._tally.failed()
        now = anyio.current_time()
        self._plan.fail(asked, now, is_unreadable=isinstance(exc, UnexpectedResponse))
        if self._member is not None:
            self._member.failed(now)

    async def _answer(self, asked: InFlight) -> tuple[list[News], Sequence[Transaction]]:
        pipeline = attrs.evolve(self._pipeline, limiter=granted(self._pipeline.limiter))
        self._tally.sent(asked.request)
        match asked.request:
            case Page(number):
                query = {"page": number, "limit": PAGE_SIZE_MAX}
                page = await pipeline.call(self._list, query=query, lane=Priority.POLL)
                endings = self._plan.take_page(asked, page, anyio.current_time())
                return endings, page.transactions
            case Lookup(transaction_id):
                identifiers = {"transaction_id": transaction_id}
                found = await pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.POLL)
                row = found.transaction
                return self._plan.take_transaction(asked, row, anyio.current_time()), [row]

    def _hand_out(self, endings: list[News]) -> None:
        for ending in endings:
            outcome = Outcome(transaction_id=ending.transaction_id, transaction=ending.transaction, error=ending.error)
            self._tally.ended(ending)
            self._waiting.end(outcome)
            self._outcomes.add(outcome)
