"""Reading the sandbox once, into what the page shows: `take` is the only way from one to the other."""

import hmac
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice
from math import ceil

import attrs

from mobilemoney_async.sandbox.behaviour import RateBudget
from mobilemoney_async.sandbox.callbacks import SentCallback
from mobilemoney_async.sandbox.fault_switches import SwitchState
from mobilemoney_async.sandbox.page import labels
from mobilemoney_async.sandbox.page.snapshot import (
    BudgetView,
    ClockView,
    FaultView,
    HistoryView,
    JumpView,
    PageSource,
    PhoneView,
    PromptView,
    RateView,
    RequestView,
    SentView,
    Snapshot,
    TransactionView,
)
from mobilemoney_async.sandbox.phones import PIN, TRIES, Phone, Prompt
from mobilemoney_async.sandbox.records import LoggedRequest
from mobilemoney_async.sandbox.states import Kind, Payment, Status

PHONES = 12
PROMPTS = 5
HISTORY = 6
TRANSACTIONS = 30
REQUESTS = 30
SENT = 10
RATES: tuple[int, ...] = (1, 5, 20, 100)
JUMPS: tuple[tuple[int, str], ...] = ((10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"))

_SPEEDS = {0.0: "Paused", 1.0: "Runs as real time does"}
_TONES = {
    Status.SUCCESS: "good",
    Status.FAILED: "bad",
    Status.INSUFFICIENT_FUNDS: "bad",
    Status.TIMEOUT: "late",
    Status.PENDING: "wait",
    Status.PROCESSING: "wait",
}
_HISTORY = {
    (Kind.COLLECTION, Status.SUCCESS): "Paid",
    (Kind.COLLECTION, Status.FAILED): "Not paid",
    (Kind.COLLECTION, Status.TIMEOUT): "Expired",
    (Kind.DISBURSEMENT, Status.SUCCESS): "Received",
}


class Keys:
    """Names phones in the page, so that neither ids nor their order tell a masked number."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)

    def __call__(self, phone_number: str) -> str:
        """Return a phone's key: the same as long as the page lives, and nothing from which the number follows."""
        return hmac.digest(self._secret, phone_number.encode("utf-8", "surrogatepass"), "sha256").hex()[:12]


def take(sandbox: PageSource, *, masked: bool, key: Callable[[str], str]) -> Snapshot:
    """Read the sandbox once.

    Args:
        sandbox: Which.
        masked: Whether phone numbers are shown in part only.
        key: Gives a phone's key.
    """
    now = sandbox.now
    transactions = sandbox.transactions
    newest = tuple(transactions[each] for each in islice(reversed(transactions), TRANSACTIONS))
    phones = sandbox.phones()
    switches = sandbox.switches.states()
    write = _Writer(masked=masked, key=key, datetime_at=lambda at: sandbox.started_at + timedelta(seconds=at))
    return Snapshot(
        masked=masked,
        by_hand=sandbox.by_hand,
        pin=PIN,
        merchant=sandbox.email,
        phones=tuple(write.phone(phone, now) for phone in in_steady_order(phones[:PHONES])),
        more_phones=max(0, len(phones) - PHONES),
        transactions=tuple(map(write.transaction, newest)),
        older=max(0, len(transactions) - TRANSACTIONS),
        balance=labels.money(sandbox.balance),
        budget=budget(sandbox.rate_budget()),
        requests=tuple(
            write.request(sandbox.requests.total - age, logged)
            for age, logged in enumerate(islice(reversed(sandbox.requests), REQUESTS))
        ),
        clock=clock(now, sandbox.clock_rate),
        faults=tuple(map(fault, switches)),
        any_fault=any(state.is_on for state in switches),
        sends_to=destination(sandbox.callbacks.url),
        sent=tuple(map(write.sent, sandbox.callbacks.sent[:SENT])),
        news=news(newest, sandbox.started_at),
    )


def in_steady_order(phones: Iterable[Phone]) -> list[Phone]:
    """Put the phones in an order in which a new prompt does not move those that somebody is typing on.

    The phone with the oldest prompt comes first, and phones without a prompt come last, as they were.
    """

    def place(phone: Phone) -> tuple[bool, float]:
        oldest = min((prompt.created_at.timestamp() for prompt in phone.prompts), default=0.0)
        return not phone.prompts, oldest

    return sorted(phones, key=place)


def budget(now: RateBudget) -> BudgetView:
    """Write down the request limit."""
    wait = f"A request is accepted in {now.next_in:.1f} s." if now.next_in else "A request is accepted now."
    return BudgetView(
        bucket=int(now.bucket_left + 1e-6),
        burst=now.burst,
        used=now.window_used,
        per_window=now.per_window,
        window=f"{now.window_seconds:g} s",
        next=f"{wait} The limit keeps real time, whatever this clock does.",
    )


def clock(now: datetime, rate: float) -> ClockView:
    """Write down the service's time."""
    return ClockView(
        time=labels.clock_time(now),
        short=f"{now:%H:%M}",
        day=labels.day(now),
        paused=rate == 0,
        state=_SPEEDS.get(rate, f"Runs {rate:g} times as fast as real time"),
        rates=tuple(RateView(value, value == rate) for value in RATES),
        jumps=tuple(JumpView(seconds, text) for seconds, text in JUMPS),
    )


def fault(state: SwitchState) -> FaultView:
    """Write down a fault switch."""
    where = f", on {state.on}" if state.on else ""
    how = f"On for the next request{where}" if state.once else f"On until switched off{where}"
    return FaultView(
        slug=state.switch.slug,
        label=state.switch.label,
        description=state.switch.description,
        is_on=state.is_on,
        state=how if state.is_on else None,
        fired=state.fired,
    )


def destination(url: str | None) -> str:
    """Say where callbacks go."""
    return f"At present status changes go to {labels.receiver(url)}" if url else "At present nothing is sent."


def news(newest: Iterable[Payment], started_at: datetime) -> str:
    """Say what happened last, for people who hear the page; no phone number is in it."""
    last = max(newest, key=lambda payment: payment.ended_at or payment.created_at, default=None)
    if last is None:
        return ""
    at = started_at + timedelta(seconds=last.ended_at or last.created_at)
    return f"{labels.clock_time(at)}: {last.kind} of {labels.money(last.amount)} TZS is {last.status}"


@attrs.frozen(kw_only=True)
class _Writer:
    """Writes down what may hold a phone number or a time."""

    masked: bool
    key: Callable[[str], str]
    datetime_at: Callable[[float], datetime]

    def phone(self, phone: Phone, now: datetime) -> PhoneView:
        # The newest ones, and of those the oldest first: one that comes does not push the others away.
        prompts = reversed(phone.prompts[:PROMPTS])
        return PhoneView(
            key=self.key(phone.phone_number),
            number=self._number(phone.phone_number),
            prompts=tuple(self._prompt(prompt, now) for prompt in prompts),
            history=tuple(map(self._history, phone.history[:HISTORY])),
            more_prompts=max(0, len(phone.prompts) - PROMPTS),
        )

    def transaction(self, payment: Payment) -> TransactionView:
        return TransactionView(
            id=payment.id,
            kind="from" if payment.kind is Kind.COLLECTION else "to",
            number=self._number(payment.phone_number),
            amount=labels.money(payment.amount),
            status=payment.status,
            tone=_TONES[payment.status],
            reason=payment.failure_reason,
            reference=payment.reference,
            external_id=self._text(payment.external_id),
            at=self._time(payment.created_at),
        )

    def request(self, number: int, logged: LoggedRequest) -> RequestView:
        unanswered = logged.status is None
        return RequestView(
            number=number,
            method=logged.method,
            path=self._text(logged.path) or "",
            answer="no answer" if unanswered else str(logged.status),
            tone="bad" if unanswered or (logged.status or 0) >= 400 else "good",
            code=logged.code,
            fault=logged.fault,
            at=self._time(logged.at),
        )

    def sent(self, sent: SentCallback) -> SentView:
        return SentView(
            kind=sent.kind,
            transaction_id=sent.transaction_id,
            url=labels.receiver(sent.url),
            answer=f"HTTP {sent.status}" if sent.status is not None else sent.error or "no answer",
            tone="good" if sent.status is not None and sent.status < 400 else "bad",
            at=labels.clock_time(sent.at),
        )

    def _prompt(self, prompt: Prompt, now: datetime) -> PromptView:
        left = None if prompt.expires_at is None else (prompt.expires_at - now).total_seconds()
        lifetime = left if prompt.expires_at is None else (prompt.expires_at - prompt.created_at).total_seconds()
        tries = TRIES - prompt.wrong_pins
        return PromptView(
            id=prompt.transaction_id,
            merchant=prompt.merchant,
            amount=labels.money(prompt.amount),
            reference=prompt.reference,
            left=None if left is None else labels.duration(left),
            seconds_left=0 if left is None else max(0, ceil(left)),
            lifetime=max(1, round(lifetime or 0)),
            note="This phone answers by itself, unless you do first",
            warning=f"Wrong PIN: {tries} {'try' if tries == 1 else 'tries'} left" if prompt.wrong_pins else None,
        )

    def _history(self, payment: Payment) -> HistoryView:
        return HistoryView(
            id=payment.id,
            text=_HISTORY.get((payment.kind, payment.status), "Not received"),
            at=self._time(payment.ended_at or payment.created_at),
            amount=labels.money(payment.amount),
            tone=_TONES[payment.status],
        )

    def _number(self, number: str) -> str:
        return labels.phone_number(number, masked=self.masked)

    def _text(self, text: str | None) -> str | None:
        return labels.mask_within(text) if text and self.masked else text

    def _time(self, at: float) -> str:
        return labels.clock_time(self.datetime_at(at))
