"""Payments of a merchant's backend, without a web framework: one object for the life of a process.

The store is the only book. Creates run in the backend's own tasks, not in those of HTTP requests, so that a customer
who closes the page does not leave a payment unknown. Beside them run the poller, the dispatcher of queued payments, the
reconciliation of unknown ones, and a reader of the feed of changes, which wakes those who watch an order.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Self, TypeAlias

import anyio
import anyio.abc
import attrs

from mobilemoney_async.callbacks import CallbackReceiver, Verify
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contrib.orders import OrderState, OrderStatus, TooManyOrders, TooManyPrompts, read_record
from mobilemoney_async.contrib.prompt_limit import Names, PromptLimits
from mobilemoney_async.errors import IdempotencyConflict, MobileMoneyError, StoreError
from mobilemoney_async.payments.payment_change import PaymentChange
from mobilemoney_async.payments.records import PaymentRecord, PaymentState
from mobilemoney_async.resources.creates import Collections, Disbursements
from mobilemoney_async.values import (
    Secret,
    normalise_phone_number,
    refuse,
    require_integer,
    require_name,
    require_seconds,
    require_text,
)

if TYPE_CHECKING:
    from mobilemoney_async.payments.dispatcher import Dispatcher
    from mobilemoney_async.polling.poller import Poller

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds until unknown payments are reconciled again, the first time, and until a failed store is tried again.
_FIRST_LOOK, _FAULT_PAUSE = 2.0, 2.0

OnSettled: TypeAlias = Callable[[PaymentChange], Awaitable[None]]
"""Function of the change by which an order's payment became final: its key is the order."""


@attrs.define(eq=False)
class _Attempt:
    """One create in progress, with an event for the tasks that wait for it."""

    request: tuple[Collections | Disbursements, str, int | Decimal | str] = attrs.field(repr=False)
    names: Names | None = attrs.field(default=None, repr=False)  # that the limits count
    admitted_at: float = float("-inf")
    done: anyio.Event = attrs.field(factory=anyio.Event)
    error: Exception | None = None


@attrs.define(eq=False)
class _Watch:
    """Iterator over the statuses of one order; a class, since an async generator left early would stay open."""

    order: str
    heartbeat: float  # seconds after which the same status is returned again
    read: Callable[[str], Awaitable[OrderStatus | None]]
    signals: weakref.WeakValueDictionary[str, anyio.Event]
    last: OrderStatus | None = None  # the status returned last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OrderStatus:
        if self.last is not None and self.last.is_settled:
            raise StopAsyncIteration
        until = anyio.current_time() + self.heartbeat
        while True:
            # Before the read, so that a change in between is not missed.
            signal = self.signals.setdefault(self.order, anyio.Event())
            try:
                status = await self.read(self.order)
            except StoreError:
                if self.last is None:
                    await anyio.sleep(_FAULT_PAUSE)
                    continue
                status = self.last
            if status is None:
                raise StopAsyncIteration
            if status != self.last or anyio.current_time() >= until:
                self.last = status
                return status
            with anyio.CancelScope(deadline=until):
                await signal.wait()


