"""Every row of the table of magic numbers has the effect that it names."""

import itertools
from collections.abc import Callable

import pytest

from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.magic import MAGIC_NUMBERS, find
from mobilemoney_async.sandbox.messages import ReplyDelivery
from mobilemoney_async.sandbox.states import INITIAL, TRANSITIONS, Event, IllegalTransitionError, Kind, Status, after
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
@pytest.mark.parametrize(
    ("suffix", "until", "end"),
    [("789", 5.0, "SUCCESS"), ("129", 1e9, None), ("408", 120.0, "TIMEOUT"), ("301", 180.0, "SUCCESS")],
)
def test_when_it_ends(kind: Kind, suffix: str, until: float, end: str | None) -> None:
    service = Service()
    transaction_id = create(service, kind, suffix).json["transaction_id"]
    if find(number(suffix), kind) is not None:
        assert status_at(service, transaction_id, until - 0.1) in ("PENDING", "PROCESSING")
        assert end in (None, status_at(service, transaction_id, until))


@both
@pytest.mark.parametrize(
    ("suffix", "wire", "status", "is_made"),
    [
        ("201", ReplyDelivery.LOST, 200, True),
        ("202", ReplyDelivery.LOST, None, False),
        ("203", ReplyDelivery.ANSWERED, 500, True),
        ("204", ReplyDelivery.ANSWERED, 504, False),
    ],
)
def test_how_it_is_answered(kind: Kind, suffix: str, wire: ReplyDelivery, status: int | None, is_made: bool) -> None:
    service = Service()
    reply = create(service, kind, suffix).reply
    assert (reply.wire, status in (None, reply.status)) == (wire, True)
    assert [status_at(service, each, 5.0) for each in service.engine.book.payments] == ["SUCCESS"] * is_made


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


# From contract.md section 3, by hand.
FINAL = {
    Kind.COLLECTION: {Status.SUCCESS, Status.FAILED, Status.TIMEOUT},
    Kind.DISBURSEMENT: {Status.SUCCESS, Status.FAILED, Status.INSUFFICIENT_FUNDS},
}


@pytest.mark.parametrize(("kind", "status", "event"), list(itertools.product(Kind, Status, Event)))
def test_every_pair_of_state_and_event(kind: Kind, status: Status, event: Event) -> None:
    """Pairs in the table lead from the open state into a final one; all others are refused."""
    if (kind, status, event) in TRANSITIONS:
        assert status is INITIAL[kind]
        assert after(kind, status, event) in FINAL[kind]
    else:
        with pytest.raises(IllegalTransitionError, match="cannot"):
            after(kind, status, event)


def test_every_final_state_can_be_reached() -> None:
    for kind, final in FINAL.items():
        assert {state for (of, _, _), state in TRANSITIONS.items() if of is kind} == final
