"""The asyncio and trio client of a mobile-money payments service: collections, disbursements, lookups, history.

A name is imported when it is first asked for: the command line answers `--help` without the client, and a program that
never has a store does not load it.
"""

import importlib as _importlib
import typing as _typing

from mobilemoney_async._version import __version__

if _typing.TYPE_CHECKING:
    from mobilemoney_async.calls.limiter import RateLimiter
    from mobilemoney_async.calls.retry import RetryPolicy
    from mobilemoney_async.calls.tokens import LoginAuth, TokenAuth, TokenSource
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.contract.endpoints import Effect, Priority
    from mobilemoney_async.contract.limits import Schedule
    from mobilemoney_async.contract.models import (
        Acknowledgement,
        Fees,
        LoginResult,
        Pagination,
        Settlement,
        Transaction,
        TransactionPage,
        User,
    )
    from mobilemoney_async.contract.states import Network, TransactionStatus, TransactionType
    from mobilemoney_async.errors import (
        APIError,
        AuthenticationError,
        ConnectionFailed,
        DuplicateSuspected,
        IdempotencyConflict,
        InvalidCredentials,
        InvalidRequest,
        InvalidToken,
        InvalidTransactionId,
        MobileMoneyError,
        OutcomeUnknown,
        PermissionDenied,
        RateLimitExceeded,
        RequestTimeout,
        ServerError,
        StoreError,
        TokenExpired,
        TransactionNotFound,
        TransportError,
        UnexpectedResponse,
        WaitTimeout,
    )
    from mobilemoney_async.payments.records import HistoryEntry, PaymentRecord, PaymentState
    from mobilemoney_async.payments.store import SQLStore
    from mobilemoney_async.polling.outcomes import Outcome
    from mobilemoney_async.resources.bulk_lookup import Lookup
    from mobilemoney_async.resources.transactions import TransactionPager
    from mobilemoney_async.values import Secret

__all__ = [
    "APIError",
    "Acknowledgement",
    "AsyncClient",
    "AuthenticationError",
    "ConnectionFailed",
    "DuplicateSuspected",
    "Effect",
    "Fees",
    "HistoryEntry",
    "IdempotencyConflict",
    "InvalidCredentials",
    "InvalidRequest",
    "InvalidToken",
    "InvalidTransactionId",
    "LoginAuth",
    "LoginResult",
    "Lookup",
    "MobileMoneyError",
    "Network",
    "Outcome",
    "OutcomeUnknown",
    "Pagination",
    "PaymentRecord",
    "PaymentState",
    "PermissionDenied",
    "Priority",
    "RateLimitExceeded",
    "RateLimiter",
    "RequestTimeout",
    "RetryPolicy",
    "SQLStore",
    "Schedule",
    "Secret",
    "ServerError",
    "Settlement",
    "StoreError",
    "TokenAuth",
    "TokenExpired",
    "TokenSource",
    "Transaction",
    "TransactionNotFound",
    "TransactionPage",
    "TransactionPager",
    "TransactionStatus",
    "TransactionType",
    "TransportError",
    "UnexpectedResponse",
    "User",
    "WaitTimeout",
    "__version__",
]

_HOMES = {
    "APIError": "errors",
    "Acknowledgement": "contract.models",
    "AsyncClient": "client",
    "AuthenticationError": "errors",
    "ConnectionFailed": "errors",
    "DuplicateSuspected": "errors",
    "Effect": "contract.endpoints",
    "Fees": "contract.models",
    "HistoryEntry": "payments.records",
    "IdempotencyConflict": "errors",
    "InvalidCredentials": "errors",
    "InvalidRequest": "errors",
    "InvalidToken": "errors",
    "InvalidTransactionId": "errors",
    "LoginAuth": "calls.tokens",
    "LoginResult": "contract.models",
    "Lookup": "resources.bulk_lookup",
    "MobileMoneyError": "errors",
    "Network": "contract.states",
    "Outcome": "polling.outcomes",
    "OutcomeUnknown": "errors",
    "Pagination": "contract.models",
    "PaymentRecord": "payments.records",
    "PaymentState": "payments.records",
    "PermissionDenied": "errors",
    "Priority": "contract.endpoints",
    "RateLimitExceeded": "errors",
    "RateLimiter": "calls.limiter",
    "RequestTimeout": "errors",
    "RetryPolicy": "calls.retry",
    "SQLStore": "payments.store",
    "Schedule": "contract.limits",
    "Secret": "values",
    "ServerError": "errors",
    "Settlement": "contract.models",
    "StoreError": "errors",
    "TokenAuth": "calls.tokens",
    "TokenExpired": "errors",
    "TokenSource": "calls.tokens",
    "Transaction": "contract.models",
    "TransactionNotFound": "errors",
    "TransactionPage": "contract.models",
    "TransactionPager": "resources.transactions",
    "TransactionStatus": "contract.states",
    "TransactionType": "contract.states",
    "TransportError": "errors",
    "UnexpectedResponse": "errors",
    "User": "contract.models",
    "WaitTimeout": "errors",
}
"""Module of each name. Type checkers read the imports above in its place."""
_MODULES = frozenset(home.partition(".")[0] for home in _HOMES.values())

if not _typing.TYPE_CHECKING:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return _importlib.import_module(f"{__name__}.{name}")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{home}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
