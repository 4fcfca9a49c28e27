"""Where the bearer token comes from, and when a new one is asked for (contract, section 5).

The contract shows no refresh endpoint: a login token is renewed by logging in again, and login attempts are limited.
So a login is made once for everybody who waits for it, ahead of the token's end, and after a failure not again until
a growing pause has passed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import anyio
import attrs

from mobilemoney_async.contract.limits import TOKEN_LIFETIME
from mobilemoney_async.contract.models import LoginResult
from mobilemoney_async.errors import APIError, InvalidToken, MobileMoneyError, RateLimitExceeded, ServerError
from mobilemoney_async.values import Secret, refuse, require_bearer, require_text

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_RENEW_AHEAD = 60.0
# The first and the longest pause, seconds: after a refusal, and after a login that got no usable answer. The latter is
# the shortest that `RetryPolicy` makes by default, so that each attempt of a call comes to a login.
_REFUSED = (10.0, 900.0)
_FAILED = (0.25, 30.0)
# A token that claims to live for less is used all the same, until the service refuses it: logins are limited.
_SHORTEST_LIFE = 10.0
_LONGEST_LIFE = 1e9

Login: TypeAlias = Callable[[str, Secret], Awaitable[LoginResult]]
"""Logs in with e-mail and password, through the calling client's limiter and connections."""


class TokenSource(Protocol):
    """Gives the client its bearer token. Write your own where tokens come from a vault or a sidecar.

    An exception of `token` leaves the call that needed it, which was then not sent.
    """

    async def token(self, login: Login) -> str | Secret:
        """Return a token that should be accepted now; called once or twice for each attempt, so keep it at hand.

        Args:
            login: Makes a login call; a source that does not log in ignores it.
        """
        ...

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Take note that the service refused a token. A later `token` that returns it again ends the call.

        Args:
            token: The refused token, which need not be the newest any more.
            replacement: Whether it was fetched for the same call in place of a refused one.
        """
        ...


def _to_bearer(value: str | Secret) -> Secret:
    return require_bearer("auth", value)


@attrs.frozen
class TokenAuth:
    """An issued token, which cannot be renewed.

    Args:
        value: The token, as ``str`` or `Secret`.

    Raises:
        InvalidRequest: It is not a token.
    """

    value: Secret = attrs.field(converter=_to_bearer)

    async def token(self, login: Login) -> Secret:
        """Return the token."""
        return self.value

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Do nothing: there is no other token."""


@attrs.define
class _Pause:
    """A time in which no login is made: calls that need one fail at once, with the error that began it."""

    error: MobileMoneyError
    until: float
    length: float


class LoginAuth:
    """Logs in with e-mail and password, and again ahead of the token's end.

    Any number of calls share one login. A refused login is not repeated before a pause has passed, 10 s at first and
    doubled each time up to 15 minutes, in which calls fail at once with the same error. After a login without a
    usable answer the pause is 0.25 s at first and 30 s at most, and the calls that needed it try again by their own
    retry policy: nothing of theirs was sent. One object may serve several clients on one event loop.

    Args:
        email: The e-mail address.
        password: The password, as ``str`` or `Secret`.

    Raises:
        InvalidRequest: One of them is not a text.
    """

    def __init__(self, email: str, password: str | Secret) -> None:
        self._email = require_text("email", email)
        self._password = password if isinstance(password, Secret) else Secret(require_text("password", password))
        if not self._password:
            raise refuse("password", "a password that is not empty")
        self._lock = anyio.Lock()
        self._token: Secret | None = None
        self._renew_at = float("-inf")
        self._expires_at = float("-inf")
        self._pause: _Pause | None = None
        self._refused_anew_at = float("-inf")

    def __repr__(self) -> str:
        return "LoginAuth(…)"

    async def token(self, login: Login) -> Secret:
        """Return the current token, after a login where there is none or it is about to end.

        Raises:
            InvalidCredentials: The service refused the credentials, now or within the pause.
            MobileMoneyError: The login failed in another way.
        """
        now = anyio.current_time()
        if self._token is not None and (now < self._renew_at or (now < self._expires_at and self._lock.locked())):
            return self._token
        async with self._lock:
            return await self._renew(login)

    async def _renew(self, login: Login) -> Secret:
        now = anyio.current_time()
        if self._token is not None and now < self._renew_at:
            return self._token
        if self._pause is not None and now < self._pause.until:
            # Those who waited for a login that failed come here too: its failure is shared, not repeated.
            raise copy.copy(self._pause.error)
        try:
            result = await login(self._email, self._password)
            token = require_bearer("access_token", result.access_token)
        except MobileMoneyError as exc:
            self._renew_at = min(self._begin_pause(exc), self._expires_at)
            if self._token is None or anyio.current_time() >= self._expires_at:
                raise copy.copy(exc) from exc.__cause__
            logger.warning("the token could not be renewed ahead of its end: %s", exc)
            return self._token
        lifetime = min(result.expires_in, _LONGEST_LIFE) if result.expires_in > 0 else TOKEN_LIFETIME
        self._token = token
        # Counted from before the login, since the service began to count somewhere within it.
        self._expires_at = max(now + lifetime, anyio.current_time() + _SHORTEST_LIFE)
        self._renew_at = self._expires_at - min(_RENEW_AHEAD, (self._expires_at - now) / 10)
        return token

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Forget a token, unless a newer one has taken its place."""
        if token != self._token:
            return
        self._token = None
        if not replacement:
            return
        # A new token refused at once, twice in a row: logging in again and again would not mend that.
        now = anyio.current_time()
        if now - self._refused_anew_at < _RENEW_AHEAD:
            self._begin_pause(InvalidToken("new tokens are refused at once", status_code=401))
        self._refused_anew_at = now

    def _begin_pause(self, error: MobileMoneyError) -> float:
        """Fail at once from now on; return until when."""
        now = anyio.current_time()
        length, longest = _REFUSED if _is_refusal(error) else _FAILED
        if self._pause is not None and now < self._pause.until + 2 * self._pause.length:
            length = min(longest, max(length, 2 * self._pause.length))
        self._pause = _Pause(error, now + length, length)
        return self._pause.until


def _is_refusal(error: MobileMoneyError) -> bool:
    return isinstance(error, APIError) and not isinstance(error, RateLimitExceeded | ServerError)
