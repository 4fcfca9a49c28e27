"""Worker programs of an example, as processes beside a sandbox that is served over a socket."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import anyio.to_thread
import attrs
import pytest

from mobilemoney_async.sandbox import Choices, Sandbox, faults
from tests.support.patience import PATIENCE, until
from tests.support.processes import environment
from tests.support.warm import SCRIPT, warm

SPEED = 60.0


@attrs.define(eq=False, kw_only=True)
class Fleet:
    """Processes of an example, with one sandbox.

    Attributes:
        imported: Modules that a program which runs to its end has imported when it begins.
    """

    sandbox: Sandbox
    folder: Path
    env: dict[str, str]
    imported: tuple[str, ...] = ()
    logs: list[Path] = attrs.field(factory=list)

    @asynccontextmanager
    async def process(self, *command: str) -> AsyncIterator[anyio.abc.Process]:
        """Run a process, killed at the end at the latest with all that it has started."""
        log = self.folder / f"process-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("wb") as output:
            # Elsewhere than in the checkout, since taskiq and Celery put the working directory on the path.
            process = await anyio.open_process(
                command, env=self.env, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        async with process:
            try:
                yield process
            finally:
                kill(process)

    async def run(self, script: Path, *arguments: str) -> str:
        """Run a script to its end, and return its output."""
        run = partial(warm(*self.imported).run, SCRIPT, str(script), *arguments, cwd=self.folder, env=self.env)
        ran = await anyio.to_thread.run_sync(partial(run, seconds=PATIENCE))
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def said(self) -> str:
        """Return what the processes have logged."""
        return "".join(log.read_text() for log in self.logs)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; where it does not come, what the processes have said tells why."""
        try:
            await until(condition, pause=0.2)
        except TimeoutError:
            pytest.fail(self.said())

    def strike(self, act: Callable[[], object], *, after: int = 0, on: Literal["b2c", "c2b"] = "b2c") -> None:
        """Do something in the middle of a create, when the service has made it: after so many others."""

        def change(reply: Any) -> Any:
            act()
            return reply

        if after:
            self.sandbox.script(faults.latency(0), on=on, times=after)
        self.sandbox.script(faults.Fault(name="struck", change=change), on=on)


def kill(process: anyio.abc.Process) -> None:
    """Kill a process and all that it has started, at once."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def make_sandbox(seed: int = 0) -> Sandbox:
    """Return a service of which a minute is a second; its token is that of the seed."""
    choices = Choices(latency=6.0, median_delay=15.0, longest_delay=60.0)
    return Sandbox(seed=seed, speed=SPEED, balance=10**9, choices=choices)


def fleet_environment(sandbox: Sandbox, base_url: str, folder: Path, **others: str) -> dict[str, str]:
    """Return the environment of an example with one merchant."""
    return environment(
        **{
            "MOBILEMONEY_BASE_URL": base_url,
            "MOBILEMONEY_TOKEN": sandbox.token,
            "MOBILEMONEY_STORE": f"sqlite:///{folder / 'payouts.db'}",
            "SANDBOX_SPEED": f"{SPEED}",
            **others,
        }
    )
