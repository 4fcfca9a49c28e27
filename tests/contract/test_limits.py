"""The numbers of the contract, and the polling advice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import InvalidRequest, Schedule
from mobilemoney_async.contract import limits


def test_the_numbers_are_the_contract_s() -> None:
    """The numbers are those of section 8."""
    assert (limits.REQUESTS_PER_MINUTE, limits.BURST, limits.POLLING_INTERVAL, limits.PAGE_SIZE_MAX) == (
        60,
        10,
        10,
        100,
    )


def test_the_default_schedule_is_the_contract_s_advice() -> None:
    """1 second, growing by 1.5, capped at 30 (section 6)."""
    delays = [Schedule().delay(look) for look in range(12)]
    assert delays[:5] == [1, 1.5, 2.25, 3.375, 5.0625]
    assert delays[8] == 1.5**8 < 30
    assert delays[9:] == [30, 30, 30]


@given(
    st.floats(min_value=1e-3, max_value=1e6),
    st.floats(min_value=1, max_value=1e3),
    st.floats(min_value=1e-3, max_value=1e6),
    st.integers(min_value=0, max_value=10**9),
)
def test_pauses_never_shrink_and_never_exceed_the_cap(first: float, factor: float, cap: float, look: int) -> None:
    """Also after a billion looks, where the power no longer fits a float."""
    schedule = Schedule(first=first, factor=factor, cap=cap)
    assert 0 < schedule.delay(look) <= schedule.delay(look + 1) <= cap


@pytest.mark.slow
def test_the_power_that_overflows_is_the_cap() -> None:
    assert Schedule(factor=10).delay(10**6) == 30


@pytest.mark.parametrize("name", ["first", "cap"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "1", None])
def test_a_pause_is_a_positive_number_of_seconds(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Schedule(**{name: value})
    assert caught.value.argument == name


@pytest.mark.parametrize("value", [0.99, 0, -1, float("nan"), float("inf"), True, "2", None])
def test_pauses_do_not_shrink(value: Any) -> None:
    """A factor below 1 would end in polling without a pause."""
    with pytest.raises(InvalidRequest, match=r"^factor must be a number of at least 1, not "):
        Schedule(factor=value)
