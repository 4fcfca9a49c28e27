"""Controls of a running sandbox: accounts, the customers' answers, the clock, faults and records."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType

from mobilemoney_async.sandbox.accounts import Account, Permission
from mobilemoney_async.sandbox.behaviour import Choices, RateBudget
from mobilemoney_async.sandbox.callbacks import CallbackSender
from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.sandbox.engine import Engine, dice
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.messages import RefusedError, Reply
from mobilemoney_async.sandbox.phones import Phone, Phones
from mobilemoney_async.sandbox.records import Ledger, RequestLog, opening_balance
from mobilemoney_async.sandbox.script import Rule, SwitchBoard
from mobilemoney_async.sandbox.states import Event, Kind, Payment

EMAIL = "merchant@example.com"
MOST_MERCHANTS = 10_000


_WHOLE = re.compile(r"0*([0-9]+?)(?:\.00?)?")


def _as_sent(amount: int | Decimal | str) -> str:
    """Return an amount as a client sends it; another value stays as it is, for the service to refuse it."""
    if isinstance(amount, bool) or not isinstance(amount, int | Decimal | str):
        raise ValueError("amount must be a positive whole number of TZS as int, Decimal or str, such as 15000")  # noqa: TRY004
    text = f"{amount:f}" if isinstance(amount, Decimal) else str(amount)
    found = _WHOLE.fullmatch(text)
    return text if found is None else found[1]


class Controls:
    """Base of `Sandbox`, without its fronts: all that a test, an operator or the phone page reads and controls."""

    def __init__(
        self,
        *,
        speed: float = 1.0,
        seed: int = 0,
        run: str = "",
        balance: Decimal | int | str = Decimal(10_000_000),
        choices: Choices | None = None,
        now: datetime | None = None,
        by_hand: bool = False,
        merchants: int = 1,
    ) -> None:
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError("speed must be a positive number")
        if not isinstance(choices, Choices | None):
            raise TypeError("choices must be Choices(...)")
        self.speed: float = speed
        clock = Clock(now)
        engine = Engine(
            start=clock.start,
            speed=speed,
            seed=seed,
            run=run,
            balance=opening_balance(balance),
            choices=Choices() if choices is None else choices,
        )
        self.callbacks: CallbackSender = CallbackSender(engine.book, clock, dice(seed, "callbacks"))
        self._engine = engine
        self._clock = clock
        self._phones = Phones(engine.book, engine.accounts, engine.users.otps)
        self._account = engine.open_account(EMAIL)
        if type(merchants) is not int or not 1 <= merchants <= MOST_MERCHANTS:
            raise ValueError(f"merchants must be an int from 1 to {MOST_MERCHANTS}")
        for number in range(2, merchants + 1):
            engine.open_account(f"shop-{number}@example.com")
        self.by_hand = by_hand

    def __repr__(self) -> str:
        return f"Sandbox(speed={self.speed}, transactions={len(self._engine.book.payments)})"

    # Accounts and tokens

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

    @property
    def merchants(self) -> Mapping[str, Account]:
        """The accounts of all merchants, by names as a platform may give them: ``shop-1`` is the first one."""
        return self._engine.accounts.by_name

    @property
    def tokens(self) -> Mapping[str, str]:
        """The access token of each of `merchants`, by the same names."""
        return {name: account.token for name, account in self.merchants.items()}

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

    # Faults

    def script(
        self, *faults: Fault, on: str | None = None, times: int | None = None, probability: float | None = None
    ) -> Rule:
        """Let faults strike coming requests.

        Rules form a sequence: a request meets the first rule that strikes it, and no other.

        Args:
            *faults: From `mobilemoney_async.sandbox.faults`; they strike together.
            on: The requests: an HTTP method, an endpoint's name or both, as in `"POST c2b"`; None for every request.
                The names: `c2b`, `b2c`, `transaction` (by id), `lookup` (by reference), `transactions`, `profile`,
                `users-profile`, `login`, `request-otp`, `verify-otp`, `forgot-password`, `reset-password`; `*` and `?`
                match as in file names.
            times: The most strikes. None means once, or without end if a `probability` is given.
            probability: Of striking a matching request, 0 to 1. None means always, the same as 1.

        Returns:
            The rule: `.fired` counts, ``.cancel()`` ends it.

        Raises:
            ValueError: No fault, an `on` that no request can match, or a number out of range.
            TypeError: One of the faults is none.
        """
        if times is None and probability is None:
            times = 1
        rule = Rule(faults=faults, on=on, times=times, probability=1.0 if probability is None else probability)
        return self._engine.script.add(rule)

    def clear_script(self) -> None:
        """Remove all rules."""
        self._engine.script.clear()

    @property
    def switches(self) -> SwitchBoard:
        """Switches that turn each fault on and off."""
        return self._engine.switches

    @property
    def by_hand(self) -> bool:
        """True if new collections from ordinary numbers wait for your answer, until their prompts expire.

        Magic numbers and disbursements end automatically. You can change it at any time.
        """
        return self._engine.payments.by_hand

    @by_hand.setter
    def by_hand(self, by_hand: bool) -> None:
        if type(by_hand) is not bool:
            raise TypeError("by_hand must be True or False")
        self._engine.payments.by_hand = by_hand

    # The clock

    @property
    def now(self) -> datetime:
        """The service's time, aware UTC."""
        return self._engine.book.datetime_at(self._clock.seconds())

    @property
    def started_at(self) -> datetime:
        """The service's time at second 0, from which payments and requests count; aware UTC."""
        return self._clock.start

    def advance(self, seconds: float) -> None:
        """Move the clock ahead; all events of that time happen.

        Args:
            seconds: Not negative.

        Raises:
            ValueError: It is negative or not a number.
        """
        self._clock.advance(seconds)
        self.callbacks.wake()

    @property
    def clock_rate(self) -> float:
        """Seconds of the service's time in one second of the event loop's; 0 while the clock is paused."""
        return self._clock.rate

    def run_clock(self, rate: float) -> None:
        """Let the service's time pass faster or slower from now on.

        Pending payments, lags, `created_at`, and the lifetimes of tokens, prompts and one-time passwords follow it. The
        request limit, the lock after refused logins, latency and other times that a client measures by its own clock do
        not: they follow the event loop's time and `speed`, also while the clock is paused.

        Args:
            rate: Seconds of the service's time for each second of the event loop's, 0 to 1000: 1 is normal, 0 pauses.

        Raises:
            ValueError: `rate` is out of its range.
        """
        self._clock.run(rate)
        self.callbacks.wake()

    # Payments

    def ask(self, phone_number: str, amount: int | Decimal | str, *, account: Account | None = None) -> Reply:
        """Ask a customer to pay, as the phone page does: a collection of the merchant's without a program.

        It counts neither in the request limit nor in the request log, and scripts and switches spare it. A magic number
        acts as ever. Later payments have the ids and delays that they would have without it.

        Args:
            phone_number: International format; blanks and hyphens are left out, as a client leaves them out.
            amount: Whole TZS, as a client takes them: 15000, ``"15000"`` or ``"15000.00"``.
            account: The name of the asking merchant, of `merchants`; None for the first one.

        Returns:
            The service's answer to that request: `status`, `body`, and `wire` where a magic number takes the answer
            away. A client makes an `Acknowledgement` or an error of it.

        Raises:
            ValueError: The service refuses the phone number or the amount.
        """
        fields = {"phone_number": phone_number, "amount": _as_sent(amount)}
        if isinstance(phone_number, str):
            fields["phone_number"] = phone_number.replace(" ", "").replace("-", "")
        try:
            return self._engine.ask(account or self._account, fields, self._clock.seconds())
        except RefusedError as refusal:
            raise ValueError(json.loads(refusal.reply.body)["message"]) from refusal

    def approve(self, transaction_id: str) -> Payment:
        """Let the customer pay, or the recipient be paid, now. A payout over the balance ends in INSUFFICIENT_FUNDS.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final.
        """
        return self._decide(transaction_id, Event.APPROVE)

    def phones(self) -> tuple[Phone, ...]:
        """The customers' phones: those with open prompts first, then the most recently used; 50 at most."""
        self._settle()
        return self._phones.shown()

    def enter_pin(self, transaction_id: str, pin: str) -> bool:
        """Answer a customer's prompt with a PIN: `phones.PIN` pays, the third wrong one declines.

        PINs are an invention of this sandbox; the service does not document them.

        Returns:
            True if the PIN was right and the payment is made.

        Raises:
            TypeError: `pin` is not a str.
            KeyError: There is no such transaction.
            IllegalTransitionError: It is a disbursement, or its state is final.
        """
        return self._phones.enter_pin(transaction_id, pin, at=self._settle())

    def decline(self, transaction_id: str, reason: str | None = None) -> Payment:
        """Let the payment fail now.

        Args:
            transaction_id: The payment.
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

    # Records

    @property
    def ledger(self) -> Ledger:
        """The money that moved until now, of all accounts."""
        self._settle()
        return self._engine.book.ledger

    @property
    def balance(self) -> Decimal:
        """The merchant's balance now, TZS."""
        return self.ledger.balance(self._account.merchant_id)

    def rate_budget(self, account: Account | None = None) -> RateBudget:
        """Return the rest of a merchant's request limit now: of the first one, or of an account of `merchants`."""
        return self._engine.rate_budget(account or self._account, self._clock.unscaled_seconds())

    @property
    def transactions(self) -> MappingProxyType[str, Payment]:
        """All transactions by id, oldest first, in their true state now, whatever the service reports."""
        self._settle()
        return self._engine.book.payments

    def transaction_ids(self, account: Account) -> Sequence[str]:
        """Return the ids of one merchant's transactions, oldest first."""
        self._settle()
        return self._engine.book.ids_of(account.merchant_id)

    @property
    def requests(self) -> RequestLog:
        """The requests that the sandbox got."""
        return self._engine.requests

    def _decide(self, transaction_id: str, event: Event, reason: str | None = None) -> Payment:
        return self._engine.book.apply(transaction_id, event, at=self._settle(), reason=reason)

    def _settle(self) -> float:
        """Let all events happen that are due, and return the service's time."""
        now = self._clock.seconds()
        self._engine.book.settle(now)
        return now
