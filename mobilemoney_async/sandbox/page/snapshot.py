"""Snapshot of everything that changes on the page; `views.take` makes it from a `Controls`, templates render it.

With phone numbers masked no value of a snapshot holds a whole one, so neither the page nor its event stream can.
"""

import attrs

from mobilemoney_async.sandbox.fault_switches import SwitchState


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
