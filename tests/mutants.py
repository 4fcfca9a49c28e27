"""Mutants of the modules that keep money safe: `nox -s mutants -- --sample 250 --seed 5`.

mutmut changes one thing in one function (`<` for `<=`, `n + 1` for `n`, `and` for `or`, an argument left out; here also
a call left out, `min` for `max`), and a test must notice. pyproject.toml (`tool.mutmut`) names the packages, and the
kinds of tests that can run here; `mutants.toml` names the mutants that change nothing. mutmut leaves out functions with
decorators; we leave out mutants that change only a text, and those with None for a value, which the next line stumbles
over.

A first run of pytest notes which lines each test runs; `--map FOLDER` keeps what it has noted, or takes it from an
earlier run. A second one, in a copy of the project that holds every mutant, forks for each mutant, and runs the tests
of the changed statement: first those that noticed another mutant of its function, then the quickest. A test that
notices a mutant must pass without one. Other arguments are pytest's, for both runs: `-- --sample 15 tests/payments`.
"""

import argparse
import ast
import difflib
import faulthandler
import importlib
import json
import mmap
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from tests.support.functions import functions_of
from tests.support.linemap import read_map

PACKAGE = "mobilemoney_async"
# Seconds of a processor: a test that takes longer is left out; one with a mutant may take three times what it took, and
# these more.
LONGEST, GRACE = 10.0, 5
# Seconds after which a test hangs, besides ten times what it took; and bytes that it may take.
HANGS, MEMORY = 60, 3 << 30

LOCK = re.compile(r"(, )?\b(skip_locked|lock)(: bool)? ?= ?(True|False)|, (?=\))")

# What many tests import: the forks have it from the start.
FRAMEWORKS = ("aiohttp", "fastapi", "opentelemetry.sdk.metrics", "psycopg", "rich.console", "typer.testing", "uvicorn")


