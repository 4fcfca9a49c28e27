"""Virtual time is exact, and real sockets stay real in it."""

import asyncio
import builtins
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute, SocketStream

from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.testing import VirtualClockEventLoop, run_virtual, virtual_backend, virtual_time
from tests.support.patience import PATIENCE

DAY = 86_400.0


async def test_a_year_of_sleep_passes_at_once_and_exactly() -> None:
    """Sleeping costs no real time, even beyond the day at which asyncio cuts its waits, and beyond its resolution."""
    start = anyio.current_time()
    await anyio.sleep(90 * DAY)
    assert anyio.current_time() == start + 90 * DAY
    await anyio.sleep(275 * DAY)
    assert anyio.current_time() == pytest.approx(start + 365 * DAY)


async def test_timers_fire_in_order_and_on_time() -> None:
    """Whatever waits at the same time wakes in the order of its deadlines."""
    woken: list[tuple[float, float]] = []
    start = anyio.current_time()

    async def sleeper(delay: float) -> None:
        await anyio.sleep(delay)
        woken.append((delay, anyio.current_time() - start))

    async with anyio.create_task_group() as tasks:
        for delay in (30.0, 0.001, 600.0, 0.0, 1.5):
            tasks.start_soon(sleeper, delay)

    assert [delay for delay, _ in woken] == [0.0, 0.001, 1.5, 30.0, 600.0]
    assert [at for _, at in woken] == pytest.approx([0.0, 0.001, 1.5, 30.0, 600.0])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_may_wake_late(backend: Literal["asyncio", "trio"]) -> None:
    """With `late` each jump overshoots by so much, and timers that fell due in between fire at once."""
    late = iter([0.25, 7.0])
    woken: list[tuple[float, float]] = []

    async def sleeper(delay: float) -> None:
        await anyio.sleep(delay)
        woken.append((delay, anyio.current_time()))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for delay in (1.0, 2.0, 5.0, 9.0, 20.0):
                tasks.start_soon(sleeper, delay)

    run_virtual(main, backend=backend, late=lambda: next(late, 0.0))
    assert sorted(woken) == [(1.0, 1.25), (2.0, 9.0), (5.0, 9.0), (9.0, 9.0), (20.0, 20.0)]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_loop_that_would_wake_too_early_is_refused(seconds: float) -> None:
    """Its clock would go back, or nowhere, and the run would never end."""
    with pytest.raises(ValueError, match="late"):
        run_virtual(anyio.sleep, 1.0, late=lambda: seconds)
    _, options = virtual_backend("trio", late=lambda: seconds)
    with pytest.raises(ValueError, match="late"):
        options["clock"].jump(1.0)


async def echo(stream: SocketStream) -> None:
    async with stream:
        try:
            while True:
                await stream.send(await stream.receive())
        except anyio.EndOfStream:
            return


async def tick() -> None:
    while True:
        await anyio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 100_000])
async def test_no_time_out_fires_while_a_loopback_answer_is_on_its_way(size: int) -> None:
    """Client and server in one loop talk over real sockets without a false time-out, with timers all around."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)

    async def exchange() -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, bytes(size))
            received = 0
            while received < size:
                received += len(await stream.receive())

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        tasks.start_soon(tick)
        for _ in range(500):
            start = anyio.current_time()
            with anyio.fail_after(0.005):
                await exchange()
            assert anyio.current_time() == start
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_without_a_timer_the_loop_waits_for_threads_in_earnest(backend: Literal["asyncio", "trio"]) -> None:
    """Work in a thread is waited for as on any loop, as long as no timer runs beside it."""

    async def main() -> str:
        return await anyio.to_thread.run_sync(lambda: "from a thread")

    assert run_virtual(main, backend=backend) == "from a thread"


async def test_time_stands_still_while_a_thread_of_the_store_works() -> None:
    """A time-out of virtual seconds around a store does not fire while the store writes, and the clock stays exact."""

    def write() -> str:
        time.sleep(0.05)  # real time: the work of a thread
        return "written"

    start = anyio.current_time()
    with anyio.fail_after(0.001):
        assert await run_in_thread(write) == "written"
    assert anyio.current_time() == start
    await anyio.sleep(10)
    assert anyio.current_time() == start + 10


async def test_time_goes_on_when_the_last_of_several_threads_is_done() -> None:
    """A timer beside threads fires after all of them, at its time, and whatever they raise."""
    start = anyio.current_time()
    began, failed = threading.Event(), threading.Event()
    order: list[object] = []

    def fail() -> None:
        began.wait()
        raise LookupError

    def work() -> None:
        began.set()
        failed.wait()

    async def in_thread(function: Callable[[], None]) -> None:
        try:
            await run_in_thread(function)
        except LookupError as exc:
            order.append(type(exc))
            failed.set()
        else:
            order.append("worked")
        assert anyio.current_time() == start

    async def timer() -> None:
        await anyio.sleep(10)
        order.append(anyio.current_time() - start)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timer)
        tasks.start_soon(in_thread, work)
        tasks.start_soon(in_thread, fail)
    assert order == [LookupError, "worked", 10]


async def test_a_cancelled_task_leaves_its_thread_to_its_end_and_the_clock_sound() -> None:
    """Work that has begun is done, though no task waits for it any more; afterwards time jumps as before."""
    done = threading.Event()
    began = threading.Event()

    def work() -> None:
        began.set()
        time.sleep(0.02)  # real time: the work of a thread
        done.set()

    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_in_thread, work)
        while not began.is_set():
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert done.is_set()
    await anyio.sleep(10)
    assert anyio.current_time() == start + 10


def test_time_stands_still_while_a_function_of_an_executor_works() -> None:
    """Django's models and name look-ups take no virtual time, beside a timer that could fire at once."""

    async def main() -> float:
        began, ended = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            ended.wait()

        async with asyncio.timeout(0.001), anyio.create_task_group() as tasks:
            tasks.start_soon(asyncio.to_thread, work)
            while not began.is_set():
                await anyio.lowlevel.checkpoint()
            threading.Timer(0.05, ended.set).start()
        return anyio.current_time()

    assert run_virtual(main) == 0.0


