"""Results of the benchmarks: results.json, and the table of README.md, which is made from it."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Row

Results = dict[str, list[dict[str, Any]]]
"""Rows by the benchmark's name."""

_RESULTS, _README = (Path(__file__).with_name(name) for name in ("results.json", "README.md"))
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"
_HEADINGS = ("case", "value", "against", "target", "ratio", "reached", "measured")
_LIBRARIES = (
    *("anyio", "attrs", "cattrs", "httpx", "msgspec", "sqlalchemy", "psycopg", "aiohttp", "httpx-aiohttp"),
    *("aiolimiter", "anthropic", "openai", "pydantic", "stripe"),
)


def load() -> Results:
    """Return the results of earlier runs."""
    results: Results = json.loads(_RESULTS.read_text("utf-8"))
    return results


def save(results: Results) -> None:
    """Write the results, a row on each line."""
    lines = {name: ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) for name, rows in results.items()}
    text = ",\n".join(f"{json.dumps(name)}: [\n{line}\n]" for name, line in lines.items())
    _RESULTS.write_text(f"{{\n{text}\n}}\n", "utf-8")


def entry(row: Row) -> dict[str, Any]:
    """Return a row with when and where it was measured."""
    commit = _git("rev-parse", "--short=9", "HEAD") or "unknown"
    versions = {name: version(name) for name in _LIBRARIES if name.replace("-", "_") in sys.modules}
    return {
        **asdict(row),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": f"{commit}-dirty" if _git("status", "--porcelain", "mobilemoney_async") else commit,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": {platform.python_implementation(): platform.python_version(), **versions},
    }


def show(results: Results, code: Mapping[str, tuple[str, ...]]) -> None:
    """Put the table into README.md.

    Args:
        results: By benchmark.
        code: The paths that each benchmark measures. A row is marked if a commit has touched them since its own.
    """
    lines = [_HEADINGS, ("---",) * len(_HEADINGS)]
    for name, rows in results.items():
        for row in rows:
            reached = {None: "", True: "yes", False: "**no**"}[row["reached"]]
            made = f"{row['date']} {row['commit']}{' **old**' if _is_old(row['commit'], code[name]) else ''}"
            lines.append((*(row[column] for column in _HEADINGS[:5]), reached, made))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text = _README.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    _README.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", "utf-8")


@functools.cache
def _is_old(commit: str, code: tuple[str, ...]) -> bool:
    """Return whether a commit has touched the code since; also if the commit or the code is not in this history."""
    if not all((ROOT / path).exists() for path in code):
        return True
    return _git("rev-list", "-1", f"{commit.removesuffix('-dirty')}..HEAD", "--", *code) != ""


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
