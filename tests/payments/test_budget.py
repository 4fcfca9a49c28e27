"""One budget for many processes, as arithmetic: simulated processes over one row of text."""

import itertools
import json
import math
import random
from collections import Counter, deque

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mobilemoney_async import Priority
from mobilemoney_async.sharing.budget import HORIZON, InLine, Limit, Reservation, ReservationRequest, reserve
from tests.calls.test_bucket import StrictService
from tests.support.scale import examples

PAYMENT, LOOKUP, POLL, BULK = Priority
JITTER = 0.5
CONTRACT = Limit(per_minute=60, burst=10, window=60, jitter=JITTER)
FAST = Limit(per_minute=1200, burst=10, window=60, jitter=0.05)
START = 1_790_000_000.0  # as PostgreSQL counts


class Row:
    """The row that all share."""

    def __init__(self) -> None:
        self.text: str | None = None

    def ask(
        self,
        now: float,
        number: int = 1,
        lane: Priority = PAYMENT,
        *,
        process: str = "a",
        limit: Limit = CONTRACT,
        waited: float = 0.0,
        hold: float = 0.0,
        delay: float = 0.0,
    ) -> Reservation:
        """Ask for some in one lane."""
        request = ReservationRequest(
            process=process,
            limit=limit,
            waiting={lane: InLine(number, waited)},
            hold=hold,
            delay=delay,
        )
        self.text, reservation = reserve(self.text, request, now)
        return reservation


@attrs.define(eq=False)
class Member:
    """Process of the fleet in which so many requests wait at all times, in one lane."""

    name: str
    lane: Priority
    number: int = 50
    born_at: float = START
    dies_at: float = math.inf
    slots: list[float] = attrs.field(factory=list)
    ask_at: float = -math.inf
    waiting: deque[float] = attrs.field(init=False)

    @waiting.default
    def _everybody(self) -> deque[float]:
        return deque([self.born_at] * self.number)


class Fleet:
    """Simulation of processes that use their slots, ask again at their time, and die.

    A member takes up to 20 ms for a transaction, and looks at a clock that is up to 2 ms wrong.
    """

    def __init__(self, limit: Limit, *members: Member, seed: int = 0) -> None:
        self.limit = limit
        self.members = members
        self.random = random.Random(seed)
        self.row = Row()
        self.grants: list[tuple[float, Member]] = []

    def times(self, since: float = START) -> list[float]:
        return [at for at, _ in self.grants if at >= since]

    def shares(self, since: float = START) -> Counter[str]:
        return Counter(member.name for at, member in self.grants if at >= since)

    def run(self, until: float) -> None:
        now = START
        while True:
            at, member = min(((self._next(member, now), member) for member in self.members), key=lambda each: each[0])
            if at > until:
                return
            now = at
            if member.slots:
                self.grants.append((member.slots.pop(0), member))
                member.waiting.popleft()
                member.waiting.append(now)
            else:
                self._ask(member, now)

    def _next(self, member: Member, now: float) -> float:
        at = max(now, member.born_at, member.slots[0] if member.slots else member.ask_at)
        return at if at < member.dies_at else math.inf

    def _ask(self, member: Member, now: float) -> None:
        request = ReservationRequest(
            process=member.name,
            limit=self.limit,
            waiting={member.lane: InLine(member.number, now - member.waiting[0])},
            delay=0.01,
        )
        self.row.text, reservation = reserve(self.row.text, request, now + self.random.uniform(-0.002, 0.002))
        member.slots = list(reservation.slots)
        took = self.random.uniform(0.001, 0.02)
        member.ask_at = now + took if reservation.ask_again_at is None else max(now + took, reservation.ask_again_at)


def rejections(times: list[float], limit: Limit = CONTRACT) -> list[str]:
    service = StrictService(int(limit.per_minute), limit.burst, int(limit.window))
    return service.rejections([at - START for at in times])


# -- the law -----------------------------------------------------------------------------------------------------------


gaps = st.one_of(st.just(0.0), st.floats(0, 0.3), st.floats(0, 90))
delays = st.one_of(st.just(0.0), st.just(JITTER), st.floats(0, JITTER))
steps = st.tuples(
    gaps,
    st.integers(0, 3),  # the process
    st.integers(1, 12),  # for how many
    st.sampled_from(Priority),
    st.one_of(st.just(0.0), st.floats(0, 5)),  # hold
    st.integers(0, 5),  # every so many-th slot is not used
    delays,
)


