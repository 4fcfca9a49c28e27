"""The figures that the poller promises, in virtual time, against a service that enforces the strictest limit.

The same day as in `benchmarks/goodput.py`, but shorter.
"""

import functools
import math
import statistics
import tracemalloc
from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, Schedule
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.scoring import Page
from mobilemoney_async.sandbox.behaviour import Choices
from tests.support.paper import PaperService
from tests.support.scale import soak
from tests.support.shop import CUSTOMER, Ended, Figures, Order, Shop, Trade

pytestmark = [pytest.mark.once, pytest.mark.soak]

LOOPS = ("asyncio", "trio")

# Of a day, the first four not counted; and the days whose mean is taken: more of both at full scale.
MINUTES, SEEDS = {1: (9, (1,))}.get(soak(4), (14, (1, 2, 3)))


def loops_by_turns(names: str = "", *cases: tuple[object, ...]) -> pytest.MarkDecorator:
    """Run each case on one loop, asyncio and trio by turns; at full scale on both."""
    by_turns = [
        (*case, LOOPS[(number + turn) % 2])
        for number, case in enumerate(cases or [()])
        for turn in range(min(2, soak(2)))
    ]
    arguments = [*filter(None, names.split(", ")), "anyio_backend"]
    return pytest.mark.parametrize(arguments, by_turns, indirect=["anyio_backend"])


async def follow(client: AsyncClient, ended: Ended, trade: Trade, *, by_id: bool = False) -> None:
    """Track every payment with the poller."""

    async def read() -> None:
        async for outcome in poller.outcomes(forever=True):
            assert outcome.transaction is not None
            ended(outcome.transaction_id)

    async with client.poller() as poller, anyio.create_task_group() as group:
        group.start_soon(read)
        await trade(lambda made: poller.track(made.transaction_id if by_id else made))


async def figures(wanted: float, minutes: float = MINUTES, **options: object) -> Figures:
    shop = Shop(wanted, **options)  # type: ignore[arg-type]
    return await shop.run(follow, minutes=minutes)


async def with_callbacks(wanted: float, minutes: float = MINUTES, **options: object) -> Figures:
    shop = Shop(wanted, **options)  # type: ignore[arg-type]

    async def follow_hinted(client: AsyncClient, ended: Ended, trade: Trade) -> None:
        async def read() -> None:
            async for outcome in poller.outcomes(forever=True):
                ended(outcome.transaction_id)

        async with client.poller() as poller, anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(shop.send_callbacks, poller.hint)
            await trade(poller.track)

    return await shop.run(follow_hinted, minutes=minutes)


_TABLE = (
    *((30, 28.5, 2.0, 5, False), (6, 5.5, 1.5, 4, True)),
    *((54, 51.5, 9.5, 22, False), (6, 5.5, 1.5, 4, False), (45, 43, 3.5, 8, False), (60, 52, 12, 25, False)),
    (54, 51.5, 9.5, 22, True),
)


@loops_by_turns("wanted, confirmed, mean, p95, by_id", *_TABLE[: soak(4) * 2])  # the others at full scale
async def test_the_table(wanted: float, confirmed: float, mean: float, p95: float, by_id: bool) -> None:
    """So many payments a minute are confirmed, so late, without a single rejection; tracked by their ids, too.

    At 54 a minute, and at 6, a short day is off by some percent of chance; `benchmarks/goodput.py` holds 9 s and 20 s.
    """
    found = await Shop(wanted).run(functools.partial(follow, by_id=by_id), minutes=MINUTES if wanted == 30 else 14)
    assert found.confirmed >= confirmed
    assert found.mean <= mean
    assert found.p95 <= p95
    assert found.rejections == 0


@loops_by_turns("wanted, confirmed, mean, p95", (6, 5, 1.5, 4), (54, 51, 9.5, 22))
async def test_the_table_with_creates_at_random(wanted: float, confirmed: float, mean: float, p95: float) -> None:
    """Creates at random distances cost little where the limit leaves room, or none at all.

    The mean of short days, each off by some percent of chance; `benchmarks/goodput.py` has longer ones.
    """
    days = [await figures(wanted, minutes=14, seed=seed, evenly=False) for seed in SEEDS]
    assert statistics.mean(day.confirmed for day in days) >= confirmed
    assert statistics.mean(day.mean for day in days) <= mean
    assert statistics.mean(day.p95 for day in days) <= p95
    assert not any(day.rejections for day in days)


