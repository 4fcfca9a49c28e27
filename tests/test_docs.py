"""The docs are complete, and every name in them exists. `nox -s docs` checks that they build."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from mobilemoney_async import AsyncClient, Merchants, MobileMoneyError, RateLimiter, RetryPolicy, SQLStore, errors
from mobilemoney_async.cli.app import app
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.payments.records import record as records
from mobilemoney_async.sandbox import MAGIC_NUMBERS, states
from mobilemoney_async.sandbox.endpoints import ROUTES
from tests.support.layers import LAYERS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
PUBLIC_MODULES = (
    "mobilemoney_async",
    "mobilemoney_async.callbacks",
    "mobilemoney_async.contrib.backend",
    "mobilemoney_async.contrib.fastapi",
    "mobilemoney_async.contrib.http_answers",
    "mobilemoney_async.contrib.orders",
    "mobilemoney_async.contrib.otel",
    "mobilemoney_async.errors",
    "mobilemoney_async.events",
    "mobilemoney_async.sandbox",
    "mobilemoney_async.sandbox.faults",
    "mobilemoney_async.testing",
)
DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+)", re.MULTILINE)
SHELL = re.compile(r"```bash\n(.*?)```", re.DOTALL)
TYPED = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
CODE = re.compile(r"`(mobilemoney [^`]+)`")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def script(name: str) -> ModuleType:
    """Import a script of the docs, which is outside the package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names(module: ModuleType) -> list[str]:
    """Return the names of ``__all__``; without it, the names that the module itself defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
    return [name for name in names if not name.startswith("_") and name != "logger"]


def resolve(dotted: str) -> Any:
    """Return the module, class or attribute with a dotted name."""
    module, names = dotted, list[str]()
    while not is_module(module):
        module, _, name = module.rpartition(".")
        names.insert(0, name)
    found: Any = importlib.import_module(module)
    for name in names:
        found = getattr(found, name)
    return found


def is_module(dotted: str) -> bool:
    """Return whether a dotted name is that of a module."""
    try:
        return importlib.util.find_spec(dotted) is not None
    except ModuleNotFoundError:  # its parent is not a module
        return False


@pytest.mark.costly("runs lines of contrib/fastapi.py that no quick test runs")
def test_every_public_name_is_in_the_reference() -> None:
    """Every public name is in the API reference, once."""
    targets = [target for page in DOCS.glob("reference/*.md") for target in DIRECTIVE.findall(page.read_text("utf-8"))]
    assert len(targets) == len(set(targets))
    known = {id(resolve(target)) for target in targets}
    missing = [
        f"{module}.{name}"
        for module in PUBLIC_MODULES
        for name in public_names(importlib.import_module(module))
        if id(getattr(importlib.import_module(module), name)) not in known
    ]
    assert missing == [], "add them to a page of docs/reference"


def test_a_language_model_gets_every_page_with_its_docstrings(tmp_path: Path) -> None:
    """`llms.txt` names each page with its first sentence, and `llms-full.txt` has the whole reference."""
    (tmp_path / "reference").mkdir()
    names = [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES if path.is_relative_to(DOCS)]
    script("llms").write(tmp_path, "a title", {"Docs": {name: (DOCS / f"{name}.md").read_text() for name in names}})
    index, whole = ((tmp_path / name).read_text("utf-8") for name in ("llms.txt", "llms-full.txt"))
    assert "- [Errors](errors.md): Every error of the library is a `MobileMoneyError`.\n" in index
    assert "#### AsyncClient.poller(self, *, timeout: 'float | None' = None, " in whole
    assert [target for target in DIRECTIVE.findall(whole) if target] == []
    assert [name for name in names if f"]({name}.md)" not in index or not (tmp_path / f"{name}.md").exists()] == []


def test_each_supported_python_is_tested_wherever_tests_run() -> None:
    """The workflow, the script of CI and nox know the same versions, and the tested ones are those that are claimed."""
    versions = re.search(r"^SUPPORTED = \((.*)\)", (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE)
    assert versions is not None
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    newest = set(re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE))
    assert newest == set(re.findall(r"3\.\d+", versions[1]))
    assert f"for minor in {versions[1].replace(',', '').replace(chr(34), '')}; do" in (ROOT / ".ci" / "run").read_text()
    claimed = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert [each for each in claimed if f'"{each}"' not in versions[1]] == []


def test_contributing_says_what_runs_where() -> None:
    """Each session of nox has a row: its name, the command that runs it, and what its docstring says."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| `(nox[^`]*)` \| (.*) \|$", table, re.MULTILINE)
    expected = []
    for function in ast.parse((ROOT / "noxfile.py").read_text("utf-8")).body:
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        (decorator,) = function.decorator_list
        options = {each.arg: ast.unparse(each.value) for each in getattr(decorator, "keywords", [])}
        if ast.unparse(decorator).startswith("nox.session"):
            name = options.get("name", function.name).strip("'")
            tag = re.sub(r"\W", "", options.get("tags", ""))
            command = f"nox -t {tag}" if tag else "nox" if name == "fast" else f"nox -s {name}"
            expected.append((name, command, (ast.get_docstring(function) or "").replace("\n", " ")))
    assert rows == expected


