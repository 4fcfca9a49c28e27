"""Run a command while its processes are stopped at random: ``python -m tests.support.stalls [--seed SEED] COMMAND…``.

As on a machine that has much else to do, each of them may stand still for seconds, at any moment: pytest, its workers,
the programs that tests start, each process of a database. No test may fail for that, unless it is marked `stops`.
"""

import argparse
import random
import signal
import subprocess
import sys
import time

from tests.support import watchdog

# Four times a second: each process stands still for a tenth of its time.
_CHANCE = 0.02
_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)


def run(command: list[str], dice: random.Random) -> int:
    """Run a command, stop its processes one after another, and return its exit code."""
    name, stopped = watchdog.start(), dict[int, float]()
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            now = time.monotonic()  # real time: of the stops
            over = {each for each, until in stopped.items() if until <= now}
            watchdog.send(signal.SIGCONT, over)
            stopped = {each: until for each, until in stopped.items() if each not in over}
            others = sorted(watchdog.processes_of(name) - stopped.keys())
            chosen = {each: now + dice.choice(_PAUSES) for each in others if dice.random() < _CHANCE}
            watchdog.send(signal.SIGSTOP, chosen)
            stopped |= chosen
            time.sleep(0.25)  # real time: of the stops
    finally:
        watchdog.send(signal.SIGCONT, stopped)
    return process.returncode


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run a command while its processes are stopped at random.")
    parser.add_argument("--seed", type=int, help="of which process is stopped when; printed if it is not given")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"processes are stopped at random, with --seed {seed}", flush=True)
    sys.exit(run(options.command, random.Random(seed)))


if __name__ == "__main__":
    main()
