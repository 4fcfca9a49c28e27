"""Sandbox: one engine, its clock, and the three fronts that serve it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import httpx

from mobilemoney_async.sandbox.accounts import Account, Permission
from mobilemoney_async.sandbox.behaviour import Choices, RateBudget
from mobilemoney_async.sandbox.callbacks import CallbackSender
from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.endpoints import PREFIX
from mobilemoney_async.sandbox.engine import Engine, dice
from mobilemoney_async.sandbox.messages import Reply, Request
from mobilemoney_async.sandbox.records import Ledger, RequestLog, opening_balance
from mobilemoney_async.sandbox.states import Payment
from mobilemoney_async.sandbox.transport import SandboxTransport

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from mobilemoney_async import AsyncClient
    from mobilemoney_async.sandbox.asgi import SandboxApp

EMAIL = "merchant@example.com"


class Sandbox(Controls):
    """Payments service on your own machine: simulated money, magic numbers, scripted faults, a movable clock.

    Args:
        speed: Divides the durations under "Pace" in `Choices` and multiplies the rate limit. The clock runs on (see
            `run_clock`), and a login token lives 3600 seconds at any speed.
        seed: The same seed and the same requests at the same times have the same ids, delays and probable faults.
        balance: Opening balance of each merchant, TZS.
        choices: Behaviour that the contract leaves open.
        now: Aware time at which the sandbox's clock starts; None for the present.
        by_hand: True if collections wait for your answer; see the property.

    Attributes:
        speed: As given.
        callbacks: Reports status changes to a URL, while `serve()` runs.

    Raises:
        ValueError: `speed` is not a positive number, `balance` is negative or not a number, or `now` is naive.
        TypeError: `balance` is a float, or `by_hand` is not a bool.
    """

    def __init__(
        self,
        *,
        speed: float = 1.0,
        seed: int = 0,
        balance: Decimal | int | str = Decimal(10_000_000),
        choices: Choices | None = None,
        now: datetime | None = None,
        by_hand: bool = False,
    ) -> None:
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError("speed must be a positive number")
        self.speed: float = speed
        clock = Clock(now)
        engine = Engine(
            start=clock.start,
            speed=speed,
            seed=seed,
            balance=opening_balance(balance),
            choices=Choices() if choices is None else choices,
        )
        super().__init__(engine, clock, CallbackSender(engine.book, clock, dice(seed, "callbacks")))
        self._account = engine.open_account(EMAIL)
        self.by_hand = by_hand

    def __repr__(self) -> str:
        return f"Sandbox(speed={self.speed}, transactions={len(self._engine.book.payments)})"

    # Accounts and tokens

    @property
    def base_url(self) -> str:
        """The base URL for the in-process front, which answers under any other as well. `serve()` yields a real one."""
        return f"https://sandbox.mobilemoney.test{PREFIX}"

    @property
    def email(self) -> str:
        """The merchant's e-mail, which logs in together with `password`."""
        return self._account.email

    @property
    def password(self) -> str:
        """The merchant's password; a reset changes it."""
        return self._account.password

    @property
    def token(self) -> str:
        """The merchant's access token, which has every permission and never expires."""
        return self._account.token

    def add_account(self, email: str) -> Account:
        """Open the account of another merchant, with its own transactions, balance and request limit.

        Raises:
            ValueError: There is one with this e-mail already.
        """
        return self._engine.open_account(email)

    def issue_token(self, permissions: Iterable[Permission | str] = tuple(Permission)) -> str:
        """Issue another token that never expires.

        Args:
            permissions: Of `"read"`, `"collect"`, `"disburse"`; other requests are refused as insufficient_permissions.

        Raises:
            ValueError: There is no such permission.
        """
        return self._engine.accounts.issue(self._account, permissions)

    def last_otp(self, phone_number: str) -> str:
        """Return the last one-time password that this phone received.

        Raises:
            LookupError: It received none, or the last one was verified.
        """
        return self._engine.users.otps.newest(phone_number)

    def last_reset_token(self, email: str) -> str:
        """Return the last password reset token that this mailbox received.

        Raises:
            LookupError: It received none, or the last one was used.
        """
        return self._engine.users.reset_tokens.newest(email)

    # The fronts

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return an in-process transport for httpx: no sockets, on asyncio and trio, in real and in virtual time."""
        return SandboxTransport(self._handle)

    @property
    def app(self) -> SandboxApp:
        """The ASGI application: the API under `/v1`, and the phone page at `/`.

        Raises:
            ImportError: The extra `sandbox` is not installed.
        """
        try:
            from mobilemoney_async.sandbox.asgi import SandboxApp
        except ImportError as exc:
            raise _extra_missing() from exc
        return SandboxApp(self._answer, self._open_page)

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve API and phone page on a real socket inside the running asyncio loop, until the context is left.

        While it serves, it also sends callbacks; see `callbacks`.

        Args:
            host: Address to listen on.
            port: TCP port; 0 takes a free one.

        Yields:
            The base URL, version prefix included.

        Raises:
            ImportError: The extra `sandbox` is not installed.
            RuntimeError: The running loop is not asyncio's.
            OSError: The address cannot be listened on, for example because the port is in use.
        """
        try:
            from mobilemoney_async.sandbox import server
        except ImportError as exc:
            raise _extra_missing() from exc
        async with server.serve(self.app, host=host, port=port, background=self.callbacks.run) as address:
            yield address + PREFIX

    def client(self, **options: Any) -> AsyncClient:
        """Make a client of this sandbox, in process.

        Args:
            **options: Of `AsyncClient`. The defaults are the issued token, the in-process transport, a limiter at the
                sandbox's speed, and a wall clock that `advance` moves too.
        """
        # The only import of the client: the service shares no code with it, and is tested without it.
        from mobilemoney_async import AsyncClient, RateLimiter

        chosen: dict[str, Any] = {"base_url": self.base_url, "auth": self.token, "utcnow": self._utcnow}
        if "http_client" not in options:
            chosen["transport"] = self.transport()
        if "rate_limiter" not in options:
            chosen["rate_limiter"] = RateLimiter(
                per_minute=60 * self.speed, burst=10, window=60 / self.speed, jitter=0.5 / self.speed
            )
        return AsyncClient(**{**chosen, **options})

    # State

    @property
    def now(self) -> datetime:
        """The service's time, aware UTC."""
        return self._engine.book.datetime_at(self._clock.seconds())

    @property
    def started_at(self) -> datetime:
        """The service's time at second 0, from which payments and requests count; aware UTC."""
        return self._clock.start

    @property
    def ledger(self) -> Ledger:
        """The money that moved until now, of all accounts."""
        self._settle()
        return self._engine.book.ledger

    @property
    def balance(self) -> Decimal:
        """The merchant's balance now, TZS."""
        return self.ledger.balance(self._account.merchant_id)

    def rate_budget(self) -> RateBudget:
        """Return the rest of the merchant's request limit now."""
        return self._engine.rate_budget(self._account, self._clock.unscaled_seconds())

    @property
    def transactions(self) -> MappingProxyType[str, Payment]:
        """All transactions by id, oldest first, in their true state now, whatever the service reports."""
        self._settle()
        return self._engine.book.payments

    @property
    def requests(self) -> RequestLog:
        """The requests that the sandbox got."""
        return self._engine.requests

    def _utcnow(self) -> datetime:
        """Return the time of a client's clock: unscaled, as are the lifetimes of its requests."""
        return self._engine.book.datetime_at(self._clock.unscaled_seconds())

    def _handle(self, request: Request) -> Reply:
        return self._engine.handle(request, self._clock.seconds(), self._clock.unscaled_seconds())

    async def _answer(self, request: Request) -> Reply:
        return await self.callbacks.reported_before(self._handle, request)

    def _open_page(self) -> ASGIApp:
        from mobilemoney_async.sandbox.page import create_page

        return create_page(self)


def _extra_missing() -> ImportError:
    return ImportError('the sandbox\'s server needs an extra: pip install "mobilemoney-async[sandbox]"')
