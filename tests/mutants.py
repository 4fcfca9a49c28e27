"""Mutants of the modules that keep money safe: `nox -s mutants -- --sample 250 --seed 5`.

mutmut changes one thing in one function (`<` for `<=`, `n + 1` for `n`, `and` for `or`, an argument left out; here also
a call left out, `min` for `max`), and a test must notice. pyproject.toml (`tool.mutmut`) names the modules and their
tests, `mutants.toml` the mutants that change nothing. mutmut leaves out functions with decorators; we leave out mutants
that change only a text, and those with None for a value, which the next line stumbles over.

One run of pytest does it all, in a copy of the project that holds every mutant: it runs each test once, to see which
lines it reaches, and then forks for each mutant, and runs the tests that reach the changed statement: first those that
noticed another mutant of its function, then the quickest. A test that notices a mutant must pass without one.
"""

from __future__ import annotations

import ast
import difflib
import faulthandler
import json
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import attrs
import coverage
import libcst
import pytest
from mutmut.configuration import config
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.mutation.mutators import mutation_operators

PACKAGE = "mobilemoney_async"
# Seconds of a processor: a test that takes longer, while its lines are noted, is left out; and what one with a mutant
# may need beyond three times that.
LONGEST, GRACE = 10.0, 3
# Seconds after which a test hangs, besides ten times what it took; and bytes that it may take.
HANGS, MEMORY = 60, 3 << 30


@attrs.frozen
class Mutant:
    """Mutant of one function, which mutmut's name selects.

    Attributes:
        before: The changed lines as they are.
        after: The same with the change.
        diff: Both with the lines around them.
        lines: The numbers of the lines of the changed statement in the copy of the module, `path`.
        body: Those of the whole function.
    """

    name: str
    function: str
    before: str
    after: str
    diff: str
    path: str
    lines: Sequence[int]
    body: Sequence[int]

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


def make_mutants(path: Path, copy: Path) -> Iterator[Mutant]:
    """Put all mutants of a module into the copy of the project, and yield them."""
    made = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
    (copy / path).write_text(made.code, encoding="utf-8")
    lines, spans = made.code.splitlines(), made.line_span_by_function_name
    module = ".".join(path.with_suffix("").parts)
    for name in made.mutant_names:
        function = name.partition("__mutmut")[0]
        original, plain = f"{function}__mutmut_orig", function.rpartition("ǁ")[2].removeprefix("x_")
        before, after = (
            [line.replace(each, plain) for line in lines[spans[each].start - 1 : spans[each].end]]
            for each in (original, name)
        )
        changes = [each for each in difflib.ndiff(before, after) if each[0] in "-+"]
        old, new = (" ".join(each[1:].strip() for each in changes if each[0] == sign) for sign in "-+")
        blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
        changed = {
            line for kind, first, last, _, _ in blocks if kind != "equal" for line in range(first, max(last, first + 1))
        }
        body = range(spans[original].start, spans[original].end + 1)
        yield Mutant(
            name=f"{module}.{name}",
            function=f"{module}.{function}",
            before=old,
            after=new,
            diff="\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]),
            path=str(path),
            lines=[body[line] for line in reached_with(before, changed)],
            body=list(body),
        )


def reached_with(function: Sequence[str], changed: Iterable[int]) -> Iterator[int]:
    """Yield the lines of the statements, or of the heads of compound ones, that hold a change, or all lines of a body.

    Lines begin at 0. A change of the function's own head shows wherever it is called.
    """
    tree = ast.parse(textwrap.dedent("\n".join(function)))
    top = tree.body[0]
    for line in changed:
        found = range(len(function))
        for node in ast.walk(tree):
            if not isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)) or node is top:
                continue
            first = (node.pattern if isinstance(node, ast.match_case) else node).lineno - 1
            inner = getattr(node, "body", None)
            last = inner[0].lineno - 1 if inner else getattr(node, "end_lineno", first + 1)
            own = range(first, max(last, first + 1))
            found = min(found, own, key=len) if line in own else found
        yield from found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, help="how many mutants, by chance; all without it")
    parser.addoption("--seed", type=int, default=0, help="of that chance")
    parser.addoption("--only", default="*", help="functions, such as payments.matching.*")
    parser.addoption("--least", type=float, default=0.95, help="the score to reach")
    parser.addoption("--processes", type=int, default=os.cpu_count() or 1, help="mutants at a time")


