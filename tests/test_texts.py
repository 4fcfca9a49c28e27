"""Texts for people: no program compares an error's, a reason or a note, and each command that they name exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mobilemoney_async
from mobilemoney_async.cli.app import COMMANDS

PACKAGE = Path(mobilemoney_async.__file__).parent
# Attributes and columns with sentences.
FOR_PEOPLE = {"reason", "error", "detail", "note", "problem", "advice", "message", "args"}
COMPARING = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find"}
COMPARING |= {"index", "count", "match", "fullmatch", "search", "sub", "in_", "like", "ilike", "contains"}
ALLOWED = {
    "configuration/profiles.py": "tomllib names the place of an error in its text only",
    "contract/rows.py": "msgspec names the place of an error in its text only",
    "database/group.py": "old releases of psycopg show the server's last words without their code",
    "cli/following.py": "the error of an event is the name of a class",
    "payments/erasure.py": "its own mark stands in place of what was erased",
}


def comparisons(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare a sentence, or look for a text in one."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        texts = {
            target.id
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and _is_sentence(each.value, set())
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        for each in ast.walk(function):
            match each:
                case ast.Compare(ops=ops) if any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops):
                    parts = (each.left, *each.comparators)
                case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in COMPARING:
                    parts = (value, *each.args)
                case _:
                    continue
            if any(_is_sentence(part, texts) for part in parts):
                yield each.lineno


def _is_sentence(node: ast.AST, texts: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id="exc" | "error" | "cause" | "failure")]):
            return True
        case ast.Attribute(attr=name):
            return name in FOR_PEOPLE
        case ast.Name(id=name):
            return name in texts
    return False


@pytest.mark.slow
@pytest.mark.once
def test_no_program_compares_a_text_for_people() -> None:
    """The sandbox plays the service, whose texts are its own."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = [
        f"{name}:{line}"
        for name, path in sorted(paths.items())
        if not name.startswith("sandbox/") and name not in ALLOWED
        for line in comparisons(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "'failed' in str(exc)",
        "record.reason == 'no later payment'",
        "columns.reason.in_(SENTENCES)",
        "_DIGITS.sub('', str(error))",
        "record.error.startswith('it is')",
    ],
)
def test_such_a_comparison_is_found(line: str) -> None:
    assert [*comparisons(ast.parse(f"def work():\n    return {line}\n"))] == [2]
    assert [*comparisons(ast.parse("def work():\n    text = str(exc)\n    return 'failed' in text\n"))] == [3]


@pytest.mark.costly("imports the commands of three groups")
def test_each_command_that_a_text_names_exists() -> None:
    """A next step is pasted into a shell, and some are read on a bad day only."""
    known = {each.name for each in COMMANDS}
    for group in (each for each in COMMANDS if each.name in {"payments", "payouts", "accounts"}):
        known |= {f"{group.name} {name}" for name in group.load().commands}
    named = re.compile(r"\bmobilemoney ((?:(?:payments|payouts|accounts) )?[a-z][a-z-]+)\b")
    texts = "\n".join(each.read_text("utf-8") for each in PACKAGE.rglob("*.py"))
    assert {each for each in named.findall(texts) if each not in known} == set()
