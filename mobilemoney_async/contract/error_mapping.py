"""Mapping of answers to values and errors: any status and any bytes give one of the two (contract, section 7).

The body decides first and the HTTP status second, since the contract leaves most statuses open. An error in the body is
an error under HTTP 200 too.

Invariant: a MONEY call is refused for certain by a code of the contract that fits a create, as far as is known by any
other error body under a status of `_REFUSALS` and by any other 401. Every other error leaves its outcome unknown. So
does every body under a status of `_PROXY`: a proxy gives those, and the service's own answer may be lost behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, TypeVar

import attrs

from mobilemoney_async.contract.codec import parse_json, parse_page
from mobilemoney_async.contract.endpoints import LOGIN, Effect, Endpoint
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.plain import DecodeError
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
from mobilemoney_async.text import redact

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

_LOOKUP_CODES = frozenset({"TRANSACTION_NOT_FOUND", "INVALID_TRANSACTION_ID"})  # after a create they prove nothing

# HTTP statuses of requests that were not accepted. Under any other one, such as 409, they may have been processed.
_REFUSALS = frozenset({400, 401, 403, 404, 405, 410, 413, 414, 415, 422, 429})

# HTTP statuses of a proxy.
_PROXY = frozenset({407, 502, 503, 504})

_PLAIN = re.compile(r"[A-Za-z]+(?:[_./+-][A-Za-z]+)*(?:; ?charset=[A-Za-z]+(?:-[0-9]{1,2})?)?", re.ASCII)


@attrs.frozen(kw_only=True)
class Answer:
    """Answer as it came over the wire: the HTTP status, the headers that we read, and the body, decompressed.

    Attributes:
        without_secrets: Takes the secrets of its request out of a text, for an error.
    """

    status_code: int
    content_type: str | None = None
    retry_after: str | None = None
    date: str | None = None
    body: bytes = attrs.field(default=b"", repr=False)
    without_secrets: Callable[[str], str] = attrs.field(default=str, repr=False, eq=False)


def read_answer(endpoint: Endpoint[T], answer: Answer) -> T:
    """Return the value that an answer holds.

    Raises:
        MobileMoneyError: It holds none: `APIError` or a subclass for a refusal of the service, `ServerError` for a
            5xx without a code of the contract, `UnexpectedResponse` for everything else (but a page under 401 or 429).
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
    said: Any = value
    if isinstance(value, Acknowledgement):  # it does not keep `success`, which no user needs; its body is small
        with suppress(DecodeError):  # for fields that are none of the contract's: it is one all the same
            said = parse_page(answer.body.decode(errors="replace").encode())
    if _is_error(said):
        raise _map_error(endpoint, answer, None)
    if isinstance(value, Acknowledgement) and value.status.strip().casefold() != "success":
        # It names a payment. If it says error in the other shape, that comes first.
        error = _map_error(endpoint, answer, DecodeError("expected success", "$.status"))
        if isinstance(error, APIError):
            raise error
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
    if not isinstance(body, dict):
        return _unreadable(endpoint, answer, broken)
    says_success = body.get("status") == "success" or body.get("success") is True
    is_code_enough = not says_success and (answer.status_code >= 400 or broken is not None)
    # Of a create also an error in a shape of its own: a mistyped number must not look like a payment that may exist.
    is_status_enough = not says_success and endpoint.effect is Effect.MONEY and answer.status_code in _REFUSALS
    code = _text(body, "error_code") or _text(body, "error")
    if not (_is_error(body) or is_status_enough or (code and is_code_enough)):
        return _unreadable(endpoint, answer, broken, may_be_made=_names_transaction(body))
    return _api_error(endpoint, answer, body, code)


def _api_error(endpoint: Endpoint[Any], answer: Answer, body: Mapping[str, Any], code: str | None) -> APIError:
    """Return the error of a body that says error."""
    status = answer.status_code
    proves_nothing = endpoint.effect is Effect.MONEY and status in _PROXY
    kind = None if proves_nothing else _BY_CODE.get(code or "")
    if kind is None and status >= 500:
        return _server_error(answer, code, body)
    otherwise = "" if code or _is_error(body) else _excerpt(answer)  # an error in a shape of its own
    error = (kind or _by_status(endpoint, status, code))(
        redact(answer.without_secrets(_text(body, "message") or otherwise)),
        status_code=status,
        code=_shown(answer, code),
        retry_after=_asked(answer, body),
        is_certain=kind is not None,
    )
    if proves_nothing or (endpoint.effect is Effect.MONEY and not _is_refusal(body, code, status)):
        error.outcome, error.is_certain = "unknown", False
    return error