def test_every_error_is_explained() -> None:
    """Each error has a section about its cause and the next step."""
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MobileMoneyError)]
    explained = re.findall(r"^### (\w+)$", (DOCS / "errors.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(explained) == sorted({each.__name__ for each in classes} - {"MobileMoneyError"})


def test_every_promise_of_the_threat_model_has_a_test() -> None:
    """Each test that SECURITY.md names exists."""
    named = re.findall(r"`(tests/[\w/]+[.]py)::(\w+)`", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(named) > 15
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), f"{file}::{name}"


def test_the_magic_numbers_are_those_of_the_code() -> None:
    """The table of magic numbers shows the sandbox's behaviour."""
    table = [
        "| number | for | result |",
        "|---|---|---|",
        *(f"| `{number}` | {row.applies_to} | {row.meaning} |" for number, row in MAGIC_NUMBERS.items()),
    ]
    text = (DOCS / "sandbox.md").read_text("utf-8")
    _, _, rest = text.partition("<!-- magic numbers: begin -->\n")
    assert rest.partition("<!-- magic numbers: end -->")[0].splitlines() == table


def test_the_openapi_document_is_made_of_the_contract() -> None:
    """It was not changed by hand, and has the endpoints of the sandbox, which shares no code with the client."""
    text = script("openapi").FILE.read_text("utf-8")
    assert script("openapi").draw() == text, "run docs/openapi.py"
    paths = {(method.upper(), path) for path, methods in json.loads(text)["paths"].items() for method in methods}
    assert paths == {(route.method, route.path) for route in ROUTES}


def test_the_diagrams_are_what_the_script_draws() -> None:
    """No diagram was changed by hand, and none is out of date."""
    drawn = {f"{name}.svg": diagram.draw() for name, diagram in script("diagrams").DIAGRAMS.items()}
    assert {path.name: path.read_text("utf-8") for path in DOCS.glob("images/*.svg")} == drawn, "run docs/diagrams.py"


def test_the_diagram_of_records_shows_the_moves_of_the_store() -> None:
    """The diagram of records has all moves of the code except those in the text beside it."""
    # Late answers, collections that are sent again without an operator, matches that come late, and payments that are
    # queued again.
    in_text = {
        *((refused, found) for refused in ("REFUSED", "QUEUED") for found in ("UNKNOWN", "ACKNOWLEDGED")),
        *((before, "QUEUED") for before in ("NOT_SENT", "REFUSED", "SENDING", "UNKNOWN", "ABSENT")),
        ("REFUSED", "CANCELLED"),  # its payout is made under another key
        ("QUEUED", "NOT_SENT"),  # after `not_after`, or taken back with its key
        ("RELEASED", "UNKNOWN"),
        *((late, early) for late in ("UNKNOWN", "ABSENT") for early in ("REFUSED", "NOT_SENT")),
        ("RELEASED", "ACKNOWLEDGED"),
        *((before, "ACKNOWLEDGED") for before in ("NOT_SENT", "CANCELLED")),  # by `recover`
        ("ABSENT", "UNKNOWN"),
        ("ABSENT", "SENDING"),
        ("FINAL", "ACKNOWLEDGED"),  # a row of the list was taken for it
    }
    moves = {(str(before), str(after)) for (before, _), after in records.TRANSITIONS.items() if before != after}
    drawn = {move for part in script("diagrams").RECORD.parts for move in getattr(part, "moves", ())}
    assert drawn.isdisjoint(in_text)
    assert drawn | in_text == moves


def test_the_diagram_of_payments_shows_the_states_of_the_contract() -> None:
    """Both kinds of payment are drawn from their first state to each final one."""
    moves = {(str(before), str(after)) for (_, before, _), after in states.TRANSITIONS.items()}
    assert {move for part in script("diagrams").PAYMENT.parts for move in getattr(part, "moves", ())} == moves


def test_the_diagram_of_the_layers_shows_every_part() -> None:
    """Each part of the package that has a layer is in the diagram."""
    image = (DOCS / "images" / "layers.svg").read_text("utf-8")
    minor = {
        "__init__",
        "__main__",
        "_version",
    }
    assert [part for part in LAYERS if part not in minor and part not in image] == []


def command_lines() -> Iterator[tuple[Path, str]]:
    """Yield the commands of shell and console blocks, and each command in code quotes, with its page."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for block in (*SHELL.findall(text), *TYPED.findall(text)):
            for line in re.sub(r"\\\n", "", block).splitlines():
                for command in re.split(r" && |; | \| ", line):
                    yield page, command.strip()
        for command in CODE.findall(text):
            yield page, " ".join(command.split())


def folder(page: Path) -> Path:
    """Return the folder in which a page's scripts are run: the checkout, or the example of which it makes a copy."""
    copied = re.search(r"^cp -r (\S+) ", page.read_text("utf-8"), re.MULTILINE)
    return ROOT if copied is None else ROOT / copied[1]


def unknown_part(words: list[str]) -> str | None:
    """Return the first word of a command line of ours that the program does not know, or None."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command)
    options = {"--help"}
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | options
            if word.partition("=")[0] not in known:
                return word
        elif hasattr(command, "list_commands"):
            if not re.fullmatch(r"[a-z-]+", word):  # stands for any command
                return None
            if word not in command.list_commands(context):
                return word
            command = command.resolve_command(context, [word])[1]
    return None


@pytest.mark.costly("runs lines of cli/views/watch.py, cli/demo.py that no quick test runs")
def test_every_command_in_the_docs_exists() -> None:
    """Every command in the docs exists: our commands with their options, scripts, sessions of nox."""
    sessions = set(re.findall(r"^def (\w+)\(session: ", (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE))
    sessions |= set(re.findall(r'@nox\.session\([^)]*name="([\w-]+)"', (ROOT / "noxfile.py").read_text("utf-8")))
    wrong = []
    for page, line in command_lines():
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=|[<>]", word)]
        match words:
            case ["mobilemoney", *rest] if (unknown := unknown_part(rest)) is not None:
                wrong.append((page.name, line, unknown))
            case ["python", script, *_] if not script.startswith("-") and not (folder(page) / script).exists():
                wrong.append((page.name, line, script))
            case ["nox", "-s", session, *_] if session.partition("-")[0] not in sessions and session not in sessions:
                wrong.append((page.name, line, session))
    assert wrong == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES if page.parent in (DOCS, ROOT)])
def test_every_picture_has_a_text(page: Path) -> None:
    """Every picture has a text that describes it."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    assert [target for alt, target in re.findall(r"!\[(.*?)\]\((.*?)\)", text, re.DOTALL) if len(alt) < 10] == []


def prose(page: Path) -> str:
    """Return what a reader reads of a page: all but code."""
    return re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)


def test_a_page_has_one_name() -> None:
    """A link of the index to a whole page has its title; the side bar shows titles, and has each page."""
    wrong = []
    for text, target in re.findall(r"\[([^\]]+)\]\(([\w/-]+\.md)\)", prose(DOCS / "index.md")):
        (title, *_) = HEADING.findall((DOCS / target).read_text("utf-8"))
        if text != title:
            wrong.append((text, title))
    assert wrong == []
    (contents,) = re.findall(r"^CONTENTS = ({.*?^})", (DOCS / "conf.py").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    listed = " ".join(ast.literal_eval(contents).values()).split()
    assert sorted(listed) == sorted({"reference/index", *(each.stem for each in DOCS.glob("*.md"))} - {"index"})


def test_each_reader_has_a_path_of_half_an_hour() -> None:
    """Each of the four readers of the index has at most 5,500 words to read, code aside."""
    _, _, rest = prose(DOCS / "index.md").partition("| you are |")
    paths = re.findall(r"^\| an? ([\w ]+) \| (.*) \|$", rest.partition("Or the page")[0], re.MULTILINE)
    pages = {"contributing.md": ROOT / "CONTRIBUTING.md"}
    words = {
        reader: sum(len(prose(pages.get(each, DOCS / each)).split()) for each in re.findall(r"\(([\w-]+\.md)\)", path))
        for reader, path in paths
    }
    assert list(words) == ["backend developer", "operator", "platform engineer", "maintainer"]
    assert {reader: count for reader, count in words.items() if count > 5_500} == {}


def test_the_guarantee_is_read_in_minutes() -> None:
    """Its page has at most 700 words outside its tables."""
    text = re.sub(r"^\|.*$", "", prose(DOCS / "payments.md"), flags=re.MULTILINE)
    assert len(text.split()) <= 700


def test_a_measured_figure_is_that_of_the_results() -> None:
    """A figure of the benchmarks carries date and commit, by which it is in `results.json`; none stands without."""
    rows = [row for each in json.loads((ROOT / "benchmarks/results.json").read_text("utf-8")).values() for row in each]
    unknown = []
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        text = " ".join(prose(page).split())
        for sentence, date, commit in re.findall(r"(.{60}) \((\d{4}-\d\d-\d\d) ([0-9a-f]{9})\)", text):
            measured = [row for row in rows if (row["date"], row["commit"]) == (date, commit)]
            values = {str(row.get(each)) for row in measured for each in ("value", "ratio")}
            if not values & {each.replace(" ", "") for each in re.findall(r"[\d.,]*\d ?(?:%|\w+)", sentence)}:
                unknown.append((page.name, sentence))
        unknown += [(page.name, each) for each in re.findall(r"[\d.,]+ (?:µs|times faster|times slower)", text)]
    assert unknown == []


def test_no_setting_leaves_the_docs() -> None:
    """Each argument of what users configure, each variable and each extra is in a page beside the reference."""
    text = "\n".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
    configured = (
        AsyncClient,
        AsyncClient.dispatcher,
        AsyncClient.poller,
        Backend,
        Merchants,
        RateLimiter,
        RetryPolicy,
        SQLStore,
    )
    names = {name for each in configured for name in inspect.signature(each).parameters} - {"self", "utcnow"}
    sources = "".join(file.read_text("utf-8") for file in (ROOT / "mobilemoney_async" / "configuration").glob("*.py"))
    names |= set(re.findall(r'"(MOBILEMONEY_[A-Z_]+[A-Z])"', sources))
    names |= set(
        re.findall(
            r"^(\w+) = \[",
            (ROOT / "pyproject.toml").read_text("utf-8").partition("optional-dependencies]")[2].partition("\n[")[0],
            re.MULTILINE,
        )
    )
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", text)) == []


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("API key", "access"),
        ("alembic", "postgres-shop"),
        ("authentication", "access"),
        ("celery", "workers"),
        ("configuration", "configuration"),
        ("idempotency", "payments"),
        ("django", "django"),
        ("errors", "errors"),
        ("going to production", "production"),
        ("known limitations", "limitations"),
        ("litestar", "fastapi"),
        ("monitoring", "observability"),
        ("notebook", "scripts"),
        ("payouts", "payouts"),
        ("postgresql", "postgres-shop"),
        ("rate limit", "rate-limits"),
        ("synchronous", "servers"),
        ("testing", "testing"),
        ("webhook", "callbacks"),
    ],
)
def test_a_search_for_a_term_of_the_field_finds_its_page_first(query: str, page: str) -> None:
    """A page comes first in Sphinx's search if its title is the query, or if only its headings have all words of it."""
    headings = {
        path.stem: HEADING.findall(re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL).lower())
        for path in DOCS.glob("*.md")
    }
    words = query.lower().split()
    found = [name for name, each in headings.items() if all(re.search(rf"\b{word}", "\n".join(each)) for word in words)]
    assert page in found
    assert headings[page][0] == query.lower() or found == [page]
