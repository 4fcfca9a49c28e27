"""Tests on the real clock give the same answer on any machine, however busy it is: a lint of all tests.

In real time a test waits by `until`, `wait_until` or PATIENCE of `tests.support.patience`. Whatever else sleeps, reads
the clock, or gives up in less than a minute, says on its line why a late machine does not matter: ``# real time: …``.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Programs of developers, whose output is the time that they take.
PROGRAMS = {"mutants.py", "openapi.py", "simulation/__main__.py", "simulation/planted.py"}
CLOCKS = {"time.time", "time.monotonic", "time.perf_counter"}
SLEEPS = {"anyio.sleep", "asyncio.sleep", "trio.sleep"}
LIMITS = {"anyio.fail_after", "anyio.move_on_after", "asyncio.timeout", "asyncio.wait_for", "trio.fail_after"}
MINUTE = 59.9
REASON = re.compile(r"# real time: \w")
# Code with none of these words has no fault.
SUSPECT = re.compile(r"\btime\.|sleep\(|PATIENCE|timeout[=(]|_after\(|wait_for\(|\.(wait|join|result)\(\s*\d")

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find_faults(source: str) -> list[str]:
    """Return the calls of a module of the tests that need a reason and have none, each with its line."""
    if not SUSPECT.search(source):
        return []
    module, lines = ast.parse(source), source.splitlines()

    def nodes(parts: Iterable[ast.stmt]) -> Iterator[ast.AST]:
        for each in parts:
            if SUSPECT.search(_written(each, lines)):
                yield from ast.walk(each)

    in_real_time = {*nodes(_real_functions(module, lines))}
    faults = []
    for node in nodes(module.body):
        if isinstance(node, ast.Assign | ast.Call):
            said = _fault(node, is_real=node in in_real_time)
            if said and not REASON.search("\n".join(lines[node.lineno - 1 : node.end_lineno])):
                faults.append((node.lineno, said))
    return [f"line {line}: {said}" for line, said in sorted(faults)]


def _fault(node: ast.Assign | ast.Call, *, is_real: bool) -> str | None:
    """Say what is wrong with a node that has no reason, if anything is."""
    if isinstance(node, ast.Assign):
        return "there is one PATIENCE" if any("PATIENCE" in _dotted(each) for each in node.targets) else None
    name = _dotted(node.func)
    if name == "time.sleep" or name in CLOCKS or (is_real and _may_be_late(name, node)):
        return f"{name} needs PATIENCE or a reason"
    return None


def _may_be_late(name: str, call: ast.Call) -> bool:
    """Tell whether a late machine may come later than a call expects."""
    if name in SLEEPS:
        return ast.unparse(call.args[0]) != "0"
    if name in LIMITS:
        return "PATIENCE" not in ast.unparse(call)
    if re.search(r"\.(wait|join|result)$", name) and len(call.args) == 1:
        return _is_number(call.args[0])
    return any(each.arg == "timeout" and _is_number(each.value, MINUTE) for each in call.keywords)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _real_functions(module: ast.Module, lines: list[str]) -> Iterator[Function]:
    """Yield what runs in real time: tests, and what they use of their module.

    A test that is no coroutine runs its loops in real time, unless it names virtual time.
    """
    top = {each.name: each for each in module.body if isinstance(each, Function)}
    # A mark has other names too: `real = pytest.mark.real_time`, or a function that marks.
    marks = {"real_time", "mark.asyncio"}
    for each in module.body:
        if isinstance(each, ast.Assign | ast.FunctionDef) and _says("mark.real_time", each, lines):
            if isinstance(each, ast.Assign):
                marks.update(ast.unparse(target) for target in each.targets)
            elif not each.name.startswith("test"):
                marks.add(each.name)
    is_all = "pytestmark" in marks
    found = [each for each in _tests(module) if is_all or _is_real(each, marks, lines)]
    seen = set[ast.AST]()
    while found:
        function = found.pop()
        if function not in seen:
            seen.add(function)
            yield function
            names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            found += [top[name] for name in names & top.keys()]


def _tests(parent: ast.Module | ast.ClassDef) -> Iterator[Function]:
    for each in parent.body:
        if isinstance(each, Function):
            yield each
        if isinstance(each, ast.ClassDef) and each.name.startswith("Test"):
            yield from _tests(each)


def _is_real(function: Function, marks: set[str], lines: list[str]) -> bool:
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    if any(name in decorators for name in marks):
        return True
    is_sync_test = isinstance(function, ast.FunctionDef) and function.name.startswith("test")
    return is_sync_test and not _says("(?i)virtual|MockClock", function, lines)


def _says(pattern: str, node: ast.stmt, lines: list[str]) -> bool:
    """Tell whether code says something, comments aside. Few lines do: unparsing all takes seconds."""
    return bool(re.search(pattern, _written(node, lines)) and re.search(pattern, ast.unparse(node)))


def _written(node: ast.stmt, lines: list[str]) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def _is_number(node: ast.expr, most: float = float("inf")) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value <= most


MARKED = """
@pytest.mark.real_time
async def test_one() -> None:
    {}
"""


@pytest.mark.once
@pytest.mark.parametrize(
    "statement",
    [
        "await anyio.sleep(1)",
        "time.sleep(1)",
        "assert time.monotonic() - began < 5",
        "with anyio.fail_after(30): pass",
        "with anyio.move_on_after(pause): pass",
        "client = sandbox.client(timeout=0.5)",
        "thread.join(60)",
        "PATIENCE = 30.0",
    ],
)
def test_each_kind_of_fault_is_found(statement: str) -> None:
    """What may fail on a late machine needs its reason, on the line."""
    assert len(find_faults(MARKED.format(statement))) == 1
    assert find_faults(MARKED.format(f"{statement}  # real time: it shows less where it is late")) == []
    by_another = MARKED.format("await helper()") + f"async def helper() -> None:\n    {statement}"
    assert len(find_faults(by_another)) == 1


@pytest.mark.once
@pytest.mark.parametrize("statement", ["await anyio.sleep(1)", "client = sandbox.client(timeout=0.5)"])
def test_in_virtual_time_nothing_is_late(statement: str) -> None:
    """There a test may sleep, and have limits, as it likes."""
    assert find_faults(f"async def test_one() -> None:\n    {statement}") == []


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.costly("a test that fails on a busy machine, once in a thousand runs")
def test_no_test_fails_on_a_late_machine() -> None:
    """Each of them waits with patience, or says why a late machine does not matter."""
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name not in PROGRAMS and (faults := find_faults(path.read_text("utf-8"))):
            found[name] = faults
    assert found == {}
