"""Mutants of the modules that keep money safe: `nox -s mutants -- --sample 250 --seed 5`.

mutmut changes one thing in one function (`<` for `<=`, `n + 1` for `n`, `and` for `or`, an argument left out; here also
a call left out, `min` for `max`), and a test must notice. pyproject.toml (`tool.mutmut`) names the modules and their
tests, `mutants.toml` the mutants that change nothing. mutmut leaves out functions with decorators; we leave out mutants
that change only a text, and those with None for a value, which the next line stumbles over.

One run of pytest does it all, in a copy of the project that holds every mutant: it runs each test once, to see which
functions it reaches, and then forks for each mutant, and runs the tests that reach it, the quickest first.
"""

from __future__ import annotations

import difflib
import faulthandler
import os
import random
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import attrs
import libcst
import pytest
from mutmut.configuration import config
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.mutation.mutators import mutation_operators
from mutmut.state import state

COPY = Path("build/mutants")
PACKAGE = "mobilemoney_async"
# Seconds of a processor: a test that takes longer is left out; and what a mutant may need beyond the tests' own time.
LONGEST, GRACE = 5.0, 10
# Seconds after which a test hangs, and bytes that it may take.
HANGS, MEMORY = 60, 3 << 30


@attrs.frozen
class Mutant:
    """Mutant of one function, which mutmut's name selects, and its changed lines before and after."""

    name: str
    function: str
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is called in `mutants.toml`."""
        plain = self.function.removeprefix(f"{PACKAGE}.").replace("xǁ", "").replace("ǁ", ".").replace(".x_", ".")
        return plain, self.before, self.after

    @property
    def is_subtle(self) -> bool:
        """Whether more differs than a text (its case, or an XX around it), and no value has become None."""
        if self.before.casefold() == self.after.replace("XX", "").casefold():
            return False
        return self.after == "None" or self.after.count("None") <= self.before.count("None")


def drop_call(node: libcst.Expr) -> Iterator[libcst.CSTNode]:
    """Leave out a call whose result is not used."""
    call = node.value.expression if isinstance(node.value, libcst.Await) else node.value
    if isinstance(call, libcst.Call):
        yield node.with_changes(value=libcst.Name("None"))


def swap_extremes(node: libcst.Call) -> Iterator[libcst.CSTNode]:
    """Take the least for the most."""
    other = {"min": "max", "max": "min"}.get(node.func.value) if isinstance(node.func, libcst.Name) else None
    if other is not None:
        yield node.with_changes(func=libcst.Name(other))


def make_mutants(path: Path) -> Iterator[Mutant]:
    """Put all mutants of a module into the copy of the project, and yield them."""
    made = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
    (COPY / path).write_text(made.code, encoding="utf-8")
    lines, spans = made.code.splitlines(), made.line_span_by_function_name
    module = ".".join(path.with_suffix("").parts)
    for name in made.mutant_names:
        function = name.partition("__mutmut")[0]
        before, after = (
            [line.replace(each, function) for line in lines[spans[each].start - 1 : spans[each].end]]
            for each in (f"{function}__mutmut_orig", name)
        )
        changes = [each for each in difflib.ndiff(before, after) if each[0] in "-+"]
        old, new = (" ".join(each[1:].strip() for each in changes if each[0] == sign) for sign in "-+")
        yield Mutant(f"{module}.{name}", f"{module}.{function}", old, new)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, help="how many mutants, by chance; all without it")
    parser.addoption("--seed", type=int, default=0, help="of that chance")
    parser.addoption("--only", default="*", help="functions, such as payments.matching.*")
    parser.addoption("--least", type=float, default=0.95, help="the score to reach")


def pytest_runtestloop(session: pytest.Session) -> bool:
    option = session.config.getoption
    if option("collectonly"):
        return True
    mutants = [Mutant(*line.split("\t")) for line in Path("mutants.tsv").read_text(encoding="utf-8").splitlines()]
    mutants = [each for each in mutants if fnmatch(each.key[0], option("--only")) and each.is_subtle]
    mutants = random.Random(option("--seed")).sample(mutants, min(option("--sample") or len(mutants), len(mutants)))
    reached = reach(session)
    known = tomllib.loads(Path("tests/mutants.toml").read_text(encoding="utf-8"))["equivalent"]
    equivalent = {(each["function"], each["before"], each["after"]) for each in known}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    # As the tests run with a mutant, but without one: what fails then would count as noticed.
    if run(Mutant("none", "none", "", ""), [*{each for tests in reached.values() for each in tests}]) == "killed":
        pytest.exit("a test fails in a fork without a mutant", returncode=2)
    for number, mutant in enumerate(mutants, 1):
        is_equivalent = mutant.key in equivalent
        end = "equivalent" if is_equivalent else run(mutant, reached[mutant.function])
        counts[mutant.function.rpartition(".")[0]][end] += 1
        print(f"\n{number} of {len(mutants)}, {end}: {mutant.name}", flush=True)
        if end == "survived":
            function, before, after = mutant.key
            print(f"[[equivalent]]\nfunction = {function!r}\nbefore = {before!r}\nafter = {after!r}", flush=True)
    counts["all"] = sum(counts.values(), Counter())
    for module, ends in counts.items():
        print(f"{module:50}{' '.join(f'{ends[end]:5} {end}' for end in ('killed', 'equivalent', 'survived'))}")
    score = counts["all"]["killed"] / max(1, counts["all"]["killed"] + counts["all"]["survived"])
    print(f"score {score:.3f}")
    session.testsfailed += score < option("--least")
    return True


def reach(session: pytest.Session) -> dict[str, list[tuple[float, pytest.Item]]]:
    """Run each test once, and return those that reach a function, the quickest first, with their seconds."""
    reached: defaultdict[str, list[tuple[float, pytest.Item]]] = defaultdict(list)
    os.environ["MUTANT_UNDER_TEST"] = "stats"
    for item in session.items:
        state()._stats.clear()
        began = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        took = time.process_time() - began
        if session.testsfailed:
            pytest.exit("a test fails without a mutant", returncode=2)
        for function in state()._stats if took <= LONGEST else ():
            reached[function].append((took, item))
    for tests in reached.values():
        tests.sort(key=lambda each: each[0])
    return reached


def run(mutant: Mutant, tests: Sequence[tuple[float, pytest.Item]]) -> str:
    """Run tests with a mutant in a fork, and return whether one fails, or the mutant never ends."""
    pid = os.fork()
    if not pid:
        run_forked(mutant, tests)
    _, status = os.waitpid(pid, 0)
    return "killed" if status else "survived"


def run_forked(mutant: Mutant, tests: Sequence[tuple[float, pytest.Item]]) -> None:
    """Run tests up to the first failure, and exit: with 0 if there is none."""

    class Failures:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os._exit(1)

    with suppress(BaseException):
        os.environ["MUTANT_UNDER_TEST"] = mutant.name
        seconds = GRACE + 3 * int(sum(took for took, _ in tests))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for _, item in tests:
            if not item.config.pluginmanager.has_plugin("failures"):
                item.config.pluginmanager.register(Failures(), "failures")
            faulthandler.dump_traceback_later(HANGS, exit=True)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        os._exit(0)
    os._exit(1)


def main() -> None:
    """Make the copy with all mutants, and start pytest there."""
    operators: Any = mutation_operators
    operators += [(libcst.Expr, drop_call), (libcst.Call, swap_extremes)]
    shutil.rmtree(COPY, ignore_errors=True)
    for name in (PACKAGE, "tests"):
        shutil.copytree(name, COPY / name)
    for name in ("_mobilemoney_pytest.py", "pyproject.toml"):
        shutil.copy(name, COPY / name)
    mutants = [each for path in config().only_mutate for each in make_mutants(Path(path))]
    rows = ("\t".join(attrs.astuple(each)) for each in mutants)
    (COPY / "mutants.tsv").write_text("\n".join(rows), encoding="utf-8")
    plugins = ("-p", "tests.mutants", "-p", "no:xdist", "-p", "no:cacheprovider", "-s", "-q")
    command = (sys.executable, "-m", "pytest", *plugins, *config().pytest_add_cli_args_test_selection, *sys.argv[1:])
    sys.exit(subprocess.run(command, cwd=COPY, check=False).returncode)


if __name__ == "__main__":
    main()