@pytest.mark.slow
@given(st.lists(steps, max_size=60))
@settings(max_examples=examples(200))
@example([(0.0, 0, 12, PAYMENT, 0.0, 0, 0.0), (0.2, 1, 12, BULK, 0.0, 2, JITTER)] * 30)
@example([(0.9, 0, 12, PAYMENT, 0.0, 1, 0.0), (0.2, 0, 12, PAYMENT, 0.0, 3, JITTER)] * 30)
@example([(0.5, number % 4, 12, PAYMENT, 0.0, 2, 0.0) for number in range(60)])
@example([(1.0, 0, 12, PAYMENT, 1.5 * (number == 5), 3, 0.0) for number in range(60)])
def test_no_interleaving_of_processes_breaks_the_limit(
    steps: list[tuple[float, int, int, Priority, float, int, float]],
) -> None:
    """Processes ask at any time, use the slots late or not at all: no reading of the limit rejects a request."""
    row, now, last = Row(), START, START
    arrivals: list[float] = []
    for gap, who, number, lane, hold, skipped, delay in steps:
        now += gap
        reservation = row.ask(now, number, lane, process=str(who), hold=hold)
        assert len(reservation.slots) <= number
        assert (reservation.ask_again_at is None) == (len(reservation.slots) == number)
        assert reservation.ask_again_at is None or reservation.ask_again_at > now
        for place, at in enumerate(reservation.slots):
            assert max(now + hold, last) - 1e-6 <= at <= now + HORIZON + 1e-6
            last = at
            if not skipped or place % skipped != skipped - 1:
                arrivals.append(at + delay)
    assert rejections(arrivals) == []


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_payments_of_one_process_go_before_bulk_work_of_another() -> None:
    """Bulk work yields to payments of any process, and gets its turn every half minute."""
    fleet = Fleet(CONTRACT, Member("bulk", BULK), Member("payments", PAYMENT, born_at=START + 5))
    fleet.run(START + 605)
    shares = fleet.shares(START + 6)
    assert rejections(fleet.times()) == []
    assert shares["payments"] >= 0.9 * 600
    assert 15 <= shares["bulk"] <= 25


def test_processes_of_one_lane_send_one_after_the_other() -> None:
    """At a request a second a turn is one request: nobody waits for two of another process."""
    fleet = Fleet(CONTRACT, Member("a", LOOKUP), Member("b", LOOKUP))
    fleet.run(START + 90)
    names = [member.name for at, member in fleet.grants if at >= START + 20]
    assert len(names) > 50
    assert all(one != other for one, other in itertools.pairwise(names))


@pytest.mark.slow
def test_every_lane_moves_when_each_is_full_in_another_process() -> None:
    """Nothing starves: lookups and polls get a turn every ten seconds or so, bulk work every thirty."""
    fleet = Fleet(CONTRACT, *(Member(lane.name, lane) for lane in Priority))
    fleet.run(START + 600)
    shares = fleet.shares()
    assert shares["PAYMENT"] > 400
    assert shares["LOOKUP"] >= 45
    assert shares["POLL"] >= 45
    assert shares["BULK"] >= 15


@pytest.mark.slow
def test_a_payment_waits_for_what_is_reserved_and_no_longer() -> None:
    """A payment that comes while others saturate the limit with bulk work waits a third of a second at most."""
    for seed in range(20):
        born_at = START + 5 + seed / 17
        payment = Member("payment", PAYMENT, 1, born_at=born_at)
        fleet = Fleet(FAST, *(Member(str(each), BULK) for each in range(3)), payment, seed=seed)
        fleet.run(born_at + 2)
        first = next(at for at, member in fleet.grants if member is payment)
        assert first <= born_at + HORIZON + 0.1


# -- processes that die ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lane", [PAYMENT, POLL])
def test_a_process_that_dies_takes_at_most_what_it_reserved(lane: Priority) -> None:
    """Two of four processes are killed: the others go on within two turns, and use the slots of the two."""
    for seed in range(10):
        died_at = START + 3 + seed / 13
        victims = [Member(f"victim {each}", lane, dies_at=died_at) for each in range(2)]
        survivors = [Member(f"survivor {each}", POLL) for each in range(2)]
        fleet = Fleet(FAST, *victims, *survivors, seed=seed)
        fleet.run(died_at + 12)
        after = fleet.times(died_at)
        assert max(later - sooner for sooner, later in itertools.pairwise([died_at, *after])) <= HORIZON + 2 * 0.2 + 0.1
        assert len(after) >= 0.95 * 12 * 20
        assert rejections(fleet.times(), FAST) == []
        assert all("survivor" in name for name in json.loads(fleet.row.text or "")["processes"])


def test_a_process_that_dies_behind_others_leaves_the_budget() -> None:
    """One whose turn never came is forgotten too, soon after the time at which it would have asked again."""
    living = [Member(f"living {each}", PAYMENT) for each in range(2)]
    fleet = Fleet(FAST, *living, *(Member(f"dead {each}", BULK, dies_at=START + 3) for each in range(5)))
    fleet.run(START + 2)
    assert sum("dead" in name for name in json.loads(fleet.row.text or "")["processes"]) == 5
    fleet.run(START + 12)  # bulk work would go first after half a minute
    assert all("living" in name for name in json.loads(fleet.row.text or "")["processes"])


