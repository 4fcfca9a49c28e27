"""Payments of a merchant's backend, without a web framework: one object for the life of a process.

Creates run in the backend's own tasks, not in the tasks of HTTP requests, so that a customer who closes the page does
not leave a payment unknown. The poller reports final states; a loop here reconciles unknown payments.
"""

from __future__ import annotations

import copy
import logging
import math
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Self, TypeAlias

import anyio
import anyio.abc
import attrs

from mobilemoney_async.callbacks import CallbackReceiver, Verify
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contrib.orders import OrderState, OrderStatus, TooManyOrders, ended, read_record
from mobilemoney_async.errors import IdempotencyConflict, MobileMoneyError, OutcomeUnknown, StoreError
from mobilemoney_async.payments.records import PaymentRecord, PaymentState
from mobilemoney_async.resources.creates import Collections, Disbursements
from mobilemoney_async.values import Secret, refuse, require_integer, require_seconds, require_text

if TYPE_CHECKING:
    from mobilemoney_async.polling.poller import Poller

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Orders in the cache at most; others are read from the store again.
_REMEMBERED = 20_000
# Seconds between two reads of a watched order that this process does not track.
_RECHECK = 2.0
# Seconds for which a status read from the store counts, for an order that this process does not track.
_FRESH = 1.0
# The same after the poller gave the payment up.
_GIVEN_UP = 60.0
# Seconds until unknown payments are reconciled again, the first time.
_FIRST_LOOK = 2.0


_Request: TypeAlias = tuple[Collections | Disbursements, str, int | Decimal | str]
"""Payment that the caller asks for: the create, phone number and amount."""


@attrs.define(eq=False)
class _Attempt:
    """One create in progress, with an event for the tasks that wait for it."""

    request: _Request = attrs.field(repr=False)
    done: anyio.Event = attrs.field(factory=anyio.Event)
    error: Exception | None = None


@attrs.frozen
class _Known:
    """Latest status of an order."""

    status: OrderStatus
    # Until when it counts, monotonic seconds. Infinite for a final one, and while this process creates or tracks.
    until: float = math.inf
    changed_at: datetime | None = None  # of the record that shows it, if it comes from one

    @property
    def is_live(self) -> bool:
        """True if each change of the order arrives here, and the store need not be asked."""
        return self.until == math.inf


class _StatusCache:
    """Latest order statuses, with a signal for each change. The store has every order; the cache saves queries.

    A writer updates the cache first and sends the signal second; a watcher takes the signal before it reads. So no
    change is missed between the two.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        # A signal is kept as long as a watcher holds it.
        self._signals: weakref.WeakValueDictionary[str, anyio.Event] = weakref.WeakValueDictionary()

    def get(self, order: str) -> _Known | None:
        """Return the latest status of an order, also if it has expired."""
        return self._known.get(order)

    def post(self, known: _Known) -> None:
        """Store an order's status and signal the change."""
        order = known.status.order
        self._known[order] = known
        self._known.move_to_end(order)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self._wake(order)

    def expire(self, order: str) -> None:
        """Make readers and watchers ask the store for an order's status, unless the status is final."""
        known = self._known.get(order)
        if known is not None and not known.status.is_final:
            self._known[order] = attrs.evolve(known, until=-math.inf)
        self._wake(order)

    def signal(self, order: str) -> anyio.Event:
        """Return the signal of the order's next change."""
        return self._signals.setdefault(order, anyio.Event())

    def _wake(self, order: str) -> None:
        if (signal := self._signals.pop(order, None)) is not None:
            signal.set()


