"""Snapshot of everything that changes on the page; the templates render it.

With phone numbers masked no value of a snapshot holds a whole one, so neither the page nor its event stream can.
"""

import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from math import ceil, inf

import attrs

from mobilemoney_async.sandbox.behaviour import RateBudget
from mobilemoney_async.sandbox.callbacks import SentCallback
from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.page import labels
from mobilemoney_async.sandbox.phones import Phone
from mobilemoney_async.sandbox.records import LoggedRequest
from mobilemoney_async.sandbox.script import SwitchState
from mobilemoney_async.sandbox.states import Payment

PHONES = 12
PROMPTS = 5
HISTORY = 6
TRANSACTIONS = 30
REQUESTS = 30
SENT = 10


@attrs.frozen(kw_only=True)
class Snapshot:
    """All values of the page that change; phone numbers and URLs in it are as the page shows them.

    Phones are by a key that reveals neither masked numbers nor their order. `more_phones`, `more_prompts` and `older`
    count what is left out; `seconds_left` has the time of each prompt that expires, by transaction id.
    """

    masked: bool
    by_hand: bool
    merchant: str
    phones: Mapping[str, Phone]
    more_phones: int
    more_prompts: Mapping[str, int]
    seconds_left: Mapping[str, int]
    transactions: tuple[Payment, ...]
    older: int
    balance: Decimal
    budget: RateBudget
    requests: tuple[LoggedRequest, ...]
    last_request: int
    started_at: datetime
    now: datetime
    clock_rate: float
    faults: tuple[SwitchState, ...]
    callback_url: str | None
    sent: tuple[SentCallback, ...]

    def time(self, at: float) -> str:
        """Return the time of day at these seconds since the sandbox's start."""
        return labels.clock_time(self.started_at + timedelta(seconds=at))

    @property
    def announcement(self) -> str:
        """The last change of a payment for screen readers, without a phone number."""
        last = max(self.transactions, key=lambda payment: payment.ended_at or payment.created_at, default=None)
        if last is None:
            return ""
        at = self.time(last.ended_at or last.created_at)
        return f"{at}: {last.kind} of {labels.money(last.amount)} TZS is {last.status}"


def take(sandbox: Controls, *, masked: bool, secret: bytes) -> Snapshot:
    """Read the sandbox once; `secret` makes the keys of the phones."""
    now = sandbox.now
    transactions = sandbox.transactions
    newest = (transactions[each] for each in islice(reversed(transactions), TRANSACTIONS))
    phones = sandbox.phones()
    # Steady: the oldest prompt first, phones without one last, so that a new prompt does not move the others.
    steady = sorted(phones[:PHONES], key=lambda each: each.prompts[-1].created_at.timestamp() if each.prompts else inf)
    by_key = {_key(secret, phone.phone_number): phone for phone in steady}
    budget = sandbox.rate_budget()
    callbacks = sandbox.callbacks
    return Snapshot(
        masked=masked,
        by_hand=sandbox.by_hand,
        merchant=sandbox.email,
        phones={key: _shown_phone(phone, masked=masked) for key, phone in by_key.items()},
        more_phones=max(0, len(phones) - PHONES),
        more_prompts={key: max(0, len(phone.prompts) - PROMPTS) for key, phone in by_key.items()},
        seconds_left={
            prompt.transaction_id: max(0, ceil((prompt.expires_at - now).total_seconds()))
            for phone in by_key.values()
            for prompt in phone.prompts
            if prompt.expires_at is not None
        },
        transactions=tuple(_shown_payment(payment, masked=masked) for payment in newest),
        older=max(0, len(transactions) - TRANSACTIONS),
        balance=sandbox.balance,
        budget=attrs.evolve(budget, bucket_left=int(budget.bucket_left + 1e-6), next_in=round(budget.next_in, 1)),
        requests=tuple(
            attrs.evolve(each, path=labels.mask_within(each.path) if masked else each.path)
            for each in islice(reversed(sandbox.requests), REQUESTS)
        ),
        last_request=sandbox.requests.total,
        started_at=sandbox.started_at,
        now=now.replace(microsecond=0),
        clock_rate=sandbox.clock_rate,
        faults=sandbox.switches.states(),
        callback_url=labels.receiver(callbacks.url) if callbacks.url else None,
        sent=tuple(attrs.evolve(each, url=labels.receiver(each.url)) for each in callbacks.sent[:SENT]),
    )


def _key(secret: bytes, phone_number: str) -> str:
    return hmac.digest(secret, phone_number.encode("utf-8", "surrogatepass"), "sha256").hex()[:12]


def _shown_phone(phone: Phone, *, masked: bool) -> Phone:
    # The newest prompts, the oldest of them first: a new one does not move the others.
    return Phone(
        phone_number=labels.phone_number(phone.phone_number, masked=masked),
        prompts=phone.prompts[:PROMPTS][::-1],
        history=tuple(_shown_payment(payment, masked=masked) for payment in phone.history[:HISTORY]),
    )


def _shown_payment(payment: Payment, *, masked: bool) -> Payment:
    external_id = payment.external_id
    return attrs.evolve(
        payment,
        phone_number=labels.phone_number(payment.phone_number, masked=masked),
        external_id=labels.mask_within(external_id) if masked and external_id is not None else external_id,
    )
