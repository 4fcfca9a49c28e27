"""README and docs say nothing that does not run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
FENCED = re.compile(r"(<!-- not run[^\n]*-->\n)?```python\n(.*?)```", re.DOTALL)
BLOCKS = FENCED.findall(README)
RUNNABLE = [code for mark, code in BLOCKS if not mark]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
PROGRAMS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (mark, code) in enumerate(FENCED.findall(page.read_text("utf-8")), start=1)
    if not mark
]


@pytest.mark.parametrize("code", PROGRAMS)
def test_every_python_block_runs_as_a_program(code: str) -> None:
    """Each Python block of README and docs is a whole program that ends well, without a warning."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr


def test_the_first_payment_succeeds() -> None:
    """The first program that a newcomer copies shows a successful payment."""
    ran = subprocess.run([sys.executable, "-c", RUNNABLE[0]], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.startswith("SUCCESS 15000 Fees(")


def test_only_what_needs_an_account_is_not_run() -> None:
    """Blocks are run unless they say why they cannot be, and there is one such block."""
    assert len(BLOCKS) == README.count("```python") == 6
    assert len(RUNNABLE) == 5


def test_the_commands_are_the_first_two_blocks_and_what_ci_runs() -> None:
    """The README opens with the demonstration and the checks, and CI runs the latter to the letter."""
    commands = re.findall(r"```bash\n(.*?)\n```", README)
    assert commands == ['pip install ".[all]" && mobilemoney demo', "pip install nox && nox"]
    assert "pip install nox && nox" in (ROOT / ".ci" / "run").read_text("utf-8")
