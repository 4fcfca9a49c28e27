"""Waiting for one's turn: never above the limit, by lane, and nothing is lost when waiters leave."""

import gc
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mobilemoney_async import InvalidRequest, Priority, RateLimiter
from mobilemoney_async.calls.limiter import LaneQueue, Limiter
from mobilemoney_async.testing import run_virtual
from tests.calls.test_bucket import StrictService
from tests.support.arguments import wrong
from tests.support.fakes import FakeTransport, make_client, settle
from tests.support.scale import examples, soak

BACKENDS: list[Literal["asyncio", "trio"]] = ["asyncio", "trio"]
PAYMENT, LOOKUP, POLL, BULK = Priority


class Queue:
    """Waiters on a limiter, and when each of them got its turn, in seconds from now."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.start = anyio.current_time()
        self.tasks: TaskGroup | None = None
        self.arrived: list[object] = []
        self.turns: list[tuple[object, float]] = []

    @property
    def names(self) -> list[object]:
        return [name for name, _ in self.turns]

    @property
    def times(self) -> list[float]:
        return [at for _, at in self.turns]

    def is_in_order(self) -> bool:
        """Return whether all had a turn, in the order of arrival; trio shuffles those of one moment."""
        turns = dict(self.turns)
        times = [turns[name] for name in self.arrived]
        return times == sorted(times)

    async def wait(self, name: object = None, lane: Priority = LOOKUP, *, front_of_lane: bool = False) -> None:
        self.arrived.append(name)
        await self.limiter.acquire(lane, front_of_lane=front_of_lane)
        self.turns.append((name, anyio.current_time() - self.start))

    async def use_up(self) -> None:
        """Take every place that is free now."""
        while self.limiter.has_capacity():
            await self.limiter.acquire()

    async def drain(self) -> float:
        """Use the burst up and wait for one more; return how long that took, seconds."""
        before = anyio.current_time()
        await self.use_up()
        await self.limiter.acquire()
        return anyio.current_time() - before


class InterferingQueue(LaneQueue):
    """A queue that lets something happen in the moment of a grant: a task cancelled then has yet to notice."""

    interfere: Callable[[], None] = staticmethod(lambda: None)

    def _grant_to_next(self, now: float) -> None:
        self.interfere()
        super()._grant_to_next(now)


class Interfering(RateLimiter):
    """A limiter with such a queue."""

    def __init__(self) -> None:
        super().__init__()
        self._queue = self.queue = InterferingQueue(self._bucket, self.per_minute)


class Crowd:
    """Requests that come to queues, with a patience each, and holds meanwhile.

    Args:
        queues: Of limiters that can be interfered with.
        strikes: Which of those that wait are cancelled in the moment of a grant, by its number.
    """

    def __init__(self, queues: Sequence[Queue], strikes: Mapping[int, list[int]]) -> None:
        self.queues, self._strikes = queues, strikes
        self._came = self._left = 0
        self._inside: list[anyio.CancelScope] = []
        self._held: list[tuple[Queue, float, float]] = []
        self._grant = itertools.count()
        for queue in queues:
            limiter: Any = queue.limiter
            limiter.queue.interfere = self._strike

    def _strike(self) -> None:
        numbers = self._strikes.get(next(self._grant), [])
        for victim in [self._inside[number] for number in numbers if number < len(self._inside)]:
            victim.cancel()

    async def _arrive(self, at: float, who: int, lane: Priority, patience: float | None) -> None:
        await anyio.sleep(at)
        with anyio.move_on_after(math.inf if patience is None else patience) as scope:
            self._inside.append(scope)
            try:
                await self.queues[who].wait(None, lane)
            finally:
                self._inside.remove(scope)
        self._left += scope.cancelled_caught

    async def _hold(self, at: float, who: int, length: float) -> None:
        await anyio.sleep(at)
        limiter: Any = self.queues[who].limiter
        limiter.hold(length)
        now = anyio.current_time() - self.queues[who].start
        self._held.append((self.queues[who], now, now + length))

    async def come(
        self, arrivals: Sequence[tuple[float, int, Priority, float | None]], holds: Sequence[tuple[float, int, float]]
    ) -> None:
        """Let them come: each at its time, to one of the queues, and so the holds."""
        self._came += len(arrivals)
        async with anyio.create_task_group() as tasks:
            for each in arrivals:
                tasks.start_soon(self._arrive, *each)
            for hold in holds:
                tasks.start_soon(self._hold, *hold)

    def check(self) -> None:
        """See that none was lost, that the limit was kept, and each hold."""
        times = [at for queue in self.queues for at in queue.times]
        assert len(times) + self._left == self._came
        assert StrictService().rejections(times) == []
        for queue, begin, end in self._held:
            assert not [at for at in queue.times if begin < at < end - 1e-5]  # clocks round


# -- the law -----------------------------------------------------------------------------------------------------------

seconds = st.one_of(st.integers(0, 12).map(float), st.floats(0, 12))
waiters = st.tuples(seconds, st.sampled_from(Priority), st.one_of(st.none(), seconds))
lateness = st.one_of(st.just(0.0), st.floats(0, 0.5), st.floats(0, 90))  # of the event loop, seconds


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@given(
    arrivals=st.lists(waiters, max_size=100),
    holds=st.lists(st.tuples(seconds, seconds), max_size=3),
    strikes=st.dictionaries(st.integers(0, 50), st.lists(st.integers(0, 20), min_size=1, max_size=3), max_size=20),
    late=st.lists(lateness, max_size=50),
)
@settings(max_examples=examples(200))
@example(arrivals=[(0.0, PAYMENT, None)] * 100, holds=[], strikes={}, late=[])
@example(arrivals=[(0.0, PAYMENT, None)] * 100, holds=[], strikes={}, late=[0.0] * 20 + [9.0])
@example(arrivals=[(0.0, PAYMENT, None)] * 100, holds=[], strikes={}, late=[0.3] * 99)
@example(
    arrivals=[(0.0, BULK, None)] + [(0.0, PAYMENT, None)] * 75,
    holds=[(2.0, 9.0)],
    strikes={1: [0], 50: [0, 1]},
    late=[0.0, 0.9],
)
def test_no_arrivals_and_no_cancellations_break_the_limit_or_lose_a_place(
    backend: Literal["asyncio", "trio"],
    arrivals: list[tuple[float, Priority, float | None]],
    holds: list[tuple[float, float]],
    strikes: dict[int, list[int]],
    late: list[float],
) -> None:
    """Under any arrivals and cancellations both readings hold, all others are served, and no place is lost.

    That is so on a busy machine too, whose event loop wakes late.
    """
    lost = iter(late)

    async def main() -> None:
        crowd = Crowd([Queue(Interfering())], strikes)
        with anyio.fail_after(12 + 1.2 * len(arrivals) + 12 + 12 + sum(late)):  # no request waits for ever
            await crowd.come(
                [(at, 0, lane, patience) for at, lane, patience in arrivals], [(at, 0, length) for at, length in holds]
            )
        crowd.check()
        list(lost)  # from here on it is punctual
        await anyio.sleep(70)
        assert await crowd.queues[0].drain() == pytest.approx(1.5)

    run_virtual(main, backend=backend, late=lambda: next(lost, 0.0))


@pytest.mark.parametrize(("per_minute", "burst", "minutes"), [(60, 10, 10), (600, 20, 1)])
async def test_minutes_of_saturation_use_ninety_nine_percent(per_minute: int, burst: int, minutes: int) -> None:
    """Bursts, windows and jitter together cost less than 1 % of 60 requests a minute, or of another limit."""
    queue = Queue(RateLimiter(per_minute=per_minute, burst=burst))
    with anyio.move_on_after(60 * minutes):
        while True:
            await queue.wait()
    assert 594 <= len(queue.turns) <= 600
    assert StrictService(per_minute=per_minute, burst=burst).rejections(queue.times) == []


async def test_several_clients_share_one_limit() -> None:
    """Two clients given one limiter stay within the merchant's one limit together."""
    limiter = RateLimiter()
    transport = FakeTransport()
    clients = [make_client(transport, rate_limiter=limiter) for _ in range(2)]
    async with anyio.create_task_group() as tasks:
        for number in range(80):
            tasks.start_soon(clients[number % 2].users.profile)
    arrivals = [sent.at for sent in transport.sent]
    assert len(arrivals) == 80
    assert StrictService().rejections([at - arrivals[0] for at in arrivals]) == []


