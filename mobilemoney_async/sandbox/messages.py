"""HTTP messages of the engine: requests, replies, and the two error shapes (`contract.md` section 7)."""

import enum
import json
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import Any

import attrs


class ReplyDelivery(enum.Enum):
    """Delivery of a reply: whole, or damaged as on a real connection."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """No connection is made."""
    CLOSED = "closed"
    """The connection is closed without an answer."""
    RESET = "reset"
    """The connection is reset without an answer."""
    LOST = "lost"
    """The connection stays open, and no answer ever comes."""
    TRUNCATED = "truncated"
    """The head and half of the body come, then the connection is closed."""


@attrs.frozen(kw_only=True)
class Request:
    """HTTP request, with its whole body.

    Args:
        path: As on the wire, percent-encoded and with the version prefix; the segments are decoded when it is routed.
        query: Decoded; of a parameter given twice, the last value.
        headers: By lower-case name.
    """

    method: str
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    body: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen(kw_only=True)
class Reply:
    """Answer to a request, and its delivery.

    Args:
        body: The whole body; a front sends half of it if `wire` says `TRUNCATED`.
        code: The error code in the body, None if the answer is not an error.
        fault: The name of the scripted or magic fault that shaped this reply, None if there was none.
        delay: Seconds between the arrival of the request and the answer.
        at: Time of the answer by the service's clock; aware UTC.
    """

    status: int = 200
    body: bytes = attrs.field(default=b"", repr=False)
    content_type: str = "application/json"
    code: str | None = None
    fault: str | None = None
    delay: float = 0.0
    wire: ReplyDelivery = ReplyDelivery.ANSWERED
    at: datetime | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers as sent; the declared length is that of the whole body, even if the body is cut on its way."""
        headers = [("content-type", self.content_type), ("content-length", str(len(self.body)))]
        return headers if self.at is None else [("date", format_datetime(self.at, usegmt=True)), *headers]

    @property
    def sent_body(self) -> bytes:
        """The part of the body that reaches the client."""
        return self.body[: len(self.body) // 2] if self.wire is ReplyDelivery.TRUNCATED else self.body


def answer(**fields: Any) -> Reply:
    """Return a JSON answer with these fields."""
    return Reply(body=encode(fields))


def payment_error(status: int, code: str, message: str, *, retry_after: int | None = None) -> Reply:
    """Return an error in the payment-service shape; `retry_after` in whole seconds, only on rate-limit errors."""
    fields: dict[str, Any] = {"status": "error", "message": message, "error_code": code}
    if retry_after is not None:
        fields["retry_after"] = retry_after
    return Reply(status=status, body=encode(fields), code=code)


def auth_error(status: int, code: str, message: str) -> Reply:
    """Return an error in the authentication shape, with its code in `error`."""
    return Reply(status=status, body=encode({"success": False, "error": code, "message": message}), code=code)


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return a compact JSON object."""
    return json.dumps(fields, separators=(",", ":")).encode()


@attrs.frozen
class RefusedError(Exception):
    """Refusal that ends the handling of a request with an error reply."""

    reply: Reply