def pytest_runtestloop(session: pytest.Session) -> bool:
    option = session.config.getoption
    if option("collectonly"):
        return True
    began = time.monotonic()
    mutants = [Mutant(**each) for each in json.loads(Path("mutants.json").read_text(encoding="utf-8"))]
    known = tomllib.loads(Path("tests/mutants.toml").read_text(encoding="utf-8"))["equivalent"]
    equivalent = {(each["function"], each["before"], each["after"]) for each in known}
    for gone in equivalent - {each.key for each in mutants}:
        print(f"mutants.toml: there is no such mutant: {gone}")
    mutants = [each for each in mutants if fnmatch(each.key[0], option("--only")) and each.is_subtle]
    mutants = random.Random(option("--seed")).sample(mutants, min(option("--sample") or len(mutants), len(mutants)))
    trials = Trials(reach(session, {each.path for each in mutants}))
    print(f"\n{len(session.items)} tests ran once, {time.monotonic() - began:.0f} s", flush=True)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    ends = trials.run([each for each in mutants if each.key not in equivalent], option("--processes"))
    for number, (mutant, end, test) in enumerate(ends, 1):
        counts[mutant.function.rpartition(".")[0]][end] += 1
        print(f"{number}, {time.monotonic() - began:.0f} s, {end}: {mutant.name} {test}", flush=True)
        if end == "survived":
            survivors.append(mutant)
            print(mutant.diff, flush=True)
    for mutant in mutants:
        counts[mutant.function.rpartition(".")[0]]["equivalent"] += mutant.key in equivalent
    for mutant in survivors:
        function, before, after = mutant.key
        print(f"\n{mutant.diff}\n[[equivalent]]\nfunction = {function!r}\nbefore = {before!r}\nafter = {after!r}")
    counts["all"] = sum(counts.values(), Counter())
    for module, each in counts.items():
        print(f"{module:50}{' '.join(f'{each[end]:5} {end}' for end in ('killed', 'equivalent', 'survived'))}")
    score = counts["all"]["killed"] / max(1, counts["all"]["killed"] + counts["all"]["survived"])
    print(f"score {score:.3f}, {time.monotonic() - began:.0f} s", flush=True)
    session.testsfailed += score < option("--least")
    return True


@attrs.frozen
class Test:
    """Test with the seconds of a processor that it took."""

    item: pytest.Item = attrs.field(eq=False)
    name: str
    took: float = attrs.field(eq=False)


def reach(session: pytest.Session, paths: Iterable[str]) -> dict[tuple[str, int], set[Test]]:
    """Run each test once, and return those that reach a line, by file and line."""
    tracer = coverage.Coverage(data_file=None, include=[*paths], config_file=False)
    # A test that is too slow to be traced asks for the current measurement, and would stop it.
    coverage.Coverage.current = no_tracer  # type: ignore[method-assign]
    tests: dict[str, Test] = {}
    with tracer.collect():
        for item in session.items:
            tracer.switch_context(item.nodeid)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            tests[item.nodeid] = Test(item, item.nodeid, time.process_time() - began)
            if session.testsfailed:
                pytest.exit("a test fails without a mutant", returncode=2)
    reached: defaultdict[tuple[str, int], set[Test]] = defaultdict(set)
    for path in paths:
        for line, names in tracer.get_data().contexts_by_lineno(str(Path(path).absolute())).items():
            reached[path, line] = {tests[name] for name in names if name and tests[name].took <= LONGEST}
    return reached


def no_tracer() -> None:
    """Return no measurement of coverage."""


