"""Pauses between the attempts of a call; `test_refusals` and `test_pipeline` show which calls are made again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import InvalidRequest, RetryPolicy
from tests.support.arguments import wrong

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 10**6),
    first_delay=st.floats(0, 1e9),
    factor=st.floats(1, 1e9),
    max_delay=st.floats(0, 1e9),
    max_retry_after=st.floats(0, 1e9),
)


@given(policy=policies, attempt=st.integers(1, 10**6), chance=st.floats(0, 1))
def test_pauses_grow_up_to_the_longest_and_are_shortened_by_half_at_most(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    """A pause is never longer than `max_delay` and never less than half of the pause without jitter."""
    full = policy.delay(attempt, 0.0)
    assert 0 <= full <= policy.max_delay
    assert policy.delay(attempt + 1, 0.0) >= full
    assert full / 2 <= policy.delay(attempt, chance) <= full


@pytest.mark.parametrize(
    ("argument", "options"),
    wrong(
        max_attempts=[0, 1.5, True],
        first_delay=[-1, "1"],
        factor=[0.5, float("nan"), True],
        max_delay=[float("inf")],
        max_retry_after=[float("nan")],
    ),
)
def test_a_policy_of_nonsense_is_refused(argument: str, options: dict[str, Any]) -> None:
    """A policy refuses an impossible value at once, and names the argument."""
    with pytest.raises(InvalidRequest) as caught:
        RetryPolicy(**options)
    assert caught.value.argument == argument


def test_a_policy_is_a_value() -> None:
    """Policies can be compared, shared and kept in settings."""
    assert RetryPolicy(max_attempts=2) == RetryPolicy(max_attempts=2)
    assert hash(RetryPolicy()) == hash(RetryPolicy())
