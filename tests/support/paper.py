"""The service on paper: a list of payments with a past and a future, and a planner that is driven against it.

Nothing waits and nothing is sent: time is a number, so that the planner can meet any list, also one that lags, is
out of order, or shows old states.
"""

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, Self

import attrs

from mobilemoney_async.contract.models import PageAnswer, Pagination, Transaction
from mobilemoney_async.contract.states import Network, TransactionStatus, TransactionType
from mobilemoney_async.errors import MobileMoneyError, TransactionNotFound
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.scoring import Page, Request, SingleLookup
from mobilemoney_async.polling.sharing import StatusUpdate

START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
LATENCY = 0.05

ListOrder = Literal["newest-first", "oldest-first", "none"]


@attrs.frozen(kw_only=True)
class Paper:
    """One payment. Times are seconds, on the planner's clock.

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
        order: Of the list; "none" shuffles it for each page.
        list_lag: How long a payment stays out of the list, seconds.
        lookup_lag: How long it stays out of the lookups.
        stale: By how much the states in the list are behind.
        page_size: The largest page that the service gives.
    """

    order: ListOrder = "newest-first"
    list_lag: float = 0.0
    lookup_lag: float = 0.0
    stale: float = 0.0
    page_size: int = 100
    payments: dict[str, Paper] = attrs.field(factory=dict)

    def add(self, payment: Paper) -> None:
        self.payments[payment.id] = payment

    def filled(self, count: int, times: Callable[[int], tuple[float, float]], name: str = "txn") -> Self:
        """Add payments of numbers from 0 on, which say when each is created and when it ends; return the service."""
        for number in range(count):
            created_at, ends_at = times(number)
            self.add(Paper(id=f"{name}-{number}", created_at=created_at, ends_at=ends_at))
        return self

    def page(self, number: int, now: float) -> PageAnswer:
        listed = [each for each in self.payments.values() if each.created_at + self.list_lag <= now]
        listed.sort(key=lambda each: each.created_at, reverse=self.order == "newest-first")
        if self.order == "none":
            random.Random(now).shuffle(listed)
        shown = listed[(number - 1) * self.page_size : number * self.page_size]
        pagination = Pagination(
            current_page=number,
            total_pages=-(-len(listed) // self.page_size),
            total_count=len(listed),
            per_page=self.page_size,
        )
        rows = tuple(each.row(now - self.stale) for each in shown)
        return PageAnswer(transactions=rows, pagination=pagination)

    def get(self, transaction_id: str, now: float) -> Transaction:
        payment = self.payments.get(transaction_id)
        if payment is None or now < payment.created_at + self.lookup_lag:
            raise TransactionNotFound("no such transaction", status_code=404)
        return payment.row(now)


@attrs.define
class Drive:
    """The requests of a planner, and their results.

    Attributes:
        asked: The requests, with their times.
        endings: What came out, with the times.
    """

    asked: list[tuple[float, Request]] = attrs.field(factory=list)
    endings: dict[str, tuple[float, StatusUpdate]] = attrs.field(factory=dict)

    @property
    def pages(self) -> list[tuple[float, int]]:
        return [(at, request.number) for at, request in self.asked if isinstance(request, Page)]

    def lookups(self, transaction_id: str | None = None) -> list[float]:
        return [
            at
            for at, request in self.asked
            if isinstance(request, SingleLookup) and transaction_id in (None, request.transaction_id)
        ]


def drive(
    planner: Planner,
    service: PaperService,
    *,
    until: float,
    track: dict[str, float] | None = None,
    is_new: bool = True,
    interval: float = 1.0,
    start: float = 0.0,
) -> Drive:
    """Make the planner's requests, one at a time.

    Args:
        planner: The planner.
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
            planner.track(arrivals.pop(0)[0], now, is_new=is_new, deadline=math.inf)
        following = max(now, planner.ready_at())
        if arrivals and arrivals[0][1] <= following:
            now = arrivals[0][1]
            continue
        now = following
        if now > until:
            return done
        request = planner.choose(now)
        assert request is not None, "ready, but nothing to ask"
        done.asked.append((now, request))
        for ending in _answer(planner, service, request, now):
            assert ending.transaction_id not in done.endings, "ended twice"
            done.endings[ending.transaction_id] = now, ending
        now += max(interval, LATENCY)


def _answer(planner: Planner, service: PaperService, request: Request, now: float) -> list[StatusUpdate]:
    asked = planner.send(request, now)
    at = now + LATENCY
    if isinstance(request, Page):
        return planner.take_page(asked, service.page(request.number, now), at)
    try:
        return planner.take_transaction(asked, service.get(request.transaction_id, now), at)
    except MobileMoneyError as exc:
        return planner.refuse(asked, exc, at)
