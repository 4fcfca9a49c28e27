"""The simulator: one seed is one history, and the laws hold in some fixed ones."""

import re
import subprocess
import sys

import pytest

from tests.simulation.__main__ import main
from tests.simulation.cases import Case
from tests.simulation.history import History, play
from tests.simulation.plan import Plan
from tests.simulation.planted import DEFECTS, Defect, planted
from tests.simulation.shrink import shrink
from tests.support.databases import postgres
from tests.support.patience import PATIENCE
from tests.support.processes import environment, module_command

pytestmark = pytest.mark.once


def simulate(*arguments: str, hash_seed: str = "0") -> str:
    """Return the output of the command, without how long each history took."""
    command, variables = module_command("tests.simulation", *arguments), environment(PYTHONHASHSEED=hash_seed)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert not done.returncode, done.stdout[-6_000:] + done.stderr[-2_000:]
    return re.sub(r"\([\d.]+ s\)", "", done.stdout)


@pytest.mark.slow
def test_a_seed_is_one_history_byte_for_byte() -> None:
    """In two processes, whose objects have other addresses, and after another history, of which nothing is left.

    Each history runs in a process of its own, and the command itself gives strings the same hashes. With `--minutes` no
    more histories run than are asked for.
    """
    sizes = ("--orders", "2", "--processes", "2", "--openings", "1", "--all")
    second = simulate("--seed", "105", "--seeds", "2", *sizes, hash_seed="1")
    alone = simulate("--minutes", "60", "--seed", "106", "--seeds", "1", *sizes)
    history, is_one, _ = alone.partition("\n1 histories")
    assert "history " in history
    assert is_one
    assert history in second


def test_histories_run_for_the_minutes_that_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for ever, though there is always another seed."""
    monkeypatch.setattr(
        sys,
        "argv",
        ["simulation", "--minutes", "0", "--seed", "106", "--seeds", "1", "--orders", "1", "--openings", "1"],
    )
    assert main() == 0
    assert capsys.readouterr().out.startswith("0 histories")


@pytest.mark.slow
def test_the_laws_hold_in_the_fixed_histories() -> None:
    """With lies of the service, broken connections, deaths of processes and failing transactions."""
    assert simulate("--cases").endswith("break a law: 0\n")


@pytest.mark.costly("runs lines of database/connections.py that no quick test runs")
def test_the_laws_hold_on_trio_too() -> None:
    """In an order of tasks that the seed does not choose."""
    plan = Plan.drawn("4000").resized(orders=2, processes=2, openings=1).weighing({"crash": 0.01})
    assert play(plan, is_trio=True).broken == ()


@pytest.mark.slow
def test_the_laws_hold_on_postgresql_too() -> None:
    """On a real server, with transactions that fail because of others, and lost notices."""
    plan = Plan.drawn("4001").resized(orders=1, processes=1, openings=1)
    plan = plan.weighing({"serialization": 0.05, "notify_lost": 0.3, "restored_backup": 0})
    with postgres() as server:
        assert play(plan, server=server).broken == ()


@pytest.mark.slow
def test_a_history_that_breaks_a_law_is_shrunk_to_the_fault_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults that have nothing to do with it are left out, half of them at once."""
    run = History.run

    async def run_with_defect(self: History) -> None:
        await run(self)
        if self.world.counts["callback_doubled"]:
            self.world.breaks("a callback came twice")

    monkeypatch.setattr(History, "run", run_with_defect)
    plan = Plan.drawn("4").resized(orders=1, processes=1, openings=1).without("crash", "stop")
    plan.weights["callback_doubled"] = 1.0
    found = play(plan)
    assert found.broken == ("a callback came twice",)
    small = shrink(found, most=4).plan
    assert "callback_doubled" in small.weights
    assert len(small.weights) < len(plan.weights)


def test_a_history_is_written_down_as_one_line_of_the_cases() -> None:
    """With the faults that its seed has not drawn, or with other weights."""
    plan = Plan.drawn("4").weighing({"crash": 0.25}).without("stop").resized(orders=2)
    case = Case.of(plan)
    assert eval(repr(case)) == case
    assert case.plan() == plan


@pytest.mark.slow
def test_a_planted_defect_is_found() -> None:
    """A quick one, from a quick seed on; `python -m tests.simulation --planted` looks for all of them."""
    assert simulate("--planted", "--seed", "275", "a lost answer").endswith("1 of 1 planted defects found\n")


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_has_a_place_in_the_package(defect: Defect) -> None:
    """Whoever changes the text finds out here."""
    compile(planted(defect), defect.file, "exec")