@attrs.frozen
class Mutant:
    """Mutant of one function, which mutmut's name selects.

    Attributes:
        before: The changed lines as they are.
        after: The same with the change.
        diff: Both with the lines around them.
        lines: The numbers of the lines of the changed statement in the module, `path`.
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
        """What it is called in `mutants.toml`: there, code may move within its package."""
        _, package, *_, name = self.function.split(".")
        return f"{package}.{plain(name)}", self.before, self.after

    @property
    def is_of_lock(self) -> bool:
        """Whether only a row's lock differs: PostgreSQL's, whose tests do not run here. SQLite has one writer."""
        return LOCK.sub("", self.before) == LOCK.sub("", self.after)

    @property
    def is_subtle(self) -> bool:
        """Whether more differs than a text (its case, or an XX around it), and no value has become None."""
        if self.before.casefold() == self.after.replace("XX", "").casefold():
            return False
        return self.after == "None" or self.after.count("None") <= self.before.count("None")


def plain(name: str) -> str:
    """Return the name of a function as Python shows it: mutmut's are `x_function` and `xǁClassǁmethod`."""
    return name.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in name else name.removeprefix("x_")


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
    source = path.read_text(encoding="utf-8")
    made, functions = mutate_file_contents(str(path), source), dict(functions_of(ast.parse(source)))
    (copy / path).write_text(made.code, encoding="utf-8")
    lines, spans = made.code.splitlines(), made.line_span_by_function_name
    module = ".".join(path.with_suffix("").parts)
    for name in made.mutant_names:
        function = name.partition("__mutmut")[0]
        original, own_name = f"{function}__mutmut_orig", function.rpartition("ǁ")[2].removeprefix("x_")
        before, after = (
            [line.replace(each, own_name) for line in lines[spans[each].start - 1 : spans[each].end]]
            for each in (original, name)
        )
        head = next(number for number, line in enumerate(before) if line.lstrip().startswith(("def ", "async def ")))
        first = functions[plain(function)].lineno - head
        changes = [each for each in difflib.ndiff(before, after) if each[0] in "-+"]
        old, new = (" ".join(each[1:].strip() for each in changes if each[0] == sign) for sign in "-+")
        blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
        changed = {
            line for kind, first, last, _, _ in blocks if kind != "equal" for line in range(first, max(last, first + 1))
        }
        yield Mutant(
            name=f"{module}.{name}",
            function=f"{module}.{function}",
            before=old,
            after=new,
            diff="\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]),
            path=str(path),
            lines=[first + line for line in reached_with(before, changed)],
            body=list(range(first, first + len(before))),
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
    add_options(parser.addoption)


def add_options(add: Any) -> None:
    """Add our options to a parser, pytest's or that of the command."""
    add("--sample", type=int, help="how many mutants of each seed, by chance; all without it")
    add("--seed", type=int, action="append", help="of that chance; may be given several times")
    add("--only", default="*", help="functions, such as payments.clearance or payments.Journal.*")
    add("--least", type=float, default=0.95, help="the score to reach")
    add("--processes", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    add("--map", type=Path, help="the folder of the tests' lines: made if it is missing")


def read_equivalent(mutants: Iterable[Mutant]) -> set[tuple[str, str, str]]:
    """Return the keys of the mutants that change nothing.

    Raises:
        SystemExit: One of them is not among the mutants, stands there twice or has no reason.
    """
    entries = tomllib.loads(Path("tests/mutants.toml").read_text(encoding="utf-8"))["equivalent"]
    keys = Counter((each["function"], each["before"], each["after"]) for each in entries)
    known = {each.key: each.is_of_lock for each in mutants}
    wrong = [f"there is no such mutant: {key}" for key in keys if key not in known]
    wrong += [f"it stands there twice: {key}" for key, count in keys.items() if count > 1]
    wrong += [f"it has no reason: {each['function']}" for each in entries if not each.get("reason", "").strip()]
    if wrong:
        sys.exit("\n".join(f"tests/mutants.toml: {each}" for each in wrong))
    return {*keys, *(key for key, is_of_lock in known.items() if is_of_lock)}


def pytest_runtestloop(session: pytest.Session) -> bool:
    option = session.config.getoption
    if option("collectonly"):
        return True
    began = time.monotonic()
    mutants = [Mutant(**each) for each in json.loads(Path("mutants.json").read_text(encoding="utf-8"))]
    equivalent = read_equivalent(mutants)
    mutants = [each for each in mutants if fnmatch(each.key[0], option("--only")) and each.is_subtle]
    size = min(option("--sample") or len(mutants), len(mutants))
    samples = {seed: random.Random(seed).sample(mutants, size) for seed in option("--seed") or [0]}
    chosen = {each.name: each for sample in samples.values() for each in sample if each.key not in equivalent}
    ends: dict[str, str] = {}
    trials = Trials(reach(session.items, option("--map")))
    for name in FRAMEWORKS:
        importlib.import_module(name)
    for number, (mutant, end, test) in enumerate(trials.run(chosen.values(), option("--processes")), 1):
        ends[mutant.name] = end
        print(f"{number}, {time.monotonic() - began:.0f} s, {end}: {mutant.name} {test}", flush=True)
        if end == "survived":
            function, before, after = mutant.key
            print(f"{mutant.diff}\n[[equivalent]]\nfunction = {function!r}\nbefore = {before!r}\nafter = {after!r}")
    scores = []
    for seed, sample in samples.items():
        counts = Counter(ends.get(each.name, "equivalent") for each in sample)
        scores.append(counts["killed"] / max(1, counts["killed"] + counts["survived"]))
        shown = ", ".join(f"{counts[end]} {end}" for end in ("killed", "survived", "equivalent"))
        print(f"seed {seed}: {shown}, score {scores[-1]:.3f}", flush=True)
    session.testsfailed += min(scores) < option("--least")
    return True


@attrs.frozen
class Test:
    """Test with the seconds of a processor that it takes."""

    item: pytest.Item = attrs.field(eq=False)
    name: str
    took: float = attrs.field(eq=False)


def reach(items: Iterable[pytest.Item], folder: Path) -> Mapping[tuple[str, int], set[Test]]:
    """Return the tests that run a line, by file and line."""
    tests = {item.nodeid: item for item in items}
    reached: defaultdict[tuple[str, int], set[Test]] = defaultdict(set)
    for each in read_map(folder):
        if each.id in tests and each.seconds <= LONGEST:
            test = Test(tests[each.id], each.id, each.seconds)
            for path, lines in each.lines.items():
                for line in lines:
                    reached[path, line].add(test)
    return reached


@attrs.define
class Trials:
    """Runs of tests with a mutant each, in forks.

    Attributes:
        reached: The tests that reach a line.
        killers: Those that noticed a mutant, by function.
        sound: Those that have passed in a fork without a mutant.
        unsound: Those that have not, and show nothing: they need what a fork has not, such as an event loop's thread.
    """

    reached: Mapping[tuple[str, int], set[Test]]
    killers: defaultdict[str, set[Test]] = attrs.Factory(lambda: defaultdict(set))
    sound: set[Test] = attrs.Factory(set)
    unsound: set[Test] = attrs.Factory(set)

    def run(self, mutants: Iterable[Mutant], processes: int) -> Iterator[tuple[Mutant, str, str]]:
        """Yield each mutant as it ends, with whether it survived or was killed, and by which test."""
        waiting, running = deque(mutants), dict[int, tuple[Mutant, list[Test], mmap.mmap]]()
        while True:
            while len(running) < processes and waiting:
                mutant = waiting.popleft()
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
                    print(f"left out, since it fails in a fork without a mutant: {test.name}", flush=True)
                    self.unsound.add(test)
                    waiting.appendleft(mutant)
                    continue
                self.sound.add(test)
            if test is not None:
                self.killers[mutant.function].add(test)
            yield mutant, "killed" if test else "survived", test.name if test else f"{len(tests)} tests"

    def choose(self, mutant: Mutant) -> list[Test]:
        """Return the tests that reach a mutant, the most promising first."""
        for lines in (mutant.lines, mutant.body):
            if tests := set[Test]().union(*(self.reached.get((mutant.path, line), ()) for line in lines)):
                killers = self.killers[mutant.function]
                return sorted(tests - self.unsound, key=lambda each: (each not in killers, each.took))
        return []


def fork(mutant: str, tests: Sequence[Test], place: mmap.mmap) -> int:
    """Run tests with a mutant in a fork, whose status is not 0 if one fails or does not end, and note its place."""
    with warnings.catch_warnings(action="ignore"):  # of threads: the tests' own have ended
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
    """Note the lines of the tests, make a copy with all mutants, and start pytest there; each run has its own copy."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copy goes too
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    add_options(parser.add_argument)
    options, others = parser.parse_known_args()
    kinds = config().pytest_add_cli_args_test_selection
    tests = [*kinds, *others] if any(not each.startswith("-") for each in others) else ["tests", *kinds, *others]
    operators: Any = mutation_operators
    operators += [(libcst.Expr, drop_call), (libcst.Call, swap_extremes)]
    # In memory, where there is such a folder: the tests' databases write to the disk at each commit.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=memory if memory.is_dir() else None) as folder:
        copy = Path(folder)
        for name in (PACKAGE, "tests", "docs", "examples"):
            shutil.copytree(name, copy / name)
        for path in (*Path().glob("*.py"), *Path().glob("*.md"), Path("pyproject.toml")):
            shutil.copy(path, copy / path)
        mutants = [each for path in modules() for each in make_mutants(path, copy)]
        read_equivalent(mutants)
        (copy / "mutants.json").write_text(json.dumps([attrs.asdict(each) for each in mutants]), encoding="utf-8")
        lines = (options.map or copy / "lines").absolute()
        if not lines.is_dir():
            plugin = ("-p", "tests.support.linemap", f"--line-map={lines}", f"-n{options.processes}")
            run_pytest(Path.cwd(), copy, *plugin, *tests)
        plugins = ("-p", "tests.mutants", "-p", "no:xdist", "-p", "no:cacheprovider", "-s", "-q")
        # pytest has one watchdog, as Python has: it would take the place of ours.
        watchdog = ("-o", "faulthandler_timeout=0", "-o", "tmp_path_retention_policy=none")
        ours = [f"--map={lines}", *(f"--seed={each}" for each in options.seed or [])]
        for name in ("sample", "only", "least", "processes"):
            ours += [f"--{name}={value}"] if (value := getattr(options, name)) is not None else []
        run_pytest(copy, copy, *plugins, *watchdog, *ours, *tests)


def modules() -> Iterator[Path]:
    """Yield the modules that a pattern of pyproject.toml names."""
    for path in sorted(Path(PACKAGE).rglob("*.py")):
        if any(fnmatch(str(path), pattern) for pattern in config().only_mutate):
            yield path


def run_pytest(folder: Path, scratch: Path, *arguments: str) -> None:
    """Run pytest in a folder, with the temporary files of its tests in another one, and exit if it fails."""
    # Not `--basetemp`, which each fork would empty.
    environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(scratch)}
    command = (sys.executable, "-m", "pytest", *arguments)
    status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main()
