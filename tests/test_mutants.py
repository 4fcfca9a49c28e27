"""The list of mutants that change nothing keeps pace with the code: `nox -s mutants` itself runs only now and then."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.support.functions import functions_of

_FOLDER = Path(__file__).parent
_LISTED = tomllib.loads((_FOLDER / "mutants.toml").read_text(encoding="utf-8"))["equivalent"]


@cache
def lines_of(package: str) -> dict[str, list[str]]:
    """Return the lines of each function of a package, joined; several may have one name.

    Functions with decorators have no mutants.
    """
    found: dict[str, list[str]] = {}
    for path in (_FOLDER.parent / "mobilemoney_async" / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        for name, node in functions_of(ast.parse(text)):
            if not node.decorator_list:
                found.setdefault(name, []).append(" ".join(lines[node.lineno - 1 : node.end_lineno]))
    return found


@pytest.mark.slow
@pytest.mark.once
def test_each_listed_mutant_is_of_lines_that_exist() -> None:
    """An entry whose function or lines have changed is brought up to date with them."""
    gone = []
    for entry in _LISTED:
        package, _, name = entry["function"].partition(".")
        if not any(entry["before"] in lines for lines in lines_of(package).get(name, [])):
            gone.append((entry["function"], entry["before"]))
        assert entry["reason"].strip()
        assert entry["before"] != entry["after"]
    assert gone == []
