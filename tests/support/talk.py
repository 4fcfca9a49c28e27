"""Programs that talk with a test by lines, on their standard input and output."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import attrs

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT
from tests.support.warm import Program, warm

# What most of the programs import.
_MODULES = (
    *(f"mobilemoney_async.{name}" for name in ("payments.api", "sharing.limiter", "sharing.login", "merchants.worker")),
    *("psycopg", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.pysqlite"),
)


@attrs.define(eq=False)
class Talk:
    """A program that runs: its process, and its lines."""

    _program: Program
    _socket: socket.socket
    _read: bytes = b""
    _code: int | None = None

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._program.pid

    async def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        left = line.encode() + b"\n"
        while left:
            await anyio.wait_writable(self._socket)
            left = left[self._socket.send(left) :]

    async def line(self) -> str:
        """Return the next line of its standard output, or an empty text at its end."""
        while b"\n" not in self._read:
            await anyio.wait_readable(self._socket)
            # A socket says so where lines that were written to it have not been read.
            with suppress(ConnectionResetError):
                if more := self._socket.recv(65_536):
                    self._read += more
                    continue
            return ""
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self.line():
            yield line

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End its standard input."""
        self._socket.shutdown(socket.SHUT_WR)

    async def wait(self) -> int:
        """Wait for its end; return its exit code, as `subprocess` gives it."""
        if self._code is None:
            self._code = await anyio.to_thread.run_sync(self._program.wait, PATIENCE)
        return self._code


@asynccontextmanager
async def talk(module: str, *arguments: str) -> AsyncIterator[Talk]:
    """Run a module of the tests, begun warm; it is killed at the end at the latest."""
    with _begin(module, *arguments) as program:
        try:
            yield program
        finally:
            if program._code is None:
                program.kill()
                with anyio.CancelScope(shield=True):
                    await program.wait()


@contextmanager
def _begin(module: str, *arguments: str) -> Iterator[Talk]:
    code = f"import runpy, sys; sys.path.append({ROOT!r}); runpy.run_module({module!r}, run_name='__main__')"
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            streams = (theirs.fileno(), theirs.fileno(), 2)
            program = warm(*_MODULES).start(code, *arguments, streams=streams, cwd=None, env=None)
        ours.setblocking(False)
        yield Talk(program, ours)
