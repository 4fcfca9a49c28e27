"""Retry table: which calls may be sent again, and that no policy bends it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    AuthenticationError,
    ConnectionFailed,
    Effect,
    InvalidCredentials,
    InvalidRequest,
    InvalidToken,
    InvalidTransactionId,
    MobileMoneyError,
    PermissionDenied,
    RateLimitExceeded,
    RequestTimeout,
    RetryPolicy,
    ServerError,
    TokenExpired,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.calls.retry import ACTIONS, Action, Failure, classify, decide
from tests.support.arguments import wrong

READ, SESSION, MONEY = Effect


def unclear(kind: type[APIError], status_code: int) -> APIError:
    """Return an error that does not prove a refusal."""
    error = kind("x", status_code=status_code, is_certain=False)
    error.outcome = "unknown"
    return error


ERRORS: dict[Failure, list[MobileMoneyError]] = {
    Failure.NOT_SENT: [ConnectionFailed("x", outcome="not_sent"), RequestTimeout("x", outcome="not_sent")],
    Failure.RATE_LIMITED: [RateLimitExceeded("x", status_code=429, retry_after=3.0)],
    Failure.TOKEN: [InvalidToken("x", status_code=401), TokenExpired("x", status_code=401)],
    Failure.STATUS_401: [
        AuthenticationError("x", status_code=401, is_certain=False),
        InvalidToken("x", status_code=401, is_certain=False),
    ],
    Failure.STATUS_429: [
        APIError("x", status_code=429, retry_after=3.0, is_certain=False),
        RateLimitExceeded("x", status_code=429, is_certain=False),
    ],
    Failure.NO_ANSWER: [
        ConnectionFailed("x"),
        RequestTimeout("x"),
        UnexpectedResponse("x", status_code=200),
        ServerError("x", status_code=500),
    ],
    Failure.REFUSED: [
        APIError("x", status_code=400),
        APIError("x", status_code=400, is_certain=False),
        PermissionDenied("x", status_code=401),
        InvalidCredentials("x", status_code=401),
        PermissionDenied("x", status_code=403),
        TransactionNotFound("x", status_code=404),
        InvalidTransactionId("x", status_code=400),
        InvalidRequest("x", argument="x"),
    ],
    Failure.UNCLEAR: [unclear(APIError, 409), unclear(TransactionNotFound, 401), unclear(RateLimitExceeded, 429)],
}

# The table of the design, a second time.
TABLE = {
    Failure.NOT_SENT: (Action.RETRY, Action.RETRY, Action.RETRY),
    Failure.RATE_LIMITED: (Action.HOLD_AND_RETRY,) * 3,
    Failure.TOKEN: (Action.RENEW_AND_REPLAY,) * 3,
    Failure.STATUS_401: (Action.RENEW_AND_REPLAY, Action.RAISE, Action.RENEW_AND_RAISE),
    Failure.STATUS_429: (Action.HOLD_AND_RETRY, Action.RAISE, Action.HOLD_AND_RAISE),
    Failure.NO_ANSWER: (Action.RETRY, Action.RAISE, Action.RAISE_UNKNOWN),
    Failure.REFUSED: (Action.RAISE,) * 3,
    Failure.UNCLEAR: (Action.RAISE, Action.RAISE, Action.RAISE_UNKNOWN),
}


def decide_on(error: MobileMoneyError, effect: Effect = READ, **given: Any) -> Any:
    arguments: dict[str, Any] = {
        "bearer": True,
        "policy": RetryPolicy(),
        "attempt": 1,
        "renewed": False,
        "chance": 0.0,
        **given,
    }
    return decide(error, effect=effect, **arguments)


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("effect", Effect)
def test_every_failure_of_every_kind_of_call_has_one_answer(failure: Failure, effect: Effect) -> None:
    """The next step after a failure follows from its point and from the effect of the call alone."""
    expected = dict(zip(Effect, TABLE[failure], strict=True))[effect]
    assert ACTIONS[failure, effect] is expected
    for error in ERRORS[failure]:
        assert classify(error, bearer=True) is failure
        assert decide_on(error, effect).action is expected


def test_the_table_has_no_other_rows() -> None:
    assert len(ACTIONS) == len(Failure) * len(Effect)


@pytest.mark.parametrize("error", [*ERRORS[Failure.TOKEN], *ERRORS[Failure.STATUS_401]])
def test_a_token_error_without_a_token_is_a_refusal(error: MobileMoneyError) -> None:
    """A login that gets "invalid token" is refused; there is no token to renew."""
    assert classify(error, bearer=False) is Failure.REFUSED


policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 10**6),
    first_delay=st.floats(0, 1e9),
    factor=st.floats(1, 1e9),
    max_delay=st.floats(0, 1e9),
    max_retry_after=st.floats(0, 1e9),
)
chances = st.floats(0, 1)
errors = st.sampled_from([error for group in ERRORS.values() for error in group])


@given(error=errors, policy=policies, attempt=st.integers(1, 10**6), renewed=st.booleans(), chance=chances)
def test_no_policy_sends_money_again_that_may_have_arrived(error: MobileMoneyError, **given: Any) -> None:
    """Whatever the settings, a create is only repeated after a failure that proves it was not processed."""
    action = decide_on(error, MONEY, **given).action
    if action in {Action.RETRY, Action.HOLD_AND_RETRY, Action.RENEW_AND_REPLAY}:
        assert error.outcome in {"not_sent", "refused"}
        assert classify(error, bearer=True) in {Failure.NOT_SENT, Failure.RATE_LIMITED, Failure.TOKEN}


@pytest.mark.parametrize(
    ("failure", "last"),
    [
        (Failure.NOT_SENT, Action.RAISE),
        (Failure.NO_ANSWER, Action.RAISE),
        (Failure.RATE_LIMITED, Action.HOLD_AND_RAISE),
        (Failure.STATUS_429, Action.HOLD_AND_RAISE),
    ],
)
def test_the_last_attempt_is_the_last(failure: Failure, last: Action) -> None:
    """`max_attempts` counts attempts, not repetitions."""
    for error in ERRORS[failure]:
        assert decide_on(error, attempt=3).action in {Action.RETRY, Action.HOLD_AND_RETRY}
        assert decide_on(error, attempt=4).action is last
        assert decide_on(error, attempt=1, policy=RetryPolicy(max_attempts=1)).action is last


@pytest.mark.parametrize("error", [*ERRORS[Failure.TOKEN], *ERRORS[Failure.STATUS_401]])
def test_a_renewal_is_outside_the_retry_budget_and_happens_once(error: MobileMoneyError) -> None:
    """Even without any retries, a token that ran out is renewed once; a second refusal is final."""
    policy = RetryPolicy(max_attempts=1)
    assert decide_on(error, policy=policy).action is Action.RENEW_AND_REPLAY
    assert decide_on(error, policy=policy, renewed=True).action is Action.RENEW_AND_RAISE


@given(policy=policies, attempt=st.integers(1, 10**6), chance=chances)
def test_pauses_grow_up_to_the_longest_and_are_shortened_by_half_at_most(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    """A pause is never longer than `max_delay` and never less than half of the pause without jitter."""
    full = policy.delay(attempt, 0.0)
    assert 0 <= full <= policy.max_delay
    assert policy.delay(attempt + 1, 0.0) >= full
    assert full / 2 <= policy.delay(attempt, chance) <= full


def test_the_default_pauses() -> None:
    """Half a second, doubled each time, 8 s at most."""
    assert [RetryPolicy().delay(attempt, 0.0) for attempt in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert RetryPolicy().delay(1, 1.0) == 0.25


def test_a_retry_pauses_and_a_replay_does_not() -> None:
    assert decide_on(ERRORS[Failure.NO_ANSWER][0], attempt=2).pause == 1.0
    assert decide_on(ERRORS[Failure.TOKEN][0]).pause == 0.0
    assert decide_on(ERRORS[Failure.NO_ANSWER][0], MONEY).pause == 0.0


@pytest.mark.parametrize(
    ("retry_after", "hold"),
    [(None, 0.5), (0.0, 0.5), (3.0, 3.0), (120.0, 120.0)],
)
def test_retry_after_is_obeyed_by_the_whole_limiter(retry_after: float | None, hold: float) -> None:
    """The service's word, but never less than our own pause, since one that answers 0 would be asked in a circle."""
    decision = decide_on(RateLimitExceeded("x", status_code=429, retry_after=retry_after), MONEY)
    assert (decision.action, decision.hold) == (Action.HOLD_AND_RETRY, hold)


