"""A request on its way to the handler of its endpoint, and how handlers read its fields."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mobilemoney_async.sandbox.accounts import Account
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.messages import RefusedError, Reply, Request, payment_error

ErrorShape = Callable[[int, str, str], Reply]

_PHONE_NUMBER = re.compile(r"\+[1-9][0-9]{7,14}")


@attrs.frozen(kw_only=True)
class Call:
    """One request, routed and read.

    Args:
        parameters: Path parameters, decoded.
        query: Query parameters, decoded.
        body: The JSON object of the body, empty for GET.
        account: Who sends it; on the endpoints without a bearer token None.
        now: Seconds of the service's time since the sandbox's start.
        unscaled_now: The same moment by the clock that clients measure by.
        choices: The sandbox's, as changed by faults for this request.
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
        """The account, on an endpoint whose route requires a bearer token."""
        assert self.account is not None, "only for endpoints behind a bearer token"
        return self.account

    def text(self, field: str, error: ErrorShape) -> str:
        """Read a required field of the body: a string that is not empty.

        Raises:
            RefusedError: HTTP 400 in the given shape.
        """
        value = self.body.get(field)
        if not isinstance(value, str) or not value or not _is_unicode(value):
            raise RefusedError(error(400, "INVALID_REQUEST", f"{field} must be a string that is not empty"))
        return value

    def phone_number(self, error: ErrorShape) -> str:
        """Read `phone_number`: `+` and 8 to 15 digits.

        Raises:
            RefusedError: HTTP 400 in the given shape.
        """
        value = self.text("phone_number", error)
        if not _PHONE_NUMBER.fullmatch(value):
            raise RefusedError(error(400, "INVALID_PHONE_NUMBER", "phone_number must be in international format"))
        return value


def read_body(request: Request) -> dict[str, Any]:
    """Read the JSON object of a POST; other methods have none.

    Raises:
        RefusedError: HTTP 415 if it is not declared as JSON, 400 if it is no JSON object.
    """
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
    """Tell whether a text can be written in UTF-8: JSON can smuggle in half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
