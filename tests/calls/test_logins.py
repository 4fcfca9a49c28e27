"""The state machine of logins, to the moment: when a token is renewed, when it ends, and when no login is made."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    ConnectionFailed,
    InvalidCredentials,
    InvalidToken,
    MobileMoneyError,
    RateLimitExceeded,
    Secret,
    ServerError,
    UnexpectedResponse,
)
from mobilemoney_async.calls.logins import LoginState

TOKEN, OTHER = Secret("token"), Secret("other")
REFUSED = InvalidCredentials("no", status_code=401)
FAILED = ConnectionFailed("x")


def before(moment: float) -> float:
    """Return the last time before a moment."""
    return math.nextafter(moment, -math.inf)


@pytest.mark.parametrize(
    ("lifetime", "renewed_at", "ended_at"),
    [
        (3600.0, 3540.0, 3600.0),
        (600.0, 540.0, 600.0),
        (500.0, 450.0, 500.0),
        (100.0, 90.0, 100.0),
        (13.0, 11.7, 13.0),
        (12.0, 10.8, 12.0),  # it lives for 10 s at least from its answer on, which came after 2 s
        (5.0, 10.8, 12.0),
        (0.5, 10.8, 12.0),
        (0.0, 3540.0, 3600.0),
        (-1.0, 3540.0, 3600.0),
        (1e9, 1e9 - 60, 1e9),
        (1e300, 1e9 - 60, 1e9),
    ],
)
def test_a_token_is_renewed_a_tenth_of_its_life_ahead_and_a_minute_at_most(
    lifetime: float, renewed_at: float, ended_at: float
) -> None:
    """Its life begins when the login was sent; one that claims less than no time has the contract's hour."""
    state = LoginState().logged_in(TOKEN, lifetime, began=0.0, now=2.0)
    assert (state.renew_at, state.expires_at) == pytest.approx((renewed_at, ended_at))
    assert (state.fresh(before(state.renew_at)), state.fresh(state.renew_at)) == (TOKEN, None)
    assert (state.valid(before(state.expires_at)), state.valid(state.expires_at)) == (TOKEN, None)


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (REFUSED, [10, 20, 40, 80, 160, 320, 640, 900, 900]),
        (FAILED, [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]),
        (ServerError("x", status_code=503), [0.25, 0.5]),
        (RateLimitExceeded("x", status_code=429), [0.25, 0.5]),
        (UnexpectedResponse("x", status_code=200), [0.25, 0.5]),
        (UnexpectedResponse("of another", status_code=200, path="$.user.email"), [0.25, 10, 20, 40, 80, 160, 320]),
    ],
)
def test_each_pause_is_twice_the_last_up_to_the_longest(error: MobileMoneyError, pauses: list[float]) -> None:
    """In it no login is made: each call that needs one gets a copy of the error, to the last moment."""
    state, now = LoginState(), 100.0
    for pause in pauses:
        state = state.failed(error, now)
        refusal = state.refusal(before(now + pause))
        assert type(refusal) is type(error) and refusal is not error
        assert state.refusal(now + pause) is None
        now += pause


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (RateLimitExceeded("x", status_code=429, retry_after=300), 300),
        (APIError("x", code="too_many_attempts", status_code=429, retry_after=300), 300),
        (APIError("x", code="too_many_attempts", status_code=429, retry_after=3), 10),
        (RateLimitExceeded("x", status_code=429, retry_after=10**8), 900),
        (ServerError("x", status_code=503, retry_after=300), 0.25),  # of a proxy, which asks it of payments too
    ],
)
def test_a_pause_lasts_for_what_a_refusal_asks(error: MobileMoneyError, pause: float) -> None:
    """A quarter of an hour at most; each call within it is asked to wait for the rest, not for all of it again."""
    state = LoginState().failed(error, 100.0)
    refusal = state.refusal(101.0 if pause > 1 else 100.0)
    assert isinstance(refusal, APIError) and refusal.retry_after == (pause - 1 if pause > 1 else pause)
    assert state.refusal(before(100.0 + pause)) is not None
    assert state.refusal(100.0 + pause) is None


