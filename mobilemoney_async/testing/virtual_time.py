"""Virtual time for tests: an hour of pauses, time-outs and polling passes in milliseconds, on asyncio and on trio.

With anyio's pytest plugin, override its fixture, and every test marked `anyio` runs in virtual time on both loops::

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request):
        return virtual_backend(request.param)

Without it, `run_virtual(main)` runs one async function.

Rules of virtual time:

- Time stops while any task can run, and jumps to the next timer when none can. So `anyio.current_time()` is
  exact, and a test may compare it.
- Sockets stay real. Client and server in the *same* loop are exact: the clock does not jump over an answer that is on
  its way through loopback. Transfers of megabytes belong in real time: when they overrun the kernel's buffers it drops
  a segment, loopback or not, and sends it again 0.2 real seconds later.
- Other threads and processes live in real time and the clock does not wait for them: a time-out around them fires at
  once. Run such tests in real time.
- On asyncio the clock does wait for `loop.run_in_executor`, up to a real second for each call: Django's views and
  models (`sync_to_async`), `asyncio.to_thread`, name look-ups. It does not for anyio's threads, in which FastAPI runs
  routes that are plain functions.
- On asyncio it also waits, up to a real second, for the answer on a socket to another process or thread, once something
  was written to it: asyncpg, psycopg's async connections, redis. A query that takes longer, or a command that waits for
  others by itself (`BLPOP`), is given up after that.
- The threads of a store (`AsyncClient(store=...)`) are the exception: time stops while one of them works, for as
  long as that takes. A database file in the test's own directory is a good companion of virtual time; other processes
  on the same database are not.
- If nothing can run and no timer is set, the loop waits in earnest, as any other does.
- Nothing is ever late, unless you pass `late`: real loops wake late, on a busy machine or after it slept.
"""

import asyncio
import functools
import math
import os
import selectors
import socket
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, TypeVarTuple

import anyio

from mobilemoney_async.database import threads as worker_threads

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike
    from trio.testing import MockClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Real seconds that an idle loop with open sockets gives the kernel before the clock jumps. Linux as a rule hands over
# loopback segments before send() returns; when it defers that work, or on other systems, a thread has to run first.
_GRACE: Final = 0.002
# Real seconds for which it waits for a function in an executor, or an answer. Then these may be waiting for this loop.
_PATIENCE: Final = 1.0
# Real seconds for which it waits for more of an answer.
_MORE: Final = 0.02
_RESOLUTION: Final = time.get_clock_info("monotonic").resolution


