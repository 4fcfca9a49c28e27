"""Retry table: which failed call may be sent again. Pure: time and randomness are arguments.

Invariant: a MONEY call is repeated only after a failure that proves it was not processed. No setting changes that.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import attrs

from mobilemoney_async.contract.endpoints import Effect
from mobilemoney_async.contract.limits import check_factor, growing_pause
from mobilemoney_async.errors import (
    APIError,
    InvalidToken,
    MobileMoneyError,
    RateLimitExceeded,
    ServerError,
    TokenExpired,
    TransportError,
    UnexpectedResponse,
)
from mobilemoney_async.values import require_integer, require_seconds

# Of the limiter, seconds, unless a policy waits for longer: a wrong answer may ask for years.
_LONGEST_HOLD = 120.0


class Failure(enum.Enum):
    """Point at which a call failed, which alone decides whether it may be sent again."""

    NOT_SENT = "provably not sent"
    RATE_LIMITED = "rejected before processing, for the rate"
    TOKEN = "rejected before processing, for the token"  # noqa: S105 (not a token)
    STATUS_401 = "HTTP 401 without a code of the contract"
    TOLD_TO_WAIT = "an error that asks to wait, and is not the contract's for it: without its code, or a proxy's status"
    NO_ANSWER = "sent, but no usable answer"
    REFUSED = "refused by the service, for certain or as far as is known"
    UNCLEAR = "an error that does not prove a refusal"


class Action(enum.Enum):
    """Next step after a failed attempt."""

    RETRY = enum.auto()
    HOLD_AND_RETRY = enum.auto()
    HOLD_AND_RAISE = enum.auto()
    RENEW_AND_REPLAY = enum.auto()
    RENEW_AND_RAISE = enum.auto()  # later calls renew the token
    RAISE = enum.auto()  # of money without a certain result, as `OutcomeUnknown`


ACTIONS: dict[Failure, dict[Effect, Action]] = {
    Failure.NOT_SENT: dict.fromkeys(Effect, Action.RETRY),
    Failure.RATE_LIMITED: dict.fromkeys(Effect, Action.HOLD_AND_RETRY),
    Failure.TOKEN: dict.fromkeys(Effect, Action.RENEW_AND_REPLAY),
    # A session's may be about the one-time password.
    Failure.STATUS_401: {Effect.READ: Action.RENEW_AND_REPLAY, Effect.MONEY: Action.RENEW_AND_RAISE},
    Failure.TOLD_TO_WAIT: {Effect.READ: Action.HOLD_AND_RETRY, Effect.MONEY: Action.HOLD_AND_RAISE},
    Failure.NO_ANSWER: {Effect.READ: Action.RETRY},
}
"""Next step after each failure, by the effect of the call; after all others the error is raised."""


def classify(error: MobileMoneyError, *, bearer: bool) -> Failure:
    """Return the point at which a call failed.

    Args:
        error: The attempt's error.
        bearer: Whether the call carries the token: without one, a token error is a refusal like any other.
    """
    match error:
        case (
            APIError(code="RATE_LIMIT_EXCEEDED", outcome="unknown")  # of a create, which may have been processed
            | APIError(status_code=429, outcome="refused", is_certain=False)
        ):
            return Failure.TOLD_TO_WAIT
        case TransportError() | UnexpectedResponse() | ServerError():
            # If it was the login that gave no usable answer, the call itself was not sent.
            return Failure.NOT_SENT if error.outcome == "not_sent" else Failure.NO_ANSWER
        case APIError(outcome="not_sent"):  # the login was refused
            return Failure.RATE_LIMITED if isinstance(error, RateLimitExceeded) else Failure.REFUSED
        case APIError(outcome="unknown"):
            return Failure.UNCLEAR
        case RateLimitExceeded(is_certain=True):
            return Failure.RATE_LIMITED
        case InvalidToken(is_certain=True) | TokenExpired() if bearer:
            return Failure.TOKEN
        case APIError(status_code=401, is_certain=False) if bearer:
            return Failure.STATUS_401
        case _:
            return Failure.REFUSED


def _check_attempts(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    require_integer(attribute.name, value, 1)


def _check_pause(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    require_seconds(attribute.name, value, allow_zero=True)


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Number of attempts of a call, and the pauses between them. Whether a call may be sent again is not a setting.

    Args:
        max_attempts: Attempts in all, at least 1. The one replay after a token renewal is not counted.
        first_delay: The pause after the first failed attempt, seconds.
        factor: The ratio of each pause to the one before, at least 1.
        max_delay: The longest pause, seconds. Each pause is shortened at random by up to half.
        max_retry_after: The longest ``retry_after`` of the service that is waited for, seconds; beyond it the call
            raises `RateLimitExceeded` at once. The limiter, which others use too, holds for it, up to two minutes.

    Raises:
        InvalidRequest: A value is out of its range.
    """

    max_attempts: int = attrs.field(default=4, validator=_check_attempts)
    first_delay: float = attrs.field(default=0.5, validator=_check_pause)
    factor: float = attrs.field(default=2.0, validator=check_factor)
    max_delay: float = attrs.field(default=8.0, validator=_check_pause)
    max_retry_after: float = attrs.field(default=_LONGEST_HOLD, validator=_check_pause)

    def delay(self, attempt: int, chance: float) -> float:
        """Return the pause after a failed attempt, seconds.

        Args:
            attempt: The number of the attempt, 1 for the first.
            chance: A random number from 0 to 1.
        """
        delay = growing_pause(attempt - 1, first=self.first_delay, factor=self.factor, cap=self.max_delay)
        return delay * (1 - chance / 2)


class Decision(NamedTuple):
    """Decision about a failed attempt."""

    action: Action
    pause: float = 0.0  # before the next attempt, seconds
    hold: float = 0.0  # seconds in which the whole limiter grants nothing, whether or not this call goes on


def decide(
    error: MobileMoneyError,
    *,
    effect: Effect,
    bearer: bool,
    policy: RetryPolicy,
    attempt: int,
    renewed: bool,
    chance: float,
) -> Decision:
    """Return the next step after a failed attempt.

    Args:
        error: The attempt's error.
        effect: The endpoint's.
        bearer: Whether the endpoint carries the token.
        policy: The caller's.
        attempt: The number of attempts that count against the policy, this one included.
        renewed: Whether this call has renewed its token already.
        chance: A random number from 0 to 1, for the jitter.
    """
    action = ACTIONS.get(classify(error, bearer=bearer), {}).get(effect, Action.RAISE)
    spent = attempt >= policy.max_attempts
    pause = policy.delay(attempt, chance)
    if action is Action.RENEW_AND_REPLAY:
        return Decision(Action.RENEW_AND_RAISE if renewed else action)
    if isinstance(error, APIError) and action in {Action.HOLD_AND_RETRY, Action.HOLD_AND_RAISE}:
        asked = error.retry_after or 0.0
        impatient = asked > policy.max_retry_after
        hold = max(pause, min(asked, max(policy.max_retry_after, _LONGEST_HOLD)))
        return Decision(Action.HOLD_AND_RAISE if spent or impatient else action, hold=hold)
    if action is Action.RETRY and spent:
        return Decision(Action.RAISE)
    return Decision(action, pause=pause if action is Action.RETRY else 0.0)