@pytest.mark.parametrize(
    ("errors", "later", "pause"),
    [
        ((REFUSED, REFUSED), 0.0, 20.0),
        ((REFUSED, REFUSED), 899.9, 20.0),
        ((REFUSED, REFUSED), 900.0, 10.0),
        ((FAILED, FAILED), 0.4, 0.5),
        ((FAILED, FAILED), 0.5, 0.25),
        ((FAILED, REFUSED), 600.0, 10.0),
        ((REFUSED, FAILED), 600.0, 0.25),
    ],
)
def test_a_pause_is_short_again_after_a_while(
    errors: tuple[MobileMoneyError, MobileMoneyError], later: float, pause: float
) -> None:
    """A refusal of a quarter of an hour ago does not lengthen this one, nor a failure of twice its pause ago."""
    state = LoginState().failed(errors[0], 0.0)
    assert state.pause is not None
    now = state.pause.until + later
    state = state.failed(errors[1], now)
    assert state.refusal(before(now + pause)) is not None
    assert state.refusal(now + pause) is None


def test_a_refusal_after_a_failure_pauses_for_its_own_time() -> None:
    """And a failure after a refusal no longer than failures do."""
    state = LoginState().failed(FAILED, 0.0).failed(REFUSED, 0.25)
    assert state.refusal(before(10.25)) is not None and state.refusal(10.25) is None
    state = state.failed(FAILED, 10.25)
    assert state.refusal(before(30.25)) is not None and state.refusal(30.25) is None


def test_a_renewal_that_fails_leaves_the_token_until_its_end() -> None:
    """It is not tried again within the pause, and the token does not live longer for it."""
    state = LoginState().logged_in(TOKEN, 3600.0, began=0.0, now=0.0).failed(REFUSED, 3550.0)
    assert (state.fresh(before(3560.0)), state.fresh(3560.0), state.valid(3560.0)) == (TOKEN, None, TOKEN)
    assert state.failed(REFUSED, 3595.0).renew_at == 3600.0


@pytest.mark.parametrize(("later", "pauses"), [(1799.9, True), (1800.0, False), (3600.0, False)])
def test_new_tokens_that_are_refused_twice_within_half_an_hour_begin_a_pause(later: float, pauses: bool) -> None:
    """More logins would not help."""
    state = LoginState()
    for now in (100.0, 100.0 + later):
        state = state.logged_in(TOKEN, 3600.0, began=now, now=now).rejected(TOKEN, now, replacement=True)
        assert state.valid(now) is None
    assert isinstance(state.refusal(now), InvalidToken if pauses else type(None))


def test_only_the_newest_token_can_be_refused_and_only_a_replacement_counts() -> None:
    """A late refusal of an old token changes nothing; that of a token in long use begins no pause."""
    state = LoginState().logged_in(TOKEN, 3600.0, began=0.0, now=0.0)
    assert state.rejected(OTHER, 1.0, replacement=True) is state
    for now in (1.0, 2.0, 3.0):
        state = state.rejected(TOKEN, now, replacement=False).logged_in(TOKEN, 3600.0, began=now, now=now)
        assert state.refusal(now) is None


def test_a_suspected_token_is_renewed_once_in_a_quarter_of_an_hour() -> None:
    """A create's 401 that names no token costs no more logins than that, and an old token none."""
    state = LoginState().logged_in(TOKEN, 3600.0, began=0.0, now=0.0)
    assert state.suspected(OTHER, 1.0) is state
    state = state.suspected(TOKEN, 1.0)
    assert state.valid(1.0) is None and state.refusal(1.0) is None
    state = state.logged_in(OTHER, 3600.0, began=2.0, now=2.0)
    assert state.suspected(OTHER, before(901.0)) is state
    assert state.suspected(OTHER, 901.0).valid(901.0) is None


moments = st.floats(-100, 4000)


@given(st.floats(-1e6, 1e6).map(round), moments.map(round), moments.map(round), moments.map(round))
def test_a_state_is_the_same_on_every_clock(by: int, logged_in: int, failed: int, now: int) -> None:
    """Moved to a clock that is so far ahead it allows, refuses and ends the same at the same moments."""
    state = LoginState().logged_in(OTHER, 3600.0, began=logged_in, now=logged_in)
    state = state.rejected(OTHER, logged_in, replacement=True)
    state = state.logged_in(TOKEN, 3600.0, began=logged_in, now=logged_in).failed(REFUSED, failed)
    there = state.moved(by)
    refused_here = state.rejected(TOKEN, now, replacement=True)
    refused_there = there.rejected(TOKEN, now + by, replacement=True)
    for here, other in ((state, there), (refused_here, refused_there)):
        assert here.fresh(now) == other.fresh(now + by)
        assert here.valid(now) == other.valid(now + by)
        assert type(here.refusal(now)) is type(other.refusal(now + by))
    assert LoginState().moved(by).pause is None