def test_a_retry_after_beyond_patience_ends_the_call_at_once_and_still_holds_the_others() -> None:
    """The caller gets the error at once; its other calls wait for the limiter."""
    decision = decide_on(RateLimitExceeded("x", status_code=429, retry_after=121.0))
    assert (decision.action, decision.hold) == (Action.HOLD_AND_RAISE, 120.0)


@pytest.mark.parametrize("error", [*ERRORS[Failure.STATUS_429], *ERRORS[Failure.RATE_LIMITED]])
def test_only_the_code_of_the_contract_sends_money_again_after_a_429(error: APIError) -> None:
    """The limiter holds in both cases, for as long as the service asks."""
    decision = decide_on(error, MONEY)
    assert decision.action is (Action.HOLD_AND_RETRY if error.is_certain else Action.HOLD_AND_RAISE)
    assert decision.hold == (error.retry_after or 0.5)


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("code", [None, "RATE_LIMIT_EXCEEDED"])
def test_a_login_that_was_rejected_for_the_rate_is_made_again_for_any_call(code: str | None, effect: Effect) -> None:
    """The call itself was not sent, so a create may wait and go on."""
    error = RateLimitExceeded("x", status_code=429, code=code, retry_after=3.0, is_certain=code is not None)
    error.outcome = "not_sent"
    assert decide_on(error, effect).action is Action.HOLD_AND_RETRY
    refused = AuthenticationError("x", status_code=401, is_certain=False)
    refused.outcome = "not_sent"
    assert decide_on(refused, effect).action is Action.RAISE


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
