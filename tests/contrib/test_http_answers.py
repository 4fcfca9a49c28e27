"""What errors mean to the client of a merchant's own interface."""

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from mobilemoney_async import Transaction, errors
from mobilemoney_async.contrib.http_answers import FINDING_OUT, answer_error, answer_status, order_fields
from mobilemoney_async.contrib.orders import OrderState, OrderStatus, TooManyOrders, TooManyPrompts, read_record
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState
from mobilemoney_async.testing import transaction_record
from mobilemoney_async.values import normalise_phone_number, tanzanian

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TEXT = "what the service said: +255681234567"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.OutcomeUnknown(TEXT, idempotency_key="order-1", sent_at=NOW), 202),
        (errors.StoreError(TEXT, outcome="unknown", idempotency_key="order-1"), 202),
        (errors.UnexpectedResponse(TEXT, status_code=200), 502),
        (errors.WaitTimeout(TEXT, transaction_id="T-1"), 202),
        (errors.InvalidRequest(TEXT, argument="phone_number"), 422),
        (errors.InvalidRequest(TEXT, argument="lifespan"), 500),
        (errors.IdempotencyConflict(TEXT), 409),
        (errors.DuplicateSuspected(TEXT, other_key="order-0"), 409),
        (errors.StoreError(TEXT), 503),
        (TooManyOrders(TEXT), 503),
        (TooManyPrompts(TEXT, retry_after=7.2), 429),
        (errors.RateLimitExceeded(TEXT, status_code=429, retry_after=7.2), 503),
        (errors.TransactionNotFound(TEXT, status_code=404), 404),
        (errors.InvalidTransactionId(TEXT, status_code=400), 404),
        (errors.InvalidCredentials(TEXT, status_code=401), 502),
        (errors.InvalidToken(TEXT, status_code=401), 502),
        (errors.PermissionDenied(TEXT, status_code=403), 502),
        (errors.APIError(TEXT, status_code=400, code="NEW"), 422),
        (errors.APIError(TEXT, status_code=429, code="SLOW", is_certain=False), 503),
        (errors.ServerError(TEXT, status_code=500), 502),
        (errors.RequestTimeout(TEXT), 504),
        (errors.ConnectionFailed(TEXT), 503),
        (errors.MobileMoneyError(TEXT), 502),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_error_has_an_answer_in_fixed_words(error: errors.MobileMoneyError, status: int) -> None:
    """Only a fault of the program is a 500, an unknown outcome is no error, and no text of the service is shown."""
    answer = answer_error(error)
    assert answer.status == status
    assert answer.headers.get("Content-Type", "") == ("" if status == 202 else "application/problem+json")
    assert "255681234567" not in json.dumps(dict(answer.body))
    if status in {429, 503}:
        assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    ("argument", "said"), [("phone_number", "mobile number"), ("amount", "whole amount"), ("order", "check this value")]
)
def test_a_refused_value_is_explained_in_parts_that_a_shop_can_translate(argument: str, said: str) -> None:
    """A code for the shop's own words, and words for a customer."""
    body = answer_error(errors.InvalidRequest(TEXT, argument=argument)).body
    assert (body["code"], body["argument"]) == (f"invalid_{argument}", argument)
    assert said in body["message"]


@pytest.mark.parametrize("argument", ["lifespan", "backend", "client", "caller", "extra"])
def test_a_fault_of_the_program_is_not_the_customer_s(argument: str, caplog: pytest.LogCaptureFixture) -> None:
    """A value that no customer typed is named in the log alone, with its traceback; the answer asks to try later."""
    answer = answer_error(errors.InvalidRequest(f"{argument} must be another", argument=argument))
    assert (answer.status, "try again later" in answer.body["title"]) == (500, True)
    assert argument not in str(answer.body)
    (logged,) = caplog.records
    assert (logged.levelname, f"{argument} must be another" in logged.getMessage()) == ("ERROR", True)
    assert logged.exc_info


