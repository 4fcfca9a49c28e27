"""The names that users import."""

import ast
import importlib
import types
from importlib import import_module
from pathlib import Path

import pytest

import mobilemoney_async
from mobilemoney_async.values import missing_extra


def test_the_public_names_are_these() -> None:
    """A name is added or taken away on purpose only."""
    assert mobilemoney_async.__all__ == [
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


def test_they_are_sorted_and_exist() -> None:
    """`from mobilemoney_async import *` works and gives nothing twice."""
    names = mobilemoney_async.__all__
    assert names == sorted(set(names))
    assert all(hasattr(mobilemoney_async, name) for name in names)


def test_nothing_else_is_public() -> None:
    """A name that is not listed is a module, or has an underscore before it."""
    others = {
        name
        for name, value in vars(mobilemoney_async).items()
        if not name.startswith("_")
        and name not in mobilemoney_async.__all__
        and not isinstance(value, types.ModuleType)
    }
    assert others == set()


def test_each_is_what_type_checkers_take_it_for() -> None:
    """A name that is imported when it is first asked for comes from where the type checkers read it."""
    assert mobilemoney_async.__file__ is not None
    tree = ast.parse(Path(mobilemoney_async.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.body[0], ast.ImportFrom))
    read = {
        alias.name: str(node.module).removeprefix("mobilemoney_async.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: home for home, names in mobilemoney_async._HOMES.items() for name in names.split()}
    assert read == dict.fromkeys(read, "errors") | homes
    assert {*read, "__version__"} == set(mobilemoney_async.__all__)
    for name, home in read.items():
        assert getattr(mobilemoney_async, name) is getattr(import_module(f"mobilemoney_async.{home}"), name)


def test_a_name_that_does_not_exist_is_an_error() -> None:
    """A slip of the pen is found at once, and the names are there for completion."""
    with pytest.raises(AttributeError, match="has no attribute 'AsyncCleint'"):
        _ = mobilemoney_async.AsyncCleint  # type: ignore[attr-defined]
    assert set(mobilemoney_async.__all__) <= set(dir(mobilemoney_async))
    assert mobilemoney_async.errors.InvalidRequest is mobilemoney_async.InvalidRequest


def test_an_import_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of httpx without what we use is named by its own error, not by "cannot import name"."""

    def fail(name: str) -> object:
        raise AttributeError("module 'httpx' has no attribute 'AsyncClient'")

    monkeypatch.delitem(vars(mobilemoney_async), "AsyncClient", raising=False)
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ImportError, match="'httpx' has no attribute 'AsyncClient'"):
        from mobilemoney_async import AsyncClient  # noqa: F401


def test_an_extra_that_is_there_and_fails_is_not_asked_for() -> None:
    """`pip install` would not help: the error shows the cause."""
    broken = ImportError("cannot import name 'AsyncClient' from 'httpx'")
    assert str(missing_extra("transport", "aiohttp", broken)).endswith(f"cannot be imported: {broken}")
    absent = str(missing_extra("transport", "aiohttp", ModuleNotFoundError("no", name="aiohttp")))
    assert absent == 'transport needs an extra: pip install "mobilemoney-async[aiohttp]"'