# -- order -------------------------------------------------------------------------------------------------------------


async def test_first_come_first_served_inside_a_lane() -> None:
    queue = Queue(RateLimiter())
    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(queue.wait, number)
    assert queue.is_in_order()


async def test_lanes_are_served_in_the_order_of_their_priority() -> None:
    """PAYMENT goes before LOOKUP, LOOKUP before POLL, POLL before BULK, in any order of arrival."""
    queue = Queue(RateLimiter())
    await queue.use_up()
    async with anyio.create_task_group() as tasks:
        for lane in reversed(Priority):
            tasks.start_soon(queue.wait, lane, lane)
            await settle()
    assert queue.names == [PAYMENT, LOOKUP, POLL, BULK]


@pytest.mark.slow
async def test_a_payment_does_not_wait_behind_queued_lookups() -> None:
    """With a thousand lookups, polls and pages in line, each of them goes before a payment once at most."""
    queue = Queue(RateLimiter())
    await queue.use_up()
    async with anyio.create_task_group() as tasks:
        for number in range(1000):
            tasks.start_soon(queue.wait, "other", (LOOKUP, POLL, BULK)[number % 3])
        for _ in range(20):
            await anyio.sleep(7.3)
            turns, now = len(queue.turns), anyio.current_time()
            await queue.wait("payment", PAYMENT)
            assert sum(at < queue.times[-1] for at in queue.times[turns:]) <= 3
            # The window forces a pause of ten seconds and a half now and then.
            assert anyio.current_time() - now <= 3 + 10.5
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("lane", "patience"), [(LOOKUP, 10), (POLL, 10), (BULK, 30)])
async def test_no_lane_starves_under_saturating_payments(lane: Priority, patience: float) -> None:
    """A lookup and a poll wait 10 s at most, bulk work 30 s, beyond the pauses that the window forces on all."""
    queue = Queue(RateLimiter())
    waits: list[tuple[float, float]] = []

    async def keep_paying() -> None:
        while True:
            await queue.wait("payment", PAYMENT)

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(keep_paying)
        for number in range(30):
            await anyio.sleep(1 + number % 7)
            begin = anyio.current_time() - queue.start
            await queue.wait("other", lane)
            waits.append((begin, queue.times[-1]))
        tasks.cancel_scope.cancel()

    for begin, end in waits:
        turns = [begin, *(at for at in queue.times if begin < at <= end)]
        pauses = sum(max(0.0, later - sooner - 1) for sooner, later in itertools.pairwise(turns))
        assert end - begin <= patience + pauses + 1e-6
    # It gets about ten seconds: payments keep nine tenths of the limit.
    assert queue.names.count("other") <= len(queue.turns) * 1 / (patience - 2) + 1


