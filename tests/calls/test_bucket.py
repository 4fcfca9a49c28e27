"""The bucket, as arithmetic, against a service written from the contract a second time (section 8)."""

import math
from collections import deque
from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mobilemoney_async.calls.bucket import Bucket, Past, Usage, patience
from mobilemoney_async.contract.endpoints import Priority

JITTER = 0.5


class StrictService:
    """Counts "60 a minute, bursts of 10" in every way that a service may, and returns the rejections.

    Exact: floats are fractions, so nothing is forgiven by rounding.
    """

    def __init__(self, per_minute: int = 60, burst: int = 10, window: int = 60) -> None:
        self._rate = Fraction(per_minute, 60)
        self._burst = burst
        self._window = window
        self._limit = per_minute * window // 60

    def rejections(self, arrivals: list[float], emptied: list[tuple[float, int]] | None = None) -> list[str]:
        """Return the readings that reject something; `emptied` holds times and the most that the bucket held then."""
        times = sorted(map(Fraction, arrivals))
        readings = {
            "bucket": self._overdraws(times, [(Fraction(at), left) for at, left in emptied or []]),
            "closed window": self._overfills(times),
            "fixed minutes": any(self._overfills_minute(times, Fraction(phase, 7)) for phase in range(0, 420, 60)),
        }
        return [name for name, rejects in readings.items() if rejects]

    def _overdraws(self, times: list[Fraction], emptied: list[tuple[Fraction, int]]) -> bool:
        tokens, last = Fraction(self._burst), Fraction(0)
        events = sorted([(at, 0, left) for at, left in emptied] + [(at, 1, 0) for at in times])
        for at, is_request, left in events:
            tokens, last = min(Fraction(self._burst), tokens + (at - last) * self._rate), at
            if is_request:
                tokens -= 1
            else:
                tokens = min(tokens, Fraction(left))
            if tokens < 0:
                return True
        return False

    def _overfills(self, times: list[Fraction]) -> bool:
        recent: deque[Fraction] = deque()
        for at in times:
            recent.append(at)
            while recent[0] < at - self._window:
                recent.popleft()
            if len(recent) > self._limit:
                return True
        return False

    def _overfills_minute(self, times: list[Fraction], phase: Fraction) -> bool:
        counts: dict[int, int] = {}
        for at in times:
            minute = int((at + phase) // self._window)
            counts[minute] = counts.get(minute, 0) + 1
        return max(counts.values(), default=0) > self._limit


def make_bucket(jitter: float = JITTER) -> Bucket:
    return Bucket(per_minute=60, burst=10, window=60, jitter=jitter)


def grant(bucket: Bucket, now: float) -> float:
    """Take the next place from `now` on, as early as the bucket allows, and return when."""
    at = max(now, bucket.ready_at())
    bucket.take(at)
    return at


gaps = st.one_of(st.just(0.0), st.floats(0, 0.1), st.floats(0, 90))
delays = st.one_of(st.just(0.0), st.just(JITTER), st.floats(0, JITTER))


@pytest.mark.slow
@given(st.lists(st.tuples(gaps, delays), max_size=150))
@example([(0.0, 0.0)] * 150)
@example([(0.0, JITTER)] * 60 + [(0.0, 0.0)] * 90)
@example([(0.0, JITTER)] * 10 + [(0.0, 0.0)] * 90)
@example([(0.0, JITTER), (0.0, 0.0)] * 75)
def test_no_reading_of_the_limit_rejects_a_request(steps: list[tuple[float, float]]) -> None:
    """Whenever requests come, and however much of the jitter each of them loses on its way, nothing is rejected."""
    bucket, now, arrivals = make_bucket(), 0.0, []
    for gap, delay in steps:
        now = grant(bucket, now + gap)
        arrivals.append(now + delay)

    assert StrictService().rejections(arrivals) == []


@pytest.mark.slow
@given(st.lists(st.tuples(gaps, st.floats(0, 0.025)), max_size=150))
def test_a_faster_service_is_met_by_a_shorter_window(steps: list[tuple[float, float]]) -> None:
    """A sandbox at twenty times the speed counts 60 in 3 s, and the same law holds."""
    bucket, now, arrivals = Bucket(per_minute=1200, burst=10, window=3, jitter=0.025), 0.0, []
    for gap, delay in steps:
        now = grant(bucket, now + gap / 20)
        arrivals.append(now + delay)

    assert StrictService(per_minute=1200, window=3).rejections(arrivals) == []


Operation = tuple[Literal["take", "undo", "hold", "hold and undo"], float, float]
kinds = st.sampled_from(["take", "take", "take", "undo", "hold", "hold and undo"])
operations = st.lists(st.tuples(kinds, gaps, delays), max_size=100)


@pytest.mark.slow
@given(operations)
@example([("take", 0.0, 0.0)] * 10 + [("hold and undo", 0.0, 0.0)] + [("take", 0.0, 0.0)] * 20)
@example([("hold", 5.0, 0.0)] * 3 + [("take", 0.0, 0.0)] * 70)
def test_taking_back_and_holding_keep_the_law(steps: list[Operation]) -> None:
    """After places were given back and a hold of the service, still nothing is rejected; a hold is for all requests."""
    bucket, now = make_bucket(), 0.0
    arrivals: list[float] = []
    holds: list[tuple[float, int]] = []
    for operation, seconds, delay in steps:
        if operation != "hold":
            now = grant(bucket, now + (seconds if operation == "take" else 0.0))
        if operation in {"hold", "hold and undo"}:
            bucket.hold(now + seconds)
            holds.append((now + seconds, len(arrivals)))
            assert bucket.ready_at() >= now + seconds
        if operation == "take":
            arrivals.append(now + delay)
        elif operation != "hold":
            bucket.undo()

    service = StrictService()
    assert service.rejections(arrivals) == []
    for until, before in holds:
        # Its answer took some time to us, so that it began to count a little earlier.
        assert service.rejections(arrivals[before:], [(until - 1e-6, 1)]) == []


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.sampled_from([None, None, 0.0, 0.3, 7.0]), st.integers(0, 9)),
        max_size=30,
    )
)
@example([(0.0, None, 9)] * 30)
@example([(0.0, 7.0, 0), (7.0, None, 2), (0.0, None, 3)])
def test_places_that_were_not_used_cost_nothing(steps: list[tuple[float, float | None, int]]) -> None:
    """Requests that give their places back at once delay no other, neither then nor later, also after a hold."""
    bucket, untouched, now = make_bucket(), make_bucket(), 0.0
    for gap, hold, extra in steps:
        now = grant(bucket, now + gap)
        untouched.take(now)
        if hold is not None:
            bucket.hold(now + hold)
            untouched.hold(now + hold)
        taken = 0
        while taken < extra and bucket.ready_at() <= now:
            bucket.take(now)
            taken += 1
        for _ in range(taken):
            bucket.undo()
        assert max(now, bucket.ready_at()) == pytest.approx(max(now, untouched.ready_at()))
    turns, expected = ([grant(each, now) for _ in range(20)] for each in (bucket, untouched))
    assert turns == pytest.approx(expected)


