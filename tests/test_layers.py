"""The package keeps to its layers, and this test notices a violation."""

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import mobilemoney_async
from tests.support.layers import PURE, read_tree, violations

pytestmark = pytest.mark.costly("is the check of the layers: whichever test is first reads the whole package")


def test_the_package_keeps_to_its_layers() -> None:
    """Code depends on code below it only, so that any package can be read without those above."""
    assert mobilemoney_async.__file__ is not None
    assert violations(Path(mobilemoney_async.__file__).parent) == []


def test_a_name_of_a_class_means_one_class() -> None:
    """Also in the sandbox, which shares no code with the client."""
    trees = read_tree(Path(str(mobilemoney_async.__file__)).parent).values()
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == set()


def test_pure_modules_have_their_known_names() -> None:
    """A pure module that moves takes its rule along."""
    modules = read_tree(Path(mobilemoney_async.__file__).parent)
    assert [name for name in PURE if name not in modules] == []


def build(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


SOUND = {
    "__init__.py": "from mobilemoney_async.client import AsyncClient\n",
    "errors.py": "import enum\n",
    "values.py": "from mobilemoney_async.errors import InvalidRequest\n",
    "contract/__init__.py": "",
    "contract/codec.py": "import cattrs\nfrom datetime import datetime\nx = datetime.fromisoformat('2030-01-01')\n",
    "calls/__init__.py": "from mobilemoney_async.calls.transport import send\n",
    "calls/transport.py": "import httpx\nimport time\nfrom mobilemoney_async.contract import codec\n",
    "calls/_helper.py": "from mobilemoney_async.calls import transport\n",
    "polling/planner.py": "import heapq\nfrom mobilemoney_async import errors\n",
    "client.py": "import mobilemoney_async.calls.transport\nfrom mobilemoney_async.polling import planner\n",
    "sandbox/__init__.py": "def client():\n    from mobilemoney_async import AsyncClient\n",
    "sandbox/_types.py": "if TYPE_CHECKING:\n    from mobilemoney_async import AsyncClient\n",
    "sandbox/engine.py": "import httpx\nimport starlette\n",
    "cli/__init__.py": "import rich\nimport mobilemoney_async\nfrom mobilemoney_async.sandbox import engine\n",
    "testing/__init__.py": "def backend():\n    from trio.testing import MockClock\n",
}


def test_a_sound_tree_has_no_violation(tmp_path: Path) -> None:
    """Helpers inside a package, packages, and the sandbox's lazy import of the client are all in order."""
    assert violations(build(tmp_path, SOUND)) == []


US, LAZY, TYPES = "mobilemoney_async", "def f():\n    ", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
BROKEN = {
    "up": ("contract/a.py", f"from {US}.calls import transport", "layer 2 imports from layer 3"),
    "up, whole module": ("errors.py", f"import {US}.client", "layer 1 imports from layer 10"),
    "up, only for types": ("calls/a.py", f"{TYPES}from {US} import client", "layer 3 imports from layer 10"),
    "up, inside a function": ("calls/a.py", f"{LAZY}from {US} import client", "layer 3 imports from layer 10"),
    "payments from polling": ("polling/a.py", f"from {US}.payments import records", "layer 7 imports from layer 8"),
    "the package from inside": ("client.py", f"from {US} import AsyncClient", "layer 10 imports from layer 12"),
    "testing from beside": ("cli/a.py", f"from {US} import testing", "layer 14 imports from layer 14"),
    "a new part": ("helpers.py", "", "a part without a layer"),
    "an unknown part": ("client.py", f"import {US}.helpers", "a part without a layer"),
    "a circle in one package": ("calls/a.py", f"from {US}.calls import b", "circle: calls.a -> calls.b -> calls.a"),
    "second importer of httpx": ("client.py", "import httpx", "not the place for it: calls.transport"),
    "httpx for types only": (
        "client.py",
        f"{TYPES}from httpx import AsyncBaseTransport",
        "not the place for it: calls.transport",
    ),
    "second importer of cattrs": ("calls/a.py", "from cattrs.preconf import json", "not the place for it: contract"),
    "httpx2": ("calls/transport.py", "import httpx2", "not the place for it: nowhere"),
    "SQL outside the store": (
        "client.py",
        "import sqlalchemy.exc",
        "not the place for it: database, merchants, payments, sharing",
    ),
    "a driver for types only": (
        "polling/a.py",
        f"{TYPES}from psycopg import Connection",
        "not the place for it: database",
    ),
    "encryption outside the store": (
        "calls/a.py",
        f"{LAZY}from cryptography.fernet import Fernet",
        "not the place for it: database.encryption",
    ),
    "client knows the sandbox": ("client.py", f"from {US}.sandbox import engine", "only cli and testing"),
    "sandbox shares code": ("sandbox/a.py", f"from {US}.contract import codec", "shares no code"),
    "sandbox shares code lazily": ("sandbox/a.py", f"{LAZY}from {US}.errors import APIError", "shares no code"),
    "sandbox needs the client": ("sandbox/a.py", f"from {US}.client import AsyncClient", "shares no code"),
    "a lazy circle in the sandbox": (
        "sandbox/a.py",
        f"{LAZY}from {US}.sandbox import b",
        "circle: sandbox.a -> sandbox.b -> sandbox.a",
    ),
    "pure module takes the time": ("calls/bucket.py", "from time import monotonic", "a pure module"),
    "pure package logs": ("contract/sub/a.py", "import logging.handlers", "a pure module"),
    "pure module reads the environment": ("values.py", "import os.path", "a pure module"),
    "pure module reads the calendar": (
        "payments/records/record.py",
        "import datetime as d\nx = d.datetime.now(d.UTC)",
        "reads the clock",
    ),
    "pure module waits": ("calls/retry.py", "async def f():\n    await g()", "Await in a pure module"),
    "a private attribute": (
        "client.py",
        f"from {US}.calls import transport\nx = transport._secret",
        "transport._secret: a private attribute of another module",
    ),
    "pure module iterates": (
        "calls/retry.py",
        "def f(x):\n    return (y async for y in x)",
        "asynchronous comprehension",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_violation_is_found(name: str, tmp_path: Path) -> None:
    """Each rule is held by a test that fails when it is broken."""
    file, text, expected = BROKEN[name]
    package = file.partition("/")[0]
    extra = {f"{package}/b.py": f"from mobilemoney_async.{package} import a\n"} if "circle" in name else {}
    found = violations(build(tmp_path, {**SOUND, **extra, file: text}))
    assert [line for line in found if expected in line], found


def test_a_circle_in_the_lowest_layer_is_found(tmp_path: Path) -> None:
    """Parts of the lowest layer may import each other, but one way."""
    found = violations(build(tmp_path, {**SOUND, "errors.py": "from mobilemoney_async import values\n"}))
    assert found == ["circle: errors -> values -> errors"]


def test_a_relative_import_is_refused(tmp_path: Path) -> None:
    """Every import names its module in full, so that none escapes the walk."""
    with pytest.raises(AssertionError, match="relative import"):
        violations(build(tmp_path, {**SOUND, "client.py": "from .calls import transport\n"}))
