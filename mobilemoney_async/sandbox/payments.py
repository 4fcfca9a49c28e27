"""Payments: the book of all transactions, and the payment endpoints (`contract.md` sections 4.1 to 4.4)."""

import heapq
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from types import MappingProxyType
from typing import Any, Literal

import attrs

from mobilemoney_async.sandbox import magic
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.endpoints import Call
from mobilemoney_async.sandbox.magic import Pace, Plan
from mobilemoney_async.sandbox.messages import RefusedError, Reply, answer, payment_error
from mobilemoney_async.sandbox.records import Ledger, LedgerEntry
from mobilemoney_async.sandbox.states import INITIAL, Event, Kind, Payment, Status, after

MAX_PAGE_SIZE = 100

_AMOUNT = re.compile(r"[1-9][0-9]{0,14}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MESSAGES = {
    Kind.COLLECTION: "Payment request sent to the customer",
    Kind.DISBURSEMENT: "Disbursement is being processed",
}
_CENT = Decimal("0.01")
_SPREAD = 0.5
"""Of the logarithm of an ordinary payment's delay: two thirds of them end between 9 and 25 seconds."""


class TransactionBook:
    """Book of all transactions, the events still to come, and the ledger.

    Time is always an argument: `settle(now)` lets all events happen that are due by then, in the order in which they
    are due, so the outcome does not depend on the times of the requests.
    """

    def __init__(self, *, start: datetime, speed: float, choices: Choices, dice: random.Random) -> None:
        self.ledger: Ledger = Ledger()
        self._start = start
        self._speed = speed
        self._choices = choices
        self._dice = dice
        self._payments: dict[str, Payment] = {}
        self._owned: dict[str, list[str]] = {}  # ids by merchant
        # By merchant, name and value of the key.
        self._ids: dict[tuple[str, str, str], str] = {}
        self._due: list[tuple[float, int, str, Event, str | None]] = []
        self._watchers: list[Callable[[Payment], None]] = []

    def watch(self, watcher: Callable[[Payment], None]) -> None:
        """Call `watcher` with each new transaction, and after each change of state; it must not raise."""
        self._watchers.append(watcher)

    @property
    def payments(self) -> MappingProxyType[str, Payment]:
        """A live, read-only view of all transactions by id, in the order in which they were created."""
        return MappingProxyType(self._payments)

    def create(
        self,
        kind: Kind,
        *,
        merchant_id: str,
        phone_number: str,
        amount: str,
        external_id: str | None,
        plan: Plan,
        now: float,
        dice: random.Random | None = None,
    ) -> Payment:
        """Accept a payment, and plan its end. Another `dice` than the book's leaves later payments as they would be."""
        dice = self._dice if dice is None else dice
        hidden = self._choices.hidden_for if plan.hidden else 0.0
        payment = Payment(
            id=f"txn_{dice.getrandbits(80):020x}",
            reference=f"REF{dice.getrandbits(48):012X}",
            external_id=external_id,
            kind=kind,
            amount=amount,
            phone_number=phone_number,
            status=INITIAL[kind],
            merchant_id=merchant_id,
            created_at=now,
            visible_at=now + hidden / self._speed,
        )
        due_at = now + self._delay(plan.pace, dice) / self._speed
        if plan.event is Event.EXPIRE:
            payment = attrs.evolve(payment, expires_at=due_at)
        self._payments[payment.id] = payment
        self._owned.setdefault(merchant_id, []).append(payment.id)
        self._ids[merchant_id, "reference", payment.reference] = payment.id
        if external_id is not None:
            self._ids[merchant_id, "external_id", external_id] = payment.id
        if plan.event is not None:
            heapq.heappush(self._due, (due_at, len(self._payments), payment.id, plan.event, plan.reason))
        self._notify(payment)
        return payment

    def find(self, merchant_id: str, key: str, value: str) -> Payment | None:
        """Return the newest transaction of a merchant with this `reference` or `external_id`."""
        return self._payments.get(self._ids.get((merchant_id, key, value), ""))

    def owned_by(self, merchant_id: str) -> Iterator[Payment]:
        """Return a merchant's transactions, oldest first."""
        return (self._payments[each] for each in self.ids_of(merchant_id))

    def ids_of(self, merchant_id: str) -> Sequence[str]:
        """Return the ids of a merchant's transactions, in the order in which they were created."""
        return self._owned.get(merchant_id, ())

    def next_due(self) -> float:
        """Return the time of the next planned event, seconds since the sandbox's start; infinite for never."""
        while self._due and self._payments[self._due[0][2]].ended_at is not None:
            heapq.heappop(self._due)  # decided before its planned event: it is final
        return self._due[0][0] if self._due else math.inf

    def settle(self, now: float) -> None:
        """Let all events happen that are due by now."""
        while self.next_due() <= now:
            due_at, _, transaction_id, event, reason = heapq.heappop(self._due)
            self.apply(transaction_id, event, at=due_at, reason=reason)

    def apply(self, transaction_id: str, event: Event, *, at: float, reason: str | None = None) -> Payment:
        """Let an event happen to a transaction `at` seconds since the sandbox's start.

        A payout that the balance does not cover runs short instead of being approved.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: The event cannot happen to it, for example because its state is final.
        """
        payment = self._payments[transaction_id]
        covered = Decimal(payment.amount) <= self.ledger.balance(payment.merchant_id)
        if event is Event.APPROVE and payment.kind is Kind.DISBURSEMENT and not covered:
            event = Event.RUN_SHORT
        status = after(payment.kind, payment.status, event)
        payment = attrs.evolve(payment, status=status, ended_at=at)
        if status is Status.FAILED:
            payment = attrs.evolve(payment, failure_reason=reason)
        elif status is Status.SUCCESS:
            payment = self._move_money(payment, at)
        self._payments[transaction_id] = payment
        self._notify(payment)
        return payment

    def record(self, payment: Payment) -> dict[str, Any]:
        """Return a transaction in the contract's shape (section 2.1), without the fields that do not apply."""
        fields: dict[str, Any] = {
            "id": payment.id,
            "reference": payment.reference,
            "external_id": payment.external_id,
            "type": payment.kind,
            "amount": payment.amount,
            "currency": "TZS",
            "phone_number": payment.phone_number,
            "network": "airtel_money",
            "status": payment.status,
            "created_at": self.timestamp(payment.created_at),
            "completed_at": self._ended(payment, Status.SUCCESS),
            "failed_at": self._ended(payment, Status.FAILED),
            "failure_reason": payment.failure_reason,
            "merchant_id": payment.merchant_id,
            "fees": payment.fees,
            "settlement": payment.settlement,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def datetime_at(self, at: float) -> datetime:
        """Turn seconds since the sandbox's start into aware UTC time."""
        return self._start + timedelta(seconds=at)

    def seconds_at(self, day: date, at: time) -> float:
        """Turn a day and a time of it into seconds since the sandbox's start."""
        return (datetime.combine(day, at, self._start.tzinfo) - self._start).total_seconds()

    def timestamp(self, at: float) -> str:
        """Turn seconds since the sandbox's start into ISO 8601, UTC, to the millisecond."""
        return self.datetime_at(at).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _delay(self, pace: Pace, dice: random.Random) -> float:
        """Return the time to the end of a new payment, seconds at speed 1."""
        # Drawn for every payment, so that a magic number does not change the delays of ordinary payments after it.
        ordinary = dice.lognormvariate(0, _SPREAD) * self._choices.median_delay
        delays: dict[Pace, float] = {
            "ordinary": min(ordinary, self._choices.longest_delay),
            "decided": self._choices.decided_delay,
            "late": self._choices.late_delay,
            "expiry": self._choices.prompt_lifetime,
        }
        return delays[pace]

    def _notify(self, payment: Payment) -> None:
        for watcher in self._watchers:
            watcher(payment)

    def _ended(self, payment: Payment, status: Status) -> str | None:
        return self.timestamp(payment.ended_at) if payment.ended_at is not None and payment.status is status else None

    def _move_money(self, payment: Payment, at: float) -> Payment:
        amount = Decimal(payment.amount)
        change = -amount
        if payment.kind is Kind.COLLECTION:
            merchant_fee = _percent(self._choices.merchant_fee_percent, amount)
            customer_fee = _percent(self._choices.customer_fee_percent, amount)
            change = amount - merchant_fee
            payment = attrs.evolve(
                payment,
                fees={
                    "merchant_fee": f"{merchant_fee:.2f}",
                    "customer_fee": f"{customer_fee:.2f}",
                    "total_fee": f"{merchant_fee + customer_fee:.2f}",
                },
                settlement={
                    "net_amount": f"{change:.2f}",
                    "settled_at": self.timestamp(at),
                    "settlement_batch": f"BATCH-{self.datetime_at(at):%Y%m%d}",
                },
            )
        self.ledger.record(
            LedgerEntry(
                transaction_id=payment.id,
                kind=payment.kind,
                phone_number=payment.phone_number,
                amount=amount,
                change=change,
                merchant_id=payment.merchant_id,
                at=at,
            )
        )
        return payment


def _percent(rate: Decimal, amount: Decimal) -> Decimal:
    return (amount * rate / 100).quantize(_CENT, rounding=ROUND_HALF_UP)


class PaymentService:
    """Handlers of the payment endpoints.

    Attributes:
        by_hand: True if collections from ordinary numbers wait for an operator, until their prompts expire.
    """

    def __init__(self, book: TransactionBook, *, speed: float) -> None:
        self.by_hand: bool = False
        self._book = book
        self._speed = speed

    def read(self, call: Call) -> tuple[str, str]:
        """Read phone number and amount of a payment, or refuse them."""
        phone_number = call.phone_number(payment_error)
        amount = call.text("amount", payment_error)
        if not _AMOUNT.fullmatch(amount):
            raise RefusedError(
                payment_error(400, "INVALID_AMOUNT", "amount must be a positive whole number as a string")
            )
        return phone_number, amount

    def create(self, kind: Kind, call: Call, dice: random.Random | None = None) -> Reply:
        """POST /payment-service/airtel/c2b and b2c; `dice` as in `TransactionBook.create`."""
        phone_number, amount = self.read(call)
        # Not in the contract's request fields; accepted because the record has it and a lookup by it is documented.
        external_id = call.text("external_id", payment_error) if call.body.get("external_id") is not None else None
        row = magic.find(phone_number, kind)
        ordinary = magic.BY_HAND if self.by_hand and kind is Kind.COLLECTION else magic.ORDINARY
        payment = self._book.create(
            kind,
            merchant_id=call.owner.merchant_id,
            phone_number=phone_number,
            amount=amount,
            external_id=external_id,
            plan=row.plan if row else ordinary,
            now=call.now,
            dice=dice,
        )
        return answer(
            status="success",
            message=_MESSAGES[kind],
            transaction_id=payment.id,
            reference=payment.reference,
            amount=amount,
            currency="TZS",
            phone_number=phone_number,
            status_code=payment.status,
        )

    def by_id(self, call: Call) -> Reply:
        """GET /payment-service/transaction/{transaction_id}."""
        transaction_id = call.parameters["transaction_id"]
        if not re.fullmatch(call.choices.transaction_id_pattern, transaction_id):
            status = call.choices.status_invalid_transaction_id
            return payment_error(status, "INVALID_TRANSACTION_ID", "The transaction id is malformed")
        return self._found(call, self._book.payments.get(transaction_id))

    def lookup(self, call: Call) -> Reply:
        """GET /payment-service/transaction with `reference` or `external_id`; `reference` wins if both are sent."""
        for key in ("reference", "external_id"):
            if call.query.get(key):
                return self._found(call, self._book.find(call.owner.merchant_id, key, call.query[key]))
        return payment_error(400, "INVALID_REQUEST", "Send reference or external_id")

    def list(self, call: Call) -> Reply:
        """GET /payment-service/transactions."""
        page = _positive(call, "page", 1)
        limit = _positive(call, "limit", call.choices.default_page_size)
        if limit > MAX_PAGE_SIZE:
            if call.choices.oversized_limit == "refuse":
                raise _invalid("limit", f"at most {MAX_PAGE_SIZE}")
            limit = MAX_PAGE_SIZE
        rows = self._listed(call, _day(call, "from", date.min), _day(call, "to", date.max))
        if call.choices.list_order == "newest-first":
            rows = rows[::-1]
        shown = rows[(page - 1) * limit : page * limit]
        return answer(
            status="success",
            transactions=[self._book.record(row) for row in shown],
            pagination={
                "current_page": page,
                "total_pages": -(-len(rows) // limit),
                "total_count": len(rows),
                "per_page": limit,
            },
        )

    def _found(self, call: Call, payment: Payment | None) -> Reply:
        owner, lag = call.owner.merchant_id, call.choices.lookup_lag
        if payment is None or payment.merchant_id != owner or not self._is_visible(call, payment, lag):
            return payment_error(404, "TRANSACTION_NOT_FOUND", "No transaction matches")
        return answer(status="success", transaction=self._book.record(payment))

    def _is_visible(self, call: Call, payment: Payment, lag: float) -> bool:
        return call.now >= max(payment.visible_at, payment.created_at + lag / self._speed)

    # Each page of a long list passes over all of it, so what is the same for every row is asked once.
    def _listed(self, call: Call, first: date, last: date) -> Sequence[Payment]:
        since, until = self._book.seconds_at(first, time.min), self._book.seconds_at(last, time.max)
        now, lag = call.now, call.choices.list_lag / self._speed
        status, kind = call.query.get("status"), call.query.get("type")
        return [
            row
            for row in self._book.owned_by(call.owner.merchant_id)
            if since <= row.created_at <= until
            and now >= row.visible_at
            and now >= row.created_at + lag
            and (status is None or status == row.status)
            and (kind is None or kind == row.kind)
        ]


def _invalid(parameter: str, expected: str) -> RefusedError:
    return RefusedError(payment_error(400, "INVALID_PARAMETER", f"{parameter} must be {expected}"))


def _positive(call: Call, parameter: Literal["page", "limit"], default: int) -> int:
    text = call.query.get(parameter)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise _invalid(parameter, "a positive integer")
    return int(text)


def _day(call: Call, parameter: Literal["from", "to"], default: date) -> date:
    text = call.query.get(parameter)
    if text is None:
        return default
    try:
        # fromisoformat() alone would also take week dates and the basic format.
        return date.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError as exc:
        raise _invalid(parameter, "a date YYYY-MM-DD") from exc
