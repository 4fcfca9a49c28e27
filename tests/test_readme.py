"""All code in README and docs runs."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.warm import warm

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
FENCED = re.compile(r"(<!-- not run[^\n]*-->\n)?```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
BLOCKS = FENCED.findall(README)
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
PROGRAMS = [
    pytest.param(code, output, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (mark, code, output) in enumerate(FENCED.findall(page.read_text("utf-8")), start=1)
    if not mark
]


pytestmark = pytest.mark.once


# As a notebook does: code may await at the top level.
CELL = """
import ast, asyncio, sys
cell = compile(sys.argv[1], "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(cell, {"__name__": "__main__"}))
"""

# What most of the blocks import.
MOST_IMPORTED = (
    "mobilemoney_async.contrib.backend",
    "mobilemoney_async.payments.api",
    "mobilemoney_async.sandbox",
    "mobilemoney_async.testing",
    "sqlalchemy.dialects.sqlite",
    "trio",
)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "output"), PROGRAMS)
def test_every_python_block_runs_as_a_program(code: str, output: str) -> None:
    """Each Python block is a whole program that ends well, without a warning, and prints the text below it.

    In that text, … stands for anything.
    """
    program = [CELL, code] if re.search(r"^(\w+ = )?await ", code, re.MULTILINE) else [code]
    ran = warm(*MOST_IMPORTED, options=("-W", "error")).run(*program, seconds=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    if output:
        printed = re.sub(" +$", "", ran.stdout, flags=re.MULTILINE)
        assert re.fullmatch(".*".join(map(re.escape, output.split("…"))), printed, re.DOTALL), printed


PART = re.compile(r"<!-- not run[^\n]*part of (\S+) -->\n```python\n(.*?)```", re.DOTALL)
PARTS = [
    pytest.param(file, code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (file, code) in enumerate(PART.findall(page.read_text("utf-8")), start=1)
]


@pytest.mark.parametrize(("file", "code"), PARTS)
def test_a_part_of_an_example_is_in_it(file: str, code: str) -> None:
    """Each statement that a page shows of an example stands in its file or folder, whatever its line breaks."""
    files = [ROOT / file] if file.endswith(".py") else [*(ROOT / file).glob("*.py")]
    whole = {ast.unparse(node) for each in files for node in ast.walk(ast.parse(each.read_text("utf-8")))}
    assert [ast.unparse(node) for node in ast.parse(code).body if ast.unparse(node) not in whole] == []


CODE = re.compile(r"^```(?:python|bash|toml|yaml|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ |(?<=\\\n) +)(.*)$", re.MULTILINE)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_code_is_read_without_scrolling(page: Path) -> None:
    """Code and commands have at most 79 columns; `ruff format --line-length 79 docs/*.md` sees to Python."""
    text = page.read_text("utf-8")
    lines = [*"".join(CODE.findall(text)).splitlines(), *COMMAND.findall(text)]
    assert [line for line in lines if len(line) > 79] == []


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
LINKED = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"))]


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in LINKED])
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    """Every link to a file leads to an existing file."""
    targets = LINK.findall(FENCED.sub("", page.read_text("utf-8")))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_has_its_shape() -> None:
    """Newcomers get command, payment and picture before the first section, then five promises with one link each."""
    top, _, rest = README.partition("\n## ")
    assert top.count("```bash") == top.count("```python") == 1
    assert re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README) == ["docs/images/phone-page.png"]
    assert "docs/images/phone-page.png" in top
    promises = re.findall(r"^- \*\*.*?(?=^- |^\n)", rest.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    assert [len(LINK.findall(each)) for each in promises] == [1] * 5
    assert [line for line in README.splitlines() if line.startswith("## ")] == [
        "## Five promises",
        "## The PostgreSQL shop in 13 lines",
        "## Is it for me?",
        "## Where to go on",
        "## Developing",
    ]


def test_the_readme_is_short() -> None:
    """It has at most 900 words outside code and tables."""
    text = re.sub(r"```.*?```|^\|.*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= 900


def test_the_readme_shows_one_program_and_a_part_of_the_shop() -> None:
    """All blocks run except the shop in thirteen lines, which names its example."""
    assert [bool(mark) for mark, _, _ in BLOCKS] == [False, True]
    assert len(BLOCKS) == README.count("```python")
    assert BLOCKS[1][1].count("\n") == 13


def test_the_commands_are_the_only_two_bash_blocks_and_what_ci_runs() -> None:
    """README opens with the demonstration; the checks stand under Developing; CI runs these first, then the rest."""
    commands = re.findall(r"```bash\n(.*?)\n```", README)
    assert commands == ['pip install ".[all]" && mobilemoney demo', "pip install nox && nox"]
    assert README.index("## Developing") < README.index(commands[1])
    run = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.findall(r"^pip install nox && nox$|^(?:for .*; do )?(?:begin|nox) -.*", run, re.MULTILINE) == [
        commands[1],
        'begin -t full -k "not slow"',
        'for session in "${slow[@]:1}"; do begin -s "$session"; done',
        'nox -s "${slow[0]}" || failed=1',
    ]
