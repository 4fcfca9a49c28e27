"""Snapshot of everything that changes on the page, and the labels in which the templates show it.

With phone numbers masked no value of a snapshot holds a whole one, so neither the page nor its event stream can.
"""

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import islice
from math import ceil, inf
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import attrs

from mobilemoney_async.sandbox.accounts import Account
from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.messages import Reply, ReplyDelivery
from mobilemoney_async.sandbox.phones import Phone, Prompt
from mobilemoney_async.sandbox.records import LoggedRequest
from mobilemoney_async.sandbox.script import SwitchState
from mobilemoney_async.sandbox.states import Kind, Payment, Status

PHONES = 12
PROMPTS = 5
HISTORY = 6
TRANSACTIONS = 30
REQUESTS = 30
SENT = 10
TEXT = 120
"""Characters of a foreign text."""

TONES: Mapping[Status, str] = {
    Status.SUCCESS: "good",
    Status.FAILED: "bad",
    Status.INSUFFICIENT_FUNDS: "bad",
    Status.TIMEOUT: "late",
    Status.PENDING: "wait",
    Status.PROCESSING: "wait",
}
"""Colour and icon of each state, by their names in the stylesheet."""

_RESULTS = {
    (Kind.COLLECTION, Status.SUCCESS): "Paid",
    (Kind.COLLECTION, Status.FAILED): "Not paid",
    (Kind.COLLECTION, Status.TIMEOUT): "Expired",
    (Kind.DISBURSEMENT, Status.SUCCESS): "Received",
}
T = TypeVar("T", LoggedRequest, Payment, Prompt)
# Whole words only: digits inside the service's own ids are not phone numbers.
_PHONE_NUMBER = re.compile(r"(?<![0-9A-Za-z_])[+]?[0-9]{8,15}(?![0-9A-Za-z_])")


Snapshot: TypeAlias = Mapping[str, Any]
"""All values of the page that change, by name; phone numbers and URLs in it are as the page shows them."""


@attrs.frozen
class Asked:
    """Payment that the page asked for last: the answer that a program would have got, and its id if it was made."""

    phone_number: str = attrs.field(repr=False)
    amount: str
    reply: Reply
    transaction_id: str | None


def take(sandbox: Controls, account: Account, *, masked: bool, secret: bytes, asked: Asked | None = None) -> Snapshot:
    """Read the sandbox once, with the figures of one merchant.

    `secret` makes the keys of the phones, which reveal neither a number nor their order.
    """
    now, started_at = sandbox.now, sandbox.started_at
    transactions, ids = sandbox.transactions, sandbox.transaction_ids(account)
    newest = [transactions[each] for each in islice(reversed(ids), TRANSACTIONS)]
    phones = sandbox.phones()
    # Steady: the oldest prompt first, phones without one last, so that a new prompt does not move the others.
    steady = sorted(phones[:PHONES], key=lambda each: each.prompts[-1].created_at.timestamp() if each.prompts else inf)
    by_key = {_key(secret, phone.phone_number): phone for phone in steady}
    expiring = {prompt.transaction_id: prompt.expires_at for phone in steady for prompt in phone.prompts}
    budget = sandbox.rate_budget(account)
    callbacks = sandbox.callbacks
    return {
        "masked": masked,
        "by_hand": sandbox.by_hand,
        "merchant": plain(account.email),
        "reset_token": _reset_token(sandbox, account),
        "asked": _shown_answer(asked, transactions, masked=masked) if asked else None,
        "phones": {key: _shown_phone(phone, masked=masked) for key, phone in by_key.items()},
        # Those with prompts are shown whole, else the one that was used last.
        "whole_phones": sum(bool(phone.prompts) for phone in steady) or 1,
        # The omitted part, also "older" below.
        "more_phones": max(0, len(phones) - PHONES),
        "more_prompts": {key: max(0, len(phone.prompts) - PROMPTS) for key, phone in by_key.items()},
        "seconds_left": {each: max(0, ceil((at - now).total_seconds())) for each, at in expiring.items() if at},
        "transactions": [_shown_payment(payment, masked=masked) for payment in newest],
        "older": max(0, len(ids) - TRANSACTIONS),
        "balance": sandbox.ledger.balance(account.merchant_id),
        "budget": attrs.evolve(budget, bucket_left=int(budget.bucket_left + 1e-6), next_in=round(budget.next_in, 1)),
        "requests": [
            _shown(each, "method", "path", "code", "fault", masked=masked)
            for each in islice(reversed(sandbox.requests), REQUESTS)
        ],
        "last_request": sandbox.requests.total,
        "started_at": started_at,
        "now": now.replace(microsecond=0),
        "clock_rate": sandbox.clock_rate,
        "faults": _grouped(sandbox.switches.states()),
        "faults_on": [each for each in sandbox.switches.states() if each.is_on],
        "callback_url": plain(receiver(callbacks.url)) if callbacks.url else None,
        "sent": [attrs.evolve(each, url=plain(receiver(each.url))) for each in callbacks.sent[:SENT]],
        "announcement": _announcement(newest, started_at),
    }


