"""Worker processes to be killed: `crash_worker`, seen from the test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

import mobilemoney_async
from tests.payments import crash_worker


@attrs.define
class Nursery:
    """Starts workers, and is told which it may kill."""

    process: anyio.abc.Process
    lines: BufferedByteReceiveStream
    alive: set[int] = attrs.field(factory=set)
    killed: set[int] = attrs.field(factory=set)
    started: int = 0

    async def ask(self, line: str) -> bytes:
        with anyio.fail_after(120):
            await self.tell(line)
            return await self.lines.receive_until(b"\n", 1_000_000)

    async def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(line.encode() + b"\n")

    async def start(self) -> None:
        self.started += 1
        self.alive.add(int(await self.ask(f"start {self.started}")))

    async def reap(self) -> None:
        """Learn who has ended; whoever was not killed has finished its work."""
        for pid, code in json.loads(await self.ask("reap")):
            self.alive.discard(pid)
            assert code == (-signal.SIGKILL if pid in self.killed else 0)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.alive.remove(pid)
        self.killed.add(pid)

    async def kill_everybody(self) -> None:
        for pid in list(self.alive):
            self.kill(pid)
        await self.reap()


@asynccontextmanager
async def nursery(job: Any, command: Sequence[str] | None = None) -> AsyncIterator[Nursery]:
    """Run the program that forks workers, `crash_worker` by default; none outlives the context."""
    command = command or [sys.executable, "-W", "error", crash_worker.__file__]
    # The package that is under test, installed or not.
    environment = {**os.environ, "PYTHONPATH": str(Path(mobilemoney_async.__file__).parents[1])}
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stderr=None, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = Nursery(process, BufferedByteReceiveStream(process.stdout))
        await found.tell(json.dumps(attrs.asdict(job)))
        try:
            yield found
        finally:
            with anyio.move_on_after(120, shield=True):
                await process.stdin.aclose()
                await process.wait()
            if process.returncode is None:
                process.kill()
