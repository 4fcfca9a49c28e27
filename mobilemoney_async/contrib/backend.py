"""Payments of a merchant's backend, without a web framework: one object for the life of a process.

The store is the only book: an order is queued there before its create begins, in a task of the backend. A customer who
closes the page does not take the create along, and if the process dies, the dispatcher of another one sends it.
"""

from __future__ import annotations

import copy
import inspect
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
import anyio.abc
import attrs

from mobilemoney_async import values
from mobilemoney_async.callbacks import CallbackReceiver, Verify
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contrib.orders import (
    OrderState,
    OrderStatus,
    TooManyOrders,
    TooManyPrompts,
    is_unmade,
    read_record,
)
from mobilemoney_async.contrib.prompt_limit import PromptLimits
from mobilemoney_async.errors import IdempotencyConflict, MobileMoneyError, OutcomeUnknown, StoreError
from mobilemoney_async.payments.feed.payment_change import PaymentChange
from mobilemoney_async.payments.records.record import CLOSED, PaymentState
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import callers_code, shielded, task_group

if TYPE_CHECKING:
    from mobilemoney_async.payments.outbox.dispatcher import Dispatcher
    from mobilemoney_async.polling.poller import Poller

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds until unknown payments are reconciled again, the first time, and until a failed store is tried again.
_PAUSE = 2.0
# Time for which no dispatcher sends an order that waits for the rate limit here; renewed after a third of it.
_HELD = timedelta(seconds=15)

OnSettled: TypeAlias = Callable[[PaymentChange], Awaitable[None]]
"""Function of the change that settled an order's payment: its key is the order, its status None if it was not made."""

_Wanted: TypeAlias = tuple[str, str, str, str]  # type, order, phone number and amount
_Names: TypeAlias = tuple[str, str | None]  # number and caller, for the limits


@attrs.define(eq=False)
class _Create:
    """Create in progress: whether the store shows it as being sent, whether it has ended, and its error."""

    is_new: bool  # of an order without a payment
    names: _Names | None  # if the limits count it
    began_at: float
    is_shown: anyio.Event = attrs.field(factory=anyio.Event)
    is_done: anyio.Event = attrs.field(factory=anyio.Event)
    error: Exception | None = None
    scope: anyio.CancelScope = attrs.field(factory=lambda: anyio.CancelScope(shield=True))  # until `drain` has passed


@attrs.define(eq=False)
class _Watch:
    """Iterator over the statuses of one order; a class, since an async generator left early would stay open."""

    order: str
    heartbeat: float
    read: Callable[[str], Awaitable[OrderStatus | None]]
    signals: weakref.WeakValueDictionary[str, anyio.Event]  # a signal is kept as long as a watcher holds it
    last: OrderStatus | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OrderStatus:
        until, last = anyio.current_time() + self.heartbeat, self.last
        while last is None or not last.is_settled:
            # Before the read, so that a change in between is not missed.
            signal = self.signals.setdefault(self.order, anyio.Event())
            try:
                status = await self.read(self.order)
            except StoreError:
                if last is None:
                    await anyio.sleep(_PAUSE)
                    continue
                status = last
            if status is None:
                break
            if status != last or anyio.current_time() >= until:
                self.last = status
                return status
            with anyio.CancelScope(deadline=until):
                await signal.wait()
        raise StopAsyncIteration


