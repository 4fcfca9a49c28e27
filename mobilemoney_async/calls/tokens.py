"""Sources of the bearer token, and its renewal (contract, section 5).

The contract shows no refresh endpoint: a login token is renewed by logging in again, and login attempts are limited.
So one login serves all calls that wait for it, is made ahead of the token's end, and after a failure not again until a
growing pause has passed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import anyio
import attrs

from mobilemoney_async.calls.limiter import LoopLock
from mobilemoney_async.contract.models import LoginResult
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError, TransportError
from mobilemoney_async.tasks import LoopClock
from mobilemoney_async.values import Secret, conceal, require_bearer, require_secret, require_text

if TYPE_CHECKING:
    from mobilemoney_async.calls.logins import CancelledLogins, LoginState

logger: logging.Logger = logging.getLogger("mobilemoney_async")

Login: TypeAlias = Callable[[str, Secret], Awaitable[LoginResult]]
"""Function that logs in with e-mail and password, through the calling client's limiter and connections."""


class TokenSource(Protocol):
    """Source of the client's bearer token. Write your own where tokens come from a vault or a sidecar.

    A `MobileMoneyError` of `token` but `InvalidRequest` is the error of the call that needed it. Any other exception is
    the cause of a `TransportError`, and so is a result that is no token. Nothing was sent then.
    """

    async def token(self, login: Login) -> str | Secret:
        """Return a token that should be accepted now; called once or twice for each attempt, so keep it at hand.

        Args:
            login: Makes a login call; a source that does not log in ignores it.
        """
        ...

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Note that the service refused a token. A later `token` that returns it again ends the call by the refusal.

        Not async. An exception is logged, and changes nothing.

        Args:
            token: The refused token, which need not be the newest any more.
            replacement: Whether it was fetched in place of a refused one: for the same call, or after a create's 401.
        """
        ...


def source_failure(source: str, error: BaseException) -> MobileMoneyError:
    """Return the error of the calls for one of a source of tokens, or of secrets, that is not ours."""
    if isinstance(error, InvalidRequest):
        # Its text quotes no secret. As an error of arguments it would end the pollers, which can go on later.
        failure: MobileMoneyError = TransportError(f"{source} gave no secret: {error}", outcome="not_sent")
    elif isinstance(error, MobileMoneyError):
        return error
    else:
        # Without the text, which may quote the secret: this error is logged by pollers.
        failure = TransportError(f"{source} failed: {type(error).__name__}", outcome="not_sent")
    failure.__cause__ = error
    return failure


@runtime_checkable
class NamedSource(Protocol):
    """Token source with credentials under a name that shows nothing of them.

    Attributes:
        name: The name of the credentials that are in use now, or None where it is not known yet.
        is_vault: Whether it may give other credentials at any time, perhaps another merchant's.
    """

    name: str | None
    is_vault: bool

    async def name_credentials(self) -> str:
        """Return the name."""
        ...

    def doubt(self) -> None:
        """Note that the credentials are another merchant's, as it seems."""
        ...


@runtime_checkable
class WarySource(Protocol):
    """Token source that limits by itself how many logins the 401s of creates cost."""

    def suspected(self, token: Secret) -> None:
        """Note that a create got a 401 which does not name its token. A later `token` may return it again."""
        ...


class Suspicions:
    """Tokens of 401s of creates, for a source that does not limit its logins; all copies of a client share it."""

    def __init__(self) -> None:
        self._last: Secret | None = None

    def report(self, source: TokenSource, token: Secret) -> None:
        """Report the token of a create's 401 to its source."""
        if isinstance(source, WarySource):
            source.suspected(token)
            return
        # Not replayed: the token of a later create is the replacement, so that not each of them costs a login.
        is_replacement, self._last = self._last not in (None, token), token
        source.rejected(token, replacement=is_replacement)


