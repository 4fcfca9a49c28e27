import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async.sandbox.behaviour import RateLimit, RateLimitReading

READINGS: list[RateLimitReading] = ["both", "bucket", "window", "fixed"]


def accepted(reading: RateLimitReading | None, times: list[float], speed: float = 1.0) -> list[float]:
    limit = RateLimit(speed)
    passed = []
    for now in times:
        if not limit.wait(reading, now):
            limit.use(now)
            passed.append(now)
    return passed


def test_the_bucket_lets_ten_pass_at_once_and_then_one_a_second() -> None:
    assert accepted("bucket", [0.0] * 12) == [0.0] * 10
    assert len(accepted("bucket", [0.0] * 10 + [0.5, 1.0, 1.0, 2.0])) == 12


def test_the_window_lets_sixty_pass_and_then_none_until_the_first_is_a_minute_old() -> None:
    times = [0.0] * 61 + [59.9, 60.0]
    assert accepted("window", times) == [0.0] * 60 + [60.0]


def test_the_strictest_reading_is_both() -> None:
    """A full bucket would let 70 pass in its first minute; the window stops it at 60."""
    every_half_second = [step / 2 for step in range(120)]
    assert len(accepted("bucket", every_half_second)) == 69
    assert len(accepted("both", every_half_second)) == 60


def test_fixed_minutes_start_anew() -> None:
    assert accepted("fixed", [59.0] * 61 + [60.0] * 61) == [59.0] * 60 + [60.0] * 60
    limit = RateLimit()
    for _ in range(60):
        limit.use(45.0)
    assert limit.wait("fixed", 45.0) == 15.0


def test_no_limit_lets_all_pass() -> None:
    assert len(accepted(None, [0.0] * 500)) == 500


@pytest.mark.parametrize("reading", READINGS)
def test_speed_divides_every_wait(reading: RateLimitReading) -> None:
    slow, fast = RateLimit(1), RateLimit(20)
    for _ in range(60):
        slow.use(0.0)
        fast.use(0.0)
    assert slow.wait(reading, 0.0) == pytest.approx(20 * fast.wait(reading, 0.0))


@given(st.lists(st.floats(0, 200), max_size=300).map(sorted))
def test_no_minute_has_more_than_sixty(times: list[float]) -> None:
    passed = accepted("both", times)
    for first, sixty_first in zip(passed, passed[60:], strict=False):
        assert sixty_first - first >= 60 - 1e-5


@given(st.lists(st.floats(0, 200), max_size=300).map(sorted))
def test_obeying_the_wait_is_enough(times: list[float]) -> None:
    limit = RateLimit()
    clock = 0.0
    for now in times:
        clock = max(clock, now)
        clock += limit.wait("both", clock)
        assert limit.wait("both", clock) == 0.0
        limit.use(clock)
