"""Command: ``python -m tests.simulation --seed 42``."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

from tests.simulation import planted
from tests.simulation.cases import CASES, SIZES, Case
from tests.simulation.history import Playing, Result, start
from tests.simulation.page import write_page
from tests.simulation.plan import PROFILES
from tests.simulation.shrink import shrink, timeline
from tests.support.databases import Postgres, postgres

# Seeds that have failed, the last one first: the next run begins with them.
FAILED = Path(".simulation-failed")


def fix_hashes() -> None:
    """Begin this program again, unless strings have the hashes that they have in each run: sets are in their order."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def main() -> int:
    """Run the histories of some seeds; print those that break a law."""
    if "--planted" in sys.argv:
        return planted.main([each for each in sys.argv[1:] if each != "--planted"])
    options = read_options()
    with ExitStack() as stack:
        return run(options, stack.enter_context(postgres()) if options.postgresql else None)


def run(options: argparse.Namespace, server: Postgres | None) -> int:
    """Run the histories that the options ask for, on a server of PostgreSQL or on SQLite."""
    failed, hours, count = 0, 0.0, 0
    totals = {"payments": 0, "requests": 0, "faults": 0, "deaths": 0}
    for case, result in play_all(options, server):
        hours, count = hours + result.hours, count + 1
        totals["payments"] += result.payments
        totals["requests"] += result.requests
        totals["faults"] += sum(result.faults.values())
        totals["deaths"] += result.faults.get("killed", 0)
        if options.all:
            print("\n".join(result.lines))
        print(line_of(case, result), flush=True)
        if options.page is not None:
            write_page(result, options.page)
        if result.broken:
            failed += 1
            report(case, result, is_shrunk=not options.as_is and options.loop == "asyncio" and server is None)
    said = ", ".join(f"{number} {name}" for name, number in totals.items())
    print(f"{count} histories, {hours:.1f} simulated hours, {said}; histories that break a law: {failed}")
    return 1 if failed else 0


def play_all(options: argparse.Namespace, server: Postgres | None) -> Iterator[tuple[Case, Result]]:
    """Play the histories that the options ask for, as many at once as there are processors, and yield them in order."""
    started: deque[tuple[Case, Playing]] = deque()
    at_once = 1 if server is not None else os.cpu_count() or 1
    for case in choose(options):
        started.append((case, start(case.plan(), is_trio=options.loop == "trio", server=server)))
        if len(started) == at_once:
            yield _first_of(started)
    while started:
        yield _first_of(started)


def _first_of(started: deque[tuple[Case, Playing]]) -> tuple[Case, Result]:
    case, playing = started.popleft()
    return case, playing.result()


def read_options() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", help="the first seed; without it, and without --cases, fresh ones")
    parser.add_argument("--seeds", type=int, help="how many: one, or with --minutes any number")
    parser.add_argument("--minutes", type=float, help="fresh seeds for so long at most, the last failing ones first")
    parser.add_argument("--cases", action="store_true", help="the fixed histories of tests/simulation/cases.py")
    parser.add_argument("--without", default="", help="faults, with commas between them")
    parser.add_argument("--weights", default="", help="probabilities of faults, such as crash=0.1,stop=0")
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--profile", choices=tuple(PROFILES), help="the kind of world, whatever a seed would draw")
    parser.add_argument("--all", action="store_true", help="print each history, also if all laws hold")
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio", help="on trio without exact replay")
    parser.add_argument("--postgresql", action="store_true", help="on a server of PostgreSQL, without exact replay")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the last history as a page for a browser")
    parser.add_argument("--planted", nargs="*", metavar="NAME", help="how soon known defects are found: all, or some")
    parser.add_argument("--as-is", action="store_true", help="do not shrink a history that breaks a law")
    return parser.parse_args()


def choose(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the histories to run."""
    without = tuple(filter(None, options.without.split(",")))
    sizes = {name: getattr(options, name) for name in SIZES}
    pairs = (each.partition("=") for each in filter(None, options.weights.split(",")))
    more = {**sizes, "profile": options.profile, "weights": {name: float(weight) for name, _, weight in pairs}}
    if options.cases:
        yield from CASES
    elif options.minutes is not None:
        until = time.monotonic() + 60 * options.minutes
        for seed in islice(chain(last_failed(), fresh(options.seed)), options.seeds):
            if time.monotonic() > until:
                return
            yield Case(seed, without, **more)
    else:
        first = options.seed or next(iter(fresh(None)))
        for number in range(options.seeds or 1):
            yield Case(str(int(first) + number) if number else first, without, **more)


def last_failed() -> list[str]:
    """Return the seeds that failed last time."""
    return FAILED.read_text().split() if FAILED.exists() else []


def fresh(first: str | None) -> Iterable[str]:
    """Yield seeds that were never used, or those from one on."""
    start = random.SystemRandom().randrange(10**9) if first is None else int(first)
    while True:
        yield str(start)
        start += 1


def line_of(case: Case, result: Result) -> str:
    """Return one line about a history; only its time differs from run to run."""
    return (
        f"{case}: {result.hours:.1f} h, {result.payments} payments, {result.requests} requests, "
        f"{sum(result.faults.values())} faults, history {result.digest}, laws broken: {len(result.broken)} "
        f"({result.seconds:.1f} s)"
    )


def report(case: Case, result: Result, *, is_shrunk: bool) -> None:
    """Print a history that breaks a law, as short as it can be made, and remember its seed."""
    FAILED.write_text("\n".join(dict.fromkeys([case.seed, *last_failed()])) + "\n")
    for law in result.broken:
        print(f"  {law}")
    if is_shrunk:
        result = shrink(result)
    print(timeline(result))


if __name__ == "__main__":
    fix_hashes()
    sys.exit(main())
