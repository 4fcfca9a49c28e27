"""One limit for all processes of a merchant: on paper in virtual time, on real databases, and in real processes."""

import asyncio
import contextlib
import math
import signal
from typing import Literal

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mobilemoney_async import Priority, RateLimiter, StoreError
from mobilemoney_async.database.engine import Database
from mobilemoney_async.sandbox.behaviour import RateLimit
from mobilemoney_async.sharing.budget import Reservation, ReservationRequest, reserve
from mobilemoney_async.sharing.limiter import SharedLimiter
from mobilemoney_async.testing import run_virtual
from tests.calls.test_bucket import StrictService
from tests.calls.test_limiter import Crowd, InterferingQueue, Queue, lateness
from tests.payments.limiter_process import Recording, fast
from tests.payments.service import on_asyncio
from tests.support.databases import Postgres
from tests.support.fakes import settle
from tests.support.patience import PATIENCE
from tests.support.scale import examples
from tests.support.talk import Talk, talk

BACKENDS: list[Literal["asyncio", "trio"]] = ["asyncio", "trio"]
PAYMENT, LOOKUP, POLL, BULK = Priority
AHEAD = 1e9  # how far the store's clock is ahead of the loop's, seconds
LAST_WORDS = 12  # requests of the process that is killed


class Row:
    """The row of a database on paper.

    Attributes:
        text: Its contents.
        asked: How often it was locked.
        error: The database's error instead, if any.
    """

    def __init__(self) -> None:
        self.text: str | None = None
        self.asked = 0
        self.error: str | None = None


class OnPaper(SharedLimiter):
    """Stand-in for a process.

    Args:
        row: The row.
        limiter: The limit, by default the contract's.
        latency: How long a transaction takes, seconds; the first half passes before it looks at the clock.
    """

    def __init__(self, row: Row, limiter: RateLimiter | None = None, latency: float = 0.0) -> None:
        limiter = limiter or RateLimiter()
        super().__init__(limiter, Database("sqlite:///never-opened.db"), "a")
        self._queue = self.queue = InterferingQueue(self._slots, limiter.per_minute, pause=self._pause)
        self.row = row
        self.latency = latency

    async def _reserve(self, request: ReservationRequest) -> tuple[Reservation, float, float]:
        with anyio.CancelScope(shield=True):  # as a worker thread is
            await anyio.sleep(self.latency / 2)
            self.row.asked += 1
            if self.row.error is not None:
                raise StoreError(self.row.error, outcome="not_sent")
            seen_at = anyio.current_time() + AHEAD
            self.row.text, reservation = reserve(self.row.text, request, seen_at)
            await anyio.sleep(self.latency / 2)
        return reservation, seen_at, -AHEAD


async def saturate(queue: Queue, lane: Priority, number: int) -> None:
    """Keep so many waiting in a lane."""

    async def keep_going() -> None:
        while True:
            await queue.wait(lane, lane)

    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            tasks.start_soon(keep_going)


# -- the law -----------------------------------------------------------------------------------------------------------

