"""Threads with an event loop each: what waits in one of them never keeps another one waiting for ever."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from mobilemoney_async import (
    AsyncClient,
    DisbursementLimits,
    InvalidRequest,
    LimitExceeded,
    LoginAuth,
    RateLimiter,
    RetryPolicy,
    ServerError,
)
from mobilemoney_async.calls.limiter import LoopLock, OneLoop
from tests.contract import samples
from tests.support.fakes import (
    BASE_URL,
    EMAIL,
    LOGIN,
    PASSWORD,
    PHONE_NUMBER,
    FakeTransport,
    Sent,
    Step,
    found,
    logged_in,
    look_up,
    make_client,
    service,
)
from tests.support.patience import PATIENCE
from tests.support.server import Response

THREADS = 6


class Service(FakeTransport):
    """The service, for any event loop. A login is answered once another thread has ended, or was stuck for a while."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.another_ended = threading.Event()

    async def _answer(self, sent: Sent) -> Step:
        if sent.path == LOGIN:
            await asyncio.to_thread(self.another_ended.wait, PATIENCE / 4)
            return logged_in()
        if sent.method == "POST":
            body = json.loads(sent.body)
            return Response.json(samples.acknowledgement(**body, transaction_id=f"t-{body['amount']}"))
        return found(sent)


def in_threads(work: Callable[[int], Coroutine[Any, Any, object]]) -> list[object]:
    """Run work in many threads at once, each with a loop of its own; return what came of it. None may be stuck."""
    results: list[object] = []

    def run(number: int) -> None:
        try:
            results.append(asyncio.run(work(number)))
        except Exception as exc:  # noqa: BLE001 (compared by the tests)
            results.append(exc)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return results


def check(results: list[object]) -> None:
    """Each thread got its answer or was told what to do, and one at least got its answer."""
    refused = [each for each in results if isinstance(each, InvalidRequest)]
    assert all("in each thread" in str(each) and each.outcome == "not_sent" for each in refused)
    assert len(results) == THREADS
    assert len(results) - len(refused) > 0
    assert not [each for each in results if isinstance(each, Exception) and each not in refused]


def test_one_client_in_several_threads_does_not_hang() -> None:
    """The habit of Flask, Django and Celery, `asyncio.run(client…)` in each thread, ends with a sentence at worst."""
    client = AsyncClient(
        BASE_URL, auth="token", transport=Service(), rate_limiter=RateLimiter(per_minute=600, burst=1, jitter=0)
    )

    async def work(number: int) -> None:
        for step in range(4):
            await client.transactions.get(f"t-{number}-{step}")

    check(in_threads(work))
    # Nothing is left behind: afterwards any other loop may use it.
    asyncio.run(work(9))


def test_one_login_in_several_threads_does_not_hang() -> None:
    """The same where the threads wait for one login."""
    login, service = LoginAuth(EMAIL, PASSWORD), Service()

    async def work(number: int) -> None:
        try:
            async with AsyncClient(BASE_URL, auth=login, transport=service, rate_limiter=wide()) as client:
                await client.transactions.get(f"t-{number}")
        finally:
            service.another_ended.set()

    check(in_threads(work))


def test_a_shared_limiter_takes_one_loop_after_the_other() -> None:
    """A loop that ended while calls waited leaves nothing behind."""
    limiter = RateLimiter(per_minute=600, burst=1, jitter=0)

    async def give_up() -> None:
        await limiter.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):  # real time: nothing else ends this wait
                await limiter.acquire()

    async def wait() -> None:
        await limiter.acquire()

    asyncio.run(give_up())
    asyncio.run(wait())


def test_a_loop_is_alone_until_its_last_wait_has_ended() -> None:
    """The next one may wait then, and not before."""
    guard, first, second = OneLoop(), object(), object()
    for mine, other in ((first, second), (second, first)):
        guard.enter(mine)
        guard.enter(mine)
        guard.leave()
        with pytest.raises(InvalidRequest, match="in each thread"):
            guard.enter(other)
        guard.leave()


def test_a_wait_for_a_login_that_is_given_up_leaves_nothing_behind() -> None:
    """One loop holds the lock of a login, and a call there gives up waiting for it: the next loop has it at once."""
    lock = LoopLock()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), lock:  # real time: nothing else ends this wait
                raise AssertionError
        assert lock.locked()

    async def hold() -> None:
        async with lock, asyncio.TaskGroup() as tasks:
            tasks.create_task(give_up())
        assert not lock.locked()

    for _ in range(2):
        asyncio.run(hold())


def wide() -> RateLimiter:
    return RateLimiter(per_minute=6_000_000, burst=1000)


def test_a_limiter_goes_on_in_another_event_loop() -> None:
    """One after another, also where each run of trio has a clock of its own: nobody waits for what was hours ahead."""
    limiter = RateLimiter(per_minute=60_000, burst=3, jitter=0.0)

    async def work() -> None:
        with anyio.fail_after(PATIENCE):
            for _ in range(4):
                await limiter.acquire()
                limiter.hold(0.001)
        assert limiter.usage().granted > 3

    for _ in range(4):
        trio.run(work)
        asyncio.run(work())


def run_at(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Run work in a loop of trio whose clock shows a time that has nothing to do with that of other runs."""

    async def begin() -> None:
        await anyio.sleep(seconds)  # real time: none, on the clock below
        await work()

    trio.run(begin, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_days_limit_goes_on_in_another_event_loop() -> None:
    """What was sent a moment ago counts, whatever the clock of this run shows."""
    limits = DisbursementLimits(per_day=1000)
    client = make_client(FakeTransport(), rate_limiter=wide(), disbursement_limits=limits)

    async def send() -> None:
        await client.disbursements.create(PHONE_NUMBER, 1000)

    run_at(0, send)
    with pytest.raises(LimitExceeded):
        run_at(1_000_000, send)


def test_a_pause_of_logins_goes_on_in_another_event_loop() -> None:
    """It ends after a quarter of a second, not hours later."""
    failures = iter([True])

    def down_once(sent: Sent) -> Step:
        return Response(500) if next(failures, False) else service(sent.path)

    client = make_client(FakeTransport(down_once), rate_limiter=wide(), auth=LoginAuth(EMAIL, PASSWORD))
    client = client.with_options(retry=RetryPolicy(max_attempts=1))

    async def fail() -> None:
        with pytest.raises(ServerError):
            await look_up(client)

    async def wait() -> None:
        await fail()
        await anyio.sleep(0.3)  # real time: none, as above
        await look_up(client)

    run_at(10_000, fail)
    run_at(0, wait)


def test_trio_may_run_inside_an_asyncio_loop() -> None:
    """As in a cell of a notebook: its own clock counts."""

    async def wait() -> None:
        limiter = RateLimiter(60, 1)
        with trio.fail_after(5):
            await limiter.acquire()
            await limiter.acquire()
        assert trio.current_time() >= began + 1

    async def cell() -> None:
        trio.run(wait, clock=clock)

    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    asyncio.run(cell())
