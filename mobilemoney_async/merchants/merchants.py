"""Many merchants in one process: a client for each account, made when first used, and closed when idle.

Owners of state: `_merchants` knows each account whose client someone holds; `_idle` and `_busy` hold those that are
open, and `_connected` those of the idle ones that may have connections. There is no background task: each use that
ends closes what has become idle.

Critical sections: all changes of these four are made without an await in between. An account is taken out of `_idle`
before its connections are closed; used again during that, it is open at once, and only those not in use are closed.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias
from weakref import WeakSet, WeakValueDictionary

import anyio
import attrs
from anyio.lowlevel import checkpoint

from mobilemoney_async.calls.options import Options
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.transport import HTTPTransport, Wire
from mobilemoney_async.cancellation import shielded
from mobilemoney_async.client import AsyncClient, ClientOwner
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits, check_limits
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import AccountsCounted, MerchantSuspended, emit
from mobilemoney_async.payments.records.account_status import AccountState, AccountStatus
from mobilemoney_async.payments.store import SQLStore, account_store, as_store
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.values import missing_extra, refuse, require_integer, require_name, require_text

# What needs the extra `store` is imported where it is used: without it, the class is refused when it is made.
if TYPE_CHECKING:
    from mobilemoney_async.events import Event
    from mobilemoney_async.merchants.account_auth import AccountSecret
    from mobilemoney_async.merchants.worker import Worker
    from mobilemoney_async.payments.records.account_store import AccountStore

logger: logging.Logger = logging.getLogger("mobilemoney_async")

MerchantTransport: TypeAlias = Literal["aiohttp"] | Callable[[str], HTTPTransport]
"""Type of the argument ``transport`` of `Merchants`."""

# Seconds for which the connections of an idle account stay open; no pool would use them after that.
_KEPT = 5.0
# Idle accounts that one use looks at, at most.
_MOST_LOOKS = 10


@attrs.define(eq=False)
class _Merchant:
    """Client of one account, with the number of its calls, pollers and dispatchers under way."""

    owner: ClientOwner
    store: SQLStore  # held, since a store names itself only as long as somebody uses it
    parts: AccountStore
    users: int = 0
    used_at: float = -math.inf

    @property
    def is_pinned(self) -> bool:
        """Whether the account reads as a consumer, or has answers that are not recorded yet."""
        left = self.parts.left_consumers.values()
        return bool(self.parts.unwritten) or any(me not in left for me in self.parts.consuming)


class Merchants:
    """Clients of many accounts in one process, on asyncio and on trio.

    ``async with Merchants(base_url, store=..., auth=...) as merchants: ...``, or `aclose` at the end. Use it in one
    event loop. The accounts share threads, connections to the database, and certificates. Each has its own rate limit,
    token, order of lanes and connections to the service: no answer of one can come to another.

    Args:
        base_url: As for `AsyncClient`.
        store: The store of all accounts, or its URL: each account uses its own part (`SQLStore.for_account`). Or an
            async function of the account that returns its store, for accounts in several databases.
        auth: An async function of the account that returns its token, or a `LoginAuth`. It is called at the account's
            first call, and again once the service has refused the token or the login, so that a secret that was
            replaced is picked up; one call at a time for each account, and at most one in 10 s after refusals. An
            error of it fails the account's calls: a `MobileMoneyError` as it is, unless it is `InvalidRequest`; that,
            every other one, and a secret that is none as `TransportError` with that error as its cause. The text of an
            error of yours is never logged. It has `timeout` seconds. If the platform knows the merchant no more, let it
            raise `NoSuchMerchant`: the account is suspended, as by `suspend`, with one ERROR in the log of one host.
        max_open: Clients that stay open, at least 1. The least recently used one that is idle is closed first. None is
            closed during a call, while it has a poller, a dispatcher or a named consumer, or while an answer is not
            recorded yet: if that concerns all of them, more are open, and a warning is logged once.
        timeout: As for `AsyncClient`.
        deadline: As for `AsyncClient`.
        retry: As for `AsyncClient`.
        transport: ``"aiohttp"``, as for `AsyncClient`; or, for tests, a function of the account that returns an httpx
            transport of its own: with a shared connection, a surplus answer could reach the wrong merchant.
        disbursement_limits: As for `AsyncClient`, the same for each account; or a function of the account that returns
            its own, or None, such as ``limits_by_account.get``. It is called when the account's client is made.
        on_event: Called with the account and each event; otherwise as for `AsyncClient`.
        utcnow: As for `AsyncClient`.

    Raises:
        InvalidRequest: An argument is invalid.
    """

    def __init__(
        self,
        base_url: str,
        *,
        store: SQLStore | str | Callable[[str], Awaitable[SQLStore]],
        auth: Callable[[str], Awaitable[AccountSecret]],
        max_open: int = 1000,
        timeout: float = 30.0,
        deadline: float | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        transport: MerchantTransport | None = None,
        disbursement_limits: DisbursementLimits | Callable[[str], DisbursementLimits | None] | None = None,
        on_event: Callable[[str, Event], object] | None = None,
        utcnow: Callable[[], datetime] | None = None,
    ) -> None:
        # Checked here, although each client checks them again.
        Options(timeout=timeout, deadline=deadline, retry=retry, headers={})
        Wire(base_url, transport if isinstance(transport, str) else None)
        if not callable(auth):
            raise refuse("auth", "an async function of the account", type(auth))
        if transport is not None and not isinstance(transport, str) and not callable(transport):
            # One for all would let a surplus answer of one account come to another.
            raise refuse("transport", '"aiohttp" or a function of the account', transport)
        if on_event is not None and not callable(on_event):
            raise refuse("on_event", "a function of the account and one event", on_event)
        self._limits = disbursement_limits if callable(disbursement_limits) else check_limits(disbursement_limits)
        self._base_url = base_url
        self._store = store if callable(store) else as_store(store)
        self._auth = auth
        self._max_open = require_integer("max_open", max_open, 1)
        self._timeout, self._deadline, self._retry = timeout, deadline, retry
        self._transport = transport
        self._on_event = on_event
        self._utcnow = utcnow
        self._merchants: WeakValueDictionary[str, _Merchant] = WeakValueDictionary()
        try:
            from mobilemoney_async.payments.records.account_store import KeyedLock
        except ImportError as exc:
            raise missing_extra("store", "store", exc) from exc
        self._locks = KeyedLock()  # by account, while its client is made
        self._busy: set[_Merchant] = set()
        self._idle: OrderedDict[_Merchant, None] = OrderedDict()  # the least recently used one first
        self._connected: OrderedDict[_Merchant, None] = OrderedDict()  # in the order of `used_at`
        self._workers: WeakSet[Worker] = WeakSet()
        self._failures: dict[str, str] = {}  # by account, until a worker has written them
        self._served = 0  # accounts of the workers
        self._looks = 0  # at idle accounts in a row that are pinned
        self._has_warned = self._is_closed = False

    async def client(self, account: str) -> AsyncClient:
        """Return the client of an account, the same one as long as it is open or you hold it.

        Hold it for as long as you like: while it is idle it costs a few kB, and it opens itself again. You need not
        close it, and its ``aclose`` closes nothing.

        Args:
            account: Names the merchant in the store, at most 200 characters.

        Raises:
            InvalidRequest: The name is invalid, or this was closed.
            Exception: Errors of `store`, where that is a function, pass unchanged.
        """
        account = require_name("account", account)
        self._check_open()
        merchant = self._merchants.get(account)
        if merchant is not None:
            await checkpoint()
            return merchant.owner.client
        # If the task that makes it is cancelled, the next one in line makes it.
        async with self._locks.hold(account):
            merchant = self._merchants.get(account)
            if merchant is None:
                store = await self._store_of(account)
                self._check_open()
                merchant = self._make(account, store)
                await self._close_idle()
        return merchant.owner.client

    def worker(self) -> Worker:
        """Return a worker, which serves the accounts of the store that have something to do, together with other hosts.

        ``async with merchants.worker(): ...`` in any number of processes. For each of its accounts it follows payments
        until they are final, looks for those with an unknown result, and sends those that are queued, as
        ``client.poller(resume=True)``, ``client.payments.reconcile()`` and ``client.dispatcher()`` do. Each account is
        served by one process at a time; those of a process that died go on in others within ten seconds. Its clients do
        not count for `max_open`.

        The first worker of a store notes the address of its service: scheme, host and version prefix. One for another
        service, such as the sandbox, is refused with `StoreError` when its block begins, before it takes anything.

        Raises:
            InvalidRequest: `store` is a function: the accounts of a worker are in one database.
        """
        store = self._one_store("a worker")
        from mobilemoney_async.merchants.worker import Worker

        count = None if self._on_event is None else partial(self._count, store)
        worker = Worker(
            store, self._base_url, self._utcnow, self._serve, self._check_open, failures=self._failures, count=count
        )
        self._workers.add(worker)
        return worker

    async def overview(self, *, everything: bool = False) -> AsyncGenerator[AccountStatus]:
        """Yield the status of each account of the store that needs someone, by name.

        ``async for status in merchants.overview(): ...`` reads the store once, in a few statements for all accounts,
        and asks the service nothing. `on_event` gets one `AccountsCounted` for it.

        Args:
            everything: Also those that need nobody.

        Raises:
            InvalidRequest: `store` is a function: the accounts of an overview are in one database.
            StoreError: The store failed.
        """
        for status in await self._count(self._one_store("an overview")):
            if everything or status.needs:
                yield status

    async def _count(self, store: AccountStore) -> list[AccountStatus]:
        from mobilemoney_async.sharing.accounts import count_needs, read_accounts

        self._check_open()
        await store.database.open()
        now = None if self._utcnow is None else self._utcnow()
        statuses = await read_accounts(store, now, everything=True)
        if self._on_event is not None:
            emit(partial(self._on_event, ""), AccountsCounted(accounts=len(statuses), needing=count_needs(statuses)))
        return statuses

    def _one_store(self, purpose: str) -> AccountStore:
        if not isinstance(self._store, SQLStore):
            raise refuse("store", f"an SQLStore or its URL for {purpose}: its accounts are in one database")
        return account_store(self._store)

    async def suspend(self, account: str, *, note: str) -> None:
        """Suspend an account, on every host: it begins no payment, and no worker serves it, until `resume`.

        New payments, queued ones too, raise `AccountSuspended`, and what is in the queue waits there. A request under
        way goes on; workers leave the account within some 15 seconds. Reading is allowed: `client.transactions`, the
        store, and `client.payments.reconcile`.

        Args:
            account: Its name; it need not have a payment yet.
            note: The reason, which the store keeps; no secret.

        Raises:
            InvalidRequest: An argument is invalid.
            StoreError: The store failed.
        """
        await self._change(account, AccountState.SUSPENDED, require_text("note", note))

    async def resume(self, account: str, *, note: str | None = None) -> None:
        """Let an account pay again that was suspended or removed. Does nothing to others.

        Args:
            account: Its name.
            note: The reason, which the store keeps; no secret.

        Raises:
            InvalidRequest: An argument is invalid.
            StoreError: The store failed.
        """
        await self._change(account, AccountState.ACTIVE, None if note is None else require_text("note", note))

    async def remove(self, account: str, *, note: str | None = None) -> None:
        """Remove an account whose merchant leaves, on every host: nothing new, and what is open is followed to its end.

        New payments raise `AccountSuspended`. Workers go on to follow payments that are not final, and to look for
        those with an unknown result, as long as there are any. What is queued is not sent, and stays queued until it is
        cancelled. All that the store knows of the account stays: see `SQLStore.erase_account`.

        Args:
            account: Its name.
            note: The reason, which the store keeps; no secret.

        Raises:
            InvalidRequest: An argument is invalid.
            StoreError: The store failed.
        """
        await self._change(account, AccountState.REMOVED, None if note is None else require_text("note", note))

    async def _change(self, account: str, state: AccountState, note: str | None) -> None:
        self._check_open()
        parts = account_store(await self._store_of(require_name("account", account)))
        await parts.change_state(state, note, self._utcnow or parts.database.wall_clock.utcnow)

    async def _suspend_unknown(self, parts: AccountStore, utcnow: Callable[[], datetime], reason: str) -> None:
        """Suspend an account whose merchant the platform does not know; say so once for all hosts."""
        try:
            is_new = await parts.change_state(AccountState.SUSPENDED, reason, utcnow)
        except StoreError as exc:
            warn_of_store(f"account {parts.account!r} has no merchant, and cannot be suspended", exc)
            return
        if is_new:
            said = "account %r is suspended, since auth knows no such merchant (%s): resume or remove it"
            logger.error(said, parts.account, reason)
            if self._on_event is not None:
                on_event = partial(self._on_event, parts.account)
                emit(on_event, MerchantSuspended(account=parts.account, reason=reason))

    async def _store_of(self, account: str) -> SQLStore:
        store = self._store if isinstance(self._store, SQLStore) else await self._store(account)
        if not isinstance(store, SQLStore):
            raise refuse("store", "a function that returns an SQLStore", store)
        return store.for_account(account)

    @asynccontextmanager
    async def _serve(self, account: str) -> AsyncGenerator[AsyncClient]:
        """Keep the client of an account open for a worker."""
        client = await self.client(account)
        merchant = self._merchants[account]
        self._served += 1
        try:
            async with self._use(merchant):
                yield client
        finally:
            self._served -= 1

    def _make(self, account: str, store: SQLStore) -> _Merchant:
        from mobilemoney_async.merchants.account_auth import AccountAuth

        parts, transport = account_store(store), self._transport
        utcnow = parts.database.wall_clock.utcnow if self._utcnow is None else self._utcnow
        client = AsyncClient(
            self._base_url,
            auth=AccountAuth(
                self._auth,
                parts,
                utcnow,
                self._timeout,
                suspend=partial(self._suspend_unknown, parts, utcnow),
                failed=partial(self._failures.__setitem__, account),
            ),
            retry=self._retry,
            timeout=self._timeout,
            deadline=self._deadline,
            store=store,
            transport=transport(account) if callable(transport) else transport,
            disbursement_limits=self._limits(account) if callable(self._limits) else self._limits,
            on_event=None if self._on_event is None else partial(self._on_event, account),
            utcnow=utcnow,
        )
        merchant = _Merchant(ClientOwner(client), store, parts)
        merchant.owner.own(partial(self._use, merchant))
        self._merchants[account] = merchant
        self._idle[merchant] = None
        return merchant

    @asynccontextmanager
    async def _use(self, merchant: _Merchant) -> AsyncGenerator[None]:
        """Keep a client open: entered by each call, poller and dispatcher."""
        merchant.users += 1
        if merchant.users == 1:
            self._busy.add(merchant)
            self._idle.pop(merchant, None)
            self._connected.pop(merchant, None)
            merchant.owner.reopen()
        try:
            await self._close_idle()
            yield
        finally:
            merchant.users -= 1
            if not merchant.users and not self._is_closed:
                merchant.used_at = anyio.current_time()
                self._busy.discard(merchant)
                self._idle[merchant] = self._connected[merchant] = None
                await self._close_idle()

    async def _close_idle(self) -> None:
        """Close connections that were idle for long, and clients beyond `max_open`, as far as nothing pins them."""
        # Shielded where it waits; without anything to close it does not wait.
        until = anyio.current_time() - _KEPT
        while self._connected and (first := next(iter(self._connected))).used_at <= until:
            del self._connected[first]
            await first.owner.close_idle(keeps_store=True)
        for _ in range(_MOST_LOOKS):
            if not self._idle or self._open <= self._max_open:
                break
            first = next(iter(self._idle))
            if first.is_pinned:
                self._idle.move_to_end(first)
                self._looks += 1
                continue
            self._looks = 0
            del self._idle[first]
            self._connected.pop(first, None)
            await first.owner.close_idle()
        is_exceeded = self._open > self._max_open and self._looks >= len(self._idle)
        if is_exceeded and not self._has_warned:
            self._has_warned = True
            logger.warning("more than max_open=%d clients are open, since all of them are in use", self._max_open)

    @property
    def _open(self) -> int:
        """The number of open clients, without those of a worker."""
        return len(self._idle) + len(self._busy) - self._served

    def _check_open(self) -> None:
        if self._is_closed:
            raise refuse("merchants", "open: this one was closed")

    async def aclose(self) -> None:
        """Close all clients and their connections; calls made afterwards raise `InvalidRequest`.

        Workers end first, as when their blocks are left. A second call does nothing. The stores stay yours. End your
        calls first: a payment that is under way ends with `OutcomeUnknown`, as of `AsyncClient`.
        """
        is_closed, self._is_closed = self._is_closed, True

        async def end(merchant: _Merchant) -> None:
            merchant.owner.reopen()  # a consumer of one that rests is left, too
            with suppress(Exception):  # of its connections, which are gone
                await merchant.owner.close()

        from mobilemoney_async.merchants.worker import end as end_worker

        async def end_all() -> None:
            async with anyio.create_task_group() as tasks:
                for worker in list(self._workers):
                    tasks.start_soon(end_worker, worker)
            async with anyio.create_task_group() as tasks:
                for merchant in [] if is_closed else list(self._merchants.values()):
                    tasks.start_soon(end, merchant)

        await shielded(end_all)  # results that are not recorded yet are written, also when this is cancelled
        for each in (self._busy, self._idle, self._connected):
            each.clear()
        await checkpoint()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Merchants {self._base_url}: {self._open} open>"
