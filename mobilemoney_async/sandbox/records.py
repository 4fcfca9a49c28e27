"""Records that tests assert on: the ledger of moved money, and the log of requests."""

import collections
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Generic, TypeVar, overload

import attrs

from mobilemoney_async.sandbox.states import Kind

KEPT = 100_000
"""Most entries of the request log. The oldest are dropped beyond it; the counts go on."""

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class LedgerEntry:
    """One movement of money.

    Args:
        transaction_id: The transaction that moved it.
        kind: Collection or disbursement.
        phone_number: The customer or recipient.
        amount: The amount of the transaction; TZS, positive.
        change: The change of the merchant's balance; TZS, signed. A collection adds its amount less the merchant fee.
        merchant_id: The owner of the balance.
        at: Seconds since the sandbox's start.
    """

    transaction_id: str
    kind: Kind
    phone_number: str = attrs.field(repr=False)
    amount: Decimal
    change: Decimal
    merchant_id: str
    at: float


@attrs.frozen(kw_only=True)
class LoggedRequest:
    """One request to the sandbox, also one that a fault kept from being processed.

    Args:
        method: HTTP method.
        path: Without the query.
        endpoint: The endpoint's name as in scripts, None for an unknown endpoint.
        status: The HTTP status of the answer, None without an answer.
        code: The error code in the answer, None if there was none.
        fault: Name of the scripted or magic fault that struck it, None if none did.
        authorized: Whether it carried an Authorization header.
        at: Time of arrival, seconds since the sandbox's start.
    """

    method: str
    path: str
    endpoint: str | None
    status: int | None
    code: str | None
    fault: str | None
    authorized: bool
    at: float


class _Records(Generic[T]):
    """Read-only sequence of entries, oldest first; at most `keep` of them."""

    def __init__(self, keep: int | None = None) -> None:
        self._entries: collections.deque[T] = collections.deque(maxlen=keep)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return list(self._entries)[index] if isinstance(index, slice) else self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._entries)


class Ledger(_Records[LedgerEntry]):
    """All movements of money, oldest first. Entries are only ever added."""

    def __init__(self) -> None:
        super().__init__()
        self._balances: dict[str, Decimal] = {}

    @property
    def collected(self) -> Decimal:
        """TZS that customers paid, before fees."""
        return sum((entry.amount for entry in self if entry.kind is Kind.COLLECTION), Decimal(0))

    @property
    def disbursed(self) -> Decimal:
        """TZS that recipients got."""
        return sum((entry.amount for entry in self if entry.kind is Kind.DISBURSEMENT), Decimal(0))

    def balance(self, merchant_id: str) -> Decimal:
        """Return a merchant's balance, TZS; zero for an unknown merchant."""
        return self._balances.get(merchant_id, Decimal(0))

    def open(self, merchant_id: str, balance: Decimal) -> None:
        """Open a merchant's account with this balance, TZS."""
        self._balances[merchant_id] = balance

    def record(self, entry: LedgerEntry) -> None:
        """Add a movement and change the balance by it."""
        self._entries.append(entry)
        self._balances[entry.merchant_id] = self.balance(entry.merchant_id) + entry.change


class RequestLog(_Records[LoggedRequest]):
    """The newest `KEPT` requests in the order of their arrival, without secrets and bodies."""

    def __init__(self) -> None:
        super().__init__(KEPT)
        self._by_endpoint: collections.Counter[str | None] = collections.Counter()
        self._rejections = 0

    @property
    def total(self) -> int:
        """Requests since the start."""
        return self._by_endpoint.total()

    @property
    def logins(self) -> int:
        """Login requests since the start, accepted or not."""
        return self.count("login")

    @property
    def rejections(self) -> int:
        """Requests over the limit since the start; rejections by a fault are not counted."""
        return self._rejections

    def count(self, endpoint: str | None) -> int:
        """Return the number of requests to this endpoint since the start; None for unknown endpoints."""
        return self._by_endpoint[endpoint]

    def add(self, entry: LoggedRequest) -> None:
        """Add the newest request."""
        self._entries.append(entry)
        self._by_endpoint[entry.endpoint] += 1
        self._rejections += entry.code == "RATE_LIMIT_EXCEEDED" and entry.fault is None


def opening_balance(value: Decimal | int | str) -> Decimal:
    """Return the opening balance of an account, TZS, or raise as `Sandbox` does."""
    if isinstance(value, (float, bool)):
        raise TypeError("balance must be an int, a Decimal or a str")
    try:
        money = Decimal(value)
    except ArithmeticError as exc:
        raise ValueError("balance must be a number") from exc
    if not (money.is_finite() and money >= 0):
        raise ValueError("balance must not be negative")
    return money
