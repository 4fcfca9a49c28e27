"""Programs of the tests, as processes of their own."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

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
    package = find_spec("mobilemoney_async")
    assert package is not None
    assert package.origin is not None
    path = [Path(package.origin).parents[1], Path(ROOT, "examples")]
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
