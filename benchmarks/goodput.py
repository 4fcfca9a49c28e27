"""Payments a minute that one request limit confirms, and the lag from a final state to its being seen.

`python benchmarks/goodput.py [--minutes 40] [--quick] [--plot]`, in virtual time. Three ways are compared on the same
day at a merchant's (`tests/support/shop.py`): every payment by its id on the contract's advised schedule, the newest
page of the list every ten seconds, and the poller; this also with creates at random distances (Poisson), and with a
callback 0.3 s after each final state. `--plot` needs matplotlib and writes `goodput.svg` and `.png`.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

sys.path.append(str(Path(__file__).parents[1]))  # for a run as a script

from benchmarks.common import SMALL, size

if TYPE_CHECKING:
    from mobilemoney_async import Acknowledgement, AsyncClient
    from tests.support.shop import Callbacks, Ended, Figures, Follow, Trade

DEMANDS = size((6.0, 15.0, 30.0, 45.0, 50.0, 54.0, 60.0), (45.0,))
TARGETS = {6: (5.5, 1.5, 4), 30: (28.5, 2.0, 5), 45: (43, 3.5, 8), 54: (51.5, 9, 20), 60: (52, 12, 25)}
SEEDS = size((1, 2, 3), (1,))
# Lists that do not show the newest payments on their first page: creates a minute, options, the longest mean lag.
ODD_LISTS: tuple[tuple[str, float, dict[str, Any], float], ...] = (
    ("oldest first", 30.0, {"order": "oldest-first"}, 8),
    ("600 strangers a minute", 20.0, {"strangers": 600.0}, 5),
    ("both", 20.0, {"strangers": 600.0, "order": "oldest-first"}, 5),
)
# The strictest reading of the limit, as the limiter keeps it: 60 in any 60 s and its allowance for jitter.
CAPACITY = 60 * 60 / 60.5


def floor(wanted: float) -> float:
    """Return the least possible mean lag, seconds: all requests that creates leave, spread evenly."""
    spare = max(60 / 10, 60 - wanted)
    return 0.5 * 60 / spare


async def by_id(client: AsyncClient, ended: Ended, trade: Trade) -> None:
    """Look each payment up by its id, as the contract advises (section 6)."""

    async def wait(acknowledgement: Acknowledgement) -> None:
        ended((await client.transactions.wait(acknowledgement.transaction_id)).id)

    async with anyio.create_task_group() as group:
        await trade(lambda acknowledgement: group.start_soon(wait, acknowledgement))


async def sweep(client: AsyncClient, ended: Ended, trade: Trade) -> None:
    """Read the newest page of the list every ten seconds."""
    pending: set[str] = set()

    async def read() -> None:
        while True:
            for row in await client.transactions.page():
                if row.is_final and row.id in pending:
                    pending.remove(row.id)
                    ended(row.id)
            await anyio.sleep(10)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await trade(lambda acknowledgement: pending.add(acknowledgement.transaction_id))


async def poller(client: AsyncClient, ended: Ended, trade: Trade, *, send_callbacks: Callbacks | None = None) -> None:
    """Use the poller, with callbacks if there are any."""

    async def read() -> None:
        async for outcome in tracking.outcomes(forever=True):
            ended(outcome.transaction_id)

    async with client.poller() as tracking, anyio.create_task_group() as group:
        group.start_soon(read)
        if send_callbacks is not None:
            group.start_soon(send_callbacks, tracking.hint)
        await trade(tracking.track)


RANDOM = "the poller, creates at random"
CALLBACKS = "the poller, with callbacks"
RANDOM_CALLBACKS = "the poller, creates at random, with callbacks"
WAYS: dict[str, Follow] = {
    "by id, as advised": by_id,
    "newest page every 10 s": sweep,
    "the poller": poller,
    RANDOM: poller,
    CALLBACKS: poller,
    RANDOM_CALLBACKS: poller,
}


def measure(
    follow: Follow, wanted: float, minutes: float, seeds: Sequence[int], *, callbacks: bool = False, **options: Any
) -> Figures:
    """Return the mean figures of some days."""
    shop = importlib.import_module("tests.support.shop")
    run_virtual = importlib.import_module("mobilemoney_async.testing").run_virtual
    days = []
    for seed in seeds:
        day = shop.Shop(wanted, seed=seed, **options)
        way = partial(follow, send_callbacks=day.send_callbacks) if callbacks else follow
        days.append(run_virtual(partial(day.run, way, minutes=minutes, settle=minutes / 5)))
    return shop.Figures(
        wanted=wanted,
        confirmed=statistics.mean(day.confirmed for day in days),
        mean=statistics.mean(day.mean for day in days),
        p95=statistics.mean(day.p95 for day in days),
        rejections=sum(day.rejections for day in days),
        requests=statistics.mean(day.requests for day in days),
    )


def line(name: str, found: Figures) -> str:
    """Return one row of the table."""
    target = TARGETS.get(int(found.wanted)) if name == "the poller" else None
    reached = ""
    if target is not None:
        ok = found.confirmed >= target[0] and found.mean <= target[1] and found.p95 <= target[2]
        ok &= not found.rejections
        reached = f"{target[0]:g}, {target[1]:g}, {target[2]:g}, 0: {'yes' if ok else 'NO'}"
    return (
        f"| {found.wanted:g} | {name} | {found.confirmed:.1f} | {found.mean:.2f} | {found.p95:.1f} | "
        f"{found.rejections} | {found.requests:.2f} | {found.mean / floor(found.wanted):.1f} | {reached} |"
    )


def draw(found: dict[str, list[Figures]], folder: Path) -> None:
    """Draw confirmed payments and lag over demand, with the physical bounds."""
    plt = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    colours = dict(zip(WAYS, ("#b4552d", "#8a8f98", "#14746f", "#7fb7b2", "#c9a227", "#e0cd8a"), strict=True))
    demands = [step / 2 for step in range(2, 121)]
    left.plot(
        demands, [min(demand, CAPACITY) for demand in demands], "k--", lw=1, label="the limit: every request a create"
    )
    right.plot(
        demands,
        [floor(demand) for demand in demands],
        "k--",
        lw=1,
        label="the floor: all requests that creates leave",
    )
    for name, figures in found.items():
        wanted = [each.wanted for each in figures]
        left.plot(wanted, [each.confirmed for each in figures], "o-", color=colours[name], label=name)
        right.plot(wanted, [each.mean for each in figures], "o-", color=colours[name], label=name)
    left.set(xlabel="payments wanted a minute", ylabel="confirmed a minute", xlim=(0, 62), ylim=(0, 62))
    right.set(xlabel="payments wanted a minute", ylabel="mean lag, seconds (log)", xlim=(0, 62), yscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle("Tracking payments on 60 requests a minute, creates included", fontsize=11)
    figure.savefig(folder / "goodput.svg", metadata={"Date": None})
    figure.savefig(folder / "goodput.png", dpi=150)


def main() -> int:
    """Print the tables; the exit code is 1 where a target of a full run was missed, with creates at even distances."""
    parser = argparse.ArgumentParser(description="Measure how soon final states are seen, in virtual time.")
    parser.add_argument("--minutes", type=float, default=size(40.0, 2.0), help="of each day, a fifth not counted")
    parser.add_argument("--quick", action="store_true", help="the poller only, one day of each kind")
    parser.add_argument("--plot", action="store_true", help="write goodput.svg and goodput.png")
    arguments = parser.parse_args()
    began = time.process_time()
    ways = {name: follow for name, follow in WAYS.items() if follow is poller or not arguments.quick}
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    print(
        "| wanted/min | way | confirmed/min | mean lag, s | 95 %, s | rejections | requests each | x floor | target |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    missed = False
    for wanted in DEMANDS:
        for name, follow in ways.items():
            days = seeds if follow is poller else seeds[:1]
            options = {"evenly": "random" not in name, "callbacks": "callbacks" in name}
            each = measure(follow, wanted, arguments.minutes, days, **options)
            found[name].append(each)
            print(line(name, each), flush=True)
            missed |= line(name, each).endswith("NO |")
    for what, wanted, options, most in ODD_LISTS:
        each = measure(poller, wanted, arguments.minutes / 2, seeds[:1], **options)
        missed |= each.mean > most or each.rejections > 0
        print(f"{what}, {wanted:g}/min: {each.confirmed:.1f} confirmed, mean {each.mean:.2f} s (at most {most} s), "
              f"95 % {each.p95:.1f} s, {each.rejections} rejections, {each.requests:.2f} requests each")  # fmt: skip
    if arguments.plot:
        draw(found, Path(__file__).parent)
    print(f"{time.process_time() - began:.0f} s of CPU", file=sys.stderr)
    return 1 if missed and not SMALL else 0


if __name__ == "__main__":
    sys.exit(main())
