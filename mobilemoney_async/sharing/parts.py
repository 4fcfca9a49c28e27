"""Puts together what the clients of one store share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mobilemoney_async.calls.limiter import Limiter, RateLimiter
from mobilemoney_async.calls.tokens import LoginAuth, TokenSource
from mobilemoney_async.payments.store import SQLStore
from mobilemoney_async.sharing.limiter import SharedLimiter
from mobilemoney_async.sharing.login import SharedLogin
from mobilemoney_async.sharing.poller import StoreFleet


def share_limiter(store: SQLStore, limiter: Limiter) -> Limiter:
    """Return the limiter of the whole fleet. One that is shared already, or a caller's own, stays as it is."""
    if not isinstance(limiter, RateLimiter):
        return limiter
    return SharedLimiter(limiter, store._database, store.account)


def share_tokens(store: SQLStore, tokens: TokenSource, utcnow: Callable[[], datetime]) -> TokenSource:
    """Return the source of the fleet's login token. Issued tokens and sources of a caller's own stay."""
    if type(tokens) is not LoginAuth:  # a subclass may get its tokens in a way of its own
        return tokens
    return SharedLogin(tokens, store._database, store.account, key=store._key, utcnow=utcnow)


def join_fleet(store: SQLStore, utcnow: Callable[[], datetime]) -> StoreFleet:
    """Return the place where one poller meets those of the other processes."""
    return StoreFleet(store._database, store.account, utcnow=utcnow)
