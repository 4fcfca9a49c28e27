"""Every error of the library, in one tree.

    MobileMoneyError              .outcome: "not_sent" | "refused" | "unknown"; .idempotency_key
    ├─ InvalidRequest (ValueError)         a wrong argument: refused before anything was sent
    ├─ TransportError                      no connection, or a broken one
    │   ├─ ConnectionFailed
    │   └─ RequestTimeout
    ├─ UnexpectedResponse                  an answer outside the contract
    ├─ APIError                            a refusal of the service
    │   ├─ AuthenticationError
    │   │   ├─ InvalidCredentials
    │   │   ├─ InvalidToken
    │   │   └─ TokenExpired
    │   ├─ PermissionDenied
    │   ├─ TransactionNotFound
    │   ├─ InvalidTransactionId
    │   ├─ RateLimitExceeded
    │   └─ ServerError
    ├─ NoSuchMerchant                      no merchant of an account, said by a function of yours
    ├─ OutcomeUnknown                      a create with an unknown result
    ├─ LimitExceeded                       a disbursement above a limit of yours
    ├─ WaitTimeout (TimeoutError)          a payment that is not final in time
    └─ StoreError                          a failure or a refusal of the store
        ├─ InvalidCursor
        ├─ AccountSuspended
        ├─ IdempotencyConflict
        └─ DuplicateSuspected

Invariants: all of them pickle and copy; none carries a token, a password, an OTP or a whole phone number, except in a
key or id of the caller's. The text of each is one line of at most 500 printable characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from mobilemoney_async.text import printable, redact

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

CallOutcome: TypeAlias = Literal["not_sent", "refused", "unknown"]
"""Result of the request behind an error: it never left this machine, was refused by the service, or is unknown."""

_E = TypeVar("_E", bound="MobileMoneyError")


def _revive(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any]) -> _E:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class MobileMoneyError(Exception):
    """Base of every error that this library raises.

    Attributes:
        outcome: The result of the request: ``"not_sent"`` (it provably never reached the service), ``"refused"`` (by
            the service) or ``"unknown"``. After a create that was not sent no money moved. After one that was refused
            this is certain only where ``is_certain`` of an `APIError` says so.
        idempotency_key: The key of the create that failed, or None for every other call.
    """

    outcome: CallOutcome = "unknown"
    idempotency_key: str | None = None

    def __init__(self, message: str, *, outcome: CallOutcome | None = None, idempotency_key: str | None = None) -> None:
        super().__init__(printable(message))
        if outcome is not None:
            self.outcome = outcome
        if idempotency_key is not None:
            self.idempotency_key = idempotency_key

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword-only arguments do not survive pickle by default; workers hang on such errors.
        return _revive, (type(self), self.args, dict(self.__dict__))


class InvalidRequest(MobileMoneyError, ValueError):
    """Wrong argument, refused before anything was sent.

    Attributes:
        argument: The name of the argument.
        problem: The fault of it: the message, without the argument's name at its beginning.
        advice: The next step, if the message has one.
        local_numbers: Whether a phone number may lack its country code there, as for `values.tanzanian`.
    """

    outcome: CallOutcome = "not_sent"
    local_numbers: bool = False

    def __init__(self, message: str, *, argument: str, problem: str | None = None, advice: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument
        self.problem: str = printable(message if problem is None else problem)
        self.advice: str | None = advice


class TransportError(MobileMoneyError):
    """Failure to send the request or to receive its answer.

    ``outcome`` is ``"not_sent"`` where that is proven, else ``"unknown"``. A create with an unknown outcome raises
    `OutcomeUnknown` instead, with this error as its ``__cause__``.

    Attributes:
        peer: The host to which there was no connection; None if there was one.
    """

    peer: str | None = None


class ConnectionFailed(TransportError):
    """Failed or broken connection: DNS, refused, TLS, reset, closed without an answer."""


class RequestTimeout(TransportError):
    """End of the attempt's ``timeout`` or of the call's ``deadline``."""


class UnexpectedResponse(MobileMoneyError):
    """Answer outside the contract, of the service or of a proxy in front of it.

    Attributes:
        status_code: The HTTP status.
        content_type: The content type, or None where there was none.
        path: The place in the JSON that does not fit, such as ``$.transaction.amount``; None where it was no JSON.
        excerpt: The beginning of the body, redacted.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        content_type: str | None = None,
        path: str | None = None,
        excerpt: str = "",
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.content_type = content_type
        self.path = path
        self.excerpt = excerpt


class APIError(MobileMoneyError):
    """Refusal of the service (contract, section 7).

    An error code that the contract does not list raises this class itself.

    The contract does not show how creates fail, so only a code that it lists, and that fits a create, refuses one for
    certain. After any other refusal, a *soft* one, look in the list before you pay again.

    Attributes:
        is_certain: Whether a code that the contract lists, and that fits the call, proves the refusal.
        status_code: The HTTP status.
        code: The service's ``error_code`` or ``error``, or None where it gave none.
        message: The service's text, redacted.
        retry_after: Seconds that the service asks to wait, or None.
    """

    outcome: CallOutcome = "refused"
    is_certain: bool = True  # for errors that an earlier version pickled

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        code: str | None = None,
        retry_after: float | None = None,
        is_certain: bool = True,
    ) -> None:
        named = code or type(self).__name__
        super().__init__(f"{named} (HTTP {status_code}): {message}" if message else f"{named} (HTTP {status_code})")
        self.status_code = status_code
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.is_certain = is_certain


class AuthenticationError(APIError):
    """Refused login or token, or HTTP 401 without a code of the contract."""


