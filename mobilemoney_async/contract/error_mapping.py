"""Mapping of answers to values and errors: any status and any bytes give one of the two (contract, section 7).

The body decides first and the HTTP status second, since the contract leaves most statuses open. An error in the body is
an error under HTTP 200 too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from mobilemoney_async.contract.codec import DecodeError, parse_json
from mobilemoney_async.contract.endpoints import Effect, Endpoint
from mobilemoney_async.errors import (
    APIError,
    AuthenticationError,
    InvalidCredentials,
    InvalidToken,
    InvalidTransactionId,
    MobileMoneyError,
    PermissionDenied,
    RateLimitExceeded,
    ServerError,
    TokenExpired,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.values import redact

T = TypeVar("T")

_BY_CODE: dict[str, type[APIError]] = {
    "TRANSACTION_NOT_FOUND": TransactionNotFound,
    "INVALID_TRANSACTION_ID": InvalidTransactionId,
    "RATE_LIMIT_EXCEEDED": RateLimitExceeded,
    "invalid_credentials": InvalidCredentials,
    "invalid_token": InvalidToken,
    "token_expired": TokenExpired,
    "insufficient_permissions": PermissionDenied,
}

_CODE = re.compile(r"[A-Za-z]+(?:[_.-][A-Za-z]+)*", re.ASCII)


@attrs.frozen(kw_only=True)
class Answer:
    """Answer as it came over the wire: the HTTP status, the headers that we read, and the body, decompressed."""

    status_code: int
    content_type: str | None = None
    retry_after: str | None = None
    date: str | None = None
    body: bytes = attrs.field(default=b"", repr=False)


def read_answer(endpoint: Endpoint[T], answer: Answer) -> T:
    """Return the value that an answer holds.

    Raises:
        MobileMoneyError: It holds none: `APIError` or a subclass for a refusal of the service, `ServerError` for a
            5xx without a code of the contract, `UnexpectedResponse` for everything else.
    """
    if not 200 <= answer.status_code < 300:
        raise _map_error(endpoint, answer, None)
    try:
        no_content = answer.status_code == 204 and endpoint.effect is not Effect.MONEY
        if not answer.body.strip() and (endpoint.empty_is_success or no_content):
            return endpoint.read(b"{}")
        value = endpoint.read(answer.body)
    except DecodeError as exc:
        raise _map_error(endpoint, answer, exc) from exc
    if _is_error(value):
        raise _map_error(endpoint, answer, None)
    return value


def _is_error(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("status") == "error" or value.get("success") is False
    return getattr(value, "status", None) == "error" or getattr(value, "success", None) is False


def _map_error(endpoint: Endpoint[Any], answer: Answer, broken: DecodeError | None) -> MobileMoneyError:
    try:
        body = parse_json(answer.body)
    except DecodeError as exc:
        return _unreadable(endpoint, answer, broken or exc)
    status = answer.status_code
    if not isinstance(body, dict):
        return _unreadable(endpoint, answer, broken)
    code = _text(body, "error_code") or _text(body, "error")
    if not (_is_error(body) or (code and (status >= 400 or broken))):
        return _unreadable(endpoint, answer, broken)
    kind = _BY_CODE.get(code or "")
    asked = _seconds(body.get("retry_after"))
    if kind is None and status >= 500:
        return _server_error(answer, code, _text(body, "message"))
    return (kind or _by_status(endpoint, status, code))(
        redact(_text(body, "message") or ""),
        status_code=status,
        code=_shown(code),
        retry_after=_seconds(answer.retry_after) if asked is None else asked,
    )


def _by_status(endpoint: Endpoint[Any], status: int, code: str | None) -> type[APIError]:
    """Return the class of a refusal with a code that the contract does not list."""
    if status == 401:
        # The contract documents 401 for token errors; a login carries no token.
        return AuthenticationError if code or not endpoint.bearer else InvalidToken
    if code:
        return APIError
    if status == 404 and endpoint.path.startswith("/payment-service/transaction"):
        return TransactionNotFound
    return {403: PermissionDenied, 429: RateLimitExceeded}.get(status, APIError)


def _unreadable(endpoint: Endpoint[Any], answer: Answer, broken: DecodeError | None) -> MobileMoneyError:
    if answer.status_code >= 500:
        return _server_error(answer, None, None)
    if answer.status_code == 401 and endpoint.bearer and endpoint.effect is Effect.READ:
        # The status alone is evidence enough to renew the token for a read, not to send money a second time.
        return InvalidToken("no answer of the contract", status_code=401)
    excerpt = _excerpt(answer.body)
    problem = "an empty body" if not answer.body.strip() else f"{broken}" if broken else "no answer of the contract"
    return UnexpectedResponse(
        f"HTTP {answer.status_code}, {answer.content_type or 'no content type'}: {problem}"
        + (f": {excerpt}" if excerpt else ""),
        status_code=answer.status_code,
        content_type=answer.content_type,
        path=broken.path if broken else None,
        excerpt=excerpt,
    )


def _server_error(answer: Answer, code: str | None, message: str | None) -> ServerError:
    excerpt = _excerpt(answer.body)
    return ServerError(
        redact(message) if message else f"{answer.content_type or 'no content type'}: {excerpt or 'an empty body'}",
        status_code=answer.status_code,
        code=_shown(code),
        retry_after=_seconds(answer.retry_after),
        content_type=answer.content_type,
        excerpt=excerpt,
    )


def _excerpt(body: bytes) -> str:
    return redact(body[:2000].decode("utf-8", "replace"), 120)


def _shown(code: str | None) -> str | None:
    """Return an error code as it is, or redacted where it does not look like a code."""
    return code if code is None or _CODE.fullmatch(code) else redact(code, 64)


def _text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) and value else None


def _seconds(value: Any) -> float | None:
    """Return a plausible retry_after, or None. The contract has an integer; a header is text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return float(value) if type(value) is int and 0 <= value < 10**9 else None
