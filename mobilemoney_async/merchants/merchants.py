"""Many merchants in one process: a client for each account, made when first used, and closed when idle.

Owners of state: `_merchants` knows each account with a client that someone holds, `_open` those that are open.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias
from weakref import WeakSet, WeakValueDictionary

import anyio
from anyio.lowlevel import checkpoint

from mobilemoney_async.calls.options import Options, check_clock, check_handler
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.transport import HTTPTransport, Wire
from mobilemoney_async.client import AsyncClient, ClientOwner
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits, check_limits
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import AccountsCounted, MerchantSuspended, emit
from mobilemoney_async.merchants.open_clients import Merchant, OpenClients
from mobilemoney_async.payments.records.account_status import AccountState, AccountStatus
from mobilemoney_async.payments.store import SQLStore, account_store, as_store
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import callers_code, shielded
from mobilemoney_async.values import missing_extra, refuse, require_integer, require_name, require_text

# What needs the extra `store` is imported where it is used: without it, the class is refused when it is made.
if TYPE_CHECKING:
    from mobilemoney_async.database.engine import Database
    from mobilemoney_async.events import Event
    from mobilemoney_async.merchants.account_auth import AccountSecret
    from mobilemoney_async.merchants.worker import Worker
    from mobilemoney_async.payments.records.account_store import AccountStore

logger: logging.Logger = logging.getLogger("mobilemoney_async")

MerchantTransport: TypeAlias = Literal["aiohttp"] | Callable[[str], HTTPTransport]
"""Type of the argument ``transport`` of `Merchants`."""


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
        check_handler(on_event)
        self._limits = disbursement_limits if callable(disbursement_limits) else check_limits(disbursement_limits)
        self._base_url = base_url
        self._store = store if callable(store) else as_store(store)
        self._auth = auth
        self._open = OpenClients(require_integer("max_open", max_open, 1))
        self._timeout, self._deadline, self._retry = timeout, deadline, retry
        self._transport = transport
        self._on_event = on_event
        self._utcnow = check_clock(utcnow)
        self._merchants: WeakValueDictionary[str, Merchant] = WeakValueDictionary()
        try:
            from mobilemoney_async.payments.records.account_store import KeyedLock
        except ImportError as exc:
            raise missing_extra("store", "store", exc) from exc
        self._locks = KeyedLock()  # by account, while its client is made
        self._workers: WeakSet[Worker] = WeakSet()
        # By database and account, until a worker has written them.
        self._failures: defaultdict[Database, dict[str, str]] = defaultdict(dict)

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
                await self._open.close_idle()
        return merchant.owner.client

    def worker(self, *, store: SQLStore | None = None, pause_after: int | None = 20) -> Worker:
        """Return a worker, which serves the accounts of the store that have something to do, together with other hosts.

        ``async with merchants.worker(): ...`` in any number of processes. For each of its accounts it follows payments
        until they are final, looks for those with an unknown result, and sends those that are queued, as
        ``client.poller(resume=True)``, ``client.payments.reconcile()`` and ``client.dispatcher()`` do. Each account is
        served by one process at a time; those of a process that died go on in others within ten seconds. Its clients do
        not count for `max_open`.

        The first worker of a store notes the address of its service: scheme, host and version prefix. One for another
        service, such as the sandbox, is refused with `StoreError` when its block begins, before it takes anything.

        Args:
            store: The database whose accounts it serves, if they are in several: one worker for each of them.
            pause_after: As of `AsyncClient.dispatcher`, for each account.

        Raises:
            InvalidRequest: `pause_after` is invalid; or `store` is missing or no SQLStore where the store of this
                `Merchants` is a function; or it is another database than its own.
            StoreError: On entering: the database is away, or it is another service's.
        """
        parts = self._one_store(store)
        if pause_after is not None:
            require_integer("pause_after", pause_after, 1)
        from mobilemoney_async.merchants.worker import Worker

        worker = Worker(
            parts,
            self._base_url,
            self._utcnow,
            partial(self._serve, parts.database),
            self._check_open,
            pause_after=pause_after,
            failures=self._failures[parts.database],
            count=None if self._on_event is None else partial(self._count, parts),
        )
        self._workers.add(worker)
        return worker

    async def overview(
        self, *, store: SQLStore | None = None, everything: bool = False
    ) -> AsyncGenerator[AccountStatus]:
        """Yield the status of each account of the store that needs someone, by name.

        ``async for status in merchants.overview(): ...`` reads the store once, in a few statements for all accounts,
        and asks the service nothing. `on_event` gets one `AccountsCounted` for it.

        Args:
            store: As for `worker`.
            everything: Also those that need nobody.

        Raises:
            InvalidRequest: As of `worker`.
            StoreError: The store failed.
        """
        self._check_open()
        for status in await self._count(self._one_store(store)):
            if everything or status.needs:
                yield status

    async def _count(self, store: AccountStore, *, has_ended: bool = False) -> list[AccountStatus]:
        """Return and report the statuses of all accounts; none at the end of a worker, whose last count is over."""
        from mobilemoney_async.sharing.accounts import count_needs, read_accounts

        statuses: list[AccountStatus] = []
        if not has_ended:
            await store.database.open()
            now = None if self._utcnow is None else self._utcnow()
            statuses = await read_accounts(store, now, everything=True)
        if self._on_event is not None:
            counted = AccountsCounted(
                database=store.database.name, accounts=len(statuses), needing=count_needs(statuses)
            )
            emit(partial(self._on_event, ""), counted)
        return statuses

    def _one_store(self, store: SQLStore | None) -> AccountStore:
        own = self._store if isinstance(self._store, SQLStore) else None
        found = own if store is None else store
        if not isinstance(found, SQLStore):
            raise refuse(
                "store", "the SQLStore of one database, since this Merchants has a function of the account", store
            )
        parts = account_store(found)
        if own is not None and parts.database is not account_store(own).database:
            raise refuse("store", "of the database of this Merchants", found)
        return parts

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
        await self._change(account, AccountState.ACTIVE, note)

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
        await self._change(account, AccountState.REMOVED, note)

    async def _change(self, account: str, state: AccountState, note: str | None) -> None:
        said = None if note is None else require_text("note", note)
        self._check_open()
        parts = account_store(await self._store_of(require_name("account", account)))
        await parts.change_state(state, said, self._utcnow)

    async def _suspend_unknown(self, parts: AccountStore, reason: str) -> None:
        """Suspend the account of a merchant that the platform does not know; say so once for all hosts."""

        async def suspend() -> None:
            if await parts.change_state(AccountState.SUSPENDED, reason, self._utcnow, by_machine=True):
                said = "account %r is suspended, since auth knows no such merchant (%s): resume or remove it"
                logger.error(said, parts.account, reason)
                if self._on_event is not None:
                    on_event = partial(self._on_event, parts.account)
                    emit(on_event, MerchantSuspended(account=parts.account, reason=reason))

        try:
            await shielded(suspend)  # once it is noted, this task says so or none
        except StoreError as exc:
            warn_of_store(f"account {parts.account!r} has no merchant, and cannot be suspended", exc)

    async def _store_of(self, account: str) -> SQLStore:
        with callers_code():
            store = self._store if isinstance(self._store, SQLStore) else await self._store(account)
        if not isinstance(store, SQLStore):
            raise refuse("store", "a function that returns an SQLStore", store)
        return store.for_account(account)

    @asynccontextmanager
    async def _serve(self, database: Database, account: str) -> AsyncGenerator[AsyncClient]:
        """Keep the client of an account open for the worker of a database."""
        client = await self.client(account)
        merchant = self._merchants[account]
        if merchant.parts.database is not database:
            said = f"account {account!r} has payments here, but the function store names another database for it"
            raise StoreError(said)
        self._open.served += 1
        try:
            async with self._open.use(merchant):
                yield client
        finally:
            self._open.served -= 1

    def _make(self, account: str, store: SQLStore) -> Merchant:
        from mobilemoney_async.merchants.account_auth import AccountAuth

        parts, transport = account_store(store), self._transport
        client = AsyncClient(
            self._base_url,
            auth=AccountAuth(
                self._auth,
                parts,
                self._timeout,
                suspend=partial(self._suspend_unknown, parts),
                failed=partial(self._failures[parts.database].__setitem__, account),
            ),
            retry=self._retry,
            timeout=self._timeout,
            deadline=self._deadline,
            store=store,
            transport=transport(account) if callable(transport) else transport,
            disbursement_limits=self._limits(account) if callable(self._limits) else self._limits,
            on_event=None if self._on_event is None else partial(self._on_event, account),
            utcnow=self._utcnow,
        )
        merchant = Merchant(ClientOwner(client), store, parts)
        merchant.owner.own(partial(self._open.use, merchant))
        self._merchants[account] = merchant
        self._open.add(merchant)
        return merchant

    def _check_open(self) -> None:
        if self._open.is_closed:
            raise refuse("merchants", "open: this one was closed")

    async def aclose(self) -> None:
        """Close all clients and their connections; calls made afterwards raise `InvalidRequest`.

        Workers end first, as when their blocks are left. A second call does nothing. The stores stay yours. End your
        calls first: a payment that is under way ends with `OutcomeUnknown`, as of `AsyncClient`.
        """
        is_closed, self._open.is_closed = self._open.is_closed, True

        async def end(merchant: Merchant) -> None:
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
        self._open.clear()
        await checkpoint()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Merchants {self._base_url}: {len(self._open)} open>"
