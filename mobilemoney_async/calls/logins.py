"""What is known of a login: its token, when to renew it, and until when no other is made. Pure.

Times are seconds of any one clock, which the caller names by what it passes: the event loop's, or a store's that many
processes share.
"""

from __future__ import annotations

import copy

import attrs

from mobilemoney_async.contract.limits import TOKEN_LIFETIME
from mobilemoney_async.errors import APIError, InvalidToken, MobileMoneyError, RateLimitExceeded, ServerError
from mobilemoney_async.values import Secret

NEVER = float("-inf")

_RENEW_AHEAD = 60.0
# The first and the longest pause, seconds: after a refusal, and after a login that got no usable answer. The latter is
# the shortest that `RetryPolicy` makes by default, so that each attempt of a call comes to a login.
_REFUSED = (10.0, 900.0)
_FAILED = (0.25, 30.0)
# A token that claims to live for less is used all the same, until the service refuses it: logins are limited.
_SHORTEST_LIFE = 10.0
_LONGEST_LIFE = 1e9


@attrs.frozen
class Pause:
    """A time in which no login is made: calls that need one fail at once, with the error that began it.

    Attributes:
        error: That error.
        until: When it ends.
        length: How long it is, seconds.
    """

    error: MobileMoneyError
    until: float
    length: float


@attrs.frozen
class LoginState:
    """The one state machine of logins. Each transition returns the next state.

    Attributes:
        token: The newest token, unless it was refused.
        renew_at: From when on another is asked for.
        expires_at: When the token ends.
        pause: The latest one.
        refused_anew_at: When a token that had just been fetched was last refused.
    """

    token: Secret | None = None
    renew_at: float = NEVER
    expires_at: float = NEVER
    pause: Pause | None = None
    refused_anew_at: float = NEVER

    def fresh(self, now: float) -> Secret | None:
        """Return the token, if it need not be renewed yet."""
        return self.token if now < self.renew_at else None

    def valid(self, now: float) -> Secret | None:
        """Return the token, if it has not ended."""
        return self.token if now < self.expires_at else None

    def refusal(self, now: float) -> MobileMoneyError | None:
        """Return a copy of the error with which a login fails without being made, within a pause."""
        return copy.copy(self.pause.error) if self.pause is not None and now < self.pause.until else None

    def logged_in(self, token: Secret, lifetime: float, *, began: float, now: float) -> LoginState:
        """Return the state after a login.

        Args:
            token: The new token.
            lifetime: What the service says of it, seconds; if it is not more than 0, the contract's 3600 s hold.
            began: When the login was sent: the service began to count somewhere after that.
            now: Now.
        """
        lifetime = min(lifetime, _LONGEST_LIFE) if lifetime > 0 else TOKEN_LIFETIME
        expires_at = max(began + lifetime, now + _SHORTEST_LIFE)
        renew_at = expires_at - min(_RENEW_AHEAD, (expires_at - began) / 10)
        return attrs.evolve(self, token=token, renew_at=renew_at, expires_at=expires_at)

    def failed(self, error: MobileMoneyError, now: float) -> LoginState:
        """Return the state after a login that failed: a pause, twice as long as the last if that is not long ago."""
        length, longest = _REFUSED if _is_refusal(error) else _FAILED
        if self.pause is not None and now < self.pause.until + 2 * self.pause.length:
            length = min(longest, max(length, 2 * self.pause.length))
        paused = attrs.evolve(self, pause=Pause(error, now + length, length))
        return paused.renewed_from(now + length)

    def rejected(self, token: Secret, now: float, *, replacement: bool) -> LoginState:
        """Return the state after the service refused a token; the same one if a newer token has taken its place.

        Args:
            token: The refused token.
            now: Now.
            replacement: Whether it was fetched for the same call in place of a refused one.
        """
        if token != self.token:
            return self
        state = attrs.evolve(self, token=None)
        if not replacement:
            return state
        # A new token refused at once, twice in a row: logging in again and again would not mend that.
        if now - self.refused_anew_at < _RENEW_AHEAD:
            state = state.failed(InvalidToken("new tokens are refused at once", status_code=401), now)
        return attrs.evolve(state, refused_anew_at=now)

    def renewed_from(self, when: float) -> LoginState:
        """Return the state with another time from which on the token is renewed, at the latest at its end."""
        return attrs.evolve(self, renew_at=min(when, self.expires_at))

    def moved(self, by: float) -> LoginState:
        """Return the state as another clock counts, which is ahead by so many seconds."""
        pause = None if self.pause is None else attrs.evolve(self.pause, until=self.pause.until + by)
        return LoginState(
            self.token, self.renew_at + by, self.expires_at + by, pause, refused_anew_at=self.refused_anew_at + by
        )


def _is_refusal(error: MobileMoneyError) -> bool:
    return isinstance(error, APIError) and not isinstance(error, RateLimitExceeded | ServerError)
