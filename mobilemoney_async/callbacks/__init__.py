"""Callbacks as hints for the poller: a body may name a payment; its state is then fetched (contract, section 6)."""

from mobilemoney_async.callbacks.names import MAX_BODY, MAX_CANDIDATES, candidates
from mobilemoney_async.callbacks.receiver import (
    CallbackReceiver,
    CallbackResult,
    CallbackStatus,
    Find,
    Following,
    Headers,
    KeptCallback,
    Verify,
)

__all__ = [
    "MAX_BODY",
    "MAX_CANDIDATES",
    "CallbackReceiver",
    "CallbackResult",
    "CallbackStatus",
    "Find",
    "Following",
    "Headers",
    "KeptCallback",
    "Verify",
    "candidates",
]
