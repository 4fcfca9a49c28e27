"""Worker: follows, reconciles and dispatches for the accounts that this host has claimed.

Owners of state: `Claims` knows which accounts are this host's; `_served` has those that run here, also a moment longer,
until their parts have ended. Only then is a claim given back, so that two hosts never serve an account.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Self

import anyio
import sqlalchemy as sa
from anyio.abc import TaskGroup

from mobilemoney_async.client import AsyncClient, ClientOwner
from mobilemoney_async.database.schema import accounts, insert_missing
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.merchants.claims import Claim, Claims
from mobilemoney_async.payments.outbox.dispatcher import Dispatcher, until_answered
from mobilemoney_async.payments.ownership.binding import service_address
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.due import DueWork
from mobilemoney_async.payments.records.queries import chunks
from mobilemoney_async.payments.records.statements import OF_ACCOUNT
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import Signal, shielded, task_group

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds: between two renewals of the claims; for which a poller, and a dispatcher, which asks the store twice a
# second, run on though nothing is to be done; and between two looks for payments with an unknown result.
_TICK, _LINGER, _DISPATCH_LINGER, _AGAIN = 1.0, 10.0, 2.0, 5.0
# Seconds between two reports of failures and of the accounts that need someone.
_REPORT = 60.0
# Accounts that are claimed at once and whose parts are not running yet, at most, and parts that are started at once.
_BATCH, _AT_ONCE = 250, 10
# Pauses after which a part that failed is started again, seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
_ANY = DueWork.FOLLOW | DueWork.RECONCILE | DueWork.DISPATCH


class Worker(anyio.AsyncContextManagerMixin):
    """Worker of this host: ``async with merchants.worker(): ...`` on any number of hosts.

    Leaving the block ends all parts and gives the accounts back. That waits for the answers to payments that were sent,
    ten seconds at most.
    """

    def __init__(
        self,
        store: AccountStore,
        base_url: str,
        utcnow: Callable[[], datetime] | None,
        open_client: Callable[[str], AbstractAsyncContextManager[AsyncClient]],
        check_open: Callable[[], None],
        *,
        pause_after: int | None,
        failures: dict[str, str],
        count: Callable[..., Awaitable[object]] | None,
    ) -> None:
        self._store, self._utcnow = store, utcnow or store.database.wall_clock.utcnow
        self._failures, self._count, self._pause_after = failures, count, pause_after
        self._database, self._service = store.database, service_address(base_url)
        self._claims = Claims(store.database, store.grace, self._utcnow)
        self._open_client, self._check_open = open_client, check_open
        self._served: dict[str, anyio.CancelScope] = {}
        self._starts = anyio.CapacityLimiter(_AT_ONCE)
        self._given_back: set[str] = set()
        self._dispatchers: dict[str, Dispatcher] = {}
        self._is_closing = self._is_looking = False
        self._report_at = -math.inf
        self._ended = Signal()
        self._renewing: anyio.CancelScope | None = None  # while it is open
        self._has_renewed = anyio.Event()  # for the last time

    @property
    def accounts(self) -> Collection[str]:
        """The accounts that this host serves now."""
        return frozenset(self._served)

    def dispatcher(self, account: str) -> Dispatcher | None:
        """Return the dispatcher of an account, such as to `resume` it; None if none runs on this host.

        One runs while something is queued. A pause is kept in the store, for all hosts.
        """
        return self._dispatchers.get(account)

    def __repr__(self) -> str:
        return f"<Worker: {len(self._served)} accounts>"

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        self._check_open()
        await self._database.open()
        await self._claims.require_service(self._service)
        self._is_closing = False
        try:
            async with task_group() as tasks:
                self._renewing = renewing = anyio.CancelScope(shield=True)
                self._has_renewed = anyio.Event()
                tasks.start_soon(self._run, tasks, renewing)
                try:
                    yield self
                finally:
                    await end(self)
        finally:
            if self._count is not None:
                await self._count(has_ended=True)

    async def _run(self, tasks: TaskGroup, renewing: anyio.CancelScope) -> None:
        """Renew the claims every second, until the scope is cancelled; it is shielded from every other cancellation."""
        try:
            with renewing:
                while True:
                    next_at = anyio.current_time() + _TICK
                    try:
                        await self._renew(tasks)
                    except StoreError as exc:
                        warn_of_store("the worker waits for the store", exc)
                    await anyio.sleep_until(next_at)
        finally:
            self._has_renewed.set()

    async def _renew(self, tasks: TaskGroup) -> None:
        given_back = frozenset(self._given_back)
        most = 0 if self._is_closing else _BATCH - self._starts.statistics().tasks_waiting
        renewal = await self._claims.renew(given_back=given_back, most=most)
        # Also what this renewal took while its old parts ended.
        self._given_back -= given_back | {claim.account for claim in renewal.new}
        if renewal.lost:
            logger.warning("the claims to %d accounts have ended: this host was away", len(renewal.lost))
        for claim in renewal.lost:
            if claim.account in self._served:
                self._served[claim.account].cancel()
        for claim in renewal.new:
            if self._is_closing or claim.account in self._served:  # what was lost has not ended yet
                self._given_back.add(claim.account)
            else:
                self._served[claim.account] = scope = anyio.CancelScope()
                tasks.start_soon(self._serve, claim, scope)
        for account in list(self._served)[: renewal.surplus]:
            self._served[account].cancel()
        if renewal.looks and not self._is_looking and not self._is_closing:
            self._is_looking = True
            tasks.start_soon(self._look)
        if (now := anyio.current_time()) >= self._report_at and not self._is_closing:
            self._report_at = now + _REPORT
            tasks.start_soon(self._report)

    async def _report(self) -> None:
        """Write which accounts could not be served, and count those that need someone."""
        failures, at = dict(self._failures), self._utcnow()
        self._failures.clear()
        try:
            for some in chunks(sorted(failures)):
                told = {account: failures[account] for account in some}
                await self._store.database.write(partial(save_failures, failures=told, at=at))
            if self._count is not None:
                await self._count()
        except StoreError as exc:
            warn_of_store("the worker reports nothing", exc)

    async def _look(self) -> None:
        try:
            await self._claims.look()
        except StoreError as exc:
            warn_of_store("the worker waits for the store", exc)
        finally:
            self._is_looking = False

    async def _serve(self, claim: Claim, scope: anyio.CancelScope) -> None:
        """Run the parts of an account until nothing is to be done any more."""
        try:
            with scope:
                try:
                    await self._run_parts(claim)
                except Exception as exc:  # one account must not end the others
                    is_ours = isinstance(exc, MobileMoneyError)
                    self._failures[claim.account] = told = _told(exc)
                    said = "account %r cannot be served: %s"
                    logger.log(logging.ERROR, said, claim.account, told, exc_info=None if is_ours else exc)
                    await anyio.sleep(_LONGEST_PAUSE)
        finally:
            self._given_back.add(claim.account)
            del self._served[claim.account]
            self._ended.send()

    async def _run_parts(self, claim: Claim) -> None:
        async with AsyncExitStack() as stack:
            # It may ask a function of the platform's for the store, which may take long: not in one of the few places.
            client = ClientOwner(await stack.enter_async_context(self._open_client(claim.account))).claimed(claim)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(self._persist, claim, DueWork.FOLLOW, partial(self._follow, client, claim))
            tasks.start_soon(self._persist, claim, DueWork.RECONCILE, partial(self._reconcile, client))
            tasks.start_soon(self._persist, claim, DueWork.DISPATCH, partial(self._dispatch, client, claim))
            await claim.is_done(_ANY, linger=_LINGER)
            while claim.account in self._dispatchers:  # its last answer may take longer
                await until_answered(self._dispatchers[claim.account])
                await claim.is_done(_ANY, linger=_LINGER)
            tasks.cancel_scope.cancel()

    async def _persist(self, claim: Claim, work: DueWork, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part whenever there is work for it; again, after a pause, where it fails."""
        pause = _FIRST_PAUSE
        while True:
            await claim.is_due(work)
            try:
                await run()
            except StoreError as exc:
                warn_of_store("the worker goes on later", exc)
            except Exception as exc:  # one account must not end the others
                self._failures[claim.account] = _told(exc)
                is_ours = isinstance(exc, MobileMoneyError)
                said = "account %r: %s fails, and is tried again after %.0f s: %s"
                logger.warning(said, claim.account, work.name, pause, exc, exc_info=None if is_ours else exc)
            else:
                pause = _FIRST_PAUSE
                continue
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _follow(self, client: AsyncClient, claim: Claim) -> None:
        # It asks for the account's secret, which may take long: not in one of the few places.
        await ClientOwner(client).require_own()
        async with AsyncExitStack() as stack:
            async with self._starts:
                await stack.enter_async_context(client.poller(resume=True))
            await claim.is_done(DueWork.FOLLOW, linger=_LINGER)

    async def _reconcile(self, client: AsyncClient) -> None:
        await client.payments.reconcile()
        await anyio.sleep(_AGAIN)

    async def _dispatch(self, client: AsyncClient, claim: Claim) -> None:
        async with client.dispatcher(pause_after=self._pause_after) as dispatcher:
            self._dispatchers[claim.account] = dispatcher
            try:
                await claim.is_done(DueWork.DISPATCH, linger=_DISPATCH_LINGER)
                await until_answered(dispatcher)
            finally:
                del self._dispatchers[claim.account]


