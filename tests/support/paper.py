"""The service on paper: a list of payments with a past and a future, and a plan that is driven against it.

Nothing waits and nothing is sent: time is a number, so that the plan can be put before any list, also one that lags, is
out of order, or shows old states.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

import attrs

from mobilemoney_async.contract.models import PageAnswer, Pagination, Transaction
from mobilemoney_async.contract.states import Network, TransactionStatus, TransactionType
from mobilemoney_async.errors import MobileMoneyError, ServerError, TransactionNotFound
from mobilemoney_async.polling.asking import ById, Ending, Page, Request
from mobilemoney_async.polling.plan import Plan

START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
LATENCY = 0.05

ListOrder = Literal["newest-first", "oldest-first", "none"]

Filters = Literal["honoured", "ignored", "empty", "of others", "open", "backwards", "refused"]
"""What `status` does: it filters, is ignored, shows nothing, leaves ours out, shows what is open, turns the order
round, or is an error."""


@attrs.frozen(kw_only=True)
class Paper:
    """One payment. Times are seconds, on the plan's clock.

    Attributes:
        id: Its id.
        created_at: When it was created.
        ends_at: When it reaches its final state, infinite for never.
        status: That state.
    """

    id: str
    created_at: float
    ends_at: float = math.inf
    status: TransactionStatus = TransactionStatus.SUCCESS

    def row(self, now: float) -> Transaction:
        """Return the record as the service shows it."""
        is_final = now >= self.ends_at
        ended_at = START + timedelta(seconds=self.ends_at) if is_final else None
        return Transaction(
            id=self.id,
            reference=f"REF-{self.id}",
            type=TransactionType.COLLECTION,
            amount=Decimal(1000),
            currency="TZS",
            phone_number="+255681234501",
            network=Network.AIRTEL_MONEY,
            status=self.status if is_final else TransactionStatus.PENDING,
            created_at=START + timedelta(seconds=self.created_at),
            completed_at=ended_at if self.status == TransactionStatus.SUCCESS else None,
        )


@attrs.define(kw_only=True)
class PaperService:
    """The list and the lookups.

    Attributes:
        order: Of the list; "none" shuffles it anew for each page.
        list_lag: How long a payment stays out of the list, seconds.
        lookup_lag: How long it stays out of the lookups.
        stale: By how much the states in the list are behind.
        page_size: The largest page that the service gives.
        filters: What becomes of a filter by status.
    """

    order: ListOrder = "newest-first"
    list_lag: float = 0.0
    lookup_lag: float = 0.0
    stale: float = 0.0
    page_size: int = 100
    filters: Filters = "honoured"
    payments: dict[str, Paper] = attrs.field(factory=dict)

    def add(self, payment: Paper) -> None:
        self.payments[payment.id] = payment

    def page(self, number: int, now: float, status: TransactionStatus | None = None) -> PageAnswer:
        listed = [each for each in self.payments.values() if each.created_at + self.list_lag <= now]
        if status is not None:
            listed = [each for each in listed if self._passes(each, status, now - self.stale)]
        listed.sort(key=lambda each: each.created_at, reverse=self.order == "newest-first")
        if self.order == "none":
            random.Random(now).shuffle(listed)
        if status is not None and self.filters == "backwards":
            listed.reverse()
        shown = listed[(number - 1) * self.page_size : number * self.page_size]
        pagination = Pagination(
            current_page=number,
            total_pages=-(-len(listed) // self.page_size),
            total_count=len(listed),
            per_page=self.page_size,
        )
        rows = tuple(each.row(now - self.stale) for each in shown)
        return PageAnswer(transactions=rows, pagination=pagination)

    def _passes(self, payment: Paper, status: TransactionStatus, now: float) -> bool:
        is_so = payment.ends_at <= now and payment.status == status
        match self.filters:
            case "refused":
                raise ServerError("no such parameter", status_code=500)
            case "ignored":
                return True
            case "empty":
                return False
            case "open":
                return payment.ends_at > now
            case "of others":
                return is_so and payment.id.startswith("stranger")
        return is_so

    def get(self, transaction_id: str, now: float) -> Transaction:
        payment = self.payments.get(transaction_id)
        if payment is None or now < payment.created_at + self.lookup_lag:
            raise TransactionNotFound("no such transaction", status_code=404)
        return payment.row(now)


@attrs.define
class Drive:
    """What a plan did.

    Attributes:
        asked: The requests, with their times.
        endings: What came out, with the times.
    """

    asked: list[tuple[float, Request]] = attrs.field(factory=list)
    endings: dict[str, tuple[float, Ending]] = attrs.field(factory=dict)

    @property
    def filtered(self) -> list[float]:
        return [at for at, request in self.asked if isinstance(request, Page) and request.status is not None]

    @property
    def pages(self) -> list[tuple[float, int]]:
        return [(at, request.number) for at, request in self.asked if isinstance(request, Page)]

    def lookups(self, transaction_id: str | None = None) -> list[float]:
        return [
            at
            for at, request in self.asked
            if isinstance(request, ById) and transaction_id in (None, request.transaction_id)
        ]


def drive(
    plan: Plan,
    service: PaperService,
    *,
    until: float,
    track: dict[str, float] | None = None,
    is_new: bool = True,
    interval: float = 1.0,
    start: float = 0.0,
) -> Drive:
    """Do what the plan says, one request at a time.

    Args:
        plan: Which.
        service: Answers.
        until: When to stop, seconds.
        track: When to begin to follow which payment; by default each when it is created.
        is_new: Whether they are tracked as new.
        interval: The shortest time between two requests.
        start: When to begin.
    """
    if track is None:
        track = {each.id: each.created_at for each in service.payments.values()}
    arrivals = sorted(track.items(), key=lambda item: item[1])
    done = Drive()
    now = start
    while True:
        while arrivals and arrivals[0][1] <= now:
            plan.track(arrivals.pop(0)[0], now, is_new=is_new, deadline=math.inf)
        following = max(now, plan.ready_at())
        if arrivals and arrivals[0][1] <= following:
            now = arrivals[0][1]
            continue
        now = following
        if now > until:
            return done
        request = plan.choose(now)
        assert request is not None, "ready, but nothing to ask"
        done.asked.append((now, request))
        for ending in _answer(plan, service, request, now):
            assert ending.transaction_id not in done.endings, "ended twice"
            done.endings[ending.transaction_id] = now, ending
        now += max(interval, LATENCY)


def _answer(plan: Plan, service: PaperService, request: Request, now: float) -> list[Ending]:
    asked = plan.ask(request, now)
    at = now + LATENCY
    if isinstance(request, Page):
        try:
            answer = service.page(request.number, now, request.status)
        except MobileMoneyError:
            plan.fail(asked, at, is_unreadable=False)
            return []
        return plan.take_page(asked, answer, at)
    try:
        return plan.take_transaction(asked, service.get(request.transaction_id, now), at)
    except MobileMoneyError as exc:
        return plan.refuse(asked, exc, at)
