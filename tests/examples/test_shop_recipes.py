"""The shops of docs/testing-your-shop.md with their tests, each in a folder of its own as its reader has it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import _mobilemoney_pytest
from tests.support.processes import environment

PAGE = (Path(__file__).parents[2] / "docs" / "testing-your-shop.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
FILES = re.compile(r"```python\n(# (\w+\.py)\b.*?)```", re.DOTALL)
PYTEST = (sys.executable, "-m", "pytest", "-p", "anyio.pytest_plugin", "-p", _mobilemoney_pytest.__name__)
TESTS = 12

pytestmark = pytest.mark.once


def write_files(folder: Path, *sections: str) -> None:
    """Write the files that a reader copies from these sections."""
    for section in sections:
        for text, name in FILES.findall(SECTIONS[section]):
            (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("framework", "left_out"),
    # What becomes of a payment whose answer is lost is the same under each framework, and takes minutes to find out.
    [("FastAPI", "nothing"), ("aiohttp", "list_is_wrong"), ("Django", "list_is_wrong")],
)
def test_a_shop_passes_its_tests(tmp_path: Path, framework: str, left_out: str) -> None:
    """Copied into an empty folder, the three files are a shop whose tests pass, without a warning."""
    write_files(tmp_path, framework, "The tests")
    ran = subprocess.run(
        [*PYTEST, "-q", "-W", "error", "-k", f"not {left_out}"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=tmp_path,
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{TESTS - 3 * (left_out != 'nothing')} passed" in ran.stdout
