"""Reader that takes a snapshot of the sandbox for the page; no other module reads the sandbox for it."""

import hmac
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice
from math import ceil

import attrs

from mobilemoney_async.sandbox.behaviour import RateBudget
from mobilemoney_async.sandbox.callbacks import SentCallback
from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.page import labels
from mobilemoney_async.sandbox.page.snapshot import (
    BudgetView,
    ClockView,
    HistoryView,
    PhoneView,
    PromptView,
    RequestView,
    SentView,
    Snapshot,
    TransactionView,
)
from mobilemoney_async.sandbox.phones import PIN, TRIES, Phone, Prompt
from mobilemoney_async.sandbox.records import LoggedRequest
from mobilemoney_async.sandbox.states import Kind, Payment

PHONES = 12
PROMPTS = 5
HISTORY = 6
TRANSACTIONS = 30
REQUESTS = 30
SENT = 10


class Keys:
    """Keys of the phones in the page, which reveal neither masked numbers nor their order."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)

    def __call__(self, phone_number: str) -> str:
        """Return a phone's key, the same for the life of the page."""
        return hmac.digest(self._secret, phone_number.encode("utf-8", "surrogatepass"), "sha256").hex()[:12]


def take(sandbox: Controls, *, masked: bool, key: Callable[[str], str]) -> Snapshot:
    """Read the sandbox once.

    Args:
        sandbox: The sandbox to read.
        masked: Whether to mask phone numbers.
        key: Returns a phone's key.
    """
    now = sandbox.now
    transactions = sandbox.transactions
    newest = tuple(transactions[each] for each in islice(reversed(transactions), TRANSACTIONS))
    phones = sandbox.phones()
    callbacks = sandbox.callbacks
    view = _Views(masked=masked, key=key, started_at=sandbox.started_at)
    return Snapshot(
        masked=masked,
        by_hand=sandbox.by_hand,
        pin=PIN,
        merchant=sandbox.email,
        phones=tuple(view.phone(phone, now) for phone in in_steady_order(phones[:PHONES])),
        more_phones=max(0, len(phones) - PHONES),
        transactions=tuple(map(view.transaction, newest)),
        older=max(0, len(transactions) - TRANSACTIONS),
        balance=labels.money(sandbox.balance),
        budget=budget(sandbox.rate_budget()),
        requests=tuple(
            view.request(sandbox.requests.total - age, logged)
            for age, logged in enumerate(islice(reversed(sandbox.requests), REQUESTS))
        ),
        clock=ClockView(
            time=labels.clock_time(now),
            short=f"{now:%H:%M}",
            day=labels.day(now),
            rate=sandbox.clock_rate,
            state=labels.speed(sandbox.clock_rate),
        ),
        faults=sandbox.switches.states(),
        sends_to=f"Callbacks go to {labels.receiver(callbacks.url)}" if callbacks.url else "No callbacks are sent.",
        sent=tuple(map(view.sent, callbacks.sent[:SENT])),
        announcement=view.announcement(newest),
    )


def in_steady_order(phones: Iterable[Phone]) -> list[Phone]:
    """Order the phones so that a new prompt does not move the others.

    The phone with the oldest prompt comes first; phones without a prompt come last, in the given order.
    """

    def place(phone: Phone) -> tuple[bool, float]:
        oldest = min((prompt.created_at.timestamp() for prompt in phone.prompts), default=0.0)
        return not phone.prompts, oldest

    return sorted(phones, key=place)


def budget(now: RateBudget) -> BudgetView:
    """Return the view of the request limit."""
    wait = f"The next request is accepted in {now.next_in:.1f} s." if now.next_in else "Requests are accepted now."
    return BudgetView(
        bucket=int(now.bucket_left + 1e-6),
        burst=now.burst,
        used=now.window_used,
        per_window=now.per_window,
        window=f"{now.window_seconds:g} s",
        next=f"{wait} The limit follows real time, not this clock.",
    )


@attrs.frozen(kw_only=True)
class _Views:
    """Maker of all views that may contain a phone number or a time."""

    masked: bool
    key: Callable[[str], str]
    started_at: datetime

    def phone(self, phone: Phone, now: datetime) -> PhoneView:
        # The newest prompts, the oldest of them first: a new one does not move the others.
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
            tone=labels.TONES[payment.status],
            reason=payment.failure_reason,
            reference=payment.reference,
            external_id=None if payment.external_id is None else self._text(payment.external_id),
            at=self._time(payment.created_at),
        )

    def request(self, number: int, logged: LoggedRequest) -> RequestView:
        return RequestView(
            number=number,
            method=logged.method,
            path=self._text(logged.path),
            answer="no answer" if logged.status is None else str(logged.status),
            tone="bad" if logged.status is None or logged.status >= 400 else "good",
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

    def announcement(self, newest: Iterable[Payment]) -> str:
        """Return the last change of a payment for screen readers, without a phone number."""
        last = max(newest, key=lambda payment: payment.ended_at or payment.created_at, default=None)
        if last is None:
            return ""
        at = self._time(last.ended_at or last.created_at)
        return f"{at}: {last.kind} of {labels.money(last.amount)} TZS is {last.status}"

    def _prompt(self, prompt: Prompt, now: datetime) -> PromptView:
        left, lifetime = 0.0, 0.0
        if prompt.expires_at is not None:
            left = (prompt.expires_at - now).total_seconds()
            lifetime = (prompt.expires_at - prompt.created_at).total_seconds()
        tries = TRIES - prompt.wrong_pins
        return PromptView(
            id=prompt.transaction_id,
            merchant=prompt.merchant,
            amount=labels.money(prompt.amount),
            reference=prompt.reference,
            left=None if prompt.expires_at is None else labels.duration(left),
            seconds_left=max(0, ceil(left)),
            lifetime=max(1, round(lifetime)),
            warning=f"Wrong PIN: {tries} {'try' if tries == 1 else 'tries'} left" if prompt.wrong_pins else None,
        )

    def _history(self, payment: Payment) -> HistoryView:
        return HistoryView(
            id=payment.id,
            text=labels.history(payment.kind, payment.status),
            at=self._time(payment.ended_at or payment.created_at),
            amount=labels.money(payment.amount),
            tone=labels.TONES[payment.status],
        )

    def _number(self, number: str) -> str:
        return labels.phone_number(number, masked=self.masked)

    def _text(self, text: str) -> str:
        return labels.mask_within(text) if self.masked else text

    def _time(self, at: float) -> str:
        return labels.clock_time(self.started_at + timedelta(seconds=at))