class Backend(anyio.AsyncContextManagerMixin):
    """Client, poller, dispatcher and callbacks of one process, with the orders that it pays for.

    ``async with client, Backend(client) as backend: ...``. Entering resumes the store's open payments. Leaving waits
    for creates in progress, `drain` seconds at most; those cut short are reconciled after the next start.

    Attributes:
        client: The client.
        poller: The poller of the payments; open inside the block.
        dispatcher: The dispatcher of queued payments; open inside the block.
        callbacks: The receiver of the service's callbacks; open inside the block.

    Args:
        client: With a store. Not closed by the backend.
        verify: As for `CallbackReceiver`.
        secret: As for `CallbackReceiver`.
        on_settled: Awaited with each change by which a payment becomes final, whichever process finds it out, and
            whenever: at least once, also across crashes, and by one process at a time. If it raises, the change comes
            again, ten times at most. It should take less than half a minute; since a change may come twice, its work
            must be safe to repeat.
        name: With `on_settled`: the name of the consumer, as for ``client.payments.changes``. When a backend with
            this name is entered for the first time, it begins with the changes from then on.
        min_interval: As for `AsyncClient.poller`, seconds.
        per_minute: As for `AsyncClient.dispatcher`.
        reconcile_every: Between two reconciliations of unknown payments, seconds, more than 0; the first come sooner.
        drain: How long to wait for creates at the end, seconds, at least 0.
        most_waiting: How many creates may be in progress, at least 1. Sixty a minute are sent.
        per_number: How many new payments `collect` may ask of one phone number in how many seconds; None for no limit.
            Counted in memory, by each process, since its start.
        per_caller: The same for each ``caller=`` of `collect`.

    Raises:
        InvalidRequest: An argument is not what it accepts, or the client has no store.
        StoreError: On entering: the store cannot be reached.
    """

    client: AsyncClient
    poller: Poller
    dispatcher: Dispatcher
    callbacks: CallbackReceiver

    def __init__(
        self,
        client: AsyncClient,
        *,
        verify: Verify | None = None,
        secret: str | Secret | None = None,
        on_settled: OnSettled | None = None,
        name: str | None = None,
        min_interval: float = 1.0,
        per_minute: float = 45.0,
        reconcile_every: float = 60.0,
        drain: float = 10.0,
        most_waiting: int = 500,
        per_number: tuple[int, float] | None = (5, 600.0),
        per_caller: tuple[int, float] | None = (30, 600.0),
    ) -> None:
        if not isinstance(client, AsyncClient):
            raise refuse("client", "an AsyncClient", client)
        self._payments = client.payments  # refuses a client without a store
        if on_settled is not None and name is None:
            raise refuse("name", "given with on_settled: the name of its place in the feed, such as 'shop'")
        self.client = client
        self.poller = client.poller(min_interval=min_interval, resume=True)
        self.dispatcher = client.dispatcher(per_minute=per_minute)
        self.callbacks = CallbackReceiver(self.poller, verify=verify, secret=secret, find=self._find)
        self._on_settled = on_settled
        self._name = None if name is None else require_name("name", name)
        self._reconcile_every = require_seconds("reconcile_every", reconcile_every)
        self._drain = require_seconds("drain", drain, allow_zero=True)
        self._most_waiting = require_integer("most_waiting", most_waiting, 1)
        self._limits = PromptLimits(per_number=per_number, per_caller=per_caller)
        self._attempts: dict[str, _Attempt] = {}
        # A signal is kept as long as a watcher holds it.
        self._signals: weakref.WeakValueDictionary[str, anyio.Event] = weakref.WeakValueDictionary()
        self._is_unknown = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._on_settled is not None:
            # Before anything can become final: it is handed out after a crash only if there is a consumer.
            await self._payments.changes(consumer=self._name, start="now").begin()
        failure: BaseException | None = None
        async with self.poller, self.dispatcher, anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._read, None, self._show)
            if self._on_settled is not None:
                tasks.start_soon(self._read, self._name, self._settle)
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
        self,
        order: str,
        *,
        phone_number: str,
        amount: int | Decimal | str,
        patience: float = 2.0,
        caller: str | None = None,
    ) -> OrderStatus:
        """Ask a customer to pay for an order, once, and answer soon.

        The create goes on when this returns or is cancelled. Calling it again for the same order joins it, or gives
        the payment that exists.

        Args:
            order: The order's name in your system, at most 200 characters; the payment's idempotency key.
            phone_number: As for ``client.collections.create``.
            amount: As for ``client.collections.create``: yours, never the customer's.
            patience: How long to wait for the service's answer, seconds, at least 0.
            caller: Name of the caller, such as the user of your login; None if unknown. Not an address of a crowd.

        Returns:
            The order's status: ``sending`` if patience ended first.

        Raises:
            TooManyPrompts: The order has no payment, and its number or caller has too many; nothing was sent.
            TooManyOrders: Too many others are waiting; nothing was sent.
            MobileMoneyError: As of ``client.collections.create``.
        """
        number = normalise_phone_number(phone_number)
        names = (number, None if caller is None else require_text("caller", caller))
        return await self._pay(order, _Attempt((self.client.collections, number, amount), names), patience)

    async def disburse(
        self, order: str, *, phone_number: str, amount: int | Decimal | str, patience: float = 2.0
    ) -> OrderStatus:
        """Send money for an order, once, and answer soon; otherwise as `collect`."""
        number = normalise_phone_number(phone_number)
        return await self._pay(order, _Attempt((self.client.disbursements, number, amount)), patience)

    # Knowing

    async def status(self, order: str) -> OrderStatus | None:
        """Return an order's status as the store has it, or None if it never had a payment.

        An order that waits here for the rate limit is ``sending``; other processes know it once it is sent.

        Raises:
            InvalidRequest: The name is blank.
            StoreError: The store failed.
        """
        record = await self._payments.get(require_text("order", order))
        if order in self._attempts and _is_new(record):
            return OrderStatus(order=order, state=OrderState.SENDING)
        return None if record is None else read_record(record)

    def watch(self, order: str, *, heartbeat: float = 15.0) -> AsyncIterator[OrderStatus]:
        """Return an iterator over an order's statuses: now, after each change, and after each heartbeat.

        It ends with the settled state, and at once for an order without a payment. While the store fails it returns the
        last status again, and waits before the first.

        Args:
            order: The order's name.
            heartbeat: Seconds, more than 0, after which the same status comes again.

        Raises:
            InvalidRequest: An argument is not what it accepts.
        """
        name, seconds = require_text("order", order), require_seconds("heartbeat", heartbeat)
        return _Watch(name, seconds, self.status, self._signals)

    def __repr__(self) -> str:
        return f"<Backend: {len(self._attempts)} being created>"

    # Inside

    async def _pay(self, order: str, wanted: _Attempt, patience: float) -> OrderStatus:
        require_text("order", order)
        require_seconds("patience", patience, allow_zero=True)
        if order not in self._attempts:
            record = await self._payments.get(order)
            if self._tasks is None:
                raise refuse("backend", "open: use it inside its `async with`")
            # No await from here on: by now another task may have begun the order, which this one joins then.
            if order not in self._attempts:
                if _is_new(record):
                    self._admit(order, wanted)
                elif record is not None and len(self._attempts) >= self._most_waiting:
                    return read_record(record)
                self._attempts[order] = wanted
                self._tasks.start_soon(self._create, order, wanted)
        attempt = self._attempts[order]
        if attempt.request != wanted.request:
            raise IdempotencyConflict("the order is being paid with another number or amount", idempotency_key=order)
        with anyio.move_on_after(patience):
            await attempt.done.wait()
        if isinstance(attempt.error, MobileMoneyError):
            raise copy.copy(attempt.error) from attempt.error  # each waiter its own: raising it changes its traceback
        if attempt.error is not None:
            raise attempt.error
        return await self.status(order) or OrderStatus(order=order, state=OrderState.SENDING)

    def _admit(self, order: str, attempt: _Attempt) -> None:
        """Refuse an order without a payment where too many others wait, or its number or caller has too many."""
        if len(self._attempts) >= self._most_waiting:
            raise TooManyOrders("too many orders are waiting for the rate limit", idempotency_key=order)
        attempt.admitted_at = anyio.current_time()
        if attempt.names is not None and (wait := self._limits.take(attempt.names, attempt.admitted_at)) > 0:
            text = "too many new payments for this phone number, or by this caller"
            raise TooManyPrompts(text, retry_after=wait, idempotency_key=order)

    async def _create(self, order: str, attempt: _Attempt) -> None:
        creates, phone_number, amount = attempt.request
        try:
            answer = await creates.create(phone_number=phone_number, amount=amount, idempotency_key=order)
            self.callbacks.track(answer)
        except MobileMoneyError as exc:
            attempt.error = exc
            if exc.outcome == "not_sent" and attempt.names is not None:  # no phone rang
                self._limits.give_back(attempt.names, attempt.admitted_at)
            logger.warning("order %r: the create ended as %s, %s: %s", order, exc.outcome, type(exc).__name__, exc)
            if exc.outcome == "unknown":
                self._is_unknown.set()
        except Exception as exc:  # (a caller's own token source may raise anything)
            logger.exception("paying for order %r failed", order)
            attempt.error = exc
        finally:
            # No await from here on: a task that wakes finds the attempt gone.
            self._attempts.pop(order, None)
            attempt.done.set()
            self._wake(order)

    def _wake(self, order: str) -> None:
        if (signal := self._signals.pop(order, None)) is not None:
            signal.set()

    async def _read(self, consumer: str | None, handle: Callable[[PaymentChange], Awaitable[None]]) -> None:
        """Handle each change from now on, or from where the consumer was; while the store fails, try again."""
        while True:
            try:
                async for change in self._payments.changes(consumer=consumer, start="now"):
                    await handle(change)
            except StoreError as exc:
                logger.warning("changes of orders are shown, or settled, later: %s", exc)
                await anyio.sleep(_FAULT_PAUSE)

    async def _show(self, change: PaymentChange) -> None:
        self._wake(change.key or "")

    async def _settle(self, change: PaymentChange) -> None:
        """Hand a final payment to `on_settled`. Others are done, too: after a crash, the first open change lags."""
        try:
            if change.state is PaymentState.FINAL and self._on_settled is not None:
                await self._on_settled(change)
        except Exception as exc:
            logger.exception("on_settled failed for order %r, and is called again", change.key)
            await change.failed(exc)
        else:
            await change.done()

    async def _listen(self) -> None:
        """Report payments that the poller gives up on: an operator has to look at them."""
        async for outcome in self.poller.outcomes(forever=True):
            if outcome.transaction is None:
                logger.error("transaction %s: %s", outcome.transaction_id, outcome.error)

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
                await self._payments.reconcile()
            except MobileMoneyError as exc:
                logger.warning("unknown payments are reconciled later: %s", exc)
            except Exception:  # (a caller's own token source may raise anything)
                logger.exception("unknown payments are reconciled later")
            pause = min(self._reconcile_every, max(_FIRST_LOOK, 2 * pause))

    async def _find(self, names: Sequence[str]) -> list[str]:
        """Return the open payments that have one of these names."""
        named = await self._payments.find(names, state=PaymentState.ACKNOWLEDGED)
        return [each.transaction_id for each in named if each.transaction_id is not None]


def _is_new(record: PaymentRecord | None) -> bool:
    """Return whether an order has no payment, so that `collect` would make one."""
    return record is None or read_record(record).state is OrderState.NOT_MADE
