"""`mobilemoney` as tests run it: inside this process where that is enough, else as a program of its own."""

import functools
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import anyio
import anyio.from_thread
import pytest

from mobilemoney_async import PaymentRecord, SQLStore
from mobilemoney_async.payments.book import PaymentBook
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox
from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.warm import Program, warm

with warnings.catch_warnings():
    # What the lowest typer that is allowed takes from the newest click is deprecated there.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.testing import CliRunner, Result

    from mobilemoney_async.cli.app import LazyCommand, app

# A process makes the commands out of their functions once; this one runs many of them.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
LazyCommand.load = functools.cache(LazyCommand.load)  # type: ignore[method-assign]
_VARIABLES = ("BASE_URL", "TOKEN", "EMAIL", "PASSWORD", "STORE", "STORE_KEY", "PROFILE", "CONFIG")
# The program, as the console script has it, and what its commands import.
MOBILEMONEY = "import sys; sys.argv[0] = 'mobilemoney'; from mobilemoney_async.cli import main; main()"
COMMANDS = (
    "anyio._backends._asyncio",
    "mobilemoney_async.cli.app",
    "mobilemoney_async.client",
    "mobilemoney_async.payments.api",
    "mobilemoney_async.sandbox",
    "rich.progress",
    "rich.table",
    "sqlalchemy.dialects.sqlite",
    "uvicorn",
)


def leave_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run commands as a person without configuration, in an empty folder."""
    for name in _VARIABLES:
        monkeypatch.delenv(f"MOBILEMONEY_{name}", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.chdir(folder)


@contextmanager
def served(sandbox: Sandbox) -> Iterator[str]:
    """Serve a sandbox over a real socket, from a thread, and give its URL."""
    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(sandbox.serve()) as base_url:
            yield base_url


def run(*arguments: str, answer: str = "", **variables: str) -> Result:
    """Run `mobilemoney` in this process, with this input and these variables, and its output piped."""
    return CliRunner().invoke(app, list(arguments), input=answer, env={**variables, "TERM": "dumb"})


def run_alone(*arguments: str, env: Mapping[str, str], code: str = MOBILEMONEY) -> subprocess.CompletedProcess[str]:
    """Run `mobilemoney` as a process of its own, with its output piped."""
    return warm(*COMMANDS).run(code, *arguments, env=env, seconds=PATIENCE)


class Command:
    """`mobilemoney` as a process of its own, with its output piped."""

    def __init__(self, process: Program, output: TextIO, errors: TextIO) -> None:
        self._process, self._output, self._errors = process, output, errors

    def read_line(self) -> str:
        """Wait for the next line of standard output."""
        return self._output.readline()

    def read_error(self) -> str:
        """Wait for the next line of standard error."""
        return self._errors.readline()

    def leave(self) -> None:
        """Read no more of its standard output."""
        self._output.close()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.signal(signal.SIGINT)

    def kill(self) -> None:
        """Let it end without a chance to say or do anything."""
        self._process.signal(signal.SIGKILL)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, and the rest of what it printed."""
        limit = threading.Timer(PATIENCE, self.kill)
        limit.start()
        try:
            output = "" if self._output.closed else self._output.read()
            return self._process.wait(PATIENCE), output, self._errors.read()
        finally:
            limit.cancel()


@contextmanager
def started(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Command]:
    """Start `mobilemoney` as a process, which ends with the context at the latest."""
    with warm(*COMMANDS).piped(MOBILEMONEY, *arguments, env=environment(**(env or {}))) as process:
        yield Command(*process)


def remembered(store: str) -> list[PaymentRecord]:
    """Return the payments of a store."""

    async def look() -> list[PaymentRecord]:
        opened = SQLStore(store)
        try:
            return await PaymentBook(account_store(opened), lambda: datetime.now(UTC)).list()
        finally:
            opened.close()

    return anyio.run(look)