def _is_refusal(body: Mapping[str, Any], code: str | None, status: int) -> bool:
    """Return whether an error body refuses a create. One that names a transaction does not: the payment may exist."""
    if _names_transaction(body):
        return False
    return code not in _LOOKUP_CODES if code in _BY_CODE else status in _REFUSALS


def _names_transaction(value: Any) -> bool:
    left = [value]  # not by recursion: a body may be nested as deep as JSON is read
    while left:
        match left.pop():
            case dict() as fields:
                if any(fields.get(name) for name in ("transaction_id", "transaction")):
                    return True
                left.extend(fields.values())
            case list() as items:
                left.extend(items)
    return False


def _by_status(endpoint: Endpoint[Any], status: int, code: str | None) -> type[APIError]:
    """Return the class of a refusal with a code that the contract does not list."""
    if status == 401:
        # The contract documents 401 for token errors; a login carries no token.
        return InvalidToken if endpoint.bearer and endpoint.effect is Effect.READ and not code else AuthenticationError
    if code or endpoint.effect is Effect.MONEY:  # no class that stands for a code which was not there
        return APIError
    return {403: PermissionDenied, 429: RateLimitExceeded}.get(status, APIError)


def _unreadable(
    endpoint: Endpoint[Any], answer: Answer, broken: DecodeError | None, *, may_be_made: bool = False
) -> MobileMoneyError:
    if answer.status_code >= 500:
        return _server_error(answer, None, {})
    is_session, is_payment = endpoint.effect is Effect.SESSION, endpoint.effect is Effect.MONEY and may_be_made
    if answer.status_code == 401 and endpoint.bearer and not (is_session or is_payment):
        # The status alone is evidence enough to renew the token for a read, not to send money a second time.
        return _by_status(endpoint, 401, None)("no answer of the contract", status_code=401, is_certain=False)
    if answer.status_code == 429 and (endpoint.effect is Effect.READ or endpoint is LOGIN):
        # A proxy's: it asks to wait all the same.
        asked = _asked(answer, {})
        return RateLimitExceeded("no answer of the contract", status_code=429, retry_after=asked, is_certain=False)
    excerpt, content_type = _excerpt(answer), _shown(answer, answer.content_type)
    problem = "an empty body" if not answer.body.strip() else f"{broken}" if broken else "no answer of the contract"
    return UnexpectedResponse(
        f"HTTP {answer.status_code}, {content_type or 'no content type'}: {problem}"
        + (f": {excerpt}" if excerpt else ""),
        status_code=answer.status_code,
        content_type=content_type,
        path=broken.path if broken else None,
        excerpt=excerpt,
    )


def _server_error(answer: Answer, code: str | None, body: Mapping[str, Any]) -> ServerError:
    excerpt, content_type = _excerpt(answer), _shown(answer, answer.content_type)
    said = redact(answer.without_secrets(_text(body, "message") or ""))
    return ServerError(
        said or f"{content_type or 'no content type'}: {excerpt or 'an empty body'}",
        status_code=answer.status_code,
        code=_shown(answer, code),
        retry_after=_asked(answer, body),
        content_type=content_type,
        excerpt=excerpt,
    )


def _excerpt(answer: Answer) -> str:
    return redact(answer.without_secrets(answer.body[:2000].decode("utf-8", "replace")), 120)


def _shown(answer: Answer, text: str | None) -> str | None:
    """Return an error code or a content type: as it is, or redacted where it does not look like one."""
    text = text and answer.without_secrets(text)
    return text if text is None or (len(text) <= 64 and _PLAIN.fullmatch(text)) else redact(text, 64)


def _text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) and value else None


def _asked(answer: Answer, body: Mapping[str, Any]) -> float | None:
    """Return the seconds that an answer asks to wait: its body, else its header, which may name a time by its Date."""
    asked = _seconds(body.get("retry_after"))
    if asked is None and (asked := _seconds(answer.retry_after)) is None and answer.retry_after and answer.date:
        from mobilemoney_async.contract.comparison import read_date  # here: few answers need it

        until, now = read_date(answer.retry_after), read_date(answer.date)
        asked = _seconds(max(0, int((until - now).total_seconds()))) if until and now else None
    return asked


def _seconds(value: Any) -> float | None:
    """Return a plausible retry_after, or None. The contract has an integer; a header is text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return float(value) if type(value) in {int, Decimal} and 0 <= value < 10**9 else None
