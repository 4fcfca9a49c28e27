"""What a person is told of an error: what happened, what to do next, and with which code the command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mobilemoney_async.cli.exit_codes import ExitCode
from mobilemoney_async.errors import (
    AuthenticationError,
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidCredentials,
    InvalidRequest,
    InvalidTransactionId,
    MobileMoneyError,
    OutcomeUnknown,
    PermissionDenied,
    RateLimitExceeded,
    ServerError,
    StoreError,
    TransactionNotFound,
    TransportError,
    UnexpectedResponse,
    WaitTimeout,
)

if TYPE_CHECKING:
    from mobilemoney_async.cli.settings import Settings

_LOG_IN = "get a new token: mobilemoney login, or from whoever issued it"

# The first class that fits: subclasses stand before their bases.
_ADVICE: tuple[tuple[type[Exception], str, ExitCode], ...] = (
    (InvalidRequest, "", ExitCode.USAGE),
    (
        OutcomeUnknown,
        "do not send it again before you have looked: mobilemoney list shows whether it exists",
        ExitCode.UNRESOLVED,
    ),
    (WaitTimeout, "it may still become final: look again with mobilemoney watch", ExitCode.NOT_FINAL),
    (
        InvalidCredentials,
        "check e-mail and password; the service limits attempts, so do not try at random",
        ExitCode.ERROR,
    ),
    (AuthenticationError, _LOG_IN, ExitCode.ERROR),
    (PermissionDenied, "ask whoever issued the credentials for the permission", ExitCode.ERROR),
    (
        TransactionNotFound,
        "check the id and the profile; a payment that was just made may take a moment to show",
        ExitCode.ERROR,
    ),
    (InvalidTransactionId, "copy the id from the answer of collect or disburse, or from list", ExitCode.ERROR),
    (RateLimitExceeded, "something else uses up this merchant's requests: wait a minute", ExitCode.ERROR),
    (ServerError, "the service has a fault: try again later", ExitCode.ERROR),
    (
        UnexpectedResponse,
        "is this the service, with its version prefix? mobilemoney doctor looks",
        ExitCode.ERROR,
    ),
    (
        IdempotencyConflict,
        "look at that payment with mobilemoney payments show, and take another key for another payment",
        ExitCode.ERROR,
    ),
    (
        DuplicateSuspected,
        "find out about the other one first: mobilemoney payments reconcile",
        ExitCode.ERROR,
    ),
    # Its own text says what to do, where it is not that the database failed.
    (StoreError, "", ExitCode.ERROR),
    (TransportError, "mobilemoney doctor looks where it fails", ExitCode.ERROR),
)


def explain(exc: Exception, settings: Settings | None = None) -> tuple[str, ExitCode]:
    """Return what happened and what to do next, as one line, and the exit code.

    Args:
        exc: A `MobileMoneyError` or an `OSError`.
        settings: Of the service that was talked to.
    """
    if isinstance(exc, OSError) and not isinstance(exc, MobileMoneyError):
        file = f"{exc.filename}: " if exc.filename else ""
        # Only files that a person has named can be missing: the configuration's.
        exit_code = ExitCode.USAGE if isinstance(exc, FileNotFoundError) else ExitCode.ERROR
        return f"{file}{exc.strerror or type(exc).__name__}", exit_code
    advice, exit_code = _find(exc)
    happened = str(exc)
    if isinstance(exc, StoreError) and not advice and "failed" in happened:
        advice = "mobilemoney doctor looks at the store"
    if advice == _LOG_IN and settings is not None:
        from mobilemoney_async.cli.logins import login_command

        login = login_command(settings, settings.sources.get("base_url", ""))
        advice = advice.replace("mobilemoney login", login)
    if isinstance(exc, TransportError) and settings is not None:
        happened = f"{settings.base_url}: {happened}"
        if settings.is_built_in and exc.outcome == "not_sent":
            advice = "no sandbox runs there: start one with mobilemoney sandbox, or name a service (--profile)"
    return f"{happened}; {advice}" if advice else happened, exit_code


def _find(exc: Exception) -> tuple[str, ExitCode]:
    for kind, advice, exit_code in _ADVICE:
        if isinstance(exc, kind):
            return advice, exit_code
    return "", ExitCode.ERROR
