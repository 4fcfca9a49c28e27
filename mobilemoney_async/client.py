"""The client: puts the parts together and owns the connection pool. It owns no background task."""

from __future__ import annotations

import os
import random
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
from anyio.lowlevel import checkpoint

from mobilemoney_async._version import __version__
from mobilemoney_async.calls.limiter import RateLimiter
from mobilemoney_async.calls.pipeline import Options, Pipeline
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.tokens import LoginAuth, TokenAuth, TokenSource
from mobilemoney_async.calls.transport import HTTPClient, HTTPTransport, Wire
from mobilemoney_async.contract.endpoints import Effect, undocumented
from mobilemoney_async.contract.limits import Schedule
from mobilemoney_async.resources.creates import Collections, Disbursements
from mobilemoney_async.resources.transactions import Transactions
from mobilemoney_async.resources.users import Users
from mobilemoney_async.values import HiddenText, Secret, can_encode, refuse, require_seconds

if TYPE_CHECKING:
    from mobilemoney_async.polling.poller import Poller

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*", re.ASCII)
_OUR_HEADERS = frozenset({"authorization", "content-type", "content-length", "host", "transfer-encoding"})
_DEFAULT_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": f"mobilemoney-async/{__version__}",
}


class _Unset:
    """The default of an option whose None means something."""

    def __repr__(self) -> str:
        return "<unset>"


_UNSET: Final = _Unset()


