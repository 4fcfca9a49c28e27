"""The table of crossings: each feature has been tried in each setting, or the docs say why it cannot be.

`crossings.toml` has a table for each feature. A key names one setting or several, and its value is a test, as
`file::test` or `file::Class::test`, or a page of the docs and a sentence of it, as `page.md: sentence`.
"""

import ast
import functools
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads(Path(__file__).with_name("crossings.toml").read_text("utf-8"))
SETTINGS = {
    "no store",
    "SQLite",
    "PostgreSQL",
    "one process",
    "several processes",
    "one merchant",
    "many merchants",
    "asyncio",
    "trio",
    "command line",
    "dashboard",
    "OpenTelemetry",
    "virtual time",
    "cancelled call",
}
FEATURES = {
    "create",
    "queue and dispatcher",
    "payouts",
    "disbursement limits",
    "reconcile",
    "unmatched transactions",
    "audit",
    "changes",
    "callbacks",
    "poller and wait",
    "login and tokens",
    "erasure",
    "suspend and remove",
    "overview",
    "sandbox",
}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """Module of tests, as its source says: nothing is imported.

    Attributes:
        found: Its tests, by name, with the decorators of their classes.
    """

    def __init__(self, file: str) -> None:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        own = next((each for each in tree.body if _assigned(each) == "pytestmark"), None)
        self._marks = "" if own is None else ast.unparse(own)
        self.found: dict[str, tuple[Function, str]] = dict(self._tests(tree.body, "", ""))
        conftests = [each / "conftest.py" for each in (ROOT / file).parents if each.is_relative_to(ROOT / "tests")]
        trees = [tree, *(ast.parse(each.read_text("utf-8")) for each in conftests if each.exists())]
        self._fixtures = {
            each.name: each for tree in reversed(trees) for each in tree.body if isinstance(each, Function)
        }

    def _tests(self, body: list[ast.stmt], prefix: str, marks: str) -> Iterator[tuple[str, tuple[Function, str]]]:
        for each in body:
            if isinstance(each, ast.ClassDef) and each.name.startswith("Test"):
                yield from self._tests(each.body, f"{each.name}::", _decorators(each))
            elif isinstance(each, Function) and each.name.startswith("test"):
                yield prefix + each.name, (each, marks)

    def marks(self, name: str) -> str:
        """Return all decorators and marks of a test, as text."""
        function, marks = self.found[name]
        return f"{_decorators(function)} {marks} {self._marks}"

    def fixtures(self, name: str) -> set[str]:
        """Return the fixtures of a test, and those that they use."""
        seen, left = set[str](), [self.found[name][0]]
        while left:
            for argument in left.pop().args.args:
                if argument.arg not in seen:
                    seen.add(argument.arg)
                    left += [self._fixtures[argument.arg]] if argument.arg in self._fixtures else []
        return seen


def _assigned(statement: ast.stmt) -> str | None:
    is_name = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    return statement.targets[0].id if is_name else None  # type: ignore[attr-defined]


def _decorators(node: Function | ast.ClassDef) -> str:
    return " ".join(ast.unparse(each) for each in node.decorator_list)


read_module = functools.cache(Module)


def cells(feature: str) -> Iterator[tuple[str, str]]:
    """Yield each setting of a feature, with what shows it."""
    for settings, shown in TABLE[feature].items():
        for setting in settings.split(", "):
            yield setting, shown


@functools.cache
def prose(page: str) -> str:
    """Return a page of the docs as one line."""
    return " ".join((ROOT / "docs" / page).read_text("utf-8").split())


def test_every_cell_is_filled() -> None:
    """Once: each feature in each setting."""
    assert set(TABLE) == FEATURES
    for feature in TABLE:
        counts = Counter(setting for setting, _ in cells(feature))
        assert counts == dict.fromkeys(SETTINGS, 1), feature


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_every_named_test_and_every_sentence_exists(feature: str) -> None:
    """And a test runs in the setting that it is named for, as far as its fixtures and marks tell."""
    for setting, shown in cells(feature):
        cell = f"{feature}, {setting}: {shown}"
        if not shown.startswith("tests/"):
            page, _, sentence = shown.partition(": ")
            assert " ".join(sentence.split()) in prose(page), cell
            continue
        file, _, name = shown.partition("::")
        module = read_module(file)
        assert name in module.found, cell
        marks, fixtures = module.marks(name), module.fixtures(name)
        if setting == "trio":
            assert isinstance(module.found[name][0], ast.AsyncFunctionDef), cell
            assert "asyncio" not in marks, cell
        if setting == "virtual time":
            assert "real_time" not in marks, cell
        if setting == "PostgreSQL":
            assert fixtures & {"store_url", "postgres_url", "postgres_server"}, cell
        if setting == "SQLite":
            assert not fixtures & {"postgres_url", "postgres_server"}, cell