@attrs.define
class Trials:
    """Runs of tests with a mutant each, in forks.

    Attributes:
        reached: The tests that reach a line.
        killers: Those that noticed a mutant, by function.
        sound: Those that have passed in a fork without a mutant.
    """

    reached: dict[tuple[str, int], set[Test]]
    killers: defaultdict[str, set[Test]] = attrs.Factory(lambda: defaultdict(set))
    sound: set[Test] = attrs.Factory(set)

    def run(self, mutants: Iterable[Mutant], processes: int) -> Iterator[tuple[Mutant, str, str]]:
        """Yield each mutant as it ends, with whether it survived or was killed, and by which test."""
        waiting, running = iter(mutants), dict[int, tuple[Mutant, list[Test], mmap.mmap]]()
        while True:
            while len(running) < processes and (mutant := next(waiting, None)) is not None:
                tests, place = self.choose(mutant), mmap.mmap(-1, 4)
                running[fork(mutant.name, tests, place)] = mutant, tests, place
            if not running:
                return
            pid, status = os.wait()
            mutant, tests, place = running.pop(pid)
            test = tests[int.from_bytes(place[:4])] if status else None
            if test is not None and test not in self.sound:
                # What fails without a mutant too has not noticed one.
                if os.waitpid(fork("none.none", [test], place), 0)[1]:
                    pytest.exit(f"{test.name} fails in a fork without a mutant", returncode=2)
                self.sound.add(test)
            if test is not None:
                self.killers[mutant.function].add(test)
            yield mutant, "killed" if test else "survived", test.name if test else f"{len(tests)} tests"

    def choose(self, mutant: Mutant) -> list[Test]:
        """Return the tests that reach a mutant, the most promising first."""
        for lines in (mutant.lines, mutant.body):
            if tests := set[Test]().union(*(self.reached.get((mutant.path, line), ()) for line in lines)):
                killers = self.killers[mutant.function]
                return sorted(tests, key=lambda each: (each not in killers, each.took))
        return []


def fork(mutant: str, tests: Sequence[Test], place: mmap.mmap) -> int:
    """Run tests with a mutant in a fork, whose status is not 0 if one fails or does not end, and note its place."""
    pid = os.fork()
    if not pid:
        run_forked(mutant, tests, place)
    return pid


def run_forked(mutant: str, tests: Sequence[Test], place: mmap.mmap) -> None:
    """Run tests up to the first failure, and exit: with 0 if there is none."""

    class Failures:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os._exit(1)

    with suppress(BaseException):
        os.environ["MUTANT_UNDER_TEST"] = mutant
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for number, test in enumerate(tests):
            place[:4] = number.to_bytes(4)
            plugins = test.item.config.pluginmanager
            if not plugins.has_plugin("failures"):
                plugins.register(Failures(), "failures")
            seconds = int(time.process_time() + GRACE + 3 * test.took)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            faulthandler.dump_traceback_later(HANGS + 10 * test.took, exit=True)
            test.item.config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
        os._exit(0)
    os._exit(1)


def main() -> None:
    """Make a copy with all mutants, and start pytest there; another run has a copy of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copy goes too
    operators: Any = mutation_operators
    operators += [(libcst.Expr, drop_call), (libcst.Call, swap_extremes)]
    # In memory, where there is such a folder: the tests' databases write to the disk at each commit.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=memory if memory.is_dir() else None) as folder:
        copy = Path(folder)
        for name in (PACKAGE, "tests"):
            shutil.copytree(name, copy / name)
        for name in ("_mobilemoney_pytest.py", "pyproject.toml"):
            shutil.copy(name, copy / name)
        mutants = [attrs.asdict(each) for path in config().only_mutate for each in make_mutants(Path(path), copy)]
        (copy / "mutants.json").write_text(json.dumps(mutants), encoding="utf-8")
        plugins = ("-p", "tests.mutants", "-p", "no:xdist", "-p", "no:cacheprovider", "-s", "-q")
        # pytest has one watchdog, as Python has: it would take the place of ours.
        options = ("-o", "faulthandler_timeout=0", "-o", "tmp_path_retention_policy=none", "--basetemp=tmp")
        tests = config().pytest_add_cli_args_test_selection
        command = (sys.executable, "-m", "pytest", *plugins, *options, *tests, *sys.argv[1:])
        sys.exit(subprocess.run(command, cwd=copy, check=False).returncode)


if __name__ == "__main__":
    main()