async def test_every_lane_moves_when_all_are_full() -> None:
    """With all four lanes saturated, payments get most of the limit and every other lane a share."""
    queue = Queue(RateLimiter())

    async def keep_going(lane: Priority) -> None:
        while True:
            await queue.wait(lane, lane)

    with anyio.move_on_after(600):
        async with anyio.create_task_group() as tasks:
            for lane in Priority:
                for _ in range(20):
                    tasks.start_soon(keep_going, lane)

    counts = {lane: queue.names.count(lane) for lane in Priority}
    assert counts[PAYMENT] > 400
    assert counts[LOOKUP] >= 50
    assert counts[POLL] >= 50
    assert counts[BULK] >= 18


async def test_ahead_goes_to_the_head_of_its_lane() -> None:
    """A request that a whole lane depends on (a login) does not queue behind it."""
    queue = Queue(RateLimiter())
    await queue.use_up()
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(queue.wait, number, PAYMENT)
            await settle()
        await queue.wait("login", PAYMENT, front_of_lane=True)
    assert queue.names == ["login", 0, 1, 2, 3, 4]


class Timetable:
    """Places at fixed times, by the loop's clock."""

    def __init__(self, times: Iterable[float]) -> None:
        self.times = list(times)

    def ready_at(self) -> float:
        return self.times[0]

    def take(self, now: float) -> None:
        del self.times[0]

    def undo(self) -> None:
        raise AssertionError


async def turns_at(queue: LaneQueue, waiters: Iterable[Priority]) -> list[Priority]:
    """Let requests wait in a queue from now on, and return their lanes in the order of their turns."""
    turns: list[Priority] = []

    async def wait(lane: Priority, now: float) -> None:
        await queue.wait(lane, now, front_of_lane=False)
        turns.append(lane)

    now = queue.now()
    async with anyio.create_task_group() as tasks:
        for lane in waiters:
            tasks.start_soon(wait, lane, now)
            await settle()
    return turns


@pytest.mark.parametrize(("elsewhere", "turn"), [(None, 9), (-5.0, 9), (0.0, 9), (2.0, 11)])
async def test_a_lookup_is_served_from_the_moment_on_at_which_its_patience_ends(
    elsewhere: float | None, turn: int
) -> None:
    """With a place each second its lane waits nine behind payments, not one more: since it came, or since a turn.

    A turn in another process counts too, whichever was the last.
    """
    start = anyio.current_time()
    queue = LaneQueue(Timetable(start + second for second in range(1, 31)), 60)
    if elsewhere is not None:
        for at in (elsewhere, elsewhere - 1):
            queue.note_turn(LOOKUP, start + at)
    turns = await turns_at(queue, [PAYMENT] * 20 + [LOOKUP])
    assert turns.index(LOOKUP) + 1 == turn


