"""Reader of a source tree's imports, which reports where they break the layers.

The rules are the tables below; `violations` walks a tree by `ast` and imports nothing, so that imports under
`TYPE_CHECKING` and inside functions count like any other. A part is a top-level module or package with all its modules.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

PACKAGE = "mobilemoney_async"

# A part imports from lower layers only. The parts of the lowest layer may import each other, one way.
LAYERS: Mapping[str, int] = {
    "_version": 1,
    "arithmetic": 1,
    "errors": 1,
    "events": 1,
    "redaction": 1,
    "tasks": 1,
    "text": 1,
    "tracebacks": 1,
    "values": 1,
    "contract": 2,
    "calls": 3,
    "callbacks": 4,
    "configuration": 4,
    "resources": 5,
    "database": 6,
    "polling": 7,
    "payments": 8,
    "sharing": 9,
    "client": 10,
    "merchants": 11,
    "__init__": 12,
    "contrib": 13,
    "testing": 14,
    "cli": 14,
    "__main__": 15,
}
LOWEST = 1

# The parts of the largest package, in the same way.
PAYMENTS: Mapping[str, int] = {
    "records": 1,
    "feed": 2,
    "ownership": 3,
    "audit": 4,
    "creates": 4,
    "outbox": 5,
    "payouts": 6,
    "erasure": 7,
    "store": 8,
    "book": 8,
    "api": 9,
    "__init__": 9,
}

# The service, written a second time: it shares no code with the client, and only these parts import it.
SANDBOX = "sandbox"
SANDBOX_KNOWN_BY = {"cli", "testing", SANDBOX}
# Imported by the sandbox inside a function or for types only: the client that it hands out, none of its parts.
SANDBOX_LAZILY = {"__init__"}

# Who may import what does I/O or sets a standard: modules, or packages with everything in them.
ONE_IMPORTER: Mapping[str, set[str]] = {
    "aiohttp": {"calls.transport_pool"},
    "cattrs": {"contract"},
    "cryptography": {"database.encryption"},
    "fastapi": {"contrib.fastapi"},
    "httpcore": {SANDBOX, "cli", "testing"},
    "httpx": {"calls.transport", "calls.transport_pool", SANDBOX, "cli", "testing"},
    "httpx2": set(),
    "httpx_aiohttp": {"calls.transport_pool"},
    "jinja2": {SANDBOX, "cli"},
    "markupsafe": {SANDBOX, "cli"},
    "opentelemetry": {"contrib.otel"},
    "psycopg": {"database"},
    "pydantic": set(),
    "pydantic_core": {"contract.json_schema"},
    "respx": {"testing"},
    "rich": {"cli"},
    "sqlalchemy": {"database", "merchants", "payments", "sharing"},
    "starlette": {SANDBOX, "cli", "contrib.fastapi"},
    "trio": {"testing", "resources.bulk_lookup"},
    "typer": {"cli"},
    "uvicorn": {SANDBOX, "cli"},
}

# Decisions without I/O: no await, no clock, no randomness, no environment, no logging.
PURE = (
    "arithmetic",
    "errors",
    "text",
    "values",
    "contract",
    "callbacks.names",
    "calls.bucket",
    "calls.logins",
    "calls.retry",
    "contrib.orders",
    "contrib.prompt_limit",
    "polling.list_model",
    "polling.pacing",
    "polling.planner",
    "polling.scoring",
    "polling.tracked",
    "resources.page_choice",
    "merchants.shares",
    "sharing.budget",
    "database.serialization",
    "database.clock",
    "sharing.login_row",
    "payments.ownership.evidence",
    "payments.ownership.comparison",
    "payments.ownership.matching",
    "payments.records.next_steps",
    "payments.records.record",
)
IMPURE_IMPORTS = {
    "anyio",
    "asyncio",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "trio",
    "uuid",
}
CLOCK_CALLS = {"now", "today", "utcnow"}


@attrs.frozen
class Import:
    """One imported module.

    Attributes:
        target: Our module without the package's name ("calls.limiter", "__init__" for the package itself), or the
            top-level name of somebody else's.
        ours: Whether it is our own.
        line: Where it stands.
        lazy: Whether it stands inside a function or under `TYPE_CHECKING`.
    """

    target: str
    ours: bool
    line: int
    lazy: bool


def part_of(module: str) -> str:
    """Return the top-level module or package that a module is in."""
    return module.partition(".")[0]


def is_in(module: str, place: str) -> bool:
    """Tell whether a module is `place` or inside it."""
    return module == place or module.startswith(f"{place}.")


@functools.cache
def read_tree(root: Path) -> dict[str, ast.Module]:
    """Parse each module of the package under `root`, by its name without the package's."""
    trees = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return trees