@attrs.frozen(init=False)
class TokenAuth:
    """Issued token, which cannot be renewed.

    Args:
        value: The token, as ``str`` or `Secret`.

    Raises:
        InvalidRequest: It is not a token.
    """

    value: Secret

    def __init__(self, value: str | Secret) -> None:
        value = conceal(value)  # here: the constructor that attrs writes has a frame too
        self.__attrs_init__(require_bearer("auth", value))

    async def token(self, login: Login) -> Secret:
        """Return the token."""
        return self.value

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Do nothing: there is no other token."""

    def suspected(self, token: Secret) -> None:
        """Do nothing: there is no other token."""


class LoginAuth:
    """Login with e-mail and password, repeated ahead of the token's end.

    Any number of calls share one login. A refused login is not repeated before a pause has passed, 10 s at first and
    doubled each time up to 15 minutes, or its ``retry_after``, in which calls fail at once with the same error. A
    create's 401 that does not name the token, such as a proxy's page, costs one login in 15 minutes. After a login
    without a usable answer the pause is 0.25 s at first and 30 s at most, and the calls that needed it try again by
    their own retry policy: nothing of theirs was sent. Logins that are cancelled in a row, by short deadlines say, come
    further and further apart, up to 30 s, and calls wait. One object may serve several clients on one event loop.

    Args:
        email: The e-mail address.
        password: The password, as ``str`` or `Secret`.

    Raises:
        InvalidRequest: One of them is not a text.
    """

    def __init__(self, email: str, password: str | Secret) -> None:
        password = conceal(password)
        self._email = require_text("email", email)
        self._password = require_secret("password", password)
        # Here: only programs that log in pay for importing it.
        from mobilemoney_async.calls.logins import CancelledLogins, LoginState

        self._lock, self._clock = LoopLock(), LoopClock()
        self._state: LoginState = LoginState()
        self._cancelled: CancelledLogins = CancelledLogins()

    def __repr__(self) -> str:
        return "LoginAuth(…)"

    async def token(self, login: Login) -> Secret:
        """Return the current token, after a login where there is none or it is about to end.

        Raises:
            InvalidCredentials: The service refused the credentials, now or within the pause.
            MobileMoneyError: The login failed in another way.
        """
        now, state = self._clock.now(), self._state
        token = state.fresh(now) or (state.valid(now) if self._lock.locked() else None)
        if token is not None:
            return token
        # One task at a time renews. A task that is cancelled while it logs in keeps nothing, and the next one in line
        # logs in itself. While the lock is held, the others go on with the old token as long as it is valid.
        async with self._lock:
            return await self._renew(login)

    async def _renew(self, login: Login) -> Secret:
        now = self._clock.now()
        if (token := self._state.fresh(now)) is not None:
            return token
        if now < self._cancelled.until:
            await anyio.sleep(self._cancelled.until - now)
            now = self._clock.now()
        if (refusal := self._state.refusal(now)) is not None:
            # Calls that waited for a login that failed come here too: its failure is shared, not repeated.
            raise refusal
        try:
            token, lifetime = await self.log_in(login)
        except MobileMoneyError as exc:
            now = self._clock.now()
            self._cancelled.clear()
            self._state = self._state.failed(exc, now)
            token = self._state.valid(now)
            if token is None:
                raise copy.copy(exc) from exc.__cause__
            logger.warning("the token could not be renewed ahead of its end: %s", exc)
            return token
        except BaseException:
            self._cancelled.add(now, self._clock.now())
            self._state = self._state.renewed_from(self._cancelled.until)  # until then an older token is used
            raise
        self._cancelled.clear()
        self._state = self._state.logged_in(token, lifetime, began=now, now=self._clock.now())
        return token

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Forget a token, unless a newer one has taken its place."""
        self._state = self._state.rejected(token, self._clock.now(), replacement=replacement)

    def suspected(self, token: Secret) -> None:
        """Forget a token, unless a newer one has taken its place, or that has not helped lately."""
        self._state = self._state.suspected(token, self._clock.now())

    @property
    def credentials(self) -> tuple[str, Secret]:
        """The e-mail address and the password."""
        return self._email, self._password

    async def log_in(self, login: Login) -> tuple[Secret, float]:
        """Log in regardless of earlier logins, keep nothing, and return the token and its lifetime, seconds."""
        result = await login(*self.credentials)
        return result.access_token, result.expires_in