@attrs.define(eq=False)
class _Watch:
    """Iterator over the statuses of one order; a class, since an async generator left early would stay open."""

    order: str
    heartbeat: float  # seconds after which the same status is returned again
    cache: _StatusCache
    read: Callable[[str], Awaitable[OrderStatus | None]]  # None if there is no payment; its `StoreError` may pass
    last: OrderStatus | None = None  # the status returned last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OrderStatus:
        if self.last is not None and self.last.is_settled:
            raise StopAsyncIteration
        until = anyio.current_time() + self.heartbeat
        while True:
            signal = self.cache.signal(self.order)  # before the read, so that a change in between is not missed
            try:
                status = await self.read(self.order)
            except StoreError:
                status = self.last or OrderStatus(order=self.order, state=OrderState.FINDING_OUT)
            if status is None:
                raise StopAsyncIteration
            now = anyio.current_time()
            if status != self.last or now >= until:
                self.last = status
                return status
            known = self.cache.get(self.order)
            recheck_at = math.inf if known is not None and known.is_live else now + _RECHECK
            with anyio.CancelScope(deadline=min(until, recheck_at)):
                await signal.wait()


class Backend(anyio.AsyncContextManagerMixin):
    """Client, poller and callbacks of one process, with the orders that it pays for.

    ``async with client, Backend(client) as backend: ...``. Entering resumes the store's open payments. Leaving waits
    for creates in progress, `drain` seconds at most; those cut short are reconciled after the next start.

    Attributes:
        client: The client.
        poller: The poller of the payments; open inside the block.
        callbacks: The receiver of the service's callbacks; open inside the block.

    Args:
        client: With a store. Not closed by the backend.
        verify: As for `CallbackReceiver`.
        secret: As for `CallbackReceiver`.
        on_settled: Awaited when an order's payment reaches its final state while this process tracks it. Once in each
            process that does; not at all if the process dies before: read ``client.payments`` at the start.
        min_interval: As for `AsyncClient.poller`, seconds.
        reconcile_every: Between two reconciliations of unknown payments, seconds, more than 0; the first come sooner.
        drain: How long to wait for creates at the end, seconds, at least 0.
        most_waiting: How many creates may be in progress, at least 1. Sixty a minute are sent.

    Raises:
        InvalidRequest: An argument is not what it accepts, or the client has no store.
        StoreError: On entering: the store cannot be reached.
    """

    client: AsyncClient
    poller: Poller
    callbacks: CallbackReceiver

    def __init__(
        self,
        client: AsyncClient,
        *,
        verify: Verify | None = None,
        secret: str | Secret | None = None,
        on_settled: Callable[[OrderStatus], Awaitable[None]] | None = None,
        min_interval: float = 1.0,
        reconcile_every: float = 60.0,
        drain: float = 10.0,
        most_waiting: int = 500,
    ) -> None:
        if not isinstance(client, AsyncClient):
            raise refuse("client", "an AsyncClient", client)
        self._payments = client.payments  # refuses a client without a store
        self.client = client
        self.poller = client.poller(min_interval=min_interval)
        self.callbacks = CallbackReceiver(self.poller, verify=verify, secret=secret, find=self._find)
        self._on_settled = on_settled
        self._reconcile_every = require_seconds("reconcile_every", reconcile_every)
        self._drain = require_seconds("drain", drain, allow_zero=True)
        self._most_waiting = require_integer("most_waiting", most_waiting, 1)
        self._attempts: dict[str, _Attempt] = {}
        self._cache = _StatusCache()
        self._tracked: dict[str, OrderStatus] = {}
        self._is_unknown = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with self.poller:
            for record in await self._payments.list(PaymentState.ACKNOWLEDGED):
                self._take(record)
            failure: BaseException | None = None
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._listen)
                tasks.start_soon(self._reconcile)
                try:
                    yield self
                except (GeneratorExit, anyio.get_cancelled_exc_class()):
                    raise
                except BaseException as exc:  # noqa: BLE001 (raised again past the group, which would wrap it)
                    failure = exc
                finally:
                    self._tasks = None
                    with anyio.move_on_after(self._drain, shield=True):
                        for attempt in list(self._attempts.values()):
                            await attempt.done.wait()
                    tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure

    # Paying

    async def collect(
        self, order: str, *, phone_number: str, amount: int | Decimal | str, patience: float = 2.0
    ) -> OrderStatus:
        """Ask a customer to pay for an order, once, and answer soon.

        The create goes on when this returns or is cancelled. Calling it again for the same order joins it, or gives
        the payment that exists.

        Args:
            order: The order's name in your system, at most 200 characters; the payment's idempotency key.
            phone_number: As for ``client.collections.create``.
            amount: As for ``client.collections.create``: yours, never the customer's.
            patience: How long to wait for the service's answer, seconds, at least 0.

        Returns:
            The order's status: ``sending`` if patience ended first.

        Raises:
            TooManyOrders: Too many others are waiting; nothing was sent.
            MobileMoneyError: As of ``client.collections.create``.
        """
        return await self._pay(order, (self.client.collections, phone_number, amount), patience)

    async def disburse(
        self, order: str, *, phone_number: str, amount: int | Decimal | str, patience: float = 2.0
    ) -> OrderStatus:
        """Send money for an order, once, and answer soon; otherwise as `collect`."""
        return await self._pay(order, (self.client.disbursements, phone_number, amount), patience)

    # Knowing

    async def status(self, order: str) -> OrderStatus | None:
        """Return an order's status, or None if it never had a payment.

        Raises:
            InvalidRequest: The name is blank.
            StoreError: The store failed.
        """
        require_text("order", order)
        known = self._cache.get(order)
        if known is None or known.until <= anyio.current_time():
            return await self._read(order)
        await anyio.lowlevel.checkpoint()
        return known.status

    def watch(self, order: str, *, heartbeat: float = 15.0) -> AsyncIterator[OrderStatus]:
        """Return an iterator over an order's statuses: now, after each change, and after each heartbeat.

        It ends with the settled state, and at once for an order without a payment. While the store fails it returns the
        last known status.

        Args:
            order: The order's name.
            heartbeat: Seconds, more than 0, after which the same status comes again.

        Raises:
            InvalidRequest: An argument is not what it accepts.
        """
        return _Watch(require_text("order", order), require_seconds("heartbeat", heartbeat), self._cache, self.status)

    def __repr__(self) -> str:
        return f"<Backend: {len(self._attempts)} being created, {len(self._tracked)} tracked>"

    # Inside

    async def _pay(self, order: str, request: _Request, patience: float) -> OrderStatus:
        require_text("order", order)
        require_seconds("patience", patience, allow_zero=True)
        if self._tasks is None:
            raise refuse("backend", "open: use it inside its `async with`")
        attempt = self._attempts.get(order)
        if attempt is None:
            if len(self._attempts) >= self._most_waiting:
                raise TooManyOrders("too many orders are waiting for the rate limit", idempotency_key=order)
            attempt = self._attempts[order] = _Attempt(request)
            self._cache.expire(order)  # "not made" no longer counts
            self._tasks.start_soon(self._create, order, attempt)
        elif attempt.request != request:
            raise IdempotencyConflict("the order is being paid with another number or amount", idempotency_key=order)
        with anyio.move_on_after(patience):
            await attempt.done.wait()
        if isinstance(attempt.error, MobileMoneyError):
            raise copy.copy(attempt.error) from attempt.error  # each waiter its own: raising it changes its traceback
        if attempt.error is not None:
            raise attempt.error
        return await self.status(order) or OrderStatus(order=order, state=OrderState.SENDING)

    async def _create(self, order: str, attempt: _Attempt) -> None:
        creates, phone_number, amount = attempt.request
        answer: Acknowledgement | None = None
        try:
            before = await self._read(order) or OrderStatus(order=order, state=OrderState.SENDING)
            # Until the create ends, an order that is paid for again shows the status of its last attempt.
            self._cache.post(_Known(before))
            answer = await creates.create(phone_number=phone_number, amount=amount, idempotency_key=order)
            state = OrderState.PENDING
            self._track(OrderStatus(order=order, state=state, amount=answer.amount, reference=answer.reference), answer)
        except MobileMoneyError as exc:
            attempt.error = exc
            if isinstance(exc, OutcomeUnknown):
                self._is_unknown.set()
        except Exception as exc:  # (a caller's own token source may raise anything)
            logger.exception("paying for order %r failed", order)
            attempt.error = exc
        finally:
            # No await from here on: a task that wakes finds the attempt gone, and a new status or none that counts.
            self._attempts.pop(order, None)
            if answer is None or attempt.error is not None:
                self._cache.expire(order)
            attempt.done.set()

    async def _read(self, order: str) -> OrderStatus | None:
        record = await self._payments.get(order)
        if record is not None:
            return self._take(record)
        return OrderStatus(order=order, state=OrderState.SENDING) if order in self._attempts else None

    def _take(self, record: PaymentRecord) -> OrderStatus:
        """Return a record's order status, cache it, and track the payment if it is open. An order does not go back."""
        known = self._cache.get(record.key)
        if known is not None and known.status.is_final:
            return known.status  # the record was read before the final state arrived
        status = read_record(record)
        if status.state is OrderState.NOT_MADE and record.key in self._attempts:
            status = attrs.evolve(status, state=OrderState.SENDING)
        if record.state is PaymentState.ACKNOWLEDGED and record.transaction_id is not None:
            self._track(status, record.transaction_id)
        elif status.is_final:
            self._cache.post(_Known(status))
        elif known is not None and (known.is_live or (known.changed_at and record.changed_at < known.changed_at)):
            return known.status  # reads of the store may overtake each other
        else:
            self._cache.post(_Known(status, anyio.current_time() + _FRESH, record.changed_at))
        return status

    def _track(self, status: OrderStatus, payment: Acknowledgement | str) -> None:
        known = self._cache.get(status.order)
        if known is not None and known.status.is_final:
            return
        transaction_id = payment if isinstance(payment, str) else payment.transaction_id
        if transaction_id not in self._tracked:
            self._tracked[transaction_id] = status
            self.callbacks.track(payment, *filter(None, (status.order, status.reference)))
        self._cache.post(_Known(status))

    async def _listen(self) -> None:
        async for outcome in self.poller.outcomes(forever=True):
            status = self._tracked.pop(outcome.transaction_id, None)
            if status is None:
                continue
            if outcome.transaction is None:
                # Given up, or not found although acknowledged: an operator has to look at it.
                logger.error("order %r: %s", status.order, outcome.error)
                status = attrs.evolve(status, state=OrderState.FINDING_OUT)
                self._cache.post(_Known(status, anyio.current_time() + _GIVEN_UP))
                continue
            status = ended(status, outcome.transaction)
            self._cache.post(_Known(status))
            if self._on_settled is not None and self._tasks is not None:
                self._tasks.start_soon(self._settle, self._on_settled, status)

    async def _settle(self, on_settled: Callable[[OrderStatus], Awaitable[None]], status: OrderStatus) -> None:
        try:
            await on_settled(status)
        except Exception:
            logger.exception("on_settled failed for order %r", status.order)

    async def _reconcile(self) -> None:
        """Reconcile unknown payments: now, soon after one has become unknown, and at intervals."""
        pause = 0.0
        while True:
            with anyio.move_on_after(pause):
                await self._is_unknown.wait()
                await anyio.sleep(_FIRST_LOOK)
            if self._is_unknown.is_set():
                self._is_unknown, pause = anyio.Event(), _FIRST_LOOK
            try:
                for record in await self._payments.reconcile():
                    self._take(record)
            except MobileMoneyError as exc:
                logger.warning("unknown payments are reconciled later: %s", exc)
            except Exception:  # (a caller's own token source may raise anything)
                logger.exception("unknown payments are reconciled later")
            pause = min(self._reconcile_every, max(_FIRST_LOOK, 2 * pause))

    async def _find(self, names: Sequence[str]) -> list[str]:
        """Return the open payments of other processes that have one of these names."""
        named = await self._payments.find(names, state=PaymentState.ACKNOWLEDGED)
        for record in named:
            self._take(record)
        return [each.transaction_id for each in named if each.transaction_id is not None]
