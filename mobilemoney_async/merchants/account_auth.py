"""Token source of one of many merchants: its secret comes from a function of the platform's.

Critical section: `_lock` is held by the one task of the account that calls the function. The others wait for it, and
then use its result, also if it failed. Accounts never wait for each other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio

from mobilemoney_async.calls.limiter import LoopLock
from mobilemoney_async.calls.tokens import Login, LoginAuth, TokenAuth, source_failure
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import (
    APIError,
    MobileMoneyError,
    NoSuchMerchant,
    RateLimitExceeded,
    ServerError,
)
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.sharing.login import SharedLogin
from mobilemoney_async.tasks import callers_code
from mobilemoney_async.values import Secret, conceal, refuse

AccountSecret: TypeAlias = str | Secret | TokenAuth | LoginAuth
"""Type of the result of `Merchants`' argument ``auth``: an issued token, or e-mail and password."""

# Seconds between two calls of the function after refusals, and after a failure of its own.
_AGAIN, _FAILED = 10.0, 1.0


class AccountAuth:
    """Token source that asks the platform for an account's secret.

    It asks at the first call, and again once the service has refused the token or the login, or the token is another
    merchant's, every 10 s at most: a secret that was replaced is picked up so, and one that was not stays as it is,
    with its pauses. After a failure of the function, calls fail with the same error for a second.

    Args:
        ask: The function of the account.
        store: The account's store.
        timeout: The longest time for one call of the function, seconds.
        suspend: Called with the reason where the function says that there is no such merchant.
        failed: Called with what is wrong, where the function fails or the service refuses its secret.
    """

    is_vault: bool = True

    def __init__(
        self,
        ask: Callable[[str], Awaitable[AccountSecret]],
        store: AccountStore,
        timeout: float,
        *,
        suspend: Callable[[str], Awaitable[None]],
        failed: Callable[[str], object],
    ) -> None:
        self.name: str | None = None
        self._ask = ask
        self._store = store
        self._timeout = timeout
        self._suspend, self._failed = suspend, failed
        self._lock = LoopLock()
        self._source: TokenAuth | SharedLogin | None = None
        self._given: object = None
        self._is_refused = False
        self._asked_at = -math.inf
        self._failure: MobileMoneyError | None = None
        self._failed_at = -math.inf

    def __repr__(self) -> str:
        return f"<AccountAuth of {self._store.account!r}>"

    async def name_credentials(self) -> str:
        """Return the name of the account's credentials, as they are now.

        Raises:
            MobileMoneyError: The function failed.
        """
        cipher = self._store.cipher
        while True:
            source = await self._current()
            if self.name is not None:
                return self.name
            if isinstance(source, SharedLogin):
                name = await source.name_credentials()
            else:
                token = source.value
                name = await run_in_thread(lambda: cipher.name_token(token))  # noqa: B023 (awaited here)
            if self._source is source:
                self.name = name

    async def token(self, login: Login) -> Secret:
        """Return the account's token, after a login if need be.

        Raises:
            MobileMoneyError: The function or the login failed.
        """
        source = await self._current()
        try:
            return await source.token(login)
        except APIError as exc:
            if isinstance(exc, RateLimitExceeded | ServerError):
                raise
            self._failed(str(exc))
            self._is_refused = self._is_refused or self._source is source
            renewed = await self._current()
            if renewed is source:
                raise
        return await renewed.token(login)

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Note that the service refused a token; one that was issued may have been replaced."""
        source = self._source
        if isinstance(source, SharedLogin):
            source.rejected(token, replacement=replacement)
        elif source is not None and source.value == token:
            self._failed("the service refuses the token")
            self._is_refused = True

    def suspected(self, token: Secret) -> None:
        """Note that a create got a 401 that does not name its token; one that was issued may have been replaced."""
        if isinstance(self._source, SharedLogin):
            self._source.suspected(token)
        else:
            self.rejected(token, replacement=False)

    def doubt(self) -> None:
        """Ask again: the platform may have mixed merchants up, and the service accepts what it gave."""
        self._is_refused = True

    async def _current(self) -> TokenAuth | SharedLogin:
        """Return the source of the secret, which is asked for if there is none, or if it was refused."""
        if self._source is not None and not self._is_refused:
            return self._source
        async with self._lock:
            # Another task may have asked while this one waited.
            now = anyio.current_time()
            if self._source is not None and (not self._is_refused or now < self._asked_at + _AGAIN):
                return self._source
            if self._failure is not None and now < self._failed_at + _FAILED:
                raise copy.copy(self._failure) from self._failure.__cause__
            self._take(await self._call())
            assert self._source is not None
            return self._source

    def _take(self, secret: TokenAuth | LoginAuth) -> None:
        """Use a secret from now on. The same one as before keeps its token, and its pauses after refusals."""
        given = secret.value if isinstance(secret, TokenAuth) else secret.credentials
        if self._source is None or given != self._given:
            self._given, self.name = given, None
            if isinstance(secret, TokenAuth):
                self._source = secret
            else:
                store = self._store
                self._source = SharedLogin(secret, store.database, store.account, store.cipher)
        self._is_refused, self._asked_at = False, anyio.current_time()

    async def _call(self) -> TokenAuth | LoginAuth:
        """Call the function. A cancelled call leaves it to the next task in line."""
        account = self._store.account
        try:
            with anyio.fail_after(self._timeout), callers_code():
                secret: TokenAuth | LoginAuth | Secret = _hidden(await self._ask(account))
            if isinstance(secret, Secret):
                return TokenAuth(secret)
            if type(secret) not in {TokenAuth, LoginAuth}:
                raise refuse("auth", "a function that returns a token, TokenAuth or LoginAuth", secret)
        except Exception as exc:  # noqa: BLE001 (the platform's own; raised for the call)
            self._failed_at = anyio.current_time()
            self._failure = source_failure(f"auth of account {account!r}", exc)
            self._failed(str(self._failure))
            if isinstance(exc, NoSuchMerchant):
                await self._suspend(str(exc))
            raise copy.copy(self._failure) from self._failure.__cause__
        return secret


def _hidden(secret: object) -> Any:
    """Return what the function gave without a text in clear, or its type: the caller's frame may be reported."""
    return secret if type(secret) in {TokenAuth, LoginAuth} else conceal(secret)
