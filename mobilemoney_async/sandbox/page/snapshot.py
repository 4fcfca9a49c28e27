"""What the page shows at one moment, as values: `views.take` makes them, templates write them down.

With phone numbers masked no value here holds a whole one, so neither the page nor its stream of news can.
"""

import attrs


@attrs.frozen(kw_only=True)
class PromptView:
    """One prompt; `left` is None where nothing makes it expire, and then `note` says what will happen."""

    id: str
    merchant: str
    amount: str
    reference: str
    left: str | None
    seconds_left: int
    lifetime: int
    note: str
    warning: str | None


@attrs.frozen(kw_only=True)
class HistoryView:
    """One payment that is over, as its customer sees it."""

    id: str
    text: str
    at: str
    amount: str
    tone: str


@attrs.frozen(kw_only=True)
class PhoneView:
    """One phone; its key names it in the page without telling its number."""

    key: str
    number: str
    prompts: tuple[PromptView, ...]
    history: tuple[HistoryView, ...]
    more_prompts: int


@attrs.frozen(kw_only=True)
class TransactionView:
    """One row of the merchant's transactions."""

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
    """One row of the request log."""

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
    """What is left of the request limit."""

    bucket: int
    burst: int
    used: int
    per_window: int
    window: str
    next: str


@attrs.frozen
class RateView:
    """One speed to choose."""

    value: int
    chosen: bool


@attrs.frozen
class JumpView:
    """One jump to make."""

    seconds: int
    text: str


@attrs.frozen(kw_only=True)
class ClockView:
    """The service's time."""

    time: str
    short: str
    day: str
    paused: bool
    state: str
    rates: tuple[RateView, ...]
    jumps: tuple[JumpView, ...]


@attrs.frozen(kw_only=True)
class FaultView:
    """One fault switch."""

    slug: str
    label: str
    description: str
    is_on: bool
    state: str | None
    fired: int


@attrs.frozen(kw_only=True)
class SentView:
    """One callback that was sent; there is one of a kind for each transaction."""

    kind: str
    transaction_id: str
    url: str
    answer: str
    tone: str
    at: str


@attrs.frozen(kw_only=True)
class Snapshot:
    """Everything that changes."""

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
    faults: tuple[FaultView, ...]
    any_fault: bool
    sends_to: str
    sent: tuple[SentView, ...]
    news: str