class Backend(anyio.AsyncContextManagerMixin):
    """Client, poller, dispatcher and callbacks of one process, with the orders that it pays for.

    ``async with client, Backend(client) as backend: ...``. Entering resumes the store's open payments. Leaving, also
    cancelled, waits for creates in progress, `drain` seconds at most; the next process goes on with those cut short.

    Attributes:
        client: The client.
        poller: The poller of the payments. Open inside the block, as dispatcher and callbacks are.
        dispatcher: The dispatcher of queued payments.
        callbacks: The receiver of the service's callbacks.

    Args:
        client: With a store. Not closed by the backend.
        verify: As for `CallbackReceiver`.
        secret: As for `CallbackReceiver`.
        on_settled: Awaited with each change by which a payment becomes final, is cancelled, or is not made (`NOT_SENT`,
            `REFUSED`, `RELEASED`: it may still be paid later, under the same key), whichever process finds it out: at
            least once, also across crashes, and by one process at a time. If it raises, the change comes again, ten
            times at most. It should take less than half a minute, and its work must be safe to repeat.
        name: With `on_settled`: the name of the consumer, as for ``client.payments.changes``. When a backend with
            this name is entered for the first time, it begins with the changes from then on.
        min_interval: As for `AsyncClient.poller`, seconds.
        per_minute: As for `AsyncClient.dispatcher`.
        pause_after: As for `AsyncClient.dispatcher`. So many customers in a row who do not approve pause the whole
            queue, payouts included, until someone resumes; None where strangers can order.
        send_within: How long an order of `collect` may wait, seconds, more than 0: for the rate limit, or for another
            process if its own dies. Then it is not made, so that no phone rings for an abandoned order.
        reconcile_every: Between two reconciliations of unknown payments, seconds, more than 0; the first come sooner.
        drain: How long to wait for creates at the end, seconds, at least 0.
        most_waiting: How many creates may be in progress, at least 1. Sixty a minute are sent.
        per_number: How many new payments `collect` may ask of one phone number in how many seconds; None for no limit.
            Counted in memory, by each process, since its start.
        per_caller: The same for each ``caller=`` of `collect`.
        local_numbers: Whether `collect` and `disburse` read numbers as customers in Tanzania type them
            (``0788 500 000``), by `values.tanzanian`; other countries' numbers are refused then.

    Raises:
        InvalidRequest: An argument is not what it accepts, or the client has no store.
        StoreError: On entering: the store cannot be reached.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        verify: Verify | None = None,
        secret: str | values.Secret | None = None,
        on_settled: OnSettled | None = None,
        name: str | None = None,
        min_interval: float = 1.0,
        per_minute: float = 45.0,
        pause_after: int | None = 20,
        send_within: float = 600.0,
        reconcile_every: float = 60.0,
        drain: float = 10.0,
        most_waiting: int = 500,
        per_number: tuple[int, float] | None = (5, 600.0),
        per_caller: tuple[int, float] | None = (30, 600.0),
        local_numbers: bool = False,
    ) -> None:
        if not isinstance(client, AsyncClient):
            raise values.refuse("client", "an AsyncClient", client)
        self._payments = client.payments  # refuses a client without a store
        if on_settled is not None and (not callable(on_settled) or inspect.isasyncgenfunction(on_settled)):
            raise values.refuse("on_settled", "an async function of a change", type(on_settled))
        if on_settled is not None and name is None:
            raise values.refuse("name", "given with on_settled: the name of its place in the feed, such as 'shop'")
        self.client = client
        self.poller: Poller = client.poller(min_interval=min_interval, resume=True)
        self.dispatcher: Dispatcher = client.dispatcher(per_minute=per_minute, pause_after=pause_after)
        self.callbacks: CallbackReceiver = CallbackReceiver(self.poller, verify=verify, secret=secret, find=self._find)
        self._on_settled = on_settled
        self._name = None if name is None else values.require_name("name", name)
        # Thirty years are as good as for ever, and no date is too large after them.
        self._send_within = timedelta(seconds=values.require_seconds("send_within", send_within))
        self._reconcile_every = values.require_seconds("reconcile_every", reconcile_every)
        self._drain = values.require_seconds("drain", drain, allow_zero=True)
        self._most_waiting = values.require_integer("most_waiting", most_waiting, 1)
        if not isinstance(local_numbers, bool):
            raise values.refuse("local_numbers", "a bool", local_numbers)
        self._read_number = values.tanzanian if local_numbers else values.normalise_phone_number
        self._limits = PromptLimits(per_number=per_number, per_caller=per_caller)
        self._creates: dict[_Wanted, _Create] = {}
        self._signals: weakref.WeakValueDictionary[str, anyio.Event] = weakref.WeakValueDictionary()
        self._is_unknown = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._on_settled is not None:
            # Before anything can become final: it is handed out after a crash only if there is a consumer.
            await self._payments.changes(consumer=self._name, start="now").begin()
        is_cut = False
        try:
            async with self.poller, self.dispatcher, task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._read, None, self._show)
                if self._on_settled is not None:
                    tasks.start_soon(self._read, self._name, self._settle)
                tasks.start_soon(self._listen)
                tasks.start_soon(self._reconcile)
                tasks.start_soon(self._hold)
                try:
                    yield self
                except anyio.get_cancelled_exc_class():
                    is_cut = True
                    raise
                finally:
                    self._tasks = None
                    await shielded(self._finish_creates)
        except anyio.get_cancelled_exc_class():
            is_cut = False  # by its owner
            raise
        finally:
            if is_cut:
                logger.error("the backend has ended, since a task of it failed: no order is sent or settled here")

    async def _finish_creates(self) -> None:
        creates = list(self._creates.values())
        with anyio.move_on_after(self._drain):
            for create in creates:
                await create.is_done.wait()
        for create in creates:
            create.scope.cancel()

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
            phone_number: As for ``client.collections.create``, or with `local_numbers` as for `values.tanzanian`.
            amount: As for ``client.collections.create``: yours, never the customer's.
            patience: How long to wait for the service's answer, seconds, at least 0.
            caller: Name of the caller, such as the user of your login; None if unknown. Not an address of a crowd.

        Returns:
            The order's status as the store has it: ``sending`` if patience ended first.

        Raises:
            TooManyPrompts: The order has no payment, and its number or caller has too many; nothing was sent.
            TooManyOrders: Too many others are waiting; nothing was sent.
            MobileMoneyError: As of ``client.collections.create``.
        """
        number = self._read_number(phone_number)
        names = (number, None if caller is None else values.require_text("caller", caller))
        return await self._pay(("collection", order, number, values.normalise_amount(amount)), patience, names)

    async def disburse(
        self, order: str, *, phone_number: str, amount: int | Decimal | str, patience: float = 2.0
    ) -> OrderStatus:
        """Send money for an order, once, and answer soon; otherwise as `collect`, without its limits."""
        number = self._read_number(phone_number)
        return await self._pay(("disbursement", order, number, values.normalise_amount(amount)), patience, None)

    async def status(self, order: str) -> OrderStatus | None:
        """Return an order's status as the store has it, the same in every process; None if it never had a payment.

        Raises:
            InvalidRequest: The name is blank.
            StoreError: The store failed.
        """
        record = await self._payments.get(values.require_text("order", order))
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
        name, seconds = values.require_text("order", order), values.require_seconds("heartbeat", heartbeat)
        return _Watch(name, seconds, self.status, self._signals)

    # Inside

    async def _pay(self, wanted: _Wanted, patience: float, names: _Names | None) -> OrderStatus:
        kind, order, number, amount = wanted
        values.require_key("order", order)
        values.require_seconds("patience", patience, allow_zero=True)
        record = await self._payments.get(order)
        if record is not None:
            from mobilemoney_async.payments.records.rows import require_same  # here, since only a store has its extra

            require_same(record, kind, number, amount)  # also while its own create waits, or is under way
        if self._tasks is None:
            raise values.refuse("backend", "open: use it inside its `async with`")
        # No await from here to the start of the task: another call may have begun it by now, and this one joins it.
        if wanted not in self._creates:
            is_new = record is None or read_record(record).state is OrderState.NOT_MADE
            # One with extra fields is not asked for here: the key without them is another payment's.
            if record is not None and not is_new and (record.has_extra or len(self._creates) >= self._most_waiting):
                return read_record(record)
            self._creates[wanted] = self._admit(order, names if is_new else None, is_new=is_new)
            self._tasks.start_soon(self._create, wanted, self._creates[wanted])
        create = self._creates[wanted]
        await create.is_shown.wait()
        with anyio.move_on_after(patience):
            await create.is_done.wait()
        record, error = await self._payments.get(order), create.error
        status = None if record is None else read_record(record)
        is_not_made = status is None or status.state is OrderState.NOT_MADE  # or else another process has sent it
        is_cancelled = record is not None and record.state is PaymentState.CANCELLED  # which its status says
        is_raised = is_not_made or (isinstance(error, OutcomeUnknown | IdempotencyConflict) and not is_cancelled)
        if error is not None and is_raised:
            if not isinstance(error, MobileMoneyError):
                raise error
            raise copy.copy(error) from error.__cause__  # its traceback is each waiter's
        return status or OrderStatus(order=order, state=OrderState.SENDING)

    def _admit(self, order: str, names: _Names | None, *, is_new: bool) -> _Create:
        """Return a create to begin, unless too many others wait, or its number or caller has too many payments."""
        if len(self._creates) >= self._most_waiting:
            raise TooManyOrders("too many orders are waiting for the rate limit", idempotency_key=order)
        create = _Create(is_new, names, anyio.current_time())
        if names is not None and (wait := self._limits.take(names, create.began_at)) > 0:
            text = "too many new payments for this phone number, or by this caller"
            raise TooManyPrompts(text, retry_after=wait, idempotency_key=order)
        return create

    async def _create(self, wanted: _Wanted, create: _Create) -> None:
        kind, order, number, amount = wanted
        payment: Any = {"phone_number": number, "amount": amount, "idempotency_key": order}
        state, is_own = None, False
        with create.scope:
            try:
                if create.is_new:
                    until = self._send_within if kind == "collection" else None
                    queued = await self._payments.enqueue(
                        type=kind, not_before=_HELD, not_after=until, priority=1, **payment
                    )
                    state, is_own = queued.state, queued.not_before == queued.changed_at + _HELD
                if state is not PaymentState.RELEASED:  # which is shown as not made until it is sent
                    create.is_shown.set()
                creates = self.client.collections if kind == "collection" else self.client.disbursements
                self.callbacks.track(await creates.create(**payment))
            except Exception as exc:  # noqa: BLE001 (logged, and raised in the tasks that wait)
                create.error, outcome = exc, "failed"
                if isinstance(exc, MobileMoneyError):
                    exc.idempotency_key, outcome = order, exc.outcome
                    if create.names is not None and is_unmade(exc):  # no phone rang
                        self._limits.give_back(create.names, create.began_at)
                _warn(f"order {order!r}: the create ended as {outcome}, {type(exc).__name__}", exc)
                if is_own and state is PaymentState.QUEUED:  # by this create, not by the merchant since it looked
                    with suppress(StoreError):  # it is not in the queue, or stays there: the order is shown as it is
                        await self._payments.cancel(order, note="its create has failed", reusable=True)
            finally:
                # No await from here on: a task that wakes finds the create gone.
                del self._creates[wanted]
                create.is_shown.set()
                create.is_done.set()

    async def _read(self, consumer: str | None, handle: OnSettled) -> None:
        """Handle each change from now on, or from where the consumer was; while the store fails, try again."""
        while True:
            try:
                async for change in self._payments.changes(consumer=consumer, start="now"):
                    await handle(change)
            except StoreError as exc:
                warn_of_store("changes of orders are shown, or settled, later", exc)
                await anyio.sleep(_PAUSE)

    async def _show(self, change: PaymentChange) -> None:
        if change.state is PaymentState.UNKNOWN:
            self._is_unknown.set()
        if (signal := self._signals.pop(change.key or "", None)) is not None:
            signal.set()

    async def _settle(self, change: PaymentChange) -> None:
        """Hand a settled payment to `on_settled`. Others are done, too: after a crash, the first open change lags."""
        # A payment that is on its way again settles later.
        is_settled = change.state in CLOSED and (change.record is None or change.record.state is change.state)
        try:
            if self._on_settled is not None and is_settled:
                with callers_code():
                    result = self._on_settled(change)
                    if not inspect.isawaitable(result):  # a plain `def` may return an awaitable: only the call tells
                        raise values.refuse("on_settled", "an async function: its result cannot be awaited")
                    await result
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
                await anyio.sleep(_PAUSE)
            if self._is_unknown.is_set():
                self._is_unknown, pause = anyio.Event(), _PAUSE
            try:
                await self._payments.reconcile()
            except Exception as exc:  # noqa: BLE001 (logged)
                _warn("unknown payments are reconciled later", exc)
            pause = min(self._reconcile_every, max(_PAUSE, 2 * pause))

    async def _hold(self) -> None:
        """Keep the dispatchers off orders that wait for the rate limit here; once this process dies, they send them."""
        while True:
            await anyio.sleep(_HELD.total_seconds() / 3)
            try:
                orders = [order for (_, order, *_), create in self._creates.items() if create.is_new]
                await self._payments.hold(orders, _HELD)
            except StoreError as exc:
                warn_of_store("orders that wait may be sent by a dispatcher", exc)

    async def _find(self, names: Sequence[str]) -> list[str]:
        """Return the open payments that have one of these names."""
        named = await self._payments.find(names, state=PaymentState.ACKNOWLEDGED)
        return [each.transaction_id for each in named if each.transaction_id is not None]


def _warn(said: str, error: Exception) -> None:
    """Log an error, with its traceback if it is none of this library's: a caller's token source may raise anything."""
    logger.warning("%s: %s", said, error, exc_info=not isinstance(error, MobileMoneyError))
