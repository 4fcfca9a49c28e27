"""Known defects, planted one at a time into a copy of the package: how soon does the simulator find each?

``python -m tests.simulation.planted [--seeds 40] [name …]``. Each is a piece of text and what it was, or might have
been, before it was repaired. One that is not found is a hole in the simulator.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]


@attrs.frozen
class Defect:
    """Defect: in a file of the package, one text in place of another."""

    name: str
    file: str
    text: str
    instead: str


DEFECTS = (
    # As before "payments: looks for payments rest on evidence".
    Defect(
        "soft refusal is sent again without a look",
        "payments/records.py",
        "record.state is PaymentState.NOT_SENT or (record.state in _LOOKED_FOR and record.is_certain)",
        "record.state is PaymentState.NOT_SENT or record.state in _LOOKED_FOR",
    ),
    # As before "resources: an acknowledgement counts without a store, too, only if it names what was asked for".
    Defect(
        "any acknowledgement is believed",
        "payments/attempts.py",
        "problem = contradiction(answer, phone_number=self.request.phone_number, amount=self.request.amount)",
        "problem = None",
    ),
    # A lost answer behind the name of a harmless error, as httpx-aiohttp once named every broken connection.
    Defect(
        "a lost answer counts as not sent",
        "calls/transport.py",
        "    if flight.is_direct or not flight.begun:\n        not_sent = not_sent or all(map(_is_not_sent, chain))\n",
        "    not_sent = not_sent or origin.__name__ in {'ReadError', 'ConnectError', 'ConnectTimeout'}\n",
    ),
    # As before "payments: a list that hides any own payment of its days shows no absence", and more of it.
    Defect(
        "absence needs no control and no grace period",
        "payments/evidence.py",
        "        if reason is not None:\n            return Control(is_failed=True, reason=reason)\n"
        "        if not self._is_settled(query):\n            return Control(reason=IN_GRACE)\n",
        "        return Control(passed=True)\n",
    ),
    # Of the kind of "payments: no reader of the feed loses a change …".
    Defect(
        "a cursor skips a change",
        "payments/changes.py",
        '_AFTER = _ROWS.where(_columns.number > sa.bindparam("of_number"))',
        '_AFTER = _ROWS.where(_columns.number > sa.bindparam("of_number") + 1)',
    ),
)


def plant(defect: Defect, folder: Path) -> None:
    """Make a copy of the package with a defect, beside the simulator."""
    shutil.copytree(ROOT / "mobilemoney_async", folder / "mobilemoney_async")
    shutil.copytree(ROOT / "tests/simulation", folder / "tests/simulation")
    shutil.copy(ROOT / "tests/__init__.py", folder / "tests/__init__.py")
    file = folder / "mobilemoney_async" / defect.file
    text = file.read_text()
    assert text.count(defect.text) == 1, f"{defect.name}: {defect.file} has changed"
    file.write_text(text.replace(defect.text, defect.instead))


def look_for(defect: Defect, seeds: int) -> bool:
    """Simulate until a law is broken, and print when that was."""
    hours = seconds = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(defect, folder)
        for seed in range(1, seeds + 1):
            command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--as-is"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=1_200)
            if (found := re.search(r": ([\d.]+) h, .*\(([\d.]+) s\)", done.stdout)) is not None:
                hours, seconds = hours + float(found[1]), seconds + float(found[2])
            if done.returncode:
                laws = re.findall("BROKEN: (.*)", done.stdout) or [done.stderr[-300:]]
                print(f"{defect.name}: {seed} histories, {hours:.1f} h, {seconds:.0f} s of CPU: {laws[0]}", flush=True)
                return True
    print(f"{defect.name}: NOT FOUND in {seeds} histories, {hours:.1f} h, {seconds:.0f} s of CPU", flush=True)
    return False


def main() -> int:
    """Look for each defect, or for those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="the beginnings of the defects' names")
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    chosen = [each for each in DEFECTS if not options.names or each.name.startswith(tuple(options.names))]
    return 0 if min([True, *(look_for(each, options.seeds) for each in chosen)]) else 1


if __name__ == "__main__":
    sys.exit(main())
