"""Worker processes to be killed: `crash_worker`, seen from the test."""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from tests.support.patience import PATIENCE
from tests.support.talk import Talk, talk


@attrs.define
class Nursery:
    """Starts workers, and is told which it may kill."""

    program: Talk
    alive: set[int] = attrs.field(factory=set)
    killed: set[int] = attrs.field(factory=set)
    started: int = 0

    async def ask(self, line: str) -> str:
        with anyio.fail_after(PATIENCE):
            await self.program.tell(line)
            return await self.program.line()

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
async def nursery(job: Any, module: str = "tests.payments.crash_worker") -> AsyncIterator[Nursery]:
    """Run the program that forks workers; none outlives the context."""
    async with talk(module) as program:
        await program.tell(json.dumps(attrs.asdict(job)))
        try:
            yield Nursery(program)
        finally:
            with anyio.move_on_after(PATIENCE, shield=True):
                program.close()
                await program.wait()
