"""HTTP answers of a merchant's own interface: for errors of this library, and for order statuses. For any framework.

Bodies are problem details (RFC 9457) in fixed words. Messages of the service or the database are for the merchant's
log. An unknown result is no error: the answer is 202, and the order's status shows the result later.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import attrs

from mobilemoney_async import errors
from mobilemoney_async.contrib.orders import OrderState, OrderStatus, TooManyOrders, TooManyPrompts, is_unmade

logger: logging.Logger = logging.getLogger("mobilemoney_async")

FINDING_OUT = "We are finding out whether this payment was made. Please do not pay again."


@attrs.frozen
class HTTPAnswer:
    """HTTP answer for a framework to send: the status, the JSON object, and the headers, content type included."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]


_NOTHING = " Nothing was paid."  # left out where the error does not prove it
# Arguments with values that a request may hold. Any other is the program's own, and its fault no customer can correct.
_ASKED = {"phone_number", "amount", "order", "idempotency_key", "key", "transaction_id", "reference", "external_id"}
_ASKED |= {"page", "limit", "type", "status", "from_date", "to_date", "otp_code", "reset_token", "new_password"}
# For a customer, by the argument that was refused.
_ADVICE = {
    "phone_number": "Please enter a mobile number with its country code, such as +255 788 500 000.",
    "amount": "Please enter a whole amount in shillings.",
}
_LOCAL_ADVICE = "Please enter a Tanzanian mobile number, such as 0788 500 000."
# The first that fits, subclasses first: status, title, seconds until another attempt makes sense.
_ANSWERS: tuple[tuple[type[errors.MobileMoneyError], int, str, int | None], ...] = (
    (errors.IdempotencyConflict, 409, "This order has another payment. Please begin a new order.", None),
    (errors.DuplicateSuspected, 409, "An earlier payment like this one is still being looked into.", None),
    (TooManyPrompts, 429, "Too many payments were asked for here. Please try again later.", 60),
    (TooManyOrders, 503, f"There are very many orders now.{_NOTHING} Please try again in a moment.", 10),
    (errors.AccountSuspended, 403, "This merchant takes no payments now.", None),
    (errors.LimitExceeded, 422, f"This amount cannot be paid out now.{_NOTHING}", None),
    (errors.StoreError, 503, "Payments are not available now. Please try again in a moment.", 5),
    (errors.RateLimitExceeded, 503, f"The payment service is busy.{_NOTHING} Please try again in a moment.", 10),
    (errors.TransactionNotFound, 404, "There is no such payment.", None),
    (errors.InvalidTransactionId, 404, "There is no such payment.", None),
    # The merchant's credentials: the customer cannot fix them.
    (errors.AuthenticationError, 502, f"The payment service does not let us in.{_NOTHING}", None),
    (errors.PermissionDenied, 502, f"The payment service does not let us in.{_NOTHING}", None),
    (errors.ServerError, 502, "The payment service has a problem.", 5),
    (errors.APIError, 422, f"The payment service refused this request.{_NOTHING}", None),
    (errors.RequestTimeout, 504, "The payment service did not answer in time.", 5),
    (errors.TransportError, 503, "The payment service cannot be reached.", 5),
    (errors.InvalidRequest, 500, "Something is wrong here. Please try again later.", None),
    (errors.MobileMoneyError, 502, "The payment service has a problem.", 5),
)


def answer_error(error: errors.MobileMoneyError) -> HTTPAnswer:
    """Return the answer for an error of this library: 202 for a create with an unknown outcome, whatever the error.

    An `InvalidRequest` is 422 only for a value that a request may hold, else 500, and an error in the log.
    """
    order = error.idempotency_key
    if isinstance(error, errors.WaitTimeout):
        return HTTPAnswer(202, {"state": str(OrderState.PENDING), "detail": "The payment is still open."}, {})
    if error.outcome == "unknown" and order is not None:
        return HTTPAnswer(202, order_fields(OrderStatus(order=order, state=OrderState.FINDING_OUT)), {})
    if isinstance(error, errors.InvalidRequest) and error.argument in _ASKED:
        title, code = f"Please check this value: {error.argument}.", f"invalid_{error.argument}"
        message = _LOCAL_ADVICE if error.local_numbers else _ADVICE.get(error.argument, title)
        return _problem(422, title, order, code=code, argument=error.argument, message=message)
    is_busy = isinstance(error, errors.APIError) and error.status_code == 429  # in a shape of a proxy's own, say
    kind = errors.RateLimitExceeded if is_busy else type(error)
    status, title, seconds = next(row[1:] for row in _ANSWERS if issubclass(kind, row[0]))
    if isinstance(error, errors.InvalidRequest):
        logger.error("a request was answered with HTTP %d: %s", status, error, exc_info=error)
    if order is None or not is_unmade(error):  # a lookup, whose payment may be made, or a refusal as far as is known
        title = title.replace(_NOTHING, "")
    asked = error.retry_after if isinstance(error, errors.APIError | TooManyPrompts) else None
    if seconds is not None and asked is not None:
        seconds = max(1, math.ceil(asked))
    return _problem(status, title, order, retry_after=seconds)


def answer_status(status: OrderStatus | None) -> HTTPAnswer:
    """Return the answer for an order's status: 200 settled, 202 not yet, 404 for None."""
    if status is None:
        return _problem(404, "There is no such order.", None)
    return HTTPAnswer(200 if status.is_settled else 202, order_fields(status), {"Cache-Control": "no-store"})


def order_fields(status: OrderStatus) -> dict[str, Any]:
    """Return an order's status as plain JSON values. The amount is a string, as it is everywhere in the service."""
    return status.to_dict() | ({"detail": FINDING_OUT} if status.state is OrderState.FINDING_OUT else {})


def _problem(status: int, title: str, order: str | None, *, retry_after: int | None = None, **more: str) -> HTTPAnswer:
    body = {"title": title, "status": status, **more} | ({} if order is None else {"order": order})
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return HTTPAnswer(status, body, {"Content-Type": "application/problem+json", **headers})