def test_a_new_bucket_is_full_and_has_no_past() -> None:
    """A limiter that is new knows of no request."""
    bucket = make_bucket()
    assert bucket.dump() == Past(grants=(), made_up=(), held_until=-math.inf, taken=0)
    assert bucket.ready_at() == bucket.last_at() == -math.inf
    assert bucket.usage(0.0) == Usage(granted=0, limit=60, window=60 + JITTER + 1e-6, history=0.0)


def test_the_last_request_is_the_last_that_counts() -> None:
    """One that was given back does not."""
    bucket = make_bucket()
    for at in (1.0, 2.0, 3.0, 4.0):
        bucket.take(at)
    bucket.undo()
    assert bucket.last_at() == 3.0


@pytest.mark.parametrize("steps", ["take take hold, undo undo", "take hold later undo, undo"])
def test_places_from_before_a_hold_have_nothing_to_give_back(steps: str) -> None:
    """The hold has emptied the bucket, whatever is given back; a place from after it counts once if it is."""
    bucket, held = make_bucket(), make_bucket()
    first, left = (each.split() for each in steps.split(", "))
    for each in (bucket, held):
        for at, step in enumerate(first):
            if step == "hold":
                each.hold(10.0)
            elif step == "undo":
                each.undo()
            else:
                each.take(10.0 if step == "later" else float(at))
    for _ in left:
        bucket.undo()
    assert bucket.dump().made_up == held.dump().made_up