def _told(error: Exception) -> str:
    """Return an error for the store: without the text of one that is not ours."""
    return str(error) if isinstance(error, MobileMoneyError) else type(error).__name__


async def end(worker: Worker) -> None:
    """End all parts of a worker and give its accounts back. Cancelling this changes nothing."""
    worker._is_closing = True

    async def finish() -> None:
        try:
            # The claims are renewed meanwhile: nobody else begins before these have ended.
            while worker._served:
                for scope in worker._served.values():
                    scope.cancel()
                await worker._ended.wait()
        finally:
            renewing, worker._renewing = worker._renewing, None
            if renewing is not None:
                renewing.cancel()
        if renewing is not None:
            await worker._has_renewed.wait()  # a renewal under way would take back what is given back
            await worker._claims.leave()

    await shielded(finish)


def save_failures(connection: sa.Connection, failures: Mapping[str, str], at: datetime) -> None:
    """Record the last failure of some accounts, by account; not of one with a locked row: it may fail again."""
    run, rows = connection.execute, [{"account": each} for each in failures]
    run(insert_missing(accounts, connection.dialect.name), rows)  # what is only queued has no row yet
    free = sa.select(accounts.c.account).where(accounts.c.account.in_(failures)).with_for_update(skip_locked=True)
    statement = accounts.update().where(accounts.c.account == OF_ACCOUNT)
    if found := run(free).scalars().all():
        run(statement, [{"of_account": each, "error": failures[each], "error_at": at} for each in found])