def test_an_executor_that_waits_for_the_loop_does_not_stop_time_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync middleware of Django around an async view waits for the view's timers, which therefore fire."""
    monkeypatch.setattr(virtual_time, "_PATIENCE", 0.01)

    async def main() -> float:
        loop = asyncio.get_running_loop()

        def middleware() -> None:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(3600), loop).result()

        await asyncio.to_thread(middleware)
        return anyio.current_time()

    assert run_virtual(main) == 3600.0


def test_a_clock_of_ones_own_is_held_and_let_go() -> None:
    """A mock clock that a test made itself keeps its threshold."""
    import trio
    from trio.testing import MockClock

    clock = MockClock(autojump_threshold=0.001)

    async def main() -> None:
        with trio.fail_after(1):  # real time: none, the clock is a mock
            await run_in_thread(lambda: time.sleep(0.02))  # real time: the work of a thread
        assert clock.autojump_threshold == 0.001
        await trio.sleep(10)

    trio.run(main, clock=clock)
    assert clock.current_time() == 10


@pytest.mark.real_time
async def test_in_real_time_a_thread_of_the_store_is_any_thread() -> None:
    """Watching costs nothing where there is no virtual clock."""
    assert await run_in_thread(lambda: 1, limiter=anyio.CapacityLimiter(1)) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_virtual_passes_arguments_and_returns_the_result(backend: Literal["asyncio", "trio"]) -> None:
    """One call runs one async function on either loop, from time 0."""

    async def main(first: int, second: str) -> tuple[int, str, float]:
        await anyio.sleep(7200)
        return first, second, anyio.current_time()

    assert run_virtual(main, 1, "two", backend=backend) == (1, "two", 7200.0)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_virtual_lets_errors_out(backend: Literal["asyncio", "trio"]) -> None:
    """An error of the function is the caller's."""

    async def main() -> None:
        await anyio.sleep(1)
        raise LookupError

    with pytest.raises(LookupError):
        run_virtual(main, backend=backend)


def test_the_loop_works_without_anyio() -> None:
    """asyncio's own runner takes the loop as a factory."""

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualClockEventLoop) as runner:
        assert runner.run(main()) == 3600.0


def test_an_unknown_backend_is_refused() -> None:
    """A typing error in a name does not end in real time."""
    with pytest.raises(ValueError, match="'curio'"):
        virtual_backend("curio")  # type: ignore[arg-type]


def test_asyncio_needs_no_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests on asyncio alone need no trio."""
    real_import = builtins.__import__

    def no_trio(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == "trio":
            raise ImportError(name)
        return real_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", no_trio)
    assert virtual_backend("asyncio")[0] == "asyncio"
    with pytest.raises(ImportError):
        virtual_backend("trio")


@pytest.mark.real_time
async def test_a_test_may_ask_for_real_time(anyio_backend: tuple[str, dict[str, Any]]) -> None:
    """With the marker `real_time` a time-out does not jump over the work of a thread."""
    assert anyio_backend[1] == {}
    with anyio.fail_after(PATIENCE):
        assert await anyio.to_thread.run_sync(lambda: "from a thread") == "from a thread"
