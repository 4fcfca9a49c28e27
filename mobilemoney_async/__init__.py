"""The asyncio and trio client of a mobile-money payments service: collections, disbursements, lookups, history."""

import typing as _typing

from mobilemoney_async._version import __version__
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
from mobilemoney_async.polling.outcomes import Outcome
from mobilemoney_async.resources.lookups import Lookup
from mobilemoney_async.resources.paging import TransactionPager
from mobilemoney_async.values import Secret

if _typing.TYPE_CHECKING:
    from mobilemoney_async.payments.records import HistoryEntry, PaymentRecord, PaymentState
    from mobilemoney_async.payments.store import SQLStore

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

# A tenth of the import, for programs that keep a store.
_OF_THE_STORE = {
    "HistoryEntry": "records",
    "PaymentRecord": "records",
    "PaymentState": "records",
    "SQLStore": "store",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _OF_THE_STORE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.payments.{_OF_THE_STORE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
