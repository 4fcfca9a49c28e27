"""The table, for the terminal and for README.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mobilemoney_async
from benchmarks.common import Row

_README = Path(__file__).with_name("README.md")
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"
_HEADINGS = ("case", "against", "target", "measured", "reached")
_LIBRARIES = (
    "anyio",
    "attrs",
    "cattrs",
    "httpx",
    "msgspec",
    "aiohttp",
    "httpx-aiohttp",
    "aiolimiter",
    "anthropic",
    "openai",
    "pydantic",
    "stripe",
    "sqlalchemy",
)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table that is easy to read as plain text too."""
    cells = [_HEADINGS, *((row.case, row.against, row.target, row.measured, _verdict(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def write(rows: Sequence[Row], command: str) -> None:
    """Put the table into README.md, with the command, the machine and the versions that made it."""
    text = _README.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"README.md has no place for the table: {_BEGIN} … {_END}")
    made = f"Made by `{command}` on {_setting()}."
    _README.write_text(f"{before}{_BEGIN}\n{table(rows)}\n\n{made}\n{_END}{after}", encoding="utf-8")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _verdict(row: Row) -> str:
    return "" if row.reached is None else "yes" if row.reached else "**no**"


def _setting() -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"mobilemoney-async {mobilemoney_async.__version__}, {versions}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
