"""The names that users import."""

import types

import mobilemoney_async


def test_the_public_names_are_these() -> None:
    """A name is added or taken away on purpose only."""
    assert mobilemoney_async.__all__ == [
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


def test_they_are_sorted_and_exist() -> None:
    """`from mobilemoney_async import *` works and gives nothing twice."""
    names = mobilemoney_async.__all__
    assert names == sorted(set(names))
    assert all(hasattr(mobilemoney_async, name) for name in names)


def test_nothing_else_is_public() -> None:
    """What is not listed is a module, or has an underscore before it."""
    others = {
        name
        for name, value in vars(mobilemoney_async).items()
        if not name.startswith("_")
        and name not in mobilemoney_async.__all__
        and not isinstance(value, types.ModuleType)
    }
    assert others == set()
