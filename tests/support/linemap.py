"""pytest plugin: the lines of the package that each test runs, and the processor time that it takes.

``python -m pytest -p tests.support.linemap --line-map FOLDER``, on Python 3.12 or newer. Each process writes a file of
its own. A line costs once for each test: `sys.monitoring` does not report it again. The lines of programs that a test
starts are not seen.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import attrs
import msgspec
import pytest

import mobilemoney_async
from tests.support.cost import spent

_PACKAGE = Path(mobilemoney_async.__file__).parent


@attrs.frozen
class TestLines:
    """Lines that a test runs, by the path of their module from the folder of the project.

    Attributes:
        seconds: The processor time that it takes, with its fixtures.
    """

    id: str
    seconds: float
    lines: dict[str, list[int]]


def read_map(folder: Path) -> Iterator[TestLines]:
    """Yield what each test of a run has noted."""
    decoder = msgspec.json.Decoder(TestLines)
    for file in sorted(folder.glob("*.jsonl")):
        yield from map(decoder.decode, file.read_bytes().splitlines())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--line-map", type=Path, help="the folder for what is noted")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--line-map")
    if folder is not None and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(_Recorder(folder))


class _Recorder:
    """Recorder of this process's tests."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{os.getpid()}.jsonl"
        self._seen = set[tuple[str, int]]()
        self._paths: dict[str, str | None] = {}
        # Not that of coverage.
        self._monitoring: Any = vars(sys)["monitoring"]
        tool, lines = self._monitoring.PROFILER_ID, self._monitoring.events.LINE
        self._monitoring.use_tool_id(tool, "line map")
        self._monitoring.register_callback(tool, lines, self._see)
        self._monitoring.set_events(tool, lines)

    def _see(self, code: CodeType, line: int) -> Any:
        name = code.co_filename
        if name not in self._paths:
            path = Path(name)
            is_ours = path.is_relative_to(_PACKAGE)
            self._paths[name] = path.relative_to(_PACKAGE.parent).as_posix() if is_ours else None
        shown = self._paths[name]
        if shown is not None:
            self._seen.add((shown, line))
        return self._monitoring.DISABLE  # until the next test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._seen.clear()
        self._monitoring.restart_events()
        began = spent()
        result = yield
        lines: defaultdict[str, list[int]] = defaultdict(list)
        for path, line in sorted(self._seen):
            lines[path].append(line)
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(TestLines(item.nodeid, spent() - began, dict(lines))) + b"\n")
        return result
