"""`mobilemoney` as tests run it: inside this process where that is enough, else as a program of its own."""

import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from mobilemoney_async import PaymentRecord, SQLStore
from mobilemoney_async.payments.payments import PaymentBook
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox
from tests.support.processes import environment

with warnings.catch_warnings():
    # What the lowest typer that is allowed takes from the newest click is deprecated there.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner, Result

    from mobilemoney_async.cli.app import app

_VARIABLES = ("BASE_URL", "TOKEN", "EMAIL", "PASSWORD", "STORE", "STORE_KEY", "PROFILE", "CONFIG")
# Seconds, for a machine that has much else to do.
_LIMIT = 240.0


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


def run(*arguments: str, answer: str = "") -> Result:
    """Run `mobilemoney` in this process, with its output piped."""
    return CliRunner().invoke(app, list(arguments), input=answer, env={"TERM": "dumb"})


class Command:
    """`mobilemoney` as a process of its own, with its output piped."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_line(self) -> str:
        """Wait for the next line of standard output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def read_error(self) -> str:
        """Wait for the next line of standard error."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def leave(self) -> None:
        """Read no more of its standard output."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.stdout = None

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Let it end without a chance to say or do anything."""
        self._process.kill()

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, and the rest of what it printed."""
        output, errors = self._process.communicate(timeout=_LIMIT)
        return self._process.returncode, output or "", errors


@contextmanager
def started(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Command]:
    """Start `mobilemoney` as a process, which ends with the context at the latest."""
    with subprocess.Popen(
        [sys.executable, "-m", "mobilemoney_async", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**(env or {})),
    ) as process:
        try:
            yield Command(process)
        finally:
            process.kill()


def remembered(store: str) -> list[PaymentRecord]:
    """Return the payments of a store."""

    async def look() -> list[PaymentRecord]:
        opened = SQLStore(store)
        try:
            return await PaymentBook(account_store(opened), lambda: datetime.now(UTC)).list()
        finally:
            opened.close()

    return anyio.run(look)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait, in real time, until something holds."""
    until = time.monotonic() + _LIMIT
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
