"""Endpoints (`contract.md` section 4): routing a request, and reading its fields."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import attrs

from mobilemoney_async.sandbox.accounts import Account, Permission
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.messages import RefusedError, Reply, Request, payment_error

ErrorShape = Callable[[int, str, str], Reply]
_PHONE_NUMBER = re.compile(r"\+[1-9][0-9]{7,14}")

PREFIX = "/v1"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")


@attrs.frozen
class Route:
    """Endpoint of the service; its path is below the version prefix, with parameters in braces."""

    name: str
    method: str
    path: str
    bearer: bool = attrs.field(default=True, kw_only=True)
    # That the token must have; None for any token.
    permission: Permission | None = attrs.field(default=None, kw_only=True)


Match = tuple[Route, Mapping[str, str]]
"""The endpoint of a request, and its decoded path parameters."""

ROUTES = (
    Route("c2b", "POST", "/payment-service/airtel/c2b", permission=Permission.COLLECT),
    Route("b2c", "POST", "/payment-service/airtel/b2c", permission=Permission.DISBURSE),
    Route("transaction", "GET", "/payment-service/transaction/{transaction_id}", permission=Permission.READ),
    Route("lookup", "GET", "/payment-service/transaction", permission=Permission.READ),
    Route("transactions", "GET", "/payment-service/transactions", permission=Permission.READ),
    Route("profile", "GET", "/user-service/profile"),
    Route("users-profile", "GET", "/user-service/users/profile"),
    Route("login", "POST", "/user-service/login", bearer=False),
    Route("request-otp", "POST", "/user-service/request-otp"),
    Route("verify-otp", "POST", "/user-service/verify-otp"),
    Route("forgot-password", "POST", "/user-service/forgot-password", bearer=False),
    Route("reset-password", "POST", "/user-service/reset-password", bearer=False),
)


_PATTERNS = {route: re.compile(PREFIX + re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)) for route in ROUTES}


def match(method: str, path: str) -> Match | RefusedError:
    """Return the endpoint of a request, or its refusal: HTTP 404 for an unknown path, 405 for another method.

    The path has the version prefix and is percent-encoded: an encoded slash does not split a segment.
    """
    matches = [(route, found) for route in ROUTES if (found := _PATTERNS[route].fullmatch(path))]
    for route, found in matches:
        if route.method == method:
            return route, {name: unquote(value) for name, value in found.groupdict().items()}
    if matches:
        return RefusedError(payment_error(405, "METHOD_NOT_ALLOWED", "This endpoint does not take this method"))
    return RefusedError(payment_error(404, "NOT_FOUND", "There is no such endpoint"))


@attrs.frozen(kw_only=True)
class Call:
    """Request that is routed and read; parameters and query are decoded, and the body of a GET is empty.

    Args:
        account: The sender; None on the endpoints without a bearer token.
        now: Seconds of the service's time since the sandbox's start.
        unscaled_now: The same moment, unscaled.
        choices: The sandbox's choices, as changed by faults for this request.
    """

    parameters: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    account: Account | None
    now: float
    unscaled_now: float
    choices: Choices

    @property
    def owner(self) -> Account:
        """The sender, on an endpoint that requires a bearer token."""
        assert self.account is not None, "only for endpoints behind a bearer token"
        return self.account

    def text(self, field: str, error: ErrorShape) -> str:
        """Read a required field of the body: a string that is not empty; refuse another in the given shape."""
        value = self.body.get(field)
        if not isinstance(value, str) or not value or not _is_unicode(value):
            raise RefusedError(error(400, "INVALID_REQUEST", f"{field} must be a string that is not empty"))
        return value

    def phone_number(self, error: ErrorShape) -> str:
        """Read `phone_number`: `+` and 8 to 15 digits; refuse another text in the given shape."""
        value = self.text("phone_number", error)
        if not _PHONE_NUMBER.fullmatch(value):
            raise RefusedError(error(400, "INVALID_PHONE_NUMBER", "phone_number must be in international format"))
        return value


def read_body(request: Request) -> dict[str, Any]:
    """Read the JSON object of a POST, or refuse the request with HTTP 415 or 400; other methods have none."""
    if request.method != "POST":
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(payment_error(415, "UNSUPPORTED_MEDIA_TYPE", "Send Content-Type: application/json"))
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as exc:
        raise RefusedError(payment_error(400, "INVALID_JSON", "The body is not JSON")) from exc
    if not isinstance(body, dict):
        raise RefusedError(payment_error(400, "INVALID_JSON", "The body is not a JSON object"))
    return body


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written in UTF-8: JSON can contain half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
