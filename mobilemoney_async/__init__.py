"""The asyncio and trio client of a mobile-money payments service: collections, disbursements, lookups, history."""

import importlib as _importlib
import typing as _typing

from mobilemoney_async._version import __version__

if _typing.TYPE_CHECKING:
    from mobilemoney_async.calls.limiter import RateLimiter
    from mobilemoney_async.calls.retry import RetryPolicy
    from mobilemoney_async.calls.tokens import LoginAuth, TokenAuth, TokenSource
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
    from mobilemoney_async.contract.converter import converter
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
        AccountSuspended,
        APIError,
        AuthenticationError,
        ConnectionFailed,
        DuplicateSuspected,
        IdempotencyConflict,
        InvalidCredentials,
        InvalidCursor,
        InvalidRequest,
        InvalidToken,
        InvalidTransactionId,
        LimitExceeded,
        MobileMoneyError,
        NoSuchMerchant,
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
    from mobilemoney_async.merchants import Merchants
    from mobilemoney_async.payments.audit.report import AuditReport, Difference
    from mobilemoney_async.payments.feed.payment_change import PaymentChange
    from mobilemoney_async.payments.payouts.batch import PayoutBatch
    from mobilemoney_async.payments.records.account_status import AccountNeed, AccountState, AccountStatus, Erasure
    from mobilemoney_async.payments.records.reasons import PaymentCause
    from mobilemoney_async.payments.records.record import (
        HistoryEntry,
        PaymentRecord,
        PaymentState,
        UnclaimedTransaction,
    )
    from mobilemoney_async.payments.store import SQLStore
    from mobilemoney_async.polling.outcomes import Outcome
    from mobilemoney_async.resources.bulk_lookup import Lookup
    from mobilemoney_async.resources.transactions import TransactionPager
    from mobilemoney_async.values import Secret

__all__ = [
    "APIError",
    "AccountNeed",
    "AccountState",
    "AccountStatus",
    "AccountSuspended",
    "Acknowledgement",
    "AsyncClient",
    "AuditReport",
    "AuthenticationError",
    "ConnectionFailed",
    "Difference",
    "DisbursementLimits",
    "DuplicateSuspected",
    "Effect",
    "Erasure",
    "Fees",
    "HistoryEntry",
    "IdempotencyConflict",
    "InvalidCredentials",
    "InvalidCursor",
    "InvalidRequest",
    "InvalidToken",
    "InvalidTransactionId",
    "LimitExceeded",
    "LoginAuth",
    "LoginResult",
    "Lookup",
    "Merchants",
    "MobileMoneyError",
    "Network",
    "NoSuchMerchant",
    "Outcome",
    "OutcomeUnknown",
    "Pagination",
    "PaymentCause",
    "PaymentChange",
    "PaymentRecord",
    "PaymentState",
    "PayoutBatch",
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
    "UnclaimedTransaction",
    "UnexpectedResponse",
    "User",
    "WaitTimeout",
    "__version__",
    "converter",
]

# Module of each name, imported when the name is first asked for: `mobilemoney --help` and programs without a store
# stay light. The names that are missing here are in `errors`.
_HOMES = {
    "calls.limiter": "RateLimiter",
    "calls.retry": "RetryPolicy",
    "calls.tokens": "LoginAuth TokenAuth TokenSource",
    "client": "AsyncClient",
    "configuration.disbursement_limits": "DisbursementLimits",
    "contract.converter": "converter",
    "contract.endpoints": "Effect Priority",
    "contract.limits": "Schedule",
    "contract.models": "Acknowledgement Fees LoginResult Pagination Settlement Transaction TransactionPage User",
    "contract.states": "Network TransactionStatus TransactionType",
    "merchants": "Merchants",
    "payments.records.account_status": "AccountNeed AccountState AccountStatus Erasure",
    "payments.audit.report": "AuditReport Difference",
    "payments.payouts.batch": "PayoutBatch",
    "payments.feed.payment_change": "PaymentChange",
    "payments.records.reasons": "PaymentCause",
    "payments.records.record": "HistoryEntry PaymentRecord PaymentState UnclaimedTransaction",
    "payments.store": "SQLStore",
    "polling.outcomes": "Outcome",
    "resources.bulk_lookup": "Lookup",
    "resources.transactions": "TransactionPager",
    "values": "Secret",
}

if not _typing.TYPE_CHECKING:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name in {home.partition(".")[0] for home in ("errors", *_HOMES)}:
            return _importlib.import_module(f"{__name__}.{name}")
        if name == "Sandbox":  # an AttributeError would become an ImportError without this text
            raise ImportError("Sandbox is elsewhere: from mobilemoney_async.sandbox import Sandbox", name=__name__)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((home for home, names in _HOMES.items() if name in names.split()), "errors")
        try:
            return globals().setdefault(name, getattr(_importlib.import_module(f"{__name__}.{home}"), name))
        except AttributeError as exc:  # it would become an ImportError without its text
            raise ImportError(f"{name} cannot be imported: {exc}", name=__name__) from exc

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
