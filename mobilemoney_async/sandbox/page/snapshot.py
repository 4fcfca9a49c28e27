"""Snapshot of everything that changes on the page; `views.take` makes it from a `PageSource`, templates render it.

With phone numbers masked no value of a snapshot holds a whole one, so neither the page nor its event stream can.
"""

from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Protocol

import attrs

from mobilemoney_async.sandbox.behaviour import RateBudget
from mobilemoney_async.sandbox.callbacks import CallbackSender
from mobilemoney_async.sandbox.fault_switches import SwitchBoard, SwitchState
from mobilemoney_async.sandbox.phones import Phone
from mobilemoney_async.sandbox.records import RequestLog
from mobilemoney_async.sandbox.states import Payment


class PageSource(Protocol):
    """Sandbox as the page reads and controls it; `Sandbox` documents each member."""

    by_hand: bool

    @property
    def callbacks(self) -> CallbackSender:
        """Sender of callbacks."""
        ...

    @property
    def switches(self) -> SwitchBoard:
        """Fault switches."""
        ...

    @property
    def requests(self) -> RequestLog:
        """Log of the requests."""
        ...

    @property
    def transactions(self) -> MappingProxyType[str, Payment]:
        """Transactions by id, oldest first."""
        ...

    @property
    def email(self) -> str:
        """The merchant's name on the phones."""
        ...

    @property
    def token(self) -> str:
        """Access token that the page shows for copying."""
        ...

    @property
    def balance(self) -> Decimal:
        """The merchant's balance, TZS."""
        ...

    @property
    def now(self) -> datetime:
        """The service's time, aware UTC."""
        ...

    @property
    def started_at(self) -> datetime:
        """The service's time at second 0, aware UTC."""
        ...

    @property
    def clock_rate(self) -> float:
        """Seconds of the service's time in one real second; 0 while it is paused."""
        ...

    def phones(self) -> tuple[Phone, ...]:
        """Return the customers' phones."""
        ...

    def rate_budget(self) -> RateBudget:
        """Return the rest of the merchant's request limit."""
        ...

    def enter_pin(self, transaction_id: str, pin: str) -> bool:
        """Answer a prompt with a PIN."""
        ...

    def decline(self, transaction_id: str) -> Payment:
        """Let a payment fail."""
        ...

    def expire(self, transaction_id: str) -> Payment:
        """Let a prompt expire."""
        ...

    def advance(self, seconds: float) -> None:
        """Move the clock ahead."""
        ...

    def run_clock(self, rate: float) -> None:
        """Change the speed of the clock."""
        ...


@attrs.frozen(kw_only=True)
class PromptView:
    """Prompt on a phone; `left` is None if it does not expire."""

    id: str
    merchant: str
    amount: str
    reference: str
    left: str | None
    seconds_left: int
    lifetime: int
    warning: str | None


@attrs.frozen(kw_only=True)
class HistoryView:
    """Final payment in the history of a phone."""

    id: str
    text: str
    at: str
    amount: str
    tone: str


@attrs.frozen(kw_only=True)
class PhoneView:
    """Phone of a customer; its key identifies it in the page without its number."""

    key: str
    number: str
    prompts: tuple[PromptView, ...]
    history: tuple[HistoryView, ...]
    more_prompts: int


@attrs.frozen(kw_only=True)
class TransactionView:
    """Row of the merchant's transactions."""

    id: str
    kind: str
    number: str
    amount: str
    status: str
    tone: str
    reason: str | None
    reference: str
    external_id: str | None
    at: str


@attrs.frozen(kw_only=True)
class RequestView:
    """Row of the request log."""

    number: int
    method: str
    path: str
    answer: str
    tone: str
    code: str | None
    fault: str | None
    at: str


@attrs.frozen(kw_only=True)
class BudgetView:
    """Rest of the request limit."""

    bucket: int
    burst: int
    used: int
    per_window: int
    window: str
    next: str


@attrs.frozen(kw_only=True)
class ClockView:
    """The service's time, and its speed."""

    time: str
    short: str
    day: str
    rate: float
    state: str


@attrs.frozen(kw_only=True)
class SentView:
    """Callback that was sent; there is one of a kind for each transaction."""

    kind: str
    transaction_id: str
    url: str
    answer: str
    tone: str
    at: str


@attrs.frozen(kw_only=True)
class Snapshot:
    """All values of the page that change."""

    masked: bool
    by_hand: bool
    pin: str
    merchant: str
    phones: tuple[PhoneView, ...]
    more_phones: int
    transactions: tuple[TransactionView, ...]
    older: int
    balance: str
    budget: BudgetView
    requests: tuple[RequestView, ...]
    clock: ClockView
    faults: tuple[SwitchState, ...]
    sends_to: str
    sent: tuple[SentView, ...]
    announcement: str