async def test_places_that_change_while_nothing_waits_disturb_nothing() -> None:
    """There is no timekeeper to wake, before the first request and after the last."""
    queue = LaneQueue(Timetable([0.0]), 60)
    queue.look_again()
    assert await turns_at(queue, [LOOKUP]) == [LOOKUP]
    queue.look_again()


# -- hold --------------------------------------------------------------------------------------------------------------


async def test_a_hold_holds_everybody_exactly_as_long_and_then_goes_on_steadily() -> None:
    """After a rejection no request goes before `retry_after` has passed; then one at once, and one a second."""
    queue = Queue(RateLimiter())
    async with anyio.create_task_group() as tasks:
        for lane in Priority:
            for _ in range(5):
                tasks.start_soon(queue.wait, lane, lane)
        await settle()
        assert len(queue.turns) == 10
        queue.limiter.hold(42)
        assert not queue.limiter.has_capacity()
    assert queue.times[10:] == pytest.approx([42 + number for number in range(10)])


async def test_a_hold_ends_at_its_very_end() -> None:
    """A caller that asks then finds a place; a hold of no time leaves a place, and no burst."""
    for seconds in (5.0, 0.0):
        limiter = RateLimiter()
        limiter.hold(seconds)
        await anyio.sleep(seconds)
        assert limiter.has_capacity()
        await limiter.acquire()
        assert not limiter.has_capacity()


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "5", None])
async def test_a_hold_of_nonsense_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        RateLimiter().hold(value)


def test_a_lane_that_is_none_is_refused_and_leaves_no_wait_behind() -> None:
    """The error names the argument, and another event loop may wait afterwards."""
    limiter, lane = RateLimiter(burst=1), "BULK"

    async def wait() -> None:
        await limiter.acquire()
        with pytest.raises(InvalidRequest) as caught:
            await limiter.acquire(lane)  # type: ignore[arg-type]
        assert caught.value.argument == "priority"

    for _ in range(2):
        run_virtual(wait)


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_cancelled_waiters_use_nothing_up() -> None:
    """A thousand waiters leave, and the next one is served as if they had never come."""
    queue = Queue(RateLimiter())
    await queue.use_up()
    with anyio.move_on_after(1):
        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(queue.wait)
    await queue.wait("next")
    assert queue.times == pytest.approx([1.5])


@pytest.mark.parametrize("leaver", range(5))
async def test_whoever_leaves_the_line_the_rest_keep_their_times(leaver: int) -> None:
    """The one that keeps the time, the first, the last: any waiter may leave without a delay for the others."""
    queue = Queue(RateLimiter())
    await queue.use_up()
    scopes = [anyio.CancelScope() for _ in range(5)]

    async def wait(number: int) -> None:
        with scopes[number]:
            await queue.wait(number)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(wait, number)
            await settle()
        await anyio.sleep(0.1)
        scopes[leaver].cancel()

    assert queue.names == [number for number in range(5) if number != leaver]
    assert queue.times == pytest.approx([1.5, 2.5, 3.5, 4.5])


@asynccontextmanager
async def late_waiter(before: int = 10) -> AsyncIterator[tuple[Queue, list[Callable[[], object]]]]:
    """Put a waiter in line that is cancelled in the moment of its turn, and run until the line is empty.

    Yields:
        The line, in which a "keeper" waits too, behind all others; and the actions of that moment.
    """
    limiter = Interfering()
    queue = Queue(limiter)
    for _ in range(before):
        await limiter.acquire()
    assert not limiter.has_capacity()
    scope = anyio.CancelScope()
    interference: list[Callable[[], object]] = [scope.cancel]

    def interfere() -> None:
        while interference:
            interference.pop()()

    async def wait_in_vain() -> None:
        with scope:
            await queue.wait("late", PAYMENT)

    async with anyio.create_task_group() as tasks:
        queue.tasks = tasks
        await start(queue, "keeper", BULK)
        tasks.start_soon(wait_in_vain)
        await settle()
        yield queue, interference
        limiter.queue.interfere = interfere
    assert scope.cancelled_caught


async def start(queue: Queue, name: object, lane: Priority = LOOKUP) -> None:
    """Put a waiter in line."""
    assert queue.tasks is not None
    queue.tasks.start_soon(queue.wait, name, lane)
    await settle()