class AsyncClient:
    """The payments service, on asyncio and on trio.

    ``async with AsyncClient(base_url, auth=...) as client: ...``, or `aclose` at the end. One client serves a whole
    process; it may be used by any number of tasks of one event loop at once.

    Attributes:
        collections: Ask customers for payments.
        disbursements: Send money.
        transactions: Look payments up, list them, wait for them.
        users: Profiles, login, one-time passwords, forgotten passwords.

    Args:
        base_url: The service with its version prefix, such as ``https://…/v1``; http on loopback only.
        auth: An issued token, `TokenAuth`, `LoginAuth`, or your own `TokenSource`.
        rate_limiter: Paces the requests; by default one of this client's own at the contract's limit. Give the same
            one to all clients of one merchant in a process.
        retry: How often and how patiently a call is repeated. What may be repeated is not a setting.
        timeout: One attempt in all, seconds, more than 0.
        deadline: The whole call, login, waiting for the rate limit, attempts and pauses together, seconds, more than
            0; None sets no bound.
        transport: An httpx transport of yours, never closed by us; or ``"aiohttp"``, for busy platforms on asyncio:
            httpx-aiohttp's pool, at a fraction of the CPU (extra ``aiohttp``).
        http_client: An httpx client of yours (or httpx2's), never closed by us. Not together with `transport`.
        utcnow: The wall clock: returns an aware UTC datetime.

    Raises:
        InvalidRequest: An argument is not what it accepts.
    """

    collections: Collections
    disbursements: Disbursements
    transactions: Transactions
    users: Users

    def __init__(
        self,
        base_url: str,
        *,
        auth: str | Secret | TokenSource,
        rate_limiter: RateLimiter | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        timeout: float = 30.0,
        deadline: float | None = None,
        transport: HTTPTransport | None = None,
        http_client: HTTPClient | None = None,
        utcnow: Callable[[], datetime] | None = None,
    ) -> None:
        options = Options(
            timeout=require_seconds("timeout", timeout),
            deadline=None if deadline is None else require_seconds("deadline", deadline),
            retry=_check_retry(retry),
            headers=_DEFAULT_HEADERS,
        )
        if isinstance(auth, str | Secret):
            auth = TokenAuth(auth)
        tokens = auth
        if not callable(getattr(tokens, "token", None)):
            raise refuse("auth", "a token, TokenAuth, LoginAuth or a TokenSource")
        if rate_limiter is None:
            rate_limiter = RateLimiter()
        elif not isinstance(rate_limiter, RateLimiter):
            raise refuse("rate_limiter", "a RateLimiter")
        self._owns_wire = True
        self._assemble(
            Pipeline(
                wire=Wire(base_url, transport, http_client),
                limiter=rate_limiter,
                tokens=tokens,
                options=options,
                utcnow=_utcnow if utcnow is None else utcnow,
                random=random.random,
            )
        )

    def _assemble(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.collections = Collections(pipeline)
        self.disbursements = Disbursements(pipeline)
        self.transactions = Transactions(pipeline)
        self.users = Users(pipeline)

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Return a client configured by the environment.

        ``MOBILEMONEY_BASE_URL``, and either ``MOBILEMONEY_TOKEN`` or ``MOBILEMONEY_EMAIL`` and
        ``MOBILEMONEY_PASSWORD``.

        Args:
            options: Any other argument of `AsyncClient`; ``base_url`` and ``auth`` win over the environment.

        Raises:
            InvalidRequest: A variable is missing, contradicts another, or does not hold what it should.
        """
        if "auth" not in options:
            options["auth"] = _auth_from_env()
        if os.environ.get("MOBILEMONEY_STORE", "").strip():
            # Whoever sets it counts on payments being remembered; going on without would be money sent twice.
            raise refuse("MOBILEMONEY_STORE", "unset: this version has no store")
        base_url = options.pop("base_url", None) or _variable("MOBILEMONEY_BASE_URL")
        return cls(base_url, **options)

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
            timeout: As for `AsyncClient`; what is not given stays as it is.
            deadline: As for `AsyncClient`.
            retry: As for `AsyncClient`.
            extra_headers: Sent with every request, on top of those given before.

        Raises:
            InvalidRequest: An argument is not what it accepts.
        """
        changes: dict[str, Any] = {}
        if not isinstance(timeout, _Unset):
            changes["timeout"] = require_seconds("timeout", timeout)
        if not isinstance(deadline, _Unset):
            changes["deadline"] = None if deadline is None else require_seconds("deadline", deadline)
        if not isinstance(retry, _Unset):
            changes["retry"] = _check_retry(retry)
        if extra_headers is not None:
            changes["headers"] = _merge_headers(self._pipeline.options.headers, _check_headers(extra_headers))
        client = object.__new__(type(self))
        client._owns_wire = False
        client._assemble(attrs.evolve(self._pipeline, options=attrs.evolve(self._pipeline.options, **changes)))
        return client

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
            path: Below the base URL, with a leading slash; already quoted, without a query.
            params: For the query string.
            json: The body: plain JSON values, without floats.
            effect: What the call does, which decides what may be repeated: ``"read"``, ``"session"`` or ``"money"``.
                By default a GET reads and everything else moves money: it is never sent twice.

        Returns:
            The JSON object of the answer; its fractional numbers are `Decimal`.

        Raises:
            InvalidRequest: An argument is not what it accepts; nothing was sent.
            OutcomeUnknown: With the effect ``money``, as for a create.
            MobileMoneyError: The call failed; see `mobilemoney_async.errors`.
        """
        if not isinstance(method, str) or not re.fullmatch("[A-Za-z]+", method, re.ASCII):
            raise refuse("method", "an HTTP method")
        method = method.upper()
        if not isinstance(path, str) or not re.fullmatch(r"/[!$&-;=@-Z_a-z~%]*", path) or _climbs(path):
            raise refuse("path", "a path below the base URL with a leading slash, quoted, without query or '..'")
        if effect is None:
            effect = Effect.READ if method in {"GET", "HEAD", "OPTIONS"} else Effect.MONEY
        try:
            effect = Effect(effect)
        except ValueError as exc:
            raise refuse("effect", '"read", "session" or "money"') from exc
        key = uuid.uuid4().hex if effect is Effect.MONEY else None
        return await self._pipeline.call(
            undocumented(method, path, effect),
            query=_check_params(params),
            body=None if json is None else _check_json(json),
            idempotency_key=key,
        )

    def poller(
        self, *, timeout: float | None = None, min_interval: float = 1.0, schedule: Schedule | None = None
    ) -> Poller:
        """Return a poller, which follows any number of payments at once on what is left of the rate limit.

        ``async with client.poller() as poller: ...``

        Args:
            timeout: How long to follow each payment, seconds, more than 0; None for as long as it takes.
            min_interval: The shortest time between two requests of the poller, seconds, at least 0. The contract
                recommends 10 (section 8); the default is for merchants who want to know sooner.
            schedule: Other pauses between two looks at one payment than the advised ones (section 6).

        Raises:
            InvalidRequest: An argument is not what it accepts.
        """
        # Here, since it takes a tenth of the import, and most programs that only pay never follow.
        from mobilemoney_async.polling.poller import Poller

        return Poller(self._pipeline, timeout=timeout, min_interval=min_interval, schedule=schedule)

    async def aclose(self) -> None:
        """Close the client and its own connections; calls made afterwards raise `InvalidRequest`.

        A second call does nothing. A transport or client of yours stays open.
        """
        if self._owns_wire:
            await self._pipeline.wire.aclose()
        await checkpoint()

    async def __aenter__(self) -> Self:
        self._pipeline.wire.check_open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._pipeline.wire.base_url}>"


def _utcnow() -> datetime:
    return datetime.now(UTC)


def _check_retry(retry: RetryPolicy) -> RetryPolicy:
    if not isinstance(retry, RetryPolicy):
        raise refuse("retry", "a RetryPolicy")
    return retry


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise refuse("extra_headers", "a mapping of str to str")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name) or name.lower() in _OUR_HEADERS:
            raise refuse("extra_headers", f"header names other than {', '.join(sorted(_OUR_HEADERS))}")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise refuse("extra_headers", "values of visible ASCII characters")
    return {name: HiddenText(value) for name, value in headers.items()}


def _merge_headers(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return both, the new ones in place of the old: a name is the same in upper and lower case."""
    replaced = {name.lower() for name in new}
    return {**{name: value for name, value in old.items() if name.lower() not in replaced}, **new}


def _check_params(params: Mapping[str, str | int] | None) -> dict[str, str | int]:
    if params is None:
        return {}
    accepts = "a mapping of str to str or int, all of which can be encoded"
    if not isinstance(params, Mapping):
        raise refuse("params", accepts)
    for name, value in params.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, str | int):
            raise refuse("params", accepts)
        if not can_encode(f"{name}{value}"):
            raise refuse("params", accepts)
    return dict(params)


def _check_json(json: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(json, Mapping):
        raise refuse("json", "a mapping")
    return dict(json)


def _climbs(path: str) -> bool:
    """Return whether a path has segments that a URL resolves away."""
    return any(segment in {".", ".."} for segment in path.lower().replace("%2e", ".").split("/"))


def _variable(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise refuse(name, "an environment variable that is set and not empty")
    return value


def _auth_from_env() -> TokenAuth | LoginAuth:
    token = os.environ.get("MOBILEMONEY_TOKEN", "").strip()
    email = os.environ.get("MOBILEMONEY_EMAIL", "").strip()
    if token and email:
        raise refuse("MOBILEMONEY_TOKEN", "a token, or e-mail and password, not both")
    if token:
        return TokenAuth(token)
    if not email:
        raise refuse("MOBILEMONEY_TOKEN", "set it, or MOBILEMONEY_EMAIL and MOBILEMONEY_PASSWORD")
    _variable("MOBILEMONEY_PASSWORD")
    return LoginAuth(email, Secret(os.environ["MOBILEMONEY_PASSWORD"]))  # to the letter: it may begin with a space
