"""Every error holds the result of the request, travels between processes, and gives nothing secret away."""

import copy
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs
import pytest

import mobilemoney_async
from mobilemoney_async import (
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
    TransactionStatus,
    TransportError,
    UnexpectedResponse,
    WaitTimeout,
)
from tests.contract.test_models import NOON, PENDING

SEEN = attrs.evolve(PENDING, status=TransactionStatus("HELD"))

# One of each class, with everything that it can carry.
ERRORS: list[MobileMoneyError] = [
    MobileMoneyError("said", outcome="refused", idempotency_key="k-1"),
    InvalidRequest("amount must be a number", argument="amount"),
    TransportError("lost", outcome="not_sent"),
    ConnectionFailed("no route", outcome="not_sent", idempotency_key="k-1"),
    RequestTimeout("no answer within 30 s"),
    UnexpectedResponse(
        "HTTP 200", status_code=200, content_type="text/html", path="$.transaction.amount", excerpt="<html>"
    ),
    *(
        kind("said", status_code=429, code="A_CODE", retry_after=30.0)
        for kind in (
            APIError,
            AuthenticationError,
            InvalidCredentials,
            InvalidToken,
            TokenExpired,
            PermissionDenied,
            TransactionNotFound,
            InvalidTransactionId,
            RateLimitExceeded,
        )
    ),
    APIError("said", status_code=400, is_certain=False),
    ServerError(
        "said", status_code=502, code="A_CODE", retry_after=1.0, content_type="text/html", excerpt="<h1>Bad Gateway"
    ),
    OutcomeUnknown("may exist", idempotency_key="k-1", sent_at=NOON),
    WaitTimeout("not final after 5 s", transaction_id="t-1", transaction=SEEN),
    StoreError("the store failed", outcome="not_sent"),
    InvalidCursor("the cursor is ahead of the feed"),
    IdempotencyConflict("the key was used", idempotency_key="k-1"),
    DuplicateSuspected("a duplicate is unknown", other_key="k-2"),
    DuplicateSuspected("it may be made already", transaction_id="t-1"),
    AccountSuspended("the account is suspended", state="SUSPENDED", note="it has left"),
    NoSuchMerchant(),
    LimitExceeded("it exceeds per_day", limit="per_day", most=Decimal(10), left=Decimal(4)),
]


def by_pickle(protocol: int) -> Callable[[Any], Any]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))


WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle{protocol}": by_pickle(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
}


def test_every_class_is_tried() -> None:
    """A new error class cannot be forgotten here."""
    public = {getattr(mobilemoney_async, name) for name in mobilemoney_async.__all__}
    errors = {cls for cls in public if isinstance(cls, type) and issubclass(cls, BaseException)}
    assert {type(error) for error in ERRORS} == errors


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_travels_whole_and_without_its_cause(error: MobileMoneyError, way: Callable[[Any], Any]) -> None:
    """A worker's error arrives in the parent with every attribute, and without the objects of another library."""
    try:
        raise error from OSError("an unpicklable story")
    except MobileMoneyError as raised:
        again = way(raised)
    assert type(again) is type(error)
    assert again is not error
    assert str(again) == str(error)
    assert repr(again) == repr(error)
    assert again.args == error.args
    assert vars(again) == vars(error)
    assert (again.outcome, again.idempotency_key) == (error.outcome, error.idempotency_key)
    assert again.__cause__ is None
    assert again.__traceback__ is None


def test_a_note_travels_along() -> None:
    """A caller's addition to an error is kept."""
    error = TransactionNotFound("no", status_code=404)
    error.add_note("while closing order 7")
    assert by_pickle(pickle.HIGHEST_PROTOCOL)(error).__notes__ == ["while closing order 7"]


TREE: dict[type[MobileMoneyError], tuple[type[BaseException], ...]] = {
    MobileMoneyError: (Exception,),
    InvalidRequest: (MobileMoneyError, ValueError),
    TransportError: (MobileMoneyError,),
    ConnectionFailed: (TransportError,),
    RequestTimeout: (TransportError,),
    UnexpectedResponse: (MobileMoneyError,),
    APIError: (MobileMoneyError,),
    AuthenticationError: (APIError,),
    InvalidCredentials: (AuthenticationError,),
    InvalidToken: (AuthenticationError,),
    TokenExpired: (AuthenticationError,),
    PermissionDenied: (APIError,),
    TransactionNotFound: (APIError,),
    InvalidTransactionId: (APIError,),
    RateLimitExceeded: (APIError,),
    ServerError: (APIError,),
    OutcomeUnknown: (MobileMoneyError,),
    WaitTimeout: (MobileMoneyError, TimeoutError),
    StoreError: (MobileMoneyError,),
    InvalidCursor: (StoreError,),
    IdempotencyConflict: (StoreError,),
    DuplicateSuspected: (StoreError,),
    AccountSuspended: (StoreError,),
    NoSuchMerchant: (MobileMoneyError,),
    LimitExceeded: (MobileMoneyError,),
}


def test_the_tree_is_as_drawn() -> None:
    """An `except` clause catches the classes in the drawing at the top of the file, and no more."""
    assert {type(error): type(error).__bases__ for error in ERRORS} == TREE


def test_the_drawing_names_every_class() -> None:
    assert mobilemoney_async.errors.__doc__ is not None
    for kind in TREE:
        assert kind.__name__ in mobilemoney_async.errors.__doc__


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_outcome_follows_from_the_class(error: MobileMoneyError) -> None:
    """`refused` and `not_sent` mean that no money moved; everything else is `unknown`."""
    exceptions = {
        InvalidRequest: "not_sent",
        ServerError: "unknown",
        InvalidCursor: "not_sent",
        IdempotencyConflict: "not_sent",
        DuplicateSuspected: "not_sent",
        AccountSuspended: "not_sent",
        NoSuchMerchant: "not_sent",
        LimitExceeded: "not_sent",
    }
    expected = exceptions.get(type(error), "refused" if isinstance(error, APIError) else "unknown")
    assert type(error).outcome == expected


def test_an_api_error_reads_as_code_status_and_text() -> None:
    """One line in a log holds the service's answer."""
    assert str(APIError("no balance", status_code=400, code="LOW")) == "LOW (HTTP 400): no balance"
    assert str(RateLimitExceeded("", status_code=429)) == "RateLimitExceeded (HTTP 429)"
    error = TransactionNotFound("no such payment", status_code=404, code="TRANSACTION_NOT_FOUND")
    assert (error.message, error.code, error.status_code) == ("no such payment", "TRANSACTION_NOT_FOUND", 404)
    assert error.retry_after is None


def test_an_error_that_an_earlier_version_pickled_counts_as_certain() -> None:
    """It was the only kind of refusal then; a server's error was never one."""
    for error in (RateLimitExceeded("said", status_code=429), ServerError("said", status_code=502)):
        revive, (cls, args, state) = error.__reduce__()
        del state["is_certain"]
        assert revive(cls, args, state).is_certain is isinstance(error, RateLimitExceeded)


def test_a_wait_that_ran_out_is_a_timeout_error() -> None:
    """`except TimeoutError` works as for any wait, and the error still holds the last state seen."""
    with pytest.raises(TimeoutError, match="not final") as caught:
        raise WaitTimeout("not final", transaction_id="t-1", transaction=SEEN)
    assert isinstance(caught.value, WaitTimeout)
    assert caught.value.transaction == SEEN
    assert "+255680000001" not in repr(caught.value.transaction)
