"""The page about following payments says nothing that does not run."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "following-payments.md"


def test_the_program_of_the_page_runs() -> None:
    """Its Python block is a whole program that follows twenty payments to their ends, without a warning."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("SUCCESS") == 20
    assert "requests for 20 final states" in ran.stdout
