"""Client: puts the parts together and owns the connection pool. It owns no background task."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Never, Self

import anyio
import attrs

from mobilemoney_async.calls.collaborators import AccountClaim
from mobilemoney_async.calls.limiter import RateLimiter
from mobilemoney_async.calls.options import (
    DEFAULT_HEADERS,
    Auth,
    Options,
    allow_no_auth,
    check_auth,
    check_body,
    check_clock,
    check_effect,
    check_handler,
    check_limiter,
    check_method,
    check_params,
    check_path,
    hosts_now,
    refuse_unknown,
)
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.transport import HTTPClient, HTTPTransport, Wire
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits, check_limits
from mobilemoney_async.contract.codec import Fields
from mobilemoney_async.contract.endpoints import Effect, undocumented
from mobilemoney_async.contract.limits import Schedule
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.resources.creates import Collections, Disbursements
from mobilemoney_async.resources.recent_disbursements import RecentDisbursements
from mobilemoney_async.resources.transactions import Transactions
from mobilemoney_async.resources.users import Users
from mobilemoney_async.tracebacks import without_frames
from mobilemoney_async.values import hide, refuse, require_integer, require_seconds

if TYPE_CHECKING:
    from mobilemoney_async.events import Handler
    from mobilemoney_async.payments.api import ClientStore, Payments
    from mobilemoney_async.payments.outbox.dispatcher import Dispatcher
    from mobilemoney_async.payments.payouts.payouts import Payouts
    from mobilemoney_async.payments.store import SQLStore
    from mobilemoney_async.polling.poller import Poller


class _Unset:
    """Default of an option for which None is a value."""

    def __repr__(self) -> str:
        return "<unset>"


_UNSET: Final = _Unset()


class AsyncClient:
    """Client of the payments service, on asyncio and on trio.

    ``async with AsyncClient(base_url, auth=...) as client: ...``, or `aclose` at the end. One client serves a whole
    process; it may be used by any number of tasks of one event loop at once.

    Attributes:
        collections: Ask customers for payments.
        disbursements: Send money.
        transactions: Look payments up, list them, wait for them.
        users: Profiles, login, one-time passwords, forgotten passwords.

    Args:
        base_url: The service with its version prefix, such as ``https://…/v1``; http on loopback only.
        auth: An issued token, ``(email, password)``, `TokenAuth`, `LoginAuth`, or your own `TokenSource`.
        rate_limiter: Paces the requests; by default one of this client's own at the contract's limit. Give the same
            one to all clients of one merchant in a process.
        retry: The number of attempts of a call, and the pauses between them. Whether a call may be sent again is not a
            setting.
        timeout: One attempt in all, seconds, more than 0.
        deadline: The whole call, login, waiting for the rate limit, attempts and pauses together, seconds, more than
            0; None sets no bound.
        store: An `SQLStore`, or the URL of one. It remembers every payment, so that none is sent twice, and shares the
            rate limit, the login token and the poller with every other process that uses it. Stays yours when the
            client is closed: other clients may use it, then and later.
        transport: An httpx transport of yours, never closed by us; or ``"aiohttp"``, for busy platforms on asyncio:
            httpx-aiohttp's pool, at a fraction of the CPU (extra ``aiohttp``). Your transport must send each request
            once, to its own address. Retries, redirects or another host, in a library beneath it too, can pay twice.
            Once any of the request may have arrived, it must not raise a connect error.
        http_client: An httpx client of yours (or httpx2's), never closed by us; it keeps no cookies of the service. Not
            together with `transport`; the same rules hold for it. No hook of it may raise, as by ``raise_for_status``:
            httpx then closes the answer unread, and a payment that was refused is unknown.
        disbursement_limits: Amounts that disbursements must not exceed: `DisbursementLimits`. With a store, all
            processes with these limits count together.
        on_event: Called with each event of `mobilemoney_async.events`, in the event loop. Its errors are logged, and
            harm nothing.
        utcnow: The wall clock: returns an aware datetime. By default the host's; with a store in PostgreSQL the
            database's, so that hosts with different clocks agree on the time. With a store it is called in worker
            threads too.

    Raises:
        InvalidRequest: An argument is invalid.
        TypeError: There is no such argument.
    """

    collections: Collections
    disbursements: Disbursements
    transactions: Transactions
    users: Users

    @allow_no_auth
    def __init__(
        self,
        base_url: str,
        *,
        auth: Auth,
        rate_limiter: RateLimiter | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        timeout: float = 30.0,
        deadline: float | None = None,
        store: SQLStore | str | None = None,
        transport: HTTPTransport | None = None,
        http_client: HTTPClient | None = None,
        disbursement_limits: DisbursementLimits | None = None,
        on_event: Handler | None = None,
        utcnow: Callable[[], datetime] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown)
        options = Options(timeout=timeout, deadline=deadline, retry=retry, headers=DEFAULT_HEADERS)
        tokens, limiter, utcnow = check_auth(auth), check_limiter(rate_limiter), check_clock(utcnow)
        check_handler(on_event)
        self._limits = check_limits(disbursement_limits)
        self._recent = None if self._limits is None else RecentDisbursements(self._limits)
        self._owns_wire = True
        wire = Wire(base_url, transport, http_client)
        shared = None
        if store is not None:
            # Here and below: only programs with a store pay for its imports.
            from mobilemoney_async.payments.store import account_store, as_store

            shared = account_store(as_store(store))  # its error names the extra
            from mobilemoney_async.sharing.limiter import share_limiter
            from mobilemoney_async.sharing.login import share_tokens

            utcnow = shared.database.wall_clock.utcnow if utcnow is None else utcnow
            limiter, tokens = share_limiter(shared, limiter), share_tokens(shared, tokens)
        pipeline = Pipeline(wire, limiter, tokens, options, utcnow or hosts_now, random.random, on_event)
        joined = None
        if shared is not None:
            from mobilemoney_async.payments.api import ClientStore

            joined = ClientStore.assemble(shared, pipeline, self._limits)
            joined.attach()
        self._assemble(pipeline, joined)

    def _assemble(self, pipeline: Pipeline, store: ClientStore | None) -> None:
        self._pipeline, self._store = pipeline, store
        creates = None if store is None else store.creates
        self.collections = Collections(pipeline, creates)
        self.disbursements = Disbursements(pipeline, creates, self._recent)
        self.transactions = Transactions(pipeline)
        self.users = Users(pipeline)

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Return a client configured by the environment.

        ``MOBILEMONEY_BASE_URL``, and either ``MOBILEMONEY_TOKEN`` or ``MOBILEMONEY_EMAIL`` and
        ``MOBILEMONEY_PASSWORD``. ``MOBILEMONEY_STORE``, where it is set, is the URL of an `SQLStore`, and
        ``MOBILEMONEY_STORE_KEY`` its key. ``…_FILE`` in place of a secret names its file. Or ``MOBILEMONEY_PROFILE``: a
        profile of ``mobilemoney.toml``, over which the other variables win, as on the command line. A login that
        ``mobilemoney login`` keeps is the command line's only.

        Args:
            options: Any other argument of `AsyncClient`; ``base_url``, ``auth`` and ``store`` win over the environment.

        Raises:
            InvalidRequest: Variables are missing, contradict each other, or are invalid.
            OSError: A file cannot be read.
        """
        # Here: only programs that are configured so pay for it.
        from mobilemoney_async.configuration.settings import program_settings

        try:
            found = program_settings(options.pop("base_url", None), has_auth="auth" in options)
        except (InvalidRequest, OSError) as exc:
            without_frames(exc)  # they hold the environment
            raise
        if "auth" not in options and found.email is not None and found.password is not None:
            options["auth"] = (found.email, found.password)
        elif "auth" not in options and found.token is not None:
            options["auth"] = found.token
        if "store" not in options and found.store is not None:
            from mobilemoney_async.payments.store import SQLStore

            options["store"] = SQLStore(found.store, found.account, key=found.store_key, **found.store_options)
        for name, value in (("timeout", found.timeout), ("disbursement_limits", found.disbursement_limits)):
            if value is not None:
                options.setdefault(name, value)
        return cls(found.base_url, **options)

    def with_options(
        self,
        *,
        timeout: float | _Unset = _UNSET,
        deadline: float | None | _Unset = _UNSET,
        retry: RetryPolicy | _Unset = _UNSET,
        extra_headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a client with other options that shares this one's pool, limiter and token.

        Closing it closes nothing; closing this one closes both.

        Args:
            timeout: As for `AsyncClient`; an option that you do not give stays as it is.
            deadline: As for `AsyncClient`.
            retry: As for `AsyncClient`.
            extra_headers: Sent with every request, on top of those given before.

        Raises:
            InvalidRequest: An argument is invalid.
        """
        headers = Fields.of(extra_headers)
        del extra_headers
        given = {"timeout": timeout, "deadline": deadline, "retry": retry}
        changes = {name: value for name, value in given.items() if not isinstance(value, _Unset)}
        options = self._pipeline.options.changed(changes, headers)
        return self._copy(attrs.evolve(self._pipeline, options=options))

    def _copy(self, pipeline: Pipeline) -> Self:
        """Return a client that shares everything but the pipeline with this one, and closes nothing."""
        client = object.__new__(type(self))
        client._owns_wire = False
        client._limits, client._recent = self._limits, self._recent
        client._assemble(pipeline, None if self._store is None else self._store.sharing(pipeline))
        return client

    def _require_store(self, needed: str) -> ClientStore:
        if self._store is None:
            raise refuse("store", f"given to AsyncClient, such as store=SQLStore(...): only a store has {needed}")
        return self._store

    @property
    def payments(self) -> Payments:
        """The payments in the store.

        Raises:
            InvalidRequest: The client has no store.
        """
        return self._require_store("payments").payments

    @property
    def payouts(self) -> Payouts:
        """Batches of disbursements that one person proposes and another approves.

        Raises:
            InvalidRequest: The client has no store.
        """
        pipeline, store = self._pipeline, self._require_store("payouts").account_store
        from mobilemoney_async.payments.payouts.payouts import Payouts

        # A deadline is one of calls: lookups before a retry wait behind payments, for minutes where there are many.
        get_many = self.with_options(deadline=None).transactions.get_many
        return Payouts(store, pipeline.utcnow, self._limits, get_many, pipeline.on_event)

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None = None,
        json: Mapping[str, Any] | None = None,
        effect: Effect | str | None = None,
    ) -> dict[str, Any]:
        """Call an endpoint that the contract leaves out, with this client's limiter, token and retries.

        Args:
            method: The HTTP method.
            path: Below the base URL, with a leading slash; already quoted, without a query. Events and logs show its
                plain words only: it may hold an id or a phone number.
            params: For the query string.
            json: The body: plain JSON values, without floats.
            effect: ``"read"``, ``"session"`` or ``"money"``, which decides whether the call may be sent again.
                By default GET, HEAD and OPTIONS read, and everything else moves money: it is never sent twice.

        Returns:
            The JSON object of the answer; its fractional numbers are `Decimal`.

        Raises:
            InvalidRequest: An argument is invalid; nothing was sent.
            OutcomeUnknown: With the effect ``money``, as for a create.
            MobileMoneyError: The call failed; see `mobilemoney_async.errors`.
        """
        path, query, fields = hide(path), Fields.of(params), Fields.of(json)
        del params, json
        method, path = check_method(method), check_path(path)
        body, effect = check_body(fields), check_effect(effect, method)
        key = uuid.uuid4().hex if effect is Effect.MONEY else None
        return await self._pipeline.call(
            undocumented(method, path, effect),
            query=check_params(query),
            body=body,
            idempotency_key=key,
        )

    def poller(
        self,
        *,
        timeout: float | None = None,
        min_interval: float = 1.0,
        schedule: Schedule | None = None,
        resume: bool = False,
    ) -> Poller:
        """Return a poller, which follows any number of payments at once on the rest of the rate limit.

        ``async with client.poller() as poller: ...``

        With a store, one of the pollers of all its processes asks for all of them, another takes over within seconds
        where that one dies, and final states are recorded.

        Args:
            timeout: How long to follow each payment, seconds, more than 0; None for as long as it takes.
            min_interval: The shortest time between two requests of the poller, seconds, at least 0. The contract
                recommends 10 (section 8); the default is for merchants that need results sooner.
            schedule: Other pauses between two looks at one payment than the advised ones (section 6).
            resume: Whether to track every payment of the store that is not final: those that are there, as after a
                restart, and each that a process sends from now on, such as a dispatcher. A final state that is in the
                store already is not reported again: ``client.payments`` has it.

        Raises:
            InvalidRequest: An argument is invalid, or there is no store to resume from.
        """
        # Here, since it takes a tenth of the import, and most programs that only pay never follow.
        from mobilemoney_async.polling.poller import Poller

        channel = None
        if self._store is not None:
            from mobilemoney_async.sharing.poller import open_channel

            channel = open_channel(self._store.account_store, self._store.recovery.binding, self._pipeline)
        return Poller(
            self._pipeline,
            timeout=timeout,
            min_interval=min_interval,
            schedule=schedule,
            channel=channel,
            resume=resume,
        )

    def dispatcher(self, *, per_minute: float = 45.0, pause_after: int | None = 20) -> Dispatcher:
        """Return a dispatcher, which sends the payments that are queued: see `SQLStore.enqueue`.

        ``async with client.dispatcher() as dispatcher: ...`` in any number of processes. One of them sends, and another
        goes on within seconds where that one dies. Payments with a higher priority come first, then older ones, behind
        the creates of your program. A refused or unknown payment does not stop the others. Twenty payments of a type in
        a row that end for the same reason without money moving do, in all processes, until ``resume()``; after five
        unknown results in a row it sends one at a time, with pauses.

        Args:
            per_minute: Payments a minute at most, more than 0 and no more than the rate limit. What is left of that
                serves your program's own calls and the poller.
            pause_after: So many equal ends without money moving, refusals or final states such as an empty float's,
                pause it; None for never.

        Raises:
            InvalidRequest: An argument is invalid, or the client has no store.
        """
        pace = require_seconds("per_minute", per_minute, unit="a number")
        if pause_after is not None:
            require_integer("pause_after", pause_after, 1)
        limit = getattr(self._pipeline.limiter, "per_minute", math.inf)  # of a caller's own limiter, perhaps not known
        if pace > limit:
            raise refuse("per_minute", f"at most {limit:g}, the rate limit", per_minute)
        # Without the deadline of a call: it may wait for long behind others.
        store = self.with_options(deadline=None)._require_store("queued payments")
        from mobilemoney_async.payments.outbox.dispatcher import Dispatcher

        return Dispatcher(store.account_store, self._pipeline, store.creates, pace, pause_after)

    async def aclose(self) -> None:
        """Close the client and its own connections; calls made afterwards raise `InvalidRequest`.

        A second call does nothing. A transport or client of yours stays open.
        """
        if self._owns_wire:
            await ClientOwner(self).close()
        await anyio.lowlevel.checkpoint()

    close = aclose

    async def __aenter__(self) -> Self:
        self._pipeline.wire.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        pipeline = getattr(self, "_pipeline", None)  # a reporter shows also one whose arguments were refused
        return f"<AsyncClient {None if pipeline is None else pipeline.wire.base_url}>"


@attrs.frozen(eq=False)
class ClientOwner:
    """Owner of a client that opens and closes its parts by itself, such as `Merchants` and a worker."""

    client: AsyncClient

    def own(self, in_use: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """Let the client's own `aclose` close nothing from now on; for `in_use` see `Wire`."""
        self.client._owns_wire, self.client._pipeline.wire.in_use = False, in_use

    def reopen(self) -> None:
        """Join the store again after `close_idle`; otherwise do nothing."""
        if self.client._store is not None:
            self.client._store.attach()

    async def close_idle(self, *, keeps_store: bool = False) -> None:
        """Close the idle connections, and leave the store. The next call opens new ones; `reopen` before it."""
        if self.client._store is not None and not keeps_store:
            await self.client._store.leave()
        await self.client._pipeline.wire.close_idle()

    async def close(self) -> None:
        """Close the client and its connections for good, also when it is cancelled meanwhile."""
        try:
            if self.client._store is not None:
                await self.client._store.leave()
        finally:
            await self.client._pipeline.wire.aclose()

    def claimed(self, claim: AccountClaim) -> AsyncClient:
        """Return a client that shares everything with this one, and sends only while a claim of its account holds."""
        pipeline = self.client._pipeline
        options = attrs.evolve(pipeline.options, deadline=None)
        return self.client._copy(attrs.evolve(pipeline, options=options, claim=claim))

    async def require_own(self) -> None:
        """Raise `StoreError` if the store's account is another merchant's, as far as that can be found out."""
        if self.client._store is not None:
            await self.client._store.recovery.binding.require_not_foreign()