@pytest.mark.parametrize(
    ("read", "advice"),
    [
        (tanzanian, "Please enter a Tanzanian mobile number, such as 0788 500 000."),
        (normalise_phone_number, "Please enter a mobile number with its country code, such as +255 788 500 000."),
    ],
)
def test_the_advice_for_a_number_is_a_number_that_is_accepted(read: Callable[[str], str], advice: str) -> None:
    """A shop that reads local numbers does not ask for a country code, also where a worker hands on the error."""
    with pytest.raises(errors.InvalidRequest) as caught:
        read("0222 111 000")
    assert answer_error(pickle.loads(pickle.dumps(caught.value))).body["message"] == advice
    assert read(advice.partition("such as ")[2].removesuffix(".")) == "+255788500000"


def test_an_unknown_outcome_says_so() -> None:
    """The customer of an unknown payment is told that we are finding out, and for which order."""
    answer = answer_error(errors.OutcomeUnknown(TEXT, idempotency_key="order-1", sent_at=NOW))
    assert answer.body == {"order": "order-1", "state": "finding_out", "detail": FINDING_OUT}


@pytest.mark.parametrize("order", ["order-1", None])
@pytest.mark.parametrize("is_certain", [True, False])
@pytest.mark.parametrize(
    "kind", [errors.APIError, errors.InvalidToken, errors.PermissionDenied, errors.RateLimitExceeded]
)
def test_an_error_that_proves_nothing_promises_nothing(
    kind: type[errors.APIError], is_certain: bool, order: str | None
) -> None:
    """ "Nothing was paid" is said only of a create that a code of the contract refused: a lookup proves nothing."""
    error = kind(TEXT, status_code=400, is_certain=is_certain)
    error.idempotency_key = order
    answer = answer_error(error)
    assert ("nothing was paid" in str(answer.body).lower()) is (is_certain and order is not None)
    assert "this payment" not in str(answer.body)


def test_the_service_s_patience_is_passed_on() -> None:
    """A busy service's `retry_after` reaches the client, rounded up to whole seconds."""
    assert answer_error(errors.RateLimitExceeded(TEXT, status_code=429, retry_after=7.2)).headers["Retry-After"] == "8"


def test_a_limit_of_prompts_says_when_there_is_room() -> None:
    """The backend's own `retry_after` reaches the client too, also of an error that went through pickle."""
    error = pickle.loads(pickle.dumps(TooManyPrompts(TEXT, retry_after=7.2, idempotency_key="order-1")))
    answer = answer_error(error)
    assert (answer.status, answer.headers["Retry-After"], answer.body["order"]) == (429, "8", "order-1")


@pytest.mark.parametrize("state", list(OrderState))
def test_a_status_is_accepted_until_it_is_settled(state: OrderState) -> None:
    """202 means that there is more to come, 200 that there is not; money is a string."""
    status = OrderStatus(order="o", state=state, amount=Decimal(15_000), reference="R", reason="WHY")
    answer = answer_status(status)
    assert answer.status == (200 if status.is_settled else 202)
    assert answer.body == order_fields(status)
    assert answer.body["amount"] == "15000"
    assert answer_status(None).status == 404


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("INSUFFICIENT_BALANCE_ON_THE_ACCOUNT", "INSUFFICIENT_BALANCE_ON_THE_ACCOUNT"),
        ("Payer 255788500123; token eyJhbGciOiJIUzI1NiJ9.abc.def", "Payer 255788…123; token [redacted]"),
        (None, "FAILED"),
    ],
)
def test_the_page_of_an_order_shows_a_code_or_a_redacted_reason(said: str | None, shown: str) -> None:
    """An order's page is for everyone who has its number; the record has the service's text whole."""
    made = {**transaction_record("tx-1", status="FAILED"), "failure_reason": said}
    transaction = Transaction.from_dict(made)
    values: dict[str, Any] = {name: made[name] for name in ("phone_number", "type")}
    status = read_record(
        PaymentRecord(
            **values,
            key="order-1",
            amount=Decimal(1000),
            state=PaymentState.FINAL,
            transaction=transaction,
            attempt=1,
            created_at=NOW,
            changed_at=NOW,
        )
    )
    assert answer_status(status).body["reason"] == shown
