"""The endpoints (`contract.md` section 4), and which of them a request means."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote

import attrs

from mobilemoney_async.sandbox.accounts import Permission
from mobilemoney_async.sandbox.messages import RefusedError, payment_error

PREFIX = "/v1"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

Name = Literal[
    "c2b", "b2c", "transaction", "lookup", "transactions", "profile", "users-profile", "login", "request-otp",
    "verify-otp", "forgot-password", "reset-password",
]  # fmt: skip


@attrs.frozen
class Route:
    """One endpoint.

    Args:
        name: Its name in scripts and in the request log.
        method: HTTP method.
        path: Below the version prefix; a segment in braces stands for any text.
        bearer: Whether an access token is required.
        permission: What the token must allow, None for nothing in particular.
    """

    name: Name
    method: str
    path: str
    bearer: bool = attrs.field(default=True, kw_only=True)
    permission: Permission | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Match:
    """The endpoint that a request means, and the values of its path parameters, decoded."""

    route: Route
    parameters: Mapping[str, str]


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


def match(method: str, path: str) -> Match:
    """Find the endpoint.

    Args:
        method: HTTP method.
        path: With the version prefix, percent-encoded: an encoded slash does not split a segment.

    Raises:
        RefusedError: HTTP 404 for an unknown path, 405 for a known path with another method.
    """
    segments = path.split("/")
    known = False
    for route in ROUTES:
        parameters = _parameters((PREFIX + route.path).split("/"), segments)
        if parameters is None:
            continue
        if route.method == method:
            return Match(route, parameters)
        known = True
    if known:
        raise RefusedError(payment_error(405, "METHOD_NOT_ALLOWED", "This endpoint does not take this method"))
    raise RefusedError(payment_error(404, "NOT_FOUND", "There is no such endpoint"))


def _parameters(template: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(template) != len(segments):
        return None
    parameters = {}
    for expected, segment in zip(template, segments, strict=True):
        if expected.startswith("{") and segment:
            parameters[expected.strip("{}")] = unquote(segment)
        elif expected != segment:
            return None
    return parameters