seconds = st.one_of(st.integers(0, 12).map(float), st.floats(0, 12))
arrivals = st.tuples(seconds, st.integers(0, 2), st.sampled_from(Priority), st.one_of(st.none(), seconds))
IN_TURN: list[tuple[float, int, Priority, float | None]] = [(0.0, n % 3, PAYMENT, None) for n in range(80)]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@given(
    arrivals=st.lists(arrivals, max_size=80),
    holds=st.lists(st.tuples(seconds, st.integers(0, 2), seconds), max_size=3),
    strikes=st.dictionaries(st.integers(0, 50), st.lists(st.integers(0, 20), min_size=1, max_size=3), max_size=20),
    latencies=st.tuples(*[st.sampled_from([0.0, 0.003, 0.08, 0.7])] * 3),
    late=st.lists(lateness, max_size=50),
)
@settings(max_examples=examples(60))
@example(arrivals=IN_TURN, holds=[], strikes={}, latencies=(0.0, 0.1, 0.7), late=[])
@example(arrivals=IN_TURN, holds=[], strikes={}, latencies=(0.0, 0.003, 0.08), late=[0.0] * 20 + [9.0])
@example(arrivals=IN_TURN, holds=[], strikes={}, latencies=(0.0, 0.003, 0.08), late=[0.3] * 99)
@example(
    arrivals=[(0.0, n % 3, (PAYMENT, BULK)[n % 2], None) for n in range(80)],
    holds=[(2.0, 0, 9.0)],
    strikes={1: [0], 20: [0, 1], 40: [3]},
    latencies=(0.0, 0.003, 0.08),
    late=[0.0, 0.9],
)
def test_no_arrivals_and_no_cancellations_break_the_limit_or_lose_a_waiter(
    backend: Literal["asyncio", "trio"],
    arrivals: list[tuple[float, int, Priority, float | None]],
    holds: list[tuple[float, int, float]],
    strikes: dict[int, list[int]],
    latencies: tuple[float, ...],
    *,
    late: list[float],
) -> None:
    """Requests come and leave in three processes: both readings of the limit hold, and those that stay are served.

    That is so on a busy machine too, whose event loops wake late.
    """
    lost = iter(late)

    async def main() -> None:
        row = Row()
        crowd = Crowd([Queue(OnPaper(row, latency=latency)) for latency in latencies], strikes)
        with anyio.fail_after(12 + 1.5 * len(arrivals) + 40 + 2 * sum(late)):  # no request waits for ever
            await crowd.come(arrivals, holds)
        crowd.check()

    run_virtual(main, backend=backend, late=lambda: next(lost, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("latency", [0.0, 0.02, 0.6])
@on_asyncio
async def test_a_saturated_fleet_uses_the_limit_and_each_has_its_turns(latency: float) -> None:
    """Four processes use 95 % of the limit in ten minutes, each at least a sixth of it, however slow the store is."""
    row = Row()
    queues = [Queue(OnPaper(row, latency=latency)) for _ in range(4)]
    with anyio.move_on_after(600):
        async with anyio.create_task_group() as tasks:
            for queue in queues:
                tasks.start_soon(saturate, queue, LOOKUP, 10)
    times = [at for queue in queues for at in queue.times]
    assert StrictService().rejections(times) == []
    assert len(times) >= 0.95 * 600
    assert min(len(queue.times) for queue in queues) >= len(times) / 6
    assert row.asked <= 2.2 * len(times)


async def test_at_a_high_rate_many_requests_share_a_transaction() -> None:
    """At 1,200 a minute four processes need a transaction for every three requests or more."""
    row = Row()
    queues = [Queue(OnPaper(row, RateLimiter(1200), latency=0.005)) for _ in range(4)]
    with anyio.move_on_after(30):
        async with anyio.create_task_group() as tasks:
            for queue in queues:
                tasks.start_soon(saturate, queue, LOOKUP, 30)
    number = sum(len(queue.times) for queue in queues)
    assert 0.97 * 600 <= number <= 610
    assert row.asked <= number / 3


# -- lanes, holds ------------------------------------------------------------------------------------------------------


async def test_a_payment_does_not_wait_behind_lookups_of_its_own_process() -> None:
    """A payment that comes while lookups wait for their turn is asked for at once, not with them."""
    row = Row()
    here, there = (Queue(OnPaper(row, RateLimiter(600), latency=0.002)) for _ in range(2))
    async with anyio.create_task_group() as tasks:
        for queue in (here, there):
            tasks.start_soon(saturate, queue, LOOKUP, 20)
        for number in range(10):
            await anyio.sleep(1 + number / 13)
            began = anyio.current_time()
            await here.wait("payment", PAYMENT)
            assert anyio.current_time() - began <= 0.5
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("lane", [LOOKUP, BULK])
async def test_a_payment_does_not_wait_until_its_process_would_have_asked(lane: Priority) -> None:
    """In a large fleet other work waits seconds for its turn; a payment that comes then gets one of the next slots."""
    row = Row()
    here, *others = (Queue(OnPaper(row, RateLimiter(120), latency=0.002)) for _ in range(9))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(saturate, here, lane, 2)
        for queue in others:
            tasks.start_soon(saturate, queue, LOOKUP, 2)
        for number in range(5):
            await anyio.sleep(5 + number / 1.3)
            began = anyio.current_time()
            await here.wait("payment", PAYMENT)
            assert anyio.current_time() - began <= 0.25 + 0.5
        tasks.cancel_scope.cancel()


async def test_a_hold_holds_the_whole_fleet() -> None:
    """A hold for one process reaches the others within a second, and no process sends before its end."""
    row = Row()
    queues = [Queue(OnPaper(row, RateLimiter(600), latency=0.002)) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for queue in queues:
            tasks.start_soon(saturate, queue, LOOKUP, 20)
        await anyio.sleep(3)
        queues[0].limiter.hold(30)
        assert not queues[0].limiter.has_capacity()
        await anyio.sleep(40)
        tasks.cancel_scope.cancel()
    times = sorted(at for queue in queues for at in queue.times)
    assert not [at for at in times if 4 < at < 33 - 1e-3]
    assert len([at for at in times if 33 - 1e-3 <= at <= 34]) >= 5
    assert not [at for at in queues[0].times if 3 < at < 33 - 1e-3]


async def test_a_hold_that_comes_while_the_store_is_asked_holds() -> None:
    """Slots that the store gave without knowing of the hold are not used."""
    queue = Queue(OnPaper(Row(), latency=0.1))
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(queue.wait)
        await anyio.sleep(0.07)
        queue.limiter.hold(30)
    assert queue.times == pytest.approx([30.07, 31.07, 32.07], abs=0.2)
    assert min(queue.times) >= 30.07 - 1e-5


async def test_usage_and_capacity_are_those_of_the_fleet() -> None:
    """The use by another process is seen after the next reservation: by the poller, and by prefetches."""
    row = Row()
    one, other = OnPaper(row), OnPaper(row)
    assert one.has_capacity()
    assert one.usage().granted == 0
    for _ in range(6):
        await one.acquire()
    await other.acquire()
    assert other.usage().granted == 7
    assert (other.usage().limit, one.usage().granted) == (60, 6)
    assert other.has_capacity()
    for _ in range(3):
        await other.acquire()
    assert not other.has_capacity()
    await anyio.sleep(61)
    assert other.has_capacity()
    assert other.usage().granted == 0


# -- cancellations and failures ----------------------------------------------------------------------------------------


async def test_everybody_who_comes_at_once_is_served_by_one_transaction() -> None:
    """Ten requests at once cost one round trip to the store, not ten."""
    row = Row()
    queue = Queue(OnPaper(row, latency=0.01))
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(queue.wait, number)
    assert row.asked == 1
    assert queue.times == pytest.approx([0.01] * 10, abs=0.02)


async def test_a_slot_of_one_who_left_goes_to_the_next() -> None:
    """A request that is cancelled while the store is asked, or in the moment of its turn, loses no slot."""
    row = Row()
    queue = Queue(OnPaper(row, latency=0.02))
    scope = anyio.CancelScope()

    async def leave() -> None:
        with scope:
            await queue.wait("left", PAYMENT)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        await settle()
        tasks.start_soon(queue.wait, "stayed")
        await anyio.sleep(0.01)
        scope.cancel()
    assert queue.names == ["stayed"]
    assert row.asked == 1


async def test_a_slot_of_one_who_left_is_not_used_in_a_hold() -> None:
    """A hold that comes in the moment of a grant, whose request has left, holds the next request too."""
    limiter = OnPaper(Row())
    for _ in range(10):
        await limiter.acquire()
    queue, scope = Queue(limiter), anyio.CancelScope()

    def strike() -> None:
        limiter.queue.interfere = lambda: None
        scope.cancel()
        limiter.hold(30)

    async def leave() -> None:
        with scope:
            await queue.wait("left", PAYMENT)

    limiter.queue.interfere = strike
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "stayed")
        await settle()
        tasks.start_soon(leave)
    assert queue.names == ["stayed"]
    assert queue.times == pytest.approx([31.75], abs=0.2)


async def test_a_slot_that_is_over_is_not_used() -> None:
    """A loop that was stopped does not use slots from long ago: they are lost, and those after them count."""
    limiter = OnPaper(Row())
    for _ in range(10):
        await limiter.acquire()
    with anyio.move_on_after(1.72):  # then its slot is reserved, for 1.75
        await limiter.acquire()
    assert limiter._slots.ready_at() < math.inf
    await anyio.sleep(0.5)
    queue = Queue(limiter)
    await queue.wait()
    await queue.wait()
    assert queue.times == pytest.approx([0.53, 1.53], abs=0.01)


async def test_a_store_that_fails_fails_everybody_in_line_once() -> None:
    """Each waiter has an error of its own, nothing was sent, and the next one finds the store as it is then."""
    row = Row()
    row.error = "the store failed: out of order"
    limiter = OnPaper(row, latency=0.1)
    errors: list[StoreError] = []

    async def fail() -> None:
        with pytest.raises(StoreError, match="out of order") as caught:
            await limiter.acquire()
        assert caught.value.outcome == "not_sent"
        errors.append(caught.value)

    for _ in range(2):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(fail)
    assert len(set(map(id, errors))) == 10
    assert row.asked == 2
    row.error = None
    queue = Queue(limiter)
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(queue.wait, number)
    assert len(queue.times) == 12
    assert limiter.usage().granted == 12


async def test_a_hold_is_kept_through_a_failure_of_the_store() -> None:
    """A hold that could not be stored holds here, and is stored when that is possible."""
    row = Row()
    limiter, other = OnPaper(row), OnPaper(row)
    row.error = "away"
    limiter.hold(20)
    with pytest.raises(StoreError):
        await limiter.acquire()
    row.error = None
    queue, others = Queue(limiter), Queue(other)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait)
        await anyio.sleep(0.1)
        tasks.start_soon(others.wait)
    assert sorted(queue.times + others.times) == pytest.approx([20, 21], abs=1e-3)


def test_a_limiter_may_go_on_in_another_kind_of_loop() -> None:
    """One limiter works in whatever loop comes next, each on its own clock."""
    limiter = OnPaper(Row(), RateLimiter(6000, 100))

    async def main() -> None:
        for _ in range(10):
            await limiter.acquire()

    for backend in (*BACKENDS, *BACKENDS):
        run_virtual(main, backend=backend)


# -- real databases ----------------------------------------------------------------------------------------------------


def strict(used: list[float]) -> list[str]:
    return StrictService(1200, 10, 3).rejections([at - min(used) for at in used])


@pytest.mark.real_time
async def test_accounts_have_budgets_of_their_own(store_url: str) -> None:
    """Merchants that share a database do not share a limit."""
    with contextlib.closing(Database(store_url)) as database, anyio.fail_after(PATIENCE):
        for account in ("one", "other"):
            limiter = SharedLimiter(RateLimiter(1), database, account)
            await limiter.acquire()
            assert limiter.usage().granted == 1
            assert not limiter.has_capacity()


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_server_that_crashes_forgets_no_request(crashing_server: Postgres) -> None:
    """When PostgreSQL is back a second after a crash, the requests just before count, and no second burst follows."""
    url = crashing_server.new_database()
    limit = RateLimiter(window=3600)
    with contextlib.closing(Database(url)) as one, contextlib.closing(Database(url)) as other:
        with crashing_server.writing_late(), anyio.fail_after(PATIENCE):
            limiter = SharedLimiter(limit, one, "merchant")
            for _ in range(5):
                await limiter.acquire()
            await anyio.to_thread.run_sync(crashing_server.crash)
            limiter = SharedLimiter(limit, other, "merchant")
            await limiter.acquire()
    assert limiter.usage().granted == 6


@pytest.mark.costly("runs lines of sharing/limiter.py that no quick test runs")
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_time_outs_of_asyncio_leave_the_limiter_sound(store_url: str) -> None:
    """`asyncio.wait_for` tears its task out of the worker thread: the limit holds, and the next one is served."""
    with contextlib.closing(Database(store_url)) as database:
        limiter = Recording(fast(), database, "merchant")
        await limiter.acquire()

        async def lose_patience(patience: float) -> None:
            for _ in range(10):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(limiter.acquire(), patience)  # real time: it cancels at random

        await asyncio.gather(*(lose_patience(0.0005 * 1.5**number) for number in range(12)))
        await asyncio.wait_for(limiter.acquire(), PATIENCE)
    assert strict(limiter.used) == []


# -- real processes ----------------------------------------------------------------------------------------------------


Told = list[list[tuple[float, float]]]  # by each process: the slots that it used by the store's clock, and when


def keeps_pace(told: Told, victim: int, *, seconds: float = 3.0) -> bool:
    """Return whether the fleet kept the pace in its last seconds.

    A busy machine may wake a process long after its slot: then its requests arrive in a heap, and none before.
    """
    arrivals = sorted((at, number) for number, each in enumerate(told) for _, at in each)
    end = arrivals[-1][0]
    if len(told[victim]) < LAST_WORDS or arrivals[0][0] > end - seconds:
        return False
    service, rejected, turns = RateLimit(20), 0, [0] * len(told)
    for at, number in arrivals:
        is_rejected = service.wait("both", at) > 0
        if not is_rejected:
            service.use(at)
        if at > end - seconds:
            rejected += is_rejected
            turns[number] += 1
    others = turns[:victim] + turns[victim + 1 :]
    return (
        rejected < 0.01 * sum(turns)
        and sum(turns) >= 0.9 * 20 * seconds
        and turns[victim] == 0
        and min(others) >= 0.5 * max(others)
    )


async def gather(processes: list[Talk], victim: int) -> tuple[Told, bool]:
    """Return the reports of each process, and whether they kept the pace, after which they are stopped.

    The victim is killed after its last words.
    """
    told: Told = [[] for _ in processes]
    kept_pace = False

    async def listen(process: Talk, reports: list[tuple[float, float]]) -> None:
        async for line in process:
            slot, at = map(float, line.split())
            reports.append((slot, at))
            if process is processes[victim] and len(reports) == LAST_WORDS:
                process.kill()

    async with anyio.create_task_group() as tasks:
        for process, reports in zip(processes, told, strict=True):
            tasks.start_soon(listen, process, reports)
        with anyio.move_on_after(PATIENCE):
            while not (kept_pace := all(told) and keeps_pace(told, victim)):
                await anyio.sleep(0.2)  # real time: how often it looks at what comes to stay
        for process in processes[:victim] + processes[victim + 1 :]:
            await process.tell("stop")
    return told, kept_pace


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_four_real_processes_keep_one_budget_of_1200_a_minute(store_url: str) -> None:
    """Under 1 % is rejected, 90 % is used, each has its turns; and one that is killed takes nothing with it."""
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(talk("tests.payments.limiter_process", store_url)) for _ in range(4)
        ]
        assert [await process.line() for process in processes] == ["ready"] * 4
        for process in processes:
            await process.tell("go")
        told, kept_pace = await gather(processes, victim=3)
        assert [await process.wait() for process in processes] == [0, 0, 0, -signal.SIGKILL]
    assert strict([slot for each in told for slot, _ in each]) == []
    assert kept_pace
