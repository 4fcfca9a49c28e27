"""The money that really moved: what tests assert on when they ask whether anything was paid twice or lost."""

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