def test_a_place_given_back_in_a_full_window_is_free_again() -> None:
    """Sixty in a minute, one given back: one more goes in that minute."""
    bucket, now = make_bucket(), 0.0
    for _ in range(60):
        now = grant(bucket, now)
    assert bucket.ready_at() > 60
    bucket.undo()
    assert bucket.ready_at() <= now


def test_a_shorter_hold_does_not_end_a_longer_one() -> None:
    bucket = make_bucket()
    bucket.hold(30.0)
    bucket.hold(10.0)
    assert bucket.ready_at() == 30.0


def test_the_same_hold_a_second_time_changes_nothing() -> None:
    """Two answers that ask for the same pause are one pause."""
    bucket = make_bucket()
    bucket.hold(30.0)
    bucket.take(30.0)
    before = bucket.dump()
    bucket.hold(30.0)
    assert bucket.dump() == before


@pytest.mark.parametrize("start", [-1000.0, 0.0, 1000.0])
def test_a_hold_of_a_new_bucket_ends_on_time(start: float) -> None:
    """Wherever the clock begins: one request goes at its end, then one a second."""
    bucket = make_bucket()
    bucket.hold(start + 0.3)
    assert [grant(bucket, start) for _ in range(3)] == pytest.approx([start + 0.3, start + 1.3, start + 2.3])


def test_a_hold_forgets_nothing_that_the_bucket_knew() -> None:
    """A hold shorter than the cost of the burst does not shorten that."""
    held, plain = make_bucket(), make_bucket()
    for bucket in (held, plain):
        for _ in range(10):
            bucket.take(0.0)
    held.hold(0.2)
    assert held.ready_at() >= plain.ready_at()


@pytest.mark.parametrize(("per_minute", "lookup", "bulk"), [(60, 9, 27), (600, 9.9, 29.7), (6, 90, 270)])
def test_on_a_slow_limit_the_lower_lanes_have_a_tenth_of_the_turns(per_minute: int, lookup: float, bulk: float) -> None:
    """A lookup and a poll have a turn every ten seconds, or every ten turns if that is longer; bulk work a third."""
    assert patience(per_minute) == {
        Priority.PAYMENT: float("inf"),
        Priority.LOOKUP: pytest.approx(lookup),
        Priority.POLL: pytest.approx(lookup),
        Priority.BULK: pytest.approx(bulk),
    }


def test_usage_counts_what_the_window_still_holds() -> None:
    """A request counts for the window and the jitter, after which its place is free."""
    bucket = make_bucket()
    for at in (0.0, 10.0):
        bucket.take(at)
    for now, granted in ((60 + JITTER, 2), (60 + JITTER + 0.001, 1), (70 + JITTER + 0.001, 0)):
        usage = bucket.usage(now)
        assert (usage.granted, usage.limit) == (granted, 60)
        assert usage.history == pytest.approx([0.0, now - 10, now][granted])


def test_a_request_counts_until_its_place_is_free() -> None:
    """To the moment: what `usage` counts and what `ready_at` allows are the same."""
    bucket = Bucket(per_minute=1, burst=1, window=60, jitter=JITTER)
    bucket.take(0.0)
    free_at = bucket.ready_at()
    assert bucket.usage(math.nextafter(free_at, 0)).granted == 1
    assert bucket.usage(free_at).granted == 0


def test_the_window_alone_may_be_the_limit() -> None:
    """A window in which less than one request would go lets one through, whatever the burst."""
    bucket = Bucket(per_minute=1, burst=2, window=30, jitter=0)
    assert bucket.usage(0.0).limit == 1
    assert [grant(bucket, 0.0) for _ in range(2)] == pytest.approx([0, 60])