@pytest.mark.parametrize("others", [0, 1, 2, 5])
async def test_a_turn_that_comes_too_late_goes_to_the_next_in_line(others: int) -> None:
    """A waiter that is cancelled in the moment of its turn does not take the place with it."""
    async with late_waiter() as (queue, _):
        for number in range(others):
            await start(queue, number)

    assert queue.names == [*range(others), "keeper"]
    assert queue.times == pytest.approx([1.5 + number for number in range(others + 1)])


async def test_a_turn_that_comes_back_is_not_given_away_during_a_hold() -> None:
    """If the service asks for a hold while a cancelled waiter gives its place back, no request goes before its end."""
    async with late_waiter() as (queue, interference):
        interference.append(lambda: queue.limiter.hold(30))
        await start(queue, "next")

    assert queue.names == ["next", "keeper"]
    assert queue.times == pytest.approx([31.5, 32.5])


async def test_a_place_given_back_is_used_at_once_in_the_long_pause_of_the_window() -> None:
    """The sixtieth place of a minute comes back: the next in line has it then, not ten seconds later."""
    async with late_waiter(before=59) as (queue, _):
        sixtieth = anyio.current_time() - queue.start + 1

    assert queue.names == ["keeper"]
    assert queue.times == pytest.approx([sixtieth])


# -- the rest ----------------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_thousands_of_waiters_are_served_in_order_on_one_timer() -> None:
    """A long queue costs memory and patience, nothing else."""
    queue, waiters = Queue(RateLimiter()), soak(8_000)
    async with anyio.create_task_group() as tasks:
        for number in range(waiters):
            tasks.start_soon(queue.wait, number)
    assert queue.is_in_order()
    assert queue.times[-1] <= waiters / 0.99
    gc.collect()  # here, rather than inside another test's time


async def test_async_with_takes_one_place() -> None:
    """`async with limiter` paces your own requests, like other limiters, and lets errors out."""
    limiter = RateLimiter(per_minute=60, burst=2)
    for _ in range(2):
        assert limiter.has_capacity()
        async with limiter as entered:
            assert entered is limiter
    assert not limiter.has_capacity()
    with pytest.raises(LookupError):
        async with limiter:
            raise LookupError


async def test_has_capacity_is_false_while_somebody_waits() -> None:
    """A caller that asks first does not overtake those in line."""
    queue = Queue(RateLimiter())
    assert queue.limiter.has_capacity()
    await queue.use_up()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait)
        await anyio.sleep(1)
        assert not queue.limiter.has_capacity()
        await anyio.sleep(1)
        assert len(queue.turns) == 1
    assert not queue.limiter.has_capacity()
    await anyio.sleep(60)
    assert queue.limiter.has_capacity()


@pytest.mark.parametrize(
    ("argument", "options"),
    wrong(
        per_minute=[0, -1, float("inf"), float("nan"), 10**400, True, "60"],
        burst=[0, 1.5, True],
        window=[0, -60.0, float("nan")],
        jitter=[-0.1, float("inf")],
    ),
)
def test_a_limit_of_nonsense_is_refused(argument: str, options: dict[str, Any]) -> None:
    """A limiter refuses an impossible limit at once, and names the argument."""
    with pytest.raises(InvalidRequest) as caught:
        RateLimiter(**options)
    assert caught.value.argument == argument


async def test_the_defaults_are_the_contract_s_limit() -> None:
    """60 in any minute, ten at once (section 8)."""
    limiter = RateLimiter()
    assert (limiter.per_minute, limiter.burst, limiter.window, limiter.jitter) == (60, 10, 60, 0.5)
    assert limiter.usage().limit == 60


async def test_a_limit_may_be_as_low_as_you_like() -> None:
    """Less than one a minute too, one at a time, and without a reserve for a slow network."""
    for per_minute in (1, 0.5, 0.001):
        queue = Queue(RateLimiter(per_minute=per_minute, burst=1, jitter=0))
        for _ in range(3):
            await queue.wait()
        assert queue.times == pytest.approx([0, 60 / per_minute, 120 / per_minute])


@pytest.mark.parametrize(("per_minute", "jitter"), [(60, 0.5), (600, 0.05), (6, 0.5)])
def test_requests_keep_half_a_second_at_most_for_a_slow_network(per_minute: int, jitter: float) -> None:
    """By default a twentieth of the time in which the bucket fills, which costs no limit more than half a second."""
    assert RateLimiter(per_minute=per_minute).jitter == pytest.approx(jitter)
