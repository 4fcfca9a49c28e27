"""What runs the benchmarks: every row is kept, whatever else fails, and tells how old it is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Slow: it runs git and programs.
pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
OLD = " **old**"
FAKES = {
    "decode": "def run():\n    yield Row('decoded', '1 ms')\n    import no_such_library\n",
    "one_call": "def run():\n    yield Row('called', '2 ms', reached=True)\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with two benchmarks: one that fails, one that does not."""
    for name in ("__init__.py", "common.py", "report.py", "run.py", "results.json", "README.md"):
        (tmp_path / "benchmarks").mkdir(exist_ok=True)
        shutil.copy(ROOT / "benchmarks" / name, tmp_path / "benchmarks" / name)
    for name, text in FAKES.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"from benchmarks.common import Row\n\n\n{text}", "utf-8")
    git(tmp_path, "init", "-q")
    change(tmp_path, "client.py", "calls/retry.py", "contract/codec.py", "resources/users.py")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments], cwd=folder, check=True)


def change(folder: Path, *paths: str) -> None:
    """Commit a change of the package."""
    for file in (folder / "mobilemoney_async" / path for path in paths):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as text:
            text.write("#")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a change")


def run(folder: Path, *names: str) -> int:
    command = [sys.executable, "-S", "benchmarks/run.py", *names]  # without the benchmarks of an editable install
    return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode


def results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "benchmarks/results.json").read_text("utf-8"))
    return found


def table(folder: Path) -> list[str]:
    return [line for line in (folder / "benchmarks/README.md").read_text("utf-8").splitlines() if line.startswith("|")]


def test_a_benchmark_that_fails_is_a_row_and_loses_none(checkout: Path) -> None:
    """The exit code is 1; its rows so far, those of an earlier run, and the other benchmarks are in the results."""
    earlier = results(checkout)
    assert run(checkout, "decode", "one_call") == 1
    found = results(checkout)
    first, failure, *rest = found["decode"]
    assert (first["case"], failure["case"]) == ("decoded", "decode failed")
    assert failure["value"] == "ModuleNotFoundError: no_such_library"
    assert rest == earlier["decode"][1:]
    assert [row["case"] for row in found["one_call"]] == ["called"]
    assert {name: found[name] for name in found if name not in FAKES} == {
        name: earlier[name] for name in earlier if name not in FAKES
    }
    assert run(checkout, "one_call") == 0


def test_a_row_that_is_older_than_its_code_is_marked(checkout: Path) -> None:
    """A commit that touches what a benchmark measures makes its row old; another commit does not."""
    run(checkout, "one_call")
    change(checkout, "contrib/otel.py")
    assert run(checkout, "decode") == 1
    (row,) = (line for line in table(checkout) if line.startswith("| called |"))
    assert OLD not in row
    change(checkout, "contract/codec.py")
    assert run(checkout, "decode") == 1
    (row,) = (line for line in table(checkout) if line.startswith("| called |"))
    assert OLD in row


def test_the_table_of_the_readme_is_that_of_the_results(checkout: Path) -> None:
    """No figure of it is written by hand."""
    assert run(checkout, "construct") == 1  # which is not there
    made = [line.replace(OLD, "") for line in table(checkout) if not line.startswith("| construct failed |")]
    assert made == [line.replace(OLD, "") for line in table(ROOT)]