def _seconds(late: Callable[[], float]) -> float:
    """Return by how much a loop wakes late. A clock that goes back never reaches its timer."""
    seconds = late()
    if not 0 <= seconds < math.inf:
        raise ValueError(f"late must return seconds, at least 0, not {seconds!r}")
    return seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Selector that moves a clock instead of blocking until the loop's next timer.

    Attributes:
        now: The virtual time in seconds. It starts at 0, as trio's mock clock does.
        holds: The number of threads at work for which the clock waits.
        jobs: Functions in an executor for which it waits too, but not for ever.
        asked: Sockets to other processes or threads that owe an answer, with the real time until which it waits.
        late: Returns by how much the loop wakes late, seconds.
    """

    def __init__(self, late: Callable[[], float]) -> None:
        super().__init__()
        self.late: Callable[[], float] = late
        self.now: float = 0.0
        self.holds: int = 0
        self.jobs: set[asyncio.Future[Any]] = set()
        self.asked: dict[int, float] = {}

    def ask(self, file: int) -> None:
        """Wait for bytes from a socket."""
        self.asked[file] = time.monotonic() + _PATIENCE

    def leads_out(self, file: int) -> bool:
        """Return whether a socket is connected to one that this loop does not serve, of TCP or a Unix socket."""
        try:
            with socket.socket(fileno=os.dup(file)) as known:
                address = known.getpeername()
        except OSError:  # it is no socket, or not connected
            return False
        for each in [key.fd for key in self.get_map().values()]:
            with suppress(OSError), socket.socket(fileno=os.dup(each)) as known:
                own = known.getsockname()
                if own == address or (isinstance(address, tuple) and isinstance(own, tuple) and own[1] == address[1]):
                    return False
        return True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready files; if there are none and a timer is due in `timeout` seconds, jump there."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.holds:
            # A thread wakes the loop when its work is done.
            return super().select(None)
        if self.jobs:
            if ready := super().select(_PATIENCE):
                return ready
            self.jobs.clear()
        if ready := self._wait_for_answers():
            return ready
        # A loop without sockets still listens to itself, through the pair that wakes it from other threads.
        has_sockets = len(self.get_map()) > 1
        ready = super().select(0) or (super().select(_GRACE) if has_sockets else [])
        if not ready:
            self.now += timeout + _seconds(self.late)
            if self.now + _RESOLUTION == self.now:
                # asyncio fires timers due *before* time() + resolution. After some hundred days a float is too coarse
                # for that sum, and a timer due exactly now would never fire.
                self.now = math.nextafter(self.now, math.inf)
        return ready

    def _wait_for_answers(self) -> list[tuple[selectors.SelectorKey, int]]:
        while self.asked:
            now = time.monotonic()
            if ready := super().select(max(0.0, max(self.asked.values()) - now)):
                for key, _ in ready:
                    if key.fd in self.asked:
                        self.asked[key.fd] = time.monotonic() + _MORE
                return ready
            self.asked.clear()
        return []


class VirtualClockEventLoop(asyncio.SelectorEventLoop):
    """Event loop of asyncio on a virtual clock.

    Use it as a loop factory: `asyncio.Runner(loop_factory=VirtualClockEventLoop)`, or by `virtual_backend("asyncio")`.

    Args:
        late: As for `virtual_backend`.
    """

    def __init__(self, *, late: Callable[[], float] = float) -> None:
        self._clock = _JumpingSelector(late)
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual time in seconds since the loop was made."""
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run a function in a thread, for which the clock waits."""
        job = super().run_in_executor(executor, func, *args)
        self._clock.jobs.add(job)
        job.add_done_callback(self._clock.jobs.discard)
        return job

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """Connect, as any loop does; for answers of another process or thread the clock waits."""
        return self._follow(await super().create_connection(*args, **options))

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        """Connect, as any loop does; for answers of another process or thread the clock waits."""
        return self._follow(await super().create_unix_connection(*args, **options))

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect, as any loop does; the clock waits for it."""
        self._clock.ask(file := sock.fileno())
        try:
            await super().sock_connect(sock, address)
        finally:
            self._clock.asked.pop(file, None)

    def add_reader(self, fd: "FileDescriptorLike", callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Call a function when something can be read. For another process or thread the clock waits."""
        if self._clock.leads_out(file := fd if isinstance(fd, int) else fd.fileno()):
            self._clock.ask(file)
        super().add_reader(fd, callback, *args)

    def remove_reader(self, fd: "FileDescriptorLike") -> bool:
        """Take back `add_reader`."""
        self._clock.asked.pop(fd if isinstance(fd, int) else fd.fileno(), None)
        return super().remove_reader(fd)

    def _follow(self, made: tuple[Any, Any]) -> tuple[Any, Any]:
        """Let the clock wait after each write to a connection that leads out of this loop."""
        transport: Any = made[0]
        file = transport.get_extra_info("socket").fileno()
        if self._clock.leads_out(file):
            for name in ("write", "writelines"):
                setattr(transport, name, functools.partial(self._write, file, getattr(transport, name)))
            self._clock.ask(file)  # bytes that were written while it was made, or a greeting
        return made

    def _write(self, file: int, write: Callable[[Any], None], data: Any) -> None:
        self._clock.ask(file)
        write(data)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads without a limit, as they live in real time; `timeout` is ignored."""
        await super().shutdown_default_executor()


# By clock of trio, which is a final class: the number of threads it waits for, and its threshold without them.
_held: "weakref.WeakKeyDictionary[MockClock, tuple[int, float]]" = weakref.WeakKeyDictionary()


@contextmanager
def _stopped_time() -> Iterator[bool]:
    """Stop the clock of the running loop, if it is a virtual one; yield whether it is."""
    loop = anyio.lowlevel.current_token().native_token
    if isinstance(loop, VirtualClockEventLoop):
        loop._clock.holds += 1
        try:
            yield True
        finally:
            loop._clock.holds -= 1
    elif isinstance(loop, asyncio.AbstractEventLoop) or (clock := _mock_clock()) is None:
        yield False
    else:
        holds, threshold = _held.get(clock, (0, clock.autojump_threshold))
        _held[clock] = holds + 1, threshold
        clock.autojump_threshold = math.inf
        try:
            yield clock.rate == 0
        finally:
            holds, threshold = _held.pop(clock)
            if holds > 1:
                _held[clock] = holds - 1, threshold
            else:
                clock.autojump_threshold = threshold


def _mock_clock() -> "MockClock | None":
    """Return the clock of the running loop of trio, if it is a mock clock."""
    import trio.lowlevel
    from trio.testing import MockClock

    clock = trio.lowlevel.current_clock()
    return clock if isinstance(clock, MockClock) else None


worker_threads.watch(_stopped_time)


def virtual_backend(
    backend: Literal["asyncio", "trio"], *, late: Callable[[], float] = float
) -> tuple[str, dict[str, Any]]:
    """Return a virtual-time backend as anyio's pytest plugin and `anyio.run` take it.

    Call it for each test: the clock of trio goes on from one run to the next with the same options.

    Args:
        backend: The event loop to use.
        late: Called whenever the clock jumps to a timer; returns by how much the loop wakes later than that, seconds,
            at least 0: else the run ends with a `ValueError`, under trio its cause. By default it is never late.

    Returns:
        The name of the backend and its options.

    Raises:
        ValueError: `backend` is neither "asyncio" nor "trio".
        ImportError: `backend` is "trio" and trio is not installed.
    """
    if backend == "asyncio":
        return "asyncio", {"loop_factory": functools.partial(VirtualClockEventLoop, late=late)}
    if backend == "trio":
        from trio.testing import MockClock

        clock = MockClock(autojump_threshold=0)
        jump = clock.jump
        clock.jump = lambda seconds: jump(seconds + _seconds(late))  # type: ignore[method-assign]
        return "trio", {"clock": clock}
    raise ValueError(f"backend must be 'asyncio' or 'trio', not {backend!r}")


def run_virtual(
    async_fn: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    backend: Literal["asyncio", "trio"] = "asyncio",
    late: Callable[[], float] = float,
) -> T:
    """Run an async function to its end in virtual time.

    Args:
        async_fn: The function to run.
        *args: Its arguments.
        backend: The event loop to use.
        late: As for `virtual_backend`.

    Returns:
        The result of `async_fn`.

    Raises:
        ValueError: `backend` is neither "asyncio" nor "trio".
        ImportError: `backend` is "trio" and trio is not installed.
        BaseException: Any error of `async_fn`.
    """
    name, options = virtual_backend(backend, late=late)
    if name == "trio":
        import trio

        return trio.run(async_fn, *args, **options)  # anyio.run drops the options before anyio 4.12
    return anyio.run(async_fn, *args, backend=name, backend_options=options)
