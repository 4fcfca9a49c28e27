"""Every row of the table of magic numbers has the effect that it names."""

from collections.abc import Callable

import pytest

from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.magic import MAGIC_NUMBERS, find
from mobilemoney_async.sandbox.messages import Wire
from mobilemoney_async.sandbox.states import Kind
from tests.sandbox.service import Answer, Service

BOTH = [Kind.COLLECTION, Kind.DISBURSEMENT]
REASONS = {
    "029": (Kind.COLLECTION, "PAYER_NOT_FOUND"),
    "039": (Kind.COLLECTION, "PAYMENT_NOT_APPROVED"),
    "048": (Kind.COLLECTION, "INSUFFICIENT_BALANCE"),
    "069": (Kind.COLLECTION, "UNSPECIFIED_FAILURE"),
    "089": (Kind.DISBURSEMENT, "RECIPIENT_NOT_FOUND"),
    "119": (Kind.DISBURSEMENT, "UNSPECIFIED_FAILURE"),
}
# Every suffix of the table, and the test below that asserts it.
COVERED = {*REASONS, "789", "129", "408", "301", "304", "201", "202", "203", "204", "205", "206"}

both = pytest.mark.parametrize("kind", BOTH)


def number(suffix: str) -> str:
    return f"+255780000{suffix}"


def create(service: Service, kind: Kind, suffix: str, amount: str = "1000") -> Answer:
    send: Callable[[str, str], Answer] = service.collect if kind is Kind.COLLECTION else service.disburse
    return send(number(suffix), amount)


def status_at(service: Service, transaction_id: str, now: float) -> str:
    service.now = now
    return str(service.get(transaction_id).json["transaction"]["status"])


def test_the_table_is_whole() -> None:
    assert set(MAGIC_NUMBERS) == {number(suffix) for suffix in COVERED}
    for phone_number, row in MAGIC_NUMBERS.items():
        assert row.phone_number == phone_number
        assert row.meaning


@pytest.mark.parametrize("suffix", REASONS)
def test_failures(suffix: str) -> None:
    kind, reason = REASONS[suffix]
    service = Service()
    transaction_id = create(service, kind, suffix).json["transaction_id"]
    service.now = 5.0
    record = service.get(transaction_id).json["transaction"]
    assert (record["status"], record["failure_reason"]) == ("FAILED", reason)
    assert record["failed_at"] == "2025-03-31T23:59:05.000Z"
    assert "completed_at" not in record
    assert not list(service.engine.book.ledger)


@pytest.mark.parametrize("suffix", [*REASONS, "408"])
def test_a_number_for_one_kind_is_ordinary_for_the_other(suffix: str) -> None:
    service = Service()
    other = Kind.DISBURSEMENT if MAGIC_NUMBERS[number(suffix)].applies_to == "collection" else Kind.COLLECTION
    assert find(number(suffix), other) is None
    transaction_id = create(service, other, suffix).json["transaction_id"]
    assert status_at(service, transaction_id, 100.0) == "SUCCESS"


@both
def test_789_succeeds(kind: Kind) -> None:
    service = Service()
    transaction_id = create(service, kind, "789").json["transaction_id"]
    assert status_at(service, transaction_id, 4.9) in ("PENDING", "PROCESSING")
    assert status_at(service, transaction_id, 5.0) == "SUCCESS"


@both
def test_129_stays_open_for_ever(kind: Kind) -> None:
    service = Service()
    transaction_id = create(service, kind, "129").json["transaction_id"]
    assert status_at(service, transaction_id, 1e9) in ("PENDING", "PROCESSING")


def test_408_times_out() -> None:
    service = Service()
    transaction_id = service.collect(number("408")).json["transaction_id"]
    assert status_at(service, transaction_id, 119.0) == "PENDING"
    assert status_at(service, transaction_id, 120.0) == "TIMEOUT"


@both
def test_301_succeeds_late(kind: Kind) -> None:
    service = Service(speed=2.0)
    transaction_id = create(service, kind, "301").json["transaction_id"]
    assert status_at(service, transaction_id, 89.0) in ("PENDING", "PROCESSING")
    assert status_at(service, transaction_id, 90.0) == "SUCCESS"


@both
def test_304_is_hidden_for_ninety_seconds(kind: Kind) -> None:
    service = Service()
    acknowledgement = create(service, kind, "304").json
    reference = {"reference": acknowledgement["reference"]}
    service.now = 89.0
    assert service.get(acknowledgement["transaction_id"]).error == (404, "TRANSACTION_NOT_FOUND")
    assert service.send("GET", "/payment-service/transaction", query=reference).status == 404
    assert service.list().json["transactions"] == []
    assert service.engine.book.payments[acknowledgement["transaction_id"]].status == "SUCCESS"
    service.now = 90.0
    assert service.get(acknowledgement["transaction_id"]).json["transaction"]["status"] == "SUCCESS"
    assert len(service.list().json["transactions"]) == 1


@both
def test_201_is_accepted_but_its_answer_is_lost(kind: Kind) -> None:
    service = Service()
    assert create(service, kind, "201").reply.wire is Wire.LOST
    (transaction_id,) = service.engine.book.payments
    assert status_at(service, transaction_id, 5.0) == "SUCCESS"


@both
def test_202_is_lost_before_processing(kind: Kind) -> None:
    service = Service()
    assert create(service, kind, "202").reply.wire is Wire.LOST
    assert not service.engine.book.payments


@both
def test_203_is_processed_and_answered_with_500(kind: Kind) -> None:
    service = Service()
    assert create(service, kind, "203").error == (500, "INTERNAL_ERROR")
    (transaction_id,) = service.engine.book.payments
    assert status_at(service, transaction_id, 5.0) == "SUCCESS"


@both
def test_204_is_answered_with_504_and_not_processed(kind: Kind) -> None:
    service = Service()
    answer = create(service, kind, "204")
    assert (answer.status, answer.reply.content_type) == (504, "text/html")
    assert not service.engine.book.payments


@both
@pytest.mark.parametrize(("suffix", "error"), [("205", (429, "RATE_LIMIT_EXCEEDED")), ("206", (401, "token_expired"))])
def test_205_and_206_reject_every_first_request_of_a_payment(kind: Kind, suffix: str, error: tuple[int, str]) -> None:
    service = Service(choices=Choices())
    assert create(service, kind, suffix, "1").error == error
    assert create(service, kind, suffix, "2").error == error
    assert create(service, kind, suffix, "1").status == 200
    assert create(service, kind, suffix, "1").error == error
    assert create(service, kind, suffix, "2").status == 200
    assert create(service, kind, suffix, "1").status == 200
    assert len(service.engine.book.payments) == 3
    assert service.engine.requests.rejections == 0


def test_magic_does_not_help_strangers() -> None:
    service = Service()
    body = {"phone_number": number("205"), "amount": "1"}
    assert service.send("POST", "/payment-service/airtel/c2b", body, token="none").error == (401, "invalid_token")
