"""False alarms: the days of ordinary merchants in virtual time, and how many honest orders are held, refused or told.

Each day has twenty seeds, 0 to 19; the rows are means. An order that is stopped is tried again each
minute, for ten minutes; then it counts as refused.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import attrs
import httpx

from benchmarks.common import Row, size
from mobilemoney_async import AsyncClient, MobileMoneyError, RateLimiter, SQLStore
from mobilemoney_async.events import StoreBehind
from mobilemoney_async.testing import run_virtual
from tests.support.second_service import BASE_URL, TOKEN, ListBehaviour, SecondService, dropped

_SEEDS, _LONGEST = size((20, 24.0), (1, 0.5))  # hours, of a day
_BEGAN = datetime(2026, 1, 2, 8, tzinfo=UTC)
_HOUR, _RECONCILE, _TRIES = 3600.0, 120.0, 10


@attrs.frozen(kw_only=True)
class Day:
    """Day of a merchant.

    Attributes:
        orders: Orders an hour, at random distances.
        till: Payments an hour of another system.
        customers: Their number.
        prices: Amounts.
        kind: ``collections`` or ``disbursements``.
        hours: The length of the day.
        lost: Requests that never reach the service.
        lag: Seconds by which the list is late.
        resend: Whether absent collections are sent again.
        goal: Orders that may be refused at most, for each lost request if there are any; None if rules have none.
    """

    orders: float
    till: float = 0.0
    customers: int = 200
    prices: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    kind: str = "collections"
    hours: float = 6.0
    lost: int = 0
    lag: float = 0.0
    resend: bool = False
    goal: float | None = None


DAYS = {
    "a quiet shop, one lost": Day(orders=2, lost=1),
    "airtime": Day(orders=50, customers=30, prices=(500,), goal=0),
    "airtime, 5 lost": Day(orders=50, customers=30, prices=(500,), lost=5, goal=1.2),
    "airtime, 5 lost, sent again": Day(orders=50, customers=30, prices=(500,), lost=5, resend=True, goal=0.2),
    "payroll of one amount": Day(
        orders=120, customers=10_000, prices=(300_000,), kind="disbursements", hours=1, goal=0
    ),
    "a list two minutes late": Day(orders=10, lag=119, goal=0),
    "a shop and a till": Day(orders=10, till=10, goal=0),
    "airtime and a till": Day(orders=50, till=50, customers=30, prices=(500,), goal=3),
    "airtime and a till, 5 lost": Day(orders=50, till=50, customers=30, prices=(500,), lost=5, goal=2),
}


def run() -> Iterator[Row]:
    """Run the days."""
    for name, day in DAYS.items():
        one = attrs.evolve(day, hours=min(day.hours, _LONGEST))
        found = [play(one, seed) for seed in range(_SEEDS)]
        mean = {each: statistics.mean(played[each] for played in found) for each in found[0]}
        refused = mean["refused"] / (day.lost or 1)
        counted = "refused for each lost request" if day.lost else "refused"
        yield Row(
            f"{name}, {mean['orders']:.0f} orders",
            f"{refused:.2f} {counted}, {mean['held']:.2f} held, {mean['told']:.2f} times told",
            target="" if day.goal is None else f"at most {day.goal:g} {counted}",
            reached=None if day.goal is None else refused <= day.goal,
        )


def play(day: Day, seed: int) -> dict[str, float]:
    """Return the orders of a day, those that were held and refused, and how often the store was said to be behind."""
    with TemporaryDirectory() as folder:
        return run_virtual(_play, day, random.Random(seed), f"sqlite:///{Path(folder, 'payments.db')}")


async def _play(day: Day, dice: random.Random, url: str) -> dict[str, float]:  # noqa: C901 (a day in its order)
    began = anyio.current_time()

    def utcnow() -> datetime:
        return _BEGAN + timedelta(seconds=anyio.current_time() - began)

    service, events = SecondService(utcnow=utcnow), list[Any]()
    service.list = ListBehaviour(lag=timedelta(seconds=day.lag))
    times = _times(day.orders, day.hours, dice)
    lost = set(dice.sample(range(1, max(2, len(times))), min(day.lost, max(0, len(times) - 1))))
    steps = sorted(
        [(at, 1, number) for number, at in enumerate(times)]
        + [(at, 0, 0) for at in _times(day.till, day.hours, dice)]
        + [(_RECONCILE * each, 2, 0) for each in range(1, int(day.hours * _HOUR / _RECONCILE))]
    )
    held, refused = set[int](), set[int]()
    store = SQLStore(url, resend_absent_collections=day.resend)
    async with (
        AsyncClient(
            BASE_URL,
            auth=TOKEN,
            transport=service,
            utcnow=utcnow,
            store=store,
            on_event=events.append,
            rate_limiter=RateLimiter(per_minute=600_000, burst=10_000),
        ) as client,
        anyio.create_task_group() as group,
    ):

        def kind() -> tuple[str, int]:
            return f"+2556810{dice.randrange(day.customers):05d}", dice.choice(day.prices)

        async def order(number: int) -> None:
            (phone_number, amount), creates = kind(), getattr(client, day.kind)
            for attempt in range(_TRIES + 1):
                if number in lost and not attempt:
                    service.answer_create, service.makes = _lose, False
                try:
                    await creates.create(phone_number, amount, idempotency_key=f"order-{number}")
                except MobileMoneyError:
                    held.add(number)
                else:
                    return
                finally:
                    service.answer_create, service.makes = _answer, True
                await anyio.sleep(60)
            refused.add(number)

        for at, what, number in steps:
            await anyio.sleep_until(began + at)
            if what == 0:
                phone_number, amount = kind()
                service.make(day.kind.removesuffix("s"), phone_number, str(amount))
            elif what == 1:
                group.start_soon(order, number)
            else:
                await client.payments.reconcile()
    told = sum(isinstance(each, StoreBehind) for each in events)
    return {"orders": len(times), "held": len(held), "refused": len(refused), "told": told}


def _times(rate: float, hours: float, dice: random.Random) -> list[float]:
    found, at = list[float](), 0.0
    while rate and (at := at + dice.expovariate(rate / _HOUR)) < hours * _HOUR:
        found.append(at)
    return found


def _lose(request: httpx.Request, payment: object) -> httpx.Response:
    raise dropped(request)


def _answer(request: httpx.Request, payment: object) -> None:
    return None


if __name__ == "__main__":
    for row in run():
        sys.stdout.write(f"{row.case}: {row.value} ({row.target or 'no goal'})\n")
