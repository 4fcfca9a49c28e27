"""The sandbox: one engine, its clock, and the three fronts that show it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx

from mobilemoney_async.sandbox.accounts import Account, Permission
from mobilemoney_async.sandbox.choices import Choices
from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.sandbox.engine import Engine
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.ledger import Ledger
from mobilemoney_async.sandbox.messages import Reply, Request
from mobilemoney_async.sandbox.payments import Payment
from mobilemoney_async.sandbox.request_log import RequestLog
from mobilemoney_async.sandbox.routes import PREFIX
from mobilemoney_async.sandbox.script import Rule
from mobilemoney_async.sandbox.states import Event, Kind
from mobilemoney_async.sandbox.transport import SandboxTransport

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.sandbox.asgi import SandboxApp

EMAIL = "merchant@example.com"


class Sandbox:
    """The payments service on your own machine: simulated money, magic numbers, scripted faults, a movable clock.

    Args:
        speed: Divides the durations under "Pace" in `Choices` and multiplies the rate limit. It changes neither how
            fast the clock runs nor the 3600 seconds of a login token.
        seed: The same seed and the same requests at the same times give the same ids, delays and probable faults.
        balance: What each merchant starts with, TZS.
        choices: What the contract leaves open.
        now: Aware time at which the sandbox's clock starts; None for the present.

    Raises:
        ValueError: `speed` is not a positive number, `balance` is negative or no number, or `now` is naive.
        TypeError: `balance` is a float.
    """

    def __init__(
        self,
        *,
        speed: float = 1.0,
        seed: int = 0,
        balance: Decimal | int | str = Decimal(10_000_000),
        choices: Choices | None = None,
        now: datetime | None = None,
    ) -> None:
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError("speed must be a positive number")
        self.speed = speed
        self._clock = Clock(now)
        self._engine = Engine(
            start=self._clock.start,
            speed=speed,
            seed=seed,
            balance=_money(balance),
            choices=Choices() if choices is None else choices,
        )
        self._account = self._engine.open_account(EMAIL)

    def __repr__(self) -> str:
        return f"Sandbox(speed={self.speed}, transactions={len(self._engine.book.payments)})"

    # Who may come in

    @property
    def base_url(self) -> str:
        """The address that the in-process front answers to; any other will do as well. `serve()` yields a real one."""
        return f"https://sandbox.mobilemoney.test{PREFIX}"

    @property
    def email(self) -> str:
        """Logs in together with `password`."""
        return self._account.email

    @property
    def password(self) -> str:
        """The present password: a reset changes it."""
        return self._account.password

    @property
    def token(self) -> str:
        """An issued access token that allows everything and never expires."""
        return self._account.token

    def add_account(self, email: str) -> Account:
        """Open a second merchant's account, with transactions, a balance and a request limit of its own.

        Raises:
            ValueError: There is one with this e-mail already.
        """
        return self._engine.open_account(email)

    def issue_token(self, permissions: Iterable[Permission | str] = tuple(Permission)) -> str:
        """Issue another token that never expires.

        Args:
            permissions: Of `"read"`, `"collect"`, `"disburse"`; the rest is refused as insufficient_permissions.

        Raises:
            ValueError: There is no such permission.
        """
        return self._engine.accounts.issue(self._account, permissions)

    def last_otp(self, phone_number: str) -> str:
        """Give the one-time password that this phone received last.

        Raises:
            LookupError: It received none, or the last one was verified.
        """
        return self._engine.users.otps.newest(phone_number)

    def last_reset_token(self, email: str) -> str:
        """Give the password reset token that this mailbox received last.

        Raises:
            LookupError: It received none, or the last one was used.
        """
        return self._engine.users.reset_tokens.newest(email)

    # The fronts

    def transport(self) -> httpx.AsyncBaseTransport:
        """Give an in-process transport: no sockets, on asyncio and trio, in real and in virtual time."""
        return SandboxTransport(self._handle)

    @property
    def app(self) -> SandboxApp:
        """The ASGI application.

        Raises:
            ImportError: The extra `sandbox` is not installed.
        """
        try:
            from mobilemoney_async.sandbox.asgi import SandboxApp
        except ImportError as exc:
            raise _extra_missing() from exc
        return SandboxApp(self._handle)

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve on a real socket inside the running asyncio loop, until the context is left.

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
        async with server.serve(self.app, host=host, port=port) as address:
            yield address + PREFIX

    def client(self, **options: Any) -> AsyncClient:
        """Make a client of this sandbox, in process.

        Args:
            **options: Of `AsyncClient`; they take precedence over what this method would choose: the issued token, the
                in-process transport, and a limiter at the sandbox's speed.
        """
        # Here and nowhere else: the service shares no code with its client, and is tested without it.
        from mobilemoney_async import AsyncClient, RateLimiter

        chosen: dict[str, Any] = {"base_url": self.base_url, "auth": self.token}
        if "http_client" not in options:
            chosen["transport"] = self.transport()
        if "rate_limiter" not in options:
            chosen["rate_limiter"] = RateLimiter(
                per_minute=60 * self.speed, burst=10, window=60 / self.speed, jitter=0.5 / self.speed
            )
        return AsyncClient(**{**chosen, **options})

    # What happens

    def script(
        self, *faults: Fault, on: str | None = None, times: int | None = None, probability: float | None = None
    ) -> Rule:
        """Let faults strike coming requests.

        Rules form a sequence: a request meets the first rule that strikes it, and no other.

        Args:
            *faults: From `mobilemoney_async.sandbox.faults`; they strike together.
            on: Which requests: an HTTP method, an endpoint's name or both, as in `"POST c2b"`; None for every request.
                The names: `c2b`, `b2c`, `transaction` (by id), `lookup` (by reference), `transactions`, `profile`,
                `users-profile`, `login`, `request-otp`, `verify-otp`, `forgot-password`, `reset-password`; `*` and `?`
                stand for any letters and any one, as in file names.
            times: How often at most. None means once, or without end if a `probability` is given.
            probability: Of striking a matching request, 0 to 1. None means always, the same as 1.

        Returns:
            The rule: `.fired` counts, `.cancel()` ends it.

        Raises:
            ValueError: No fault, an `on` that no request can match, or a number out of range.
        """
        if times is None and probability is None:
            times = 1
        return self._engine.script.add(
            faults, on=on, times=times, probability=1.0 if probability is None else probability
        )

    def clear_script(self) -> None:
        """Forget all rules."""
        self._engine.script.clear()

    def advance(self, seconds: float) -> None:
        """Move the clock ahead: what would have happened meanwhile has happened.

        Args:
            seconds: Not negative.

        Raises:
            ValueError: It is negative.
        """
        self._clock.advance(seconds)

    def approve(self, transaction_id: str) -> Payment:
        """Let the customer pay, or the recipient be paid, now. A payout over the balance ends in INSUFFICIENT_FUNDS.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final.
        """
        return self._decide(transaction_id, Event.APPROVE)

    def decline(self, transaction_id: str, reason: str | None = None) -> Payment:
        """Let the payment fail now.

        Args:
            transaction_id: Which.
            reason: Its `failure_reason`; None for the usual one of its kind.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final.
        """
        if reason is None:
            kind = self._engine.book.payments[transaction_id].kind
            reason = "PAYMENT_NOT_APPROVED" if kind is Kind.COLLECTION else "UNSPECIFIED_FAILURE"
        return self._decide(transaction_id, Event.DECLINE, reason)

    def expire(self, transaction_id: str) -> Payment:
        """Let the customer's prompt expire now.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final, or it is a disbursement.
        """
        return self._decide(transaction_id, Event.EXPIRE)

    # What happened

    @property
    def now(self) -> datetime:
        """The sandbox's time, aware UTC."""
        return self._engine.book.datetime_at(self._clock.seconds())

    @property
    def ledger(self) -> Ledger:
        """The money that really moved until now, of all accounts."""
        self._engine.book.settle(self._clock.seconds())
        return self._engine.book.ledger

    @property
    def balance(self) -> Decimal:
        """What the merchant has now, TZS."""
        return self.ledger.balance(self._account.merchant_id)

    @property
    def transactions(self) -> Mapping[str, Payment]:
        """All transactions by id, oldest first, in their true state now, whatever the service says about them."""
        self._engine.book.settle(self._clock.seconds())
        return self._engine.book.payments

    @property
    def requests(self) -> RequestLog:
        """The requests that came."""
        return self._engine.requests

    def _handle(self, request: Request) -> Reply:
        return self._engine.handle(request, self._clock.seconds())

    def _decide(self, transaction_id: str, event: Event, reason: str | None = None) -> Payment:
        now = self._clock.seconds()
        self._engine.book.settle(now)
        return self._engine.book.apply(transaction_id, event, at=now, reason=reason)


def _extra_missing() -> ImportError:
    return ImportError('the sandbox\'s server needs an extra: pip install "mobilemoney-async[sandbox]"')


def _money(value: Decimal | int | str) -> Decimal:
    if isinstance(value, (float, bool)):
        raise TypeError("balance must be an int, a Decimal or a str")
    try:
        money = Decimal(value)
    except ArithmeticError as exc:
        raise ValueError("balance must be a number") from exc
    if not (money.is_finite() and money >= 0):
        raise ValueError("balance must not be negative")
    return money
