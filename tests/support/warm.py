"""Warm processes: programs of the tests whose imports are done when they begin.

A program is the fork of a process that has imported what most of them need, so it costs its own work only. Otherwise it
has what every process has: its own memory and `__main__`, its folder, environment, standard streams, signals and exit
code. It is for tests whose subject is neither the start of a program nor what it imports.

    python -c "from tests.support.warm import main; exec(*main())" DESCRIPTOR MODULE …
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TextIO

import attrs

from tests.support import cost
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, environment

# The program that runs a script, whose path is its first argument.
# The other runs a module of the tests.
SCRIPT = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
MODULE = f"import runpy, sys; sys.path.append({ROOT!r}); runpy.run_module(sys.argv.pop(1), run_name='__main__')"


@attrs.frozen
class Program:
    """A program that runs: its process, and the socket that tells its exit code."""

    pid: int
    _ending: socket.socket

    def signal(self, name: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, name)

    @property
    def has_ended(self) -> bool:
        """Whether its exit code is there."""
        return bool(select.select([self._ending], [], [], 0)[0])

    def close(self) -> None:
        """Kill it, unless somebody has waited for its end."""
        if self._ending.fileno() >= 0:
            self.signal(signal.SIGKILL)
            self.wait(60)

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit code, as `subprocess` gives it.

        Raises:
            TimeoutError: It has not ended. It is killed.
        """
        self._ending.settimeout(seconds)
        with self._ending:
            try:
                told = self._ending.recv(32, socket.MSG_WAITALL)
                cost.add(float(told[16:]))
                return int(told[:16])
            except TimeoutError:
                self.signal(signal.SIGKILL)
                raise


@attrs.frozen
class Warm:
    """A warm process, from which programs are forked; it ends with this process."""

    _control: socket.socket

    def start(
        self,
        code: str,
        *arguments: str,
        streams: tuple[int, int, int],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Program:
        """Start a program with three descriptors as its standard streams."""
        job = {
            "code": code,
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as file:
            file.write(json.dumps(job).encode())
            file.flush()
            socket.send_fds(self._control, [b"!"], [*streams, theirs.fileno(), file.fileno()])
        return Program(int(ours.recv(16, socket.MSG_WAITALL)), ours)

    def run(
        self, code: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program without input to its end; return what it has printed and its exit code."""
        with open(os.devnull, "rb") as nothing, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            streams = (nothing.fileno(), output.fileno(), errors.fileno())
            status = self.start(code, *arguments, streams=streams, cwd=cwd, env=env).wait(seconds)
            return subprocess.CompletedProcess([code, *arguments], status, _text(output), _text(errors))

    @contextlib.contextmanager
    def piped(
        self, code: str, *arguments: str, env: Mapping[str, str], log: IO[bytes] | None = None
    ) -> Iterator[tuple[Program, TextIO, TextIO]]:
        """Start a program without input, killed with the context at the latest; yield it, its output and its errors.

        Args:
            code: The program.
            arguments: Its arguments.
            env: Its environment.
            log: Where its errors go instead.
        """
        (output, printed), (errors, complained) = os.pipe(), os.pipe()
        with open(output, encoding="utf-8") as output_file, open(errors, encoding="utf-8") as errors_file:
            with open(os.devnull, "rb") as nothing, open(printed, "wb"), open(complained, "wb"):
                streams = (nothing.fileno(), printed, complained if log is None else log.fileno())
                program = self.start(code, *arguments, streams=streams, env=env)
            try:
                yield program, output_file, errors_file
            finally:
                program.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8")


@functools.cache
def warm(*modules: str, options: tuple[str, ...] = ()) -> Warm:
    """Return the process that has imported some modules, under some options of Python; it is started once."""
    ours, theirs = socket.socketpair()
    start = f"import sys; sys.path.append({ROOT!r}); from tests.support.warm import main; exec(*main())"
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *options, "-c", start, str(theirs.fileno()), *modules],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return Warm(ours)


def run_without(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program that has imported nothing but what no extra brings, and not the package: it may lack the extras."""
    modules = ("anyio._backends._asyncio", "attrs", "httpx", "msgspec")
    return warm(*modules, options=("-W", "error")).run(code, *arguments, env=env, seconds=240)


def run_pytest_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, without any plugin but those of its arguments, as a program of its own."""
    modules = ("pytest", "mobilemoney_async.contrib.fastapi", "mobilemoney_async.sandbox", "sqlalchemy.dialects.sqlite")
    program = "import sys, pytest; sys.exit(pytest.console_main())"
    variables = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return warm(*modules, "aiohttp.web", "trio").run(program, *arguments, cwd=folder, env=variables, seconds=PATIENCE)


def main() -> tuple[types.CodeType, dict[str, Any]]:
    """Import the modules, then start programs; return, in the process of each, its code and its names."""
    descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the collector would touch, and so copy, all that the programs share
    job = _serve(socket.socket(fileno=int(descriptor)))
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.argv = ["-c", *job["arguments"]]
    sys.path.remove(ROOT)
    if not sys.flags.safe_path:
        sys.path.insert(0, "")
    _open_streams()
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    return compile(job["code"], "<string>", "exec"), vars(main_module)


def _open_streams() -> None:
    """Make the standard streams of Python what they are at its start: those of these descriptors, a terminal or not."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old: io.TextIOWrapper = getattr(sys, name)
        stream = open(  # noqa: SIM115 (for the life of the program)
            number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False
        )
        stream.reconfigure(line_buffering=number == 2 or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _serve(control: socket.socket) -> dict[str, Any]:
    """Start programs, and tell how they ended, until the tests end; return the job in the process of each."""
    endings: dict[int, socket.socket] = {}
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which end this process
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    while True:
        if woken in select.select([control.fileno(), woken], [], [])[0]:
            os.read(woken, 4096)
            _tell(endings)
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 5)
        if not message:
            os._exit(0)
        *streams, ending, job = descriptors
        pid = os.fork()
        if not pid:
            break
        for each in (*streams, job):
            os.close(each)
        endings[pid] = socket.socket(fileno=ending)
        endings[pid].send(b"%16d" % pid)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for other in (control, *endings.values()):
        other.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    with open(job, "rb") as file:
        file.seek(0)
        found: dict[str, Any] = json.load(file)
    for each in (woken, waker, ending, *streams):
        os.close(each)
    return found


def _tell(endings: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, usage = ended
            with endings.pop(pid) as ending, contextlib.suppress(OSError):
                ending.send(b"%16d%16.3f" % (os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime))
