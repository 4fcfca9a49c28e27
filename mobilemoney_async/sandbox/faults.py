"""Faults between a client and the service, each as a value.

A fault acts in one or more of four places, and the engine applies it in this order: it changes the `Choices` for one
request, answers *instead* of the service (nothing is processed), or *changes* the service's answer (everything was
processed); and it adds latency. Scripts and magic numbers both use these values. The argument `processed` says whether
the request takes effect before the fault strikes.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mobilemoney_async.sandbox.behaviour import Choices, ListOrder
from mobilemoney_async.sandbox.messages import Reply, ReplyDelivery, auth_error, encode, payment_error

_OPTIONAL_FIELDS = ("completed_at", "failed_at", "failure_reason", "fees", "settlement", "external_id")
_PAGE = "<html>\r\n<head><title>{0}</title></head>\r\n<body><center><h1>{0}</h1></center></body>\r\n</html>\r\n"


@attrs.frozen(kw_only=True)
class Fault:
    """Fault that can strike a request. Make it with the functions of this module.

    Args:
        name: For the request log.
        instead: Returns the answer without processing; None lets the service process the request.
        change: Turns the service's answer into the one that the client gets.
        choices: Fields of `Choices` that differ for this one request.
        latency: Seconds at speed 1 by which the answer is delayed.
    """

    name: str
    instead: Callable[[Choices], Reply] | None = None
    change: Callable[[Reply], Reply] | None = None
    choices: Mapping[str, Any] = attrs.field(factory=dict)
    latency: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))

    def __attrs_post_init__(self) -> None:
        Choices(**self.choices)  # which refuses a choice that is none


def latency(seconds: float) -> Fault:
    """Delay the answer by these seconds at speed 1; the request itself is processed on arrival."""
    return Fault(name="latency", latency=seconds)


def refused() -> Fault:
    """Refuse the connection: provably nothing was sent.

    Over a real socket the connection exists before the request is seen, so there it is reset instead.
    """
    return _answer_with("refused", Reply(wire=ReplyDelivery.REFUSED), processed=False)


def drop(*, processed: bool, reset: bool = False) -> Fault:
    """Close or reset the connection without an answer, before or after the request was processed."""
    return _answer_with("drop", Reply(wire=ReplyDelivery.RESET if reset else ReplyDelivery.CLOSED), processed=processed)


def lost(*, processed: bool) -> Fault:
    """Never answer, on a connection that stays open: the client's read time-out ends it.

    If the request was processed, its answer is lost, otherwise the request.
    """
    return _answer_with("lost", Reply(wire=ReplyDelivery.LOST), processed=processed)


def server_error(status: int = 500, *, processed: bool) -> Fault:
    """Answer with a 5xx in the payment shape, with a code that is not the contract's, before or after processing."""
    reply = payment_error(status, "INTERNAL_ERROR", "Something went wrong")
    return _answer_with("server error", reply, processed=processed)


def html_page(status: int = 502, *, processed: bool = False) -> Fault:
    """Answer with this status and a proxy's HTML page, before or after the request was processed."""
    return _answer_with("html page", html_reply(status), processed=processed)


def empty_body(status: int = 200, *, processed: bool = True) -> Fault:
    """Answer with this status and an empty body, before or after the request was processed."""
    return _answer_with("empty body", Reply(status=status), processed=processed)


def truncated() -> Fault:
    """Process the request, send half of the answer's body, then end the connection."""
    return Fault(name="truncated", change=lambda reply: attrs.evolve(reply, wire=ReplyDelivery.TRUNCATED))


def unknown_fields() -> Fault:
    """Add fields that the contract does not know, to the answer and to each transaction in it."""
    return _edit("unknown fields", lambda part: part.update(x_sandbox={"nested": [1, None]}, x_note="new in v1.1"))


def unknown_status(value: str = "UNDER_REVIEW") -> Fault:
    """Report this state in place of the true one, in records and acknowledgements."""

    def edit(part: dict[str, Any]) -> None:
        if "status_code" in part:
            part["status_code"] = value
        if "phone_number" in part and "id" in part:
            part["status"] = value

    return _edit("unknown status", edit)


def nulls() -> Fault:
    """Send every optional field of a transaction that is absent as null."""

    def edit(part: dict[str, Any]) -> None:
        if "id" in part:
            part.update({name: None for name in _OPTIONAL_FIELDS if name not in part})

    return _edit("nulls", edit)


def list_order(order: ListOrder) -> Fault:
    """List in this order."""
    return Fault(name="list order", choices={"list_order": order})


def list_lag(seconds: float) -> Fault:
    """Leave transactions younger than this out of the list, seconds at speed 1."""
    return Fault(name="list lag", choices={"list_lag": seconds})


def rate_limited(retry_after: int = 1) -> Fault:
    """Reject with RATE_LIMIT_EXCEEDED, whatever the real count says; `retry_after` in real, whole seconds."""
    return Fault(name="rate limited", instead=lambda choices: rate_limit_reply(choices, retry_after))


def token_expired() -> Fault:
    """Reject with token_expired, whatever the token."""
    return Fault(name="token expired", instead=lambda _: token_expired_reply())


def rate_limit_reply(choices: Choices, retry_after: int) -> Reply:
    """Return the documented rejection by the rate limit; `retry_after` in real, whole seconds."""
    message = "Too many requests. Please try again later."
    return payment_error(choices.status_rate_limit_exceeded, "RATE_LIMIT_EXCEEDED", message, retry_after=retry_after)


def token_expired_reply() -> Reply:
    """Return the documented rejection of an expired token."""
    return auth_error(401, "token_expired", "The access token has expired")


def html_reply(status: int) -> Reply:
    """Return a proxy's HTML page."""
    phrases = {500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Time-out"}
    page = _PAGE.format(f"{status} {phrases.get(status, 'Error')}")
    return Reply(status=status, body=page.encode(), content_type="text/html")


def _answer_with(name: str, reply: Reply, *, processed: bool) -> Fault:
    if processed:
        return Fault(name=name, change=lambda _: reply)
    return Fault(name=name, instead=lambda _: reply)


def _edit(name: str, edit: Callable[[dict[str, Any]], None]) -> Fault:
    """Make a fault that edits the JSON object of the answer, and each transaction in it."""

    def change(reply: Reply) -> Reply:
        if not reply.body or reply.content_type != "application/json":
            return reply
        fields: dict[str, Any] = json.loads(reply.body)
        for part in (fields, fields.get("transaction"), *fields.get("transactions", ())):
            if isinstance(part, dict):
                edit(part)
        return attrs.evolve(reply, body=encode(fields))

    return Fault(name=name, change=change)
