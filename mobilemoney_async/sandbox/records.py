"""Records that tests assert on: the ledger of moved money, and the log of requests."""

import collections
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import overload

import attrs

from mobilemoney_async.sandbox.states import Kind


@attrs.frozen(kw_only=True)
class LedgerEntry:
    """One movement of money.

    Args:
        transaction_id: The transaction that moved it.
        kind: Whether it was collected or paid out.
        phone_number: The other side.
        amount: What the customer paid for, or the recipient got; TZS, positive.
        change: What it did to the merchant's balance; TZS, signed. A collection adds its amount less the merchant fee.
        merchant_id: Whose balance.
        at: Seconds since the sandbox's start.
    """

    transaction_id: str
    kind: Kind
    phone_number: str = attrs.field(repr=False)
    amount: Decimal
    change: Decimal
    merchant_id: str
    at: float


class Ledger:
    """All movements in the order in which they happened. Entries are only ever added."""

    def __init__(self) -> None:
        self._entries: list[LedgerEntry] = []
        self._balances: dict[str, Decimal] = {}

    @overload
    def __getitem__(self, index: int) -> LedgerEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LedgerEntry]: ...
    def __getitem__(self, index: int | slice) -> LedgerEntry | Sequence[LedgerEntry]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self._entries)

    @property
    def collected(self) -> Decimal:
        """TZS that customers paid, before fees."""
        return sum((entry.amount for entry in self if entry.kind is Kind.COLLECTION), Decimal(0))

    @property
    def disbursed(self) -> Decimal:
        """TZS that recipients got."""
        return sum((entry.amount for entry in self if entry.kind is Kind.DISBURSEMENT), Decimal(0))

    @property
    def change(self) -> Decimal:
        """The sum of all changes to balances, TZS, signed."""
        return sum((entry.change for entry in self), Decimal(0))

    def of_transaction(self, transaction_id: str) -> list[LedgerEntry]:
        """The movements of one transaction: one if it succeeded, none otherwise."""
        return [entry for entry in self if entry.transaction_id == transaction_id]

    def of_phone(self, phone_number: str) -> list[LedgerEntry]:
        """The movements from and to one phone."""
        return [entry for entry in self if entry.phone_number == phone_number]

    def balance(self, merchant_id: str) -> Decimal:
        """The merchant's balance, TZS; zero for one that was never opened."""
        return self._balances.get(merchant_id, Decimal(0))

    def open(self, merchant_id: str, balance: Decimal) -> None:
        """Start a merchant's account with this balance, TZS."""
        self._balances[merchant_id] = balance

    def record(self, entry: LedgerEntry) -> None:
        """Add a movement and change the balance by it."""
        self._entries.append(entry)
        self._balances[entry.merchant_id] = self.balance(entry.merchant_id) + entry.change


def opening_balance(value: Decimal | int | str) -> Decimal:
    """Read the amount that an account starts with, TZS.

    Raises:
        TypeError: It is a float.
        ValueError: It is negative or no number.
    """
    if isinstance(value, (float, bool)):
        raise TypeError("balance must be an int, a Decimal or a str")
    try:
        money = Decimal(value)
    except ArithmeticError as exc:
        raise ValueError("balance must be a number") from exc
    if not (money.is_finite() and money >= 0):
        raise ValueError("balance must not be negative")
    return money


KEPT = 100_000
"""Entries; the oldest are dropped beyond it, the counts are not."""


@attrs.frozen(kw_only=True)
class LoggedRequest:
    """One request that the sandbox saw, or that a fault kept from it.

    Args:
        method: HTTP method.
        path: Without the query.
        endpoint: The endpoint's name as in scripts, None if there is no such endpoint.
        status: The HTTP status that was sent, None if no answer was.
        code: The error code in the answer, None if there was none.
        fault: Name of the scripted or magic fault that struck it, None if none did.
        authorized: Whether it carried an Authorization header.
        at: When it came, seconds since the sandbox's start.
    """

    method: str
    path: str
    endpoint: str | None
    status: int | None
    code: str | None
    fault: str | None
    authorized: bool
    at: float


class RequestLog:
    """The requests in the order in which they came: the newest `KEPT`."""

    def __init__(self) -> None:
        self._entries: collections.deque[LoggedRequest] = collections.deque(maxlen=KEPT)
        self._by_endpoint: collections.Counter[str | None] = collections.Counter()
        self._rejections = 0

    @overload
    def __getitem__(self, index: int) -> LoggedRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LoggedRequest]: ...
    def __getitem__(self, index: int | slice) -> LoggedRequest | Sequence[LoggedRequest]:
        return list(self._entries)[index] if isinstance(index, slice) else self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[LoggedRequest]:
        return reversed(self._entries)

    @property
    def total(self) -> int:
        """Requests since the start."""
        return self._by_endpoint.total()

    @property
    def logins(self) -> int:
        """Login requests since the start, whatever became of them."""
        return self.count("login")

    @property
    def rejections(self) -> int:
        """Requests that were really too many, since the start: rejections by a fault are not counted."""
        return self._rejections

    def count(self, endpoint: str | None) -> int:
        """Requests since the start to the endpoint of this name; None for those to no endpoint."""
        return self._by_endpoint[endpoint]

    def add(self, entry: LoggedRequest) -> None:
        """Add the newest."""
        self._entries.append(entry)
        self._by_endpoint[entry.endpoint] += 1
        self._rejections += entry.code == "RATE_LIMIT_EXCEEDED" and entry.fault is None