_LISTS = (
    (30, MINUTES, {"order": "oldest-first"}, 8),
    (20, MINUTES, {"strangers": 600, "order": "oldest-first"}, 5.5),
    (20, MINUTES, {"choices": Choices(latency=0.05, list_lag=60.0)}, 15),
    (20, MINUTES, {"strangers": 600, "order": "newest-first"}, 5.5),
)


@loops_by_turns("wanted, minutes, options, mean", *_LISTS[: soak(4) * 3])  # the last at full scale
async def test_another_list_costs_little(wanted: float, minutes: float, options: dict[str, Any], mean: float) -> None:
    """One that is oldest first, is full of six hundred strangers a minute, or lags by a minute and is looked up.

    The mean of a short day is off by a tenth of chance: trio draws the order of its tasks anew in each run.
    """
    found = await figures(wanted, minutes=minutes, **options)
    assert found.confirmed >= (28.5 if wanted == 30 else 18)
    assert found.mean <= mean
    assert found.rejections == 0


@loops_by_turns("wanted, evenly, mean, p95", (6, True, 0.6, 1.2), (6, False, 0.6, 1.25))
async def test_callbacks_bring_the_news_sooner(wanted: float, evenly: bool, mean: float, p95: float) -> None:
    """Where every callback arrives 0.3 s after the end, the final state is there another 0.3 s later, on average."""
    found = await with_callbacks(wanted, evenly=evenly)
    assert found.mean <= mean
    assert found.p95 <= p95
    assert found.rejections == 0


@loops_by_turns("wanted, evenly", *((45, False), (30, True))[: soak(4)])  # the second at full scale
async def test_callbacks_never_make_it_later(wanted: float, evenly: bool) -> None:
    """Where requests are scarce, callbacks draw none of their own.

    The mean of short days, which is off by some percent of chance, and their slowest twentieth by a tenth;
    `benchmarks/goodput.py` has longer ones.
    """
    hinted = [await with_callbacks(wanted, seed=seed, evenly=evenly) for seed in SEEDS]
    without = [await figures(wanted, seed=seed, evenly=evenly) for seed in SEEDS]
    assert statistics.mean(day.mean for day in hinted) <= 1.05 * statistics.mean(day.mean for day in without)
    assert statistics.mean(day.p95 for day in hinted) <= 1.15 * statistics.mean(day.p95 for day in without)
    assert not any(day.rejections for day in hinted)


@pytest.mark.parametrize("order", ["newest-first", "oldest-first"])
async def test_after_a_restart(order: Order) -> None:
    """A thousand known ids that ended meanwhile are all there within 60 s and 40 requests."""
    sandbox = Shop(0, order=order).sandbox
    for _ in range(2000):
        sandbox.ask(CUSTOMER, "500")
    ids = [*sandbox.transactions][1::2]
    sandbox.advance(3600)
    async with sandbox.client() as client, client.poller() as poller:
        started = anyio.current_time()
        for each in ids:
            poller.track(each)
        assert len([outcome async for outcome in poller.outcomes()]) == 1000
        assert anyio.current_time() - started <= 60
        assert poller.stats.requests <= 40
    assert sandbox.requests.rejections == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_ten_thousand_pending_take_half_a_kilobyte_each() -> None:
    """Memory is bounded, also where every payment has its place in the list."""
    ids = [f"txn_{number:020x}" for number in range(10_000)]
    planner = Planner(Schedule())
    planner.track("first", 0.0, is_new=True, deadline=math.inf)
    planner.take_page(planner.send(Page(1), 0.0), PaperService().page(1, 0.0), 0.1)
    tracemalloc.start()
    try:
        for each in ids:
            planner.track(each, 1.0, is_new=True, deadline=math.inf)
        assert tracemalloc.get_traced_memory()[0] / len(ids) <= 500
    finally:
        tracemalloc.stop()
