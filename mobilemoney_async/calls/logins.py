"""State machine of logins: the token, its renewal, and the pauses after failures. Pure.

Times are seconds of one clock, which the caller chooses: the event loop's, or that of a store which many processes
share.
"""

from __future__ import annotations

import copy

import attrs

from mobilemoney_async.contract.endpoints import OTHER_USER
from mobilemoney_async.contract.limits import TOKEN_LIFETIME
from mobilemoney_async.errors import (
    APIError,
    InvalidToken,
    MobileMoneyError,
    RateLimitExceeded,
    ServerError,
    UnexpectedResponse,
)
from mobilemoney_async.values import Secret

NEVER = float("-inf")

_RENEW_AHEAD = 60.0
# The first and the longest pause, seconds: after a refusal, and after a login that got no usable answer. The latter is
# the shortest that `RetryPolicy` makes by default, so that each attempt of a call comes to a login.
_REFUSED = (10.0, 900.0)
_FAILED = (0.25, 30.0)
# Seconds within which refusals are in a row, however rarely the account is used.
_IN_A_ROW = 900.0
# A token that claims to live for less is used all the same, until the service refuses it: logins are limited.
_SHORTEST_LIFE = 10.0
_LONGEST_LIFE = 1e9


@attrs.frozen
class LoginPause:
    """Time in which no login is made: calls that need one fail at once, with the error that began it."""

    error: MobileMoneyError
    until: float
    length: float  # seconds


@attrs.frozen
class LoginState:
    """State of the logins of one account. Each transition returns the next state."""

    token: Secret | None = None  # the newest one, unless it was refused
    renew_at: float = NEVER
    expires_at: float = NEVER
    pause: LoginPause | None = None  # the latest one
    fresh_refused_at: float = NEVER  # when a new token was last refused, or a create last got a 401 with its token

    def fresh(self, now: float) -> Secret | None:
        """Return the token, if it need not be renewed yet."""
        return self.token if now < self.renew_at else None

    def valid(self, now: float) -> Secret | None:
        """Return the token, if it has not ended."""
        return self.token if now < self.expires_at else None

    def refusal(self, now: float) -> MobileMoneyError | None:
        """Return a copy of the error with which a login fails without being made, within a pause."""
        if self.pause is None or now >= self.pause.until:
            return None
        error = copy.copy(self.pause.error)
        if isinstance(error, APIError) and error.retry_after is not None:
            error.retry_after = self.pause.until - now  # else each call would begin the whole wait again
        return error

    def logged_in(self, token: Secret, lifetime: float, *, began: float, now: float) -> LoginState:
        """Return the state after a login that was sent at `began`: the service began to count after that.

        A lifetime that is not more than 0 s counts as the contract's 3600 s.
        """
        lifetime = min(lifetime, _LONGEST_LIFE) if lifetime > 0 else TOKEN_LIFETIME
        expires_at = max(began + lifetime, now + _SHORTEST_LIFE)
        renew_at = expires_at - min(_RENEW_AHEAD, (expires_at - began) / 10)
        return attrs.evolve(self, token=token, renew_at=renew_at, expires_at=expires_at)

    def failed(self, error: MobileMoneyError, now: float) -> LoginState:
        """Return the state after a login that failed: a pause, twice as long as the last if that is not long ago.

        It lasts for the ``retry_after`` of a refusal at least, up to 15 minutes.
        """
        last = self.pause
        repeats = last is not None and now < last.until + _IN_A_ROW and _repeats(error, last.error)
        length, longest = _REFUSED if repeats or _is_refusal(error) else _FAILED
        if last is not None and (repeats or now < last.until + 2 * last.length):
            length = min(longest, max(length, 2 * last.length))
        asked = error.retry_after if isinstance(error, APIError) and not isinstance(error, ServerError) else None
        until = now + max(length, min(asked or 0.0, _REFUSED[1]))
        return attrs.evolve(self, pause=LoginPause(error, until, length)).renewed_from(until)

    def rejected(self, token: Secret, now: float, *, replacement: bool) -> LoginState:
        """Return the state after the service refused a token; the same one if a newer token has taken its place.

        A `replacement` was fetched in place of a refused one.
        """
        if token != self.token:
            return self
        state = attrs.evolve(self, token=None)
        if not replacement:
            return state
        # A new token refused at once, twice in a row, with a pause between them perhaps: more logins would not help.
        if now - self.fresh_refused_at < 2 * _IN_A_ROW:
            state = state.failed(InvalidToken("new tokens are refused at once", status_code=401), now)
        return attrs.evolve(state, fresh_refused_at=now)

    def suspected(self, token: Secret, now: float) -> LoginState:
        """Return the state after a create got a 401 that does not name its token, such as a proxy's page.

        The token is renewed for later calls, but stays in use if a login for such a reason has not helped lately.
        """
        if token != self.token or now - self.fresh_refused_at < _IN_A_ROW:
            return self
        return attrs.evolve(self, token=None, fresh_refused_at=now)

    def renewed_from(self, when: float) -> LoginState:
        """Return the state with another time from which on the token is renewed, at the latest at its end."""
        return attrs.evolve(self, renew_at=min(when, self.expires_at))

    def moved(self, by: float) -> LoginState:
        """Return the state as another clock counts, which is ahead by so many seconds."""
        pause = None if self.pause is None else attrs.evolve(self.pause, until=self.pause.until + by)
        return LoginState(
            self.token, self.renew_at + by, self.expires_at + by, pause, fresh_refused_at=self.fresh_refused_at + by
        )


@attrs.define
class CancelledLogins:
    """Distance between logins that are cancelled one after the other, as by deadlines shorter than a login.

    After the first the next call logs in at once: the cancelled one may have been alone. Each further one doubles
    the time from its beginning to the next login, up to 30 s.
    """

    until: float = NEVER  # no login is made before
    _distance: float = 0.0  # seconds

    def add(self, began: float, now: float) -> None:
        """Note that a login which began at `began` was cancelled now."""
        self._distance = min(_FAILED[1], max(now - began, 2 * self._distance))
        self.until = began + self._distance

    def clear(self) -> None:
        """Note that a login was answered, or failed."""
        self._distance = 0.0


def _is_refusal(error: MobileMoneyError) -> bool:
    return isinstance(error, APIError) and not isinstance(error, RateLimitExceeded | ServerError)


def _repeats(error: MobileMoneyError, last: MobileMoneyError) -> bool:
    """Return whether two logins in a row were refused, or gave the token of another user.

    The first such token may have been the answer to another request, and the next login goes over a new connection.
    """
    if isinstance(error, UnexpectedResponse) and isinstance(last, UnexpectedResponse):
        return error.path == last.path == OTHER_USER
    return _is_refusal(error) and _is_refusal(last)