# -- holds, clocks, limits that differ ---------------------------------------------------------------------------------


def test_slots_lie_behind_the_time_that_the_transaction_takes() -> None:
    """A slow database costs time, not slots that are over when they are known."""
    assert Row().ask(START, 3, delay=2.5).slots == [START + 2.5] * 3


@pytest.mark.slow
@given(ahead=st.floats(0, 1e6), steps=st.lists(st.integers(0, 10_000_000), max_size=5))
@settings(max_examples=examples(200))
@example(ahead=64_803.28491749, steps=[20_000_000])
def test_a_place_that_is_free_is_free_now(ahead: float, steps: list[int]) -> None:
    """On a clock that is ahead of the loop's: once the loop's times are on the grid, no request waits to be on it."""
    row, now = Row(), 0.0
    now = row.ask(now + ahead).slots[0] - ahead
    for step in steps:
        now += step / 1_000_000
        assert row.ask(now + ahead).slots[0] - ahead - now < 1e-8


@pytest.mark.parametrize("back", [5.0, 3600.0, START - 10])
def test_a_clock_that_was_set_back_stalls_nobody(back: float) -> None:
    """After a reboot the host's clock restarts: the budget goes on as if no time had passed, which is safe."""
    row = Row()
    for second in range(60):
        row.ask(START + second, 3, process="a" if second % 2 else "b")
    now = START + 60 - back
    times = [at for second in range(70) for at in row.ask(now + second).slots]
    assert len(times) >= 55
    assert rejections([START + at - now for at in times]) == []


def test_a_clock_that_is_a_little_behind_moves_nothing() -> None:
    """Two processes with clocks some milliseconds apart gain nothing, however often they take turns."""
    row = Row()
    times: list[float] = []
    for tick in range(700):
        now = START + tick / 7
        times += row.ask(now - 0.005 * (tick % 2), 12, process=str(tick % 2)).slots
    assert rejections(times) == []


def test_of_two_limits_the_stricter_is_kept_while_it_is_asked_for() -> None:
    """A fleet that is half configured for more is paced by the lower limit, and by the new one a window later."""
    row = Row()
    times: list[float] = []
    double = attrs.evolve(CONTRACT, per_minute=120, burst=20)
    for second in range(200):
        times += row.ask(START + second, 5, process="new", limit=double).slots
        if second < 100:
            times += row.ask(START + second + 0.5, 5, process="old").slots
    assert rejections([at for at in times if at < START + 160]) == []
    assert len([at for at in times if at >= START + 170]) > 45
    assert rejections(times, double) == []


def test_another_limit_begins_with_nothing_in_hand() -> None:
    """What the service's bucket holds under it is unknown: one request goes, then one a second."""
    row = Row()
    row.ask(START, limit=FAST)
    assert len(row.ask(START + 1, 10).slots) == 1
    assert len(row.ask(START + 2.01, 10).slots) == 1


def test_requests_under_another_limit_count() -> None:
    """The service counted them: a merchant who lowers the limit has used up that minute."""
    row = Row()
    for number in range(60):
        row.ask(START + number / 20, limit=FAST)
    reservation = row.ask(START + 10)
    assert (reservation.slots, reservation.bucket.usage(START + 10).granted) == ([], 60)


def test_another_limit_does_not_end_a_hold() -> None:
    """The service asked all for it, whatever they believe the limit to be."""
    row = Row()
    row.ask(START, limit=FAST, hold=30.0)
    assert row.ask(START + 1).slots == []
    assert row.ask(START + 29.7).slots == []
    assert row.ask(START + 29.8).slots == [START + 30]


@pytest.mark.parametrize(("hold", "slots"), [(HORIZON, 1), (HORIZON + 0.001, 0)])
def test_slots_are_reserved_up_to_the_horizon(hold: float, slots: int) -> None:
    """A quarter of a second ahead, and no more: what is reserved is lost if its process dies."""
    assert len(Row().ask(START, hold=hold).slots) == slots


def test_the_time_of_the_row_never_goes_back() -> None:
    """A process whose clock is a little behind is not served as if it had come before the others."""
    row = Row()
    for now in (START, START - 0.9, START - 0.5):
        row.ask(now)
        assert json.loads(row.text or "")["at"] == START


@pytest.mark.slow
def test_the_row_stays_small() -> None:
    """A budget of 1,200 a minute is as long as its requests of a minute, whatever processes have come and gone."""
    fleet = Fleet(FAST, *(Member(str(each), BULK, 9, dies_at=START + 2 * each) for each in range(40)))
    fleet.run(START + 75)
    assert len(fleet.row.text or "") < 25_000
