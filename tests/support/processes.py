"""Programs of the tests, as processes of their own."""

import os
import sys
from pathlib import Path

import mobilemoney_async

ROOT = str(Path(__file__).parents[2])


def module_command(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the tests.

    The checkout comes last on its path, so that the process uses the package which is installed, as the tests do.
    """
    start = f"import runpy, sys; sys.path.append({ROOT!r}); runpy.run_module({name!r}, run_name='__main__')"
    return [sys.executable, "-c", start, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of an example that finds the same package as this test, and its own modules."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOBILEMONEY_")}
    path = [Path(mobilemoney_async.__file__).parents[1], Path(ROOT, "examples")]
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
