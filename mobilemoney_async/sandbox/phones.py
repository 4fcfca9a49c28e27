"""Customers' phones: their open prompts, their one-time passwords, their history and their PIN.

Prompts, PINs and the three tries are inventions of this sandbox; the service documents none of them.
"""

import collections
import itertools
from datetime import datetime

import attrs

from mobilemoney_async.sandbox.accounts import Accounts
from mobilemoney_async.sandbox.payments import TransactionBook
from mobilemoney_async.sandbox.states import Event, IllegalTransitionError, Kind, Payment
from mobilemoney_async.sandbox.user_service import OneTimeCodes

PIN = "1234"
"""The PIN of every customer."""

TRIES = 3
"""The third wrong PIN declines the payment."""

PHONES_SHOWN = 50
PROMPTS_SHOWN = 20
HISTORY_SHOWN = 20


@attrs.frozen(kw_only=True)
class Prompt:
    """Prompt on a customer's phone: an open collection.

    Args:
        transaction_id: The collection.
        reference: The service's reference.
        amount: Whole TZS.
        merchant: The e-mail of the merchant's account.
        created_at: Aware UTC.
        expires_at: Aware UTC; None if the prompt does not expire.
        wrong_pins: Number of wrong PINs, less than `TRIES`.
    """

    transaction_id: str
    reference: str
    amount: str
    merchant: str
    created_at: datetime
    expires_at: datetime | None
    wrong_pins: int


@attrs.frozen(kw_only=True)
class Phone:
    """Phone of one customer.

    Args:
        phone_number: As the merchant sent it.
        prompts: The newest `PROMPTS_SHOWN` open prompts, newest first.
        history: The newest `HISTORY_SHOWN` final payments from and to it, the last to end first.
        otp: The one-time password that it received last, unless that was verified.
    """

    phone_number: str = attrs.field(repr=False)
    prompts: tuple[Prompt, ...]
    history: tuple[Payment, ...]
    otp: str | None = attrs.field(default=None, repr=False)


class _PhoneHistory:
    """Transaction ids of one phone."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}
        self.over: collections.deque[str] = collections.deque(maxlen=HISTORY_SHOWN)


class Phones:
    """Phones of all numbers that were ever asked to pay, paid, or sent a code. Each change in the book is followed."""

    def __init__(self, book: TransactionBook, accounts: Accounts, otps: OneTimeCodes) -> None:
        self._book = book
        self._otps = otps
        self._accounts = accounts
        # By phone number, the most recently used last.
        self._lines: dict[str, _PhoneHistory] = {}
        self._wrong_pins: dict[str, int] = {}
        book.watch(self._follow)

    def shown(self) -> tuple[Phone, ...]:
        """Return the newest `PHONES_SHOWN`: phones with open prompts first, then the others, the last used first."""
        for number in self._otps.holders():
            self._lines.setdefault(number, _PhoneHistory())
        newest = list(reversed(self._lines.items()))
        newest.sort(key=lambda item: not item[1].waiting)
        return tuple(self._phone(number, line) for number, line in newest[:PHONES_SHOWN])

    def enter_pin(self, transaction_id: str, pin: str, *, at: float) -> bool:
        """Answer a prompt; see `Sandbox.enter_pin`. `at` in seconds since the sandbox's start."""
        if not isinstance(pin, str):
            raise TypeError("pin must be a str of digits")
        payment = self._book.payments[transaction_id]
        if payment.kind is not Kind.COLLECTION or payment.ended_at is not None:
            raise IllegalTransitionError(f"a {payment.kind} in {payment.status} has no prompt")
        if pin == PIN:
            self._book.apply(transaction_id, Event.APPROVE, at=at)
            return True
        self._wrong_pins[transaction_id] = self._wrong_pins.get(transaction_id, 0) + 1
        if self._wrong_pins[transaction_id] >= TRIES:
            self._book.apply(transaction_id, Event.DECLINE, at=at, reason="PAYMENT_NOT_APPROVED")
        return False

    def _phone(self, number: str, line: _PhoneHistory) -> Phone:
        payments = self._book.payments
        waiting = itertools.islice(reversed(line.waiting), PROMPTS_SHOWN)
        return Phone(
            phone_number=number,
            prompts=tuple(self._prompt(payments[transaction_id]) for transaction_id in waiting),
            history=tuple(payments[transaction_id] for transaction_id in line.over),
            otp=self._otps.find(number),
        )

    def _prompt(self, payment: Payment) -> Prompt:
        expires_at = payment.expires_at
        return Prompt(
            transaction_id=payment.id,
            reference=payment.reference,
            amount=payment.amount,
            merchant=self._accounts.of_merchant(payment.merchant_id).email,
            created_at=self._book.datetime_at(payment.created_at),
            expires_at=None if expires_at is None else self._book.datetime_at(expires_at),
            wrong_pins=self._wrong_pins.get(payment.id, 0),
        )

    def _follow(self, payment: Payment) -> None:
        number = payment.phone_number
        line = self._lines.pop(number, None) or _PhoneHistory()
        if payment.ended_at is not None:
            line.waiting.pop(payment.id, None)
            line.over.appendleft(payment.id)
            self._wrong_pins.pop(payment.id, None)
        elif payment.kind is Kind.COLLECTION:
            line.waiting[payment.id] = None
        self._lines[number] = line