def _reset_token(sandbox: Controls, account: Account) -> str | None:
    with suppress(LookupError):
        return sandbox.last_reset_token(account.email)
    return None


def _announcement(payments: Sequence[Payment], started_at: datetime) -> str:
    """Return the last change of a payment for screen readers, without a phone number."""
    last = max(payments, key=lambda payment: payment.ended_at or payment.created_at, default=None)
    if last is None:
        return ""
    at = time_of_day(last.ended_at or last.created_at, started_at)
    return f"{at}: {last.kind} of {money(last.amount)} TZS is {last.status}"


def _key(secret: bytes, phone_number: str) -> str:
    return hmac.digest(secret, phone_number.encode(), "sha256").hex()[:12]


def _shown_phone(phone: Phone, *, masked: bool) -> Phone:
    # The newest prompts, the oldest of them first: a new one does not move the others.
    return Phone(
        phone_number=phone_number(phone.phone_number, masked=masked),
        prompts=tuple(_shown(prompt, "merchant") for prompt in phone.prompts[:PROMPTS][::-1]),
        history=tuple(_shown_payment(payment, masked=masked) for payment in phone.history[:HISTORY]),
        otp=phone.otp,
    )


def _shown_payment(payment: Payment, *, masked: bool) -> Payment:
    shown = _shown(payment, "external_id", "failure_reason", masked=masked)
    return attrs.evolve(shown, phone_number=phone_number(payment.phone_number, masked=masked))


def _shown_answer(asked: Asked, transactions: Mapping[str, Payment], *, masked: bool) -> dict[str, Any]:
    reply = asked.reply
    answer = f"HTTP {reply.status} {reply.code or ''}" if reply.wire is ReplyDelivery.ANSWERED else "no answer"
    return {
        "phone_number": phone_number(asked.phone_number, masked=masked),
        "amount": asked.amount,
        "fault": answer.strip() if reply.fault else None,
        "status": transactions[asked.transaction_id].status if asked.transaction_id else None,
    }


def _grouped(states: Iterable[SwitchState]) -> dict[str, dict[str, list[SwitchState]]]:
    """Return the switches by the program's view of them, in their order."""
    groups: dict[str, dict[str, list[SwitchState]]] = {}
    for state in states:
        groups.setdefault(state.switch.group, {}).setdefault(state.switch.sees, []).append(state)
    return groups


def _shown(entry: T, *fields: str, masked: bool = False) -> T:
    """Return an entry of records with these foreign texts as the page shows them."""
    texts: dict[str, Any] = {field: getattr(entry, field) for field in fields}
    shown: dict[str, Any] = {field: text and plain(text, masked=masked) for field, text in texts.items()}
    return attrs.evolve(entry, **shown)


def plain(text: str, *, masked: bool = False) -> str:
    """Return a foreign text without its end if it is long, and without characters that are invisible or turn others."""
    text = f"{text[:TEXT]}…" if len(text) > TEXT else text
    return "".join(each if each.isprintable() else "�" for each in (mask_within(text) if masked else text))


def money(amount: str | Decimal) -> str:
    """Return an amount with separated thousands; a text that is not a number is returned as it is."""
    try:
        return f"{Decimal(amount):,f}"
    except (InvalidOperation, ValueError):
        return str(amount)


def phone_number(number: str, *, masked: bool) -> str:
    """Return a phone number in groups, or masked."""
    if masked:
        return mask(number)
    tanzanian = re.fullmatch(r"(\+255)(\d{3})(\d{3})(\d{3})", number)
    return " ".join(tanzanian.groups()) if tanzanian else number


def mask(number: str) -> str:
    """Return the country and the last three digits of a phone number; nothing of a shorter text."""
    if len(number) < 8:
        return "•••"
    return f"{number[:4]} ••• ••• {number[-3:]}"


def mask_within(text: str) -> str:
    """Mask every phone number in a text, such as a path or a reference."""
    return _PHONE_NUMBER.sub(lambda found: mask(found.group()), unquote(text))


def receiver(url: str) -> str:
    """Return the URL of a receiver without user, path and query, which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    more = "…" if parts.path not in ("", "/") or parts.query else ""
    return f"{parts.scheme}://{host}/{more}"


def result(payment: Payment) -> str:
    """Return the result of a final payment for its customer or recipient, and the reason for a payout that failed."""
    said = _RESULTS.get((payment.kind, payment.status))
    if said is not None:
        return said
    if payment.status is Status.INSUFFICIENT_FUNDS:
        return "Not received: the balance of the merchant was too low"
    return f"Not received: {plain((payment.failure_reason or 'no reason').replace('_', ' ').lower())}"


def time_of_day(at: float, started_at: datetime) -> str:
    """Return the time of day at these seconds since the sandbox's start."""
    return f"{started_at + timedelta(seconds=at):%H:%M:%S}"


def duration(seconds: float) -> str:
    """Return the time left as minutes and seconds, or hours and minutes, rounded up to whole seconds."""
    whole = max(0, ceil(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60}:{whole % 60:02}"