def _statements(node: ast.AST, *, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each statement below `node`, with whether it is inside a function or under `TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child, lazy
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
            )
            yield from _statements(child, lazy=lazy or inside)


def _own_name(dotted: str) -> str:
    return dotted.removeprefix(PACKAGE).removeprefix(".") or "__init__"


def _targets(node: ast.AST, importer: str, modules: Mapping[str, ast.Module]) -> Iterator[tuple[str, bool]]:
    """Yield what an import statement imports: the most specific module for each name."""
    match node:
        case ast.Import(names):
            for alias in names:
                ours = is_in(alias.name, PACKAGE)
                yield (_own_name(alias.name) if ours else part_of(alias.name)), ours
        case ast.ImportFrom(module, names, level):
            if level:
                # Relative imports are banned (ruff TID): named here, so that none goes unseen.
                raise AssertionError(f"{importer}:{node.lineno}: relative import")
            assert module is not None
            if not is_in(module, PACKAGE):
                yield part_of(module), False
                return
            base = _own_name(module)
            for alias in names:
                below = alias.name if base == "__init__" else f"{base}.{alias.name}"
                yield (below if below in modules else base), True


def imports(importer: str, modules: Mapping[str, ast.Module]) -> Iterator[Import]:
    """Yield each import of one module."""
    for node, lazy in _statements(modules[importer]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target, ours in _targets(node, importer, modules):
                yield Import(target, ours, node.lineno, lazy)


def _own_import_fault(importer: str, found: Import) -> str | None:
    """Return what is wrong with an import of one of our modules, if anything is."""
    here, there = part_of(importer), part_of(found.target)
    if here == there == "payments":
        inner, below = (f"{each}.__init__".split(".")[1] for each in (importer, found.target))
        is_upward = inner != below and PAYMENTS[below] >= PAYMENTS[inner]
        return f"payments/{inner} imports from payments/{below}" if is_upward else None
    if here == there:
        return None
    if here == SANDBOX:
        if there == "_version" or (there in SANDBOX_LAZILY and found.lazy):
            return None
        return "the sandbox shares no code with the client"
    if there == SANDBOX:
        return None if here in SANDBOX_KNOWN_BY else "only cli and testing know the sandbox"
    if here not in LAYERS or there not in LAYERS:
        return "a part without a layer: give it one in tests/support/layers.py"
    if LAYERS[there] < LAYERS[here] or LAYERS[there] == LAYERS[here] == LOWEST:
        return None
    return f"layer {LAYERS[here]} imports from layer {LAYERS[there]}"


def _foreign_import_fault(importer: str, found: Import) -> str | None:
    """Return what is wrong with an import of somebody else's module, if anything is."""
    importers = ONE_IMPORTER.get(found.target)
    if importers is not None and not any(is_in(importer, place) for place in importers):
        return f"not the place for it: {', '.join(sorted(importers)) or 'nowhere'}"
    if found.target in IMPURE_IMPORTS and any(is_in(importer, place) for place in PURE):
        return "a pure module"
    return None


def _import_violations(modules: Mapping[str, ast.Module]) -> Iterator[str]:
    for importer in modules:
        if part_of(importer) not in {*LAYERS, SANDBOX}:
            yield f"{importer}: a part without a layer: give it one in tests/support/layers.py"
            continue
        for found in imports(importer, modules):
            fault = (_own_import_fault if found.ours else _foreign_import_fault)(importer, found)
            if fault:
                yield f"{importer}:{found.line}: imports {found.target}: {fault}"


def _purity_violations(modules: Mapping[str, ast.Module]) -> Iterator[str]:
    for name, tree in modules.items():
        if not any(is_in(name, place) for place in PURE):
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in CLOCK_CALLS:
                    if ast.unparse(value).rpartition(".")[2] in {"date", "datetime"}:
                        yield f"{name}:{node.lineno}: reads the clock in a pure module"
                case ast.AsyncFor() | ast.AsyncFunctionDef() | ast.AsyncWith() | ast.Await():
                    yield f"{name}:{node.lineno}: {type(node).__name__} in a pure module"
                case ast.comprehension(is_async=1):
                    yield f"{name}: asynchronous comprehension in a pure module"


def _circle_violations(modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield each circle once; imports inside functions and for types count too."""
    graph = {
        name: {found.target for found in imports(name, modules) if found.ours and found.target != name}
        for name in modules
    }
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> Iterator[str]:
        if name in path:
            yield "circle: " + " -> ".join([*path[path.index(name) :], name])
        elif name not in done:
            for target in sorted(graph.get(name, ())):
                yield from visit(target, [*path, name])
            done.add(name)

    for name in sorted(graph):
        yield from visit(name, [])


def _own_names(tree: ast.Module) -> set[str]:
    """Return the names of a module's classes and functions, and of the attributes of `self` and `cls`."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                names.add(attr)
    return names


def _private_violations(modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield each private attribute that a module takes from another module's object."""
    for name, tree in modules.items():
        own = _own_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in own:
                yield f"{name}:{node.lineno}: {ast.unparse(node)}: a private attribute of another module"


def violations(root: Path) -> list[str]:
    """Return every violation in the package whose directory is `root`: module, line, what and why."""
    modules = read_tree(root)
    return [
        *_import_violations(modules),
        *_purity_violations(modules),
        *_circle_violations(modules),
        *_private_violations(modules),
    ]