class InvalidCredentials(AuthenticationError):
    """Wrong e-mail or password (``invalid_credentials``)."""


class InvalidToken(AuthenticationError):
    """Malformed, expired or revoked token (``invalid_token``), also after a renewal."""


class TokenExpired(AuthenticationError):
    """Expired token (``token_expired``) that cannot be renewed."""


class PermissionDenied(APIError):
    """Missing permission of the user (``insufficient_permissions``)."""


class TransactionNotFound(APIError):
    """Lookup that matches no transaction (``TRANSACTION_NOT_FOUND``)."""


class InvalidTransactionId(APIError):
    """Malformed transaction id (``INVALID_TRANSACTION_ID``)."""


class RateLimitExceeded(APIError):
    """Exceeded request limit (``RATE_LIMIT_EXCEEDED``; contract, section 8)."""


class ServerError(APIError):
    """HTTP 5xx without an error code of the contract: the request may or may not have been processed.

    Attributes:
        content_type: The content type, or None where there was none.
        excerpt: The beginning of the body, redacted.
    """

    outcome: CallOutcome = "unknown"
    is_certain: bool = False

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        code: str | None = None,
        retry_after: float | None = None,
        content_type: str | None = None,
        excerpt: str = "",
    ) -> None:
        super().__init__(message, status_code=status_code, code=code, retry_after=retry_after, is_certain=False)
        self.content_type = content_type
        self.excerpt = excerpt


class NoSuchMerchant(MobileMoneyError):
    """Account of a platform that has no merchant any more. Raise it in the function `auth` of `Merchants`.

    The account is suspended then, in the store, so that no host asks for its secret again. The text is logged, and is
    the note of the suspension: it is redacted as an answer of the service is.
    """

    outcome: CallOutcome = "not_sent"

    def __init__(self, message: str = "the platform knows no such merchant") -> None:
        super().__init__(redact(message))


class OutcomeUnknown(MobileMoneyError):
    """Create with an unknown result: it may have reached the service, so the payment may or may not exist.

    This is not a failure. Do not create the payment again before you have looked: the transaction list shows whether it
    exists. With a store the same key may be used again, which looks first, and ``client.payments.reconcile`` looks for
    all. The ``__cause__`` is the error of the request.

    Attributes:
        idempotency_key: The key of the create.
        sent_at: When the request was sent, as an aware UTC datetime.
    """

    idempotency_key: str

    def __init__(self, message: str, *, idempotency_key: str, sent_at: datetime) -> None:
        super().__init__(message, idempotency_key=idempotency_key)
        self.sent_at = sent_at


class LimitExceeded(MobileMoneyError):
    """Disbursement, or batch of payouts, above one of your `DisbursementLimits`. Nothing was sent or queued.

    Attributes:
        limit: The limit: ``per_payment``, ``per_recipient_a_day`` or ``per_day``.
        most: Its amount, whole TZS.
        left: How much of it is left: a smaller disbursement would be sent. More is left as earlier ones get older than
            24 hours.
    """

    outcome: CallOutcome = "not_sent"

    def __init__(self, message: str, *, limit: str, most: Decimal, left: Decimal) -> None:
        super().__init__(message)
        self.limit = limit
        self.most = most
        self.left = left


class WaitTimeout(MobileMoneyError, TimeoutError):
    """Payment that was not final when the caller's time-out ended. It may still become so.

    Attributes:
        transaction_id: The id of the payment.
        transaction: The `Transaction` as last seen, or None where no answer came in time.
    """

    def __init__(self, message: str, *, transaction_id: str, transaction: Any = None) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id
        self.transaction = transaction


class StoreError(MobileMoneyError):
    """Failure of the store of payments: it cannot be used or reached, or found a contradiction.

    ``outcome`` is the result of the request: ``"not_sent"`` where the store failed before it.

    Attributes:
        is_database: Whether the database failed, or did not answer.
    """

    is_database: bool = False


class InvalidCursor(StoreError):
    """Cursor of ``payments.changes`` that the feed cannot go on from.

    It is of another store or of one that was restored since, is ahead of the feed, or is behind the changes that are
    kept. Nothing was skipped: compare your books with ``payments.list()``, and begin again with ``after=None``.
    """

    outcome: CallOutcome = "not_sent"


class AccountSuspended(StoreError):
    """Payment of an account that is suspended or removed; see `Merchants.suspend`. Nothing was sent.

    Attributes:
        state: ``SUSPENDED`` or ``REMOVED``.
        note: The reason that was given for it, redacted, or None.
    """

    outcome: CallOutcome = "not_sent"

    def __init__(self, message: str, *, state: str, note: str | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.note = note


class IdempotencyConflict(StoreError):
    """Key that was used for another payment, or is used up: that payment was cancelled. Nothing was sent.

    Another payment has another type, phone number, amount or other extra fields. The key of a payout's retry is used up
    too once the first payment has turned out to be paid.
    """

    outcome: CallOutcome = "not_sent"


class DuplicateSuspected(StoreError):
    """Payment of the same type, phone number and amount that is unresolved, or may be made already. Nothing was sent.

    Attributes:
        other_key: The key of that payment, if its result is unknown, or None.
        transaction_id: The transaction at the service that no payment of the store claims, or None. Look up what it
            is, and say so with ``client.payments.explain``.
    """

    outcome: CallOutcome = "not_sent"

    def __init__(self, message: str, *, other_key: str | None = None, transaction_id: str | None = None) -> None:
        super().__init__(message)
        self.other_key = other_key
        self.transaction_id = transaction_id
